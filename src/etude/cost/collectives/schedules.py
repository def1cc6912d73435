"""Schedules of the algorithms in the table, for any number of members.

    schedule(Collective.ALL_REDUCE, "ring", 8)
    schedule(Collective.ALL_REDUCE, "hierarchical", 64, dims=(8, 8), inner=("direct", "ring"), chunks=4)

`known()` lists what there is. docs/network.md says what each moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from etude.base.errors import ClusterError
from etude.cost.collectives.algorithm import Layout
from etude.cost.collectives.table import ALGORITHMS
from etude.cost.schedule import Schedule, chunked
from etude.model.schema import Collective


def known() -> dict[str, list[str]]:
    """Collective -> algorithms with a schedule of their own for it."""
    found: dict[str, list[str]] = {}
    for name, algorithm in ALGORITHMS.items():
        for collective in algorithm.collectives:
            found.setdefault(collective.name.lower(), []).append(name)
    return found


def schedule(
    collective: Collective,
    algorithm: str,
    members: int,
    *,
    root: int = 0,
    dims: Sequence[int] | None = None,
    inner: Sequence[str] | None = None,
    orders: Sequence[Sequence[int]] | None = None,
    line: bool = False,
    chunks: int = 1,
    window: int = 2,
) -> Schedule:
    """An algorithm on `members` members.

    `dims` (product: members) and `inner` (an algorithm for each) are for `hierarchical`, `torus` and `rail`; a `tree`
    with `dims` has chains inside the first and trees above, one for each member of it; `orders` makes as many rings,
    each with its part of the data; `line` keeps `ring_both` from going round the end; `root` is for the rooted ones;
    `chunks` and `window` as in `chunked`.
    """
    layout = Layout(root=root, dims=dims, inner=inner, orders=orders, line=line)
    return laid_out(collective, algorithm, members, layout, chunks, window)


def laid_out(
    collective: Collective, algorithm: str, members: int, layout: Layout, chunks: int = 1, window: int = 2
) -> Schedule:
    """The same for a layout."""
    if collective == Collective.REDUCE_SCATTER_BLOCK:
        collective = Collective.REDUCE_SCATTER
    found = ALGORITHMS.get(algorithm)
    carried = found.carried_as(collective) if found is not None else None
    if found is None or carried is None:
        there = known().get(collective.name.lower(), [])
        raise ClusterError(
            f"no algorithm `{algorithm}` for {collective.name.lower()}", hint=f"known: {', '.join(there)}"
        )
    if collective == Collective.BARRIER and carried != collective:  # an all-reduce of nothing
        layout = replace(layout, root=0, orders=None)
        return replace(laid_out(carried, algorithm, members, layout), collective=collective)
    if members < 1 or not 0 <= layout.root < members:
        raise ClusterError(f"{algorithm} on {members} members with root {layout.root}")
    return chunked(found.schedule(carried, members, layout), chunks, window)

"""Policies that place calls: place(run) places the calls of `run.waiting` that should start now.

roundrobin   the devices in turn
heft         by the longest chain after a call, each where it ends first; sees transfers, not what devices hold
reuse        where waiting, loading and recomputing prefixes are least; ignores how fast a device is
future:H     the earliest finish over the frontier, with a lookahead of H generations; 0 is greedy
FILE.py:name a function of yours: place(task, state) -> a device, devices, or None to wait
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.grammar import line
from etude.world.serve.devices.plan import begins
from etude.world.serve.devices.state import terms_of

if TYPE_CHECKING:
    from etude.world.serve.devices.run import PlacementRun

Policy = Callable[["PlacementRun"], None]
NAMES: Final = ("roundrobin", "heft", "reuse", "future:H")


def roundrobin(run: PlacementRun) -> None:
    for c in list(run.waiting):
        fits = [d for d in range(run.devices) if run.fits(c, d)]
        run.put(c, [next(d % run.devices for d in range(run.turn, run.turn + run.devices) if d % run.devices in fits)])
        run.turn += 1


def heft(run: PlacementRun) -> None:
    g, s = run.graph, run.state
    rank = g.mean_ns + g.tail_ns
    for c in sorted(run.waiting, key=lambda c: (-int(rank[c]), c)):
        parents = g.parent[g.parent_start[c] : g.parent_start[c + 1]]

        def end(d: int, c: int = c, parents: Any = parents) -> int:
            fetch = int(g.hand_ns[parents][s.place[parents] != d].sum())
            whole = int(g.option_ns[g.option_start[c + 1] - 1, g.kind[d]])
            return max(run.now_ns, int(s.free[d])) + fetch + whole

        run.put(c, [min((d for d in range(run.devices) if run.fits(c, d)), key=lambda d: (end(d), d))])


def reuse(run: PlacementRun) -> None:
    g = run.graph
    for c in list(run.waiting):

        def lost(d: int, c: int = c) -> tuple[int, int]:
            found = terms_of(g, run.state, c, d, 1, run.now_ns)
            whole = int(g.option_ns[g.option_start[c + 1] - 1, g.kind[d]])
            return found.begin - run.now_ns + found.load - (whole - found.run), d

        run.put(c, [min((d for d in range(run.devices) if run.fits(c, d)), key=lost)])


def future(horizon: int) -> Policy:
    def place(run: PlacementRun) -> None:
        chosen = np.zeros(run.devices, np.int64)
        while run.waiting:
            waiting, coming = np.array(run.waiting, np.int64), np.array(run.coming(), np.int64)
            at, parts = begins(run.graph, run.state, waiting, coming, horizon, run.now_ns, chosen)
            if at < 0:
                break
            run.put(int(waiting[at]), chosen[:parts].tolist())

    return place


def asked(hook: Callable[..., Any]) -> Policy:
    """Your function is called for each waiting call, repeatedly until it places none of them."""

    def place(run: PlacementRun) -> None:
        placed = True
        while placed and run.waiting:
            placed = False
            for c in list(run.waiting):
                found = _answer(hook, run, c)
                if found:
                    run.put(c, found)
                    placed = True

    return place


def _answer(hook: Callable[..., Any], run: PlacementRun, c: int) -> list[int]:
    name, where = getattr(hook, "__name__", "hook"), run.where(c)
    try:
        found = hook(run.shown(c), run.seen())
    except Exception as problem:
        raise UsageError(f"`{name}` raised {type(problem).__name__}: {problem}", where=where) from problem
    if found is None:
        return []
    listed = list(found) if isinstance(found, list | tuple) else [found]
    good = [d for d in listed if not isinstance(d, bool) and isinstance(d, int | np.integer) and 0 <= d < run.devices]
    if len(good) < len(listed) or not 1 <= len(set(good)) == len(good) <= run.graph.shards[c]:
        hint = f"None, or up to {run.graph.shards[c]} of the devices 0 to {run.devices - 1}"
        raise UsageError(f"`{name}` returned {found!r}", where=where, hint=hint)
    if not all(run.fits(c, int(d)) for d in good):
        raise UsageError(f"`{name}` returned {found!r}, where the model does not fit", where=where)
    return [int(d) for d in good]


def policy_of(text: str | Callable[..., Any]) -> Policy:
    if not isinstance(text, str):
        return asked(text)
    name, horizon = line(text, "--place", "future:2").cut(":")
    if name.text == "future" and horizon is not None:
        return future(horizon.count(zero=True, most=64))
    known: dict[str, Policy] = {"roundrobin": roundrobin, "heft": heft, "reuse": reuse}
    if text not in known:
        raise name.wrong(
            f"unknown placement policy `{text}`", f"known: {', '.join(NAMES)} (H up to 64), or FILE.py:name"
        )
    return known[text]

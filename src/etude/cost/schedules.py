"""Collective algorithms, for any number of members.

    schedule(Collective.ALL_REDUCE, "ring", 8)
    schedule(Collective.ALL_REDUCE, "hierarchical", 64, dims=(8, 8), inner=("direct", "ring"), chunks=4)

`known()` lists what there is. docs/network.md says what each moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from etude.cost import steps, trees
from etude.cost.schedule import I64, Put, Schedule, ScheduleBuilder, chunked
from etude.errors import ClusterError
from etude.model.schema import Collective

__all__ = ["Put", "Schedule", "chunked", "known", "message", "schedule"]

_Make = Callable[..., Schedule]
_TABLE: dict[tuple[Collective, str], _Make] = {}


def known() -> dict[str, list[str]]:
    """Collective -> algorithms."""
    found: dict[str, list[str]] = {}
    for collective, algorithm in _TABLE:
        found.setdefault(collective.name.lower(), []).append(algorithm)
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
    if collective == Collective.REDUCE_SCATTER_BLOCK:
        collective = Collective.REDUCE_SCATTER
    make = _TABLE.get((collective, algorithm))
    if make is None and collective == BARRIER and (AR, algorithm) in _TABLE:  # an all-reduce of nothing
        nothing = schedule(AR, algorithm, members, dims=dims, inner=inner, line=line)
        return replace(nothing, collective=BARRIER)
    if make is None:
        there = known().get(collective.name.lower(), [])
        raise ClusterError(
            f"no algorithm `{algorithm}` for {collective.name.lower()}", hint=f"known: {', '.join(there)}"
        )
    if members < 1 or not 0 <= root < members:
        raise ClusterError(f"{algorithm} on {members} members with root {root}")
    more: dict[str, Any] = {}
    if orders is not None and algorithm in ("ring", "ring_both"):
        if any(sorted(order) != list(range(members)) for order in orders) or not orders:
            raise ClusterError(f"{algorithm}: an order that does not have each of {members} members once")
        more = {"orders": [[int(m) for m in order] for order in orders]}
    if line and algorithm == "ring_both":
        more["line"] = True
    if algorithm == "tree" and dims is not None and len(dims) > 1:
        if prod(dims) != members or min(dims) < 1:
            raise ClusterError(f"{algorithm}: dimensions {tuple(dims)} do not hold {members} members")
        more = {"local": int(dims[0])}
    if algorithm in ("hierarchical", "rail", "torus"):
        sizes = tuple(int(d) for d in (dims or (members,)))
        if prod(sizes) != members or min(sizes) < 1:
            raise ClusterError(f"{algorithm}: dimensions {sizes} do not hold {members} members")
        usual = "ring_both" if algorithm == "torus" else "ring"
        more = {"dims": sizes, "inner": tuple(inner or [usual] * len(sizes))}
        if len(more["inner"]) != len(sizes):
            raise ClusterError(f"{algorithm}: {len(sizes)} dimensions, {len(more['inner'])} algorithms")
    return chunked(make(collective, algorithm, members, root=root, **more), chunks, window)


def message() -> Schedule:
    """One message from member 0 to member 1."""
    build = ScheduleBuilder()
    build.add(0, 1, 0, 1)
    return build.schedule(Collective.NONE, "message", 2, owners=1, blocks=1)


def _makes(*pairs: tuple[Collective, str]) -> Callable[[_Make], _Make]:
    def keep(make: _Make) -> _Make:
        for pair in pairs:
            _TABLE[pair] = make
        return make

    return keep


AR, RS, AG = Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER
A2A, BARRIER = Collective.ALL_TO_ALL, Collective.BARRIER
BROADCAST, REDUCE, GATHER, SCATTER = Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER


def _owned(collective: Collective, n: int, parts: int = 1) -> dict[str, Any]:
    """n * parts blocks; block i * parts + k belongs to member i."""
    owner = np.repeat(np.arange(n), parts).astype(np.int32)
    return {"owners": n if collective in (AG, GATHER) else 1, "blocks": n * parts, "block_owner": owner}


def _alone(n: int) -> I64:
    return np.full(n, -1, np.int64)


# --- reduce-scatter, all-gather, all-reduce -------------------------------------------------------------------------


@_makes(*((c, a) for c in (AR, RS, AG) for a in ("direct", "halving_doubling")))
def _scattered(collective: Collective, algorithm: str, n: int, **_: Any) -> Schedule:
    """Reduce-scatter, all-gather, or one after the other (of `direct`, that is the two-shot all-reduce)."""
    build, group, ready = ScheduleBuilder(), steps.flat(n), _alone(n)
    order = np.array(steps.block_order(algorithm, n))
    first, count = np.argsort(order)[None, :], np.ones((1, n), np.int64)
    # An all-reduce does not hand blocks to positions beyond a power of two only to collect them again.
    halving = algorithm == "halving_doubling" and collective == AR
    if collective != AG:
        ready = steps.REDUCE_SCATTER[algorithm](
            build, group, first, count, ready, **({"give_back": False} if halving else {})
        )
    if collective != RS:
        steps.ALL_GATHER[algorithm](build, group, first, count, ready, **({"collect": False} if halving else {}))
    return build.schedule(collective, algorithm, n, **(_owned(collective, n) | {"block_owner": order.astype(np.int32)}))


@_makes(*((c, a) for c in (AR, RS, AG) for a in ("ring", "ring_both")))
def _rings(
    collective: Collective,
    algorithm: str,
    n: int,
    *,
    orders: list[list[int]] | None = None,
    line: bool = False,
    **_: Any,
) -> Schedule:
    """Around a ring, or around several with a part of each block. Both ways: each half of the way round; of an even
    number, one half of a block goes a step farther up, the other down. In a line: to both ends."""
    build, both = ScheduleBuilder(), algorithm == "ring_both" and not line
    rings = [(order, way) for order in orders or [list(range(n))] for way in range(2 if both else 1)]
    algorithm, name = ("line" if line else algorithm), algorithm
    for part, (order, way) in enumerate(rings):
        group, ready = np.array(order, np.int64)[None, :], _alone(n)
        first, count = group * len(rings) + part, np.ones((1, n), np.int64)
        more = {"mirrored": bool(way)} if both else {}
        if collective != AG:
            ready = steps.REDUCE_SCATTER[algorithm](build, group, first, count, ready, **more)
        if collective != RS:
            steps.ALL_GATHER[algorithm](build, group, first, count, ready, **more)
    return build.schedule(collective, name, n, **_owned(collective, n, len(rings)))


@_makes((AR, "one_shot"))
def _one_shot(collective: Collective, algorithm: str, n: int, **_: Any) -> Schedule:
    """Everyone sends its whole input to everyone, who adds up: n - 1 times the bytes, one latency."""
    build, at = ScheduleBuilder(), np.arange(n)
    for away in range(1, n):
        build.add(at, (at + away) % n, 0, 1, put=Put.REDUCE_INPUT)
    return build.schedule(collective, algorithm, n, owners=1, blocks=1)


@_makes(*((c, a) for c in (AR, RS, AG) for a in ("hierarchical", "torus")))
def _by_dimension(
    collective: Collective, algorithm: str, n: int, *, dims: tuple[int, ...], inner: tuple[str, ...], **_: Any
) -> Schedule:
    """Reduce-scatter along dimension 1, 2, ..., then all-gather back; what is left shrinks with every dimension.

    A torus does so in as many parts as there are dimensions, each beginning with another. Where a dimension goes both
    ways round, there are two of each part: of an even number, one goes a step farther up, the other down.
    """
    for name in inner:
        if name not in steps.REDUCE_SCATTER:
            raise ClusterError(f"{algorithm}: `{name}`", hint=f"known: {', '.join(steps.REDUCE_SCATTER)}")
    turns = range(len(dims)) if algorithm == "torus" else range(1)
    ways = (False, True) if "ring_both" in inner else (False,)
    parts = [(turn, mirrored) for turn in turns for mirrored in ways]
    build, owner, switches = ScheduleBuilder(), [], _switches(dims, inner)
    for part, (turn, mirrored) in enumerate(parts):
        order = [(turn + k) % len(dims) for k in range(len(dims))]
        block = np.full(n, part * n, np.int64)
        passes: list[tuple[str, tuple[I64, I64, I64], dict[str, Any]]] = []
        for at, d in enumerate(order):
            group, place = steps.lines(dims, d)
            # Block (p1, p2, ...) lies at (p1 * n2 + p2) * n3 + ..., so that what belongs together lies together.
            below = prod(dims[e] for e in order[at + 1 :])
            slot = np.argsort(steps.block_order(inner[d], dims[d]))
            more: dict[str, dict[str, Any]] = {
                "ring_both": {"mirrored": mirrored},
                "in_switch": {"switch": n + switches.get(d, 0)},
            }
            where = group, block[group] + slot * below, np.full(group.shape, below)
            passes.append((inner[d], where, more.get(inner[d], {})))
            block += slot[place[d]] * below
        ready = _alone(n)
        for name, where, extra in passes if collective != AG else []:
            ready = steps.REDUCE_SCATTER[name](build, *where, ready, **extra)
        for name, where, extra in reversed(passes) if collective != RS else []:
            ready = steps.ALL_GATHER[name](build, *where, ready, **extra)
        owner.append(np.argsort(block))
    owned = _owned(collective, n, len(parts)) | {"block_owner": np.concatenate(owner).astype(np.int32)}
    helpers = sum(len(switch) for switch in switches.values())
    return build.schedule(collective, algorithm, n, helpers=helpers, **owned)


def _switches(dims: tuple[int, ...], inner: tuple[str, ...]) -> dict[int, I64]:
    """Numbers of the switches of every dimension that reduces in one: one for each line of members."""
    found: dict[int, I64] = {}
    count = 0
    for d, name in enumerate(inner):
        if name == "in_switch":
            found[d] = count + np.arange(prod(dims) // dims[d])
            count += len(found[d])
    return found


# --- trees ----------------------------------------------------------------------------------------------------------


def _up(build: ScheduleBuilder, parent: Any, first: int, count: int, ready: dict[int, list[int]]) -> None:
    """Sums travel to the root; `ready[m]` gathers what member m waits for."""
    for m in reversed(trees.by_depth(parent)):
        if parent[m] >= 0:
            sent = build.add([m], [parent[m]], first, count, after=[ready.get(m, [-1])], put=Put.REDUCE)
            ready.setdefault(int(parent[m]), []).append(int(sent[0]))


def _down(build: ScheduleBuilder, parent: Any, first: int, count: int, ready: dict[int, list[int]]) -> None:
    for m in trees.by_depth(parent):
        if parent[m] >= 0:
            waits = ready.get(int(parent[m]), [-1])
            sent = build.add([parent[m]], [m], first, count, after=[waits])
            ready[m] = [int(sent[0])]


@_makes((AR, "tree"))
def _double_binary_tree(collective: Collective, algorithm: str, n: int, *, local: int = 1, **_: Any) -> Schedule:
    """Each half of the data up and down its own tree; over nodes, a pair of trees for each member of a node."""
    build = ScheduleBuilder()
    parents = [p for leader in range(local) for p in trees.nested(local, n // local, leader)]
    for part, parent in enumerate(parents):
        ready: dict[int, list[int]] = {}
        root = int(np.flatnonzero(parent < 0)[0])
        _up(build, parent, part, 1, ready)
        _down(build, parent, part, 1, {root: ready.get(root, [-1])})
    return build.schedule(collective, algorithm, n, owners=1, blocks=len(parents))


@_makes(*((c, a) for c in (BROADCAST, REDUCE) for a in ("direct", "tree", "ring", "ring_both")))
def _rooted(
    collective: Collective,
    algorithm: str,
    n: int,
    *,
    root: int,
    local: int = 1,
    orders: list[list[int]] | None = None,
    line: bool = False,
    **_: Any,
) -> Schedule:
    """The data to or from the root: straight, half of it along each of two trees, or along chains (chunk it);
    both ways: half of it each, or, in a line, all of it to both ends."""
    build = ScheduleBuilder()
    go = _down if collective == BROADCAST else _up
    if algorithm == "tree":
        parents = [p for leader in range(local) for p in trees.nested(local, n // local, leader, root)]
    elif algorithm == "direct":
        parents = [np.where(np.arange(n) == root, -1, root)]
    else:
        ways = orders or [list(range(n))]
        ways = [*ways, *(order[::-1] for order in ways)] if algorithm == "ring_both" and not line else ways
        parents = [trees.from_middle(order, root) if line else trees.chain(order, root) for order in ways]
    for part, parent in enumerate(parents):
        go(build, parent, part, 1, {})
    return build.schedule(collective, algorithm, n, owners=1, blocks=len(parents), root=root)


@_makes(*((c, a) for c in (GATHER, SCATTER) for a in ("direct", "tree")))
def _parts(collective: Collective, algorithm: str, n: int, *, root: int, **_: Any) -> Schedule:
    """Each part straight, or along a binomial tree in which a member passes on the parts of all below it."""
    build = ScheduleBuilder()
    parent = trees.binomial(n, root) if algorithm == "tree" else np.where(np.arange(n) == root, -1, root)
    relative = (np.arange(n) - root) % n
    order = trees.by_depth(parent)
    ready: dict[int, list[int]] = {}
    for m in order if collective == SCATTER else reversed(order):
        if parent[m] < 0:
            continue
        low = int(relative[m])
        count = min(low & -low, n - low) if algorithm == "tree" else 1
        if collective == SCATTER:
            ready[m] = [int(build.add([parent[m]], [m], low, count, after=[ready.get(int(parent[m]), [-1])])[0])]
        else:
            sent = build.add([m], [parent[m]], low, count, after=[ready.get(m, [-1])])
            ready.setdefault(int(parent[m]), []).append(int(sent[0]))
    owned = _owned(collective, n)
    owned["block_owner"] = ((np.arange(n) + root) % n).astype(np.int32)
    return build.schedule(collective, algorithm, n, root=root, **owned)


# --- all-to-all -----------------------------------------------------------------------------------------------------


@_makes((A2A, "direct"))
def _all_to_all(collective: Collective, algorithm: str, n: int, **_: Any) -> Schedule:
    """Block i * n + j goes straight from i to j."""
    build, at = ScheduleBuilder(), np.arange(n)
    for away in range(1, n):
        to = (at + away) % n
        build.add(at, to, at * n + to, 1)
    return build.schedule(collective, algorithm, n, owners=n, blocks=n * n)


@_makes((A2A, "ring"), (A2A, "ring_both"))
def _all_to_all_around(collective: Collective, algorithm: str, n: int, *, line: bool = False, **_: Any) -> Schedule:
    """Every block travels on along the ring until it is home; both ways: the shorter one, and of an even number one
    half of what is for the opposite member goes up, the other down."""
    build = ScheduleBuilder()
    far, near = n // 2, (n - 1) // 2
    if line:
        ways = [[(n - 1, 1), (n - 1, -1)]]
    elif algorithm == "ring_both":
        ways = [[(far, 1), (near, -1)], [(near, 1), (far, -1)]] if far > near else [[(far, 1), (near, -1)]]
    else:
        ways = [[(n - 1, 1)]]
    for number, part in enumerate(ways):
        for reach, sign in part:
            carry = steps.carry_along if line else steps.carry_around
            carry(build, n, reach, sign, (number, len(ways)))
    return build.schedule(collective, algorithm, n, owners=n, blocks=n * n * len(ways))


@_makes((A2A, "hierarchical"), (A2A, "rail"))
def _all_to_all_in_two(collective: Collective, algorithm: str, n: int, *, dims: tuple[int, ...], **_: Any) -> Schedule:
    """Two phases over dims (local, nodes). `rail`: first inside the node to the member on the receiver's rail, then
    along the rail. `hierarchical`: first across to the own rail's member in the receiver's node, then inside."""
    if len(dims) != 2:
        raise ClusterError(f"{algorithm} all-to-all is over two dimensions (in the node, nodes), not {len(dims)}")
    local, nodes = dims
    build, member = ScheduleBuilder(), np.arange(n)
    rail, node = member % local, member // local
    came: list[I64] = []
    inside = algorithm == "rail"
    many, step = (nodes, local) if inside else (local, 1)
    for away in range(1, local if inside else nodes):
        to = node * local + (rail + away) % local if inside else (node + away) % nodes * local + rail
        begin = member * n + (to % local if inside else to // local * local)
        sent = build.add(member, to, begin, many, stride=step)
        back = node * local + (rail - away) % local if inside else (node - away) % nodes * local + rail
        came.append(sent[back])
    ready = build.join(member, np.stack(came, axis=-1)) if came else _alone(n)
    for away in range(1, nodes if inside else local):
        to = (node + away) % nodes * local + rail if inside else node * local + (rail + away) % local
        # What goes to `to` now came from all members that share the first phase with the sender.
        begin = (node * local * n if inside else rail * n) + to
        build.add(
            member, to, begin, local if inside else nodes, stride=n if inside else local * n,
            after=np.stack((ready, ready[to]), axis=-1),
        )  # fmt: skip
    return build.schedule(collective, algorithm, n, owners=n, blocks=n * n)


# --- in the switch, barrier -----------------------------------------------------------------------------------------


@_makes(*((c, "in_switch") for c in (AR, RS, AG, BROADCAST, REDUCE, BARRIER)))
def _in_switch(collective: Collective, algorithm: str, n: int, *, root: int, **_: Any) -> Schedule:
    """A switch (member n) adds up what comes and sends copies on: NVLS, SHARP. Blocks are served independently."""
    build, at, switch = ScheduleBuilder(), np.arange(n), n
    blocks = n if collective in (AR, RS, AG) else 1
    for block in range(blocks if n > 1 else 0):
        senders = {AG: [block], BROADCAST: [root]}.get(collective, list(at))
        receivers = {RS: [block], REDUCE: [root]}.get(collective, list(at))
        put = Put.COPY if collective in (AG, BROADCAST) else Put.REDUCE
        sent = build.add(senders, [switch] * len(senders), block, 1, put=put)
        ready = sent if len(sent) == 1 else build.join([switch], sent[None, :])
        build.add([switch] * len(receivers), receivers, block, 1, after=np.full((len(receivers), 1), ready[0]))
    more = _owned(collective, n) if collective in (AR, RS, AG) else {"owners": 1, "blocks": 1}
    return build.schedule(collective, algorithm, n, helpers=1, root=root, **more)


@_makes((BARRIER, "dissemination"))
def _barrier(collective: Collective, algorithm: str, n: int, **_: Any) -> Schedule:
    """Rounds k = 0, 1, ...: member i tells i + 2**k; after ceil(log2 n) of them everyone has heard of all."""
    build, at, away, ready = ScheduleBuilder(), np.arange(n), 1, _alone(n)
    while away < n:
        sent = build.add(at, (at + away) % n, 0, 1, after=ready[:, None], put=Put.REDUCE)
        ready = build.join(at, np.stack((ready, sent[(at - away) % n]), axis=-1))
        away *= 2
    return build.schedule(collective, algorithm, n, owners=1, blocks=1)

"""Trees that collectives go along, as parents: parent[m] is the member above m, -1 at the root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from etude.cost.collectives.steps import BROADCAST, SCATTER, owned
from etude.cost.schedule import Put, Schedule, ScheduleBuilder
from etude.kernels.arrays import I64
from etude.model.schema import Collective


def double_tree(n: int) -> list[I64]:
    """Two binary trees: inner members of one are leaves of the other, except for one."""
    parent = np.full(n, -1, np.int64)
    for m in range(1, n):
        bit = m & -m
        up = (m ^ bit) | (bit << 1)
        parent[m] = up if up < n else m ^ bit
    name = (n - 1 - np.arange(n)) if n % 2 == 0 else (np.arange(n) + 1) % n
    other = np.full(n, -1, np.int64)
    other[name] = np.where(parent >= 0, name[parent], -1)
    return [parent, other]


def below_root(n: int, root: int) -> list[I64]:
    """Two binary trees of all members except the root, which is above both: it sends each half of its data once."""
    if n == 1:
        return [np.full(1, -1, np.int64)]
    member = (root + 1 + np.arange(n - 1)) % n
    found = []
    for tree in double_tree(n - 1):
        parent = np.full(n, -1, np.int64)
        parent[member] = np.where(tree >= 0, member[tree], root)
        found.append(parent)
    return found


def nested(chain_of: Sequence[int], nodes: int, root: int = -1) -> list[I64]:
    """Two trees of nodes, with a chain of these positions inside each node, whose first member connects it.

    With a root, its node is above the others, and the root above the leader of its node.
    """
    at = np.asarray(chain_of, np.int64)
    local, leader = len(at), int(at[0])
    home = root // local if root >= 0 else -1
    found = []
    for tree in below_root(nodes, home) if root >= 0 else double_tree(nodes):
        parent = np.full(local * nodes, -1, np.int64)
        for node in range(nodes):
            chain = node * local + at
            if node == home:
                chain = np.concatenate(([root], chain[chain != root]))
            parent[chain[1:]] = chain[:-1]
            if tree[node] >= 0:
                parent[chain[0]] = tree[node] * local + leader
        found.append(parent)
    return found


def binomial(n: int, root: int) -> I64:
    """In ranks relative to the root, the parent of m is m without its lowest bit, which covers m..m+bit-1."""
    parent = np.full(n, -1, np.int64)
    for m in range(1, n):
        parent[(m + root) % n] = ((m & (m - 1)) + root) % n
    return parent


def chain(order: Sequence[int], root: int) -> I64:
    """Along the members in this order, from the root on."""
    turned = np.roll(np.asarray(order, np.int64), -list(order).index(root))
    parent = np.full(len(order), -1, np.int64)
    parent[turned[1:]] = turned[:-1]
    return parent


def rings_of_full(n: int) -> list[list[int]]:
    """Rings through all of n members, no two of which use a link in the same direction: Walecki's zigzags around one
    member, and their reverse. All links are used if n is odd, all but n / 2 pairs if it is even."""
    if n < 3:
        return [list(range(n))]
    around = n - 1  # the members but the last, in a circle
    zigzag = [0]
    for k in range(1, around // 2 + 1):
        zigzag += [k, -k]
    found = []
    for turn in range((n - 1) // 2):
        ring = [n - 1, *((m + turn) % around for m in zigzag[:around])]
        found += [ring, ring[::-1]]
    return found


def paths_of_full(n: int) -> list[list[int]]:
    """Paths through all of an even number of members that use every link once in each direction: zigzags across a
    circle, and their reverse. Each member begins one of them, and ends one."""
    zigzag = [k // 2 if k % 2 == 0 else n - 1 - k // 2 for k in range(n)]
    paths = [[(m + turn) % n for m in zigzag] for turn in range(n // 2)]
    return [way for path in paths for way in (path, path[::-1])]


def from_middle(order: Sequence[int], root: int) -> I64:
    """Along the members in this order, from the root to both ends."""
    at = list(order).index(root)
    parent = np.full(len(order), -1, np.int64)
    for way in (list(order[at:]), list(order[at::-1])):
        parent[way[1:]] = way[:-1]
    return parent


def by_depth(parent: I64) -> list[int]:
    """Members, the root first, parents before children."""
    depth = np.full(len(parent), -1, np.int64)
    depth[parent < 0] = 0
    while (depth < 0).any():
        known = (depth < 0) & (depth[parent] >= 0)
        if not known.any():
            raise AssertionError("the tree has a cycle")
        depth[known] = depth[parent[known]] + 1
    return np.argsort(depth, kind="stable").tolist()


def up(build: ScheduleBuilder, parent: Any, first: int, count: int, ready: dict[int, list[int]]) -> None:
    """Sums travel to the root; `ready[m]` gathers what member m waits for."""
    for m in reversed(by_depth(parent)):
        if parent[m] >= 0:
            sent = build.add([m], [parent[m]], first, count, after=[ready.get(m, [-1])], put=Put.REDUCE)
            ready.setdefault(int(parent[m]), []).append(int(sent[0]))


def down(build: ScheduleBuilder, parent: Any, first: int, count: int, ready: dict[int, list[int]]) -> None:
    for m in by_depth(parent):
        if parent[m] >= 0:
            waits = ready.get(int(parent[m]), [-1])
            sent = build.add([parent[m]], [m], first, count, after=[waits])
            ready[m] = [int(sent[0])]


def rooted(collective: Collective, algorithm: str, n: int, root: int, parents: Sequence[I64]) -> Schedule:
    """A broadcast or a reduction: an equal part of the data along each of these trees."""
    build = ScheduleBuilder()
    go = down if collective == BROADCAST else up
    for part, parent in enumerate(parents):
        go(build, parent, part, 1, {})
    return build.schedule(collective, algorithm, n, owners=1, blocks=len(parents), root=root)


def straight(n: int, root: int) -> I64:
    """All members directly below the root."""
    return np.where(np.arange(n) == root, -1, root)


def parts(collective: Collective, algorithm: str, n: int, root: int, parent: I64, counts: I64) -> Schedule:
    """A gather or a scatter: `counts[k]` parts, from that of the k-th member after the root on, to or from it."""
    build = ScheduleBuilder()
    relative = (np.arange(n) - root) % n
    order = by_depth(parent)
    ready: dict[int, list[int]] = {}
    for m in order if collective == SCATTER else reversed(order):
        if parent[m] < 0:
            continue
        low = int(relative[m])
        count = int(counts[low])
        if collective == SCATTER:
            ready[m] = [int(build.add([parent[m]], [m], low, count, after=[ready.get(int(parent[m]), [-1])])[0])]
        else:
            sent = build.add([m], [parent[m]], low, count, after=[ready.get(m, [-1])])
            ready.setdefault(int(parent[m]), []).append(int(sent[0]))
    owner = {"block_owner": ((np.arange(n) + root) % n).astype(np.int32)}
    return build.schedule(collective, algorithm, n, root=root, **(owned(collective, n) | owner))

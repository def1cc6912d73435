"""Carries a schedule out on symbolic blocks, in random order of events: does everyone end with the right data?"""

import random
from collections.abc import Iterator

import numpy as np

from etude.cost.schedule import Put, Schedule
from etude.model.schema import Collective

Blocks = dict[int, frozenset[int]]


def beginning(p: Schedule) -> list[Blocks]:
    """What each member holds: block -> whose contributions are in it."""
    n, have = p.members, [{} for _ in range(p.members + p.helpers)]
    for block in range(p.blocks * p.chunks):
        k = block % p.blocks
        if p.collective in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE, Collective.BARRIER):
            holders = list(range(n))
        elif p.collective in (Collective.ALL_GATHER, Collective.GATHER):
            holders = [int(p.block_owner[k])]
        elif p.collective in (Collective.BROADCAST, Collective.SCATTER):
            holders = [p.root]
        else:
            holders = [k // (p.blocks // n)]
        for m in holders:
            have[m][block] = frozenset([m])
    return have


def expected(p: Schedule) -> Iterator[tuple[int, int, frozenset[int]]]:
    """(member, block, contributions) that must be there at the end."""
    n, everyone = p.members, frozenset(range(p.members))
    for block in range(p.blocks * p.chunks):
        k = block % p.blocks
        owner = int(p.block_owner[k])
        if p.collective in (Collective.ALL_REDUCE, Collective.BARRIER):
            yield from ((m, block, everyone) for m in range(n))
        elif p.collective == Collective.REDUCE_SCATTER:
            yield owner, block, everyone
        elif p.collective == Collective.REDUCE:
            yield p.root, block, everyone
        elif p.collective == Collective.ALL_GATHER:
            yield from ((m, block, frozenset([owner])) for m in range(n))
        elif p.collective == Collective.GATHER:
            yield p.root, block, frozenset([owner])
        elif p.collective == Collective.BROADCAST:
            yield from ((m, block, frozenset([p.root])) for m in range(n))
        elif p.collective == Collective.SCATTER:
            yield owner, block, frozenset([p.root])
        else:
            yield k % n, block, frozenset([k // (p.blocks // n)])


def carry_out(p: Schedule, seed: int) -> list[Blocks]:
    """Starts and arrivals in random order: what is read at the start must not depend on it."""
    rng, have = random.Random(seed), beginning(p)
    inputs = [dict(h) for h in have]
    waits = np.diff(p.dep_start).tolist()
    after: list[list[int]] = [[] for _ in range(len(p))]
    for t in range(len(p)):
        for d in p.dep[p.dep_start[t] : p.dep_start[t + 1]]:
            after[d].append(t)
    can_start = [t for t in range(len(p)) if waits[t] == 0]
    moving: list[tuple[int, Blocks]] = []
    done = 0
    while can_start or moving:
        if can_start and (not moving or rng.random() < 0.5):
            t = can_start.pop(rng.randrange(len(can_start)))
            blocks = [int(p.first[t] + k * p.stride[t]) for k in range(p.count[t])]
            source = inputs if p.put[t] == Put.REDUCE_INPUT else have
            moving.append((t, {b: source[p.src[t]][b] for b in blocks}))
            continue
        t, carried = moving.pop(rng.randrange(len(moving)))
        mine = have[p.dst[t]]
        for block, who in carried.items():
            if p.put[t] == Put.COPY or block not in mine:
                mine[block] = who
            else:
                assert p.collective == Collective.BARRIER or not (mine[block] & who), "counted twice"
                mine[block] |= who
        done += 1
        for other in after[t]:
            waits[other] -= 1
            if waits[other] == 0:
                can_start.append(other)
    assert done == len(p), "transfers wait for one another"
    return have


def assert_right(p: Schedule, seed: int = 0) -> None:
    have = carry_out(p, seed)
    for member, block, who in expected(p):
        assert have[member].get(block) == who, (p.algorithm, p.members, member, block)

"""V-Half and V-Min: two stages per rank in a V, and about a half or a third of the activations of 1F1B.

Both repeat one *block*, the path of one micro-batch: down the V, up, and the backwards the same way. The units of time
from rank to rank on each leg determine how long activations live, and so the memory. Blocks follow one another every 6
units (two forwards, two backwards, two weight gradients), and a rank never has two things to do at once. That fixes the
order of forwards and backwards; weight gradients fill the gaps.
"""

from __future__ import annotations

from itertools import product

from etude.make.generate.schedules.pipeline import Action, PipelineSchedule, Step, build
from etude.make.generate.schedules.zero_bubble import F, I, W, v_shape

PERIOD = 6
OVERTAKE = 3
"""A backward that is ready may overtake others, if it is one of the next three."""

Leg = tuple[Action, int]
LEGS: tuple[Leg, ...] = ((F, 0), (F, 1), (I, 1), (I, 0))


def v_half(ranks: int, micro_batches: int) -> PipelineSchedule:
    """Two units from rank to rank on one way and one on the other: activations live 6p units, p + 2 chunks."""
    if ranks == 2:  # four chunks either way, and a smaller bubble with V-Min's block
        return _fill("vhalf", ranks, micro_batches, (1, 1, 1, 1), 4)
    return _fill("vhalf", ranks, micro_batches, (2, 1, 2, 1), ranks + (1 if ranks % 2 else 2))


def v_min(ranks: int, micro_batches: int) -> PipelineSchedule:
    """One unit from rank to rank: activations live 4p units, about 2p/3 + 2 chunks, as few as there can be."""
    return _fill("vmin", ranks, micro_batches, (1, 1, 1, 1), 2 * (-(-(ranks - 1) // 3) + 1))


def _block(ranks: int, pace: tuple[int, int, int, int]) -> list[list[int]]:
    """Start of each leg on each rank for the first micro-batch: the earliest that never collide modulo the period."""
    last = ranks - 1
    for waits in sorted(product(range(PERIOD), repeat=3), key=lambda w: (sum(w), w)):
        turn = [0]
        for leg in range(3):  # each leg begins where and after the one before has ended
            turn.append(turn[-1] + pace[leg] * last + 1 + waits[leg])
        rows = [
            [turn[leg] + pace[leg] * (rank if leg % 2 == 0 else last - rank) for leg in range(4)]
            for rank in range(ranks)
        ]
        if all(len({t % PERIOD for t in row}) == 4 for row in rows):
            return rows
    raise AssertionError(f"no block for {ranks} ranks at pace {pace}")


def _fill(name: str, ranks: int, micro_batches: int, pace: tuple[int, int, int, int], room: int) -> PipelineSchedule:
    """Unit by unit: each rank does the next action of the repeated block, else a backward that is ready, else a weight
    gradient. `room` is how many chunks' activations a rank may hold."""
    held, last_stage = v_shape(ranks), 2 * ranks - 1
    todo = []
    for row in _block(ranks, pace):
        begins = ((row[leg] + PERIOD * m, leg, m) for leg in range(4) for m in range(micro_batches))
        todo.append([(*LEGS[leg], m) for _, leg, m in sorted(begins)])
    ended: dict[tuple[Action, int, int], int] = {}
    used, weights = [0] * ranks, [list[tuple[int, int]]() for _ in range(ranks)]
    orders: list[list[Step]] = [[] for _ in range(ranks)]

    def ready(rank: int, action: Action, stage: int, m: int) -> bool:
        if action == F:
            before = [(F, stage - 1, m)] if stage else []
        else:
            before = [(F, stage, m)] + ([(I, stage + 1, m)] if stage < last_stage else [])
        fits = action != F or used[rank] < room
        return fits and all(ended.get(b, now + 1) <= now for b in before)

    def pick(rank: int) -> tuple[Action, int, int] | None:
        for place, (action, chunk, m) in enumerate(todo[rank][:OVERTAKE]):
            if (place == 0 or action == I) and ready(rank, action, held[rank][chunk], m):
                del todo[rank][place]
                return action, held[rank][chunk], m
        return (W, *weights[rank].pop(0)) if weights[rank] else None

    now, left = 0, 6 * ranks * micro_batches
    while left:
        chosen = [(rank, step) for rank in range(ranks) if (step := pick(rank))]
        for rank, (action, stage, m) in chosen:
            orders[rank].append((action, stage, m, False))
            ended[action, stage, m] = now + 1
            used[rank] += (action == F) - (action == W)
            if action == I:
                weights[rank].append((stage, m))
        left -= len(chosen)
        now += 1
    return build(name, 2 * ranks, micro_batches, orders, held)

"""Zero-bubble schedules: the backward in two parts, and weight gradients where a rank would be idle.

ZB1P and ZB2P have one stage per rank. ZBV folds the stages into a V, like V-Half and V-Min (`schedules_v`): rank r
holds stages r and 2p - 1 - r, so that the last stage is on the rank of the first.
"""

from __future__ import annotations

from collections import Counter

from etude.make.generate.schedules.pipeline import Action, PipelineSchedule, Step, build

F, I, W = Action.FORWARD, Action.INPUT, Action.WEIGHT  # noqa: E741 - the letters of the literature


def v_shape(ranks: int) -> list[tuple[int, int]]:
    """Stages of each rank: one on the way down the V and one on the way up."""
    return [(rank, 2 * ranks - 1 - rank) for rank in range(ranks)]


def zb1p(ranks: int, micro_batches: int) -> PipelineSchedule:
    """As many forwards ahead as 1F1B; weight gradients held back so that every rank keeps `ranks` micro-batches."""
    return _one_stage("zb1p", ranks, micro_batches, 1)


def zb2p(ranks: int, micro_batches: int) -> PipelineSchedule:
    """Twice as many forwards ahead and twice as many weight gradients held back: no bubble, 2p - 1 micro-batches."""
    return _one_stage("zb2p", ranks, micro_batches, 2)


def _one_stage(name: str, ranks: int, micro_batches: int, depth: int) -> PipelineSchedule:
    orders = []
    for rank in range(ranks):
        ahead = min(micro_batches, depth * (ranks - 1 - rank) + 1)
        held_back = min(micro_batches, depth * rank)
        order: list[Step] = [(F, rank, m, False) for m in range(ahead)]
        for m in range(micro_batches):
            order.append((I, rank, m, False))
            if m >= held_back:
                order.append((W, rank, m - held_back, False))
            if m + ahead < micro_batches:
                order.append((F, rank, m + ahead, False))
        order += [(W, rank, m, False) for m in range(micro_batches - held_back, micro_batches)]
        orders.append(order)
    return build(name, ranks, micro_batches, orders, [(r,) for r in range(ranks)])


def zbv(ranks: int, micro_batches: int) -> PipelineSchedule:
    """No bubble with the memory of 1F1B.

    The order is that of enough micro-batches to fill the pipeline; with fewer, missing ones are left out.
    """
    orders = [_v_rank(rank, ranks, micro_batches) for rank in range(ranks)]
    return build("zbv", 2 * ranks, micro_batches, orders, v_shape(ranks))


def _v_rank(rank: int, ranks: int, micro_batches: int) -> list[Step]:
    held, many = v_shape(ranks)[rank], max(micro_batches, 2 * ranks - 1)
    order: list[Step] = []
    done: Counter[tuple[Action, int]] = Counter()

    def do(*steps: tuple[Action, int]) -> None:
        for action, chunk in steps:
            if done[action, chunk] < micro_batches:
                order.append((action, held[chunk], done[action, chunk], False))
            done[action, chunk] += 1

    for _ in range(2 * (ranks - rank) - 1):  # down the V, until the first micro-batch is back up
        do((F, 0))
    for _ in range(rank):
        do((F, 1), (F, 0))
    for _ in range(ranks - rank):
        do((F, 1), (I, 1), (W, 1))
    while done[F, 1] < many:
        if done[F, 0] < many:
            do((F, 0))
        do((I, 0), (W, 0), (F, 1), (I, 1), (W, 1))
    for _ in range(rank):  # others wait for these, so weight gradients come later
        do((I, 0), (I, 1))
    for _ in range(ranks - rank):
        do((I, 0), (W, 0))
    for chunk in (1, 0):
        do(*[(W, chunk)] * (many - done[W, chunk]))
    return order

"""Rows of a forward and a backward that run together take turns; orders are worked out by hand."""

import numpy as np

from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.make.generate.train.program import turns
from etude.steps.step import step_time


def order(pairs: list[tuple[int, int, int]], rows: int, *edges: tuple[int, int]) -> list[int]:
    return turns(pairs, rows, np.array(edges, np.int32).reshape(-1, 2).T).tolist()


def test_rows_of_two_parts_are_spread_evenly():
    # two rows at 1/4 and 3/4 of the way, four at 1/8, 3/8, 5/8 and 7/8; the row before and the one behind stay
    assert order([(1, 3, 7)], 8) == [0, 3, 1, 4, 5, 2, 6, 7]
    assert order([(0, 1, 2), (2, 3, 5)], 5) == [0, 1, 3, 2, 4]


def test_a_pair_whose_second_part_waits_for_the_first_keeps_its_order():
    assert order([(0, 2, 4), (4, 5, 7)], 7, (3, 1)) == [0, 1, 2, 3, 5, 4, 6]
    # an edge inside a part, or to a row before the pair, changes nothing
    assert order([(1, 2, 4)], 5, (3, 2), (2, 0)) == [0, 2, 1, 3, 4]


def test_exchanges_of_experts_overlap_another_micro_batch():
    """Experts on four nodes, whose exchanges take about half of the step: with pairs they hide products, and no more
    more than all of them."""
    system = open_system("dgx-h100")
    model = open_model("qwen3-235b-a22b").replace(layers=4, vocab=8192)
    plan = Plan(gpus=64, pp=2, ep=32, micro_batch=1, global_batch=8 * 32, seq=4096, zero=1)
    apart, together = (
        step_time(model, plan.replace(schedule=f"{name}:2"), system) for name in ("interleaved", "paired")
    )
    assert 0.5 * apart < together < 0.92 * apart

"""`--reconfigure goodput`: requests of the last interval served again with each plan, worked out by hand."""

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.world.serve.elastic.reconfigure import PlanShape, read_timetable
from etude.world.serve.elastic.rehearse import Rehearsal
from etude.world.serve.engine import Engine
from etude.world.serve.requests import requests_of
from etude.world.serve.serving import Group
from etude.world.serve.steps import step_cost


def asked(cost_s: float, *, live: bool, ahead: int = 1) -> int:
    """Ten requests of one pass, a tenth of a second apart, one at a time. With plan 0 a pass takes 200 ms, so that
    request i has its answer after 0.2 + 0.1 i s, and four of them have it in 0.5 s; with plan 1 it takes 50 ms."""
    requests = requests_of(np.arange(10) * 100_000_000, np.ones(10), np.ones(10))
    plans = [[Group(step_cost(tokens=[1], layers_ns=[ms * 1e6]))] for ms in (200, 50)]
    engine = Engine(max_num_seqs=1, async_scheduling=False)
    rule = Rehearsal(requests, engine, plans, {"": {"latency_s": 0.501}}, {}, live, ahead=ahead)
    rows = np.arange(10)
    assert rule.kept(rows, requests.arrival_ns, 0).tolist() == [True] * 4 + [False] * 6
    assert rule.kept(rows, requests.arrival_ns, 1).all()
    seen = {"requests": rows.tolist(), "plan": 0, "every_s": 1.0, "cost_s": [0.0, cost_s]}
    return rule(seen, [], 1.0)


def test_a_plan_that_keeps_more_limits_is_taken_if_the_change_pays() -> None:
    assert asked(0.0, live=False) == 1
    assert asked(0.5, live=False) == 1  # all but the first are in time: 0.55 - 0.05 i s after their arrival
    assert asked(0.95, live=False) == 0  # 0.95 + 0.05 (i + 1) - 0.1 i: none until the last but one
    assert asked(1e5, live=False) == 0


def test_while_a_live_change_is_under_way_the_old_plan_serves() -> None:
    assert asked(0.5, live=True) == 1  # four of the first five, and all behind them
    assert asked(0.95, live=True) == 0
    assert asked(1e5, live=True) == 0


def test_the_last_interval_is_expected_again_as_often_as_it_looks_ahead() -> None:
    """Plan 0 keeps four limits. After a change of 1 s request i, at 0.1 i s, has its answer after 1.05 - 0.05 i s: in
    time from the twelfth on, and there are ten of them in an interval."""
    assert asked(1.0, live=False) == 0
    assert asked(1.0, live=False, ahead=2) == 1


def test_nobody_came() -> None:
    rule = Rehearsal(requests_of([0], [1], [1]), Engine(), [], {}, {}, False)
    assert rule({"requests": [], "plan": 1, "every_s": 1.0, "cost_s": [0.0, 0.0]}, [], 1.0) == 1


def test_words() -> None:
    found = read_timetable("goodput,every=5s,ahead=2,how=live", "tp=1;tp=4", PlanShape(4), 8, lambda text: print)
    assert (found.ahead, found.every_ns, found.how.live, len(found.plans)) == (2, 5_000_000_000, True, 2)
    for wrong in ("goodput,ahead=0", "goodput,ahead=x", "mine.py:plan,ahead=2", "goodput,tp=4"):
        with pytest.raises(UsageError):
            read_timetable(wrong, "tp=1", PlanShape(4), 8, lambda text: print)
    with pytest.raises(UsageError, match="limits"):
        assert found.hook is not None
        found.hook({}, [], 0.0)

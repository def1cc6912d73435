"""Signals beside step times, joined by time and rank: votes, moves, errors; checkpoint bandwidth. Truth made here."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from etude.analyse.checkpoints import checkpoints
from etude.analyse.samples import from_table
from etude.analyse.signals import correlated, joined
from etude.analyse.trend import trend
from etude.base.errors import UsageError
from etude.model.schema import Kind
from etude.surface.cli import main
from timed_jobs import timed

RANKS, STEPS, STEP_NS, BEGIN = 8, 40, 10**9, 1_700_000_000 * 10**9


def step_times(seed: int = 1) -> np.ndarray:
    return 1e8 * (1 + 0.01 * np.random.default_rng(seed).standard_normal((RANKS, STEPS)))


def step_table(values: np.ndarray) -> pa.Table:
    rank, step = np.indices(values.shape)
    start = BEGIN + step.ravel() * STEP_NS
    return pa.table({"time": start, "rank": rank.ravel(), "step_time": np.rint(values.ravel()).astype(np.int64)})


def readings(**columns: np.ndarray) -> pa.Table:
    """Two readings a step and rank, a quarter and three quarters into it."""
    rank, step, half = np.indices((RANKS, STEPS, 2))
    at = BEGIN + step.ravel() * STEP_NS + (1 + 2 * half.ravel()) * STEP_NS // 4
    named = {name: np.repeat(values[:, :, None], 2, axis=2).ravel() for name, values in columns.items()}
    return pa.table({"time": at, "rank": rank.ravel(), **named})


def level(value: float, seed: int) -> np.ndarray:
    return value * (1 + 0.005 * np.random.default_rng(seed).standard_normal((RANKS, STEPS)))


def test_a_clock_that_falls_where_ranks_slow_down_is_told_with_them():
    times, clock, power = step_times(), level(1980, 2), level(600, 3)
    times[:4, 20:] *= 1.3
    clock[:4, 20:] /= 1.3
    found = trend(from_table(step_table(times), "step_time"))
    told = correlated(found, joined(found.samples, readings(sm_clock=clock, power=power)))
    assert [(m["signal"], m["step"], m["ranks"]) for m in told["moves"]] == [("sm_clock", 20, [0, 1, 2, 3])]
    assert told["moves"][0]["before"] == pytest.approx(1980, rel=0.01)
    assert told["moves"][0]["after"] == pytest.approx(1980 / 1.3, rel=0.01)


def test_votes_of_signals_name_the_rank_and_nobody_of_clean_ones():
    times, clock, hot = step_times(), level(1980, 2), level(60, 3)
    found = trend(from_table(step_table(times), "step_time"))
    assert correlated(found, joined(found.samples, readings(clock=clock, temperature=hot)))["votes"] == []
    times[5] *= 1.2
    clock[5] /= 1.2
    hot[5] += 20
    found = trend(from_table(step_table(times), "step_time"))
    votes = correlated(found, joined(found.samples, readings(clock=clock, temperature=hot)))["votes"]
    assert [(v["rank"], v["votes"]) for v in votes] == [(5, 3)]
    assert {s["signal"]: s["z"] > 0 for s in votes[0]["signals"]} == {
        "own time": True,
        "clock": False,
        "temperature": True,
    }


def test_an_error_near_a_change_is_told_and_one_elsewhere_is_not():
    times = step_times()
    times[2, 15:] *= 1.3
    xid = np.zeros((RANKS, STEPS))
    xid[2, 14], xid[6, 30] = 79, 13
    found = trend(from_table(step_table(times), "step_time"))
    told = correlated(found, joined(found.samples, readings(xid=xid)))
    shown = [(e["rank"], e["step"], e["value"], e["near_change"]) for e in told["events"]]
    assert shown == [(2, 14, 79, 15), (6, 30, 13, None)]
    assert any("xid 79 on rank 2 in step 14, near the change at step 15" in text for text in told["texts"])


def test_a_counter_counts_by_what_it_grows():
    found = trend(from_table(step_table(step_times()), "step_time"))
    grown = np.arange(2 * STEPS).reshape(STEPS, 2)[None] * np.array([[[7]]]) + np.zeros((RANKS, 1, 1))
    rank, step, half = np.indices((RANKS, STEPS, 2))
    at = BEGIN + step.ravel() * STEP_NS + (1 + 2 * half.ravel()) * STEP_NS // 4
    table = pa.table({"time": at, "rank": rank.ravel(), "link_tx_bytes": grown.ravel().astype(np.int64)})
    values = joined(found.samples, table).values["link_tx_bytes"]
    assert values.tolist() == [[7.0] * STEPS] * RANKS


def test_a_row_for_each_signal_and_hosts_instead_of_ranks():
    times, clock = step_times(), level(1980, 2)
    found = trend(from_table(step_table(times), "step_time"))
    wide = readings(clock=clock)
    rank = wide["rank"].to_numpy()
    long = pa.table({
        "timestamp": wide["time"], "metric": ["clock"] * len(wide), "value": wide["clock"],
        "hostname": [f"node{2 + 8 * (r // 4)}" for r in rank.tolist()], "gpu": rank % 4,
    })  # fmt: skip
    told = joined(found.samples, long)
    assert "order of host and gpu" in told.note
    assert np.allclose(told.values["clock"], joined(found.samples, wide).values["clock"])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.drop_columns("time"), "no column of times"),
        (lambda t: t.drop_columns("rank"), "do not name a rank"),
        (lambda t: t.set_column(0, "time", pa.array([5] * len(t))), "no row is within the time of the run"),
        (lambda t: t.drop_columns("clock"), "no column of numbers"),
        (lambda t: t.drop_columns("rank").append_column("gpu", pa.array([0] * len(t))), "1 devices and 8 ranks"),
    ],
)
def test_signals_that_cannot_be_joined_are_refused(change, problem: str):
    found = trend(from_table(step_table(step_times()), "step_time"))
    with pytest.raises(UsageError, match=problem):
        joined(found.samples, change(readings(clock=level(1980, 2))))


def test_signals_need_times_of_the_steps():
    table = pa.table({"step": np.arange(10), "step_time": np.arange(10)})
    with pytest.raises(UsageError, match="the steps have no times"):
        joined(from_table(table, "step_time"), readings(clock=level(1980, 2)))


def test_the_command_prints_signals(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    times, clock = step_times(), level(1980, 2)
    times[:4, 20:] *= 1.3
    clock[:4, 20:] /= 1.3
    csv.write_csv(step_table(times), tmp_path / "m.csv")
    csv.write_csv(readings(clock=clock), tmp_path / "dcgm.csv")
    argv = ["trend", str(tmp_path / "m.csv"), "--signals", str(tmp_path / "dcgm.csv")]
    assert main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signals"]["moves"][0]["signal"] == "clock"
    assert main([*argv, "--detect"]) == 0
    shown = capsys.readouterr().out
    assert "throttled" in shown and "on ranks 0-3 at step 20" in shown


def test_checkpoint_bandwidth_is_bytes_over_the_time_in_which_stores_ran():
    store = {"kind": Kind.MEM_STORE, "name": "write", "cpu": 0, "step": 3}
    run = timed([
        (store | {"tensor_bytes": 600}, 0, 100), (store | {"tensor_bytes": 400}, 50, 200),
        (store | {"tensor_bytes": 100, "step": 4}, 300, 310), (store | {"step": 4}, 400, 500),
    ])  # fmt: skip
    shown = checkpoints(run).to_pylist()
    assert shown == [
        {"rank": 0, "step": 3, "stores": 2, "size_bytes": 1000, "time_ns": 200, "bytes_per_s": 5e9},
        {"rank": 0, "step": 4, "stores": 1, "size_bytes": 100, "time_ns": 10, "bytes_per_s": 1e10},
    ]

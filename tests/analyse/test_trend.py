"""Trends of ranks with a known truth, made here: changes, steps that come again, drifts, work, forecasts, jitter."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from etude.analyse.diagnose import faults
from etude.analyse.samples import from_table, of_run, of_runs
from etude.analyse.trend import record, trend, with_verdicts
from etude.base.errors import UsageError
from etude.model.build import TraceBuilder, job_of
from etude.model.run import Run
from etude.model.schema import Kind
from etude.store import columns
from etude.surface.cli import main
from summed_steps import noise as steady
from summed_steps import run_of as steps_of
from timed_jobs import timed

RANKS, STEPS, LEVEL = 8, 40, 100_000_000


def noisy(seed: int = 3, ranks: int = RANKS, steps: int = STEPS, sigma: float = 0.01) -> np.ndarray:
    return LEVEL * (1 + sigma * np.random.default_rng(seed).standard_normal((ranks, steps)))


def as_table(values: np.ndarray, name: str = "step_time") -> pa.Table:
    rank, step = np.indices(values.shape)
    return pa.table({"step": step.ravel(), "rank": rank.ravel(), name: np.rint(values.ravel()).astype(np.int64)})


def found(values: np.ndarray, **given: object) -> dict:
    return record(trend(from_table(as_table(values), "step_time"), **given))


def kinds(told: dict) -> list[tuple[str, tuple[int, ...]]]:
    return [(f["kind"], tuple(f["ranks"])) for f in told["findings"]]


def test_half_of_all_ranks_slow_from_a_step_on_is_named_as_such():
    values = noisy()
    values[:4, 20:] *= 1.3
    told = found(values)
    assert kinds(told) == [("throttled", (0, 1, 2, 3))]
    one = told["findings"][0]
    assert one["step"] == 20 and one["ratio"] == pytest.approx(1.3, abs=0.01)
    assert "half of all ranks, 0-3, are 29" in one["text"] or "half of all ranks, 0-3, are 30" in one["text"]
    by_rank = {c["rank"]: c for c in told["change_points"] if c["rank"] is not None}
    assert set(by_rank) == {0, 1, 2, 3} and all(c["step"] == 20 for c in by_rank.values())


def test_ranks_that_change_with_others_are_named_with_them():
    """Six steps, three of them slow: too few to be sure of each rank alone."""
    values = noisy(ranks=8, steps=6, sigma=0.006)
    values[:4, 3:] *= 1.1
    assert kinds(found(values)) == [("throttled", (0, 1, 2, 3))]


def test_one_rank_slow_from_a_step_on_is_a_change_of_its_own():
    values = noisy()
    values[2, 15:] *= 1.2
    told = found(values)
    assert kinds(told) == [("slow_rank", (2,))] and told["findings"][0]["step"] == 15


def test_every_tenth_step_is_named_as_such_on_all_ranks_or_on_one():
    values = noisy()
    values[:, 9::10] *= 1.3
    told = found(values)
    assert kinds(told) == [("periodic", ())]
    assert told["period"] == told["findings"][0]["every"] == 10
    assert "every tenth step takes 30" in told["findings"][0]["text"]
    alone = noisy()
    alone[3, 9::10] *= 1.5
    assert kinds(found(alone)) == [("periodic", (3,))]


def test_a_rank_that_is_slow_in_two_steps_of_a_cycle_that_is_seen_twice_is_no_period():
    """Noise that looks alike in two cycles of eight steps is chance; three cycles are the least."""
    values = np.full((8, 16), 1e6) * (1 + 0.004 * np.sin(np.arange(128).reshape(8, 16) ** 2))
    values[4, [1, 6, 9, 14]] *= 1.047
    assert [kind for kind, _ in kinds(found(values)) if kind == "periodic"] == []


def test_drift_is_named_as_such_of_the_job_or_of_one_rank():
    told = found(noisy() * np.linspace(1, 1.2, STEPS))
    assert kinds(told) == [("drift", ())]
    assert told["findings"][0]["ratio"] == pytest.approx(1.2, abs=0.02)
    alone = noisy()
    alone[5] *= np.linspace(1, 1.2, STEPS)
    assert kinds(found(alone)) == [("drift", (5,))]


def test_clean_ranks_are_left_alone():
    assert [kinds(found(noisy(seed))) for seed in range(12)] == [[]] * 12


def test_parts_and_work_add_up_to_the_series():
    told = found(noisy(steps=30))
    assert [sum(p) for p in zip(told["trend"], told["cycle"], told["residual"], strict=True)] == told["series"]
    assert told["work"] is None and not told["work_known"]
    run = working(np.where(np.arange(30) % 7 == 3, 2.0, 1.0)[None].repeat(3, 0))
    assert record(trend(of_run(run)))["work"] is None  # steps begin every 5 ms, however much there is to do
    told = record(trend(of_run(run, "compute")))
    assert told["period"] is None and max(told["work"]) == pytest.approx(1_000_000, rel=0.02)
    parts = (told["trend"], told["cycle"], told["residual"], told["work"])
    assert [sum(p) for p in zip(*parts, strict=True)] == told["series"]


def working(scale: np.ndarray, slow: np.ndarray | None = None, seed: int = 1) -> Run:
    """A run of one kernel a step on each rank, whose FLOPs go with `scale` and whose time with `scale * slow`."""
    rng = np.random.default_rng(seed)
    ranks = []
    for rank in range(len(scale)):
        rows, at = [], 1_000
        for step, amount in enumerate(scale[rank].tolist()):
            factor = 1.0 if slow is None else float(slow[rank, step])
            lasted = round(1_000_000 * amount * factor * (1 + 0.005 * rng.standard_normal()))
            node = {"kind": Kind.COMP, "name": "gemm", "cpu": 0, "stream": 7, "step": step}
            rows.append((node | {"flops": round(amount * 10**9), "duration_ns": lasted}, at, at + lasted))
            at += 5_000_000
        ranks.append(rows)
    return timed(*ranks)


def test_more_work_on_a_rank_names_nobody_and_without_it_does():
    scale = np.ones((8, 12))
    scale[6] = 1.5
    samples = of_run(working(scale), "compute")
    assert kinds(record(trend(samples))) == []
    assert kinds(record(trend(samples, use_work=False))) == [("slow_rank", (6,))]


def test_a_slow_rank_is_named_whatever_work_the_others_have():
    scale = np.random.default_rng(5).choice([0.8, 1.0, 1.4], (8, 20))
    slow = np.ones((8, 20))
    slow[3] = 1.25
    assert kinds(record(trend(of_run(working(scale, slow), "compute")))) == [("slow_rank", (3,))]


def test_a_longer_sample_from_a_step_on_is_not_a_change():
    scale = np.ones((4, 24))
    scale[1, 12:] = 1.6
    samples = of_run(working(scale), "compute")
    assert record(trend(samples))["change_points"] == []
    without = record(trend(samples, use_work=False))["change_points"]
    assert [(c["step"], c["rank"]) for c in without if c["rank"] is not None] == [(12, 1)]


def test_work_from_a_file_says_which_rank_and_step_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    values = noisy()
    values[6] *= 1.4
    csv.write_csv(as_table(values), tmp_path / "m.csv")
    tokens = np.where(np.arange(RANKS) == 6, 1400, 1000)[:, None].repeat(STEPS, 1)
    csv.write_csv(as_table(tokens, "tokens"), tmp_path / "w.csv")
    base = ["trend", str(tmp_path / "m.csv"), "--detect", "--json"]
    assert main(base) == 0
    assert [f["kind"] for f in json.loads(capsys.readouterr().out)["findings"]] == ["slow_rank"]
    assert main([*base, "--work", str(tmp_path / "w.csv")]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    csv.write_csv(as_table(tokens[:, :30], "tokens"), tmp_path / "short.csv")
    assert main([*base, "--work", str(tmp_path / "short.csv")]) == 2
    assert "the work of rank 0 in step 30 is not given" in capsys.readouterr().err


def test_recordings_are_taken_in_the_order_of_their_start():
    windows = []
    for start, lasted in ((3_000, 30), (1_000, 10), (2_000, 20)):
        node = {"kind": Kind.COMP, "name": "gemm", "cpu": 0, "stream": 7}
        windows.append(timed([(node, start, start + lasted)], [(node, start, start + lasted + 2)]))
    samples = of_runs(windows)
    assert samples.start_ns.tolist() == [1_000, 2_000, 3_000]
    assert samples.values.tolist() == [[10, 20, 30], [12, 22, 32]]


def test_step_time_goes_from_start_to_start_and_ranks_show_their_own_work():
    node = {"kind": Kind.COMP, "name": "gemm", "cpu": 0, "stream": 7}
    run = timed([(node | {"step": 4}, 0, 10), (node | {"step": 5}, 25, 40), (node | {"step": 6}, 50, 57)])
    samples = of_run(run)
    assert samples.steps.tolist() == [4, 5, 6]
    assert samples.values.tolist() == [[25, 25, 7]] and samples.own.tolist() == [[10, 15, 7]]


def test_a_run_has_the_findings_of_diagnose_and_what_the_series_alone_shows():
    """Half of the ranks throttled from step 15 on, named by the series too: said once."""
    slower = steady(30, 8)
    slower[15:, ::2] *= 1.2
    run = steps_of(slower)
    own = trend(of_run(run))
    assert {one.kind for one in own.findings} == {"throttled"}
    (only,) = with_verdicts(own, faults(run)).findings
    (verdict,) = faults(run)
    assert (only.kind, only.ranks, only.step) == (verdict.kind, verdict.ranks, 15) == ("throttled", (0, 2, 4, 6), 15)
    assert f"{only.text}." == verdict.words
    longer = steps_of(steady(30, 8), np.where(np.arange(30) >= 15, 200.0, 0.0)[:, None] * np.ones(8))
    (left,) = with_verdicts(trend(of_run(longer)), faults(longer)).findings
    assert (left.kind, left.ranks, left.step) == ("common_change", (), 14)  # all wait, before step 15 begins


# -- forecast and jitter -----------------------------------------------------------------------------------------------


def test_a_forecast_of_steps_or_of_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    day = 86_400 * 10**9
    t = np.arange(70)
    value = np.rint(LEVEL + LEVEL / 10 * np.sin(2 * np.pi * t / 7)).astype(np.int64)
    csv.write_csv(pa.table({"time": 1_700_000_000 * 10**9 + t * day, "step_time": value}), tmp_path / "days.csv")
    assert main(["trend", str(tmp_path / "days.csv"), "--forecast", "7d", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["period"] == 7 and not any(told["residual"])
    assert [row["value"] for row in told["forecast"]] == value[:7].tolist()
    assert told["forecast"][0]["start_ns"] == 1_700_000_000 * 10**9 + 70 * day
    csv.write_csv(pa.table({"step_time": value}), tmp_path / "steps.csv")
    assert main(["trend", str(tmp_path / "steps.csv"), "--forecast", "3", "--json"]) == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)["forecast"]] == [70, 71, 72]
    assert main(["trend", str(tmp_path / "steps.csv"), "--forecast", "7d"]) == 2
    assert "the number of steps in `7d` is not known" in capsys.readouterr().err


def steps_job(path: Path, steps: int) -> None:
    """One rank, ten kernels a step."""
    b = TraceBuilder()
    last: list[int] = []
    for node in range(10 * steps):
        last = [b.add(Kind.COMP, "gemm", cpu=0, stream=7, duration_ns=1_000_000, step=node // 10, data=last)]
    path.mkdir()
    columns.write_job(job_of("steps", [b]), path)


def test_the_residual_is_the_jitter_of_the_simulated_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    values = noisy(seed=4, ranks=1, steps=300, sigma=0.04)
    csv.write_csv(as_table(values), tmp_path / "m.csv")
    assert main(["trend", str(tmp_path / "m.csv"), "--json"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "trend.json").write_text(text)
    spread = json.loads(text)["residual_spread"]
    assert spread == pytest.approx(0.04, rel=0.1)
    steps_job(tmp_path / "job", 300)
    times = tmp_path / "t.parquet"
    argv = ["simulate", str(tmp_path / "job"), "--system", "dgx-h100", "--jitter", f"@{tmp_path / 'trend.json'}"]
    assert main([*argv, "--timing", str(times)]) == 0
    capsys.readouterr()
    assert main(["trend", str(tmp_path / "job"), "--timing", str(times), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    # 300 draws of one spread: within three standard errors of it, which are 12%
    assert again["residual_spread"] == pytest.approx(spread, rel=0.13)
    assert not again["period"] and not again["change_points"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is not JSON"),
        ("[1]", "has no number"),
        ('{"residual_spread": "x"}', "has no number"),
        (None, "no such file"),
    ],
)
def test_jitter_from_what_is_no_trend_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, problem: str
):
    steps_job(tmp_path / "job", 1)
    place = tmp_path / "t.json"
    if content is not None:
        place.write_text(content)
    assert main(["simulate", str(tmp_path / "job"), "--system", "dgx-h100", "--jitter", f"@{place}"]) == 2
    assert problem in capsys.readouterr().err


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "argv", "problem"),
    [
        ("a,b\n1,2\n", [], "there is no column `step_time`"),
        ("step,step_time\n1,x\n2,y\n", [], "holds string, not numbers"),
        ("step,rank,step_time\n1,0,5\n1,0,6\n", [], "two rows for the same step"),
        ("step,step_time\n", [], "has no rows"),
        ("step,step_time,step_time\n1,2,3\n", [], "two columns have the name `step_time`"),
        ("step_time\n1\n2\n3\n", ["--period", "x"], "is not a number of steps"),
        ("step_time\n1\n2\n3\n", ["--period", "9"], "a cycle of 9 samples in a series of 3"),
        ("step_time\n1\n2\n3\n", ["--forecast", "0"], "0 steps"),
        ("step_time\n1\n2\n3\n", ["--work", "nowhere.csv"], "no such file"),
        ("step,step_time\n1,5\n2,\n", [], "has no value in a step"),
        ("step,rank,step_time\n1,,5\n2,0,6\n", [], "column `rank` has no whole number in row 1"),
        ("step,rank,step_time\n1,0,5\n2,0.5,6\n", [], "column `rank` has no whole number in row 2"),
        ("step,step_time\n1,9007199254740993\n2,5\n", [], "numbers from 2**53 on"),
        ("step_time\n1\n2\n3\n", ["--system", "dgx-h100"], "--system was given, but this run does not read it"),
    ],
)
def test_a_bad_table_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, argv: list[str], problem: str
):
    (tmp_path / "m.csv").write_text(text)
    assert main(["trend", str(tmp_path / "m.csv"), *argv]) == 2
    assert problem in capsys.readouterr().err


def test_a_run_without_steps_or_an_unknown_value_is_refused():
    node = {"kind": Kind.COMP, "name": "gemm", "cpu": 0, "stream": 7}
    with pytest.raises(UsageError, match="no steps are recorded"):
        of_run(timed([(node, 0, 10)]))
    with pytest.raises(UsageError, match="a run has no value `speed`"):
        of_run(timed([(node | {"step": 1}, 0, 10)]), "speed")


def test_the_contract_of_scripts(capsys: pytest.CaptureFixture[str]):
    trace = Path(__file__).resolve().parents[2] / "src" / "etude" / "capture" / "sample" / "gpt.rank0.kineto.json.gz"
    assert main(["trend", str(trace), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"series", "trend", "period", "change_points", "residual_spread"} <= set(told)
    assert len(told["series"]) == len(told["trend"]) == len(told["steps"]) > 0

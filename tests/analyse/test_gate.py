"""The gate: expressions, verdicts worked by hand, and the command on recorded files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.analyse.gate import gate, parse_limit
from etude.analyse.gate_samples import Sampled, samples
from etude.base.errors import UsageError
from etude.model.run import Run
from etude.model.schema import Collective, Kind
from etude.model.timing import Origin
from etude.surface.cli import main
from recorded import device_json, event, kernel, launch, op
from timed_jobs import timed

GEMM = {"kind": Kind.COMP, "name": "gemm", "cpu": 0, "stream": 7}
REDUCE = {"kind": Kind.COLL, "name": "reduce", "cpu": 0, "stream": 9, "collective": Collective.ALL_REDUCE}


@pytest.mark.parametrize(
    ("text", "measure", "above", "value", "of"),
    [
        ("step > +3%", "step", True, 0.03, "ratio"),
        ("step>3%", "step", True, 0.03, "ratio"),
        ("mfu < -2.5 %", "mfu", False, -0.025, "ratio"),
        ("exposed communication > +1.5 ms", "exposed", True, 1.5e6, "change"),
        ("host time > 20 ms", "host", True, 2e7, "value"),
        ("memory peak > 70 GB", "memory", True, 7e10, "value"),
        ("memory > +1 GiB", "memory", True, 2**30, "change"),
        ("launches > +10", "launches", True, 10, "change"),
        ("step > -5%", "step", True, -0.05, "ratio"),
        ("kernel:void f<int, 4>(float*) > +10%", "kernel:void f<int, 4>(float*)", True, 0.1, "ratio"),
    ],
)
def test_an_expression_says(text: str, measure: str, above: bool, value: float, of: str) -> None:
    limit = parse_limit(text)
    assert (limit.measure, limit.above, limit.value, limit.of) == (measure, above, pytest.approx(value), of)


@pytest.mark.parametrize(
    "text",
    ["", "step", "step 3%", "> 3%", "step > ", "step > x%", "step > 3", "step > 3 GB", "memory > 3 ms", "speed > 3%",
     "launches > 3 ms", "kernel > 3%", "kernel: > 3%", "step:x > 3%", "step > 3% or idle > 2%", "step > nan%",
     "step > 1e400 ms", "step > 0.0001 ns"],
)  # fmt: skip
def test_a_bad_expression_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as problem:
        parse_limit(text)
    assert problem.value.hint


def steps_of(*lengths: int, gap: int = 0) -> Run:
    """Steps of one kernel each, `gap` apart, and one more that ends the last."""
    nodes: list[Any] = []
    now = 0
    for number, length in enumerate([*lengths, lengths[-1]]):
        nodes.append((GEMM | {"step": number}, now, now + length))
        now += length + gap
    return timed(nodes)


def one(base: Run | list[Run], new: Run | list[Run], text: str) -> dict[str, Any]:
    sides = [[Sampled(run) for run in (side if isinstance(side, list) else [side])] for side in (base, new)]
    return gate(*sides, [parse_limit(text)])[0]


def test_steps_go_from_start_to_start() -> None:
    """Five steps of 10 with 5 between them, and the last, which nothing ends and so is left out."""
    run = Sampled(steps_of(10, 10, 10, 10, 10, gap=5))
    assert samples([run], "step")[0].tolist() == [15] * 5
    assert samples([run], "compute")[0].tolist() == [10] * 5
    assert samples([run], "idle")[0].tolist() == [5] * 5
    assert samples([run], "kernel:gemm")[0].tolist() == [10] * 6


def test_exposed_communication_of_each_step() -> None:
    nodes: list[Any] = []
    for s in range(3):
        nodes += [(GEMM | {"step": s}, 100 * s, 100 * s + 50), (REDUCE | {"step": s}, 100 * s + 40, 100 * s + 60 + s)]
    run = Sampled(timed(nodes))
    assert samples([run], "exposed")[0].tolist() == [10, 11, 12]
    assert samples([run], "communication")[0].tolist() == [20, 21, 22]


def test_a_clear_regression_fails() -> None:
    found = one(steps_of(100, 101, 99, 100, 102), steps_of(110, 111, 109, 110, 112), "step > +3%")
    assert found["failed"] and found["ratio"] == pytest.approx(1.1, abs=0.01)
    assert 1.07 < found["interval"][0] < 1.1 < found["interval"][1] < 1.13


def test_an_improvement_and_a_small_change_pass() -> None:
    base = steps_of(100, 101, 99, 100, 102)
    assert not one(base, steps_of(90, 91, 89, 90, 92), "step > +3%")["failed"]
    assert not one(base, steps_of(102, 103, 101, 102, 104), "step > +3%")["failed"]
    assert one(base, steps_of(90, 91, 89, 90, 92), "step < -3%")["failed"]


def test_beyond_the_limit_within_the_noise_passes_and_says_so() -> None:
    found = one(steps_of(100, 140, 90, 120, 95), steps_of(110, 150, 100, 125, 99), "step > +3%")
    assert found["ratio"] > 1.03 and not found["failed"]
    assert "within the noise" in found["note"]


def test_one_step_each_fails_by_the_plain_ratio_and_says_so() -> None:
    one_step = timed([(GEMM, 0, 100)])
    found = one(one_step, timed([(GEMM, 0, 105)]), "step > +3%")
    assert (found["failed"], found["ratio"], found["interval"], found["method"]) == (True, 1.05, None, "single")
    assert "noise is not known" in found["note"]
    assert not one(one_step, timed([(GEMM, 0, 102)]), "step > +3%")["failed"]


def test_simulated_runs_have_no_noise() -> None:
    a, b = (timed([(GEMM, 0, end)], origin=Origin.SIMULATED) for end in (100, 104))
    found = one(a, b, "step > +3%")
    assert (found["failed"], found["interval"], found["method"]) == (True, [1.04, 1.04], "exact")


def test_repetitions_know_the_noise_between_runs() -> None:
    """Each run is steady and runs differ by 10%: steps alone would be sure of a change, three runs each are not."""
    base = [steps_of(*[level] * 8) for level in (100, 110, 120)]
    new = [steps_of(*[level] * 8) for level in (107, 117, 127)]
    assert one(base[0], new[0], "step > +3%")["failed"]
    together = one(base, new, "step > +3%")
    assert not together["failed"] and together["samples"] == [3, 3] and together["of"] == "runs"
    worse = [steps_of(*[level] * 8) for level in (200, 220, 240)]
    assert one(base, worse, "step > +3%")["failed"]


def test_limits_in_units_and_asked_for_improvements() -> None:
    base, new = steps_of(100, 100, 100, 100, 100), steps_of(104, 104, 104, 104, 104)
    assert one(base, new, "step > +3 ns")["failed"] and not one(base, new, "step > +5 ns")["failed"]
    assert one(base, new, "step > 103 ns")["failed"] and not one(base, new, "step > 105 ns")["failed"]
    assert one(base, base, "step > -5%")["failed"]  # five percent faster was asked for
    assert not one(base, steps_of(90, 90, 90, 90, 90), "step > -5%")["failed"]


def test_what_was_not_there_before_is_more_than_any_percentage() -> None:
    base = steps_of(100, 100, 100)
    nodes: list[Any] = [(GEMM | {"step": s}, 100 * s, 100 * s + 100) for s in range(4)]
    new = timed([*nodes, (REDUCE | {"step": 3}, 400, 420)])
    found = one(base, new, "communication > +300%")
    assert found["failed"] and found["ratio"] is None and "was 0" in found["note"]


# -- the command -------------------------------------------------------------------------------------------------------


def profile(path: Path, steps: list[float]) -> Path:
    """Steps of so many µs: an operator that launches one kernel, which takes most of the step."""
    events: list[Any] = []
    now = 1000.0
    for number, long in enumerate(steps):
        step = event("user_annotation", f"ProfilerStep#{number + 1}", now, long, **{"Record function id": 900 + number})
        events += [step, op("aten::mm", now + 1, 4, 10 + number), launch(now + 2, 50 + number),
                   kernel("gemm", now + 5, long - 10, 50 + number, 10 + number)]  # fmt: skip
        now += long
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(device_json(*events)))
    return path


def noisy(seed: int, count: int = 8, level: float = 1000.0) -> list[float]:
    return [round(float(v), 3) for v in np.random.default_rng(seed).normal(level, 5, count)]


def asked(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, Any]:
    code = main(["compare", *map(str, args), "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else None


def test_the_command_has_the_verdict_and_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = profile(tmp_path / "base.json", noisy(1))
    same, worse = profile(tmp_path / "same.json", noisy(2)), profile(tmp_path / "worse.json", noisy(3, level=1080.0))
    code, found = asked(capsys, base, same, "--fail-if", "step > +3%")
    assert (code, found["failed"]) == (0, False)
    assert found["interval"][0] <= 1 <= found["interval"][1]
    code, found = asked(capsys, base, worse, "--fail-if", "launches > +5%", "--fail-if", "step > +3%")
    assert (code, found["failed"], [c["failed"] for c in found["checks"]]) == (1, True, [False, True])
    assert found["ratio"] == pytest.approx(1.08, abs=0.01)
    assert found["interval"][0] < found["ratio"] < found["interval"][1]
    assert found["reasons"][0]["what"] == "aten::mm"
    assert main(["compare", str(base), str(worse), "--fail-if", "kernel:gemm > +3%"]) == 1
    said = capsys.readouterr()
    assert "failed: kernel:gemm > +3%" in said.err and "verdict" in said.out


def test_folders_of_runs_are_repetitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        profile(tmp_path / f"base/run{number}/trace.json", noisy(number))
        profile(tmp_path / f"new/run{number}.json", noisy(10 + number, level=1100.0))
    code, found = asked(capsys, tmp_path / "base", tmp_path / "new", "--fail-if", "step > +3%")
    assert (code, found["checks"][0]["samples"], found["checks"][0]["of"]) == (1, [4, 4], "runs")
    assert found["ratio"] == pytest.approx(1.1, abs=0.01)


def test_bad_requests_end_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = profile(tmp_path / "base.json", noisy(1))
    for text in ("step >> 3%", "speed > 3%", "mfu < -2%", "memory > 1 GB", "kernel:softmax > 3%", "kernel:( > 3%"):
        assert main(["compare", str(base), str(base), "--fail-if", text]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.startswith("error: ")
        assert "Traceback" not in said.err
    assert main(["compare", str(base), str(tmp_path / "none"), "--fail-if", "step > 3%"]) == 2


def test_ranks_of_one_run_are_no_repetitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profiler that calls files by host and process, as TensorBoard's handler does."""
    for rank in range(2):
        path = profile(tmp_path / f"base/host_{100 + rank}.json", noisy(rank))
        info = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
        path.write_text(json.dumps(json.loads(path.read_text()) | info))
    base = str(tmp_path / "base")
    assert main(["compare", base, base, "--fail-if", "step > +3%"]) == 0
    assert "one run on each side" in capsys.readouterr().err

"""Why a run takes longer than another: figures by hand, and copies of a recorded run that were made slower."""

import json
from pathlib import Path

import pytest

from etude.analyse.card_changes import changed_keys
from etude.analyse.causes import CAUSES, cause_of
from etude.surface.cli import main

STEP = {"compute_ns": 90.0, "exposed_comm_ns": 5.0, "exposed_memory_ns": 0.0, "idle_ns": 5.0}
KERNELS = {("mm", "gemm_a"): 30.0, ("mm", "gemm_b"): 20.0, ("bmm", "gemm_c"): 10.0, ("add", "add"): 20.0,
           ("norm", "norm"): 10.0}  # fmt: skip


def slower(*operators: str, by: float = 1.2) -> dict[tuple[str, str], float]:
    return {key: ns * (by if key[0] in operators else 1.0) for key, ns in KERNELS.items()}


@pytest.mark.parametrize(
    ("part", "cause"), [("exposed_comm_ns", "communication"), ("exposed_memory_ns", "memory"), ("idle_ns", "host")]
)
def test_the_part_that_grew_most_is_the_cause(part: str, cause: str) -> None:
    found = cause_of(STEP, STEP | {part: STEP[part] + 10}, (KERNELS, KERNELS))
    assert found == (cause, 10.0, "")
    assert cause in CAUSES


def test_one_operator_is_not_the_clock_and_several_alike_are() -> None:
    """mm has 50 of 90 ns in two kinds of kernels. With bmm there are three, 60 ns, and 30 ns stay."""
    longer = STEP | {"compute_ns": 100.0}
    assert cause_of(STEP, longer, (KERNELS, slower("mm"))) == ("operators", 10.0, "gemm_a of mm: 1.20 times as long")
    power = cause_of(STEP, longer, (KERNELS, slower("mm", "bmm")))
    assert power == ("power", 10.0, "3 kinds of kernels of 2 operators: 1.20 times as long; 2 others as before")


def test_where_everything_is_slower_or_by_different_factors_it_is_not_the_clock() -> None:
    longer = STEP | {"compute_ns": 110.0}
    assert cause_of(STEP, longer, (KERNELS, slower("mm", "bmm", "add", "norm"))).name == "operators"
    uneven = slower("mm", by=1.1) | {("bmm", "gemm_c"): 30.0}
    assert cause_of(STEP, longer, (KERNELS, uneven)).name == "operators"


def test_code_comes_first_and_times_are_left_out() -> None:
    before = {"plan.batch": "8", "program.commit": "a", "created": "1", "plan.tp": "2"}
    after = {"plan.batch": "16", "program.commit": "b", "created": "2", "plan.tp": "2"}
    assert changed_keys(before, after) == "program.commit: a -> b; plan.batch: 8 -> 16"


def test_a_gate_says_the_cause_of_a_recorded_run_that_is_made_slower(
    tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("et", "kineto"):
        file = f"gpt8_b96_{name}.json.gz"
        (run / file).symlink_to((shared / "traces" / "h200_pairs" / file).resolve())
    products = ["speed op=aten::mm by=0.8", *(f"speed op=aten::_cudnn_attention_{way} by=0.8" for way in WAYS)]
    for edits, cause in ((products[:1], "operators"), (products, "power")):
        slow = str(tmp_path / cause)
        assert main(["edit", str(run), "-o", slow, *edits]) == 0
        capsys.readouterr()
        asked = ["compare", str(run), slow, "--system", "dgx-h100", "--fail-if", "step > +3%", "--json"]
        assert main(asked) == 1
        said = capsys.readouterr()
        because = json.loads(said.out)["because"]
        assert because["cause"] == cause
        assert because["share"] == pytest.approx(1, abs=0.05)
        assert f"cause: {cause}, " in said.err
        assert because["differs"] == f"job.edits: none -> {'; '.join(edits)}"


WAYS = ("forward", "backward")

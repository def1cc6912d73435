"""Times of compute nodes from the operators that they are: roofline by class and size, tables of measured ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.base.errors import FormatError
from etude.cost.compute import compute_time_ns
from etude.cost.ops import OpClass, OpTable, Work
from etude.cost.traces import ops_of
from etude.machine import open_device, open_system
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Kind
from etude.run.simulate.run import simulate
from etude.store import chakra
from etude.surface.cli import main

H200 = open_system("dgx-h200")
BF16 = "['Tensor(c10::BFloat16)', 'Tensor(c10::BFloat16)']"


def job(*nodes: dict[str, Any]) -> Job:
    b = TraceBuilder()
    for k, row in enumerate(nodes):
        b.add(Kind.COMP, **{"source_id": k, "name": "aten::mm", "in_types": BF16, "cpu": 0, **row})
    return job_of("w", [b])


def times(found: Any) -> list[int]:
    start, end = found.timing.block(0)
    return (end - start).tolist()


def shaped(m: int, k: int, n: int) -> dict[str, Any]:
    return {"in_shapes": f"[[{m}, {k}], [{k}, {n}]]"}


def test_an_operator_takes_what_its_class_and_size_say():
    gemm = Work(
        op_class=OpClass.GEMM, flops=2 * 4096**3, size_bytes=3 * 2 * 4096**2, dtype="bf16", m=4096, n=4096, k=4096
    )
    expected = int(compute_time_ns(open_device("h200").busy(), OpTable.of([gemm]))[0])  # as one of many
    assert times(simulate(job(shaped(4096, 4096, 4096)), H200, compute="roofline")) == [expected]
    assert times(simulate(job(shaped(4096, 4096, 4096)), H200)) == [expected]  # nothing was recorded
    thin = times(simulate(job(shaped(16, 4096, 4096)), H200, compute="roofline"))[0]
    flops_alone = times(simulate(job({"name": "x", "flops": 2 * 16 * 4096**2}), H200, compute="roofline"))[0]
    assert thin > 2 * flops_alone  # it moves its matrix, and fills a few tiles


def test_a_kernel_does_the_work_of_the_operator_that_launched_it():
    nodes = [
        {"cpu": 1, **shaped(512, 512, 512), "duration_ns": 10},
        {"name": "sm90_xmma_gemm", "ctrl": [0], "duration_ns": 999},
        {"cpu": 1, **shaped(512, 512, 512), "duration_ns": 10},
        {"name": "splitk_gemm", "ctrl": [2], "duration_ns": 70},
        {"name": "splitk_reduce", "ctrl": [2], "duration_ns": 30},
    ]
    found = ops_of(job(*nodes).traces[0])
    assert found.op_class.tolist() == [OpClass.GEMM, OpClass.GEMM, OpClass.GEMM, OpClass.NONE, OpClass.NONE]
    result = simulate(job(*nodes), H200, compute="roofline")
    assert times(result)[0] == 10  # the host's time stays
    assert times(result)[1] == times(simulate(job(shaped(512, 512, 512)), H200, compute="roofline"))[0]
    assert times(result)[3:] == [70, 30]  # two kernels of one operator: nobody says which does what
    assert any("2 compute nodes have no operations" in note for note in result.notes)


TABLE = """op,shape,flops,bytes,microseconds
linear_bf16,512x512x512,268435456,1572864,40
linear_bf16,2048x2048x2048,17179869184,25165824,90
"""


def test_a_table_is_met_at_its_points_and_pulls_what_is_near(tmp_path: Path):
    (tmp_path / "ops.csv").write_text(TABLE)
    sizes = [512, 640, 2048, 8192]
    plain = times(simulate(job(*(shaped(n, n, n) for n in sizes)), H200, compute="roofline"))
    table = str(tmp_path / "ops.csv")
    found = times(simulate(job(*(shaped(n, n, n) for n in sizes)), H200, compute="table", table=table))
    assert abs(found[0] / 40_000 - 1) < 0.01
    assert abs(found[2] / 90_000 - 1) < 0.01
    ratio = np.array(found) / np.array(plain)
    assert 1.2 < ratio[1] < ratio[0] * 1.01  # near the first
    assert abs(ratio[3] - 1) < abs(ratio[2] - 1) + 0.2  # far from both the formula has the word


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", None),
        ("op,shape\nx,1\n", "no column"),
        (TABLE.replace("512x512x512", "a"), "line 2"),
        (None, "no such file"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str | None, problem: str | None):
    if text is not None:
        (tmp_path / "ops.csv").write_text(text)
    run = lambda: simulate(job(shaped(8, 8, 8)), H200, compute="table", table=str(tmp_path / "ops.csv"))  # noqa: E731
    if problem is None:
        assert run().makespan_ns > 0  # an empty table corrects nothing
        return
    with pytest.raises(FormatError, match=f"(?i){problem}"):
        run()


def test_as_it_is_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "ops.csv").write_text(TABLE)
    chakra.write_job(job({**shaped(512, 512, 512), "duration_ns": 1000}), tmp_path)
    asked = ["simulate", str(tmp_path / "w"), "--system", "dgx-h200", "--compute"]
    for text, time in (
        ("measured", "1 us"),
        ("recorded", "1 us"),
        ("scale=2", "2 us"),
        (f"table={tmp_path / 'ops.csv'}", "40 us"),
    ):
        assert main([*asked, text]) == 0
        assert f"done at {time}" in capsys.readouterr().err
    for text in ("table", "scale=fast", "roof", "scaled=2"):
        assert main([*asked, text]) == 2
        assert "error: --compute" in capsys.readouterr().err

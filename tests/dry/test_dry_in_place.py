"""What is in place in a dry run, against PyTorch's own profiler on the same program with numbers."""

import runpy
import sys
from pathlib import Path

import pytest

import etude
from etude.surface.cli import main

torch = pytest.importorskip("torch")
PROGRAM = Path(__file__).parent / "programs" / "dry_sums.py"
LOOKED_AT = {
    f"aten::{name}"
    for name in ("add", "add_", "index_put", "_index_put_impl_", "scatter", "scatter_", "scatter_add", "scatter_add_",
                 "addmm", "linear", "zeros", "new_zeros")
}  # fmt: skip


def profiled() -> list[str]:
    """Names of a step with numbers, outermost of those that are looked at, in order. `linear` is never a kernel's."""
    step = runpy.run_path(str(PROGRAM))["step"]
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    found, until = [], -1
    for event in sorted(profiler.events(), key=lambda e: (e.time_range.start, -e.time_range.end)):
        if event.name in LOOKED_AT - {"aten::linear"} and event.time_range.start >= until:
            found.append(event.name)
            until = event.time_range.end
    return found


def test_sums_and_formulas_are_in_place_where_pytorch_takes_them_in_place(tmp_path: Path) -> None:
    assert main(["collect", "--dry", "-o", str(tmp_path / "job"), "--", sys.executable, str(PROGRAM)]) == 0
    trace = etude.open(tmp_path / "job").traces[0]
    names = [trace.text("name", i) for i in range(len(trace))]
    assert [name for name in names if name in LOOKED_AT] == profiled()

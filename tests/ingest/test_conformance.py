"""A sample of `benchmarks/conformance.py`: programs that `etude collect` records with both windows, against arithmetic.

Two whose communications are hard to tell apart: calls of Python and of C++ in several groups, and works of gloo that
either of its threads may take, in iterations of two optimizers.
"""

from pathlib import Path

import conformance
import pytest
from conformance_formulas import PROGRAMS

from later import TORCH, later

later("torch", TORCH)


@pytest.mark.parametrize("name", ["pp_dp", "gan"])
def test_a_recording_has_what_the_program_did(name: str, tmp_path: Path) -> None:
    row = conformance.tried(next(one for one in PROGRAMS if one.name == name), tmp_path / name)
    # warnings are about times, which a loaded machine may stretch
    assert [problem for problem in row.problems if not problem.startswith("check: warning")] == []
    assert row.step_ns > 0

"""A sample of `benchmarks/conformance.py`: a program that `etude collect` records with two windows, against arithmetic.

Its communications are hard to tell apart: calls of Python and of C++ in several groups.
"""

from pathlib import Path

import conformance
from conformance_formulas import PROGRAMS

from later import TORCH, later

later("torch", TORCH)


def test_a_recording_has_what_the_program_did(tmp_path: Path) -> None:
    row = conformance.tried(next(one for one in PROGRAMS if one.name == "pp_dp"), tmp_path / "pp_dp")
    # warnings are about times, which a loaded machine may stretch
    assert [problem for problem in row.problems if not problem.startswith("check: warning")] == []
    assert row.step_ns > 0

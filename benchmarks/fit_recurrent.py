"""Fits what cuDNN takes for a time step of a recurrent network to steps of eager programs, and tries it on another.

    python benchmarks/fit_recurrent.py programs/

The folder is that of `time_foreign.py`, with `dry/` of `record_dry.py --steps 3` (neither is in the repository).
Programs are split by a hash of their name alone: an even first byte of its SHA-256 is fitted, an odd one held out. One
constant is fitted, `STEP_NS` of `cost/framework/recurrent.py`: the one with the least sum of squares of
ln(predicted / measured) of the fitted half, each step the shorter of two measurements.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy.optimize import minimize_scalar

from etude.cost.framework import recurrent
from etude.machine import open_system
from etude.steps.program import is_recurrent, predict_program

sys.path.insert(0, str(Path(__file__).parent))

from validate_dry_steps import program_of


def is_fitted(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder, system = parser.parse_args().folder, open_system("dgx-h200")
    cases = []
    for row in csv.DictReader((folder / "steps.csv").open(encoding="utf-8")):
        program = program_of(row["program"], int(row["batch"]), folder / "dry")
        if program is not None and is_recurrent(program.job):
            cases.append((row["program"], row["batch"], program, min(int(row["before_ns"]), int(row["after_ns"]))))

    def error(case: tuple[Any, ...], step_ns: float) -> float:
        *_, program, measured_ns = case
        with patch.object(recurrent, "STEP_NS", step_ns):
            return float(np.log(predict_program(program, system).step_ns / measured_ns))

    fit = [case for case in cases if is_fitted(case[0])]
    found = minimize_scalar(
        lambda step_ns: sum(error(case, step_ns) ** 2 for case in fit),
        bounds=(1_000.0, 100_000.0),
        method="bounded",
        options={"xatol": 50.0},
    )
    print(f"{found.x:,.0f} ns for a time step of a layer and direction, as shipped {recurrent.STEP_NS:,.0f}")
    for case in cases:
        half = "fitted" if is_fitted(case[0]) else "held out"
        off = [f"{np.expm1(error(case, step_ns)):+.1%}" for step_ns in (0.0, found.x, recurrent.STEP_NS)]
        said = f"without {off[0]}, fitted {off[1]}, as shipped {off[2]}"
        print(f"{case[0]:14s} x{case[1]} {half:8s} measured {case[3] / 1e6:7.2f} ms; {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The plan of a database of operators for the training steps that were measured on an H200; the worker measures it.

    python benchmarks/measure_ops_h200.py plan.json
    python src/etude/cost/opdb/worker.py plan.json -o points.csv --budget 300     # on the H200: PyTorch alone
    etude ops add points.csv --db h200.ops

The points are the ops of the steps of `h200_steps_grid.csv` and of the reference data's `h200_steps.csv`, each once,
and the host's time for an op. `validate_operators.py` predicts those steps with the database.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from etude.machine import open_device
from etude.make.generate.train.job import generate
from etude.steps.measured.eager import eager_cases
from etude.steps.operators.needs import Needs, together, use_in

HERE = Path(__file__).resolve().parent


def needs() -> Needs:
    shared = Path(os.environ.get("ETUDE_SHARED") or HERE.parents[1] / "shared")
    files = [shared / "measured" / "h200_steps.csv", HERE / "h200_steps_grid.csv"]
    cases = [case for path in files if path.is_file() for case in eager_cases(path)]
    return together([use_in(generate(case.model, case.plan).job) for case in cases], open_device("h200"))


def main(argv: list[str]) -> int:
    found = needs()
    plan = found.plan("h200", "torch", source="measure_ops_h200.py")
    plan["points"].insert(0, {"op": "host", "dtype": "bf16"})
    print({k: round(v, 3) for k, v in found.summary().items()}, file=sys.stderr)
    if argv:
        Path(argv[0]).write_text(json.dumps(plan, indent=0))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

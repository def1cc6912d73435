"""What `etude score` gives for published training steps, by family of stacks, kind of model and stack.

    python benchmarks/validate_published.py                    # rows beside the checkout or $ETUDE_SHARED
    python benchmarks/validate_published.py --rows my.csv      # other rows of the same columns
    python benchmarks/validate_published.py --stack default    # as if no row named its stack

The stacks of the catalogue were fitted to the reference data, so these are not errors of unseen rows:
`benchmarks/fit_stacks.py --dry` prints those, each source held out. On other rows they are.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from etude.decide.score import score
from etude.steps.measured import read_rows
from etude.steps.measured.row_models import row_model
from etude.steps.measured.rows import row_stack

HERE = Path(__file__).parent


def groups_of(row: dict[str, str]) -> list[str]:
    """Tables that a row counts in; by the stack that it names, whatever it was predicted with."""
    stack = row_stack(row, int(float(row.get("year") or 2025)), [])
    kind = "mixtures of experts" if row_model(row, []).experts else "dense"
    return ["all rows", f"family {stack.family or 'none'}", kind, f"  {stack.name}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("ETUDE_SHARED", HERE.parent.parent / "shared"))
    parser.add_argument("--rows", type=Path, default=shared / "measured" / "published_train.csv")
    parser.add_argument("--stack", default="", help="take this stack for every row")
    options = parser.parse_args()
    rows = read_rows(options.rows)
    errors: dict[str, list[float]] = defaultdict(list)
    for found in score(options.rows, kind="training", stack=options.stack).rows:
        row = rows[found["row"] - 1]
        if "refused" in found:
            print(f"{found['row']:4d} {row['model']:18s} refused: {found['refused']}")
            continue
        measured, time = found["measured"]["step_s"], found["predicted"]["step_s"]
        print(f"{found['row']:4d} {row['stack'][:16]:16s} {row['model']:18s} {row['gpu_type'][:10]:10s} "
              f"n{row['gpus']:5s} {time:8.3f} s, published {measured:8.3f} ({time / measured - 1:+6.1%})")  # fmt: skip
        for name in groups_of(row):
            errors[name].append(time / measured - 1)
    for name in sorted(errors, key=lambda n: (n != "all rows", n)):
        own = np.array(errors[name])
        print(f"{name:28s} {len(own):4d} rows   median {np.median(abs(own)):6.1%}   mean {abs(own).mean():6.1%}   "
              f"90th percentile {np.percentile(abs(own), 90):6.1%}   bias {np.median(own):+6.1%}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())

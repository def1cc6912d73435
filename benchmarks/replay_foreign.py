"""How long replays of programs of other people take, against their steps without a profiler.

    python benchmarks/record_foreign.py -o recorded/            on a machine with a GPU
    etude replay recorded/NAME --plan plans/NAME                for each, anywhere
    python benchmarks/replay_foreign.py recorded/ plans/        on the machine with a GPU, with PyTorch alone

A replay that needs stand-ins ends with exit code 0; one that ends otherwise is printed and counts as a failure. Errors
are relative to the step before or after the recording, whichever is nearer, where the two differ by more than 5%.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from nearer import error


def replayed(plan: Path) -> dict[str, int] | str:
    """Its steps, or why there are none."""
    command = [sys.executable, "-m", "etude.replay", str(plan), "--trust-code", "--iterations", "6", "--warmup", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
    return dict(json.loads(done.stdout.splitlines()[-1])["step_ns"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("plans", type=Path)
    given = parser.parse_args()
    wrong = []
    print(f"{'program':<16}{'before':>9}{'after':>9}{'replayed':>10}{'error':>9}")
    for plan in sorted(given.plans.iterdir()):
        told = json.loads((given.recorded / plan.name / "reference.json").read_text())
        took = replayed(plan)
        if isinstance(took, str):
            print(f"{plan.name:<16}{took}")
            continue
        wrong.append(error(took["replayed"], told["before_ns"], told["after_ns"]))
        print(f"{plan.name:<16}{told['before_ns'] / 1e6:>9.2f}{told['after_ns'] / 1e6:>9.2f}"
              f"{took['replayed'] / 1e6:>10.2f}{wrong[-1]:>+9.1%}")  # fmt: skip
    errors = [abs(one) for one in wrong]
    print(f"mean {statistics.mean(errors):.1%}, worst {max(errors):.1%}, of {len(errors)}")


if __name__ == "__main__":
    main()

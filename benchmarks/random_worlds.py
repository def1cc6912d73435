"""Do the accounts of worlds add up? Random machines with training, lending, serving, scaling and faults.

    python benchmarks/random_worlds.py --count 1000 --seed 0

Device time of all holders is that of the machine, what a workload used its devices for is what it held, and every
request is answered or counted as open: to the nanosecond.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from small_worlds import random_world, run, wrong_in


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    given = parser.parse_args()
    since, wrong, crossings, faults, lent, moved = time.process_time(), 0, 0, 0, 0, 0
    for seed in range(given.seed, given.seed + given.count):
        machine, horizon = random_world(seed)
        crossings += run(machine, horizon).crossings
        faults += len(machine.events)
        lent += sum(one["kind"] == "lend" for one in machine.log)
        moved += sum(getattr(getattr(one, "scale", None), "moved", 0) for one in machine.workloads.values())
        for problem in wrong_in(machine, horizon):
            wrong += 1
            print(f"seed {seed}: {problem}")
    print(
        f"{given.count:,} worlds: {wrong} do not add up; {faults:,} faults, {lent:,} loans of nodes, {moved:,} "
        f"requests moved, {crossings:,} crossings, {time.process_time() - since:.1f} CPU s"
    )
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

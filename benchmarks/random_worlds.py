"""Do the accounts of worlds add up? Random machines with all that a scenario may have.

    python benchmarks/random_worlds.py --count 1000 --seed 0 [--of small]

`small`: training that lends, streams and faults, with times that are chosen. `whole`:
scenarios as files say them, of training, streams with rules, caches, stores, adapters and prompts apart, workflows,
images, rollouts, jobs of others and federated rounds, with faults, slow nodes, links that change, prices and caps of
the power. Device time of all holders is that of the machine, what a workload used its devices for is what it held,
and every request is answered or counted as open: to the nanosecond. Energy adds up to the millijoule, and what holders
pay is what the devices cost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from small_worlds import random_world, run, wrong_in
from whole_worlds import whole_scenario, whole_world, write_files, wrong_sums


def small_worlds(seeds: range) -> int:
    since, wrong, crossings, faults, lent, moved = time.process_time(), 0, 0, 0, 0, 0
    for seed in seeds:
        machine, horizon = random_world(seed)
        crossings += run(machine, horizon).crossings
        faults += len(machine.events)
        lent += sum(one["kind"] == "lend" for one in machine.log)
        moved += sum(getattr(getattr(one, "scale", None), "moved", 0) for one in machine.workloads.values())
        for problem in wrong_in(machine, horizon):
            wrong += 1
            print(f"small, seed {seed}: {problem}")
    print(
        f"{len(seeds):,} small worlds: {wrong} do not add up; {faults:,} faults, {lent:,} loans of nodes, {moved:,} "
        f"requests moved, {crossings:,} crossings, {time.process_time() - since:.1f} CPU s"
    )
    return wrong


def whole_worlds(seeds: range) -> int:
    since, wrong, counts = time.process_time(), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        for seed in seeds:
            scenario = whole_scenario(seed, Path(folder))
            world, record = whole_world(scenario)
            counts.update(spec.kind for spec in scenario.workloads)
            counts.update(
                {"crossings": record["crossings"], "faults": sum("effect" in one for one in record["events"])}
            )
            counts.update({"loans": sum(one["kind"] == "lend" for one in record["events"])})
            counts.update({"with energy": record["account"]["energy_mj"] is not None})
            counts.update({"with a cap": world.governor is not None, "with links": bool(scenario.events.links)})
            counts.update({"lost": sum(its.get("failures", 0) for its in record["workloads"].values())})
            for problem in wrong_sums(world, record):
                wrong += 1
                print(f"whole, seed {seed}: {problem}")
    print(
        f"{len(seeds):,} whole worlds: {wrong} do not add up; "
        + ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
        + f", {time.process_time() - since:.1f} CPU s"
    )
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    parser.add_argument("--of", choices=("both", "small", "whole"), default="both")
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.count)
    wrong = small_worlds(seeds) if given.of != "whole" else 0
    wrong += whole_worlds(seeds) if given.of != "small" else 0
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

"""Random models, plans and schedules: every job passes `check` and runs without deadlock, or the plan is refused.

python benchmarks/validate_generated.py --count 2000 --seed 0

Prints how many were generated, how many refused and why, by the first words of the reason.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from etude.cost.catalogue import system
from etude.errors import UsageError
from etude.generate.build import generate
from etude.generate.plan import Plan
from etude.model.check import check
from etude.simulate.run import simulate
from etude.sweep.predict import grown
from random_jobs import random_model, random_plan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="jobs that must be generated")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dgx, start = system("dgx-h100"), time.process_time()
    made, nodes, refused, families, schedules = 0, 0, Counter[str](), Counter[str](), Counter[str]()
    seed = options.seed
    while made < options.count:
        random = Random(seed)
        m = random_model(random)
        plan = random_plan(random, m)
        seed += 1
        try:
            job = generate(m, Plan.from_dict(plan)).job
        except UsageError as reason:
            words = "".join(c for c in reason.problem if not c.isdigit())
            refused[" ".join(words.split()[:8])] += 1
            continue
        findings = list(check(job))
        if findings:
            print(f"seed {seed - 1}: {findings[0]}")
            return 1
        simulate(job, grown(dgx, job.world_size))  # raises on deadlock
        made, nodes = made + 1, nodes + job.nodes
        families[m.name] += 1
        schedules[plan["schedule"] if plan["pp"] > 1 else "no pipeline"] += 1
    print(f"{made} jobs ({nodes:,} nodes) sound and run, {sum(refused.values())} plans refused, "
          f"{time.process_time() - start:.0f} CPU s")  # fmt: skip
    print("models:", ", ".join(f"{k} {v}" for k, v in families.most_common()))
    print("schedules:", ", ".join(f"{k} {v}" for k, v in schedules.most_common()))
    for reason, count in refused.most_common():
        print(f"  refused {count:5d}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Random models, plans and schedules: every job passes `check` and runs without deadlock, or the plan is refused.

python benchmarks/validate_generated.py --count 2000 --seed 0
python benchmarks/validate_generated.py --count 300 --catalogue  # models of the catalogue, with few layers
python benchmarks/validate_generated.py --count 300 --astra    # jobs of up to 16 ranks also as ASTRA-sim, from `.et`

Prints how many were generated, how many refused and why, by the first words of the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np

from etude import astra
from etude.errors import EtudeError, UsageError
from etude.generate.plan import Plan
from etude.generate.train.job import generate
from etude.machine import open_system
from etude.model.check.whole import check
from etude.model.job import Job
from etude.model.schema import Kind
from etude.predict.step import grown
from etude.simulate.run import simulate
from etude.store import chakra
from etude.transform.dialects.astra import for_astra
from random_jobs import random_model, random_plan
from random_models import catalogue_model, catalogue_plan

SYSTEM = {
    "scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1, "preferred-dataset-splits": 4,
    "all-reduce-implementation": ["ring"], "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"], "all-to-all-implementation": ["ring"],
    "collective-optimization": "localBWAware", "local-mem-bw": 1, "roofline-enabled": 1, "peak-perf": 1,
}  # fmt: skip
"""A slow machine, so that no op of these small models takes less than a nanosecond, on which ASTRA-sim aborts."""


def as_astra(job: Job) -> None:
    """Through `.et` files and both of ASTRA-sim's analytical backends; raises where it hangs or aborts."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        chakra.write_job(for_astra(job), folder)
        (folder / "system.json").write_text(json.dumps(SYSTEM))
        (folder / "network.yml").write_text(
            f"topology: [ Switch ]\nnpus_count: [ {len(job)} ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"
        )
        written = chakra.read_job(folder / job.name)
        network, machine = astra.read_network(folder / "network.yml"), astra.read_system(folder / "system.json")
        for backend in ("unaware", "aware"):
            astra.run(written, network, machine, astra.AstraOptions(backend=backend))


def has_memory_nodes(job: Job) -> bool:
    """ASTRA-sim wants a remote memory for these."""
    return any(np.isin(t.kind, (Kind.MEM_LOAD, Kind.MEM_STORE)).any() for t in job.traces)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="jobs that must be generated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--catalogue", action="store_true", help="models with towers, states and parts instead")
    parser.add_argument("--astra", action="store_true", help="run small ones as ASTRA-sim too")
    options = parser.parse_args()
    dgx, start = open_system("dgx-h100"), time.process_time()
    ran = hung = 0
    made, nodes, refused, families, schedules = 0, 0, Counter[str](), Counter[str](), Counter[str]()
    batching, several = Counter[str](), 0
    seed = options.seed
    while made < options.count:
        random = Random(seed)
        m = catalogue_model(random) if options.catalogue else random_model(random)
        plan = catalogue_plan(random, m) if options.catalogue else random_plan(random, m)
        seed += 1
        try:
            found = generate(m, Plan.from_dict(plan))
        except UsageError as reason:
            words = "".join(c for c in reason.problem if not c.isdigit())
            refused[" ".join(words.split()[:8])] += 1
            continue
        job = found.job
        findings = list(check(job))
        if findings:
            print(f"seed {seed - 1}: {findings[0]}")
            return 1
        simulate(job, grown(dgx, job.world_size))  # raises on deadlock
        if options.astra and 2 <= len(job) <= 16 and not has_memory_nodes(job):
            try:
                as_astra(job)
            except EtudeError as problem:
                if "lengths" not in plan and plan["moe_skew"] == 1.0:  # ranks do the same in the same time
                    print(f"seed {seed - 1}: {problem}")
                    return 1
                hung += 1
            ran += 1
        made, nodes = made + 1, nodes + job.nodes
        families[m.name] += 1
        batching[plan.get("batching", "one length")] += 1
        several += found.plan.steps > 1
        schedules[plan.get("schedule", "1f1b") if plan["pp"] > 1 else "no pipeline"] += 1
    print(f"{made} jobs ({nodes:,} nodes) sound and run, {sum(refused.values())} plans refused, "
          f"{time.process_time() - start:.0f} CPU s")  # fmt: skip
    if options.astra:
        print(f"{ran} of them ran as ASTRA-sim, with and without congestion; {hung} of these hang or abort: "
              "ranks whose samples or experts differ begin collectives in other orders or send too little")  # fmt: skip
    print("models:", ", ".join(f"{k} {v}" for k, v in families.most_common()))
    print("schedules:", ", ".join(f"{k} {v}" for k, v in schedules.most_common()))
    print(f"batching: {', '.join(f'{k} {v}' for k, v in batching.most_common())}; {several} of several steps")
    for reason, count in refused.most_common():
        print(f"  refused {count:5d}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Random models, plans, schedules and sections: every job passes `check` and runs without deadlock, or is refused.

nice python benchmarks/validate_generated.py --count 2000 --astra
python benchmarks/validate_generated.py --count 300 --only catalogue     # models of the catalogue, with few layers
python benchmarks/validate_generated.py --count 500 --astra --state state.json   # again: 500 more, from where it ended

Every job runs natively, small ones also by links with an all-to-all of any kind (`put`, `get`, `phased`, ...). With
`--astra` jobs of 2 to 16 ranks run as ASTRA-sim too, from their `.et` files, with and without congestion; one that
hangs there must have been named by `order_problem` before it began. Prints how many were generated, how many refused
and why, by the first words of the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from etude.base.errors import DeadlockError, EtudeError, UsageError
from etude.machine import System, open_system
from etude.make.generate.plan import Plan
from etude.make.generate.sections import generate_sections
from etude.make.generate.sections.spec import sections_of
from etude.make.generate.train.job import generate
from etude.make.transform.dialects.astra import for_astra, order_problem
from etude.model.check.whole import check
from etude.model.job import Job
from etude.run import astra
from etude.run.astra.abort import AstraAbort
from etude.run.astra.config import RemoteMemoryConfig
from etude.run.simulate import RemoteMemory
from etude.run.simulate.run import simulate
from etude.steps.step import grown
from etude.store import chakra
from random_jobs import random_model, random_plan, random_sections
from random_models import catalogue_model, catalogue_plan

SYSTEM = {
    "scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1, "preferred-dataset-splits": 4,
    "all-reduce-implementation": ["ring"], "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"], "all-to-all-implementation": ["ring"],
    "collective-optimization": "localBWAware", "local-mem-bw": 1, "roofline-enabled": 1, "peak-perf": 1,
}  # fmt: skip
"""A slow machine, so that no op of these small models takes less than a nanosecond, on which ASTRA-sim aborts."""
HOST = RemoteMemoryConfig(kind="PER_NPU_MEMORY_EXPANSION", latency_ns=100, bytes_per_ns=10)
EXCHANGES = ("direct", "phased", "put", "get", "rail")
MANY_NODES = 20_000
"""Jobs of fewer nodes run by links too."""
Made = tuple[Job, dict[str, str]]
"""A job, and what it is by column of the report."""


# -- jobs --------------------------------------------------------------------------------------------------------------


def of_a_plan(random: Random) -> Made:
    m = random_model(random)
    plan = random_plan(random, m)
    found = generate(m, Plan.from_dict(plan))
    schedule = plan["schedule"] if plan["pp"] > 1 else "no pipeline"
    batching = plan.get("batching", "one length")
    also = [word for word, is_so in (
        ("several steps", found.plan.steps > 1), ("directives", "directives" in plan), ("map", "cp_map" in plan),
        ("domain", "domain" in plan), ("part trained", "train" in plan), ("host", plan["host"] != "0"),
        ("skew", plan["moe_skew"] > 1), ("loads of experts", bool(plan.get("moe_loads"))),
        (plan["precision"], plan["precision"] in ("fp8", "fp4")),
        ("scales", plan.get("scaling", "delayed") != "delayed"),
        (plan["optimizer"], plan["optimizer"] != "adamw"), ("nodes of experts", "ep_node" in plan),
    ) if is_so]  # fmt: skip
    return found.job, {"models": m.name, "schedules": schedule, "batching": batching, "also": ",".join(also)}


def of_the_catalogue(random: Random) -> Made:
    m = catalogue_model(random)
    return generate(m, Plan.from_dict(catalogue_plan(random, m))).job, {"models": m.name}


def of_sections(random: Random) -> Made:
    with TemporaryDirectory() as folder:
        given = random_sections(random, Path(folder))
        found = generate_sections(sections_of(given))
    rollout = found.sections[0].section.makes_tokens
    joint = ", joint" if any(border.get("joint") for border in given["borders"]) else ""
    return found.job, {"models": "rollout and trainer" if rollout else f"{len(found.sections)} sections{joint}"}


KINDS: dict[str, Callable[[Random], Made]] = {
    "plans": of_a_plan,
    "catalogue": of_the_catalogue,
    "sections": of_sections,
}
SHARES = {"plans": 7, "catalogue": 1, "sections": 2}
"""Of ten seeds."""


# -- runs --------------------------------------------------------------------------------------------------------------


def natively(job: Job, system: System, random: Random) -> None:
    """Raises on deadlock."""
    host = RemoteMemory(bytes_per_s=50e9)
    simulate(job, system, remote_memory=host)
    if job.nodes <= MANY_NODES:
        exchange = random.choice(EXCHANGES)
        simulate(job, system, remote_memory=host, network=random.choice(["links", "flow"]),
                 collective={"all_to_all": exchange})  # fmt: skip


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
            astra.run(written, network, machine, astra.AstraOptions(backend=backend, remote_memory=HOST))


class UnsoundError(Exception):
    """What must not be."""


def try_astra(job: Job) -> str:
    """What came of it: `ran`, or why it cannot. A hang that was not named before it began is a failure."""
    named = order_problem(for_astra(job))
    try:
        as_astra(job)
    except DeadlockError as hang:
        if not named:
            raise UnsoundError(f"hangs as ASTRA-sim, and nothing said so before: {hang}") from None
        return "hang, as was said before"
    except AstraAbort as abort:
        return "refused: " + first_words(str(abort).partition(": ")[2])
    except EtudeError as problem:
        raise UnsoundError(f"as ASTRA-sim: {problem}") from None
    return "ran, though it might have hung" if named else "ran"


def first_words(text: str) -> str:
    return " ".join("".join(c for c in text if not c.isdigit()).split()[:8])


# -- the count ---------------------------------------------------------------------------------------------------------


class State:
    """Counts by column, and the next seed; kept in a file, so that a run can go on."""

    def __init__(self, path: Path | None, seed: int) -> None:
        self.path = path
        known: dict[str, Any] = json.loads(path.read_text()) if path and path.is_file() else {}
        self.seed: int = known.get("seed", seed)
        self.sums = Counter[str](known.get("sums", {}))
        self.counts = {column: Counter[str](found) for column, found in known.get("counts", {}).items()}

    def count(self, column: str, word: str) -> None:
        self.counts.setdefault(column, Counter())[word] += 1

    def keep(self) -> None:
        if self.path:
            self.path.write_text(json.dumps({"seed": self.seed, "sums": self.sums, "counts": self.counts}))


def one(state: State, dgx: System, *, only: str, with_astra: bool) -> bool:
    """The job of the next seed; False where it was refused."""
    random = Random(state.seed)
    kind = only or random.choices(list(SHARES), list(SHARES.values()))[0]
    try:
        job, about = KINDS[kind](random)
    except UsageError as reason:
        state.count(f"refused {kind}", first_words(reason.problem))
        state.sums["refused"] += 1
        return False
    if findings := list(check(job)):
        raise UnsoundError(str(findings[0]))
    natively(job, grown(dgx, job.world_size), random)
    if with_astra and 2 <= len(job) <= 16:
        state.count("as ASTRA-sim", try_astra(job))
    state.sums["jobs"] += 1
    state.sums["nodes"] += job.nodes
    state.count("kinds", kind)
    for column, words in about.items():
        for word in filter(None, words.split(",") if column == "also" else [words]):
            state.count(column, word)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="jobs that must be generated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", choices=["", *KINDS], help="one kind of job; default: all of them")
    parser.add_argument("--astra", action="store_true", help="run small ones as ASTRA-sim too")
    parser.add_argument("--state", type=Path, help="file with the counts so far; the run goes on from there")
    options = parser.parse_args()
    state, dgx, start, made = State(options.state, options.seed), open_system("dgx-h100"), time.process_time(), 0
    while made < options.count:
        try:
            made += one(state, dgx, only=options.only, with_astra=options.astra)
        except (UnsoundError, EtudeError) as problem:
            print(f"seed {state.seed}: {problem}")
            return 1
        state.seed += 1
        if state.seed % 20 == 0:
            state.keep()
    state.sums["cpu_ms"] += round(1000 * (time.process_time() - start))
    state.keep()
    print(f"{state.sums['jobs']:,} jobs ({state.sums['nodes']:,} nodes) sound and run, {state.sums['refused']:,} plans "
          f"refused, {state.sums['cpu_ms'] / 1000:.0f} CPU s; next seed {state.seed}")  # fmt: skip
    for column, found in state.counts.items():
        if column.startswith("refused"):
            continue
        print(f"{column}:", ", ".join(f"{k} {v}" for k, v in found.most_common()))
    for column, found in state.counts.items():
        if column.startswith("refused"):
            for reason, count in found.most_common():
                print(f"  {column} {count:5d}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Learned synthesis against the jobs it was learned from, and against real jobs of other rank counts.

    python benchmarks/validate_synthesis.py [--shared ../shared] [--captures FOLDER] [--system dgx-h100] [--only WORD]

Five tables. Recorded runs (what PyTorch wrote, linked here): a model of each, and jobs of the same size from it with
several seeds. Real jobs of two sizes, each withheld once: step and communication. Jobs of other tools: made for the
same size and for others, against the real job of that size. Copies of jobs whose sizes and times are rounded. Etude's
own: learned from a small plan, made for a large one, against the one that the generator makes for it. Every job that is
made must pass `etude check`. Errors are made over real, less one; both are simulated.
"""

import argparse
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import etude
from etude.base.errors import UsageError
from etude.capture.ingest import causal, runs
from etude.machine import open_system
from etude.machine.system import System
from etude.make.generate.model.open import open_model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import generate
from etude.make.synth.learned import Learned
from etude.make.synth.learning import learn
from etude.make.synth.making import MakeOptions, make
from etude.make.transform.anonymising import AnonymiseOptions, anonymise
from etude.make.transform.durations import with_durations
from etude.model.job import Job
from etude.steps.copies import differences
from etude.steps.similarity import likeness
from etude.steps.step import grown

SEEDS = 3
CPU = "colls_2p colls_4p ddp_2p ddp_4p dp_tp_4p fsdp2_2p fsdp2_4p moe_2p pp_1f1b_2p pp_1f1b_4p pp_gpipe_2p"
RECORDED = (
    *(f"traces/torch_cpu/{name}" for name in (CPU + " tp_2p tp_sp_2p infer_1p train_1p").split()),
    *(f"traces/h200/{name}" for name in ("ddp", "gpt_train", "llama_infer")),
    *(f"traces/h200_pairs/{name}" for name in ("gpt8_b1", "gpt8_b96")),
    *(f"oracle/chakra_official/h200_nccl/{name}" for name in ("coll", "fsdp", "sync")),
)
STG = ("gpt_cp2_dp2_tp2", "gpt_dp2_tp2_pp2_mb2", "gpt_pp4_mb8", "llama_fsdp_dp8_mp", "moe_dp2_ep4")
LLM = (
    ("gpt8L_r16_dp2tp2pp4_mb8", ""),
    ("gpt8L_r64_dp8tp4sp2_fsdp", ""),
    ("gpt8L_r8_dp8", "gpt8L_r64_dp64"),
    ("gpt8L_r64_dp64", "gpt8L_r8_dp8"),
    ("gpt8L_r16_dp4tp4", "gpt8L_r64_dp16tp4"),
    ("gpt8L_r64_dp16tp4", "gpt8L_r16_dp4tp4"),
)
"""Learned from, compared with; where nothing is said, with itself."""
SCALED = (
    ("gpt2-xl", {"gpus": 2}, 8),
    ("gpt2-xl", {"gpus": 2}, 64),
    ("gpt2-xl", {"gpus": 4, "zero": 1}, 32),
    ("llama3-8b", {"gpus": 8, "zero": 3}, 64),
    ("llama3-8b", {"gpus": 8, "tp": 4}, 64),
    ("llama3-8b", {"gpus": 16, "tp": 2, "pp": 2, "global_batch": 16}, 64),
    ("llama3-8b", {"gpus": 8, "tp": 2, "cp": 2}, 32),
    ("mixtral-8x7b", {"gpus": 32, "ep": 8, "pp": 2, "global_batch": 64}, 128),
)
"""Etude's own: model, plan, ranks to make. Micro-batches of a rank stay as many."""
WITHHELD = (
    ("traces/torch_cpu/colls_2p", "traces/torch_cpu/colls_4p"),
    ("traces/torch_cpu/ddp_2p", "traces/torch_cpu/ddp_4p"),
    ("traces/torch_cpu/fsdp2_2p", "traces/torch_cpu/fsdp2_4p"),
    ("traces/torch_cpu/pp_1f1b_2p", "traces/torch_cpu/pp_1f1b_4p"),
    ("gpt8L_r8_dp8", "gpt8L_r64_dp64"),
    ("gpt8L_r16_dp4tp4", "gpt8L_r64_dp16tp4"),
)
"""Pairs of real jobs of two sizes: each is withheld once and made of the other."""

ROUNDED = (
    "traces/torch_cpu/fsdp2_4p",
    "traces/torch_cpu/pp_1f1b_4p",
    "traces/h200/gpt_train",
    "oracle/stg/moe_dp2_ep4",
    "oracle/stg/gpt_dp2_tp2_pp2_mb2",
)


def others(shared: Path, folder: Path, name: str) -> Job:
    stg = shared / "oracle" / "stg" / name
    if stg.is_dir():
        return etude.open(stg)
    if not (folder / name).is_dir():
        with tarfile.open(shared / "oracle" / "astra" / "llm" / "traces" / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    return etude.open(folder / name)


def made(learned: Learned, **options: Any) -> Job:
    job = make(learned, MakeOptions(**options))
    found = etude.check(job)
    if found:
        raise SystemExit(f"what was made is not sound: {found[0]}")
    return job


def compared(real: Job, other: Job, system: System) -> dict[str, float]:
    return {row["what"]: row["difference"] for row in likeness(real, other, system)}


def figures(rows: dict[str, float]) -> list[str]:
    distance = max((v for k, v in rows.items() if k.endswith(", each")), default=0.0)
    sent = rows.get("collective bytes per rank", rows.get("message bytes per rank", 0.0))
    points = rows["simulated exposed_comm_ns, fraction of the step"]
    return [f"{distance:.3f}", f"{sent:+.1%}", f"{rows['simulated step, ns']:+.1%}", f"{100 * points:+.1f}"]


def recorded(shared: Path, captures: Path | None, system: System, only: str) -> Iterator[list[str]]:
    places = [shared / place for place in RECORDED] + (sorted(captures.iterdir()) if captures else [])
    steps = []
    for place in places:
        if only not in str(place):
            continue
        job = _linked(place)
        learned = learn([job])
        size = len(msgspec.json.encode(learned))
        tries = [compared(job, made(learned, seed=seed), system) for seed in range(SEEDS)]
        step = np.array([run["simulated step, ns"] for run in tries])
        steps.append(abs(step.mean()))
        spread = np.mean([run.get("spread of ranks: deviation of compute time", 0.0) for run in tries])
        exposed = np.mean([run["simulated exposed_comm_ns, fraction of the step"] for run in tries])
        larger = compared(job, made(learned, ranks=4 * len(job)), system)
        sent = tries[0].get("collective bytes per rank", tries[0].get("message bytes per rank", 0.0))
        distance = max(v for k, v in tries[0].items() if k.endswith(", each"))
        yield [f"{place.parent.name}/{place.name}", f"{len(job)}", f"{job.nodes:,}", f"{size:,}", f"{distance:.3f}",
               f"{sent:+.1%}", f"{step.mean():+.1%} ± {step.std():.1%}", f"{100 * exposed:+.1f}",
               f"{100 * spread:+.1f}", f"{larger['simulated step, ns']:+.1%}"]  # fmt: skip
    if steps:
        yield ["mean of absolute values", "", "", "", "", "", f"{np.mean(steps):.1%}", "", "", ""]


def of_others(shared: Path, system: System, only: str) -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        for name, other in [*((n, "") for n in STG), *LLM]:
            if only in name:
                source = others(shared, Path(folder), name)
                real = others(shared, Path(folder), other) if other else source
                yield [name, other or "itself", *_made_for(source, real, system)]


def scaled(system: System, only: str) -> Iterator[list[str]]:
    for name, small, ranks in SCALED:
        text = f"{name}, {', '.join(f'{k} {v}' for k, v in small.items())}"
        if only in text:
            source, real = (_generated(name, small, count, system) for count in (small["gpus"], ranks))
            yield [text, f"{ranks} ranks", *_made_for(source, real, system)]


def _made_for(source: Job, real: Job, system: System) -> list[str]:
    began = time.process_time()
    learned = learn([source])
    job = made(learned, ranks=len(real))
    spent = time.process_time() - began
    rows = compared(real, job, system)
    by_type = max((abs(v) for k, v in rows.items() if k.endswith(" bytes per rank") and k[0] in "abgrs"), default=0.0)
    nodes = rows["nodes per rank and step"]
    size = len(msgspec.json.encode(learned))
    return [f"{size:,}", f"{spent:.2f}", f"{nodes:+.1%}", f"{by_type:.1%}", *figures(rows)]


def withheld(shared: Path, system: System, only: str) -> Iterator[list[str]]:
    """Real jobs that were not learned from: step and communication, as `etude learn` says of withheld jobs."""
    found: list[tuple[float, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for source, real in _pairs(shared, Path(folder), system, only):
            row = [f"{source.name}, {len(source)} ranks", f"{real.name}, {len(real)} ranks"]
            try:
                step, sent = differences(real, made(learn([source]), ranks=len(real)), system)
            except UsageError as problem:
                yield [*row, f"refused: {str(problem).splitlines()[0]}", ""]
                continue
            found.append((step, sent or 0.0))
            yield [*row, f"{step:+.1%}", "" if sent is None else f"{sent:+.1%}"]
    if found:
        near = sum(max(abs(step), abs(sent)) <= 0.1 for step, sent in found)
        yield [f"both within 10%: {near} of {len(found)}", "", "", ""]


def _pairs(shared: Path, folder: Path, system: System, only: str) -> Iterator[tuple[Job, Job]]:
    """What is learned from, and what is withheld."""
    for pair in WITHHELD:
        if any(only in name for name in pair):
            jobs = [_linked(shared / name) if "/" in name else others(shared, folder, name) for name in pair]
            one, two = (job.replace(name=Path(name).name) for job, name in zip(jobs, pair, strict=True))
            yield one, two
            yield two, one
    for name, small, ranks in SCALED:
        if only in name:
            yield _generated(name, small, small["gpus"], system), _generated(name, small, ranks, system)


def _linked(place: Path) -> Job:
    name, ranks = runs.find_run(place)
    return causal.to_job(name, runs.link_run(ranks))


def _generated(name: str, plan: dict[str, int], ranks: int, system: System) -> Job:
    """The job of a plan on more ranks, each with as many micro-batches."""
    more = plan | {"gpus": ranks}
    if "global_batch" in plan:
        more["global_batch"] = plan["global_batch"] * ranks // plan["gpus"]
    return with_durations(generate(open_model(name), Plan(**more)).job, system.device)


def rounded(shared: Path, system: System, only: str) -> Iterator[list[str]]:
    for place in ROUNDED:
        if only in place:
            job = etude.open(shared / place)
            exact = etude.simulate(job, grown(system, len(job))).makespan_ns
            row = [place]
            for per_octave in (64, 8, 1):
                copy = anonymise(job, AnonymiseOptions(per_octave=per_octave))[0]
                row.append(f"{etude.simulate(copy, grown(system, len(job))).makespan_ns / exact - 1:+.2%}")
            yield row


def table(title: str, head: str, rows: Iterator[list[str]]) -> None:
    print(f"\n{title}\n\n| {head} |\n|{'---|' * (head.count('|') + 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--captures", type=Path, help="a folder of more recorded runs")
    parser.add_argument("--system", default="dgx-h100")
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    args = parser.parse_args()
    system = open_system(args.system)
    table(
        "Withheld: real jobs of another size than the one learned from",
        "learned from | withheld | step | communication",
        withheld(args.shared, system, args.only),
    )
    head = "learned from | made for | model bytes | CPU s | nodes | bytes by type | sizes | bytes sent | step | exposed"
    table(
        f"Recorded runs, {SEEDS} seeds (exposed and spread in points; larger: 4 times the ranks)",
        "run | ranks | nodes | model bytes | sizes | bytes sent | step | exposed | spread of ranks | step, larger",
        recorded(args.shared, args.captures, system, args.only),
    )
    table("Jobs of other tools", head, of_others(args.shared, system, args.only))
    table(
        "Copies whose sizes and times are rounded: simulated step",
        "job | --round 64 | --round 8 | --round 1",
        rounded(args.shared, system, args.only),
    )
    table("Generated jobs, learned small and made large", head, scaled(system, args.only))


if __name__ == "__main__":
    main()

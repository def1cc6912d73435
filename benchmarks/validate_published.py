"""Predicted against published training steps, and against our own single-GPU steps on an H200.

    python benchmarks/validate_published.py                 # the reference data beside the checkout, or $ETUDE_SHARED
    python benchmarks/validate_published.py --rows my.csv   # other rows of the same columns
    python benchmarks/validate_published.py --write-rows    # writes benchmarks/validation_rows.csv anew

Each row becomes a model and a plan (benchmarks/published_rows.py), is generated and simulated (analytic network) on
the system of its GPU. Four constants are fitted for each (GPU, software stack): the time of products in 16 bits, of
products in 8 bits, of attention and of everything else, over what the catalogue's device says. They are fitted to a
third of the rows of each stack on a generation of GPUs, chosen by a hash of what the row says; every error that is
reported is of the other rows. Those of a stack on a GPU start from those of the stack on the GPU's generation, these
from those of like stacks, and are pulled back to them; a stack without a fitted row takes them as they are. No
constant belongs to a row. A step is simulated with each constant moved by a quarter and is taken to be linear
between.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from eager_steps import HOST_NS, cases_of
from published_rows import Case, Row, case_of, fitted_keys, generation, key_of

from etude.config import plain
from etude.generate.train.job import generate
from etude.machine import open_system
from etude.machine.system import CollectiveSettings, Device, Protocol, System
from etude.predict.step import grown
from etude.simulate.run import simulate

HERE = Path(__file__).parent
KNOBS = ("products", "fp8", "attention", "rest")
Constants = tuple[float, ...]
NEUTRAL: Constants = (1.0, 1.0, 1.0, 1.0)
STEP = 0.25
"""By which a constant is moved to see what it does; times are all but linear in it."""


def slowed(device: Device, constants: Constants) -> Device:
    """The device with its times multiplied: products, products in 8 bits, everything else."""
    products, fp8, attention, rest = constants
    ops = {}
    for name, cost in device.ops.items():
        if name in ("gemm", "convolution", "attention"):
            factor = attention if name == "attention" else products
            ops[name] = replace(cost, flop_efficiency=cost.flop_efficiency / factor)
        else:
            ops[name] = replace(cost, traffic=cost.traffic * rest, flop_efficiency=cost.flop_efficiency / rest,
                                row_ns=cost.row_ns * rest, fixed_ns=cost.fixed_ns * rest)  # fmt: skip
    peak = {k: v * products / fp8 if k == "fp8" else v for k, v in device.peak_flop_per_s.items()}
    return replace(device, ops=ops, peak_flop_per_s=peak)


def machine(case: Case) -> System:
    """The system of a row. What the catalogue has no GPU for is made from the nearest one's data sheet."""
    made = open_system(case.system)
    device = made.device
    if case.gpu in ("GB200", "GB300"):  # jobs take 64 of a rack's 72 GPUs
        made = made.replace(levels=(replace(made.levels[0], size=64), *made.levels[1:]))
    if case.gpu == "A100-40GB":
        device = replace(device, memory_bandwidth_bytes_per_s=1.555e12, memory_bytes=40_000_000_000)
    if case.gpu.startswith("H100-96GB"):
        device = replace(device, memory_bandwidth_bytes_per_s=2.4e12, memory_bytes=96_000_000_000)
    if case.plan.tp_chunks > 1:
        made = user_buffers(made)
    return grown(made.replace(device=device), case.plan.gpus)


def user_buffers(made: System) -> System:
    """Pieces of a layer's collective that overlap its product are copies into buffers that the peers have open: no
    kernel is started for each, and no pipeline filled."""
    level = made.levels[0]
    copies = CollectiveSettings(
        protocols={"simple": Protocol(launch_ns=1000.0)},
        message_ns=made.collectives.message_ns,
        p2p_launch_ns=made.collectives.p2p_launch_ns,
    )
    near = replace(level, step_ns={**level.step_ns, "simple": level.latency_ns})
    return made.replace(levels=(near, *made.levels[1:]), collectives=copies)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds of a step as the catalogue says, then with each constant moved by STEP."""

    key: str
    times: tuple[float, ...]


def settings_of(case: Case) -> list[Constants]:
    """The catalogue's constants, then each moved by STEP. Without 8-bit products their constant does nothing."""
    knobs = [k for k, name in enumerate(KNOBS) if name != "fp8" or case.plan.precision == "fp8"]
    return [NEUTRAL, *(tuple(1.0 + STEP * (i == k) for i in range(len(KNOBS))) for k in knobs)]


def seconds(case: Case, settings: list[Constants], *, quick: bool) -> list[float]:
    """Simulated seconds of a step under each of these constants.

    `quick`: with one and two micro-batches for each pipeline rank, and from there on a straight line, since each more
    takes as long as the last.
    """
    p, made = case.plan, machine(case)
    few = [p.micro_batches]
    if quick and p.micro_batches > 3 * p.pp:
        few = [p.pp, 2 * p.pp]
    found = []
    for count in few:
        job = generate(case.model, p.replace(global_batch=p.dp * p.micro_batch * count)).job
        found.append([simulate(job, made.replace(device=slowed(made.device, k))).makespan_ns / 1e9 for k in settings])
    if len(few) == 1:
        return found[0]
    more = (p.micro_batches - few[1]) / (few[1] - few[0])
    return [b + (b - a) * more for a, b in zip(*found, strict=True)]


def moved(case: Case, quick: bool) -> Outcome:
    """What each constant does to a row."""
    base, *found = seconds(case, settings_of(case), quick=quick)
    if case.plan.precision != "fp8":
        found.insert(KNOBS.index("fp8"), base)
    return Outcome(case.key, (base, *found))


def near(outcome: Outcome, constants: Constants) -> float:
    """Seconds with other constants; a step is all but linear in them."""
    base, *others = outcome.times
    return base + sum((c - 1.0) * (t - base) / STEP for c, t in zip(constants, others, strict=True))


def fit(rows: list[tuple[Case, Outcome]], prior: Constants) -> Constants:
    """Constants with the least log errors, large ones cut, pulled towards those of the wider pool: the less, the more
    rows there are. Each stack on a GPU counts as much as every other.

    What all four have in common moves more easily than what sets them apart. On a grid, one after another.
    """
    grid = np.linspace(np.log(0.5), np.log(3.5), 131)
    shift, apart = 0.0, [0.0] * len(KNOBS)
    of_stack = Counter((c.gpu, c.stack) for c, _ in rows)
    weight = np.array([1 / of_stack[c.gpu, c.stack] for c, _ in rows])
    times = np.array([o.times for _, o in rows])
    slopes = (times[:, 1:] - times[:, :1]) / STEP
    published = np.array([c.step_s for c, _ in rows])

    def values(shift: float, apart: list[float]) -> Constants:
        return tuple(float(p * np.exp(shift + a)) for p, a in zip(prior, apart, strict=True))

    def loss(shift: float, apart: list[float]) -> float:
        found = times[:, 0] + slopes @ (np.array(values(shift, apart)) - 1.0)
        errors = np.log(np.maximum(found, 1e-9) / published)
        cut = np.average(np.sqrt(1 + (errors / 0.1) ** 2) - 1, weights=weight)
        return float(cut) + (2 * shift**2 + 10 * sum(a * a for a in apart)) / len(rows)

    for _ in range(8):
        shift = float(min(grid, key=lambda k: loss(float(k), apart)))
        for i in range(len(KNOBS)):
            apart[i] = float(min(grid, key=lambda k: loss(shift, [*apart[:i], float(k), *apart[i + 1 :]])))
    return values(shift, apart)


def pools(case: Case) -> list[tuple[str, str]]:
    """Whose constants a row takes, from the widest pool to its own GPU and stack. Each pool starts from the one before
    it. Mixtures of experts run most of the kernels of dense models, and start from their stack's."""
    kind, dense = generation(case.gpu), case.stack.removesuffix("-experts")
    family = "Megatron family" if case.megatron else "other stacks"
    chain = [("any GPU", "any stack"), ("any GPU", family), (kind, family), (kind, dense), (case.gpu, dense)]
    return [*chain, (kind, case.stack), (case.gpu, case.stack)] if case.model.experts else chain


def constants_of(rows: list[tuple[Case, Outcome]]) -> dict[tuple[str, str], Constants]:
    """Constants of each pool that has rows to fit to. Dense pools have the dense rows alone."""
    groups: dict[tuple[str, str], list[tuple[Case, Outcome]]] = defaultdict(list)
    above: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for case, outcome in rows:
        chain = pools(case)
        for depth, pool in enumerate(chain):
            if not case.model.experts or pool[1] == case.stack:
                groups[pool].append((case, outcome))
                above[pool] = chain[:depth]
    found: dict[tuple[str, str], Constants] = {}
    for pool in sorted(groups, key=lambda p: len(above[p])):
        prior = next((found[p] for p in reversed(above[pool]) if p in found), NEUTRAL)
        found[pool] = fit(groups[pool], prior)
    return found


def chosen(constants: dict[tuple[str, str], Constants], case: Case) -> Constants:
    return next((constants[pool] for pool in reversed(pools(case)) if pool in constants), NEUTRAL)


def table(errors: list[tuple[str, float]]) -> str:
    groups: dict[str, list[float]] = defaultdict(list)
    for name, error in errors:
        groups[name].append(abs(error))
    lines = []
    for name, found in groups.items():
        a = np.array(found)
        lines.append(f"{name:44s} {len(a):4d} rows   median {np.median(a):6.1%}   mean {a.mean():6.1%}   "
                     f"90th percentile {np.percentile(a, 90):6.1%}")  # fmt: skip
    return "\n".join(lines)


def host_time(cases: list[Case]) -> tuple[Case, int]:
    """The row of a file that waits for the host the most, and the host's time for an op with which it comes out right.

    Between no host and a slow one a step that waits for it throughout grows in a straight line.
    """

    def step_s(case: Case, host_ns: int) -> float:
        return simulate(generate(case.model, case.plan.replace(host_ns=host_ns)).job, machine(case)).makespan_ns / 1e9

    case = min(cases, key=lambda c: step_s(c, 0) / c.step_s)
    low, high = HOST_NS, 4 * HOST_NS
    a, b = step_s(case, low), step_s(case, high)
    return case, round(low + (case.step_s - a) / (b - a) * (high - low))


def eager_steps(path: Path, grid: Path) -> None:
    """Our own single-GPU steps: constants from the steps that we measured, the host's time from one row of each."""
    print(f"\nH200, PyTorch eager: constants fitted to {grid.name}, none to {path.name} but the time of its host")
    fitted: list[tuple[Case, Outcome]] = []
    errors: list[tuple[str, float]] = []
    for file in (grid, path):
        cases = cases_of(file)
        slowest, host_ns = host_time(cases)
        pairs = [(c, moved(c, False)) for c in (replace(c, plan=c.plan.replace(host_ns=host_ns)) for c in cases)]
        if file is grid:
            fitted = pairs
            constants = fit(fitted, NEUTRAL)
            print("  " + "  ".join(f"{k} {v:.2f}" for k, v in zip(KNOBS, constants, strict=True)))
        print(f"  {file.name}: {host_ns / 1e3:.0f} us of the host for an op")
        for case, outcome in pairs:
            time, raw, of_host = near(outcome, constants), outcome.times[0], case.key == slowest.key
            error = time / case.step_s - 1
            if not of_host:
                errors.append((file.name, error))
            print(f"    {case.model.name:10s} {case.plan.micro_batch:2d} x {case.plan.seq:4d} {time * 1e3:7.1f} ms;"
                  f" measured {case.step_s * 1e3:7.1f} ({error:+6.1%}, without constants {raw / case.step_s - 1:+6.1%})"
                  f"{' the host' if of_host else ''}")  # fmt: skip
    print(table(errors))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("ETUDE_SHARED", HERE.parent.parent / "shared"))
    parser.add_argument("--rows", type=Path, default=shared / "measured" / "published_train.csv")
    parser.add_argument("--steps", type=Path, default=shared / "measured" / "h200_steps.csv")
    parser.add_argument("--write-rows", action="store_true", help="write validation_rows.csv and stop")
    parser.add_argument("--quick", action="store_true", help="few micro-batches, and a straight line from there")
    parser.add_argument("--leave-out", action="store_true", help="also each stack on a GPU without any row of its own")
    parser.add_argument("--outcomes", type=Path, help="keep simulated times here, and take those that are there")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    rows = list(csv.DictReader(options.rows.open()))
    found = [case_of(row) for row in rows]
    if options.write_rows:
        write_rows(rows, found)
        return 0
    cases = [case for case in found if isinstance(case, Case)]
    kept = Kept(options.outcomes)
    fitted = fitted_keys(cases)
    times = kept.all(cases, quick=options.quick, workers=options.workers)
    pairs = [(case, Outcome(case.key, tuple(t))) for case, t in zip(cases, times, strict=True)]
    constants = constants_of([pair for pair in pairs if pair[0].key in fitted])
    report(pairs, constants, fitted)
    if options.leave_out:
        left_out(pairs, fitted)
    if options.steps.exists():
        eager_steps(options.steps, HERE / "h200_steps_grid.csv")
    return 0


class Kept:
    """Simulated times, in a file if one is given: a run that was cut off goes on, and nothing is simulated twice."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[str, list[float]] = json.loads(path.read_text()) if path and path.exists() else {}

    def all(self, cases: list[Case], *, quick: bool, workers: int) -> list[list[float]]:
        keys = [f"{c.key} {json.dumps(plain(c.plan), default=str)} quick {quick}" for c in cases]
        wanted = {k: c for k, c in zip(keys, cases, strict=True) if k not in self.known}
        small_first = sorted(wanted.items(), key=lambda item: item[1].plan.pp * item[1].plan.micro_batches)
        with ProcessPoolExecutor(workers) as pool:
            futures = {pool.submit(moved, case, quick): key for key, case in small_first}
            for done in as_completed(futures):
                self.known[futures[done]] = list(done.result().times)
                if self.path:
                    self.path.write_text(json.dumps(self.known))
        return [self.known[k] for k in keys]


def report(pairs: list[tuple[Case, Outcome]], constants: dict[tuple[str, str], Constants], fitted: set[str]) -> None:
    held: list[tuple[str, float]] = []
    print(f"{len(pairs)} rows in, {sum(c.key in fitted for c, _ in pairs)} of them fitted\n")
    for key, values in sorted(constants.items()):
        print(f"{key[0]:24s} {key[1]:18s} " + "  ".join(f"{k} {v:.2f}" for k, v in zip(KNOBS, values, strict=True)))
    print()
    for case, outcome in sorted(pairs, key=lambda p: (p[0].stack, p[0].gpu, p[0].model.name)):
        raw, time = outcome.times[0], near(outcome, chosen(constants, case))
        error, mark, p = time / case.step_s - 1, "fitted" if case.key in fitted else "", case.plan
        print(f"{case.stack:16s} {case.gpu[:10]:10s} {case.model.name:16s} {p.precision:4s} n{p.gpus:<5d} "
              f"tp{p.tp} pp{p.pp:<2d} cp{p.cp} ep{p.ep:<2d} {time:8.3f} s, published {case.step_s:8.3f} "
              f"({error:+6.1%}, without constants {raw / case.step_s - 1:+6.1%}) {mark}")  # fmt: skip
        if not mark:
            held.append(("all rows", error))
            if case.megatron:
                held.append(("Megatron family", error))
            if case.model.experts:
                held.append(("Mixtures of experts", error))
            held.append((f"{case.stack} on {case.gpu}", error))
            if case.source.startswith("Narayanan"):
                held.append(("Narayanan et al. 2021, A100", error))
    print("\nrows that no constant was fitted to:")
    print(table(sorted(held, key=lambda e: (e[0] not in ("all rows", "Megatron family", "Mixtures of experts"), e[0]))))


def left_out(pairs: list[tuple[Case, Outcome]], fitted: set[str]) -> None:
    """How far off a stack on a GPU would be of which no row is known: all its rows, fitted by the others alone."""
    print("\nif nothing were known of a stack on a GPU:")
    errors: list[tuple[str, float]] = []
    for own in sorted({(c.gpu, c.stack) for c, _ in pairs}):
        constants = constants_of([(c, o) for c, o in pairs if c.key in fitted and (c.gpu, c.stack) != own])
        for case, outcome in pairs:
            if (case.gpu, case.stack) == own:
                error = near(outcome, chosen(constants, case)) / case.step_s - 1
                errors += [("all rows", error), (f"{own[1]} on {own[0]}", error)]
    print(table(errors))


def write_rows(rows: list[Row], found: list[Case | str]) -> None:
    path = HERE / "validation_rows.csv"
    fitted = fitted_keys([c for c in found if isinstance(c, Case)])
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            [
                "key",
                "source",
                "model",
                "gpus",
                "gpu_type",
                "precision",
                "use",
                "why_or_assumed",
                "stack",
                "fitted",
                "plan",
            ]
        )
        for row, case in zip(rows, found, strict=True):
            head = [key_of(row), row["source"], row["model"], row["gpus"], row["gpu_type"], row["precision"]]
            if isinstance(case, str):
                writer.writerow([*head, "out", case, "", "", ""])
                continue
            p = case.plan
            plan = (f"tp{p.tp} pp{p.pp} cp{p.cp} ep{p.ep} dp{p.dp} zero{p.zero} {p.schedule} "
                    f"micro-batch {p.micro_batch} recompute {p.recompute} attention {p.attention}")  # fmt: skip
            writer.writerow([*head, "in", case.assumed, case.stack, "yes" if case.key in fitted else "no", plan])
    used = sum(isinstance(c, Case) for c in found)
    print(f"wrote {path}: {used} of {len(rows)} rows in")


if __name__ == "__main__":
    sys.exit(main())

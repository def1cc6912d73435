"""Programs x parallelism: what Etude reads from their recordings against what they must have done, by arithmetic.

    python benchmarks/conformance.py [--only NAME ...] [--keep FOLDER] [--markdown]
    python benchmarks/conformance.py --dry [--only NAME ...]     the same programs without numbers and without ranks

Each program (`conformance_programs.py`; those of other people's packages in `conformance_foreign.py`) is recorded with
`etude collect` on 2 or 4 gloo ranks, linked, checked and simulated. Communications (kind, bytes in and out, members or
ends) of every rank and step, and the matrix products with their FLOPs, are compared with `conformance_formulas.py`.
A program whose package is not installed says so. Exit code 1 if a row disagrees.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from conformance_formulas import PROGRAMS, RECORDED, WARMUP, Call, Program, Step

import etude
from etude.base.errors import EtudeError
from etude.capture.dry import DrySettings, dry_program
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.store import columns
from etude.surface.cli import main as etude_main

HERE = Path(__file__).resolve().parent
PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm"))
LIGHT = "light window"
"""What `check` says of a light window whose steps do something else is about times, not about what the program did."""
ANSWERS = {"ep": {"received": 8.0}}
"""What programs are told that decide by numbers: how many rows come from each rank."""
STEPS_RECORDED = ("--warmup", WARMUP, "--steps", RECORDED)
COLUMNS = ("program", "ranks", "communications of a step, all ranks", "found", "products", "check", "simulated step")


@dataclass
class Row:
    """What became of a program."""

    program: Program
    wanted: list[Counter[Call]] = field(default_factory=list)
    """Of one step, by rank."""
    found: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    products: int = 0
    clean: str = ""
    step_ns: int = 0
    missing: str = ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="What Etude reads from recordings against arithmetic.")
    parser.add_argument("--only", action="append", choices=[p.name for p in PROGRAMS], help="this program; repeatable")
    parser.add_argument("--keep", type=Path, help="folder of recordings; what is there is compared again")
    parser.add_argument("--dry", action="store_true", help="run them as `etude collect --dry` does, and record nothing")
    parser.add_argument("--markdown", action="store_true", help="the table as docs/conformance.md has it")
    asked = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as made:
        for program in PROGRAMS:
            if not asked.only or program.name in asked.only:
                tries = tried_dry if asked.dry else tried
                rows.append(tries(program, (asked.keep or Path(made)) / program.name))
                print(f"{program.name}: {'; '.join(rows[-1].problems) or rows[-1].missing or 'agrees'}", flush=True)
    print()
    print("\n".join(markdown(rows) if asked.markdown else plain(rows)))
    bad, there = sum(bool(row.problems) for row in rows), sum(not row.missing for row in rows)
    print(f"\n{there - bad} of {there} programs agree; {len(rows) - there} not installed")
    return 1 if bad else 0


def tried(program: Program, folder: Path) -> Row:
    row = Row(program)
    if program.needs and importlib.util.find_spec(program.needs) is None:
        row.missing = f"{program.needs} is not installed"
        return row
    if not any(folder.glob("*.manifest.json")) and (problem := recorded(command_of(program), folder)):
        row.problems.append(problem)
        return row
    try:
        job = etude.open(folder)
    except Exception as problem:
        row.problems.append(f"not linked: {problem}")
        return row
    compare(row, job)
    counted(row, folder)
    judged(row, folder)
    return row


def tried_dry(program: Program, folder: Path) -> Row:
    row = Row(program)
    if program.needs and importlib.util.find_spec(program.needs) is None:
        row.missing = f"{program.needs} is not installed"
        return row
    command = ["python", *command_of(program)[1:]]
    steps = RECORDED if program.optimizers else 0
    settings = DrySettings(world=program.ranks, warmup=WARMUP, steps=steps, answers=ANSWERS.get(program.name, {}))
    try:
        job = dry_program(command, name=program.name, settings=settings).job
    except EtudeError as problem:
        row.problems.append(str(problem))
        return row
    compare(row, job)
    folder.mkdir(parents=True)
    columns.write_job(job, folder)
    judged(row, folder, linked=True)
    return row


def command_of(program: Program) -> list[str]:
    return [sys.executable, str(HERE / "conformance_programs.py"), str(program.ranks), program.name]


def recorded(program: Sequence[str], folder: Path, steps: Sequence[Any] = STEPS_RECORDED) -> str:
    """Records the command of a program; says what went wrong."""
    command = [sys.executable, "-m", "etude", "collect", "-o", folder, *steps, "--", *program]
    paths = os.pathsep.join([str(HERE.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run([str(word) for word in command], env=variables, capture_output=True, text=True)
    told = [line for line in done.stderr.splitlines() if line.startswith("etude collect: ")]
    if done.returncode:
        return f"the program failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    return "; ".join(line.removeprefix("etude collect: ") for line in told[:-1])


def compare(row: Row, job: Job) -> None:
    """Every step of every rank against the formula."""
    if job.ranks.tolist() != list(range(row.program.ranks)):
        row.problems.append(f"ranks are {job.ranks.tolist()}")
        return
    for rank in job.ranks.tolist():
        wanted = row.program.formula(rank)
        calls = Counter(wanted.calls)
        row.wanted.append(calls)
        row.products += len(wanted.products)
        for step, found in steps_of(job, rank):
            where = f"rank {rank}" + (f" step {step}" if step != UNKNOWN else "")
            seen = Counter(found.calls)
            row.found.update(call.kind for call in found.calls)
            row.problems += [f"{where}: {n} x {shown(c)} more than expected" for c, n in (seen - calls).items()]
            row.problems += [f"{where}: {n} x {shown(c)} not found" for c, n in (calls - seen).items()]
            if Counter(found.products) != Counter(wanted.products):
                counts = f"{len(found.products)} of {sum(found.products):,} FLOPs"
                row.problems.append(
                    f"{where}: products are {counts}, expected {len(wanted.products)} of {sum(wanted.products):,}"
                )


def counted(row: Row, folder: Path) -> None:
    """A step of the recording is an iteration of the program: all of its optimizers step, each once."""
    wanted = [row.program.optimizers] * RECORDED if row.program.optimizers else None
    for place in sorted(folder.glob("*.manifest.json")):
        found = json.loads(place.read_text())["steps"]["optimizer_steps"]
        if found != wanted:
            row.problems.append(f"{place.name}: optimizers stepped {found} times, expected {wanted}")


def shown(call: Call) -> str:
    return f"{call.kind} {call.in_bytes:,} B to {call.out_bytes:,} B of {call.ranks}"


def steps_of(job: Job, rank: int) -> Iterator[tuple[int, Step]]:
    """Communications and products of each recorded step; of all there is where there are no steps."""
    trace = job.trace(rank)
    communications = np.isin(trace.kind, (Kind.SEND, Kind.RECV, Kind.COLL))
    products = product_flops(job, rank)
    numbers = sorted({int(n) for n in trace.step} - {UNKNOWN}) or [UNKNOWN]
    for number in numbers:
        inside = trace.step == number
        calls = [call_of(job, rank, i) for i in np.flatnonzero(communications & inside).tolist()]
        yield number, Step(calls, [flops for i, flops in products.items() if inside[i]])


def call_of(job: Job, rank: int, i: int) -> Call:
    trace = job.trace(rank)
    sizes = int(trace.in_bytes[i]), int(trace.out_bytes[i])
    if trace.kind[i] != Kind.COLL:
        peers = np.append(job.peer_slots(rank), -1)
        return Call(Kind(int(trace.kind[i])).name, *sizes, (int(peers[trace.src[i]]), int(peers[trace.dst[i]])))
    slot = int(trace.group[i])
    members = job.groups.ranks(int(job.group_slots(rank)[slot])) if slot >= 0 else None
    return Call(
        Collective(int(trace.collective[i])).name, *sizes, tuple(members.tolist() if members is not None else ())
    )


def product_flops(job: Job, rank: int) -> dict[int, int]:
    """FLOPs of every matrix product, wherever below its operator they lie. Of a DTensor's, which calls that of the
    rank's own part, the inner one counts; one that recomputation breaks off has done nothing."""
    trace = job.trace(rank)
    found = {i: 0 for i in range(len(trace)) if trace.text("name", i) in PRODUCTS}

    def product_above(i: int) -> int:
        while i >= 0 and i not in found:
            i = int(trace.parent[i])
        return i

    outer = {product_above(int(trace.parent[i])) for i in found}
    for i in np.flatnonzero(trace.flops != UNKNOWN).tolist():
        if (product := product_above(i)) >= 0:
            found[product] += int(trace.flops[i])
    return {i: flops for i, flops in found.items() if flops and i not in outer}


def judged(row: Row, folder: Path, *, linked: bool = False) -> None:
    """`etude link`, `check` and `simulate` of the recording."""
    if not linked and told(["link", str(folder), "-o", str(folder) + ".job", "--force"])[0]:
        row.problems.append("not linked")
    _, checked = told(["check", str(folder), "--json"])
    listed = [finding for finding in checked["findings"] if LIGHT not in finding["what"]]
    row.clean = "not clean" if listed else "clean"
    row.problems += [f"check: {finding['severity']}: {finding['what']}" for finding in listed]
    code, simulated = told(["simulate", str(folder), "--system", "dgx-h100", "--json"])
    if code:
        row.problems.append("not simulated")
        return
    row.step_ns = simulated.get("step_ns") or simulated["makespan_ns"]


def told(command: Sequence[str]) -> tuple[int, Any]:
    """(exit code, what was printed as JSON)."""
    out, talk = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(talk):
        code = etude_main(list(command))
    with contextlib.suppress(json.JSONDecodeError):
        return code, json.loads(out.getvalue())
    return code, {}


def by_kind(row: Row) -> list[str]:
    """Counts and bytes of a step by kind, of all ranks."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for wanted in row.wanted:
        for call, count in wanted.items():
            counts[call.kind] += count
            sizes[call.kind] += count * call.in_bytes
    return [f"{counts[kind]:,} {kind.lower()} {sizes[kind]:,} B" for kind in sorted(counts)]


def cells(row: Row) -> list[str]:
    program = row.program
    if row.missing:
        return [program.says, str(program.ranks), row.missing, "", "", "", ""]
    step = f"{row.step_ns / 1e6:.1f} ms" if row.step_ns else "no"
    same = "disagrees" if row.problems else "the same"
    return [program.says, str(program.ranks), ", ".join(by_kind(row)), same, f"{row.products:,}", row.clean, step]


def markdown(rows: Sequence[Row]) -> list[str]:
    lines = [COLUMNS, ("---", "---:", "---", "---", "---:", "---", "---:"), *map(cells, rows)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def plain(rows: Sequence[Row]) -> list[str]:
    table = [COLUMNS, *map(cells, rows)]
    widths = [max(len(line[k]) for line in table) for k in range(len(COLUMNS))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in table]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

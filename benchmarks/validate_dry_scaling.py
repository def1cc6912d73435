"""Record one process, predict several: gloo programs on this host against their real runs.

    python benchmarks/validate_dry_scaling.py [--only NAME ...] [--runs N] [--keep FOLDER]

Each program of `scaling_programs.py` is recorded with one process (`etude collect`). From that recording alone, runs of
1, 2 and 4 processes are predicted by `etude predict --program --times-of`, which runs them without numbers as `etude
collect --dry` does and simulates that job. Then they are really recorded with as many processes, and run again without
a profiler, where the program takes its own time.

- Communications of every rank (kind, bytes, members, order) must be those of the recording: exit code 1 if not.
- The step is printed beside the measured one, and held to nothing. The host is a system file: its link is that of a
  gloo all-reduce of two processes, measured with `etude generate micro` and `etude replay communication`. Processes are
  predicted as if each had a core, and gloo none of it; `a core` says how many there are of them.

Other work on the host makes steps longer: of N recordings of one process that with the shortest steps is taken, and of
N runs the shortest median of steps. `load` is the most that others and we asked of the cores during the runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from conformance import HERE, recorded, told
from validate_dry_programs import Subject, calls, communications

import etude
from etude.base.parameters import ask
from etude.steps.asked.program import PredictProgram, predicted_program, program_inputs
from etude.steps.program import ProgramStep

PROGRAMS = (
    ("ddp", "DDP, two micro-batches", ""),
    ("fsdp2", "FSDP2", ""),
    ("tp", "tensor parallelism", ""),
    ("one_f_one_b", "a pipeline, 1F1B, a stage each", ""),
    ("gpt2", "GPT-2 of `transformers`, DDP", "transformers"),
)
WORLDS = (1, 2, 4)
CORES = os.cpu_count() or 1
STEPS = 3
"""That are recorded."""
FIRST = 5
"""Steps of a run that are not timed."""
SMALL, LARGE = 4_000, 16_000_000
"""Bytes of all-reduces that tell the latency and the bandwidth of a link."""


class Measured(NamedTuple):
    """Steps of a program without a profiler."""

    medians_ns: list[float]
    load: float

    @property
    def step_ns(self) -> float:
        return min(self.medians_ns)


# -- the host as a system ----------------------------------------------------------------------------------------------


def host_system(folder: Path) -> Path:
    """The system file of this host. A ring of two takes two steps for an all-reduce, and sends every byte once. The
    rates of a core are assumed: by them operators scale to sizes that were not recorded."""
    small_ns, large_ns = (_all_reduce_ns(folder / f"micro.{size}", size) for size in (SMALL, LARGE))
    latency_ns, bandwidth = small_ns / 2, LARGE / max(large_ns - small_ns, 1)
    place = folder / "host.yaml"
    place.write_text(
        f"""name: this-host
device: {{name: core, cpu: true, peak: {{fp32: 80G}}, memory: 16GB, memory_bandwidth: 10GB/s}}
levels:
  - {{name: gloo, kind: switch, size: 2, bandwidth: {bandwidth:.3f}GB/s, latency: {latency_ns / 1000:.0f}us}}
"""
    )
    print(f"gloo on this host: {bandwidth:.2f} GB/s, {latency_ns / 1000:.0f} us; {CORES} cores")
    return place


def _all_reduce_ns(job: Path, size: int) -> int:
    """The fastest of ten."""
    _command("generate", "micro", "all_reduce", "--ranks", 2, "--bytes", size, "--force", "-o", job)
    return min(_command("replay", "communication", job, "--json")["step_ns"]["iterations"])


def _command(*words: Any) -> Any:
    """What a command of Etude prints as JSON."""
    code, found = told([str(word) for word in words])
    if code:
        sys.exit(f"etude {shlex.join(map(str, words))}: exit code {code}")
    return found


# -- a program ---------------------------------------------------------------------------------------------------------


def command_of(name: str, world: int) -> list[str]:
    return [sys.executable, str(HERE / "scaling_programs.py"), str(world), name]


def quietest(name: str, folder: Path, runs: int) -> Path:
    """A recording of one process: of several, that whose steps without a profiler were shortest."""
    found = {}
    for number in range(runs):
        place = folder / f"{name}.{number}"
        if not any(place.glob("*.manifest.json")):
            _record(name, 1, place)
        manifest = json.loads(next(place.glob("*.manifest.json")).read_text())
        found[place] = manifest["steps"]["unprofiled"]["step_ns"]
    return min(found, key=lambda place: found[place])


def _record(name: str, world: int, folder: Path) -> None:
    problem = recorded(command_of(name, world), folder, ("--steps", STEPS))
    if problem:
        sys.exit(f"{name}, {world} processes: {problem}")


def measured(name: str, world: int, folder: Path, runs: int) -> Measured:
    medians, load = [], 0.0
    for number in range(runs):
        place = folder / f"{name}.{world}.{number}.steps.json"
        variables = os.environ | {"OMP_NUM_THREADS": "1", "STEP_TIMES": str(place)}
        subprocess.run(command_of(name, world), env=variables, check=True, capture_output=True)
        ends = json.loads(place.read_text())[FIRST:]
        medians.append(statistics.median(end - begin for begin, end in itertools.pairwise(ends)))
        load = max(load, os.getloadavg()[0])
    return Measured(medians, load)


def predicted(name: str, world: int, recording: Path, system: Path) -> ProgramStep:
    """What `etude predict --program ... --world N --system host.yaml --times-of RECORDING` does."""
    command = shlex.join(command_of(name, world))
    given = {"program": command, "world": world, "system": str(system), "times_of": str(recording)}
    return predicted_program(program_inputs(ask(PredictProgram, given)))


def compared(name: str, step: ProgramStep, real: Path) -> Subject:
    """What the processes communicate, dry and recorded."""
    theirs, ours = etude.open(real), step.program.job
    subject = Subject(name, "", len(ours), [])
    for rank in range(len(ours)):
        communications(subject, rank, calls(theirs, rank), calls(ours, rank))
    return subject


class Row(NamedTuple):
    """A program with so many processes."""

    says: str
    subject: Subject
    real: Measured
    step_ns: int

    @property
    def error(self) -> float:
        return self.step_ns / self.real.step_ns - 1

    def __str__(self) -> str:
        world, medians = self.subject.ranks, self.real.medians_ns
        verdict = "differ" if self.subject.problems else "the same"
        cells = [
            f"{self.says:32}{world:>10}{world / CORES:>8g}{self.subject.counts['calls']:>7,} {verdict:9}",
            f"{self.real.step_ns / 1e6:>11.1f}{f'{min(medians) / 1e6:.1f} to {max(medians) / 1e6:.1f}':>17}",
            f"{self.step_ns / 1e6:>10.1f}{self.error:>+8.1%}{self.real.load:>6.1f}",
        ]
        return "\n".join(["".join(cells), *(f"    {problem}" for problem in self.subject.problems)])


def rows_of(name: str, says: str, system: Path, folder: Path, runs: int) -> Iterator[Row]:
    recording = quietest(name, folder, runs)
    for world in WORLDS:
        there = recording if world == 1 else folder / f"{name}.of{world}"
        if not any(there.glob("*.manifest.json")):
            _record(name, world, there)
        step = predicted(name, world, recording, system)
        yield Row(says, compared(name, step, there), measured(name, world, folder, runs), step.step_ns)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Programs of several processes from a recording of one.")
    parser.add_argument("--only", nargs="*", choices=[name for name, _, _ in PROGRAMS], help="these programs")
    parser.add_argument("--runs", type=int, default=3, help="recordings of one process, and runs of each size")
    parser.add_argument("--keep", type=Path, help="folder of recordings; those that are there are taken again")
    asked = parser.parse_args(arguments)
    done: list[Row] = []
    with tempfile.TemporaryDirectory() as made:
        folder = asked.keep or Path(made)
        folder.mkdir(exist_ok=True)
        system = host_system(folder)
        print(f"{'program':32}{'processes':>10}{'a core':>8}{'comms':>7}{'':10}{'measured ms':>11}{'runs':>17}"
              f"{'predicted':>10}{'error':>8}{'load':>6}")  # fmt: skip
        for name, says, needs in PROGRAMS:
            if asked.only and name not in asked.only:
                continue
            if needs and importlib.util.find_spec(needs) is None:
                print(f"{says:32}{needs} is not installed")
                continue
            for row in rows_of(name, says, system, folder, asked.runs):
                done.append(row)
                print(row, flush=True)
    for world in WORLDS:
        errors = [row.error for row in done if row.subject.ranks == world]
        print(f"{world} processes, {world / CORES:g} a core: median error "
              f"{statistics.median(map(abs, errors)):.1%}, from {min(errors):+.1%} to {max(errors):+.1%}")  # fmt: skip
    same = sum(not row.subject.problems for row in done)
    print(f"communications of {same} of {len(done)} runs are the same")
    return 0 if same == len(done) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

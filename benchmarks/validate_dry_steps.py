"""Steps of programs that were run without numbers, with the times of a recording at another batch, against the GPU.

    python benchmarks/validate_dry_steps.py recorded/b1 recorded/b2 dry/ [--only llama gpt2]

`recorded/bN` is what `record_foreign.py --batch N` wrote, `dry/` what `record_dry.py --steps 3` wrote (neither is in
the repository). Each program at one batch gets the times of its recording at the other one, as `etude predict --program
--times-of` gives them. The reference is the step without a profiler just before and just after the recording, timed in
the process of the recording at the other batch if that was made with `--beside`; where the two differ by more than 5%,
the error is relative to the nearer one. Also printed: the same with the recording of the batch itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import etude
from etude.capture.dry.memory import dry_memory
from etude.capture.dry.mesh import dry_job, uniform_mesh
from etude.capture.dry.program import DryProgram
from etude.capture.dry.recorded_rank import dry_trace, read_dry_rank
from etude.cost.stacks import open_stack
from etude.machine import open_system
from etude.steps.program import predict_program

DIFFER = 0.05


def program_of(name: str, batch: int, dry: Path) -> DryProgram | None:
    file = dry / f"{name}{'' if batch == 1 else f'-b{batch}'}.rank.json.gz"
    rank = read_dry_rank(file) if file.exists() else None
    if rank is None or rank.problem is not None or not rank.steps:
        return None
    trace = dry_trace(rank, 1)
    job = dry_job(name, uniform_mesh([], 1), {0: trace}, None)
    return DryProgram(job, {0: dry_memory(rank, "h200")}, ())


def error(predicted_ns: int, reference: dict[str, int]) -> float:
    sides = [reference["before_ns"], reference["after_ns"]]
    if abs(sides[0] / sides[1] - 1) > DIFFER:
        sides = [min(sides, key=lambda side: abs(predicted_ns - side))]
    return predicted_ns / statistics.mean(sides) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", type=Path, nargs=2)
    parser.add_argument("dry", type=Path)
    parser.add_argument("--only", nargs="*")
    given = parser.parse_args()
    system, stack = open_system("dgx-h200"), open_stack("eager")
    found: dict[str, list[float]] = {"other": [], "same": [], "formulas": []}
    for folder in sorted(path for path in given.recorded[0].iterdir() if path.is_dir()):
        if given.only and folder.name not in given.only:
            continue
        for batch in (1, 2):
            program = program_of(folder.name, batch, given.dry)
            if program is None:
                print(f"{folder.name:24} b{batch} stops where values decide, or has no optimizer")
                continue
            own, across = (json.loads((place / folder.name / "reference.json").read_text())
                           for place in (given.recorded[batch - 1], given.recorded[2 - batch]))  # fmt: skip
            beside = across.get("beside", {})
            reference = beside if beside.get("batch") == batch else own
            sides = f"{reference['before_ns'] / 1e6:7.2f} {reference['after_ns'] / 1e6:7.2f}"
            shown = []
            for what, place in (("other", given.recorded[2 - batch]), ("same", given.recorded[batch - 1])):
                times = etude.open(place / folder.name)
                step_ns = predict_program(program, system, stack=stack, times_of=times).step_ns
                off = error(step_ns, reference if what == "other" else own)
                found[what].append(off)
                shown.append(f"{what} batch {step_ns / 1e6:7.2f} {off:+7.1%}")
            step_ns = predict_program(program, system, stack=stack, host_ns=10_000).step_ns
            found["formulas"].append(error(step_ns, reference))
            print(f"{folder.name:24} b{batch} measured {sides} ms; {'; '.join(shown)}; "
                  f"formulas, 10 us {step_ns / 1e6:7.2f} {found['formulas'][-1]:+7.1%}", flush=True)  # fmt: skip
    for what, errors in found.items():
        if errors:
            print(f"{what:9} {len(errors)} steps: median {statistics.median(map(abs, errors)):.1%}, "
                  f"from {min(errors):+.1%} to {max(errors):+.1%}")  # fmt: skip


if __name__ == "__main__":
    main()

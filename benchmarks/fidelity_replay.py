"""How close a replay comes to the program that was recorded.

    python benchmarks/fidelity_replay.py fresh                 programs recorded here, one process
    python benchmarks/fidelity_replay.py fresh --ranks 2       the same with DistributedDataParallel over gloo, and
                                                               small programs with experts, FSDP2, DTensor
    ONLY="experts;FSDP2" ROUNDS=15 python benchmarks/fidelity_replay.py fresh --ranks 2
    python benchmarks/fidelity_replay.py captures ../shared/traces/torch_cpu
    python benchmarks/fidelity_replay.py generated             4 of the 64 ranks of a job that never ran, 4 processes
    python benchmarks/fidelity_replay.py measured ../shared/measured/replay RESULTS
    python benchmarks/fidelity_replay.py steps ../shared/measured/replay RESULTS

`fresh` records each program with `etude collect`'s recorder, plans it, and then takes turns: steps of the program
without a profiler, an iteration of the replay, and so on, each in processes of its own; medians are compared. Programs
that replay was not made with (`replay_programs.held_out`) count by themselves. `captures` plays every capture of a
folder. `measured` compares `RESULTS/NAME/replay.rank0.json`, which `python -m etude.replay` wrote on another machine,
with the step times in `steps.csv` and the sum of kernel times in the recording. `steps` compares what it printed, as
`RESULTS/NAME.json` or `RESULTS/NAME--OPTION.json`, with the step times alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import replay_turns

import etude
from etude.capture.ingest.runs import WantedTimes
from etude.run.replay import PlayerOptions, plan, play, play_together

ROUNDS = int(os.environ.get("ROUNDS", "31"))
"""Turns that count: on a shared machine a median of 15 is still a matter of luck."""
ONLY = {name for name in os.environ.get("ONLY", "").split(";") if name}
"""Names of programs of `fresh`, between semicolons; all without any."""
TELL = bool(os.environ.get("TELL"))
"""What the plan and the player say of the time between operators too."""
THEIRS = "param et_replay 0.5.0 on runs it can do: 12-58 s until ready, 340-1600 MB (stated, not measured here)"


# -- programs recorded here --------------------------------------------------------------------------------------------


def fresh(ranks: int) -> None:
    errors: dict[bool, list[tuple[float, ...]]] = {False: [], True: []}
    print(f"{'program':<20}{'program, ms':>12}{'replay, ms':>12}{'error':>8}{'of CPU time':>12}{'host fast':>11}"
          f"{'by time':>9}{'ready, s':>10}")  # fmt: skip

    def told(row: dict[str, Any]) -> None:
        clock, worked = row["ns"], row["cpu_ns"]
        error = 100 * (clock["replay"] / clock["program"] - 1)
        of_work = 100 * (worked["replay"] / worked["program"] - 1)
        fast = 100 * (clock["fast"] / clock["program"] - 1)
        errors[row["held_out"]].append((abs(error), abs(of_work), abs(fast)))
        print(f"{row['program']:<20}{clock['program'] / 1e6:>12.2f}{clock['replay'] / 1e6:>12.2f}{error:>+7.1f}%"
              f"{of_work:>+11.1f}%{fast:>+10.1f}%{100 * row['covered']:>8.1f}%{row['ready_s']:>10.1f}"
              f"{'  held out' * row['held_out']}", flush=True)  # fmt: skip
        if TELL:
            print(f"    {row['about']}", flush=True)

    replay_turns.fresh(ranks, ROUNDS, ONLY, told)
    for held_out, rows in errors.items():
        if rows:
            error, of_work, fast = (statistics.mean(each) for each in zip(*rows, strict=True))
            which = "held out" if held_out else "looked at before"
            print(f"{which}: mean error {error:.1f}% over {len(rows)} programs, of CPU time {of_work:.1f}%, "
                  f"with --host fast {fast:.1f}%")  # fmt: skip
    print(f"{ranks} processes, medians of {ROUNDS} turns, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


# -- captures and measurements -----------------------------------------------------------------------------------------


def captures(folder: Path, iterations: int) -> None:
    names = {m[1] for file in folder.iterdir() if (m := re.match(r"(.*)\.rank\d+\.kineto\.json", file.name))}
    print(f"{'capture':<20}{'ranks':>6}{'calls':>7}{'by time':>9}{'by count':>9}{'step, ms':>10}{'ready, s':>10}"
          f"{'MB':>6}  stand-ins")  # fmt: skip
    for name in sorted(names):
        made = plan(etude.open(folder / name, times=WantedTimes(estimate=False)))
        options = PlayerOptions(iterations=iterations, warmup=1, device="cpu", threads=1)
        found = [play(made[0], options)] if len(made) == 1 else play_together(made, options)
        told = [one["coverage"] for one in found]
        lacking = {entry["name"] for one in told for entry in one["stand_ins"]}
        print(f"{name:<20}{len(made):>6}{len(made[0].calls.op):>7}{100 * min(t['time'] for t in told):>8.1f}%"
              f"{100 * min(t['count'] for t in told):>8.1f}%{max(f['step_ns']['replayed'] for f in found) / 1e6:>10.2f}"
              f"{max(f['ready_s'] for f in found):>10.1f}"
              f"{max(f['peak_rss_bytes'] for f in found) / 1e6:>6.0f}  {', '.join(sorted(lacking)) or '-'}",
              flush=True)  # fmt: skip
    print(THEIRS)


def generated(iterations: int) -> None:
    from etude.surface.cli import main as command

    with tempfile.TemporaryDirectory() as name:
        model, job = Path(name) / "tiny.yaml", Path(name) / "job"
        model.write_text("{layers: 4, hidden: 64, heads: 4, ffn: 128, vocab: 256, seq: 32, gated: true, tied: true}\n")
        command(["generate", str(model), "--gpus", "64", "--tp", "2", "--pp", "2", "--micro-batch", "1",
                 "--global-batch", "32", "-o", str(job)])  # fmt: skip
        began = time.perf_counter()
        made = plan(etude.open(job), [0, 1, 2, 3])
        found = play_together(made, PlayerOptions(iterations=iterations, warmup=1, device="cpu", threads=1))
    work, calls = (sum(len(table) for table in tables) for tables in (
        [p.stand_ins.kind for p in made], [p.comms.kind for p in made]))  # fmt: skip
    print(f"ranks 0-3 of 64: {work:,} pieces of work, {calls} communications, of which those inside the four are sent; "
          f"step {max(f['step_ns']['replayed'] for f in found) / 1e6:.1f} ms, "
          f"{time.perf_counter() - began:.1f} s in all, {sum(len(f['failures']) for f in found)} failures")  # fmt: skip


def measured(recordings: Path, results: Path) -> None:
    steps = {row["name"]: row for row in csv.DictReader((recordings / "steps.csv").open())}
    errors, sums = [], []
    print(
        f"{'program':<18}{'step, ms':>9}{'replay, ms':>12}{'error':>8}{'kernels, ms':>12}{'replay, ms':>12}{'error':>8}"
    )
    for name, row in steps.items():
        found = json.loads((results / name / "replay.rank0.json").read_text())
        wanted = float(row["loop_step_wall_ns"])
        errors.append(100 * (found["step_ns"]["replayed"] / wanted - 1))
        recorded, again = (kernels_ns(etude.open(place)) for place in (recordings / name, results / name))
        sums.append(100 * (again / recorded - 1))
        print(f"{name:<18}{wanted / 1e6:>9.2f}{found['step_ns']['replayed'] / 1e6:>12.2f}{errors[-1]:>+7.1f}%"
              f"{recorded / 1e6:>12.2f}{again / 1e6:>12.2f}{sums[-1]:>+7.1f}%")  # fmt: skip
    print(f"mean error of steps {statistics.mean(map(abs, errors)):.1f}%, of sums of kernel times "
          f"{statistics.mean(map(abs, sums)):.1f}%")  # fmt: skip


def steps_alone(recordings: Path, results: Path) -> None:
    rows = {row["name"]: float(row["loop_step_wall_ns"]) for row in csv.DictReader((recordings / "steps.csv").open())}
    errors: dict[str, list[float]] = {}
    print(f"{'program':<18}{'option':<16}{'step, ms':>9}{'replay, ms':>12}{'error':>8}")
    for name, wanted in rows.items():
        for file in sorted((*results.glob(f"{name}.json"), *results.glob(f"{name}--*.json"))):
            option = file.stem.removeprefix(name) or "-"
            took = json.loads(file.read_text())["step_ns"]["replayed"]
            errors.setdefault(option, []).append(100 * (took / wanted - 1))
            print(f"{name:<18}{option:<16}{wanted / 1e6:>9.2f}{took / 1e6:>12.2f}{errors[option][-1]:>+7.1f}%")
    for option, found in errors.items():
        print(f"{option}: mean error {statistics.mean(map(abs, found)):.1f}% over {len(found)} programs")


def kernels_ns(job: etude.Job) -> float:
    """Sum of the times of all kernels in a step."""
    trace = job.traces[0]
    assert job.timing is not None
    start, end = job.timing.block(0)
    steps = len(set(trace.step[trace.step > 0].tolist())) or 1
    return float((end - start)[trace.cpu == 0].sum()) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fresh", "captures", "generated", "measured", "steps"))
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=5)
    asked = parser.parse_args()
    if asked.what == "fresh":
        fresh(asked.ranks)
    elif asked.what == "captures":
        captures(asked.folders[0], asked.iterations)
    elif asked.what == "generated":
        generated(asked.iterations)
    elif asked.what == "steps":
        steps_alone(*asked.folders)
    else:
        measured(*asked.folders)


if __name__ == "__main__":
    main()

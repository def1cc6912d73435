"""What of the gaps between operators in a recording of a CPU without light steps is time of the program.

    python benchmarks/fit_host_cpu.py

Programs are recorded here; then a step of each without the profiler and a replay with `--host fast` take turns. What
the replay lacks is compared with `pauses_ns` of `between.py`, whose first two numbers are tried on a grid: least
squares of errors relative to the step. Times are those of the process's own work, so that others on the machine count
little. Programs of `record_host.py` and `replay_programs.py`, those on DTensor and FSDP2 in a group of one; three
programs of `record_host.py` are held out.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from unittest import mock

import record_host
import replay_programs
import torch
import torch.distributed as dist

import etude
from etude.run.replay import between, plan, recorded
from etude.run.replay.communication.calls import Communicator
from etude.run.replay.player import Player

ROUNDS = 7
GRID = ((4, 6, 8, 10, 12, 14), (0, 0.5, 1, 1.5, 2, 3))
NAMES = ("GAP_UNITS", "EVENT_UNITS")


def take_turns(turns: dict[str, Callable[[], None]]) -> dict[str, int]:
    """Medians of the program's step and of its replays, which take turns and take turns in being the first; times on
    the clock, and of the process's own work, which other processes of the machine do not lengthen."""
    found: dict[str, list[int]] = {}
    both = list(turns.items())
    gc.collect()
    gc.freeze()
    for number in range(ROUNDS + 2):
        for which, one in both if number % 2 else both[::-1]:
            gc.collect()
            gc.disable()
            with torch.set_grad_enabled(which == "program"):
                begin, worked = time.perf_counter_ns(), time.process_time_ns()
                one()
                took, worked = time.perf_counter_ns() - begin, time.process_time_ns() - worked
            gc.enable()
            if number >= 2:
                found.setdefault(f"{which}_ns", []).append(took)
                found.setdefault(f"{which}_cpu_ns", []).append(worked)
    return {name: int(statistics.median(times)) for name, times in found.items()}


def row(step: Callable[[], None], run: Path) -> dict[str, object]:
    replay_programs.record(step, run)
    with mock.patch.object(recorded, "pauses_ns", wraps=between.pauses_ns) as asked:
        program = plan(etude.open(run))[0]
    player = Player(program, "cpu", host="fast", comms=Communicator(program, [0], torch.device("cpu")))
    player.prepare()
    times = take_turns({"program": step, "fast": player.iteration})
    steps = program.about["steps"]
    return {"step": times["program_cpu_ns"], "fast": times["fast_cpu_ns"] / steps, "steps": steps,
            "gaps": asked.call_args.args}  # fmt: skip


def error(row: dict[str, object], numbers: tuple[float, ...]) -> float:
    with mock.patch.multiple(between, **dict(zip(NAMES, numbers, strict=True))):
        pauses = between.pauses_ns(*row["gaps"]).sum() / row["steps"]
    return 100 * ((row["fast"] + pauses) / row["step"] - 1)


def main() -> None:
    record_host.DEVICE = "cpu"
    torch.set_num_threads(1)
    rows: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
        here = replay_programs.programs() | replay_programs.spread(1)
        wanted = ("FSDP2", "tensor parallel", "experts", "small layers", "perceptron", "gpt, width 64")
        makers = {name: lambda name=name: replay_programs.training(*here[name]()) for name in wanted}
        others = (record_host.recommender, record_host.towers, record_host.autoencoder, record_host.decoder,
                  record_host.lstm)  # fmt: skip
        makers |= {one.__name__: lambda one=one: record_host.step_of(one()) for one in others}
        held = ("autoencoder", "decoder", "lstm")
        for name, make in makers.items():
            torch.manual_seed(0)
            rows[name] = row(make(), Path(folder) / name)
        dist.destroy_process_group()
    mine = [found for name, found in rows.items() if name not in held]
    best = min(product(*GRID), key=lambda numbers: sum(error(one, numbers) ** 2 for one in mine))
    inside = tuple(getattr(between, name) for name in NAMES)
    print(f"best here: {dict(zip(NAMES, best, strict=True))}; in use: {dict(zip(NAMES, inside, strict=True))}")
    print(f"{'program':<18}{'step, ms':>9}{'host fast':>11}{'best here':>11}{'in use':>9}")
    errors: dict[str, list[tuple[float, ...]]] = {"fitted": [], "held out": []}
    for name, one in rows.items():
        told = (100 * (one["fast"] / one["step"] - 1), error(one, best), error(one, inside))
        errors["held out" if name in held else "fitted"].append(told)
        print(f"{name:<18}{one['step'] / 1e6:>9.2f}{told[0]:>+10.1f}%{told[1]:>+10.1f}%{told[2]:>+8.1f}%"
              f"{'  held out' * (name in held)}")  # fmt: skip
    for which, all_of in errors.items():
        means = [statistics.mean(map(abs, each)) for each in zip(*all_of, strict=True)]
        print(
            f"{which}: mean error {means[0]:.1f}% with --host fast, {means[1]:.1f}% best here, {means[2]:.1f}% in use"
        )


if __name__ == "__main__":
    main()

"""Programs and their replays that take turns, each in processes of its own, as they would run for a user.

`fresh` starts a process for each rank of the programs and another for each rank of the replays. A process waits for a
line of JSON that says what to do and answers with one.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import replay_programs


def known(ranks: int) -> dict[str, tuple[replay_programs.Program, bool, bool]]:
    """Name -> program, whether it communicates by itself, whether it is held out."""
    found = {name: (make, False, False) for name, make in replay_programs.programs().items()}
    if ranks > 1:
        found |= {name: (make, True, False) for name, make in replay_programs.spread(ranks).items()}
    found |= {name: (make, False, True) for name, make in replay_programs.held_out().items()}
    if ranks > 1:
        found |= {name: (make, True, True) for name, make in replay_programs.spread_held_out(ranks).items()}
    return found


class Side:
    """The processes of one side: a rank each."""

    def __init__(self, role: str, ranks: int, folder: Path) -> None:
        command = [sys.executable, __file__, role, str(ranks), str(folder)]
        self._started = [
            subprocess.Popen([*command, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]

    def ask(self, *words: object) -> list[dict[str, Any]]:
        """What all of them answer."""
        for child in self._started:
            assert child.stdin is not None
            print(json.dumps(words), file=child.stdin, flush=True)
        return [self._answer(child) for child in self._started]

    def _answer(self, child: subprocess.Popen[str]) -> dict[str, Any]:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise SystemExit("a process failed")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        for child in self._started:
            assert child.stdin is not None
            child.stdin.close()
        for child in self._started:
            child.wait()


def fresh(ranks: int, rounds: int, only: set[str], told: Callable[[dict[str, Any]], None]) -> None:
    """`told` of each program: its name and `held_out`, medians of a step of `program`, `replay` and `fast` (the slowest
    rank on the clock, all ranks of CPU time), the least coverage, the longest time until ready."""
    with tempfile.TemporaryDirectory() as name:
        programs, replays = (Side(role, ranks, Path(name)) for role in ("program", "replay"))
        for program, (_, _, held_out) in known(ranks).items():
            if only and program not in only:
                continue
            programs.ask("record", program)
            ready = replays.ask("prepare", program)
            steps = ready[0]["steps"]
            turns = [(programs, "program"), (replays, "replay"), (replays, "fast")]
            clock: dict[str, list[float]] = {which: [] for _, which in turns}
            worked: dict[str, list[float]] = {which: [] for _, which in turns}
            for number in range(rounds + 2):
                for side, which in turns if number % 2 else turns[::-1]:
                    took = side.ask("turn", which, steps)
                    if number >= 2:
                        clock[which].append(max(one["ns"] for one in took) / steps)
                        worked[which].append(sum(one["cpu_ns"] for one in took) / steps)
            told({
                "program": program, "held_out": held_out,
                "ns": {which: statistics.median(times) for which, times in clock.items()},
                "cpu_ns": {which: statistics.median(times) for which, times in worked.items()},
                "covered": min(one["covered"] for one in ready), "ready_s": max(one["ready_s"] for one in ready),
                "about": ready[0]["about"], "peak_rss_bytes": max(one["peak_rss_bytes"] for one in ready),
            })  # fmt: skip
        programs.end()
        replays.end()


# -- one process -------------------------------------------------------------------------------------------------------


class Process:
    """What a process of a side holds."""

    def __init__(self, role: str, ranks: int, folder: Path, rank: int) -> None:
        import torch
        import torch.distributed as dist

        self.ranks, self.folder, self.rank = ranks, folder, rank
        torch.set_num_threads(1)
        torch.manual_seed(rank)
        if ranks > 1:
            store = dist.FileStore(str(folder / f"store-{role}"), ranks)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        self.turns: dict[str, Callable[[], None]] = {}

    def record(self, name: str) -> dict[str, Any]:
        import torch

        self.turns = {}
        make, by_itself, _ = known(self.ranks)[name]
        model, loss = make()
        data_parallel = self.ranks > 1 and not by_itself
        module = torch.nn.parallel.DistributedDataParallel(model) if data_parallel else model
        step = replay_programs.training(model, loss, module)
        replay_programs.record(step, self.folder / name)
        self.turns = {"program": step}
        return {}

    def prepare(self, name: str) -> dict[str, Any]:
        import resource

        import torch

        import etude
        from etude.run.replay import coverage, plan
        from etude.run.replay.communication.calls import Communicator
        from etude.run.replay.player import Player

        self.turns = {}
        began = time.perf_counter()
        run = self.folder / name
        program = plan(etude.open(run), [self.rank], recording=run)[0]
        several = self.ranks > 1
        comms = Communicator(program, list(range(self.ranks)), torch.device("cpu")) if several else None
        player = Player(program, "cpu", comms=comms)
        player.prepare()
        ready_s = time.perf_counter() - began
        fast = Player(program, "cpu", comms=comms, host="fast")
        fast.prepare()
        self.turns = {"replay": player.iteration, "fast": fast.iteration}
        return {
            "steps": program.about["steps"], "covered": coverage(program, player.failures)["time"], "ready_s": ready_s,
            "about": program.about["host"] | {
                "own_ns": round(player.own_rounds * player.round_ns), "round_ns_here": player.round_ns,
                "new_pages": player.new_pages, "calls": len(program.calls.op),
            },
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }  # fmt: skip

    def turn(self, which: str, steps: int) -> dict[str, Any]:
        import torch
        import torch.distributed as dist

        one, times = self.turns[which], steps if which == "program" else 1
        gc.collect()
        gc.disable()
        if self.ranks > 1:
            dist.barrier()
        with torch.set_grad_enabled(which == "program"):
            begin, worked = time.perf_counter_ns(), time.process_time_ns()
            for _ in range(times):
                one()
            took, worked = time.perf_counter_ns() - begin, time.process_time_ns() - worked
        gc.enable()
        return {"ns": took, "cpu_ns": worked}


def main() -> None:
    role, ranks, folder, rank = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is not an answer
    process = Process(role, ranks, folder, rank)
    for line in sys.stdin:
        what, *words = json.loads(line)
        print(json.dumps(getattr(process, what)(*words)), file=answers, flush=True)
    if ranks > 1:
        import torch.distributed as dist

        dist.destroy_process_group()


if __name__ == "__main__":
    main()

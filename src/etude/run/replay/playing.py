"""Plays the program of one rank and reports the result. Needs only the standard library, NumPy and PyTorch."""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.run.replay.apart import play_apart
from etude.run.replay.compiled import check_code
from etude.run.replay.covering import coverage
from etude.run.replay.device_failures import DeviceFailedError, to_leave_out
from etude.run.replay.needs import check_memory
from etude.run.replay.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerOptions:
    """How a program is played."""

    iterations: int = 10
    warmup: int = 3
    only: str = ""
    """`compute`: no communication; empty: both."""
    speed: str = "flat-out"
    """`recorded`: no call is made before its recorded moment."""
    device: str = ""
    """`cpu`, `cuda`, `cuda:1`; empty: CUDA if available."""
    threads: int = 0
    """Threads of an operator on a CPU; 0: as recorded, at most the number of cores; if unknown, PyTorch's default."""
    host: str = ""
    """`recorded`: the host takes its recorded time, less the profiler's share; `fast`: only the time it needs. Empty:
    `recorded` if a recording is played on the kind of device on which it was made."""
    cuda_graph: bool = False
    """Whether all steps of an iteration are launched as one CUDA graph."""
    trust_code: bool = False
    """Whether compiled code that comes with a program may run although someone else recorded it."""
    without: dict[str, str] = field(default_factory=dict)
    """Operators that are played as stand-ins although they may be called, and why."""
    profile: bool = True
    """Whether one more iteration is recorded by the profiler, if there is a folder for results."""

    def __post_init__(self) -> None:
        if self.host and self.speed == "recorded":
            hint = "leave out --speed recorded, or --host"
            raise UsageError("calls at their recorded times leave no host time to choose", where="--host", hint=hint)
        if self.cuda_graph and (self.host == "recorded" or self.speed == "recorded"):
            hint = "use --host fast and --speed flat-out"
            raise UsageError("a CUDA graph cannot have host time between its calls", where="--cuda-graph", hint=hint)


def play(
    program: Program,
    options: PlayerOptions | None = None,
    *,
    comms: Any = None,
    out: Path | None = None,
    done: Callable[[int], None] = lambda number: None,
    barrier: Callable[[bool], object] = lambda some: None,
) -> dict[str, Any]:
    """Plays a program in this process and returns the results. Writes the results and a trace of one iteration to
    `out`, as `replay.rankN.json` and `replay.rankN.kineto.json.gz`. If the device fails, another process plays it once
    more, without the operators that failed."""
    chosen = options or PlayerOptions()
    check_code(program.about, trusted=chosen.trust_code)
    try:
        return _play(program, chosen, comms, out, done, barrier)
    except DeviceFailedError as problem:
        if comms is not None or chosen.without:
            raise
        return play_apart(program, asdict(chosen) | {"without": to_leave_out(program, problem)}, out)


def _play(
    program: Program,
    chosen: PlayerOptions,
    comms: Any,
    out: Path | None,
    done: Callable[[int], None],
    barrier: Callable[[bool], object],
) -> dict[str, Any]:
    began = time.perf_counter()
    torch = _torch()
    if threads := chosen.threads or min(program.about.get("threads") or 0, os.cpu_count() or 1):
        torch.set_num_threads(threads)
    _check_device(torch, chosen.device)
    if comms is None and not (chosen.device or ("cuda" if torch.cuda.is_available() else "")).startswith("cuda"):
        check_memory([program], communication=False)
    from etude.run.replay.player import Player

    player = Player(
        program,
        chosen.device,
        comms=comms,
        paced=chosen.speed == "recorded",
        host=chosen.host,
        cuda_graph=chosen.cuda_graph,
        without=chosen.without,
    )
    player.prepare()
    ready_s = time.perf_counter() - began
    played = player.run(chosen.iterations, chosen.warmup, done, barrier)
    steps = [sum(iteration) // len(iteration) for iteration in played.step_ns]
    found = {
        "rank": program.about["rank"],
        "step_ns": {
            "recorded": program.about.get("recorded_step_ns"),
            "replayed": int(statistics.median(steps)),
            "unprofiled": program.about.get("unprofiled_step_ns"),
        },
        "coverage": coverage(program, {row: failure.why for row, failure in player.failures.items()}),
        "iterations": len(played.step_ns),
        "steps_ns": steps,
        "failures": sorted({f"{f.op}: {f.why}" for f in player.failures.values()}),
        "notes": dict.fromkeys([*player.notes, *program.about.get("notes", ())], 1),
        "device": str(player.device),
        "threads": torch.get_num_threads(),
        "host": {"time": player.host, "graphs": len(player.parts)} | program.about.get("host", {}),
        "ready_s": ready_s,
        "cpu_s": played.cpu_s,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "options": asdict(chosen),
    }
    if out is not None:
        if chosen.profile:
            player.profile(out / f"replay.rank{program.about['rank']}.kineto.json.gz", barrier)
        (out / f"replay.rank{found['rank']}.json").write_text(json.dumps(found))
    return found


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise UsageError("a replay needs PyTorch, which is not installed", hint='pip install "etude[torch]"') from None
    return torch


def _check_device(torch: Any, device: str) -> None:
    if not device or device == "cpu":
        return
    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdigit()):
        raise UsageError(f"unknown device `{device}`", where="--device", hint="cpu, cuda, cuda:1")
    if not torch.cuda.is_available() or int(number or 0) >= torch.cuda.device_count():
        here = torch.cuda.device_count() if torch.cuda.is_available() else 0
        raise UsageError(
            f"`{device}` is not available: this machine has {here} CUDA devices", where="--device", hint="--device cpu"
        )


def summary(results: list[dict[str, Any]], ranks: dict[str, Any]) -> dict[str, Any]:
    """The results of all ranks together: a step takes as long as on the slowest rank."""
    slowest = max(results, key=lambda one: one["step_ns"]["replayed"])
    recorded = [one["step_ns"]["recorded"] for one in results if one["step_ns"]["recorded"]]
    unprofiled = [one["step_ns"]["unprofiled"] for one in results if one["step_ns"]["unprofiled"]]
    return {
        "step_ns": {
            "recorded": max(recorded, default=None),
            "replayed": slowest["step_ns"]["replayed"],
            "unprofiled": max(unprofiled, default=None),
        },
        "coverage": {"time": ranks["time"], "count": ranks["count"]},
        "stand_ins": ranks["stand_ins"],
        "iterations": min(one["iterations"] for one in results),
        "ranks": [one["rank"] for one in results],
        "ready_s": max(one["ready_s"] for one in results),
        "cpu_s": max(one["cpu_s"] for one in results),
        "peak_rss_bytes": max(one["peak_rss_bytes"] for one in results),
        "failures": sorted({failure for one in results for failure in one["failures"]}),
        "notes": sorted({note for one in results for note in one["notes"]}),
    }


def environment_rank() -> tuple[int, int]:
    """(rank, world size) as set by `torchrun`; (0, 1) without it."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

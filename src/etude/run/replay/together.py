"""Plays the ranks of a job together, each in its own process, with computation and communication as in the graph."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from etude.base.errors import EtudeError, UsageError
from etude.run.replay.communication.processes import processes_run, spread_out, under_torchrun
from etude.run.replay.communication.rehearsal import rehearse
from etude.run.replay.communication.shrinking import shrink
from etude.run.replay.needs import check_memory
from etude.run.replay.playing import PlayerOptions
from etude.run.replay.program import Program


def play_together(
    programs: Sequence[Program],
    options: PlayerOptions | None = None,
    *,
    out: Path | None = None,
    backend: str = "gloo",
    timeout_s: float = 300.0,
    tick: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """Returns the results of all ranks. Groups lose the members that have no process; deadlocks and mismatches are
    found before anything starts. Under `torchrun` this process is one of them; otherwise all are started here, and once
    more if a device fails, without the operators that failed."""
    if find_spec("torch") is None:
        raise UsageError("a replay needs PyTorch, which is not installed", hint='pip install "etude[torch]"')
    ranks = [int(program.about["rank"]) for program in programs]
    fitted = [shrink(program, ranks) for program in programs]
    rehearse(fitted)
    if not (options or PlayerOptions()).device.startswith("cuda") and backend == "gloo" and not spread_out():
        check_memory(fitted)
    told: dict[str, Any] = {
        "player": asdict(options or PlayerOptions()),
        "ranks": ranks,
        "backend": backend,
        "timeout_s": timeout_s,
        "out": str(out.resolve()) if out is not None else "",
    }
    joined = under_torchrun()
    if joined is None and backend == "nccl":  # before any process is started
        from etude.run.replay.communication.calls import check_backend

        check_backend(backend, len(programs))
    if joined is not None:
        return _joined(fitted, *joined, told)
    with tempfile.TemporaryDirectory(prefix="etude-replay-") as notes:
        try:
            return _started(fitted, told | {"failed": notes}, tick)
        except EtudeError:
            without = _failed(Path(notes))
            if not without or told["player"]["without"]:
                raise
        return _started(fitted, told | {"failed": "", "player": told["player"] | {"without": without}}, tick)


def _started(
    programs: Sequence[Program], told: dict[str, Any], tick: Callable[[], None] | None
) -> list[dict[str, Any]]:
    with processes_run(programs, told, tick, "etude.run.replay.worker") as folder:
        return [json.loads((folder / f"{process}.json").read_text()) for process in range(len(programs))]


def _failed(folder: Path) -> dict[str, str]:
    """The operators with which devices of the processes failed, and why."""
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*.json")):
        found |= json.loads(file.read_text())
    return found


def _joined(programs: Sequence[Program], process: int, processes: int, told: dict[str, Any]) -> list[dict[str, Any]]:
    from etude.run.replay.worker import run

    if processes != len(programs):
        hint = f"--nproc-per-node {len(programs)}, or as many ranks with --ranks"
        raise UsageError(f"{len(programs)} ranks, but torchrun has {processes} processes", where="--ranks", hint=hint)
    _, found = run(programs[process], process, told | {"gather": True}, time.perf_counter())
    everyone: list[dict[str, Any]] = found["everyone"]
    return everyone

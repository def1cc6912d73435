"""Starts the processes of a replay on this machine, and ends all of them if one fails or on Ctrl-C.

The processes meet through a file in their own folder, so no port is needed and two replays do not interfere.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from etude.base import errors
from etude.base.errors import EtudeError, UsageError
from etude.base.files import python_path
from etude.kernels.arrays import I64
from etude.run.replay.needs import check_memory
from etude.run.replay.program import Program, save

_PATIENCE_S: Final = 5.0
_POLL_S: Final = 0.02
INTERRUPTED: Final = (130, -signal.SIGINT)
"""Exit codes of a process that Ctrl-C ended before it had any result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOptions:
    """How programs are played."""

    backend: str = "gloo"
    iterations: int = 10
    warmup: int = 1
    host: bool = False
    """Whether the time between calls is as recorded."""
    verify: bool = True
    """Whether the calls of the last iteration are compared with the program."""
    timeout_s: float = 120.0
    """Time limit of a call, after which it has failed."""


@dataclass(frozen=True, slots=True, eq=False)
class ProcessResult:
    """The result of one process."""

    rank: int
    wall_ns: I64
    start_ns: I64
    end_ns: I64
    about: dict[str, Any]
    """notes, verified, ready_s, peak_rss_bytes, torch, device."""


def under_torchrun() -> tuple[int, int] | None:
    """(process, number of processes) if `torchrun` started this process, else None."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def spread_out() -> bool:
    """Whether processes of other machines take part."""
    return os.environ.get("LOCAL_WORLD_SIZE", "") != os.environ.get("WORLD_SIZE", "")


def play(
    programs: Sequence[Program], options: PlayOptions | None = None, *, tick: Callable[[], None] | None = None
) -> list[ProcessResult]:
    """Plays one program in each process. Returns the results in the order of the programs.

    Under `torchrun` this process is one of them and every process gets all results; otherwise they are started here.
    """
    chosen = options or PlayOptions()
    if find_spec("torch") is None:
        raise UsageError("a replay needs PyTorch, which is not installed", hint='pip install "etude[torch]"')
    if chosen.iterations < 1 or chosen.warmup < 0:
        given = f"{chosen.iterations} iterations and {chosen.warmup} warm-up iterations"
        raise UsageError(given, where="--iterations", hint="at least 1, and 0 or more")
    ranks = [int(program.about["rank"]) for program in programs]
    told = asdict(chosen) | {"ranks": ranks}
    joined = under_torchrun()
    if joined is not None:
        return _play_joined(programs, *joined, told)
    if chosen.backend == "gloo":
        check_memory(programs, compute=False)
    with processes_run(programs, told, tick, "etude.run.replay.communication.worker") as folder:
        return [_result(folder, process, rank) for process, rank in enumerate(ranks)]


def _play_joined(
    programs: Sequence[Program], process: int, processes: int, told: dict[str, Any]
) -> list[ProcessResult]:
    from etude.run.replay.communication.worker import run

    if processes != len(programs):
        hint = f"--nproc-per-node {len(programs)}, or as many ranks with --ranks"
        raise UsageError(f"{len(programs)} ranks, but torchrun has {processes} processes", where="--ranks", hint=hint)
    _, about = run(programs[process], process, told | {"gather": True}, time.perf_counter())
    return [
        ProcessResult(rank, arrays["wall_ns"], arrays["start_ns"], arrays["end_ns"], more)
        for rank, (arrays, more) in zip(told["ranks"], about["everyone"], strict=True)
    ]


@contextmanager
def processes_run(
    programs: Sequence[Program], told: dict[str, Any], tick: Callable[[], None] | None, module: str
) -> Iterator[Path]:
    """Plays each program in its own process with `module` and yields the folder of results, which is deleted
    afterwards."""
    with tempfile.TemporaryDirectory(prefix="etude-replay-") as name:
        folder = Path(name)
        for process, program in enumerate(programs):
            save(program, folder / f"{process}.program")
        (folder / "options.json").write_text(json.dumps(told | {"store": str(folder / "store")}))
        _run_processes(folder, len(programs), tick, module)
        yield folder


def _run_processes(folder: Path, count: int, tick: Callable[[], None] | None, module: str) -> None:
    """Runs `python -m MODULE FOLDER NUMBER` for each number below `count`, until all have ended."""
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    environment["PYTHONPATH"] = python_path()
    started: list[subprocess.Popen[bytes]] = []
    try:
        with open(folder / "log", "wb") as log:
            for process in range(count):
                command = [sys.executable, "-m", module, str(folder), str(process)]
                started.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
                )
            try:
                _watch(folder, started, tick)
            except KeyboardInterrupt:  # they end and keep the iterations done; a second Ctrl-C ends them at once
                _ask_to_stop(started)
                _watch(folder, started, tick)
    finally:
        _end(started)


def _watch(folder: Path, started: list[subprocess.Popen[bytes]], tick: Callable[[], None] | None) -> None:
    """Waits until all processes have ended successfully; raises the first failure at once."""
    while True:
        codes = [child.poll() for child in started]
        bad = [process for process, code in enumerate(codes) if code not in (None, 0)]
        if any(codes[process] in INTERRUPTED for process in bad):
            raise KeyboardInterrupt
        if bad:
            raise _failure(folder, started, bad)
        if None not in codes:
            return
        if tick is not None:
            tick()
        time.sleep(_POLL_S)


def _ask_to_stop(started: list[subprocess.Popen[bytes]]) -> None:
    """Sends SIGINT to the processes: a terminal does that itself on Ctrl-C, but a signal to this process alone does not
    reach them."""
    for child in started:
        if child.poll() is None:
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGINT)


def _failure(folder: Path, started: list[subprocess.Popen[bytes]], bad: list[int]) -> EtudeError:
    """The error that a process reported. Typed errors take precedence over the time-outs that follow from them."""
    time.sleep(10 * _POLL_S)  # other processes may be about to write theirs
    written = sorted(folder.glob("*.error"), key=lambda file: file.stat().st_mtime_ns)  # the oldest is the cause
    told = [(int(file.stem), json.loads(file.read_text())) for file in written]
    typed = [entry for entry in told if entry[1]["type"]]
    for process, problem in typed + told:
        kind = getattr(errors, problem["type"], UsageError)
        where = ": ".join(filter(None, (f"process {process}", problem["where"])))
        return kind(problem["problem"], where=where, hint=problem["hint"])
    code = started[bad[0]].returncode
    tail = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:]
    died = f"was killed by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    hint = "signal 9 usually means a lack of memory" if code == -signal.SIGKILL else ""
    return UsageError(f"{died}{f': {tail[0]}' if tail else ''}", where=f"process {bad[0]}", hint=hint)


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    """Ends all processes that still run: asks them first, then kills them."""
    for child in started:
        if child.poll() is None:
            with suppress(ProcessLookupError):
                child.terminate()
    limit = time.monotonic() + _PATIENCE_S
    for child in started:
        try:
            child.wait(max(0.0, limit - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            child.kill()
            child.wait()


def _result(folder: Path, process: int, rank: int) -> ProcessResult:
    with np.load(folder / f"{process}.npz") as found:
        return ProcessResult(
            rank,
            found["wall_ns"],
            found["start_ns"],
            found["end_ns"],
            json.loads((folder / f"{process}.json").read_text()),
        )

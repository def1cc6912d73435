"""One process of a replay, as `processes` starts it: `python -m etude.run.replay.communication.worker FOLDER PROCESS`.

Reads FOLDER/options.json and FOLDER/PROCESS.program; writes FOLDER/PROCESS.npz and PROCESS.json, or PROCESS.error.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etude.base.errors import EtudeError


def main(folder: Path, process: int, play: Callable[..., Any] | None = None) -> int:
    """Plays the program of this process with `play` (default: `run`) and writes the result. Returns the exit code."""
    began = time.perf_counter()
    _die_with_the_parent()
    options = json.loads((folder / "options.json").read_text())
    try:
        from etude.run.replay.program import load

        arrays, about = (play or run)(load(folder / f"{process}.program"), process, options, began)
    except KeyboardInterrupt:
        return 130
    except EtudeError as problem:
        told = {"type": type(problem).__name__, "problem": problem.problem, "where": problem.where}
        return _failed(folder, process, told | {"hint": problem.hint})
    except Exception as problem:  # the parent process reports it, with its traceback
        first = str(problem).strip().splitlines() or [type(problem).__name__]
        told = {"type": "", "problem": f"{type(problem).__name__}: {first[0]}", "where": "", "hint": ""}
        return _failed(folder, process, told | {"traceback": traceback.format_exc()})
    import numpy as np

    np.savez(folder / f"{process}.npz", **arrays)
    (folder / f"{process}.json").write_text(json.dumps(about))
    return 0


def run(program: Any, process: int, options: dict[str, Any], began: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plays the program of this process. Returns arrays of times, and other results."""
    from etude.run.replay.communication import flight

    if options["verify"]:
        calls = len(program.comms.kind) + 16
        flight.ask_for_room(calls * (options["iterations"] + options["warmup"] + 1) * 2)
    import torch
    import torch.distributed as dist

    from etude.run.replay.communication.calls import Communicator, join
    from etude.run.replay.communication.player import CommunicationPlayer
    from etude.run.replay.communication.stopping import Stopping

    ranks, backend = options["ranks"], options["backend"]
    cuda = backend == "nccl"
    local = int(os.environ.get("LOCAL_RANK", process))
    join(backend, process, len(ranks), options.get("store", ""), options["timeout_s"])
    try:
        if cuda:
            torch.cuda.set_device(local)
        communicator = Communicator(program, ranks, torch.device("cuda", local) if cuda else torch.device("cpu"))
        player = CommunicationPlayer(program, communicator)
        stopping = Stopping(communicator.device)
        stopping.watch()
        dist.barrier()
        ready_s = time.perf_counter() - began
        played = player.play(options["iterations"], options["warmup"], host=options["host"], stopping=stopping)
        checked = _verified(program, communicator, played) if options["verify"] else None
        arrays = {"wall_ns": played.wall_ns, "start_ns": played.start_ns, "end_ns": played.end_ns}
        about = {
            "notes": dict(communicator.notes),
            "verified": checked,
            "ready_s": ready_s,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(local) if cuda else "cpu",
        }
        if options.get("gather"):
            everyone: list[Any] = [None] * len(ranks)
            dist.all_gather_object(everyone, (arrays, about))
            about["everyone"] = everyone
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return arrays, about


def _verified(program: Any, communicator: Any, played: Any) -> dict[str, Any]:
    """Compares the last iteration with the program: collectives by the Flight Recorder, messages by the tensors
    passed."""
    from etude.run.replay.communication import flight
    from etude.run.replay.program import CommKind

    comms = program.comms
    kinds = [CommKind(int(kind)) for kind in comms.kind.tolist()]
    order = played.order.tolist()
    found = [] if order == _issued(program) else ["the calls were issued in a different order than planned"]
    collectives = [row for row in order if kinds[row] not in (CommKind.SEND, CommKind.RECV)]
    parts = [communicator.expressed.get(row, 1) for row in collectives]
    entries = flight.recorded()
    entries = entries[: len(entries) - played.stopped]  # the last entry is the all-reduce by which they agreed to stop
    seen: list[int] = []
    if len(entries) >= sum(parts):
        # Nothing else has been issued since the last iteration. Calls that other calls express are checked at the call.
        last = iter(entries[len(entries) - sum(parts) :])
        pieces = [[next(last) for _ in range(count)] for count in parts]
        seen = [row for row in collectives if row not in communicator.expressed]
        kept = [piece[0] for row, piece in zip(collectives, pieces, strict=True) if row not in communicator.expressed]
        names = {row: communicator.group_name(row) for row in seen}
        found += flight.differences(program, seen, kept, names, gloo=communicator.backend == "gloo")
    for row in order:
        wanted = int(comms.in_bytes[row]), int(comms.out_bytes[row])
        given = int(played.in_bytes[row]), int(played.out_bytes[row])
        if given != wanted:
            found.append(f"call {row + 1}: {wanted} B planned, tensors of {given} B passed")
    return {
        "calls": len(order),
        "by_flight_recorder": len(seen),
        "at_call": len(order) - len(seen),
        "differences": found[:20],
    }


def _issued(program: Any) -> list[int]:
    from etude.run.replay.program import StepKind

    rows: list[int] = program.steps.row[program.steps.kind == StepKind.COMM].tolist()
    return rows


def _failed(folder: Path, process: int, told: dict[str, Any]) -> int:
    (folder / f"{process}.error").write_text(json.dumps(told))
    return 2


def _die_with_the_parent() -> None:
    """On Linux, has the kernel end this process when its parent ends. Otherwise it would hold its GPU and its memory
    until its calls time out."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), int(sys.argv[2]))
    raise SystemExit(code)

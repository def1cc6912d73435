"""A process of a replay of several ranks: `python -m etude.run.replay.worker FOLDER PROCESS`, or of `torchrun`.

Reads FOLDER/options.json and FOLDER/PROCESS.program; writes FOLDER/PROCESS.json, or PROCESS.error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from etude.run.replay.communication.worker import main
from etude.run.replay.device_failures import DeviceFailedError, to_leave_out
from etude.run.replay.playing import PlayerOptions, play


def run(program: Any, process: int, options: dict[str, Any], began: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plays a program together with the other processes. Returns no arrays, and the results."""
    import torch
    import torch.distributed as dist

    from etude.run.replay.communication.calls import Communicator, join
    from etude.run.replay.communication.stopping import Stopping

    ranks, backend = options["ranks"], options["backend"]
    local = int(os.environ.get("LOCAL_RANK", process))
    join(backend, process, len(ranks), options.get("store", ""), options["timeout_s"])
    try:
        asked = dict(options["player"])
        if backend == "nccl":
            torch.cuda.set_device(local)
            asked["device"] = f"cuda:{local}"
        elif not asked["device"].startswith("cuda"):
            asked["device"] = "cpu"
        communicator = Communicator(program, ranks, torch.device(asked["device"]))
        stopping = Stopping(torch.device(asked["device"]) if backend == "nccl" else torch.device("cpu"))
        stopping.watch()
        out = Path(options["out"]) if options["out"] else None
        found = play(program, PlayerOptions(**asked), comms=communicator, out=out, barrier=stopping.agreed)
        found["notes"] |= communicator.notes
        if options.get("gather"):
            everyone: list[Any] = [None] * len(ranks)
            dist.all_gather_object(everyone, found)
            found = {"everyone": everyone}
        dist.barrier()
    except DeviceFailedError as problem:
        if options.get("failed"):
            told = json.dumps(to_leave_out(program, problem))
            (Path(options["failed"]) / f"{process}.json").write_text(told)
        raise
    finally:
        dist.destroy_process_group()
    return {}, found


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), int(sys.argv[2]), run))

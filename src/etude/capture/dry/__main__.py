"""Ranks of a program as a dry run: `python -m etude.capture.dry FOLDER COMMAND...`.

`FOLDER/settings.json` says the world, the ranks of a node, the device (or none), the steps to skip and to record, and
stated answers. PyTorch is imported once. A line of stdin names `ranks` to run, which of them are `brief` (one step is
enough), and for which other rank one `stands` where objects are exchanged. Each is a fork, runs the script unchanged as
`__main__`, and writes `FOLDER/rank.N.json.gz`; `FOLDER/round.K` appears when the K-th line is done. As many run at the
same time as there are cores, and more where ranks wait for one another. Only rank 0's output is shown.
"""

import gc
import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from etude.capture.dry.command import NotPythonError, rank_program
from etude.capture.dry.worker import run_rank

_LOOK_S = 0.02


def main() -> int:
    folder, command = Path(sys.argv[1]), sys.argv[2:]
    settings = json.loads((folder / "settings.json").read_text())
    torch: Any = import_module("torch")
    try:
        program = rank_program(command)
    except NotPythonError as problem:
        (folder / "refused.json").write_text(json.dumps({"kind": "command", "what": str(problem)}))
        return 2
    script = program.words[0]
    if script != "-m" and not Path(script).exists():
        (folder / "refused.json").write_text(json.dumps({"kind": "absent", "what": script}))
        return 2
    world = settings["world"] or max(1, program.ranks_of_node) * max(1, program.nodes)
    settings |= {"world": world, "local_world": min(world, program.ranks_of_node or settings["local_world"])}
    (folder / "world").write_text(str(world))
    import_module("torch._dynamo")  # much of PyTorch, as it is, before anything stands in for a part of it
    gc.freeze()  # ranks need not look at all of that again, nor have a copy of their own
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        asked["ranks"] = [rank for rank in asked["ranks"] if rank < world]
        _round(torch, folder, settings | asked, list(program.words))
        (folder / f"round.{number}").touch()
    return 0


def _round(torch: Any, folder: Path, settings: dict[str, Any], words: list[str]) -> None:
    """Runs some ranks."""
    left: list[int] = list(settings["ranks"])
    children: dict[int, int] = {}
    for rank in left:
        for name in (f"ended.{rank}", f"waits.{rank}", "all_started"):
            (folder / name).unlink(missing_ok=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    while left or children:
        busy = sum(not (folder / f"waits.{rank}").exists() for rank in children.values())
        if left and busy < cores:
            rank = left.pop(0)
            child = os.fork()
            if child == 0:
                run_rank(torch, folder, settings | {"rank": rank}, words)
                os._exit(0)
            children[child] = rank
            continue
        if not left:
            (folder / "all_started").touch()
        child, status = os.waitpid(-1, os.WNOHANG if left else 0)
        if child in children:
            (folder / f"ended.{children.pop(child)}").write_text(str(os.waitstatus_to_exitcode(status)))
        elif not child:
            time.sleep(_LOOK_S)


if __name__ == "__main__":
    sys.exit(main())

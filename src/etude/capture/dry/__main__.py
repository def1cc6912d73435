"""Ranks of a program as a dry run: `python -m etude.capture.dry FOLDER COMMAND...`.

`FOLDER/settings.json` says the world, the ranks of a node, the device (or none), the steps to skip and to record, and
stated answers. PyTorch is imported once. A line of stdin names ranks that run at the same time: each is a fork, runs
the script unchanged as `__main__`, and writes `FOLDER/rank.N.json.gz`; `FOLDER/round.K` appears when the K-th line is
done. Only rank 0's output is shown.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from etude.capture.dry.command import NotPythonError, rank_program
from etude.capture.dry.worker import run_rank


def main() -> int:
    folder, command = Path(sys.argv[1]), sys.argv[2:]
    settings = json.loads((folder / "settings.json").read_text())
    torch: Any = import_module("torch")
    try:
        program = rank_program(command)
    except NotPythonError as problem:
        (folder / "refused.json").write_text(json.dumps({"kind": "command", "what": str(problem)}))
        return 2
    world = settings["world"] or max(1, program.ranks_of_node) * max(1, program.nodes)
    settings |= {"world": world, "local_world": min(world, program.ranks_of_node or settings["local_world"])}
    (folder / "world").write_text(str(world))
    import_module("torch._dynamo")  # much of PyTorch, as it is, before anything stands in for a part of it
    for number, line in enumerate(sys.stdin):
        ranks = [rank for rank in json.loads(line) if rank < world]
        _round(torch, folder, settings | {"ranks": ranks}, list(program.words))
        (folder / f"round.{number}").touch()
    return 0


def _round(torch: Any, folder: Path, settings: dict[str, Any], words: list[str]) -> None:
    """Runs some ranks at the same time: they may wait for one another."""
    children = {}
    for rank in settings["ranks"]:
        (folder / f"ended.{rank}").unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            run_rank(torch, folder, settings | {"rank": rank}, words)
            os._exit(0)
        children[child] = rank
    while children:
        child, status = os.wait()
        if child in children:
            (folder / f"ended.{children.pop(child)}").write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    sys.exit(main())

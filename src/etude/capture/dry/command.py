"""The program in a command: what a launcher would start for each rank."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True, slots=True)
class RankProgram:
    """A script or a module with its arguments, and the ranks that its launcher would start."""

    words: tuple[str, ...]
    """`script.py --flag`, or `-m module --flag`."""
    ranks_of_node: int = 0
    """0: no launcher said so."""
    nodes: int = 0


class NotPythonError(Exception):
    """The command is not one that runs a Python program."""


def rank_program(command: Sequence[str]) -> RankProgram:
    """What each rank of a command runs."""
    first, rest = os.path.basename(command[0]), list(command[1:])
    if first in LAUNCHERS:
        return _launched(rest)
    if not first.startswith("python"):
        raise NotPythonError(first)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
    if not rest or rest[0] == "-c":
        raise NotPythonError("python without a script or a module")
    if rest[0] == "-m" and rest[1:2] and rest[1] in LAUNCHERS:
        return _launched(rest[2:])
    return RankProgram(tuple(rest))


def _launched(words: list[str]) -> RankProgram:
    parser: Any = import_module("torch.distributed.run").get_args_parser()
    given = parser.parse_args(words)
    script = ("-m", given.training_script) if given.module else (given.training_script,)
    node = str(given.nproc_per_node)
    nodes = str(given.nnodes).partition(":")[0]
    return RankProgram(
        (*script, *given.training_script_args),
        int(node) if node.isdigit() else 0,
        int(nodes) if nodes.isdigit() else 0,
    )

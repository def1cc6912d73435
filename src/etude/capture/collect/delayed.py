"""Runs a command with known delays in it, un-profiled, and gives back what its ranks measured."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.capture.collect import layout
from etude.capture.collect.delays import FILE, DelayPlan, StepBlock
from etude.capture.collect.launcher import check_command, injected, run_until


@dataclass(frozen=True, slots=True)
class DelayedProgram:
    """How a command with delays ended, and what it measured."""

    exit_code: int
    """The command's own; 0 if it was ended because all was measured."""
    ranks: tuple[tuple[StepBlock, ...], ...]
    """The blocks that each rank has completed, in the order of the plan."""
    steps: int
    """Of the rank that came furthest."""
    failures: tuple[str, ...] = ()
    printed: str = ""
    """The last that the command printed."""

    def blocks(self) -> list[StepBlock]:
        """What all ranks have completed: a block takes as long as on its slowest rank."""
        return [
            StepBlock(of[0].delay, max(b.took_ns for b in of), max(b.injected_ns for b in of), max(b.count for b in of))
            for of in zip(*self.ranks, strict=False)
        ]


def launch_delayed(command: Sequence[str], folder: Path, plan: DelayPlan) -> DelayedProgram:
    """Runs `command` until all blocks of the plan are measured, or to its end. The ranks write into `folder`, which is
    empty."""
    place = folder.absolute()
    check_command(command, "validate")
    place.mkdir(parents=True, exist_ok=True)
    variables = injected({"folder": str(place), "delays": plan.to_dict()})
    code, printed = run_until(command, variables, lambda: _is_done(place))
    written = _written(place)
    ranks = tuple(tuple(StepBlock(**block) for block in one["blocks"]) for one in written)
    steps = max((one["steps"] for one in written), default=0)
    return DelayedProgram(code, ranks, steps, tuple(layout.take_problems(place)), printed)


def _written(folder: Path) -> list[dict[str, Any]]:
    """What each rank has written; a single process that is no rank counts as one."""
    found = [json.loads(path.read_bytes()) for path in sorted(folder.glob(f"{FILE}rank*.json"))]
    others = [] if found else [json.loads(path.read_bytes()) for path in folder.glob(f"{FILE}process*.json")]
    return sorted(found or others[:1], key=lambda one: one["rank"])


def _is_done(folder: Path) -> bool:
    found = _written(folder)
    complete = bool(found) and len(found) == found[0]["world_size"] and all(one["done"] for one in found)
    return complete or layout.has_problems(folder)

"""Plays the program of one rank in a process of its own: a process whose device failed cannot use it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from etude.run.replay.communication.processes import processes_run
from etude.run.replay.program import Program


def play_apart(program: Program, options: dict[str, Any], out: Path | None) -> dict[str, Any]:
    """Plays a program in a new process and returns the results, as `play` does. `options`: those of the player."""
    told = {"player": options, "out": str(out.resolve()) if out is not None else ""}
    with processes_run([program], told, None, "etude.run.replay.apart_worker") as folder:
        found: dict[str, Any] = json.loads((folder / "0.json").read_text())
    return found

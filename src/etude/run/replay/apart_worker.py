"""The process of `apart.py`: `python -m etude.run.replay.apart_worker FOLDER 0`.

Reads FOLDER/options.json and FOLDER/0.program; writes FOLDER/0.json, or 0.error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from etude.run.replay.communication.worker import main
from etude.run.replay.playing import PlayerOptions, play


def run(program: Any, process: int, options: dict[str, Any], began: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plays the program. Returns no arrays, and the results."""
    out = Path(options["out"]) if options["out"] else None
    return {}, play(program, PlayerOptions(**options["player"]), out=out)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), int(sys.argv[2]), run))

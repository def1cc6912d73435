"""What is shown, as a file for others: a page that opens offline, or the ranks that are drawn for Perfetto."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from etude.base.errors import UsageError
from etude.steps.asked.timeline import timeline
from etude.tell.report.asked.pages import report
from etude.tell.studio.session import StudioRun

KINDS: Final = {"page": "report.html", "perfetto": "run.pftrace"}
MOST_RANKS: Final = 256


def shared_file(one: StudioRun, kind: str, ranks: list[int]) -> tuple[str, bytes, str]:
    """(name, content, command) of a file."""
    if kind not in KINDS:
        raise UsageError(f"there is no file of kind `{kind}`", hint=f"known: {', '.join(KINDS)}")
    if len(ranks) > MOST_RANKS:
        raise UsageError(f"{len(ranks):,} ranks are too many for one file", hint=f"choose up to {MOST_RANKS}")
    name = KINDS[kind]
    with tempfile.TemporaryDirectory(prefix="etude-studio-") as folder:
        place = Path(folder) / name
        if kind == "page":
            report(one.run(), place, title=str(one.source.path.name))
            command = f"etude report {one.words} -o {name}"
        else:
            timeline(one.run(), place, ranks=ranks or None)
            chosen = f" --ranks {','.join(map(str, ranks))}" if ranks else ""
            command = f"etude timeline {one.words}{chosen} -o {name}"
        return name, place.read_bytes(), command

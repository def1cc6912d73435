"""What differs between the cards of two runs, the code first; what differs between any two is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from etude.model.run import Run

__all__ = ["changed_keys", "entries"]

OF_JOB: Final = ("edits", "device", "schedule")
"""What a job says of itself besides its card: the edits that made it, what recorded it."""
MOST: Final = 6
"""Most keys that are listed."""
_TIMES: Final = re.compile(r"time|date|created|started|ended|path|host|uuid|seed", re.IGNORECASE)
"""Keys that differ between any two runs."""
_CODE: Final = re.compile(r"commit|git|revision|version|^job\.edits$", re.IGNORECASE)


def entries(run: Run) -> dict[str, str]:
    """The card of a run as keys with dots between them, and text; and what its job says of itself: `job.edits`."""
    card = dict(_flat("", run.card.to_dict())) if run.card is not None else {}
    return card | {f"job.{key}": run.job.provenance[key] for key in OF_JOB if key in run.job.provenance}


def _flat(before: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{before}.{key}" if before else str(key), inner)
    else:
        yield before, str(value)


def changed_keys(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """`program.commit: a -> b; plan.batch: 8 -> 16`."""
    keys = sorted({*before, *after}, key=lambda key: (not _CODE.search(key), key))
    found = [
        f"{key}: {before.get(key, 'none')} -> {after.get(key, 'none')}"
        for key in keys
        if before.get(key) != after.get(key) and (_CODE.search(key) or not _TIMES.search(key))
    ]
    left = f"; {len(found) - MOST} more" if len(found) > MOST else ""
    return "; ".join(found[:MOST]) + left

"""Whether the ranks of a run recorded the same stretch of it.

Collectives and messages are matched by their order: the k-th of one rank with the k-th of another. Ranks that began to
record at different steps (a learner that counts optimizer steps beside actors that have none, a rank that ran a
profiler of its own) would be matched wrongly, so they are not joined. Ranks that only end at different steps are: what
is missing at the end is seen to be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from etude.errors import MismatchError


def check_windows(said: Iterable[tuple[int | None, Mapping[str, Any]]], where: str) -> None:
    """Refuses ranks whose manifests say that they began at different steps. Ranks without manifest say nothing."""
    begins: dict[str, list[int]] = {}
    for rank, manifest in said:
        if rank is not None and (begin := _begin(manifest)) is not None:
            begins.setdefault(begin, []).append(rank)
    if len(begins) > 1:
        shown = "; ".join(f"rank {_ranks(ranks)} {begin}" for begin, ranks in begins.items())
        raise MismatchError(
            f"the ranks recorded different parts of the run: {shown}",
            where=where,
            hint="`etude collect --whole` records all of each rank; `etude link --any-window` joins them as they are",
        )


def _begin(manifest: Mapping[str, Any]) -> str | None:
    """Where a rank began, in words that are the same for all that began there. None: unknown."""
    steps = manifest.get("steps")
    if not isinstance(steps, dict) or not isinstance(numbers := steps.get("numbers"), list):
        return None
    if steps.get("counted_by") == "nothing":
        return "all that it ran, without steps"
    return f"from step {numbers[0]} on" if numbers else None


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"

"""Placement of the ranks of the best plans: searched last, since every placement is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from etude.decide.search.found import Found, Row
from etude.decide.search.plans.bounded import SearchTree, WantedFigures, told_of
from etude.decide.search.plans.candidates import Candidate
from etude.decide.search.plans.tasks import PLACE

PLACED: Final = 3
"""Plans whose ranks are placed, the best first."""
ABOUT: Final = ("placement", "placement_from", "unplaced_ns")
COUNTS: Final = ("simulated", "placements")


def with_places(tree: SearchTree, found: Found, some: Sequence[Candidate]) -> tuple[list[Row], list[dict[str, Any]]]:
    """All rows, of which the first are those of placed plans, and the description of their placements. `some`: the
    candidates of the first rows."""
    rows, told = [], []
    for c, answer in zip(some, tree.ask(WantedFigures(PLACE, some))[0], strict=True):
        about = {name: answer[name] for name in (*ABOUT, *COUNTS)}
        scored = {name: value for name, value in answer.items() if name not in about}
        row = told_of(tree.space, c, scored)
        flags = row.pop("flags")
        rows.append({**row, **{name: about[name] for name in ABOUT}, "flags": flags})
        gain = answer["unplaced_ns"] / answer["step_time_ns"]
        told.append({"flags": flags, "step_time_ns": answer["step_time_ns"], "gain": gain, **about})
    return [*rows, *found.rows[len(some) :]], told


def noted(found: Found, told: Sequence[dict[str, Any]]) -> Found:
    """The result with notes on placements; `gain`: of the best plan relative to ranks in order."""
    best = next(one for one in told if one["flags"] == found.best["flags"])
    count = sum(one["simulated"] for one in told)
    note = (
        f"ranks of the best {len(told)} plans were placed, {count} placements simulated: "
        f"{best['gain']:.3f}x for the best, {best['placement_from']}"
    )
    return replace(found, notes=(*found.notes, note), more={**found.more, "placements": list(told)})

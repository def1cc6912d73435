"""The ranges of what a search found: those of the commands that gave the scores, or the words that nothing like it was
measured."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from etude.decide.search.found import Found, Row

ENDS: Final = ("low", "high")
BASIS: Final = "basis"
FIGURE: Final = re.compile(r"[a-z_]\w*(\.[a-z_]\w*)*")
"""A score that is a figure of a command's record, and no expression over several."""
OWN: Final = ("plans", "deployment")
"""Kinds whose rows have ranges of their own."""
WHY: Final = {
    "placement": "of placements, by the formulas of links without a software stack",
    "memory": "of layers that are computed from the memory of a host",
    "mix": "of prices by the formulas of serving, over hours of demand",
    "regions": "of shares of regions: what they cost and how long they take is given",
    "routes": "of routes between places",
    "chain": "of stages that are spread over devices",
    "split": "of models that are split over small devices",
    "shares": "of jobs that share devices",
    "workflows": "of workflows of several models",
    "world": "of a world of several workloads",
    "commands": "of the command's figures",
}


def metrics_with_ranges(metrics: Mapping[str, str]) -> dict[str, str]:
    """With the ends of the range of each score, and what it rests on, where the command says them."""
    found = dict(metrics)
    for name, text in metrics.items():
        if FIGURE.fullmatch(text):
            key = text.removesuffix(".mean")
            found |= {f"{name}_{end}": f"{end}['{key}']" for end in ENDS}
            found[f"{name}_{BASIS}"] = f"{BASIS}['{key}']['text']"
    return found


def without_unknown(rows: Iterable[Row], metrics: Mapping[str, str]) -> list[Row]:
    """Rows without ends of ranges that no command said."""
    kept, added = list(rows), metrics_with_ranges(metrics).keys() - metrics.keys()
    empty = {name for name in added if all(row.get(name) is None for row in kept)}
    return [{name: value for name, value in row.items() if name not in empty} for row in kept]


def with_ranges(found: Found, kind: str, scores: Collection[str]) -> Found:
    """With `low`, `high` and `basis` of the scores of the best."""
    if kind in OWN or not found.best:
        return found
    ends = {end: {name: found.best.get(f"{name}_{end}") for name in scores} for end in ENDS}
    basis = {name: _basis(found.best, name, kind) for name in scores}
    notes = [f"range of {name}: {one['text']}" for name, one in basis.items()]
    same = dict.fromkeys(one["text"] for one in basis.values())
    if len(same) == 1:
        notes = [f"range: {next(iter(same))}"]
    best, rows, front = (_without_basis(some, scores) for some in ([found.best], found.rows, found.frontier))
    more, notes = {**found.more, **ends, BASIS: basis}, [*found.notes, *notes]
    return replace(found, best=best[0], rows=rows, frontier=front, more=more, notes=tuple(notes))


def _without_basis(rows: Iterable[Row], scores: Iterable[str]) -> list[Row]:
    """It is the same for all, and said once."""
    names = {f"{name}_{BASIS}" for name in scores}
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def _basis(best: Row, name: str, kind: str) -> dict[str, Any]:
    text = best.get(f"{name}_{BASIS}")
    if best.get(f"{name}_low") is not None:
        return {"evidence": True, "text": f"9 of 10, by {text}"}
    return {"evidence": False, "text": text or f"no evidence for the {name} {WHY.get(kind, 'of such a search')}"}

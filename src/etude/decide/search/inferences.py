"""Inferences of a chain one after another, with a cut that is searched again as links change, and with the cut that was
best at the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from etude.base.errors import UsageError
from etude.decide.search.cuts import Chain, Cut, CutScore, row_of
from etude.decide.search.found import Found, Row
from etude.decide.search.links import NEVER


def searched_again(
    chain: Chain, best_at: Callable[[Sequence[int]], Cut | None], times_ns: tuple[int, int, int], where: str
) -> Found:
    """`best_at`: rates -> the best cut, which the start has. `times_ns`: from search to search, in total, and from
    inference to inference. A search knows only the rates at its instant."""
    period, duration, every = times_ns
    known: dict[tuple[int, ...], Cut | None] = {}
    kept: list[Cut] = []
    for now in range(0, duration, period):
        rates = tuple(link.at(now) for link in chain.links)
        if rates not in known:
            known[rates] = best_at(rates)
        cut = known[rates]
        kept.append(kept[-1] if cut is None else cut)  # if no cut fits the limits, the previous one stays
    ours = _inferences(chain, kept, period, (duration, every), where)
    theirs = _inferences(chain, kept[:1], duration, (duration, every), where)
    first = [link.at(0) for link in chain.links]
    best = row_of(chain, kept[0], chain.score(kept[0], first))
    changes = sum(a != b for a, b in pairwise(kept))
    more = {
        "adaptive": {**_sum(ours), "changes": changes, "searches": len(kept)},
        "fixed": {**_sum(theirs), "changes": 0, "searches": 1},
        "less": {name: 1 - _sum(ours)[name] / _sum(theirs)[name] for name in ("latency_s", "energy_j")},
    }
    notes = tuple(
        f"{name}: {one['latency_s'] * 1e3:,.3g} ms, {one['energy_j']:,.3g} J on average over {one['inferences']:,}"
        for name, one in more.items()
        if "inferences" in one
    )
    tried = len(set(kept))
    return Found(
        best=best,
        frontier=[best],
        tried=tried,
        pruned={"never the best": chain.space - tried},
        space=chain.space,
        rows=_rows(chain, kept, period, ours, theirs),
        notes=notes,
        more=more,
    )


Inference = tuple[int, CutScore]
"""Its start, and its score."""


def _inferences(
    chain: Chain, cuts: list[Cut], period_ns: int, times_ns: tuple[int, int], where: str
) -> list[Inference]:
    """One after another: each begins when it is due and the one before is done, with the cut of that time."""
    duration, every = times_ns
    found: list[Inference] = []
    now = 0
    while now < duration:
        score = chain.walk(cuts[min(now // period_ns, len(cuts) - 1)], now)
        if now + score.latency_ns >= NEVER:
            raise UsageError(
                f"an inference that begins at {now / 1e9:g} s never completes: its link stays down", where=where
            )
        found.append((now, score))
        now = max(now + score.latency_ns, every * (now // every + 1))
    return found


def _sum(found: list[Inference]) -> dict[str, Any]:
    """Means over inferences."""
    count = len(found)
    return {
        "inferences": count,
        "latency_s": sum(score.latency_ns for _, score in found) / count / 1e9,
        "energy_j": sum(score.energy_j for _, score in found) / count,
    }


def _rows(chain: Chain, cuts: list[Cut], period_ns: int, ours: list[Inference], theirs: list[Inference]) -> list[Row]:
    """The choice at each time, and the means of the inferences that began before the next search."""
    rows = []
    for i, cut in enumerate(cuts):
        mine, fixed = ([one for one in found if one[0] // period_ns == i] for found in (ours, theirs))
        row: Row = {"time_s": i * period_ns / 1e9, "cut": list(cut)}
        row["rates"] = [link.at(i * period_ns) for link in chain.links]
        for name, found in (("", mine), ("fixed_", fixed)):
            row[f"{name}latency_ms"] = _sum(found)["latency_s"] * 1e3 if found else None
            row[f"{name}energy_j"] = _sum(found)["energy_j"] if found else None
        rows.append(row)
    return rows

"""Inferences of a chain one after another, with a cut that is searched again as links change, and with the cut that was
best at the start."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.decide.search.cut_space import CUT_METHODS, CutSpace, row_of
from etude.decide.search.cuts import Chain, Cut, CutScore
from etude.decide.search.found import Found, Row
from etude.decide.search.links import NEVER
from etude.decide.search.solver import Trials


def searched_again(cuts: CutSpace, method: str, period: int, times_ns: tuple[int, int]) -> Found:
    """`period`: ns from search to search. `times_ns`: total time, and interval of inferences. A search knows only the
    rates at its instant."""
    chain, where = cuts.chain, cuts.where
    kept: list[Cut] = []
    for cut in _cuts(cuts, method, range(0, times_ns[0], period)):  # if none fits the limits, the previous one stays
        if cut is None and not kept:
            raise cuts.nothing()
        kept.append(cut if cut is not None else kept[-1])
    ours = _inferences(chain, kept, period, times_ns, where)
    theirs = _inferences(chain, kept[:1], times_ns[0], times_ns, where)
    best = row_of(chain, kept[0], chain.score(kept[0], cuts.rates))
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


def _cuts(cuts: CutSpace, method: str, at_ns: Sequence[int]) -> list[Cut | None]:
    """The best cut of each time; repeated rates are not searched again."""
    known: dict[tuple[int, ...], Cut | None] = {}
    found = []
    for now in at_ns:
        rates = tuple(link.at(now) for link in cuts.chain.links)
        if rates not in known:
            trials = Trials(cuts.at(rates))
            CUT_METHODS[method](trials, np.random.default_rng(0))
            known[rates] = trials.ranked()[0][0] if trials.rows else None
        found.append(known[rates])
    return found


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

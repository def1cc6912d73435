"""Findings of a trend, by name and in words: ranks that changed, together or alone; steps that repeat; drifts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.analyse.changes import Change
from etude.analyse.findings import Verdict
from etude.analyse.samples import Samples
from etude.analyse.series import SeriesParts
from etude.analyse.slower_sets import clean_levels, episodes
from etude.kernels.arrays import F64
from etude.model.job import ranges

OF_MODEL: Final = ("slow_rank", "slow_node", "throttled", "common_change", "intermittent", "periodic", "drift")
"""Kinds of `diagnose` that are a trend of a run."""
KINDS: Final = (*OF_MODEL, "faster")
"""Kinds of `findings`; `faster` is a rank, or several, that takes less time than it did."""
NEAR: Final = 1
"""Changes of several ranks that are at most this many steps apart are one."""
HALF: Final = (0.4, 0.6)
ALL: Final = 0.9
FEW_PHASES: Final = 3
"""At most one phase in this many may be outstanding for a cycle to be reported as repeated steps."""


@dataclass(frozen=True, slots=True)
class TrendFinding:
    kind: str
    """One of KINDS."""
    text: str
    ranks: tuple[int, ...] = ()
    """Empty: the job as a whole."""
    step: int | None = None
    """First affected step."""
    ratio: float | None = None
    """New level over the old; slow steps over the others; a slow rank over its peers; end over beginning of a drift."""
    every: int | None = None
    """Steps from one slow step, or one cycle, to the next."""


def told_changes(samples: Samples, of_job: list[Change], by_rank: list[tuple[int, Change]]) -> list[TrendFinding]:
    """Changes of level: many ranks at once, single ranks, and the job where no rank explains it."""
    found, explained = [], []
    for members in _at_once(by_rank):
        explained += [c.at for _, c in members]
        found.append(_together(samples, members))
    for change in of_job:
        if not any(abs(change.at - at) <= NEAR for at in explained):
            step = int(samples.steps[change.at])
            found.append(
                TrendFinding(
                    "common_change",
                    f"{_what(samples)} {_moved(change.ratio)} from step {step} on",
                    step=step,
                    ratio=change.ratio,
                )
            )
    return found


def of_run(own: tuple[TrendFinding, ...], verdicts: list[Verdict]) -> tuple[TrendFinding, ...]:
    """Findings of a run: those of `diagnose` that are a trend, and what the series alone shows of the job. A change of
    a series that one of them explains is not said twice."""
    model = [_as_trend(one) for one in verdicts if one.kind in OF_MODEL and one.height]
    explained = {one.kind for one in model}
    if explained & {"throttled", "slow_rank", "slow_node"}:
        explained |= {"common_change"}  # the job is as slow as the slowest rank
    named = {rank for one in model for rank in one.ranks}
    left = [one for one in own if not set(one.ranks) & named and (one.kind == "faster" or not one.ranks)]
    left = [one for one in left if one.kind not in explained]
    return (*model, *left)


def _as_trend(one: Verdict) -> TrendFinding:
    ranks = () if one.level == "job" else one.ranks
    step = one.steps[0] if one.steps else None
    return TrendFinding(
        one.kind, one.words.rstrip("."), ranks, step, 1 + one.height, one.every if one.every > 1 else None
    )


def _at_once(by_rank: list[tuple[int, Change]]) -> list[list[tuple[int, Change]]]:
    """Changes of several ranks in the same direction and at about the same time."""
    groups: list[list[tuple[int, Change]]] = []
    for row, change in sorted(by_rank, key=lambda rc: rc[1].at):
        for group in groups:
            near = abs(int(np.median([c.at for _, c in group])) - change.at) <= NEAR
            if near and (group[0][1].ratio > 1) == (change.ratio > 1) and all(r != row for r, _ in group):
                group.append((row, change))
                break
        else:
            groups.append([(row, change)])
    return groups


def _together(samples: Samples, members: list[tuple[int, Change]]) -> TrendFinding:
    ranks = sorted(int(samples.ranks[row]) for row, _ in members)
    step = int(samples.steps[int(np.median([c.at for _, c in members]))])
    ratio = float(np.median([c.ratio for _, c in members]))
    share = len(ranks) / len(samples.ranks)
    kind, who = "slow_rank", f"rank {ranks[0]}"
    alone = len(samples.ranks) == 1
    if alone:
        kind, who = "common_change", _what(samples)
    elif len(ranks) > 1:
        which = f"{len(ranks)} of {len(samples.ranks)} ranks ({ranges(np.array(ranks))})"
        half = HALF[0] <= share <= HALF[1]
        kind, who = "throttled", f"half of all ranks, {ranges(np.array(ranks))}," if half else which
        if share >= ALL:
            kind = "common_change"
    if ratio < 1 and samples.whole and kind in ("slow_rank", "throttled"):
        kind = "faster"
    many = len(ranks) > 1 and not alone
    slower = samples.whole and not alone  # whole numbers are nanoseconds
    moved, whose = _moved(ratio, many=many, slower=slower), "their" if many else "its"
    text = f"{who} {moved} from step {step} on, relative to {whose} own history"
    return TrendFinding(kind, text, tuple(ranks) if len(samples.ranks) > 1 else (), step, ratio)


def told_period(samples: Samples, parts: SeriesParts, own: F64, period: int, least: float) -> list[TrendFinding]:
    """Repeated slow steps: every tenth, or a cycle without single outstanding steps."""
    found = _own_period(samples, own, least) if period and not parts.period else None
    if found is not None:
        return [found]
    if not parts.period:
        return []
    level = float(np.median(parts.trend))
    one = parts.cycle[: parts.period].astype(np.float64) / (level or 1.0)
    slow = np.flatnonzero(one > max(least, 0.5 * float(one.max())))
    if len(slow) and len(slow) * FEW_PHASES <= parts.period and -float(one.min()) < 0.5 * float(one.max()):
        ratio = 1 + float(one[slow].mean())
        ranks = _ranks_that_repeat(samples, own, parts.period, slow, ratio)
        return [_every(samples, parts.period, slow, ratio, ranks)]
    swing = float(one.max() - one.min())
    if swing < least:
        return []
    text = f"{_what(samples)} goes up and down by {swing:.1%} of its level, repeating every {parts.period} steps"
    return [TrendFinding("periodic", text, ratio=1 + swing, every=parts.period)]


def _own_period(samples: Samples, own: F64, least: float) -> TrendFinding | None:
    """Slow steps that only some ranks' own work shows: what `diagnose` calls periodic."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        levels = np.log(own) - np.nanmedian(np.log(own), axis=0)
    unknown, one_stage = np.full_like(levels, np.nan), np.zeros(len(own), np.int64)
    found = [one for one in episodes(clean_levels(levels, unknown, one_stage), least) if one.pattern == "periodic"]
    if not found:
        return None
    first, ranks = found[0], sorted(int(samples.ranks[row]) for row in found[0].rows)
    phase = np.array([first.steps[0] % first.every])
    return _every(samples, first.every, phase, float(np.exp(first.height)), ranks)


def _phases(values: F64, period: int) -> F64:
    """The median of each phase of a cycle over that of all samples."""
    padded = np.full(-(-len(values) // period) * period, np.nan)
    padded[: len(values)] = values
    found: F64 = np.nanmedian(padded.reshape(-1, period), axis=0) / np.nanmedian(values)
    return found


def _ranks_that_repeat(samples: Samples, own: F64, period: int, slow: NDArray[np.intp], ratio: float) -> list[int]:
    """Ranks whose own work is longer in these steps; empty where all are, or none is."""
    half = 1 + (ratio - 1) / 2
    rows = [row for row, values in enumerate(own) if _phases(values, period)[slow].mean() > half]
    return [] if len(rows) in (0, len(own)) else [int(samples.ranks[row]) for row in rows]


def _every(samples: Samples, period: int, slow: NDArray[np.intp], ratio: float, ranks: list[int]) -> TrendFinding:
    first = int(slow[0])
    where = [int(samples.steps[i]) for i in range(len(samples)) if i % period in set(slow.tolist())]
    shown = ", ".join(map(str, where[:3])) + (", …" if len(where) > 3 else "")
    which = f"every {_nth(period)} step" if len(slow) == 1 else f"{len(slow)} steps of every {period}"
    text = f"{which} takes {ratio - 1:.1%} longer than the others (steps {shown})"
    if ranks:
        text += f", because of rank{'s' if len(ranks) > 1 else ''} {ranges(np.array(ranks))}"
    return TrendFinding("periodic", text, tuple(ranks), int(samples.steps[first]), ratio, period)


def told_drift(
    samples: Samples, parts: SeriesParts, by_rank: list[tuple[int, float]], least: float
) -> list[TrendFinding]:
    """Slow changes: of the job since its last change of level, and of ranks that drift away from the others."""
    found = []
    first = parts.changes[-1].at if parts.changes else 0
    beginning, seen = float(parts.trend[first]) if len(parts.trend) else 0.0, len(parts.trend) - first
    growth = parts.slope * (seen - 1) / beginning if beginning else 0.0
    if abs(growth) >= least:
        step = int(samples.steps[first])
        text = (
            f"{_what(samples)} drifts {'up' if growth > 0 else 'down'} by {abs(growth) / (seen - 1):.2%} per "
            f"step, {abs(growth):.1%} from step {step} to {int(samples.steps[-1])}"
        )
        found.append(TrendFinding("drift", text, step=step, ratio=1 + growth))
    for row, rank_growth in by_rank:
        rank = int(samples.ranks[row])
        text = (
            f"rank {rank} drifts {'up' if rank_growth > 0 else 'down'} by {abs(rank_growth):.1%} relative to the others"
        )
        found.append(TrendFinding("drift", text, (rank,), int(samples.steps[0]), 1 + rank_growth))
    return found


def told_slow(slow: list[tuple[int, float]], ranks: list[int], given_work: bool) -> list[TrendFinding]:
    """Ranks that are slower than the others during the whole run."""
    than = "the others with as much work" if given_work else "the others"
    return [
        TrendFinding("slow_rank", f"rank {ranks[row]} is {factor - 1:.1%} slower than {than}, during the whole run",
                (ranks[row],), None, factor)
        for row, factor in slow
    ]  # fmt: skip


def _what(samples: Samples) -> str:
    return samples.name.replace("_", " ")


def _moved(ratio: float, *, many: bool = False, slower: bool = False) -> str:
    if not np.isfinite(ratio):
        return f"rise{'' if many else 's'} from 0"
    way = ("faster", "slower") if slower else ("lower", "higher")
    return f"{'are' if many else 'is'} {abs(ratio - 1):.1%} {way[ratio > 1]}"


def _nth(number: int) -> str:
    words = {2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth", 7: "seventh", 8: "eighth", 9: "ninth"}
    words |= {10: "tenth", 12: "twelfth", 20: "twentieth"}
    return words.get(number, f"{number}th")

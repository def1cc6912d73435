"""Stragglers: slow ranks, slow links, late hosts, missing participants.

Being slow is distinguished from waiting: kernels are compared with the same kernels of other ranks, host calls with the
same calls, idle time with that of the same program elsewhere, and the transfer of a collective is the time of its last
member, so a rank that waits looks no slower than one that does not. `outliers` defines how peers are compared;
docs/analyse/stragglers.md has the definitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from etude.analyse.desync import desync
from etude.analyse.diagnose import faults
from etude.analyse.fell_behind import MissingRank
from etude.analyse.findings import Verdict
from etude.analyse.grouping import table
from etude.analyse.late_hosts import late_hosts
from etude.analyse.lateness import Lateness, Shows
from etude.analyse.missing import missing
from etude.analyse.operations import calls
from etude.analyse.segments import Segments
from etude.analyse.slow_links import Links, SlowLink
from etude.analyse.slow_ranks import slow_ranks
from etude.analyse.slower_sets import FEWEST_STEPS
from etude.analyse.stretches import Slow
from etude.base.errors import UsageError
from etude.model.job import Job, ranges
from etude.model.match import match
from etude.model.run import Run
from etude.model.timing import no_times
from etude.model.use import Use

__all__ = ["missing_only", "stragglers"]

LEAST: Final = 0.04
"""A unit is reported if it is this much slower than its peers."""
NODE: Final = 8
"""Ranks per node by default."""
OF_MODEL: Final = {
    **dict.fromkeys(("slow_rank", "slow_node", "throttled", "drift", "intermittent", "periodic"), "slow_rank"),
    **dict.fromkeys(("late_host", "loader"), "late_host"),
    "slow_link": "slow_link",
}
"""Kinds of `diagnose`, as stragglers have them."""
ALIKE: Final = {"missing_participant": "hang", "stalled_collective": "hang"}
"""Kinds of stragglers, as `diagnose` has them, where the names differ."""
KINDS: Final = ("slow_rank", "slow_link", "late_host", "missing_participant", "desync", "stalled_collective")


@dataclass(frozen=True, slots=True)
class Straggler:
    rank: int
    kind: str
    """One of `KINDS`."""
    confidence: float
    evidence: str
    ranks: tuple[int, ...] = ()
    """All ranks concerned: both ends of a link, or the members of the group with the cause."""
    slowdown_pct: float | None = None
    pattern: str = ""
    """chronic: during the whole run; acute: since or for a part of the run; periodic: in every n-th step."""
    since: int | None = None
    """First step (or eighth of the run, where no steps are known) in which it shows."""
    finding: str = ""
    """Its kind as `diagnose` has it: a group that is throttled, a drift, kernels that are slow now and then."""
    cost_ns: int | None = None
    """How much shorter the run would be without the cause; None where that was not simulated."""

    def __post_init__(self) -> None:
        if not self.finding:
            object.__setattr__(self, "finding", ALIKE.get(self.kind, self.kind))


def stragglers(run: Run, *, least: float = LEAST, ranks_per_node: int = NODE) -> pa.Table:
    """One row per rank, or link, of a finding, the highest confidence first: rank, kind, confidence, evidence, ranks,
    slowdown_pct, pattern, since, finding, cost_ns.

    `least` is the smallest slow-down that is reported. Links are compared with links at the same distance, which
    depends on node boundaries: ranks fill nodes in order, `ranks_per_node` in each.

    etude.stragglers(run, least=0.1)
    """
    if ranks_per_node < 1:
        raise UsageError(f"{ranks_per_node} ranks per node")
    return finding_table(findings(run, least=least, ranks_per_node=ranks_per_node))


def finding_table(found: Iterable[Straggler]) -> pa.Table:
    ordered = sorted(found, key=lambda f: (-f.confidence, -(f.slowdown_pct or 0), f.rank))
    rows = [{name: getattr(f, name) for name in Straggler.__slots__} for f in ordered]
    names = {"rank": pa.int32(), "kind": pa.string(), "confidence": pa.float64(), "evidence": pa.string()}
    names |= {"ranks": pa.list_(pa.int32()), "slowdown_pct": pa.float64(), "pattern": pa.string(), "since": pa.int64()}
    names |= {"finding": pa.string(), "cost_ns": pa.int64()}
    return table([row | {"ranks": list(row["ranks"])} for row in rows], names)


def missing_only(job: Job) -> pa.Table:
    """Findings of a job that has no times: participants that its ranks' programs lack. Columns of `stragglers`."""
    run = Run(job, no_times([len(job.traces[t]) for t in job.trace_of.tolist()]))
    return finding_table(_gone(absent) for absent in missing(run, calls(run)))


def _gone(one: MissingRank) -> Straggler:
    return Straggler(one.rank, "missing_participant", one.confidence, one.evidence, (one.rank,), since=one.since)


def findings(run: Run, *, least: float = LEAST, ranks_per_node: int = NODE) -> Iterator[Straggler]:
    job = run.job
    found = calls(run, match(job))
    apart = list(desync(run))
    yield from (Straggler(one.rank, one.kind, one.confidence, one.evidence, one.ranks) for one in apart)
    blamed = {rank for one in apart for rank in one.ranks}
    gone = [absent for absent in missing(run, found) if absent.rank not in blamed]
    yield from map(_gone, gone)
    if len(job.ranks) < 2 or apart:
        return  # a hanging run does not show which rank is slow
    stretches = Segments(job)
    if len(stretches.steps) >= FEWEST_STEPS:
        taken = {absent.rank for absent in gone}
        told = faults(run, least=least, ranks_per_node=ranks_per_node)
        behind = _LateRanks(run, Lateness(run, found, stretches), stretches, told)
        yield from (row for row in _of_model(told, behind) if row.rank not in taken)
        return
    late = Lateness(run, found, stretches)
    named = {absent.rank for absent in gone}
    ways = (
        ("slow_rank", "kernels take {:.1f}% longer than the same ones {}",
         slow_ranks(run, stretches, Use.COMPUTE, least)),
        ("late_host", "host calls take {:.1f}% longer than the same ones {}",
         slow_ranks(run, stretches, Use.HOST, least)),
        ("late_host", "device is idle for {:.1f}% of a step more than those {} that do the same work",
         late_hosts(run, found, stretches, least)),
    )  # fmt: skip
    devices = any(bool((trace.cpu == 0).any()) for trace in job.traces)
    shows = (Shows.BESIDE_OTHERS, Shows.AHEAD, Shows.AT_FIRST) if devices else (Shows.ALWAYS,) * 3
    for (kind, what, slow), how in zip(ways, shows, strict=True):
        accused = np.zeros(len(job.ranks), bool)
        accused[[one.unit for one in slow]] = True
        for one in [one for one in slow if late.holds_up(one, accused, how)]:
            rank = int(job.ranks[one.unit])
            if rank not in named:
                named.add(rank)
                together = tuple(int(job.ranks[other.unit]) for other in slow if one.before and other.before)
                yield _rank_finding(rank, one, (kind, what), together or (rank,), stretches, late)
    for link in Links(run, stretches, ranks_per_node).slow(found, least):
        yield _link_finding(link, stretches)


class _LateRanks:
    """Ranks that come to their collectives after their peers in the steps in which they are slow."""

    def __init__(self, run: Run, late: Lateness, stretches: Segments, found: Sequence[Verdict]) -> None:
        self.ranks, self.late, self.stretches = run.job.ranks, late, stretches
        some = [rank for one in found if len(one.ranks) < len(self.ranks) for rank in one.ranks]
        self.accused = np.isin(self.ranks, some)

    def has(self, one: Verdict, rank: int) -> bool:
        steps, width = self.stretches.steps, self.stretches.width
        first, last = (np.searchsorted(steps, one.steps or (steps[0], steps[-1])) // width).tolist()
        at = int(np.flatnonzero(self.ranks == rank)[0])
        every = one.every if width == 1 else 1
        slow = Slow(at, 1 + one.height, first, last, one.steps is None, one.confidence, every)
        return self.late.holds_up(slow, self.accused, Shows.ALWAYS)


def _of_model(found: Sequence[Verdict], late: _LateRanks) -> Iterator[Straggler]:
    """The findings of `diagnose` that are about ranks, hosts and links: one row a rank, of a link one. A slow device
    without which the run would not be shorter is one if it comes late: another stage may take as long."""
    for one in found:
        kind = OF_MODEL.get(one.kind)
        if kind is None or one.level == "job":
            continue
        since = one.steps[0] if one.steps else None
        pct = 100 * one.height if one.height else None
        for rank in one.ranks[:1] if kind == "slow_link" else one.ranks:
            if kind == "slow_rank" and one.cost_ns <= 0 and not late.has(one, rank):
                continue
            words = one.words.rstrip(".")
            yield Straggler(
                rank, kind, one.confidence, words, one.ranks, pct, one.pattern, since, one.kind, one.cost_ns
            )


def _rank_finding(
    rank: int, one: Slow, kind: tuple[str, str], together: tuple[int, ...], stretches: Segments, late: Lateness
) -> Straggler:
    pct = 100 * (one.factor - 1)
    what = kind[1].format(pct, "of its other steps" if one.before else "of other ranks")
    others = f"; so do those of {len(together) - 1} more ranks" if len(together) > 1 else ""
    evidence = f"its {what}, {_when(one, stretches)}{others}{late.text(one.unit)}"
    since = stretches.first_step(one.first)
    return Straggler(rank, kind[0], one.confidence, evidence, together, pct, _pattern(one), since)


def _link_finding(link: SlowLink, stretches: Segments) -> Straggler:
    one = link.slow
    pct = 100 * (one.factor - 1)
    evidence = (
        f"{link.label} take {pct:.1f}% longer than those of their peers, without waiting, {_when(one, stretches)}"
    )
    if link.units > 1:
        common = f"rank{'s' if len(link.ranks) > 1 else ''} {ranges(np.array(link.ranks))}"
        evidence += f"; so do {link.units - 1} more groups or pairs that have {common} in common"
    since = stretches.first_step(one.first)
    return Straggler(link.ranks[0], "slow_link", one.confidence, evidence, link.ranks, pct, _pattern(one), since)


def _when(one: Slow, stretches: Segments) -> str:
    if one.every > 1:
        return f"in every {_ordinal(one.every * stretches.width)} step from {stretches.name(one.first)} on"
    return "during the whole run" if one.whole else f"since {stretches.name(one.first)}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _pattern(one: Slow) -> str:
    return "periodic" if one.every > 1 else "chronic" if one.whole else "acute"

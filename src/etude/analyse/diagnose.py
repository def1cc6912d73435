"""What is wrong in a run: findings of one model of it, reconciled, each with what removing its cause buys.

A cause explains its effects: a rank is named for one of them, links and hosts of ranks that hang are not judged, and a
finding whose removal buys nothing is left out unless it is about the job itself. docs/analyse/diagnose.md has the
definitions.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from math import exp
from typing import Final

import numpy as np

from etude.analyse.desync import desync
from etude.analyse.drifting import clock_drifts, leaks
from etude.analyse.findings import FAULTS, Verdict
from etude.analyse.joined_episodes import after_first, slow_rank_of, with_others
from etude.analyse.lateness import Lateness, Shows
from etude.analyse.missing import missing
from etude.analyse.node_sets import nodes_apart
from etude.analyse.operations import CollectiveCalls, calls
from etude.analyse.own_times import RunTimes, WorkLevels, busy_shares, run_times
from etude.analyse.segments import Segments
from etude.analyse.slow_links import Links
from etude.analyse.slower_sets import (
    FEWEST_STEPS,
    SERIES,
    Episode,
    clean_levels,
    common_episodes,
    episodes,
    stage_changes,
)
from etude.analyse.unequal_calls import unequal_calls
from etude.analyse.uneven_work import LONGER, uneven_work
from etude.analyse.usual_spread import host_spread, stage_middle, wild_ranks
from etude.analyse.what_if import Retimed
from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.model.job import Job
from etude.model.match import match
from etude.model.run import Run
from etude.model.use import Use, uses

__all__ = ["LEAST", "diagnose", "faults", "not_looked_for"]

LEAST: Final = 0.03
"""Smallest slow-down, or smallest share of a step, that is looked for."""
LEAST_CALLS: Final = 0.06
"""Smallest slow-down of host calls that the device does not wait for."""
NODE: Final = 8
"""Ranks per node by default."""
FEWER: Final = 0.25
"""Part of the ranks that need not show what the job does."""
ALL: Final = 0.9
"""Part of the ranks from which what they do is what the job does."""
TOGETHER: Final = 3
"""Ranks from which those that are slow together are a group."""
RETIMED: Final = 2_000_000
"""Most nodes of a run that is re-timed for what a cause costs; of a larger one the cost is a bound."""
LOADING: Final = 0.05
"""Share of a step in which all devices wait for the next batch from which the loader is a cause."""
MUCH_IDLE: Final = 0.15
MUCH_EXPOSED: Final = 0.10
"""Shares of the devices' time from which a healthy run has a cause to work on, ..."""
WORTH: Final = 0.02
"""... and the share of the run that removing it must buy."""
PATTERNS: Final = {
    "whole": "chronic",
    "since": "acute",
    "while": "acute",
    "drift": "acute",
    "periodic": "periodic",
    "now and then": "intermittent",
}
MOST_OF_NODE: Final = 0.6
"""Part of a node's ranks that must be slow for the node to be."""
NOT_ALL: Final = 0.4
"""Part of a slow-down below which the fastest kinds of kernels are not slower: clock or power are limited."""
MUCH_WILD: Final = 0.4
"""Share of a slow-down from which single times that are far off are its cause."""
LITTLE: Final = 0.01
"""Share of a run that a fault must cost where few steps cannot exclude chance."""
CLEAR: Final = 10.0
"""Standard errors from which it need not, and from twice as many of which a late host need not come late, too."""
SURE_LINK: Final = 0.9
"""Least confidence of a link in few steps."""
UNSURE: Final = 0.4
"""Part of the findings at five standard errors that are not true, by runs that were looked at."""
PAIR: Final = 0.75
"""Highest confidence where a rank has a single peer, ..."""
SURE: Final = 0.99
SURE_IN_FEW: Final = 0.95
"""... in any other run, and in one of fewer than FEWEST_STEPS steps: of 1 to 5, by runs that were looked at."""


def diagnose(run: Run, *, least: float = LEAST, ranks_per_node: int = NODE) -> list[Verdict]:
    """Findings, what buys most first; those of a healthy run come last. Empty: nothing is worth doing."""
    model = _model(run, least, ranks_per_node)
    found = model.faults()
    if not any(one.kind in ("hang", "desync") for one in found):
        found += model.of_healthy(found)
    return sorted(found, key=lambda one: (one.kind not in FAULTS, -_urgent(one), -one.cost_ns, one.ranks))


def _urgent(one: Verdict) -> int:
    return {"hang": 3, "desync": 4, "leak": 1}.get(one.kind, 0)


def faults(run: Run, *, least: float = LEAST, ranks_per_node: int = NODE) -> list[Verdict]:
    """Findings of a fault kind."""
    return _model(run, least, ranks_per_node).faults()


def not_looked_for(job: Job) -> list[str]:
    """What is not looked for in this run."""
    found = []
    if len(job) == 1:
        found.append("one rank: it has no peers to be compared with")
    steps = min(len(np.unique(trace.step[trace.step >= 0])) for trace in job.traces)
    if steps < SERIES:
        counted = f"{steps} step{'' if steps == 1 else 's'}" if steps else "no steps"
        found.append(
            f"{counted}: drifts, periods, leaks, and kernels that are slow now and then, are looked for in "
            f"{SERIES} or more"
        )
    return found


def _model(run: Run, least: float, ranks_per_node: int) -> _Diagnosis:
    if ranks_per_node < 1:
        raise UsageError(f"{ranks_per_node} ranks per node")
    return _Diagnosis(run, least, ranks_per_node)


class _Diagnosis:
    def __init__(self, run: Run, least: float, node: int) -> None:
        self.run, self.least, self.node = run, least, node
        span = run.timing.span()
        self.run_ns = span[1] - span[0] if span else 0

    @cached_property
    def calls(self) -> CollectiveCalls:
        return calls(self.run, match(self.run.job))

    @cached_property
    def times(self) -> RunTimes:
        return run_times(self.run, self.calls)

    @cached_property
    def retimed(self) -> Retimed | None:
        return Retimed(self.run) if self.run.job.nodes <= RETIMED else None

    @cached_property
    def lateness(self) -> Lateness:
        return Lateness(self.run, self.calls, Segments(self.run.job))

    # -- faults --------------------------------------------------------------------------------------------------------

    def faults(self) -> list[Verdict]:
        stopped = list(self._stopped())
        if stopped:
            return stopped
        found = list(leaks(self.run, self.run_ns))
        if not any((part.timed).any() for part in self.run.parts()):
            return found
        job = self._of_idle()
        if len(self.run.job.ranks) > 1:
            found += clock_drifts(self.run, self.calls, self.run_ns)
            ranks = [one for one in self._of_ranks(job) if self._matters(one)]
            found += [*ranks, *self._of_links(ranks)]
        return [*found, *job, *self._of_work(found)]

    def _stopped(self) -> Iterator[Verdict]:
        unequal = unequal_calls(self.run, self.calls)
        told = list(desync(self.run)) if not unequal else []
        for ranks, text, sure in unequal:
            yield self._stated("desync", ranks, text, sure)
        for one in told:
            kind = "desync" if one.kind == "desync" else "hang"
            yield self._stated(kind, one.ranks or (one.rank,), one.evidence, one.confidence, all_=one.rank < 0)
        blamed = {rank for one in told for rank in one.ranks} | {rank for ranks, *_ in unequal for rank in ranks}
        if not unequal:
            for absent in missing(self.run, self.calls):
                if absent.rank not in blamed:
                    yield self._stated("hang", (absent.rank,), absent.evidence, absent.confidence)

    def _stated(self, kind: str, ranks: tuple[int, ...], text: str, sure: float, *, all_: bool = False) -> Verdict:
        return Verdict(
            kind=kind,
            level="job" if all_ else "program",
            ranks=tuple(ranks),
            steps=None,
            cost_ns=0,
            run_ns=self.run_ns,
            confidence=sure,
            detail=text,
        )

    def _of_work(self, known: list[Verdict]) -> list[Verdict]:
        """What the work of all ranks does alike: changes, drifts and periods of those that nothing else is said of."""
        times = self.times
        if len(times.steps) < SERIES or any(one.level == "job" and one.kind == "periodic" for one in known):
            return []
        named = {rank for one in known if one.kind in ("throttled", "slow_node", "slow_rank") for rank in one.ranks}
        left = np.array([rank not in named for rank in times.ranks.tolist()])
        if 4 * left.sum() < len(left):
            return []
        everyone, found = tuple(times.ranks.tolist()), []
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            # what fewer ranks do than these is theirs, not the job's
            common = np.nanquantile(times.compute.past[left], FEWER, axis=0)
            work_ns = float(np.nanmedian(np.nansum(times.compute.total_ns, axis=1)))
        for one in common_episodes(common[1:], 0.002, self.least * 1.3):
            kind = {"drift": "drift", "periodic": "periodic"}.get(one.pattern, "common_change")
            part = len(one.steps) / len(times.steps) * (0.5 if kind == "drift" else 1.0)
            lost = (1 - exp(-one.height)) * part
            found.append(self._finding(kind, "job", everyone, after_first(one), lost * work_ns))
        return found

    def _of_idle(self) -> list[Verdict]:
        """What all devices wait for alike: pauses in every n-th step, and batches."""
        times, found = self.times, []
        everyone = tuple(times.ranks.tolist())
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            usual = float(np.nanmedian(times.length_ns))
            idle = np.nanmedian(times.idle_ns, axis=0) / usual
            loading = np.nanmedian(times.loading_ns / times.length_ns[None, :], axis=0)
        if len(times.steps) >= SERIES:
            for one in common_episodes(np.nan_to_num(idle[1:]), 0.002, self.least):
                if one.pattern == "periodic":
                    cost = float(one.height * usual * len(one.steps))
                    made = self._finding("periodic", "job", everyone, after_first(one), cost)
                    found.append(replace(made, figures={"idle": 1.0}))
        waits = float(np.nanmedian(loading[1:] if len(loading) > 2 else loading)) if len(loading) else 0.0
        if waits >= LOADING:
            cost = float(np.nansum(np.nanmedian(times.loading_ns, axis=0)))
            whole = Episode((), "whole", 0, len(times.steps) - 1, waits, 10.0)
            found.append(self._finding("loader", "job", everyone, whole, cost))
        return found

    def _of_ranks(self, known: list[Verdict]) -> list[Verdict]:
        times, found = self.times, []
        named: set[int] = set()
        common = {(one.kind, one.every) for one in known if one.level == "job"}
        of_work = times.compute
        wild = {row: part for row, _, _, part in wild_ranks(of_work, named)}
        for one in self._holding_up(self._of_devices(of_work), Shows.BESIDE_OTHERS):
            if len(one.rows) == 1 and wild.get(one.rows[0], 0.0) > MUCH_WILD * one.height:
                continue  # single times explain it
            one = self._with_its_node(one)
            found += self._slow(one)
            named |= set(one.rows)
        for row, far, usual, part in wild_ranks(of_work, named):
            found.append(self._far(row, far, usual, part))
            named.add(row)
        idle = times.idle
        scale = replace(clean_levels(idle, np.full_like(idle, 0.001), times.stage, 0.002), wild=True)
        waits = _not_alike(idle)
        least = self.least * (1 if len(times.steps) > 2 else 2)  # once, a host may be interrupted by chance
        of_hosts = with_others(episodes(scale, least), self._nodes_of_few_steps(idle, least))
        for one in self._holding_up(of_hosts, Shows.AT_FIRST):
            rows = tuple(row for row in one.rows if row not in named)
            if rows and waits and ("periodic", one.every) not in common:
                found.append(self._late(replace(one, rows=rows)))
                named |= set(rows)
        calls_of = times.host
        if times.has_device and len(times.steps) >= FEWEST_STEPS and np.isfinite(calls_of.relative).any():
            wide = clean_levels(
                calls_of.relative, calls_of.error, times.stage, host_spread(calls_of.relative, times.stage)
            )
            for one in episodes(wide, LEAST_CALLS):
                rows = tuple(row for row in one.rows if row not in named)
                if rows and one.pattern in ("whole", "since") and 2 * len(one.steps) >= len(times.steps):
                    made = self._finding("late_host", "host", self._ranks(rows), one, 0.0)
                    found.append(replace(made, figures={"hidden": 1.0}))
                    named |= set(rows)
        return found

    def _of_devices(self, work: WorkLevels) -> list[Episode]:
        """Devices above their peers; over time also whole stages of a pipeline, above what they were."""
        times = self.times
        beside = episodes(clean_levels(work.relative, work.error, times.stage), self.least)
        part = work.part.upper - stage_middle(work.part.upper, times.stage)
        by_part = episodes(clean_levels(part, 1.5 * work.error, times.stage), self.least)
        most = len(times.ranks) // (1 if len(times.steps) >= FEWEST_STEPS else 2)
        # in a single step a few kernels are a part, and what ranks hold may be
        by_part = [one for one in by_part if one.pattern != "now and then" and len(one.rows) <= most]
        beside = with_others(beside, by_part)
        beside = with_others(beside, self._nodes_of_few_steps(work.relative, self.least))
        if not times.stage.any() or len(times.steps) < FEWEST_STEPS:
            return beside
        moved = work.relative + stage_changes(work.past - work.relative, times.stage)
        changed = clean_levels(moved, work.error, np.zeros_like(times.stage))
        found = [one for one in episodes(changed, self.least) if one.pattern != "whole"]
        # a stage that is slow at first looks the same as others that are slow later
        over_time = [one for one in found if one.first > 0 or one.pattern in ("drift", "periodic")]
        named = {row for one in over_time for row in one.rows}
        left = [replace(one, rows=tuple(row for row in one.rows if row not in named)) for one in beside]
        return [*over_time, *(one for one in left if one.rows)]

    def _nodes_of_few_steps(self, values: F64, least: float) -> list[Episode]:
        if len(self.times.steps) >= FEWEST_STEPS:
            return []
        return list(nodes_apart(values, self.times.ranks, self.node, least))

    def _matters(self, one: Verdict) -> bool:
        """Of few steps, or of hosts that compute: what costs nothing may be chance."""
        few = len(self.times.steps) < FEWEST_STEPS or not self.times.has_device
        clear = self.times.has_device and one.score >= CLEAR
        return not few or clear or one.share >= LITTLE

    def _holding_up(self, found: list[Episode], shows: Shows) -> list[Episode]:
        """Of hosts that compute, or issue work in few steps: those that come late to what they have in common."""
        times = self.times
        if times.has_device and (len(times.steps) >= FEWEST_STEPS or shows == Shows.BESIDE_OTHERS):
            return found
        how = shows if times.has_device else Shows.ALWAYS
        accused = np.zeros(len(times.ranks), bool)
        accused[[row for one in found for row in one.rows]] = True
        kept = []
        for one in found:
            if times.has_device and one.score >= 2 * CLEAR:
                kept.append(one)
                continue
            rows = tuple(row for row in one.rows if self.lateness.holds_up(slow_rank_of(one, row), accused, how))
            if rows:
                kept.append(replace(one, rows=rows))
        return kept

    def _slow(self, one: Episode) -> list[Verdict]:
        """Slow devices: one, a node, or a group that became slow together."""
        ranks = self._ranks(one.rows)
        cost = self._cost_of_work(one)
        level = "power" if self._limited(one) else "kernel"
        if one.pattern == "drift":
            return [self._finding("drift", level, ranks, one, cost)]
        if one.pattern == "periodic":
            return [self._finding("periodic", "job" if self._most(one.rows) else "kernel", ranks, one, cost)]
        if one.pattern == "now and then":
            made = self._finding("intermittent", "kernel", ranks, one, cost)
            return [replace(made, figures={"steps": float(len(one.steps))})]
        if self._most(one.rows) and len(one.rows) > 2:
            return [self._finding("common_change", "job", ranks, one, cost)]
        if self._is_node(ranks):
            nodes = len({rank // self.node for rank in ranks})
            made = self._finding("slow_node", level if level == "power" else "node", ranks, one, cost)
            return [replace(made, figures={"nodes": float(nodes)})]
        if len(ranks) >= TOGETHER or (len(ranks) == 2 and 4 * len(ranks) >= len(self.times.ranks)):
            return [self._finding("throttled", level, ranks, one, cost)]
        each = [replace(one, rows=(row,)) for row in one.rows]
        return [self._finding("slow_rank", level, self._ranks(e.rows), e, self._cost_of_work(e)) for e in each]

    def _limited(self, one: Episode) -> bool:
        """Whether some kinds of kernels are as fast as those of peers, while the others, most of the time, are not."""
        low = self._mean_of(self.times.compute.part.lower, one)
        return bool(low < NOT_ALL * one.height)

    def _mean_of(self, levels: F64, one: Episode) -> float:
        """Mean over the ranks and steps of an episode, above the middle of all ranks in these steps."""
        steps = np.array(list(one.steps) or list(range(len(self.times.steps))))
        part = levels[:, steps] - stage_middle(levels[:, steps], self.times.stage)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return float(np.nanmean(part[list(one.rows)]))

    def _far(self, row: int, far: float, usual: float, part: float) -> Verdict:
        whole = Episode((row,), "whole", 0, len(self.times.steps) - 1, part, 10.0)
        cost = part * float(np.nansum(self.times.compute.total_ns[row]))
        made = self._finding("intermittent", "kernel", self._ranks((row,)), whole, self._bound(cost, row, part))
        return replace(made, pattern="intermittent", figures={"far": far, "usual": usual})

    def _late(self, one: Episode) -> Verdict:
        """A device that has nothing to do because of its host: late, or waiting for the next batch."""
        times = self.times
        steps = list(one.steps) or list(range(len(times.steps)))
        ranks = self._ranks(one.rows)
        cost = float(one.height * np.nansum(times.length_ns[steps]))
        with np.errstate(all="ignore"):
            block = np.ix_(np.array(one.rows), np.array(steps))
            loading = float(np.nanmedian(times.loading_ns[block] / times.length_ns[steps][None, :]))
            usual = float(np.nanmedian(times.loading_ns / times.length_ns[None, :]))
        if one.pattern == "periodic":
            level = "job" if self._most(one.rows) else "host"
            return replace(self._finding("periodic", level, ranks, one, cost), figures={"idle": 1.0})
        if one.pattern == "now and then":
            made = self._finding("intermittent", "host", ranks, one, cost)
            return replace(made, figures={"steps": float(len(steps))})
        if one.pattern == "drift":
            return self._finding("drift", "host", ranks, one, 0.5 * cost)
        kind = "loader" if loading - usual > 0.5 * one.height else "late_host"
        return self._finding(kind, "loader" if kind == "loader" else "host", ranks, one, cost)

    def _of_links(self, known: list[Verdict]) -> list[Verdict]:
        stretches = Segments(self.run.job)
        found = []
        links = Links(self.run, stretches, self.node)
        for link in links.slow(self.calls, max(self.least, 0.04)):
            slow = link.slow
            few = len(self.times.steps) < FEWEST_STEPS
            if few and (slow.confidence < SURE_LINK or not (slow.whole or links.are_few)):
                continue  # a part of a step is slow by chance in one of many links
            first, last = stretches.first_step(slow.first), stretches.first_step(slow.last)
            steps = (first, last) if stretches.by_step and not slow.whole else None
            cost = self._cost_of_link(link.ranks, slow.factor)
            found.append(
                Verdict(
                    kind="slow_link",
                    level="switch" if self._are_nodes(link.ranks) else "link",
                    ranks=link.ranks,
                    steps=steps,
                    cost_ns=cost,
                    run_ns=self.run_ns,
                    confidence=min(slow.confidence, self._surest),
                    height=slow.factor - 1,
                    every=max(slow.every, 1),
                    pattern="periodic" if slow.every > 1 else "chronic" if slow.whole else "acute",
                )
            )
        return found

    def _are_nodes(self, ranks: tuple[int, ...]) -> bool:
        """Whether these are all ranks of several nodes, and there are others: what they share is a switch."""
        if len(ranks) == len(self.run.job.ranks):
            return False
        nodes = {rank // self.node for rank in ranks}
        mine = sum(1 for rank in self.run.job.ranks.tolist() if rank // self.node in nodes)
        return len(nodes) > 1 and mine == len(ranks)

    # -- a healthy run -------------------------------------------------------------------------------------------------

    def of_healthy(self, found: list[Verdict]) -> list[Verdict]:
        """What a run without faults loses time to, if it is much and removing it buys something."""
        idle, exposed = busy_shares(self.run)
        told: list[Verdict] = []
        everyone = tuple(np.asarray(self.run.job.ranks).tolist())
        whole = Episode((), "whole", 0, 0, 0.0, 10.0)
        retimed = self.retimed
        if retimed is None:
            return []
        told += self._uneven(retimed, found)
        if exposed >= MUCH_EXPOSED and not any(one.share > exposed / 2 for one in [*found, *told]):
            buys = retimed.buys(retimed.chosen("communication"), 1.0)
            told.append(
                self._finding("exposed_communication", "job", everyone, replace(whole, height=exposed), float(buys))
            )
        if idle >= MUCH_IDLE and not any(one.share > idle / 2 for one in found):
            buys = retimed.buys(retimed.chosen("host"), 0.5)
            told.append(self._finding("host_bound", "host", everyone, replace(whole, height=idle), float(buys)))
        return [replace(one, steps=None) for one in told if one.share >= WORTH]

    def _uneven(self, retimed: Retimed, found: list[Verdict]) -> Iterator[Verdict]:
        """Kernels that take longer on some ranks, where no finding explains it: their part of the work, or a fault that
        shows in too few kernels to be distinguished from that."""
        little = [one for one in found if one.kind == "slow_rank" and one.height < LONGER - 1]
        named = {rank for one in found if one.level != "job" and one not in little for rank in one.ranks}
        left_out = np.array([rank in named for rank in self.times.ranks.tolist()])
        uneven = uneven_work(retimed, self.times.stage, left_out)
        if uneven is not None and self.times.has_device:
            whole = Episode((), "whole", 0, 0, uneven.longer, 10.0)
            everyone = tuple(self.times.ranks.tolist())
            made = self._finding("uneven_work", "job", everyone, whole, float(uneven.buys_ns))
            yield replace(made, detail=uneven.name, figures={"rank": float(self.times.ranks[uneven.row])})

    # -- figures -------------------------------------------------------------------------------------------------------

    def _ranks(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(self.times.ranks[row]) for row in rows)

    def _most(self, rows: tuple[int, ...]) -> bool:
        return len(rows) >= ALL * len(self.times.ranks)

    def _with_its_node(self, one: Episode) -> Episode:
        """Where most ranks of a node are slow, the others of it that are slower than the rest of the job are meant."""
        rows = np.array(one.rows)
        nodes, count = np.unique(self.times.ranks[rows] // self.node, return_counts=True)
        if one.pattern != "whole" or len(nodes) != 1 or len(self.times.ranks) <= self.node:
            return one
        mine = np.flatnonzero(self.times.ranks // self.node == nodes[0])
        with np.errstate(all="ignore"):
            level = np.nanmean(self.times.compute.relative, axis=1)
        rest = np.setdiff1d(np.arange(len(level)), mine)
        lean = level[mine] > np.nanmedian(level[rest]) + one.height / 2
        if int(count[0]) >= MOST_OF_NODE * len(mine) and lean.all():
            return replace(one, rows=tuple(mine.tolist()))
        return one

    def _is_node(self, ranks: tuple[int, ...]) -> bool:
        """Whether these are all ranks of one node, or of several, and there are others."""
        all_ranks = self.times.ranks
        nodes = np.unique(np.array(ranks) // self.node)
        mine = all_ranks[np.isin(all_ranks // self.node, nodes)]
        return len(mine) == len(ranks) < len(all_ranks) and len(ranks) >= max(2, self.node // 2) and len(nodes) <= 2

    def _finding(self, kind: str, level: str, ranks: tuple[int, ...], one: Episode, cost: float) -> Verdict:
        times = self.times
        whole = one.pattern in ("whole", "drift") or len(times.steps) < 2
        steps = None if whole else (int(times.steps[one.first]), int(times.steps[one.last]))
        height = (
            float(np.expm1(one.height))
            if level in ("kernel", "node", "power") or kind == "common_change"
            else one.height
        )
        return Verdict(
            kind=kind,
            level=level,
            ranks=ranks,
            steps=steps,
            cost_ns=max(round(min(cost, self.run_ns)), 0),
            run_ns=self.run_ns,
            confidence=self._confidence(one),
            height=height,
            score=one.score,
            every=one.every,
            pattern=PATTERNS[one.pattern],
        )

    def _confidence(self, one: Episode) -> float:
        sure = 1 - UNSURE * exp(-max(one.score - 5.0, 0.0) / 2.0)
        alone = len(one.rows) and int((self.times.stage == self.times.stage[one.rows[0]]).sum()) < 3
        return min(sure, PAIR if alone else self._surest)

    @property
    def _surest(self) -> float:
        return SURE_IN_FEW if len(self.times.steps) < FEWEST_STEPS else SURE

    def _cost_of_work(self, one: Episode) -> float:
        """What the run gains if the work of these ranks were as fast as their peers' in these steps."""
        much = max(self._mean_of(self.times.compute.part.mean, one), 0.0) if self._limited(one) else one.height
        part = 1 - exp(-much * (0.5 if one.pattern == "drift" else 1.0))
        steps = list(one.steps) or list(range(len(self.times.steps)))
        block = self.times.compute.total_ns[np.ix_(np.array(one.rows), np.array(steps))]
        bound = float(np.nansum(np.nanmax(np.where(np.isnan(block), 0, block), axis=0))) * part
        if self.retimed is None:
            return bound
        events = np.concatenate([self.retimed.chosen("compute", "", row) for row in one.rows])
        if len(steps) < len(self.times.steps):
            events = events[np.isin(self._step_of_events(one.rows, len(events)), steps)]
        return min(float(max(self.retimed.buys(events, part), 0)), bound)

    def _step_of_events(self, rows: tuple[int, ...], count: int) -> I64:
        """Step, by position, of the nodes that `Retimed.chosen` gives of these ranks."""
        found = []
        for row in rows:
            part = self.run.part(row)
            mine = np.flatnonzero(uses(part.trace) == Use.COMPUTE)
            found.append(np.searchsorted(self.times.steps, part.trace.step[mine]))
        joined = np.concatenate(found)
        assert len(joined) == count, f"{len(joined)} steps of {count} nodes"
        return joined

    def _bound(self, bound: float, row: int, part: float) -> float:
        if self.retimed is None:
            return bound
        return min(bound, float(max(self.retimed.buys(self.retimed.chosen("compute", "", row), part), 0)))

    def _cost_of_link(self, ranks: tuple[int, ...], factor: float) -> int:
        if self.retimed is None:
            return 0
        at = [self.run.job.index(rank) for rank in ranks if rank in self.times.ranks]
        if not at or len(at) > 64:
            return 0
        events = np.concatenate([self.retimed.chosen("communication", "", row) for row in at])
        return max(self.retimed.buys(events, 1 - 1 / factor), 0)


def _not_alike(idle: F64) -> bool:
    return bool(np.isfinite(idle).any())

"""One model of a run: how long each rank's own work takes in each step, compared with its peers in the same step.

    log t(r, s, p) = level of the rank in the step + middle over its peers of the same place p of the same step

A place is what a node does and its number within the step; peers are the ranks of one pipeline stage. So what a step
has to do, how long a stage is by design, and waiting for others are not in the levels; places in which ranks differ by
what they hold (experts, tables) have little weight.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.analyse.device_work import on_device
from etude.analyse.late_hosts import begins, stages, waits_inside
from etude.analyse.measures import measures
from etude.analyse.operations import CollectiveCalls
from etude.analyse.outliers import grouped_median, weighted_median
from etude.analyse.part_levels import PartLevels, part_levels
from etude.analyse.slow_ranks import Keys, TimeSamples, by_work, expected_times, waiting_nodes
from etude.kernels.arrays import F64, I64, U8, Bool
from etude.kernels.intervals import merged
from etude.model.distinct import distinct
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN, Kind
from etude.model.use import Use, uses

__all__ = ["RunTimes", "WorkLevels", "run_times"]

PEERS: Final = 3
"""Fewest ranks whose middle is a reference; of two, the faster is."""
LEAST_SPREAD: Final = 0.003
"""Spread of a place below which places are equally certain."""
NEAR: Final = 2.5
"""Spreads within which places enter the mean of a level."""
MOST: Final = 1 << 24
"""Largest job of which all times are compared; of a larger one every second, third, ... time of a step."""
FAR: Final = 5.0
"""Spreads of its own from which a time is far off, ..."""
LEAST_FAR: Final = 0.18
"""... and how far at least, as a logarithm."""
LOADERS: Final = re.compile(r"data_?loader|dataiter|next_batch|load_batch|fetch_batch|get_batch", re.IGNORECASE)
"""Names of calls that fetch the next batch."""


@dataclass(frozen=True, slots=True, eq=False)
class WorkLevels:
    """Levels of one kind of work, ranks x steps, as logarithms relative to peers; NaN where nothing was recorded."""

    relative: F64
    error: F64
    """Standard error, from how much places differ."""
    past: F64
    """Ranks x steps: logarithm over what the same places of the same rank's stage usually take."""
    total_ns: F64
    """Ranks x steps: the sum of these times."""
    samples: I64
    """By rank: times that were compared, ..."""
    far: I64
    """... those that are far longer than the same place usually is on this rank, ..."""
    far_ns: F64
    """... and by how much in all."""
    part: PartLevels
    """Levels of the slower part of the kernels, and of the rest."""


@dataclass(frozen=True, slots=True, eq=False)
class RunTimes:
    """Ranks by position, steps by number; without steps the whole run is one."""

    ranks: I64
    steps: I64
    stage: I64
    length_ns: F64
    """By step: the middle of the ranks' device time from the step's first work to the next step's."""
    compute: WorkLevels
    host: WorkLevels
    idle_ns: F64
    """Ranks x steps: time in which a device has nothing to do and does not wait for others."""
    loading_ns: F64
    """Ranks x steps: the part of it in which the host fetches the next batch."""
    has_device: bool

    @property
    def idle(self) -> F64:
        """Idle time over that of the least idle third of the peers, as a share of the step."""
        return _over_peers(self.idle_ns, self.stage) / self.length_ns[None, :]


def run_times(run: Run, found: CollectiveCalls) -> RunTimes:
    """The model of a run with times."""
    known = [np.unique(t.step[t.step != UNKNOWN]) for t in run.job.traces]
    steps = np.unique(np.concatenate(known)) if known else np.zeros(0, np.int64)
    steps = steps if len(steps) > 1 else np.zeros(1, np.int64)
    ranks = len(run.job.ranks)
    stage = stages(run)
    inside = waits_inside(found)
    idle, loading, begun = (np.full((ranks, len(steps)), np.nan) for _ in range(3))
    span = idle.copy()
    has_device = False
    for part in run.parts():
        use = uses(part.trace)
        has_device |= bool((part.trace.cpu == 0).any())
        step = _step_of(part, steps)
        row = _idle(part, use, step, len(steps), inside)
        if row is not None:
            for matrix, values in zip((idle, loading, begun, span), row, strict=True):
                matrix[part.at] = values
    if len(steps) < 2 and (late := begins(run, found)) is not None:
        idle[:, 0] += late
    follows = np.diff(begun, axis=1)
    span[:, :-1] = np.where(np.isnan(follows) | (follows <= 0), span[:, :-1], follows)
    length = np.array([float(np.median(c[~np.isnan(c)])) if (~np.isnan(c)).any() else np.nan for c in span.T])
    return RunTimes(
        np.asarray(run.job.ranks, np.int64),
        steps,
        stage,
        length,
        _levels(run, Use.COMPUTE, steps, stage),
        _levels(run, Use.HOST, steps, stage),
        idle,
        loading,
        has_device,
    )


def _step_of(part: RunPart, steps: I64) -> I64:
    if len(steps) < 2:
        return np.zeros(len(part.trace), np.int64)
    step = part.trace.step
    return np.where(step == UNKNOWN, -1, np.searchsorted(steps, step))


# -- levels ------------------------------------------------------------------------------------------------------------


def _levels(run: Run, use: Use, steps: I64, stage: I64) -> WorkLevels:
    shape = len(run.job.ranks), len(steps)
    keys = Keys()
    taken: list[tuple[I64, I64, I64, I64, F64]] = []
    chosen: dict[int, Bool] = {}
    thin = -(-run.job.nodes // MOST)
    copies = np.arange(shape[0])
    """Ranks that share all times with another one are given its levels."""
    for part in run.parts():
        if id(part.trace.name) not in chosen:
            chosen = {id(part.trace.name): (uses(part.trace) == use) & ~waiting_nodes(part.trace)}
        rows = np.flatnonzero(chosen[id(part.trace.name)] & part.timed)
        rows = rows[np.argsort(part.start_ns[rows], kind="stable")]
        step = _step_of(part, steps)[rows]
        lasted = part.end_ns[rows] - part.start_ns[rows]
        good = (lasted > 0) & (step >= 0)
        rows, step, lasted = rows[good], step[good], lasted[good]
        if use == Use.HOST:
            loads = loads_batch(part)[rows]
            rows, step, lasted = rows[~loads], step[~loads], lasted[~loads]
        key = keys.of(part.trace)[rows]
        number = _numbers(step, key, len(keys.numbers))
        copies[part.at[PEERS:]] = part.at[0]
        some = np.flatnonzero(number % thin == 0)
        step, key, number, lasted = step[some], key[some], number[some], lasted[some]
        taken += [
            (np.full(len(key), at, np.int64), step, key, number, lasted.astype(np.float64))
            for at in part.at[:PEERS].tolist()
        ]
    none = [np.zeros(0, np.int64)] * 4 + [np.zeros(0)]
    unit, step, key, number, lasted = (np.concatenate([none[i], *(t[i] for t in taken)]) for i in range(5))
    total = np.full(shape, np.nan)
    if not len(unit):
        zero = np.zeros(shape[0], np.int64)
        return WorkLevels(total, total, total, total, zero, zero, np.zeros(shape[0]), PartLevels(total, total, total))
    given = TimeSamples(unit, key, step, np.log(lasted))
    alone = _apart(unit, key, step, len(keys.numbers))
    same, _ = by_work(given, np.array(keys.family, np.int64), np.array(keys.work), apart=alone)
    if (same.key != key).any():
        key = same.key
        number = _numbers(unit * shape[1] + step, key, int(key.max()) + 1)
    log = same.log
    cell_of = unit * shape[1] + step
    sums = np.bincount(cell_of, lasted, shape[0] * shape[1])
    total = np.where(np.bincount(cell_of, minlength=len(sums)) > 0, sums, np.nan).reshape(shape)
    _, place = distinct([stage[unit], key, number])
    places = int(place.max()) + 1
    _, kind = distinct([stage[unit], key])
    away, compared = _from_peers(log, place * shape[1] + step, places * shape[1])
    usual = grouped_median(place, log, places)[place]
    if use == Use.COMPUTE and len(set(keys.family)) < len(keys.family):
        usual = _given_the_work(unit, key, np.exp(log), usual, keys, stage)
    spread = np.maximum(_spread(kind[compared], away[compared], int(kind.max()) + 1)[kind], LEAST_SPREAD)
    if compared.any():
        relative, error = _level(cell_of[compared], away[compared], spread[compared], shape)
    else:
        relative, error = np.full(shape, np.nan), np.full(shape, np.nan)
    slower = part_levels(cell_of[compared], kind[compared], away[compared], lasted[compared].astype(np.float64), shape)
    past = grouped_median(cell_of, log - usual, shape[0] * shape[1]).reshape(shape)
    left = np.where(compared, away - np.nan_to_num(relative)[unit, step], log - usual)
    _, own = distinct([unit, kind])
    left = left - grouped_median(own, left, int(own.max()) + 1)[own]
    varies = _spread(kind, left, int(kind.max()) + 1)[kind]
    far = left > np.maximum(FAR * varies, LEAST_FAR)
    more = lasted * (1 - np.exp(-np.maximum(left, 0)))
    samples, apart = np.bincount(unit, minlength=shape[0]), np.bincount(unit[far], minlength=shape[0])
    far_ns = np.bincount(unit[far], more[far], shape[0]).astype(np.float64)
    return WorkLevels(
        relative[copies],
        error[copies],
        past[copies],
        total[copies],
        samples[copies].astype(np.int64),
        apart[copies].astype(np.int64),
        far_ns[copies],
        PartLevels(*(x[copies] for x in slower)),
    )


def _apart(unit: I64, key: I64, step: I64, keys: int) -> Bool:
    """Keys whose work too few ranks did in the same step, in most of the cases."""
    pairs, which = distinct([key, step, unit])
    cells, cell = distinct([pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)])
    few = (np.bincount(cell, minlength=len(cells)) < PEERS)[cell][which]
    found: Bool = 2 * np.bincount(key, few, keys) > np.bincount(key, minlength=keys)
    return found


def _given_the_work(unit: I64, key: I64, lasted: F64, usual: F64, keys: Keys, stage: I64) -> F64:
    """Logarithm of what each amount of work usually takes, where nodes of a family do different amounts; else as
    given."""
    found = usual.copy()
    family, work = np.array(keys.family, np.int64), np.array(keys.work)
    known = key < len(family)  # the keys of work that was brought to one amount come after
    of = np.where(known, family[np.where(known, key, 0)], -1)
    amount = np.where(known, work[np.where(known, key, 0)], 0.0)
    _, scope = distinct([of, stage[unit]])
    order = np.argsort(scope, kind="stable")
    bounds = np.flatnonzero(np.diff(scope[order])) + 1
    for rows in np.split(order, bounds):
        if of[rows[0]] < 0 or amount[rows].min() <= 0:
            continue
        expected = expected_times(amount[rows], lasted[rows])
        if expected is not None:
            found[rows] = np.log(expected)
    return found


def _numbers(step: I64, key: I64, keys: int) -> I64:
    """The how-many-th of its key in its step each is, in the order given."""
    joint = step * keys + key
    order = np.argsort(joint, kind="stable")
    ordered = joint[order]
    first = np.searchsorted(ordered, ordered)
    number = np.empty(len(joint), np.int64)
    number[order] = np.arange(len(joint)) - first
    return number


def _from_peers(log: F64, cell: I64, cells: int) -> tuple[F64, Bool]:
    """(logarithm over the middle of the same place and step, whether there are peers)."""
    count = np.bincount(cell, minlength=cells)
    middle = grouped_median(cell, log, cells)
    least = np.full(cells, np.inf)
    np.minimum.at(least, cell, log)
    reference = np.where(count >= PEERS, middle, least)
    return log - reference[cell], (count >= 2)[cell]


def _spread(group: I64, values: F64, groups: int) -> F64:
    """Scaled median deviation of each group."""
    middle = grouped_median(group, values, groups)
    return 1.4826 * np.nan_to_num(grouped_median(group, np.abs(values - middle[group]), groups))


def _level(cell: I64, away: F64, spread: F64, shape: tuple[int, int]) -> tuple[F64, F64]:
    """Mean over the places of a rank and step that are near their weighted middle, and its standard error."""
    cells = shape[0] * shape[1]
    weight = spread**-2.0
    middle = weighted_median(cell, away, weight, cells)
    near = np.abs(away - middle[cell]) <= NEAR * spread
    total = np.bincount(cell[near], weight[near], cells)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(cell[near], (weight * away)[near], cells) / total
        error = 1.1 / np.sqrt(total)
    mean = np.where(total > 0, mean, middle)
    return mean.reshape(shape), np.where(total > 0, error, np.nan).reshape(shape)


# -- idle time ---------------------------------------------------------------------------------------------------------


def _idle(part: RunPart, use: U8, step: I64, count: int, inside: bool) -> tuple[F64, F64, F64, F64] | None:
    """By step: idle time, that while a batch is fetched, the first start, and the length of a device's work."""
    rows = np.flatnonzero(on_device(part, use))
    rows = rows[step[rows] >= 0]
    rows = rows[np.argsort(part.start_ns[rows], kind="stable")]
    if not len(rows):
        return None
    first, last = merged(part.start_ns[rows], part.end_ns[rows])
    at = np.searchsorted(part.start_ns[rows], first[1:])
    ends = rows[at]
    counts = np.ones(len(ends), bool)
    if not inside:
        counts = ~np.isin(part.trace.kind[ends], (Kind.COLL, Kind.SEND, Kind.RECV))
    gap = (first[1:] - last[:-1])[counts]
    idle = np.bincount(step[ends[counts]], gap, count).astype(np.float64)
    fetched = np.flatnonzero(loads_batch(part) & part.timed)
    loading = np.zeros(count)
    if len(fetched):
        fetched = fetched[np.argsort(part.start_ns[fetched], kind="stable")]
        a, b = merged(part.start_ns[fetched], part.end_ns[fetched])
        if counts.any():
            shared = _covered(last[:-1][counts], first[1:][counts], a, b)
            loading = np.bincount(step[ends[counts]], shared, count).astype(np.float64)
        if count == 1:  # of a single step, before its first work too
            begin_ns = part.start_ns[part.timed].min()
            loading += _covered(np.array([begin_ns]), first[:1], a, b)
    begin, end = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(begin, step[rows], part.start_ns[rows])
    np.maximum.at(end, step[rows], part.end_ns[rows])
    some = end >= begin
    nan = np.full(count, np.nan)
    return (
        np.where(some, idle, nan),
        np.where(some, loading, nan),
        np.where(some, begin, nan),
        np.where(some, end - begin, nan),
    )


def loads_batch(part: RunPart) -> Bool:
    """Calls of the host that fetch the next batch."""
    codes, words = part.trace.coded("name")
    return np.array([*(bool(LOADERS.search(word)) for word in words), False])[codes] & (part.trace.cpu == 1)


def _covered(start: I64, end: I64, a: I64, b: I64) -> F64:
    """How much of each interval the disjoint, ascending intervals a..b cover."""
    total = np.append(0, np.cumsum(b - a))

    def until(time: I64) -> F64:
        i = np.searchsorted(a, time, "right")
        past = np.maximum(b[np.maximum(i - 1, 0)] - time, 0)
        return np.where(i > 0, total[i] - past, 0).astype(np.float64)

    return until(end) - until(start)


def _over_peers(values: F64, stage: I64) -> F64:
    """Values less the middle of the same stage and step; of two peers, less the smaller."""
    found = np.full_like(values, np.nan)
    for one in np.unique(stage).tolist():
        mine = stage == one
        if mine.sum() < 2:
            continue
        part = values[mine]
        with np.errstate(all="ignore"):
            reference = np.nanmedian(part, axis=0) if mine.sum() >= PEERS else np.nanmin(part, axis=0)
        found[mine] = part - reference
    return found


def busy_shares(run: Run) -> tuple[float, float]:
    """(idle, exposed communication) as shares of the devices' time, over all ranks."""
    sums = np.zeros(3)
    for part in run.parts():
        use = uses(part.trace)
        found = measures(part, np.flatnonzero(on_device(part, use)), use)
        sums += len(part.at) * np.array([found["idle_ns"], found["exposed_comm_ns"], found["span_ns"]], np.float64)
    return (sums[0] / sums[2], sums[1] / sums[2]) if sums[2] else (0.0, 0.0)

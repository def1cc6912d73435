"""Radio functions and AI services over minutes: shares every epoch, places at longer intervals, requests one by one.

Slots are counted per stretch in closed form, because shares are constant in one. Requests of a service are served one
after another; a request whose deadline passes is dropped, whether it waits or runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel
from etude.world.fleet.radio.places import best_place
from etude.world.fleet.radio.shares import DEADLINES, EVENLY, shares_at, slots_in_time, times_at
from etude.world.fleet.radio.spec import RadioFile


@dataclass(frozen=True, slots=True, eq=False)
class RadioRun:
    """Result of a run; two-dimensional arrays have a row per member and a column per stretch."""

    pool: RadioFile
    begin_s: F64
    """Start of each stretch; the last ends with the duration."""
    place: NDArray[np.int64]
    paused: NDArray[np.bool_]
    gpu: F64
    cpu: F64
    in_time: F64
    """Fraction of the slots of each function that are in time, by stretch; nan for services."""
    asked: I64
    """Slots or requests of each member."""
    met: F64
    moves: list[tuple[float, int, int, int]]
    """(time, member, from, to)."""


def share_radio(pool: RadioFile, *, seed: int = 0) -> RadioRun:
    spec = pool.spec
    if spec.duration_ns // spec.epoch_ns > 10**6:
        raise UsageError("more than a million epochs", hint="epoch: 1s")
    begins, places, paused, moves = _placed(pool)
    how = EVENLY if spec.policy == "strict" else DEADLINES
    shape = len(pool.place), len(begins)
    gpu, cpu, times, in_time = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
    for k, begin_s in enumerate(begins):
        factor = loads(pool, begin_s)
        given = shares_at(pool.members, factor, places[:, k], how)
        gpu[:, k], cpu[:, k] = given.gpu, given.cpu
        times[:, k] = times_at(pool.members, given)
        for i in range(len(pool.cells)):
            met = slots_in_time(times[i, k] * factor[i], pool.members.deadline_s[i], pool.members.vary[i])
            in_time[i, k] = 0.0 if paused[i, k] else met
    asked, met_all = _counted(pool, begins, np.where(paused, np.inf, times), in_time, seed)
    return RadioRun(pool, begins, places, paused, gpu, cpu, in_time, asked, met_all, moves)


def loads(pool: RadioFile, at_s: float) -> F64:
    """Load of each member relative to its mean, at the begin of the epoch."""
    every = pool.every
    turn = np.array([at_s * 1e9 / one.period_ns + one.phase for one in every])
    return np.maximum(1.0 + np.array([one.swing for one in every]) * np.sin(2 * np.pi * turn), 1e-9)


def _placed(pool: RadioFile) -> tuple[F64, I64, NDArray[np.bool_], list[tuple[float, int, int, int]]]:
    """Stretches in which shares, places and interruptions are constant: begins, places, pauses, and moves."""
    spec, members = pool.spec, pool.members
    end_s, every_s = spec.duration_ns / 1e9, spec.every_ns / 1e9
    migrate_s = spec.migrate_s
    looks = np.arange(0.0, end_s, every_s) if spec.policy in ("greedy", "haf") else np.zeros(0)
    epochs = np.arange(0.0, end_s, spec.epoch_ns / 1e9)
    place, changes, moves = pool.place.copy(), [(0.0, pool.place)], []
    pauses: list[tuple[int, float, float]] = []
    for look_s in looks:
        known = 0.0 if spec.policy == "greedy" else migrate_s
        wanted = best_place(members, loads(pool, look_s), place, every_s, known)
        for i in np.flatnonzero(wanted != place).tolist():
            moves.append((float(look_s), i, int(place[i]), int(wanted[i])))
            pauses.append((i, float(look_s), float(look_s) + migrate_s))
        place = wanted
        changes.append((float(look_s), place))
    ends = [stop for _, _, stop in pauses if stop < end_s]
    begins = np.unique(np.concatenate([epochs, looks, np.array(ends)]))
    at = np.searchsorted([time for time, _ in changes], begins, side="right") - 1
    places = np.stack([changes[k][1] for k in at], axis=1)
    paused = np.zeros(places.shape, bool)
    for i, start, stop in pauses:
        paused[i] |= (begins >= start) & (begins < stop)
    return begins, places, paused, moves


def _counted(pool: RadioFile, begins: F64, times: F64, in_time: F64, seed: int) -> tuple[I64, F64]:
    end_s = pool.spec.duration_ns / 1e9
    lasts = np.diff(np.append(begins, end_s))
    asked, met = np.zeros(len(pool.place), np.int64), np.zeros(len(pool.place))
    for i, cell in enumerate(pool.cells):
        slots = lasts / (cell.slot_ns / 1e9)
        asked[i], met[i] = round(slots.sum()), float((slots * in_time[i]).sum())
    for k, one in enumerate(pool.services):
        i = len(pool.cells) + k
        arrival, work = requests_of(pool, i, seed)
        ends = np.append(begins[1:], np.inf)
        asked[i] = len(arrival)
        met[i] = _served(arrival, work, begins, ends, times[i], one.deadline_ns / 1e9)
    return asked, met


def requests_of(pool: RadioFile, member: int, seed: int) -> tuple[F64, F64]:
    """Arrivals and work of a service, from its own random stream: the same for every policy. A Poisson stream at the
    highest rate, thinned."""
    spec, one = pool.spec, pool.services[member - len(pool.cells)]
    draws = np.random.default_rng([seed, member])
    end_s, most = spec.duration_ns / 1e9, one.rate * spec.load * (1 + one.swing)
    times = np.sort(draws.uniform(0.0, end_s, draws.poisson(most * end_s)))
    turn = times * 1e9 / one.period_ns + one.phase
    kept = draws.uniform(0.0, 1 + one.swing, len(times)) < 1.0 + one.swing * np.sin(2 * np.pi * turn)
    return times[kept], draws.exponential(1.0, int(kept.sum()))


@kernel
def _served(arrival: F64, work: F64, begins: F64, ends: F64, times: F64, deadline_s: float) -> int:
    """Number of requests in time, served one after another, each at the speed of the stretches that it runs in."""
    free, met, k = 0.0, 0, 0
    for r in range(len(arrival)):
        now, left, last = max(arrival[r], free), work[r], arrival[r] + deadline_s
        if now >= last:
            continue
        while k + 1 < len(begins) and ends[k] <= now:
            k += 1
        at = k
        while now < last:
            stop = min(ends[at], last)
            if now + left * times[at] <= stop:
                now += left * times[at]
                met += 1
                break
            left -= (stop - now) / times[at]
            now = stop
            at = min(at + 1, len(begins) - 1)
        free = now
    return met

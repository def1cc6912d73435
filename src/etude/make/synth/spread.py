"""How ranks and steps differ in time: factors of a rank, of a step and of both, and random variation of nodes.

A rank's time is compared with the mean times of its nodes' classes, separately on the host and on the device. What
remains at a place of the program, from rank to rank and step to step, is the class's own jitter; differences from place
to place belong to the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64, I64
from etude.make.synth.learned import COLUMNS, Knots, Spread
from etude.make.synth.programs import LearnedProgram
from etude.model.schema import UNKNOWN

KNOTS: Final = 7
LEAST: Final = 0.002
"""Factors that are closer than this count as equal."""
TIME: Final = COLUMNS.index("duration_ns")
NORMAL: Final = NormalDist()


@dataclass(slots=True)
class SpreadSamples:
    """(score, weight) of each kind of factor, as logarithms."""

    rank: list[tuple[float, float]] = field(default_factory=list)
    step: list[tuple[float, float]] = field(default_factory=list)
    both: list[tuple[float, float]] = field(default_factory=list)

    def spread(self) -> Spread:
        return Spread(_knots(self.rank), _knots(self.step), _knots(self.both))


def spread_of(
    jobs: Sequence[Sequence[Sequence[int]]], programs: Sequence[LearnedProgram], classes: Sequence[I64]
) -> tuple[Spread, Spread, F64]:
    """(host, device, level of each program on both). Jobs are lists of roles, roles of programs. The level is that of
    the role. Times of the programs are divided by what their rank and step have more than others: what is left is that
    of a usual one."""
    mean = _means(programs, classes)
    level = np.ones((len(programs), 2))
    found = SpreadSamples(), SpreadSamples()
    for roles in jobs:
        if len({programs[i].steps for role in roles for i in role}) == 1:
            for side in (0, 1):
                _compare(roles, programs, classes, mean, side, found[side], level)
    return found[0].spread(), found[1].spread(), level


def _compare(
    roles: Sequence[Sequence[int]],
    programs: Sequence[LearnedProgram],
    classes: Sequence[I64],
    mean: F64,
    side: int,
    found: SpreadSamples,
    level: F64,
) -> None:
    cells = [
        (number, i, v, w)
        for number, role in enumerate(roles)
        for i in role
        for v, w in zip(programs[i].values, programs[i].weights, strict=True)
    ]
    logs = np.log(np.stack([_factors(programs[i], classes[i], v, mean, side == 0) for _, i, v, _ in cells]))
    weights, of = np.array([w for *_, w in cells]), np.array([number for number, *_ in cells])
    of_step = np.average(logs, axis=0, weights=weights)
    step, of_rank = of_step - of_step.mean(), logs.mean(axis=1)
    of_role = (np.bincount(of, weights * of_rank) / np.bincount(of, weights))[of]
    both = logs - of_rank[:, None] - step[None, :]
    many = np.bincount(of)[of] > 1
    found.rank += zip((of_rank - of_role)[many].tolist(), weights[many].tolist(), strict=True)
    if len(step) > 1:
        found.step += ((v, 1.0) for v in step.tolist())
    if len(step) > 1 and len(cells) > 1:
        found.both += zip(both.ravel().tolist(), np.repeat(weights, len(step)).tolist(), strict=True)
    for (_, i, values, _), more, role in zip(cells, np.exp(logs), of_role, strict=True):
        level[i, side] = np.exp(role)
        _divide(programs[i], values, more, side == 0)


def _means(programs: Sequence[LearnedProgram], classes: Sequence[I64]) -> F64:
    """Mean time of each class."""
    count = max(int(c.max(initial=-1)) for c in classes) + 1
    total, nodes = np.zeros(count), np.zeros(count)
    for program, number in zip(programs, classes, strict=True):
        for values, weight in zip(program.values, program.weights, strict=True):
            time = values[:, TIME]
            known = time != UNKNOWN
            total += weight * np.bincount(number[known], time[known], count)
            nodes += weight * np.bincount(number[known], minlength=count)
    return total / np.maximum(nodes, 1e-300)


def _factors(program: LearnedProgram, classes: I64, values: I64, mean: F64, host: bool) -> F64:
    """Time of each step on a rank, relative to the mean times of its nodes."""
    mine = _timed(program, values, host)
    took = np.bincount(program.step[mine], values[mine, TIME], program.steps)
    usual = np.bincount(program.step[mine], mean[classes[mine]], program.steps)
    return np.where((took > 0) & (usual > 0), took / np.maximum(usual, 1e-300), 1.0)


def _divide(program: LearnedProgram, values: I64, more: F64, host: bool) -> None:
    mine = _timed(program, values, host)
    values[mine, TIME] = np.rint(values[mine, TIME] / more[program.step[mine]]).astype(np.int64)


def _timed(program: LearnedProgram, values: I64, host: bool) -> NDArray[np.bool_]:
    return program.computes & (program.on_host == host) & (values[:, TIME] != UNKNOWN)


def _knots(logs: Sequence[tuple[float, float]]) -> Knots:
    """Factors at their normal scores, a few of them if they are many."""
    if len(logs) < 2 or max(abs(v) for v, _ in logs) < LEAST:
        return ()
    return tuple((z, round(float(np.exp(v)), 4)) for z, v in _scored(logs))


def _scored(values: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(normal score, value) of weighted values, ascending."""
    value, weight = np.array(sorted(values)).T
    score = np.array([NORMAL.inv_cdf(p) for p in (np.cumsum(weight) - weight / 2) / weight.sum()])
    if len(score) > KNOTS:
        at = np.linspace(score[0], score[-1], KNOTS)
        value, score = np.interp(at, score, value), at
    return [(round(float(z), 3), float(v)) for z, v in zip(score, value, strict=True)]


def late_of(programs: Sequence[LearnedProgram]) -> Knots:
    """How much later the ranks of a role began than the first of the job."""
    late = [(float(ns), w) for p in programs for ns, w in zip(p.late_ns, p.weights, strict=True)]
    if not any(ns for ns, _ in late):
        return ()
    return tuple((z, float(f"{max(ns, 0):.3g}")) for z, ns in _scored(late))


def own_share(
    jobs: Sequence[Sequence[Sequence[int]]], programs: Sequence[LearnedProgram], classes: Sequence[I64], count: int
) -> F64:
    """Fraction of the variance of each class's times within a place: from rank to rank and from step to step."""
    within, freedom = np.zeros(count), np.zeros(count)
    for roles in jobs:
        cells: dict[int, list[F64]] = {}
        for i in (i for role in roles for i in role):
            for values in programs[i].values:
                for number, times in _by_class_and_step(programs[i], classes[i], values):
                    cells.setdefault(number, []).append(times)
        for number, found in cells.items():
            same = _usual_length(found)
            if len(same) > 1:
                table = np.stack(same)
                within[number] += table.var(axis=0, ddof=1).sum() * (len(same) - 1)
                freedom[number] += table.shape[1] * (len(same) - 1)
    total = _variances(programs, classes, count)
    share = np.where(freedom > 0, within / np.maximum(freedom, 1), 0.0) / np.maximum(total, 1e-12)
    return np.where(total > 1e-8, np.clip(share, 0.0, 1.0), 0.0)


def _by_class_and_step(program: LearnedProgram, classes: I64, values: I64) -> list[tuple[int, F64]]:
    """Logarithms of the times of each class in each step, in order."""
    mine = np.flatnonzero(program.computes & (values[:, TIME] != UNKNOWN))
    key = classes[mine] * program.steps + program.step[mine]
    order = np.argsort(key, kind="stable")
    numbers, first = np.unique(key[order], return_index=True)
    times = np.log(np.maximum(values[mine, TIME][order], 1))
    parts = np.split(times, first[1:]) if len(first) else []
    return [(int(k) // program.steps, part) for k, part in zip(numbers.tolist(), parts, strict=True)]


def _usual_length(found: list[F64]) -> list[F64]:
    lengths = [len(f) for f in found]
    usual = max(set(lengths), key=lambda n: (lengths.count(n), n))
    return [f for f in found if len(f) == usual]


def _variances(programs: Sequence[LearnedProgram], classes: Sequence[I64], count: int) -> F64:
    """Variance of the logarithms of each class's times."""
    n, first, second = np.zeros(count), np.zeros(count), np.zeros(count)
    for program, number in zip(programs, classes, strict=True):
        for values in program.values:
            mine = program.computes & (values[:, TIME] != UNKNOWN)
            log, of = np.log(np.maximum(values[mine, TIME], 1)), number[mine]
            n += np.bincount(of, minlength=count)
            first += np.bincount(of, log, count)
            second += np.bincount(of, log**2, count)
    mean = first / np.maximum(n, 1)
    return np.maximum(second / np.maximum(n, 1) - mean**2, 0.0)


def factors(knots: Knots, count: int, random: np.random.Generator, spread: float = 1.0) -> F64:
    """This many factors with this distribution and a mean of 1, in random order."""
    if not knots or count < 2 or not spread:
        return np.ones(count)
    found = np.exp(spread * _scores(tuple((z, float(np.log(f))) for z, f in knots), count))
    shuffled: F64 = random.permutation(found / found.mean())
    return shuffled


def late(knots: Knots, count: int, random: np.random.Generator, spread: float = 1.0) -> F64:
    """How much later each of this many ranks begins than the first of the job."""
    if not knots or not spread:
        return np.zeros(count)
    shuffled: F64 = random.permutation(np.rint(np.maximum(_scores(knots, count), 0) * spread))
    return shuffled


def _scores(knots: Knots, count: int) -> F64:
    """Values at evenly spread places of a distribution. Beyond the learned range they are extrapolated with the overall
    slope."""
    score, value = np.array(knots).T
    at = np.array([NORMAL.inv_cdf((i + 0.5) / count) for i in range(count)])
    slope = (value[-1] - value[0]) / (score[-1] - score[0]) if len(knots) > 1 else 0.0
    return np.interp(at, score, value) + slope * (np.maximum(at - score[-1], 0) + np.minimum(at - score[0], 0))

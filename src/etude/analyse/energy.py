"""Power and energy of a run: what each rank draws at each instant, their sum, and how it can be smoothed.

A rank draws its idle power plus that of its running nodes (`etude.cost.energy`), up to the limit of its device. Energy
is the integral of that, exactly: power changes only where a node starts or ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from etude.analyse.device_work import on_device
from etude.base.errors import UsageError
from etude.cost.choice import Menu, chosen
from etude.cost.energy import assumed, at_work_w, costs_of, idle_w, limit_w
from etude.cost.ops import OpClass
from etude.cost.traces import ops_of
from etude.kernels.arrays import F64, I64
from etude.machine.system import Device
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN
from etude.model.use import Use, uses

REGULATED_NS: Final = 10_000_000
"""Window over which the regulator of a board averages its power; assumed."""

__all__ = ["Energy", "PowerCurve", "energy", "rank_power", "with_battery", "with_floor", "with_stagger"]


@dataclass(frozen=True, slots=True, eq=False)
class PowerCurve:
    """Power over time, a step function: `watts[i]` from `time_ns[i]` to `time_ns[i + 1]`."""

    time_ns: I64
    watts: F64

    @property
    def energy_j(self) -> float:
        return float((self.watts * np.diff(self.time_ns)).sum()) / 1e9

    @property
    def span_ns(self) -> int:
        return int(self.time_ns[-1] - self.time_ns[0])

    @property
    def mean_w(self) -> float:
        return self.energy_j / self.span_ns * 1e9 if self.span_ns else 0.0

    @property
    def peak_w(self) -> float:
        return float(self.watts.max(initial=0.0))

    @property
    def regulated_w(self) -> float:
        """Highest mean over windows of REGULATED_NS, or over the whole curve if that is higher: the end of a curve that
        is not a whole window counts there."""
        whole = self.span_ns // REGULATED_NS
        return max(float(self.sampled(REGULATED_NS).watts[:whole].max(initial=0.0)), self.mean_w)

    @property
    def swing_w(self) -> float:
        """Highest minus lowest power."""
        return self.peak_w - float(self.watts.min(initial=self.peak_w))

    def ramp_w_per_s(self) -> float:
        """The steepest change from one value to the next, over the time between their middles."""
        if len(self.watts) < 2:
            return 0.0
        middle = (self.time_ns[1:] + self.time_ns[:-1]) / 2e9
        return float((np.abs(np.diff(self.watts)) / np.diff(middle)).max())

    def sampled(self, every_ns: int) -> PowerCurve:
        """Means over windows of this length from the start; the last may be shorter. Energy stays as it is."""
        if every_ns < 1:
            raise UsageError(f"windows of {every_ns} ns are not valid", hint="1ms")
        first, last = int(self.time_ns[0]), int(self.time_ns[-1])
        edges = np.append(np.arange(first, max(last, first + 1), every_ns), max(last, first + 1))
        done = np.concatenate([[0.0], np.cumsum(self.watts * np.diff(self.time_ns))])
        at = np.interp(edges, self.time_ns, done)
        return PowerCurve(edges, np.diff(at) / np.diff(edges))


@dataclass(frozen=True, slots=True, eq=False)
class Energy:
    """Energy of a run. `by_class` adds up to the energy of the curve: idle power, classes of ops, communication."""

    curve: PowerCurve
    by_class: dict[str, float]
    ranks: int
    highest_w: float = 0.0
    """Highest mean of one device over a window of REGULATED_NS, or over the whole run."""
    assumed: tuple[str, ...] = field(default=())
    """Devices whose constants are worked out from their limit instead of measured."""

    def __repr__(self) -> str:
        most = sorted(self.by_class.items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(f"{name} {joules:.4g} J" for name, joules in most)
        return f"Energy({sum(self.by_class.values()):.6g} J of {self.ranks:,} ranks; most: {parts})"


def energy(
    run: Run, *, device: Device | None = None, ratio: float = 1.0, end_ns: int = 0, menu: Menu | None = None
) -> Energy:
    """Energy of all ranks from the run's first start to its last end, or `end_ns` if that is later.

    `device` is what the ranks run on, where the run's system does not say it; `ratio` the clock over the nominal one,
    at which the run's times were made; `menu` the kernels and units with which they were.

    etude.energy(run, device=etude.open_system("dgx-h200").device)
    """
    parts = [one for part in run.parts() for one in _by_device(run, part, device)]
    first, last = _span(run)
    last = max(last, end_ns, first)
    curves, by_class, highest = [], dict[str, float](), 0.0
    for part, own in parts:
        curve, classes = _rank(part, own, ratio, first, last, menu)
        curves.append((curve, len(part.at)))
        highest = max(highest, curve.regulated_w)
        for name, joules in classes.items():
            by_class[name] = by_class.get(name, 0.0) + joules * len(part.at)
    names = dict.fromkeys(own.name for _, own in parts if assumed(own))
    return Energy(_sum(curves, first, last), by_class, len(run.job.ranks), highest, tuple(names))


def rank_power(run: Run, rank: int, *, device: Device | None = None) -> PowerCurve:
    """Power of one rank over the run, on the rank's clock. `device` is as in `energy`."""
    part, own = _by_device(run, run.part(run.job.index(rank)), device)[0]
    return _rank(part, own, 1.0, *_span(run), None)[0]


def _by_device(run: Run, part: RunPart, device: Device | None) -> list[tuple[RunPart, Device]]:
    """The part, or one for each kind of device that its ranks are on."""
    if device is not None:
        return [(part, device)]
    if run.system is None:
        raise UsageError("the devices of the run are not known", hint="--ran-on h200, or --system dgx-h200")
    kinds = run.system.kind_of(run.job.ranks[part.at])
    return [
        (replace(part, at=part.at[kinds == number]), run.system.all_kinds[number])
        for number in np.unique(kinds).tolist()
    ]


def _span(run: Run) -> tuple[int, int]:
    starts = [int(block[block != UNKNOWN].min()) for block in run.timing.start_ns if (block != UNKNOWN).any()]
    ends = run.timing.last_ends()
    ends = ends[ends != UNKNOWN]
    return min(starts, default=0), int(ends.max(initial=0))


def _rank(
    part: RunPart, device: Device, ratio: float, first: int, last: int, menu: Menu | None
) -> tuple[PowerCurve, dict[str, float]]:
    """Power of one rank of a part, and its energy by class."""
    use = uses(part.trace)
    rows = np.flatnonzero(on_device(part, use))
    start, end = part.start_ns[rows], part.end_ns[rows]
    ops = ops_of(part.trace).take(rows)
    vector: F64 | float = 0.0
    if menu:
        choice = chosen(device.busy(), ops, menu)
        ops, vector = choice.ops, choice.vector_flops
    watts = at_work_w(device, ops, end - start, ratio=ratio, vector_flops=vector)
    talks, copies = use[rows] == Use.COMMUNICATION, use[rows] == Use.MEMORY
    costs, seconds = costs_of(device), np.maximum(end - start, 1) / 1e9
    size = np.maximum(part.trace.tensor_bytes[rows], 0)
    watts[talks] = costs.communication_w + (costs.link_byte_pj * 1e-12 * size / seconds)[talks]
    watts[copies] = (costs.byte_pj * 1e-12 * size / seconds)[copies]
    curve = _curve(start, end, watts, first, last)
    idle, most = idle_w(device, ratio), limit_w(device)
    given = np.minimum(curve.watts, most - idle)
    # At the limit all running nodes are throttled in proportion.
    share = np.divide(given, curve.watts, out=np.ones_like(given), where=curve.watts > 0)
    kept = np.concatenate([[0.0], np.cumsum(share * np.diff(curve.time_ns))])
    joules = watts * (np.interp(end, curve.time_ns, kept) - np.interp(start, curve.time_ns, kept)) / 1e9
    classes = {"idle": idle * (last - first) / 1e9}
    number = np.where(talks, 254, np.where(copies, 255, ops.op_class))
    for one in np.unique(number).tolist():
        name = {254: "communication", 255: "memory"}.get(one) or (OpClass(one).key if one else "unknown")
        classes[name] = float(joules[number == one].sum())
    return PowerCurve(curve.time_ns, idle + given), classes


def _curve(start: I64, end: I64, watts: F64, first: int, last: int) -> PowerCurve:
    """Sum of intervals, each with its power."""
    time = np.concatenate([[first, last], start, end])
    change = np.concatenate([[0.0, 0.0], watts, -watts])
    return _stepped(time, change)


def _stepped(time: I64, change: F64) -> PowerCurve:
    """The step function that changes by these amounts at these times."""
    edges, where = np.unique(time, return_inverse=True)
    jumps = np.bincount(where.reshape(-1), weights=change, minlength=len(edges))
    if len(edges) == 1:
        return PowerCurve(np.array([edges[0], edges[0]]), np.zeros(1))
    return PowerCurve(edges, np.maximum(np.cumsum(jumps)[:-1], 0.0))


def _sum(curves: list[tuple[PowerCurve, int]], first: int, last: int) -> PowerCurve:
    """Sum of the ranks' curves, which all go from `first` to `last`."""
    times = [curve.time_ns[:-1] for curve, _ in curves]
    jumps = [np.diff(curve.watts, prepend=0.0) * count for curve, count in curves]
    if not curves:
        return PowerCurve(np.array([first, last]), np.zeros(1))
    time, change = np.concatenate([*times, [last]]), np.concatenate([*jumps, [0.0]])
    return _stepped(time, change)


# -- smoothing ---------------------------------------------------------------------------------------------------------


def with_floor(curve: PowerCurve, floor_w: float) -> PowerCurve:
    """The power curve with a floor: devices burn the difference."""
    if floor_w < 0:
        raise UsageError(f"a floor of {floor_w:g} W")
    return PowerCurve(curve.time_ns, np.maximum(curve.watts, floor_w))


def with_battery(curve: PowerCurve, capacity_j: float, *, efficiency: float = 1.0) -> PowerCurve:
    """The power curve with a battery at the cluster, half full at first, that keeps the power at its mean as far as its
    charge allows. `efficiency` is energy out over energy in."""
    if capacity_j < 0 or not 0 < efficiency <= 1:
        raise UsageError(f"a battery of {capacity_j:g} J, of which {efficiency:g} comes out")
    target, charge = curve.mean_w, capacity_j / 2
    seconds = np.diff(curve.time_ns) / 1e9
    edges, watts = [float(curve.time_ns[0])], list[float]()

    def add(length: float, value: float) -> None:
        if length > 0:
            edges.append(edges[-1] + length * 1e9)
            watts.append(value)

    for needs, length in zip(curve.watts.tolist(), seconds.tolist(), strict=True):
        over = needs - target
        rate = -over * efficiency if over < 0 else -over  # of the charge, W
        room = capacity_j - charge if over < 0 else charge
        lasts = min(length, room / abs(rate)) if rate else length
        add(lasts, target if rate else needs)
        add(length - lasts, needs)
        charge = min(max(charge + rate * lasts, 0.0), capacity_j)
    return PowerCurve(np.rint(edges).astype(np.int64), np.array(watts))


def with_stagger(curve: PowerCurve, jobs: int) -> PowerCurve:
    """`jobs` equal jobs, each with 1/jobs of the power, shifted evenly over the curve's span, which repeats."""
    if jobs < 1:
        raise UsageError(f"{jobs} jobs")
    span = curve.span_ns
    shifted: Callable[[int], PowerCurve] = lambda number: _rolled(curve, number * span // jobs)  # noqa: E731
    first, last = int(curve.time_ns[0]), int(curve.time_ns[-1])
    whole = _sum([(shifted(number), 1) for number in range(jobs)], first, last)
    return PowerCurve(whole.time_ns, whole.watts / jobs)


def _rolled(curve: PowerCurve, by_ns: int) -> PowerCurve:
    """The curve shifted to the right, with wrap-around."""
    if not by_ns:
        return curve
    first, last = int(curve.time_ns[0]), int(curve.time_ns[-1])
    cut = last - by_ns
    at = int(np.searchsorted(curve.time_ns, cut, side="right")) - 1
    later = np.concatenate([[cut], curve.time_ns[at + 1 : -1]]) - cut + first
    before = np.append(curve.time_ns[: at + 1], cut)
    before = before if before[-1] > before[-2] else before[:-1]
    time = np.concatenate([later, before + by_ns])
    return PowerCurve(time, np.concatenate([curve.watts[at:], curve.watts[: len(before) - 1]]))

"""Why a step takes longer in one run than in another: operators, communication, memory, the host, or power.

The part of a step that grew most has the cause. Where that is work of the device, and kernels of several operators take
longer by about the same while others take as long as before, it is power: a clock or a limit of power slows what
computes, not what waits for memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from etude.analyse.card_changes import changed_keys, entries
from etude.analyse.compare import breakdowns
from etude.analyse.device_work import on_device
from etude.kernels.arrays import F64
from etude.model.distinct import distinct
from etude.model.run import Run
from etude.model.schema import UNKNOWN
from etude.model.use import Use, uses

__all__ = ["CAUSES", "PARTS", "Cause", "cause_between", "cause_of", "kernel_times"]

PARTS: Final = {
    "compute_ns": "operators",
    "exposed_comm_ns": "communication",
    "exposed_memory_ns": "memory",
    "idle_ns": "host",
}
"""Measure of a step -> what is the cause if it changed most."""
CAUSES: Final = (*PARTS.values(), "power")
SLOWED: Final = 0.4
"""Share of the time of kernels that a lower clock slows, at least, ..."""
KINDS: Final = 3
"""... and the fewest kinds of them, ..."""
OPERATORS: Final = 2
"""... of as many operators at least: of one alone it is the operator."""
AS_BEFORE: Final = 0.05
"""Share of the time of kernels that take as long as before."""
NOT_ALL: Final = 0.4
"""Part of a slow-down below which kernels take as long as before."""
ALIKE: Final = 0.35
"""Part of a slow-down by which the kernels that are slower may differ."""
LEAST: Final = 0.02

KernelTimes = Mapping[tuple[str, str], float]
"""(operator that launched it, kernel) -> ns per step and rank."""


class Cause(NamedTuple):
    name: str
    """One of `CAUSES`."""
    grown_ns: float
    """How much longer its part of the step is."""
    most: str
    """What of the work of devices changed most; "" where that is not the cause, or kernels are not known."""


def kernel_times(run: Run) -> dict[tuple[str, str], float]:
    """Time of compute on the devices by the operator that launched it and by kernel, per step and rank."""
    found: dict[tuple[str, str], float] = {}
    known = [trace.step[trace.step != UNKNOWN] for trace in run.job.traces]
    each = max(len(np.unique(np.concatenate(known))), 1) * max(len(run.job.ranks), 1)
    for part in run.parts():
        use = uses(part.trace)
        rows = np.flatnonzero(on_device(part, use) & (use == Use.COMPUTE))
        lasted = (part.end_ns[rows] - part.start_ns[rows]).astype(np.float64)
        codes, words = part.trace.coded("name")
        names, parent = [*words, ""], part.trace.parent[rows]
        by = np.where(parent >= 0, codes[parent], -1).astype(np.int64)
        pairs, group = distinct([by, codes[rows].astype(np.int64)])
        total = np.bincount(group, lasted, len(pairs)) * len(part.at) / each
        for (operator, kernel), ns in zip(pairs.tolist(), total.tolist(), strict=True):
            key = names[operator] or "", names[kernel] or ""
            found[key] = found.get(key, 0.0) + ns
    return found


def cause_of(
    before: Mapping[str, float], after: Mapping[str, float], kernels: tuple[KernelTimes, KernelTimes], sign: float = 1.0
) -> Cause:
    """The cause of a change from `before` to `after`, the measures of `PARTS`; a `sign` of -1 explains a shorter
    step."""
    grown = {part: after[part] - before[part] for part in PARTS}
    part = max(grown, key=lambda one: grown[one] * sign)
    if part != "compute_ns":
        return Cause(PARTS[part], grown[part], "")
    lower = _lower_clock(*kernels)
    return Cause("power" if lower else PARTS[part], grown[part], lower or _most(*kernels, sign))


def cause_between(a: Run, b: Run) -> dict[str, str | float]:
    """Why b takes longer than a: cause, its share of the difference, what changed most, what of the cards differs."""
    rows = {row["part"]: row for row in breakdowns(a, b).to_pylist()}
    before, after = ({part: rows[part][side] for part in PARTS} for side in ("a_ns", "b_ns"))
    found = cause_of(before, after, (kernel_times(a), kernel_times(b)))
    more = rows["span_ns"]["delta_ns"]
    return {
        "cause": found.name,
        "share": found.grown_ns / more if more else 0.0,
        "most": found.most,
        "differs": changed_keys(entries(a), entries(b)),
    }


def _most(before: KernelTimes, after: KernelTimes, sign: float) -> str:
    """The kernel whose time changed most."""
    change = {key: (after.get(key, 0.0) - before.get(key, 0.0)) * sign for key in {**before, **after}}
    if not change or max(change.values()) <= 0:
        return ""
    operator, kernel = key = max(change, key=lambda one: (change[one], one))
    what = f"{kernel} of {operator}" if operator and operator != kernel else kernel
    if not before.get(key) or not after.get(key):
        return f"{what}: {'new' if after.get(key) else 'gone'}"
    return f"{what}: {after[key] / before[key]:.2f} times as long"


def _lower_clock(before: KernelTimes, after: KernelTimes) -> str:
    """Which kernels take longer by about the same, of several operators, while others do not; "" if it is not so."""
    both = [key for key in before if before[key] > 0 and after.get(key, 0.0) > 0]
    if len(both) <= KINDS:
        return ""
    time: F64 = np.array([before[key] for key in both])
    longer: F64 = np.log(np.array([after[key] for key in both]) / time)
    order, share = np.argsort(-longer), time / sum(before.values())
    slowest = order[: max(int(np.searchsorted(np.cumsum(share[order]), SLOWED)) + 1, KINDS)]
    usual = float(np.average(longer[slowest], weights=time[slowest]))
    slow, same = longer > usual / 2, longer < NOT_ALL * usual
    if usual < LEAST or share[slow].sum() < SLOWED or share[same].sum() < AS_BEFORE or same.sum() < 2:
        return ""
    spread = float(np.sqrt(np.average((longer[slow] - usual) ** 2, weights=time[slow])))
    operators = {both[i][0] for i in np.flatnonzero(slow).tolist()}
    if slow.sum() < KINDS or len(operators) < OPERATORS or spread > ALIKE * usual:
        return ""
    return (
        f"{int(slow.sum())} kinds of kernels of {len(operators)} operators: {np.exp(usual):.2f} times as long; "
        f"{int(same.sum())} others as before"
    )

"""What a run did in each of its steps, as samples of one measure: for statistics over steps and runs."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.breakdown import breakdown
from etude.analyse.device_work import on_device
from etude.analyse.grouping import pattern_of
from etude.analyse.launches import launched
from etude.analyse.reasons import host_times
from etude.analyse.steps import steps
from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.machine.system import Device
from etude.model.memory import memory_peaks
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN
from etude.model.timing import Origin
from etude.model.use import uses

__all__ = ["MEASURES", "Sampled", "samples"]


MEASURES: Final = {
    "step": "ns", "compute": "ns", "communication": "ns", "exposed": "ns", "idle": "ns", "host": "ns",
    "launches": "", "memory": "B", "mfu": "", "kernel": "ns",
}  # fmt: skip
"""Measures and their units. `exposed` is communication that no compute hides; `kernel:NAME` is time of kernels."""
_COLUMN: Final = {"compute": "compute_ns", "communication": "comm_ns", "exposed": "exposed_comm_ns"}
ENOUGH: Final = 5
"""From this many steps on, the last step, after which nothing starts, is left out."""
_BUSY: Final = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns")


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """A run, and what is known about it apart from its times."""

    run: Run
    device: Device | None = None
    memory_bytes: float | None = None
    """Peak of allocated memory, if a profiler recorded it."""

    @property
    def exact(self) -> bool:
        """Whether there is no noise: the same job always has the same times."""
        return self.run.timing.origin == Origin.SIMULATED


def samples(runs: Sequence[Sampled], measure: str) -> list[F64]:
    """One sample per step of each run (a mean over ranks), or one per run if steps are unknown or the measure is one of
    the whole run. A step lasts until the start of the next; the last one, as long as its work on the devices, and if
    every run has five steps or more, it is left out. Idle is the rest of the step."""
    name, _, kernel = measure.partition(":")
    if name == "memory":
        return [np.array([_memory(one)]) for one in runs]
    if name == "kernel":
        wanted = _kernels(runs, kernel)
        return [_by_step(one.run, lambda part: _kernel_times(part, wanted)) for one in runs]
    if name == "host":
        return [_by_step(one.run, host_times) for one in runs]
    if name == "launches":
        return [_by_step(one.run, _launched) for one in runs]
    tables = [steps(one.run) for one in runs]
    enough = min(len(np.unique(table["step"].to_numpy())) for table in tables) >= ENOUGH
    timed = [_timed(one.run, table, last=not enough) for one, table in zip(runs, tables, strict=True)]
    if name == "step":
        return [found["step"] for found in timed]
    if name == "mfu":
        return [_mfu(one) / found["step"] for one, found in zip(runs, timed, strict=True)]
    if name == "idle":
        return [np.maximum(found["step"] - sum(found[c] for c in _BUSY), 0) for found in timed]
    return [found[_COLUMN[name]] for found in timed]


def _timed(run: Run, found: pa.Table, *, last: bool) -> dict[str, F64]:
    """The time of each step and what it was spent on, means over ranks."""
    columns = ("comm_ns", *_BUSY)
    if not len(found):
        table = breakdown(run)
        span = np.array([float(np.mean(table["span_ns"].to_numpy()))])
        if run.timing.origin == Origin.SIMULATED and (whole := run.timing.span()) is not None:
            span = np.array([float(whole[1] - whole[0])])
        return {"step": span} | {c: np.array([float(np.mean(table[c].to_numpy()))]) for c in columns}
    rank, step, start = (found[c].to_numpy() for c in ("rank", "step", "start_ns"))
    lasted = found["span_ns"].to_numpy().astype(np.float64)
    followed = np.append(rank[1:] == rank[:-1], False)  # rows are ordered by rank and step
    lasted[followed] = np.diff(start)[followed[:-1]]
    keep = followed | last
    mean = {c: _means(step[keep], found[c].to_numpy()[keep]) for c in columns}
    return {"step": _means(step[keep], lasted[keep])} | mean


def _means(step: I64, value: NDArray[np.generic]) -> F64:
    """Mean of each step."""
    _, which, count = np.unique(step, return_inverse=True, return_counts=True)
    return np.bincount(which.reshape(-1), value.astype(np.float64)) / count


def _by_step(run: Run, of: Callable[[RunPart], tuple[I64, I64]]) -> F64:
    """Sums by step of what `of` gives for rows of a part, means over ranks; one sum if there are no steps."""
    numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *(t.step[t.step != UNKNOWN] for t in run.job.traces)]))
    total = np.zeros(max(len(numbers), 1))
    for part in run.parts():
        rows, value = of(part)
        step = part.trace.step[rows]
        if len(numbers):
            rows, value, step = rows[step != UNKNOWN], value[step != UNKNOWN], step[step != UNKNOWN]
        at = np.searchsorted(numbers, step) if len(numbers) else np.zeros(len(rows), np.int64)
        total += len(part.at) * np.bincount(at, value.astype(np.float64), len(total))
    return total / max(len(run.job.ranks), 1)


def _launched(part: RunPart) -> tuple[I64, I64]:
    node = launched(part).node
    return node, np.ones(len(node), np.int64)


def _kernels(runs: Sequence[Sampled], wanted: str) -> set[str]:
    """Names of the selected kernels: the one with that name, otherwise those that match it as a regular expression."""
    names = {word for one in runs for part in one.run.parts() for word in _names(part)}
    if wanted in names:
        return {wanted}
    pattern = pattern_of(wanted) if wanted else None
    found = {name for name in names if pattern is not None and pattern.search(name)}
    if not found:
        near = difflib.get_close_matches(wanted, names, 3, 0.3)
        hint = f"similar names: {', '.join(f'`{n[:60]}`' for n in near)}" if near else "`etude kernels` lists them"
        raise UsageError(f"no kernel is called `{wanted}` or matches it", hint=hint)
    return found


def _names(part: RunPart) -> set[str]:
    codes, words = part.trace.coded("name", np.flatnonzero(on_device(part, uses(part.trace))))
    return {words[c] for c in np.unique(codes[codes >= 0]).tolist()}


def _kernel_times(part: RunPart, wanted: set[str]) -> tuple[I64, I64]:
    codes, words = part.trace.coded("name")
    meant = np.array([word in wanted for word in words] + [False])[codes]
    rows = np.flatnonzero(on_device(part, uses(part.trace)) & meant)
    return rows, part.end_ns[rows] - part.start_ns[rows]


def _memory(one: Sampled) -> float:
    if one.memory_bytes is not None:
        return one.memory_bytes
    peaks = memory_peaks(one.run).held_bytes
    known = peaks[peaks != UNKNOWN]
    if not len(known):
        raise UsageError("the memory of this run is not known", where=one.run.job.name,
                         hint="profile(profile_memory=True) records it; or nodes name their tensors")  # fmt: skip
    return float(known.max())


def _mfu(one: Sampled) -> float:
    """The model's FLOPs over the devices' peak, times a step in ns."""
    card, device = one.run.card, one.device or (one.run.system.device if one.run.system else None)
    if card is None or not card.plan.model_flops_per_step:
        raise UsageError("`mfu` needs the FLOPs of a step, which are not known", where=one.run.job.name,
                         hint="`etude card RUN --write` writes a card; fill in plan.model_flops_per_step")  # fmt: skip
    peak = device.peak(card.plan.precision or "bf16") if device else None
    if not peak:
        raise UsageError("`mfu` needs the device, which is not known", where=one.run.job.name, hint="--ran-on h100")
    return card.plan.model_flops_per_step * 1e9 / (peak * (card.plan.ranks or one.run.job.world_size))

"""Jobs that request devices: columns, from a file.

A CSV file has `arrival_s`, `gpus`, `duration_s` and optionally `name`, `gpu_milli`, `cpu_milli`, `memory_mib`, `kind`,
`weight`, `priority`, `deadline_s`, `tenant`, and for jobs that can change their size or be stopped `min_gpus`,
`max_gpus`, `speed`, `rates`, `harvest`, `save_s`. Pods of the Alibaba GPU trace of 2023 are read without conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.files import csv_rows
from etude.base.grammar import line
from etude.base.shapes import names_in
from etude.kernels.arrays import F64, I64
from etude.world.clock import NEVER
from etude.world.fleet.sharing.cluster import WHOLE

COLUMNS: Final = names_in("""
    name arrival_s gpus duration_s gpu_milli cpu_milli memory_mib kind weight priority deadline_s tenant min_gpus
    max_gpus speed rates harvest save_s
""")
PODS: Final = ("num_gpu", "creation_time", "deletion_time", "scheduled_time")


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """Jobs in order of arrival. A job has `gpus` devices, or `gpu_milli` thousandths of each of them."""

    name: tuple[str, ...]
    arrival_ns: I64
    work_ns: I64
    """Duration with all that it requests."""
    gpus: I64
    gpu_milli: I64
    cpu_milli: I64
    memory_mib: I64
    kind: tuple[str, ...]
    """Kind of device; empty: any."""
    weight: F64
    priority: F64
    """Higher priority goes first."""
    deadline_ns: I64
    tenant: tuple[str, ...]
    recorded_wait_ns: I64
    """Recorded wait; -1: unknown."""
    least: I64
    most: I64
    """`least` and `most` devices that it can run on; both are `gpus` for a job of one size."""
    speed: tuple[str, ...]
    """`8:1;16:1.8`: its speed by number of devices, and the only sizes it has; empty: proportional."""
    rates: tuple[str, ...]
    """`h100:1;a100:0.5`: its speed by kind, and the only kinds it can run on; empty: 1 on all."""
    harvest: NDArray[np.bool_]
    """Whether it uses devices that others leave idle."""
    save_ns: I64
    """Work between two saves: progress since the last one is lost with its nodes. 0: nothing is lost."""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def elastic(self) -> bool:
        """Whether any job has more than one size."""
        return bool((self.least != self.most).any())

    @property
    def devices(self) -> F64:
        """Requested devices of each job, as fractions where it requests parts."""
        return self.gpus * self.gpu_milli / WHOLE


def read_jobs(path: str | PathLike[str], *, first: int = 0) -> Jobs:
    columns, rows = csv_rows(path)
    return jobs_of(columns, rows, str(path), first=first)


def jobs_of(columns: Sequence[str], rows: list[dict[str, str]], path: str, *, first: int = 0) -> Jobs:
    """Jobs of text rows, as in a CSV file. Raises UsageError."""
    rows = rows[:first] if first else rows
    if not rows:
        raise UsageError("has no jobs", where=str(path))
    pods = set(PODS) <= set(columns)
    if not pods:
        if missing := [name for name in ("arrival_s", "gpus", "duration_s") if name not in columns]:
            raise UsageError(f"has no column `{missing[0]}`", where=str(path), hint=f"known: {', '.join(COLUMNS)}")
        if unknown := [name for name in columns if name not in COLUMNS]:
            raise UsageError(f"unknown column `{unknown[0]}`", where=str(path), hint=f"known: {', '.join(COLUMNS)}")
    return _of_pods(rows, str(path)) if pods else _of_rows(rows, str(path))


def _of_pods(rows: list[dict[str, str]], path: str) -> Jobs:
    created, deleted = _figures(rows, "creation_time", path), _figures(rows, "deletion_time", path)
    never = np.array([not row["scheduled_time"] for row in rows])
    scheduled = np.where(never, created, _figures(rows, "scheduled_time", path, 0.0))
    notes = []
    if never.any():
        notes.append(f"{never.sum():,} pods were never scheduled; their run time is the time until they were deleted")
    _refuse((deleted < scheduled) | (scheduled < created), path, lambda row: "ends before it begins")
    return _jobs(
        rows, created, deleted - scheduled, _figures(rows, "num_gpu", path), path, tuple(notes),
        kind=tuple(row.get("gpu_spec", "") for row in rows), tenant=tuple(row.get("qos", "") for row in rows),
        recorded=np.where(never, -1.0, scheduled - created),
    )  # fmt: skip


def _of_rows(rows: list[dict[str, str]], path: str) -> Jobs:
    duration = _figures(rows, "duration_s", path)
    return _jobs(
        rows, _figures(rows, "arrival_s", path), duration, _figures(rows, "gpus", path), path, (),
        kind=tuple(row.get("kind", "") for row in rows), tenant=tuple(row.get("tenant", "") for row in rows),
        recorded=np.full(len(rows), -1.0),
    )  # fmt: skip


def _jobs(
    rows: list[dict[str, str]], arrival: F64, duration: F64, gpus: F64, path: str, notes: tuple[str, ...], *,
    kind: tuple[str, ...], tenant: tuple[str, ...], recorded: F64,
) -> Jobs:  # fmt: skip
    milli = _figures(rows, "gpu_milli", path, float(WHOLE))
    bad = (milli > WHOLE) | ((milli <= 0) & (gpus > 0)) | (gpus % 1 > 0)
    _refuse(bad, path, lambda row: f"asks for {gpus[row]:g} devices, {milli[row]:g} of 1000 of each")
    weight = _figures(rows, "weight", path, 1.0)
    _refuse(weight <= 0, path, lambda row: "weight: not positive")
    deadline = _figures(rows, "deadline_s", path, NEVER / 1e9)
    least, most = (_figures(rows, name, path, 0.0) for name in ("min_gpus", "max_gpus"))
    least, most = np.where(least > 0, least, gpus), np.where(most > 0, most, gpus)
    _refuse(
        (least > gpus) | (gpus > most) | (least % 1 > 0) | (most % 1 > 0),
        path,
        lambda row: f"gpus {gpus[row]:g} is not between min_gpus {least[row]:g} and max_gpus {most[row]:g}",
    )
    both = (least != most) & (milli != WHOLE)
    _refuse(both, path, lambda row: "parts of devices cannot be combined with several sizes", "use one of them")
    order = np.argsort(arrival, kind="stable")
    ns = [np.round(column * 1e9).astype(np.int64)[order] for column in (arrival, duration, recorded)]
    cpu, memory = (_figures(rows, name, path, 0.0).astype(np.int64)[order] for name in ("cpu_milli", "memory_mib"))
    names = [row.get("name") or f"job {number}" for number, row in enumerate(rows)]
    return Jobs(
        name=tuple(names[k] for k in order),
        arrival_ns=ns[0],
        work_ns=ns[1],
        gpus=gpus.astype(np.int64)[order],
        gpu_milli=milli.astype(np.int64)[order],
        cpu_milli=cpu,
        memory_mib=memory,
        kind=tuple(kind[k] for k in order),
        weight=weight[order],
        priority=_figures(rows, "priority", path, 0.0, negative=True)[order],
        deadline_ns=np.minimum(np.round(deadline[order] * 1e9), float(NEVER)).astype(np.int64),
        tenant=tuple(tenant[k] for k in order),
        recorded_wait_ns=np.where(ns[2] < 0, -1, ns[2]),
        least=least.astype(np.int64)[order],
        most=most.astype(np.int64)[order],
        speed=tuple(rows[k].get("speed") or "" for k in order),
        rates=tuple(rows[k].get("rates") or "" for k in order),
        harvest=(_figures(rows, "harvest", path, 0.0) > 0)[order],
        save_ns=np.round(_figures(rows, "save_s", path, 0.0) * 1e9).astype(np.int64)[order],
        notes=notes,
    )


def pairs_of(text: str, where: str) -> dict[str, float]:
    """Parses `8:1;16:1.8` into names and numbers."""
    found: dict[str, float] = {}
    for part in line(text, where, "8:1;16:1.8, or h100:1;a100:0.5").split(";") if text else ():
        name, value = part.cut(":", last=True)
        if value is None or not name.text:
            raise part.wrong(f"`{part.text}` is not a name and a number")
        if name.text in found:
            raise name.wrong(f"`{name.text}` is given twice")
        found[name.text] = float(value.figure("number"))
    return found


def _figures(
    rows: list[dict[str, str]], name: str, path: str, usual: float | None = None, *, negative: bool = False
) -> F64:
    """A column of numbers; empty cells have the default."""
    try:
        texts = [row.get(name) or usual for row in rows]
        found = np.array(texts, np.float64)
    except (TypeError, ValueError):
        found = np.array([_or_nan(text) for text in texts])
    bad = ~np.isfinite(found) | ((found < 0) & (not negative))
    _refuse(bad, path, lambda row: f"{name}: `{rows[row].get(name, '')}` is not a valid value")
    return found


def _refuse(bad: NDArray[np.bool_], path: str, problem: Callable[[int], str], hint: str = "") -> None:
    """Names the first row that is bad."""
    if bad.any():
        row = int(bad.argmax())
        raise UsageError(problem(row), where=f"{path}: row {row}", hint=hint)


def _or_nan(text: object) -> float:
    try:
        return float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float("nan")

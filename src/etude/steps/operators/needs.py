"""needs_of(models): the operators that models run, as keys and points of the database; which of them it lacks.

The points are those that generated jobs have: a job of each model for each number of tokens, read op by op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.figures import figure
from etude.cost.compute import roofline_ns
from etude.cost.opdb import OpDatabase, Shapes
from etude.cost.opdb.database import keys_in
from etude.cost.opdb.keys import compute_rows, shapes_of
from etude.cost.opdb.schema import DIMS, OPS, works_of
from etude.cost.stacks import open_stack
from etude.kernels.arrays import F64, I64
from etude.machine.system import Device, System
from etude.make.generate import Plan, generate
from etude.make.generate.model import Model
from etude.make.generate.serving import Serving, serve
from etude.model.job import Job
from etude.steps.measured.recipes import RunFacts, completed

Key = tuple[str, str, tuple[int, ...]]

REPEATS: Final = 3
POINT_S: Final = 0.04
"""Overhead of a point: tensors are made, calls are captured. As on an H200: 505 points in 129 s."""
TIMED_S: Final = 0.05
"""Minimum time of one repeat, and once for warming up; that of the worker."""
CALLS: Final = 2
"""Minimum calls of one repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWorkload:
    """What the models run, and its size."""

    train: bool = figure("flag", "training steps instead of serving", False)
    tokens: tuple[int, ...] = (128, 512, 2048, 8192)
    """Tokens of a prompt, or of a sample."""
    batch: tuple[int, ...] = (1, 4, 16, 64, 256)
    """Sequences that decode, or samples of a micro-batch."""
    keys: tuple[int, ...] = (512, 2048, 8192)
    """Keys of each decoding sequence."""
    stack: str = "eager"
    """The stack whose recipe a training plan follows."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelUse:
    """The distinct points of a model on one tensor-parallel rank, and how often each occurs."""

    what: str
    shapes: Shapes
    count: I64


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """What a set of models runs, compared with a database."""

    uses: list[ModelUse]
    points: Shapes
    """Points of all of them together, each once."""
    count: I64
    device: Device
    repeats: int
    known: set[Key] = field(default_factory=set)
    """Keys that the database has."""
    measured: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    """Which points it has."""

    def summary(self) -> dict[str, Any]:
        """Keys of all models (each its own), distinct keys, those that are missing; what measuring them takes."""
        each = [set(keys_in(use.shapes)) for use in self.uses]
        distinct = set().union(*each) if each else set()
        keys, costs = sum(map(len, each)), [float(self._cost_s(use.shapes).sum()) for use in self.uses]
        every = self._cost_s(self.points)
        return {
            "keys": keys,
            "distinct": len(distinct),
            "missing": len(distinct - self.known),
            "saved_fraction": 1.0 - len(distinct) / keys if keys else 0.0,
            "cost_s": float(every[~self.measured].sum()),
            "points": len(self.points),
            "points_missing": int((~self.measured).sum()),
            "cost_alone_s": sum(costs),
            "saved_cost_fraction": 1.0 - float(every.sum()) / sum(costs) if sum(costs) else 0.0,
        }

    def by_op(self) -> list[dict[str, Any]]:
        """Keys and missing keys by op."""
        distinct = set(keys_in(self.points))
        rows = []
        for op in OPS:
            mine = {key for key in distinct if key[0] == op}
            if mine:
                here = self.points.op == op
                left = here & ~self.measured
                rows.append({"op": op, "keys": len(mine), "missing": len(mine - self.known), "points": int(here.sum()),
                             "cost_s": round(float(self._cost_s(self.points)[left].sum()), 1)})  # fmt: skip
        return rows

    def _cost_s(self, shapes: Shapes) -> F64:
        """Seconds to measure each point."""
        time_s = np.nan_to_num(roofline_ns(self.device, works_of(shapes))) / 1e9
        return (self.repeats + 1) * np.maximum(TIMED_S, CALLS * time_s) + POINT_S

    def plan(self, device: str, backend: str, *, budget_s: float = 0.0, source: str = "measured") -> dict[str, Any]:
        """The missing points, most valuable first, as input of the worker: a first point of each key before any second,
        and among those the ones that models spend most time in."""
        rows = np.flatnonzero(~self.measured)
        value = self.count * np.nan_to_num(roofline_ns(self.device, works_of(self.points)))
        turn = _turns(self.points)
        order = rows[np.lexsort((np.arange(len(rows)), -value[rows], turn[rows]))]
        points = [
            {"op": op, "dtype": dtype} | {name: size for name, size in zip(DIMS, dims, strict=True) if size}
            for op, dtype, dims in zip(
                self.points.op[order].tolist(),
                self.points.dtype[order].tolist(),
                self.points.dims[order].tolist(),
                strict=True,
            )
        ]
        found = {"device": device, "backend": backend, "source": source, "repeats": self.repeats, "points": points}
        return found | ({"budget_s": budget_s} if budget_s else {})


def _turns(points: Shapes) -> I64:
    """The round in which each point of a key is measured: the largest first, then the smallest, then midpoints."""
    turn = np.zeros(len(points), np.int64)
    rows_of: dict[Key, list[int]] = {}
    for row, key in enumerate(keys_in(points)):
        rows_of.setdefault(key, []).append(row)
    for members in rows_of.values():
        rows = np.array(members, np.int64)
        rows = rows[np.lexsort(points.dims[rows].T[::-1])]
        spans, number = [(0, len(rows) - 1)], 0
        done: list[int] = [len(rows) - 1, 0] if len(rows) > 1 else [0]
        while spans:
            first, last = spans.pop(0)
            middle = (first + last) // 2
            if last - first > 1:
                done.append(middle)
                spans += [(first, middle), (middle, last)]
        for number, place in enumerate(done):
            turn[rows[place]] = number
    return turn


def needs_of(
    models: Sequence[Model], ways: Sequence[int], workload: ModelWorkload, system: System, *,
    database: OpDatabase | None = None, repeats: int = REPEATS,
) -> Needs:  # fmt: skip
    """The needs of these models, each with these numbers of tensor-parallel ranks. Impossible splits of a model are
    left out, unless all of them are impossible."""
    uses = []
    for model in models:
        found, refused = list[ModelUse](), None
        for tp in ways:
            try:
                found.append(use_of(model, tp, workload, system))
            except UsageError as problem:
                refused = problem
        if not found and refused is not None:
            raise refused
        uses += found
    return together(uses, system.device, database=database, repeats=repeats)


def together(
    uses: list[ModelUse], device: Device, *, database: OpDatabase | None = None, repeats: int = REPEATS
) -> Needs:
    """The needs of all of these."""
    shapes = Shapes(*_joined([use.shapes for use in uses]))
    points, count = distinct_points(shapes, np.concatenate([use.count for use in uses]))
    known: set[Key] = set()
    measured = np.zeros(len(points), bool)
    if database is not None and len(database):
        there = database.points()[0]
        known = set(keys_in(there))
        measured = np.isin(_rows(points), _rows(there))
    return Needs(uses, points, count, device, repeats, known, measured)


def _joined(parts: list[Shapes]) -> tuple[Any, Any, I64]:
    return (
        np.concatenate([p.op for p in parts]),
        np.concatenate([p.dtype for p in parts]),
        np.concatenate([p.dims for p in parts]),
    )


def _rows(shapes: Shapes) -> NDArray[Any]:
    return np.array(
        [
            f"{op} {dtype} {dims}"
            for op, dtype, dims in zip(shapes.op.tolist(), shapes.dtype.tolist(), shapes.dims.tolist(), strict=True)
        ],
        np.str_,
    )


def distinct_points(shapes: Shapes, count: I64) -> tuple[Shapes, I64]:
    """Each point once, and how often it occurs; other ops are left out."""
    keep = shapes.op != ""
    shapes, count = shapes.take(keep), count[keep]
    _, first, which = np.unique(_rows(shapes), return_index=True, return_inverse=True)
    return shapes.take(first), np.bincount(np.asarray(which).reshape(-1), weights=count).astype(np.int64)


def use_of(model: Model, tp: int, workload: ModelWorkload, system: System) -> ModelUse:
    """The points of one model."""
    jobs = _trained(model, tp, workload, system) if workload.train else _served(model, tp, workload)
    parts = [use_in(job, phase=phase) for job, phase in jobs]
    shapes = Shapes(*_joined([part.shapes for part in parts]))
    return ModelUse(f"{model.name} tp {tp}", *distinct_points(shapes, np.concatenate([part.count for part in parts])))


def use_in(job: Job, *, phase: str = "") -> ModelUse:
    """The points of the first rank of a job, or of one phase of it."""
    trace = job.traces[0]
    rows = compute_rows(trace)
    if phase:
        codes, words = trace.coded("phase", rows)
        rows = rows[np.array([word == phase for word in words] + [False])[codes]]
    return ModelUse(job.name, *distinct_points(shapes_of(trace, rows), np.ones(len(rows), np.int64)))


def _served(model: Model, tp: int, workload: ModelWorkload) -> list[tuple[Job, str]]:
    plan = Plan.from_dict({"gpus": tp, "tp": tp})
    jobs = [(serve(model, plan, Serving(prefill=length)).job, "") for length in workload.tokens]
    for batch in workload.batch:
        for keys in workload.keys:
            served = serve(model, plan, Serving(prefill=max(keys - 1, 1), decode=1, batch=batch))
            jobs.append((served.job, "decode"))
    return jobs


def _trained(model: Model, tp: int, workload: ModelWorkload, system: System) -> list[tuple[Job, str]]:
    stack, jobs = open_stack(workload.stack), []
    for length in workload.tokens:
        for batch in workload.batch:
            given = {"gpus": tp, "tp": tp, "micro_batch": batch, "seq": length, "recompute": "none"}
            plan, _ = completed(RunFacts(model=model, given=given, system=system), stack)
            jobs.append((generate(model, plan.replace(host_ns=0)).job, ""))
    return jobs

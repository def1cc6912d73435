"""least_step_time_ns: a lower bound on the step time of a plan, from closed forms, without generating it.

Compute takes its roofline, as in simulations. Collectives take their closed form if the network is analytic, and the
bytes that a member has to receive over the rate of its ports if transfers go over links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.cost.collectives import collectives_time_ns
from etude.cost.compute import compute_time_ns
from etude.cost.stacks import Stack
from etude.cost.stacks.stack import tuned
from etude.cost.traces import ops_of
from etude.kernels.arrays import F64
from etude.machine.system import System
from etude.make.generate import Plan
from etude.make.generate.model import Model
from etude.make.generate.train import job_of_ops, least_step_ns
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.steps.step import efficiency_of, machine_for

ANALYTIC: Final = "analytic"
_PARTS: Final = {Collective.ALL_REDUCE: 1.0, Collective.REDUCE_SCATTER: 1.0, Collective.ALL_TO_ALL: 1.0}
"""Least fraction of its input bytes that a member of a large group must send or receive; for an all-gather see
below."""


class OpTimes:
    """Lower bounds of op times on one machine, computed once for ops that many plans share."""

    def __init__(self, machine: System, network: str) -> None:
        self.machine, self.network = machine, network
        self._compute: dict[int, tuple[Any, float]] = {}
        """id -> (the op, which keeps its id, and its time)."""
        self._calls: dict[tuple[Any, ...], float] = {}

    def __call__(self, plan: Plan, ops: Sequence[Any]) -> list[float]:
        where = (plan.gpus, plan.tp, plan.cp, plan.pp, plan.ep, plan.etp, plan.dp_shard, plan.ep_node, plan.order)
        calls = [(op.group, op.collective, op.in_bytes, plan.zero > 0, *where) for op in ops]
        compute = [op for op in ops if op.kind == Kind.COMP and id(op) not in self._compute]
        talk = {key: op for op, key in zip(ops, calls, strict=True) if op.kind == Kind.COLL and key not in self._calls}
        if compute or talk:
            times = self._times(*job_of_ops(plan, [*compute, *talk.values()])).tolist()
            self._compute |= {id(op): (op, ns) for op, ns in zip(compute, times[: len(compute)], strict=True)}
            self._calls |= dict(zip(talk, times[len(compute) :], strict=True))
        return [
            self._compute[id(op)][1] if op.kind == Kind.COMP else self._calls[key] if op.kind == Kind.COLL else 0.0
            for op, key in zip(ops, calls, strict=True)
        ]

    def _times(self, job: Job, ranks: list[int]) -> F64:
        """Times of each node of the only trace of a job; `ranks`: one of each pipeline stage."""
        trace = job.traces[0]
        compute = trace.kind == int(Kind.COMP)
        ops = ops_of(trace)
        by_kind = [np.maximum(compute_time_ns(device.busy(), ops), 0) for device in self.machine.all_kinds]
        found = np.where(compute, np.min(by_kind, axis=0), 0).astype(np.float64)
        called = np.flatnonzero(trace.kind == int(Kind.COLL))
        if len(called):
            found[called] = _collectives(job, self.machine, called, ranks, self.network)
        return found


_KNOWN: dict[tuple[Any, ...], tuple[System, Stack | None, OpTimes]] = {}
"""By the parts of a machine; systems and stacks are kept alive, so that their ids stay unique."""
_MOST_KNOWN: Final = 16


def _op_times(model: Model, plan: Plan, system: System, stack: Stack | None, network: str) -> OpTimes:
    key = id(system), id(stack), plan.gpus, plan.tp_chunks > 1, bool(model.experts), network
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        machine = tuned(machine_for(plan, system, stack), efficiency_of(model, system, stack))
        _KNOWN[key] = system, stack, OpTimes(machine, network)
    return _KNOWN[key][2]


def least_step_time_ns(
    model: Model, plan: Plan, system: System, *, stack: Stack | None = None, network: str = ANALYTIC,
    alone: bool = False,
) -> int:  # fmt: skip
    """Lower bound of a step in ns: never more than `predict` gives for the same plan. `alone`, with ZeRO 2: nor for any
    other ZeRO stage."""
    return math.floor(least_step_ns(model, plan, _op_times(model, plan, system, stack, network), alone=alone))


def _collectives(job: Job, machine: System, rows: NDArray[np.int64], ranks: list[int], network: str) -> F64:
    """The shortest over these ranks."""
    trace = job.traces[0]
    best = np.full(len(rows), np.inf)
    for rank in ranks:
        groups = job.group_of[job.group_start[rank] + trace.group[rows]]
        kinds, sizes = trace.collective[rows], trace.in_bytes[rows]
        if network == ANALYTIC:
            time_ns = collectives_time_ns(machine, kinds, sizes, groups, job.groups).astype(np.float64)
        else:
            time_ns = _at_best(machine, kinds, sizes, _members(job, groups))
        best = np.minimum(best, np.maximum(time_ns, 0.0))
    return best


def _members(job: Job, groups: NDArray[np.int32]) -> NDArray[np.int64]:
    return np.diff(job.groups.start)[groups]


def _at_best(machine: System, kinds: NDArray[np.uint8], sizes: NDArray[np.int64], members: NDArray[np.int64]) -> F64:
    """Bytes that a member has to send or to receive, over the rates of all its possible ports."""
    rate = sum(level.bandwidth_bytes_per_s for level in machine.levels)
    gathers = kinds == int(Collective.ALL_GATHER)
    others = np.isin(kinds, [int(k) for k in _PARTS])
    part = np.where(gathers, members - 1.0, np.where(others, (members - 1.0) / members, 0.0))
    return np.maximum(sizes, 0) * part / rate * 1e9

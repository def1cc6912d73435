"""least_step_time_ns: what a step of a plan takes at least, from closed forms, without generating it.

Compute takes its roofline, which simulations take too. Collectives take their closed form where the network is one, and
the bytes that a member has to receive over the rate of its ports where transfers go over links.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.cost.collectives import collectives_time_ns
from etude.cost.compute import compute_time_ns
from etude.cost.stacks import Stack
from etude.cost.stacks.stack import tuned
from etude.cost.traces import ops_of
from etude.generate import Plan
from etude.generate.model import Model
from etude.generate.train import least_step_ns
from etude.machine.system import System
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.predict.step import efficiency_of, machine_for

F64 = NDArray[np.float64]
ANALYTIC: Final = "analytic"
_PARTS: Final = {Collective.ALL_REDUCE: 1.0, Collective.REDUCE_SCATTER: 1.0, Collective.ALL_TO_ALL: 1.0}
"""Of its input bytes, how much a member of a large group has to send or receive at least; of an all-gather below."""


def least_step_time_ns(
    model: Model, plan: Plan, system: System, *, stack: Stack | None = None, network: str = ANALYTIC
) -> int:
    """ns of a step at least: never more than `predict` says of the same plan."""
    machine = tuned(machine_for(plan, system, stack), efficiency_of(model, system, stack))
    found = least_step_ns(model, plan, lambda job: _times(job, machine, plan, network))
    return math.floor(found)


def _times(job: Job, machine: System, plan: Plan, network: str) -> F64:
    """Least time of each node of the only trace of a job."""
    trace = job.traces[0]
    compute = trace.kind == int(Kind.COMP)
    ops = ops_of(trace)
    found = np.zeros(len(trace))
    for device in machine.all_kinds:
        time_ns = np.maximum(compute_time_ns(device.busy(), ops), 0)
        found = time_ns if device is machine.all_kinds[0] else np.minimum(found, time_ns)
    found = np.where(compute, found, 0.0)
    called = np.flatnonzero(trace.kind == int(Kind.COLL))
    if len(called):
        found[called] = _collectives(job, machine, called, _stages(plan), network)
    return found


def _stages(plan: Plan) -> list[int]:
    """A rank of each pipeline stage."""
    from etude.generate.ranks import Grid

    return np.unique(Grid.of(plan).at["pp"], return_index=True)[1].tolist()


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
            time_ns = _at_best(machine, kinds, sizes, np.array([len(job.groups.ranks(g)) for g in groups.tolist()]))
        best = np.minimum(best, np.maximum(time_ns, 0.0))
    return best


def _at_best(machine: System, kinds: NDArray[np.uint8], sizes: NDArray[np.int64], members: NDArray[np.int64]) -> F64:
    """Bytes that a member has to send or to receive, over the rates of all ports that it could have."""
    rate = sum(level.bandwidth_bytes_per_s for level in machine.levels)
    gathers = kinds == int(Collective.ALL_GATHER)
    others = np.isin(kinds, [int(k) for k in _PARTS])
    part = np.where(gathers, members - 1.0, np.where(others, (members - 1.0) / members, 0.0))
    return np.maximum(sizes, 0) * part / rate * 1e9

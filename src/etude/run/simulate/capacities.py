"""The capacities of a job's ranks as tables of the engine."""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import I32, I64
from etude.machine.scopes import units_of
from etude.model.schema import UNKNOWN
from etude.model.use import Use
from etude.run.simulate.lower import Lowered
from etude.run.simulate.networks.resources import CLASSES, Resources, make_resources
from etude.run.simulate.shares import Draw, level_of

USE = {"compute": Use.COMPUTE, "memory": Use.MEMORY, "host": Use.HOST}
"""Uses of the classes that can have chunks."""


def resources_of(lowered: Lowered) -> Resources | None:
    """Tables of the capacities; None if no capacity is used."""
    shares = lowered.options.share
    draws = [[given.get(name, Draw(demand=0.0)) for name in CLASSES] for given in shares.values()]
    demand = np.array([[draw.demand for draw in row] for row in draws])
    if not demand.any():
        return None
    weight = np.array([[draw.weight for draw in row] for row in draws])
    priority = np.array([[draw.priority for draw in row] for row in draws], np.int64)
    return make_resources(demand, weight, priority, _pools(lowered), chunk_ns=_chunks(lowered))


def _pools(lowered: Lowered) -> I32:
    """Number of the pool of each capacity and simulated rank."""
    ranks = lowered.job.ranks[lowered.classes.first]
    first, found = 0, []
    for name in lowered.options.share:
        level = level_of(lowered.system, name)
        unit = np.arange(len(ranks)) if level < 0 else units_of(lowered.system, level, ranks)
        number = np.unique(unit, return_inverse=True)[1].reshape(-1)
        found.append(number + first)
        first += int(number.max(initial=-1)) + 1
    return np.array(found, np.int32).reshape(len(found), len(ranks))


def _chunks(lowered: Lowered) -> I64:
    """Time of a chunk of each program row at full rate, in pieces of equal size; empty if there are no chunks."""
    each = {name: draw for draws in lowered.options.share.values() for name, draw in draws.items()}
    each = {name: draw for name, draw in each.items() if draw.chunk_bytes or draw.chunk_ns}
    programs = lowered.programs
    if not each:
        return np.zeros(0, np.int64)
    found = np.zeros(len(programs.cost_ns), np.int64)
    for program, first in zip(*np.unique(programs.of, return_index=True), strict=True):
        here = slice(int(programs.start[program]), int(programs.start[program + 1]))
        trace = lowered.job.traces[int(lowered.job.trace_of[first])]
        cost, size = programs.cost_ns[here], trace.tensor_bytes
        for name, draw in each.items():
            mine = (programs.tables.rows["use"][here] == USE[name]) & (cost > 0)
            pieces = np.ceil(cost / draw.chunk_ns) if draw.chunk_ns else np.ones(len(cost))
            if draw.chunk_bytes:
                mine &= (size != UNKNOWN) & (size > 0)
                pieces = np.ceil(np.where(mine, size, 1) / draw.chunk_bytes)
            found[here][mine] = np.ceil(cost[mine] / pieces[mine])
    return found

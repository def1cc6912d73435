"""simulate: a job on a system, event by event, with any of the networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from etude.errors import UsageError
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.system import System
from etude.model.timing import Origin
from etude.model.trace import Trace
from etude.simulate.deadlock import explain
from etude.simulate.engine import Engine
from etude.simulate.initial_state import initial_state
from etude.simulate.lower import Lowered, lower
from etude.simulate.memory import LOCAL, locations, peak_bytes, tensors_of
from etude.simulate.networks.running import RunningNetwork
from etude.simulate.operations import operations
from etude.simulate.options import Options
from etude.simulate.result import RankTimes, Simulated, rank_times
from etude.simulate.state import DONE, I64

EXPLAINED: Final = 1 << 20
"""Nodes up to which a deadlock of a folded job is looked at again rank by rank."""
Progress = Callable[[int, int], None]
"""(nodes done, simulated time in ns)."""


def simulate(
    job: Job, system: System, options: Options | None = None, *, progress: Progress | None = None, **more: Any
) -> Simulated:
    """What the job does on the system. Options by name (`policy="priority"`), or made before.

    Raises DeadlockError where ranks wait for one another for ever. Ctrl-C ends it with what is done, `partial`.
    """
    if options is not None and more:
        raise UsageError("options are given twice: as one value and by name")
    options = (options or _options(more)).on(system)
    lowered, notes = lower(job, system, options)
    engine, said = start(lowered)
    stopped = _go(engine, progress)
    if not stopped and engine.done_nodes < engine.nodes:
        if len(lowered.classes) < len(job.ranks) and job.nodes <= EXPLAINED:
            simulate(job, system, replace(options, fold=False))  # ranks by name, not by class
        raise explain(lowered, engine.state.nodes)
    found = _result(lowered, engine, (*notes, *said), stopped)
    return replace(found, links=engine.network.link_use())


def start(lowered: Lowered) -> tuple[Engine, list[str]]:
    """The engine at time 0, and what had to be assumed."""
    ops = operations(lowered)
    state = initial_state(lowered, ops)
    network = RunningNetwork(lowered, ops, state.sharing)
    return Engine(state, network), [*ops.notes, *network.notes]


def _options(given: dict[str, Any]) -> Options:
    unknown = set(given) - set(Options.__slots__)
    if unknown:
        raise UsageError(f"no such option: {', '.join(sorted(unknown))}", hint=f"known: {', '.join(Options.__slots__)}")
    return Options(**given)


def _go(engine: Engine, progress: Progress | None) -> bool:
    """Runs to the end; True if Ctrl-C came first."""
    try:
        while engine.step():
            if progress is not None:
                progress(engine.done_nodes, engine.now_ns)
    except KeyboardInterrupt:
        return True
    return False


def _result(lowered: Lowered, engine: Engine, notes: tuple[str, ...], partial: bool) -> Simulated:
    programs, base, classes, nodes = lowered.programs, lowered.base, lowered.classes, engine.state.nodes
    start, end = np.ascontiguousarray(nodes["start_ns"]), np.ascontiguousarray(nodes["end_ns"])
    if partial:
        end[nodes["waits"] != DONE] = UNKNOWN
    program = programs.start[programs.of[classes.first]]
    use = np.ascontiguousarray(programs.tables.rows["use"])
    moved, tensors = _moved(lowered), [tensors_of(trace) for trace in _traces(lowered)]
    ranks = rank_times(lowered.job.ranks, classes.of, base, program, (start, end), use, moved)
    if any(map(len, tensors)):
        of = programs.of[classes.first].astype(np.int64)
        peak = peak_bytes(base, of, programs.start, (start, end), moved, tensors)
        ranks = replace(ranks, peak_memory_bytes=peak[classes.of])
    bounds = base[1:-1]
    return Simulated(
        origin=Origin.SIMULATED,
        start_ns=tuple(np.split(start, bounds)),
        end_ns=tuple(np.split(end, bounds)),
        block_of=classes.of,
        clock_offset_ns=np.zeros(len(lowered.job.ranks), np.int64),
        aligned=True,
        partial=partial,
        makespan_ns=int(ranks.finish_ns.max(initial=0)),
        ranks=ranks,
        simulated_ranks=len(classes),
        notes=(*notes, *_memory_notes(lowered, ranks)),
    )


def _traces(lowered: Lowered) -> list[Trace]:
    """The trace of each program."""
    _, first = np.unique(lowered.programs.of, return_index=True)
    return [lowered.job.traces[int(lowered.job.trace_of[at])] for at in first.tolist()]


def _moved(lowered: Lowered) -> I64:
    """Bytes that each row of the programs brings into memory, negative where it stores; empty without memory nodes.
    What a node moves inside of the device's own memory is there before and after."""
    programs, traces = lowered.programs, _traces(lowered)
    if not any(((t.kind == Kind.MEM_LOAD) | (t.kind == Kind.MEM_STORE)).any() for t in traces):
        return np.zeros(0, np.int64)
    moved = np.zeros(int(programs.start[-1]), np.int64)
    for number, trace in enumerate(traces):
        size = np.where(locations(trace) == LOCAL, 0, np.maximum(trace.tensor_bytes, 0))
        signed = np.where(trace.kind == Kind.MEM_LOAD, size, np.where(trace.kind == Kind.MEM_STORE, -size, 0))
        moved[programs.start[number] : programs.start[number + 1]] = signed
    return moved


def _memory_notes(lowered: Lowered, ranks: RankTimes) -> list[str]:
    remote, device = lowered.options.remote_memory, lowered.system.device
    notes = []
    for peak, room, what in (
        (
            ranks.peak_memory_bytes,
            device.memory_bytes,
            "have more in memory than the {} B of their device",
        ),
        (ranks.peak_stored_bytes, remote.capacity_bytes if remote else 0, "store more than the {} B of remote memory"),
    ):
        over = ranks.rank[peak > room] if room else ranks.rank[:0]
        if len(over):
            notes.append(f"{len(over):,} ranks {what.format(f'{room:,}')}; the first is rank {over[0]}")
    return notes

"""simulate: a job on a system, event by event, with any of the networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.machine import open_system, system_names
from etude.machine.system import System
from etude.model.job import Job
from etude.model.schema import UNKNOWN
from etude.model.timing import Origin, Timing
from etude.run.simulate.choices import Network
from etude.run.simulate.deadlock import explain
from etude.run.simulate.engine import JobEngine
from etude.run.simulate.initial_state import initial_state
from etude.run.simulate.lower import Lowered, lower
from etude.run.simulate.meetings import meetings
from etude.run.simulate.network import CarriedBytes, RunningNetwork
from etude.run.simulate.networks.rerouting import LATE_NS
from etude.run.simulate.networks.state import NEVER
from etude.run.simulate.operations import Operations, operations
from etude.run.simulate.options import LinkChange, Options
from etude.run.simulate.result import Simulated, simulated
from etude.run.simulate.scope import packet_scope
from etude.run.simulate.settings.by_name import options_by_name
from etude.run.simulate.state import DONE

EXPLAINED: Final = 1 << 20
"""Nodes up to which a deadlock of a folded job is examined again rank by rank."""
Progress = Callable[[int, int], None]
"""(nodes done, simulated time in ns)."""


def simulate(
    job: Job,
    system: System | str | PathLike[str],
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    **more: Any,
) -> Simulated:
    """What the job does on the system; a name of the catalogue is taken with room for its ranks. Options by name
    (`policy="priority"`), or made before.

    Raises DeadlockError where ranks wait for one another and never complete. Ctrl-C ends it with what is done,
    `partial`.

    run = etude.simulate(job, etude.open_system("dgx-h100"))
    """
    if options is not None and more:
        raise UsageError("options are given twice: as one value and by name")
    if isinstance(system, str | PathLike):
        named = open_system(system)
        system = named.for_ranks(job.world_size) if system in system_names() else named
    return simulate_with_links(job, system, options or Options(**options_by_name(more, "simulate")), progress=progress)[
        0
    ]


def simulate_with_links(
    job: Job, system: System, options: Options, *, progress: Progress | None = None
) -> tuple[Simulated, CarriedBytes]:
    """The same, with the traffic on every link; empty with closed forms."""
    if options.grain:
        system = options.grain.on(system)
    options = options.on(system)
    lowered, notes = lower(job, system, options)
    ops = operations(lowered)
    engine, said = start(lowered, ops)
    try:
        stopped = _go(engine, options.link_changes, progress)
    finally:
        engine.network.close()
    if not stopped and engine.done_nodes < engine.nodes:
        if (problem := engine.network.no_way()) is not None:
            raise problem
        if len(lowered.classes) < len(job.ranks) and job.nodes <= EXPLAINED:
            simulate(job, system, replace(options, fold=False, grain=None))  # ranks by name, not by class
        raise explain(lowered, engine.state.nodes)
    return _result(job, lowered, engine, (*notes, *said), stopped, ops), engine.network.carried_bytes()


def start_engine(job: Job, system: System, options: Options | None = None) -> tuple[JobEngine, list[str]]:
    """A simulation at time 0, and the assumptions made: `engine.advance(until_ns)` runs it up to a time."""
    lowered, notes = lower(job, system, (options or Options()).on(system))
    engine, said = start(lowered)
    return engine, [*notes, *said]


def start(lowered: Lowered, ops: Operations | None = None) -> tuple[JobEngine, list[str]]:
    """The engine at time 0, and the assumptions made."""
    ops = operations(lowered) if ops is None else ops
    met = meetings(lowered, ops)
    state = initial_state(lowered, ops, met.kinds if met else None)
    network = RunningNetwork(lowered, ops, state.sharing)
    if lowered.options.packets and packet_scope(lowered.options.packets).auto:
        network.packets_over(_exceeded(lowered))
    if met is None:
        return JobEngine(lowered, state, network), [*ops.notes, *network.notes]
    return JobEngine(lowered, state, network, met.price), [*ops.notes, *network.notes, *met.notes()]


def _exceeded(lowered: Lowered) -> I64:
    """Links that are exceeded where all transfers are flows."""
    flows = replace(lowered.options, network=Network.FLOW, packets=(), fabric=None)
    engine, _ = start(lower(lowered.job, lowered.system, flows)[0])
    engine.network.look_for_exceeded()
    while engine.step():
        pass
    return engine.network.exceeded()


def _go(engine: JobEngine, changes: Sequence[LinkChange], progress: Progress | None) -> bool:
    """Runs to the end, applying the changes of links; True if interrupted by Ctrl-C."""
    try:
        for change in changes:
            engine.advance(change.time_ns)
            engine.network.change(change)
        while engine.step(LATE_NS if changes else NEVER):
            if progress is not None:
                progress(engine.done_nodes, engine.now_ns)
    except KeyboardInterrupt:
        return True
    return False


def _result(
    job: Job, lowered: Lowered, engine: JobEngine, notes: tuple[str, ...], partial: bool, ops: Operations
) -> Simulated:
    nodes, remote = engine.state.nodes, lowered.options.remote_memory
    start, end = np.ascontiguousarray(nodes["start_ns"]), np.ascontiguousarray(nodes["end_ns"])
    if partial:
        end[nodes["waits"] != DONE] = UNKNOWN
    bounds = lowered.base[1:-1]
    timing = Timing(
        origin=Origin.SIMULATED,
        start_ns=tuple(np.split(start, bounds)),
        end_ns=tuple(np.split(end, bounds)),
        block_of=lowered.classes.of,
        clock_offset_ns=np.zeros(len(job.ranks), np.int64),
        aligned=True,
        partial=partial,
    )
    return simulated(
        job,
        timing,
        lowered.system,
        simulated_ranks=len(lowered.classes),
        links=engine.network.link_use(),
        link_stats=engine.network.link_stats(lowered, ops, nodes),
        queues=engine.network.queue_use(),
        notes=(*notes, *engine.network.packet_notes(), *engine.network.flow_notes()),
        remote_capacity_bytes=remote.capacity_bytes if remote else 0,
        kernels=lowered.kernels,
        unit_flops=lowered.unit_flops,
    )

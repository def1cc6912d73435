"""Run a job as ASTRA-sim's analytical backends do, nanosecond for nanosecond."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.model.job import Job
from etude.model.run import Run
from etude.model.timing import Origin, Timing
from etude.model.trace import COLL, RECV, SEND
from etude.run.astra import state
from etude.run.astra.abort import AstraAbort
from etude.run.astra.columns import RankedNodes, read_nodes
from etude.run.astra.config import AstraOptions, NetworkConfig, SystemConfig
from etude.run.astra.diagnose import explain_hang, quirks
from etude.run.astra.kernels.engine import start_ranks, step
from etude.run.astra.kernels.node_table import REFUSALS, compute_time
from etude.run.astra.machine import new_simulation
from etude.run.astra.prepare import Prepared, prepare
from etude.run.astra.ranks import groups_of, on_network

EVENTS_PER_STEP: Final = 1 << 20
MAX_ROOM: Final = 1 << 27
PROBLEM: Final = {
    int(state.EVENT_AT_ZERO): "an event falls on tick 0, on which ASTRA-sim aborts",
    int(state.EMPTY_MESSAGE): "a message of 0 bytes, on which ASTRA-sim aborts",
    int(state.BAD_PEER): "a message to the sender itself or to a rank that does not exist",
    int(state.TREE_BROKEN): "doubleBinaryTree crashes in a group, or where the number of NPUs is not a power of two",
    int(state.ENDLESS_CHUNKS): "an all-gather of fewer bytes than `preferred-dataset-splits` never completes",
    int(state.OVERLONG): "a message of 2 GiB or more, whose size overflows with the rendezvous protocol, never arrives",
}

Tell = Callable[[int], None]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AstraResult(Run):
    """The run as ASTRA-sim has it, with a rank for each NPU, and what it prints for each.

    Cycles are unsigned, as they are there: exposed cycles wrap below 0. Times of nodes that never ran are UNKNOWN.
    """

    finish_ns: NDArray[np.uint64]
    exposed_ns: NDArray[np.uint64]
    num_events: int
    warnings: tuple[str, ...]


def run(
    job: Job,
    network: NetworkConfig,
    system: SystemConfig,
    options: AstraOptions | None = None,
    tell: Tell | None = None,
) -> AstraResult:
    """Simulate the first ranks of a job, one for each NPU; `tell` is called between slices with the number of events
    so far."""
    options = options or AstraOptions()
    job = on_network(job, network.num_npus, options.is_one_for_all)
    w = read_nodes(job, groups_of(job) if options.groups is None else options.groups)
    custom = {prefix: read_nodes(given, {}) for prefix, given in options.custom.items()}
    p = prepare(w, network, system, options, custom)
    works_ahead = p.can_work_ahead and not options.is_message_by_message
    sim = _simulate(p, works_ahead, tell)
    if works_ahead and (_status(sim) == state.AMBIGUOUS or _is_hanging(sim)):
        sim = _simulate(p, False, tell)
    if _status(sim) != state.DONE:
        raise _abort(sim, w)
    if _is_hanging(sim):
        raise explain_hang(w, sim, options)
    compute_ns = np.zeros(w.num_ranks, np.uint64)
    dropped = int(compute_time(p.nodes, w.columns, system.is_replay_only, compute_ns))
    finish_ns = sim.program.ranks["finish_ns"].astype(np.uint64)
    return AstraResult(
        job,
        _timing(w, p.nodes),
        finish_ns=finish_ns,
        exposed_ns=finish_ns - compute_ns,
        num_events=int(sim.machine.queue.clock["num_events"][0]),
        warnings=(*_overflowed(sim), *quirks(w, network, system, options, p.survey, dropped)),
    )


def _simulate(p: Prepared, works_ahead: bool, tell: Tell | None) -> state.Simulation:
    """One attempt after another until the machine's pools are large enough."""
    room = p.room
    while room <= MAX_ROOM:
        sim = new_simulation(p, room, works_ahead)
        start_ranks(sim.machine.queue)
        while _status(sim) == state.RUNNING:
            step(sim, EVENTS_PER_STEP)
            if tell is not None:
                tell(int(sim.machine.queue.clock["num_events"][0]))
        if _status(sim) != state.POOL_FULL:
            return sim
        room *= 4
    raise TraceError(f"more than {MAX_ROOM} messages would be in flight at once")


def _status(sim: state.Simulation) -> int:
    return int(sim.machine.queue.clock["status"][0])


def _overflowed(sim: state.Simulation) -> Iterator[str]:
    if count := int(sim.machine.queue.clock["num_overflowed"][0]):
        yield f"{count:,} messages of 2 GiB or more: with the rendezvous protocol, their size overflows an int"


def _is_hanging(sim: state.Simulation) -> bool:
    return int(sim.machine.queue.clock["finished_ranks"][0]) < len(sim.program.ranks)


def _abort(sim: state.Simulation, w: RankedNodes) -> AstraAbort:
    clock, status = sim.machine.queue.clock[0], _status(sim)
    row = _failed(sim, w)
    where = f"rank {w.rank_of(row)}, {w.describe(row)}" if row >= 0 else ""
    problem = REFUSALS[sim.program.nodes[row]["peer"]] if status == state.BAD_NODE else PROBLEM[status]
    hint = _way_out(sim, w, row) if status == state.EVENT_AT_ZERO else ""
    return AstraAbort(f"{problem} (at {int(clock['now'])} ns)", where=where, hint=hint)


def _failed(sim: state.Simulation, w: RankedNodes) -> int:
    """The node at which a run stopped; of a node of a custom collective, the collective; -1 where none is known."""
    clock = sim.machine.queue.clock[0]
    row, collective = int(clock["error_node"]), int(clock["error_collective"])
    if row < 0:
        return int(sim.collectives.collectives[collective]["node"]) if collective >= 0 else -1
    if row < len(w):
        return row
    nodes = sim.program.nodes[: len(w)]
    inside = (nodes["peer"] <= row) & (row < nodes["peer"] + nodes["collective"])
    return int(np.flatnonzero((nodes["action"] == state.ACT_CUSTOM) & inside)[0])


def _way_out(sim: state.Simulation, w: RankedNodes, row: int) -> str:
    """What keeps an event off tick 0. Only collectives pass an endpoint; messages of their own have a link alone."""
    kind = int(w.columns.kind[row]) if row >= 0 else COLL
    if kind == COLL and not int(sim.machine.wires.settings[0]["endpoint_ns"]):
        return "give the system an `endpoint-delay` above 0"
    if kind in (COLL, SEND, RECV):
        return "give the network a `latency` of 1 ns or more: the message takes less than 1 ns"
    return "give the remote memory a `remote-mem-latency` above 0"


def _timing(w: RankedNodes, nodes: NDArray[np.void]) -> Timing:
    """A block a rank."""
    cuts = w.columns.rank_start[1:-1]
    start_ns, end_ns = (np.split(nodes[name][: len(w)].copy(), cuts) for name in ("start_ns", "end_ns"))
    return Timing(
        origin=Origin.SIMULATED,
        start_ns=tuple(start_ns),
        end_ns=tuple(end_ns),
        block_of=np.arange(w.num_ranks, dtype=np.int32),
        clock_offset_ns=np.zeros(w.num_ranks, np.int64),
        aligned=True,
    )

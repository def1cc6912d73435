"""Run a workload as ASTRA-sim's analytical backends do, nanosecond for nanosecond."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.errors import TraceError
from etude.model.schema import UNKNOWN
from etude.astra import layout
from etude.astra.abort import AstraAbort
from etude.astra.config import Network, RemoteMemory, SystemConfig
from etude.astra.diagnose import explain_hang, quirks
from etude.astra.kernels import tables
from etude.astra.kernels.engine import start_ranks, step
from etude.astra.kernels.nodes import REFUSALS
from etude.astra.machine import first_ready, make_machine, rank_table
from etude.astra.prepare import Options, Prepared, prepare
from etude.astra.workload import Workload

EVENTS_PER_STEP: Final = 1 << 20
MAX_ROOM: Final = 1 << 27


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AstraResult:
    """What ASTRA-sim prints for each rank, and the time of every node.

    Cycles are unsigned, as they are there: exposed cycles wrap below 0. start_ns and end_ns are UNKNOWN for nodes
    that never ran.
    """

    finish_ns: NDArray[np.uint64]
    exposed_ns: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    num_events: int
    warnings: tuple[str, ...]


@dataclass(slots=True)
class _Run:
    """A machine and what it has done to the nodes."""

    mem: NDArray[np.int64]
    small: NDArray[np.int32]
    large: NDArray[np.int64]
    num_ranks: int

    @property
    def status(self) -> int:
        return int(self.mem[layout.STATUS])

    @property
    def is_hanging(self) -> bool:
        return int(self.mem[layout.FINISHED_RANKS]) < self.num_ranks


def _simulate(p: Prepared, w: Workload, ahead: bool, tell: Callable[[int], None] | None) -> _Run:
    """One attempt after another until the machine's pools are large enough."""
    ranks = w.num_ranks
    lines, first = first_ready(p.small, w.rank_start)
    num_fresh = int(np.diff(w.rank_start).max(initial=0)) + 1
    room = p.room
    while room <= MAX_ROOM:
        tab = p.tab.copy()
        tab[layout.IS_AHEAD] = ahead
        small, large, ready = p.small.copy(), p.large, first.copy()
        large[:, [layout.NODE_START, layout.NODE_END]] = UNKNOWN
        # Worked out ahead, messages of collectives are on the side machine; the ranks' own events are few.
        own = min(room, 4 * ranks * room // p.room) if ahead else room
        mem = make_machine(tab, own, ranks, lines, num_fresh, p.num_servers)
        side = make_machine(tab, room, ranks, lines, 1, 0) if ahead else mem
        start_ranks(mem, ranks)
        while mem[layout.STATUS] == layout.RUNNING:
            step(mem, side, tab, p.rate, small, large, p.child, ready, w.rank_start, EVENTS_PER_STEP)
            if tell is not None:
                tell(int(mem[layout.NUM_EVENTS]))
        if mem[layout.STATUS] != layout.POOL_FULL:
            return _Run(mem, small, large, ranks)
        room *= 4
    raise TraceError(f"more than {MAX_ROOM} messages would be in flight at once")


def _abort(run: _Run, w: Workload) -> AstraAbort:
    node = int(run.mem[layout.ERROR_NODE])
    where = f"rank {w.rank_of(node)}, {w.describe(node)}" if node >= 0 else ""
    now = int(run.mem[layout.NOW])
    is_refused = node >= 0 and run.small[node, layout.NODE_ACTION] == layout.ACT_REFUSED
    problem = {
        layout.BAD_NODE: REFUSALS[run.small[node, layout.NODE_PEER]] if is_refused else "",
        layout.EVENT_AT_ZERO: "an event falls on tick 0, on which ASTRA-sim aborts",
        layout.EMPTY_MESSAGE: "a message of 0 bytes, on which ASTRA-sim aborts",
        layout.BAD_PEER: "a message to the sender itself or to a rank that does not exist",
        layout.TREE_BROKEN: "doubleBinaryTree crashes in a group, or where the number of NPUs is no power of two",
        layout.ENDLESS_CHUNKS: "an all-gather of fewer bytes than `preferred-dataset-splits` never ends",
    }[run.status]
    hint = "give the system an `endpoint-delay` above 0" if run.status == layout.EVENT_AT_ZERO else ""
    return AstraAbort(f"{problem} (at {now} ns)", where=where, hint=hint)


def run(
    workload: Workload,
    network: Network,
    system: SystemConfig,
    *,
    remote_memory: RemoteMemory | None = None,
    backend: str = "unaware",
    num_queues_per_dim: int = 1,
    rendezvous: bool = False,
    injection_scale: float = 1.0,
    custom: Mapping[str, Workload] | None = None,
    ahead: bool | None = None,
    tell: Callable[[int], None] | None = None,
) -> AstraResult:
    """Simulate; `tell` is called between slices with the number of events so far.

    `ahead` False runs every message of every collective as an event. The default lets a collective be worked out
    when its last member joins, where that gives the same times. `custom` holds the traces that the system file names as
    implementations of collectives, by their prefix.
    """
    options = Options(
        backend=backend, num_queues_per_dim=num_queues_per_dim, rendezvous=rendezvous, injection_scale=injection_scale
    )
    memory = remote_memory or RemoteMemory()
    _check_starts(workload)
    p = prepare(workload, network, system, memory, options, custom or {})
    is_ahead = p.can_work_ahead and ahead is not False
    done = _simulate(p, workload, is_ahead, tell)
    if is_ahead and (done.status == layout.AMBIGUOUS or done.is_hanging):
        done = _simulate(p, workload, False, tell)
    if done.status != layout.DONE:
        raise _abort(done, workload)
    if done.is_hanging:
        raise explain_hang(workload, done.mem, done.small, done.large, options)
    w, n, gpu_ns = workload, len(workload), np.zeros(workload.num_ranks, np.uint64)
    finish = rank_table(done.mem, w.num_ranks)[:, layout.RANK_FINISH].copy().view(np.uint64)
    dropped = tables.gpu_time(
        w.rank_start, w.kind, w.is_cpu, done.small, done.large, system.is_replay_only, UNKNOWN, gpu_ns
    )
    return AstraResult(
        finish_ns=finish,
        exposed_ns=finish - gpu_ns,
        start_ns=done.large[:n, layout.NODE_START].copy(),
        end_ns=done.large[:n, layout.NODE_END].copy(),
        num_events=int(done.mem[layout.NUM_EVENTS]),
        warnings=tuple(quirks(w, network, system, options, p.survey, dropped)),
    )


def _check_starts(w: Workload) -> None:
    """ASTRA-sim aborts on a rank without a node that can start."""
    rank = int(tables.first_stuck(w.rank_start, w.dep_start))
    if rank >= 0:
        is_empty = w.rank_start[rank] == w.rank_start[rank + 1]
        raise AstraAbort(
            "the trace has no nodes" if is_empty else "every node waits for another one", where=f"rank {rank}"
        )

"""Memory for a run: machines at rest, and the state of ranks and communicators before anything has happened."""

from __future__ import annotations

import numpy as np

from etude.model.schema import UNKNOWN
from etude.run.astra import state
from etude.run.astra.kernels.node_table import fill_ready
from etude.run.astra.prepare import Prepared
from etude.run.astra.state import NONE, Records


def _pool(records: int, kind: np.dtype[np.void]) -> Records:
    """A pool of free records."""
    pool = np.zeros(max(records, 3), kind)
    pool[state.ANCHOR]["next"] = state.FIRST
    pool[-1]["next"] = NONE
    return pool


def _lines(shape: tuple[int, ...], kind: np.dtype[np.void]) -> Records:
    """Empty queues."""
    lines = np.zeros(shape, kind)
    lines["head"] = lines["tail"] = NONE
    return lines


def _event_queue(room: int, num_ranks: int) -> state.EventQueue:
    clock = np.zeros(1, state.CLOCK)
    for name in ("bucket", "last_bucket", "error_node", "error_collective", "open_batch", "tell"):
        clock[name] = NONE
    return state.EventQueue(
        clock=clock,
        heap=np.zeros(room, state.HEAP),
        times=np.zeros(2 * room, state.TIME),
        buckets=_pool(room, state.BUCKET),
        events=_pool(room, state.EVENT),
        batches=_pool(room, state.BATCH),
        calls=_pool(room, state.CALL),
        first_batch=np.full(num_ranks, NONE, np.int64),
    )


def _machine(p: Prepared, settings: Records, room: int) -> state.Machine:
    """A machine at rest. `room` is how many events, messages and streams it can hold at once."""
    room = 1 << max(4, (room - 1).bit_length())
    npus, dims, queues = int(settings["npus"][0]), len(p.dims), int(settings["queues"][0])
    num_links = 1
    if settings["is_aware"][0]:
        num_links = npus * npus if p.dims["kind"][0] == state.CONNECTED else 2 * npus
    max_phases = max(1, int(np.diff(p.plan_start).max(initial=0)))
    wires = state.Wires(
        settings=settings,
        dims=p.dims,
        messages=_pool(room, state.MESSAGE),
        matches=np.zeros(2 * room, state.MATCH),
        links=np.zeros(num_links, state.LINK),
    )
    streams = state.Streams(
        plan_start=p.plan_start,
        templates=p.templates,
        members=p.members,
        streams=_pool(room // 2, state.STREAM),
        phases=np.zeros((room // 2, max_phases), state.PHASE),
        queues=_lines((npus, dims * queues), state.QUEUE),
        turns=np.zeros((npus, dims, 3), np.int64),
        trees=np.zeros((npus, 4 * dims), np.int64),
    )
    return state.Machine(queue=_event_queue(room, npus), wires=wires, streams=streams)


def _program(p: Prepared) -> state.AstraProgram:
    nodes, rank_start = p.nodes, p.rank_start
    nodes["waits"], nodes["tag"] = p.waits, p.tag
    nodes["start_ns"] = nodes["end_ns"] = UNKNOWN
    num_ranks, num_nodes = len(rank_start) - 1, int(rank_start[-1])
    lines = np.zeros((num_ranks, int(state.NUM_RESOURCES)), state.LINE)
    ready = np.zeros(max(num_nodes, 1), np.int32)
    fill_ready(nodes, num_nodes, lines, ready)
    ranks = np.zeros(num_ranks, state.RANK)
    ranks["finish_ns"] = ranks["done_at_ns"] = NONE
    return state.AstraProgram(
        nodes=nodes,
        child=p.child,
        rank_start=rank_start,
        ranks=ranks,
        busy=np.zeros((num_ranks, int(state.NUM_RESOURCES)), np.int64),
        lines=lines,
        ready=ready,
        fresh=np.zeros(int(np.diff(rank_start).max(initial=0)) + 1, np.int64),
        servers=_lines((max(p.num_servers, 1),), state.SERVER),
    )


def new_simulation(p: Prepared, room: int, works_ahead: bool) -> state.Simulation:
    """A run before its first event."""
    settings = p.settings.copy()
    settings["works_ahead"] = works_ahead
    # Worked out ahead, messages of collectives are on the side machine; the ranks' own events are few.
    num_ranks = len(p.rank_start) - 1
    machine = _machine(p, settings, min(room, 4 * num_ranks * room // p.room) if works_ahead else room)
    collectives = p.collectives.copy()
    return state.Simulation(
        machine=machine,
        side=_machine(p, settings, room) if works_ahead else machine,
        collectives=state.Collectives(
            collectives=collectives,
            communicators=p.communicators.copy(),
            joins=np.zeros(len(p.members), state.JOIN),
            plan_key=p.plan_key,
            memos=np.zeros(state.NUM_MEMOS, state.MEMO),
        ),
        program=_program(p),
    )

"""Time of a schedule that works level by level in chunks, from the schedule itself: who waits for what, and whose turn
it is on a port.

All members of a level do the same at the same time, so one stands for all: the messages of one device, chunk by chunk,
on the ports of one device. A message begins when the one before it in its chain has arrived and the port is free; in
the order in which messages become ready, chunk by chunk where they do so at once; a chunk begins a step when the chunk
`IN_FLIGHT` before it has ended it. This is what the network `links` does with every member; latencies that others'
bytes cover, and phases that take turns on a port, come out and are not assumed.

Along a line without a wrap the first and the last link stand for all: the first sends what is for everybody beyond it
in a scatter, the last takes what comes from everybody in a gather, and all between them carry as much in both together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from etude.cost.schedule import IN_FLIGHT
from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel
from etude.kernels.heap import Heap, empty_heap, pop, push

SCALE: Final = 16
"""Payloads that are worked out, in every power of two."""
KEY_BITS: Final = 62
"""Of a time and the number of a message in one integer."""
MOST_STEPS: Final = 64
"""A longer chain takes several steps as one."""
HOPS: Final = 3


@dataclass(frozen=True, slots=True)
class PortUse:
    """A message on a link or a port, `bytes_per_ns` of which are this device's."""

    port: str
    """Links of the same name are one; "": of no other message."""
    bytes_per_ns: float


@dataclass(frozen=True, slots=True)
class MessageChain:
    """Messages of a device that follow one another, each when the one before has arrived."""

    steps: int
    volume: float
    """Bytes of one message for each byte of payload."""
    uses: tuple[PortUse, ...]
    level: int
    in_switch: bool = False
    latency: float = 1.0
    """Latencies of the level for each message."""
    last_only: bool = False
    """Only the last message is on a port that others use."""


ChainPass = tuple[MessageChain, ...]
"""Chains that begin together; the next pass of a chunk begins when all of them have arrived."""


class ChainProgram(NamedTuple):
    """One chunk of all passes, in messages."""

    chain: I64  # of each message; a chain's are next to each other
    stage: I64  # of each chain: its pass
    first: I64  # of each chain: its first message; one more at the end
    port: I64  # message x hop; -1: none that others use
    ns_per_byte: F64  # message x hop, per byte of payload
    lag_ns: F64  # of each message
    stage_chains: I64  # chains of each pass


def pipelined_ns(
    passes: tuple[ChainPass, ...], steps_ns: tuple[float, ...], payload_bytes: F64, chunks: I64, fraction: float
) -> F64:
    """For each payload, its time in that number of chunks; `steps_ns[p]` is the latency of the level of chain p, all
    passes in order, `fraction` the part of every rate that the protocol reaches.

    Worked out for payloads of a fixed scale, `SCALE` in every power of two, and on a line between two of them: what
    else is asked does not change a time.
    """
    bytes_moved = payload_bytes.ravel() / fraction
    place = np.floor(np.log2(np.maximum(bytes_moved, 1.0)) * SCALE).astype(np.int64)
    low, high = np.exp2(place / SCALE) * (place > 0), np.exp2((place + 1) / SCALE)
    found = np.zeros((2, len(place)))
    key = np.stack([place, chunks.ravel()])
    distinct, first, back = np.unique(key, axis=1, return_index=True, return_inverse=True)
    for i, (_, count) in enumerate(distinct.T.tolist()):
        for end, grid in enumerate((low, high)):
            found[end, i] = _of_scale(passes, steps_ns, float(grid[first[i]]), count)
    begin, end_ns = found[:, back.ravel()]
    out: F64 = begin + (end_ns - begin) * (bytes_moved - low) / (high - low)
    return out.reshape(payload_bytes.shape)


@lru_cache(maxsize=1 << 14)
def _of_scale(passes: tuple[ChainPass, ...], steps_ns: tuple[float, ...], payload: float, chunks: int) -> float:
    program = _program(passes, steps_ns)
    piece, total = payload / chunks, chunks * len(program.chain)
    bound = chunks * float((program.ns_per_byte.max(axis=1) * piece + program.lag_ns).sum()) + 1.0
    tick = bound / 2.0 ** (KEY_BITS - total.bit_length())
    room = _Room(np.zeros(total, np.int64), np.zeros(total, np.int64), empty_heap(total + 1))
    return float(_finish(program, room, piece, tick, chunks, IN_FLIGHT)) * tick


@lru_cache(maxsize=256)
def _program(passes: tuple[ChainPass, ...], steps_ns: tuple[float, ...]) -> ChainProgram:
    ports: dict[str, int] = {}
    chain: list[int] = []
    stage: list[int] = []
    first = [0]
    port, rate, lag = [], [], []
    step_of = iter(steps_ns)
    for number, chains in enumerate(passes):
        for made in chains:
            step = next(step_of)
            sizes = _together(made.steps)
            for at, many in enumerate(sizes):
                shared = not made.last_only or at == len(sizes) - 1
                row = [ports.setdefault(use.port, len(ports)) if use.port and shared else -1 for use in made.uses]
                port.append(row + [-1] * (HOPS - len(row)))
                each = [many * made.volume / use.bytes_per_ns for use in made.uses]
                rate.append(each + [0.0] * (HOPS - len(each)))
                lag.append(many * made.latency * step)
                chain.append(len(stage))
            stage.append(number)
            first.append(len(chain))
    counts = np.bincount(np.array(stage), minlength=len(passes))
    chain_of, stage_of, first_of = np.array(chain), np.array(stage), np.array(first)
    return ChainProgram(chain_of, stage_of, first_of, np.array(port), np.array(rate), np.array(lag, np.float64), counts)


def _together(steps: int) -> Sequence[int]:
    """Steps that are taken as one, in order."""
    if steps <= MOST_STEPS:
        return [1] * steps
    ends = np.linspace(0, steps, MOST_STEPS + 1).astype(np.int64)
    return [int(many) for many in np.diff(ends)]


class _Room(NamedTuple):
    ready: I64  # of each message of each chunk: the latest of what it waits for
    waits: I64  # of each: for how much still
    queue: Heap


@kernel
def _finish(program: ChainProgram, room: _Room, piece: float, tick: float, chunks: int, window: int) -> int:
    """When the last message has arrived, in ticks of that many ns. `piece` are the bytes of a chunk."""
    size, stages = len(program.chain), len(program.stage_chains)
    total = size * chunks
    free = np.zeros(program.port.max() + 1, np.int64)
    done = np.zeros((chunks, stages), np.int64)
    end = np.int64(0)
    for task in range(total):
        chunk, message = task // size, task % size
        chain = program.chain[message]
        begins = message == program.first[chain]
        room.ready[task] = 0
        room.waits[task] = (chunk >= window) + (not begins or program.stage[chain] > 0)
        if room.waits[task] == 0:
            push(room.queue, np.int64(task), np.int64(task))
    while room.queue.size[0] > 0:
        task = pop(room.queue)
        chunk, message = task // size, task % size
        begin, tail = room.ready[task], np.int64(0)
        for hop in range(HOPS):
            port, lasts = program.port[message, hop], np.int64(program.ns_per_byte[message, hop] * piece / tick)
            if port >= 0:
                begin = max(begin, free[port])
                free[port] = begin + lasts
            tail = max(tail, begin + lasts)
        tail += np.int64(program.lag_ns[message] / tick)
        end = max(end, tail)
        if chunk + window < chunks:
            _arrive(room, task + window * size, tail, total)
        chain = program.chain[message]
        if message + 1 < program.first[chain + 1]:
            _arrive(room, task + 1, tail, total)
            continue
        stage = program.stage[chain]
        done[chunk, stage] += 1
        if stage + 1 == stages:
            continue
        # What begins the next pass waits for all chains of this one.
        last = done[chunk, stage] == program.stage_chains[stage]
        for other in range(len(program.stage)):
            if program.stage[other] == stage + 1:
                task = chunk * size + program.first[other]
                room.ready[task] = max(room.ready[task], tail)
                if last:
                    _arrive(room, task, tail, total)
    return int(end)


@kernel(allocates=False)
def _arrive(room: _Room, task: int, at: int, total: int) -> None:
    """One of those that a message waits for has arrived."""
    room.ready[task] = max(room.ready[task], at)
    room.waits[task] -= 1
    if room.waits[task] == 0:
        push(room.queue, room.ready[task] * total + task, np.int64(task))

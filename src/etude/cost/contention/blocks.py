"""Blocks of two streams of kernels on the cores of a device, event by event.

Each stream repeats one kernel. A kernel is a grid of blocks, which take room on a core. The device hands out the blocks
of the kernel that arrived first, and those of the other only when the first has none left: a kernel behind a larger one
waits for its last wave, and then both run side by side. Running blocks share the memory's bandwidth max-min fairly.

All running blocks of a kernel go at one rate, so that a block's end is constant on the kernel's own clock: a change of
rate moves no entry of a heap.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel
from etude.kernels.heap import KEY, Heap, empty_heap, pop, push

TICKS: Final = 1 << 40
"""Ticks of a kernel's own clock while an average block runs."""
ROOM: Final = 1e-9
"""Rounding of the room on a core."""


class Grids(NamedTuple):
    """Both kernels, as columns of two."""

    blocks: I64
    period: I64  # blocks after which work repeats: block i does i + 1 parts of it; 0: all do the same
    core_ns: F64  # of a mean block, without memory
    size_bytes: F64  # through the memory, of a mean block
    threads: F64  # fraction of a core's threads or registers that a block takes
    shared: F64  # fraction of a core's shared memory
    cluster: I64  # blocks that start together inside one cluster of cores
    gap_ns: F64


class Cores(NamedTuple):
    """Room on each core before the kernels start, and the memory."""

    threads: F64
    shared: F64
    cluster: I64  # of each core; cores of a cluster are adjacent
    bytes_per_ns: float  # of the memory, for both
    core_bytes_per_ns: float  # most that one core draws


class StopRule(NamedTuple):
    least_ops: int  # kernels of the first stream, after which it may end
    most_ops: int  # and after which it does
    after_ns: float  # and not before this
    alone: bool  # there is no second stream


ONCE: Final = StopRule(1, 1, 0.0, alone=True)


class _State(NamedTuple):
    threads: F64
    shared: F64
    first_core: I64  # of each cluster, and the number of cores at the end
    clock: I64  # a kernel's own, in ticks
    left: I64  # blocks not handed out
    running: I64
    came_ns: F64  # when the kernel arrived; -1: there is none
    next_ns: F64  # when the next kernel of the stream arrives


def ends_ns(grids: Grids, cores: Cores, stop: StopRule) -> F64:
    """When each kernel of the first stream ends. The second stream begins first, and the other while it runs."""
    clusters = np.flatnonzero(np.diff(cores.cluster, prepend=-1))
    state = _State(
        cores.threads.copy(),
        cores.shared.copy(),
        np.append(clusters, len(cores.cluster)).astype(np.int64),
        np.zeros(2, np.int64),
        np.zeros(2, np.int64),
        np.zeros(2, np.int64),
        np.full(2, -1.0),
        np.array([0.0, np.inf]) if stop.alone else np.array([1.0, 0.0]),
    )
    room = len(cores.cluster) * (1 + int(1 / min(_least(grids.threads), _least(grids.shared))))
    return np.asarray(_run(grids, cores, stop, state, empty_heap(room), empty_heap(room)))


def _least(parts: F64) -> float:
    used = parts[parts > 0]
    return float(used.min()) if len(used) else 1.0


@kernel
def _run(grids: Grids, cores: Cores, stop: StopRule, state: _State, first: Heap, second: Heap) -> F64:
    ends = np.zeros(stop.most_ops)
    done, now_ns = 0, 0.0
    ticks, most = np.zeros(2), np.zeros(2)
    while done < stop.least_ops or (done < stop.most_ops and now_ns < stop.after_ns):
        _set_rates(grids, cores, state, ticks, most)
        next_ns, what = np.inf, -1
        for k in range(2):
            if state.running[k] > 0:
                heap = first if k == 0 else second
                end_ns = now_ns + max((heap.entry[0, KEY] - state.clock[k]) / ticks[k], 0.0)
                if end_ns < next_ns:
                    next_ns, what = end_ns, k
            if state.next_ns[k] < next_ns:
                next_ns, what = state.next_ns[k], 2 + k
        if what < 0:
            break
        for k in range(2):
            if state.running[k] > 0:
                state.clock[k] += round((next_ns - now_ns) * ticks[k])
        now_ns = next_ns
        if what >= 2:
            k = what - 2
            state.next_ns[k] = np.inf
            state.came_ns[k] = now_ns
            state.left[k] = grids.blocks[k]
            _hand_out(grids, state, first, second, -1)
            continue
        heap = first if what == 0 else second
        state.clock[what] = max(state.clock[what], heap.entry[0, KEY])
        while state.running[what] > 0 and heap.entry[0, KEY] <= state.clock[what] + TICKS // 1_000_000_000:
            core = pop(heap)
            state.running[what] -= 1
            state.threads[core] += grids.threads[what]
            state.shared[core] += grids.shared[what]
            _hand_out(grids, state, first, second, core)
        if state.running[what] == 0 and state.left[what] == 0:
            state.came_ns[what] = -1.0
            state.next_ns[what] = now_ns + grids.gap_ns[what]
            if what == 0:
                ends[done] = now_ns
                done += 1
    return ends[:done]


@kernel(allocates=False)
def _set_rates(grids: Grids, cores: Cores, state: _State, ticks: F64, most: F64) -> None:
    """Ticks per ns of each kernel: as fast as its operations, its cores' rate and its share of the memory allow."""
    wanted = 0.0
    for k in range(2):
        most[k] = 0.0
        if state.running[k] > 0 and grids.size_bytes[k] > 0:
            most[k] = cores.core_bytes_per_ns * max(grids.threads[k], grids.shared[k])
            if grids.core_ns[k] > 0:
                most[k] = min(most[k], grids.size_bytes[k] / grids.core_ns[k])
            wanted += most[k] * state.running[k]
    if wanted > cores.bytes_per_ns:
        both = (state.running[0] if most[0] > 0 else 0) + (state.running[1] if most[1] > 0 else 0)
        fair = cores.bytes_per_ns / both
        low = 0 if most[1] == 0 or (0 < most[0] < most[1]) else 1
        low_takes = min(most[low], fair)
        most[low] = low_takes
        other = 1 - low
        if most[other] > 0:
            left = cores.bytes_per_ns - low_takes * state.running[low]
            most[other] = min(most[other], left / state.running[other])
    for k in range(2):
        need_ns = grids.core_ns[k]
        if most[k] > 0:
            need_ns = max(need_ns, grids.size_bytes[k] / most[k])
        ticks[k] = TICKS / max(need_ns, 1e-3)


@kernel(allocates=False)
def _hand_out(grids: Grids, state: _State, first: Heap, second: Heap, core: int) -> None:
    """Hands out blocks of the kernel that arrived first; of the other when it has none left. `core` is the one with new
    room, or -1 for all."""
    older = 0
    if state.came_ns[0] < 0 or (state.came_ns[1] >= 0 and state.came_ns[1] < state.came_ns[0]):
        older = 1
    for turn in range(2):
        k = older if turn == 0 else 1 - older
        if state.came_ns[k] < 0 or state.left[k] == 0:
            continue
        heap = first if k == 0 else second
        before = state.left[k]
        _place(grids, state, heap, k, core)
        if state.left[k] > 0:
            return
        if before > 0:
            core = -1  # the other may start wherever there is room


@kernel(allocates=False)
def _place(grids: Grids, state: _State, heap: Heap, k: int, core: int) -> None:
    """Starts as many blocks as find room, spread over the clusters and their cores."""
    clusters = len(state.first_core) - 1
    low, high = 0, clusters
    if core >= 0:
        low = 0
        while state.first_core[low + 1] <= core:
            low += 1
        high = low + 1
    placed = True
    while placed and state.left[k] > 0:
        placed = False
        for c in range(low, high):
            if state.left[k] == 0:
                return
            together = min(grids.cluster[k], state.left[k])
            if core >= 0 and together == 1:
                if _fits(grids, state, k, core):
                    _start(grids, state, heap, k, core)
                    placed = True
                continue
            if _free(grids, state, k, c) < together:
                continue
            for _ in range(together):
                _start(grids, state, heap, k, _roomiest(grids, state, k, c))
            placed = True


@kernel(allocates=False)
def _fits(grids: Grids, state: _State, k: int, core: int) -> bool:
    return state.threads[core] >= grids.threads[k] - ROOM and state.shared[core] >= grids.shared[k] - ROOM


@kernel(allocates=False)
def _free(grids: Grids, state: _State, k: int, cluster: int) -> int:
    """Cores of a cluster that have room for a block."""
    count = 0
    for core in range(state.first_core[cluster], state.first_core[cluster + 1]):
        if _fits(grids, state, k, core):
            count += 1
    return count


@kernel(allocates=False)
def _roomiest(grids: Grids, state: _State, k: int, cluster: int) -> int:
    best, room = -1, -1.0
    for core in range(state.first_core[cluster], state.first_core[cluster + 1]):
        here = state.threads[core] + state.shared[core]
        if here > room and _fits(grids, state, k, core):
            best, room = core, here
    return best


@kernel(allocates=False)
def _start(grids: Grids, state: _State, heap: Heap, k: int, core: int) -> None:
    state.threads[core] -= grids.threads[k]
    state.shared[core] -= grids.shared[k]
    sent = grids.blocks[k] - state.left[k]
    work = 1.0
    if grids.period[k] > 0:
        work = 2.0 * (sent % grids.period[k] + 1) / (grids.period[k] + 1)
    push(heap, state.clock[k] + round(work * TICKS), core)
    state.left[k] -= 1
    state.running[k] += 1

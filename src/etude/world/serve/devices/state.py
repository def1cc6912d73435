"""What devices hold and when they are free, and when a call would end on one, in compiled code.

A call on a device waits until the device is free, fetches the outputs of its parents from other devices, loads the
weights of its model if they are not there, and runs; a prefix that the device holds is not computed again. Weights stay
until other models need the room, the least recently used are evicted first, and with them all prefixes of that model. A
device keeps the last `keep` bytes of keys and values that its calls read or wrote.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel
from etude.world.serve.devices.graph import NEVER, Graph


class DevicesState(NamedTuple):
    """Times in ns."""

    free: I64
    """When each device has finished what was placed on it."""
    used: I64
    """[device, model]: the last use of the device by the model, counted from 1; 0: its weights are not there."""
    gone: I64
    """[device, model]: `written` of the device when the model last left."""
    written: I64
    """Bytes of keys and values that calls of the device have read and written."""
    stamp: I64
    """[device, node]: `written` before the last call that used the prefix; -1: none has."""
    uses: I64
    """Calls of each device."""
    ready: I64
    """When all dependencies of each call are done."""
    finish: I64
    """When each call ends; NEVER: it is not placed."""
    missing: I64
    """Dependencies of each call that have no end yet."""
    place: I64
    """Device that has the output of a call; -1: none has."""


class Terms(NamedTuple):
    """Times of a part of a call on a device, in ns."""

    begin: np.int64
    fetch: np.int64
    load: np.int64
    run: np.int64
    """Time of the part, without the prefix that is found."""
    found: np.int64
    """Tokens of that prefix."""
    finish: np.int64
    """NEVER, if the model does not fit."""


def start_of(graph: Graph) -> DevicesState:
    n, devices, models = len(graph.model), len(graph.kind), max(len(graph.weights), 1)
    nodes = int(max(graph.path.max(initial=-1) + 1, 1))
    return DevicesState(
        free=np.zeros(devices, np.int64), used=np.zeros((devices, models), np.int64),
        gone=np.zeros((devices, models), np.int64), written=np.zeros(devices, np.int64),
        stamp=np.full((devices, nodes), -1, np.int64), uses=np.zeros(devices, np.int64),
        ready=np.full(n, NEVER, np.int64), finish=np.full(n, NEVER, np.int64),
        missing=np.diff(graph.parent_start).astype(np.int64), place=np.full(n, -1, np.int64),
    )  # fmt: skip


@kernel
def copied(s):
    return DevicesState(
        s.free.copy(), s.used.copy(), s.gone.copy(), s.written.copy(), s.stamp.copy(), s.uses.copy(), s.ready.copy(),
        s.finish.copy(), s.missing.copy(), s.place.copy(),
    )  # fmt: skip


@kernel(allocates=False)
def option_of(g, s, c, d):
    """The longest prefix that the device holds, as a row of the options."""
    m = g.model[c]
    last = g.option_start[c + 1] - 1
    for k in range(g.option_start[c], last):
        stamp = s.stamp[d, g.option_node[k]]
        if stamp >= s.gone[d, m] and stamp >= 0 and s.written[d] - stamp <= g.keep[d]:
            return k
    return last


@kernel(allocates=False)
def terms_of(g, s, c, d, parts, now):
    """Times of one of `parts` parts of a call on a device."""
    k = option_of(g, s, c, d)
    whole = g.option_ns[k, g.kind[d]]
    begin = max(max(now, s.ready[c]), s.free[d])
    if whole >= NEVER:
        return Terms(begin, np.int64(0), np.int64(0), whole, np.int64(0), np.int64(NEVER))
    fetch = np.int64(0)
    for e in range(g.parent_start[c], g.parent_start[c + 1]):
        p = g.parent[e]
        if s.place[p] != d:
            fetch += g.hand_ns[p]
    load = g.load_ns[g.model[c], g.kind[d]] if s.used[d, g.model[c]] == 0 else np.int64(0)
    run = (whole + parts - 1) // parts
    return Terms(begin, fetch, load, run, g.option_found[k], begin + fetch + load + run)


@kernel(allocates=False)
def hold(g, s, c, d, parts, finish):
    """A device gets a part of a call, which ends at `finish`."""
    m, kind = g.model[c], g.kind[d]
    s.uses[d] += 1
    if s.used[d, m] == 0:
        room = g.memory[d] - g.weights[m, kind]
        while True:
            total, oldest = np.int64(0), -1
            for other in range(len(g.weights)):
                if s.used[d, other] and other != m:
                    total += g.weights[other, kind]
                    if oldest < 0 or s.used[d, other] < s.used[d, oldest]:
                        oldest = other
            if total <= room or oldest < 0:
                break
            s.used[d, oldest] = 0
            s.gone[d, oldest] = s.written[d]
    s.used[d, m] = s.uses[d]
    for e in range(g.path_start[c], g.path_start[c + 1]):
        s.stamp[d, g.path[e]] = s.written[d]
    s.written[d] += g.kept_bytes[c, kind] // parts
    s.free[d] = finish


@kernel(allocates=False)
def put(g, s, c, chosen, parts, now):
    """Places a call on the first devices of `chosen`; when it ends. The first one has the output of all parts."""
    end = np.int64(0)
    for i in range(parts):
        found = terms_of(g, s, c, chosen[i], parts, now)
        hold(g, s, c, chosen[i], parts, found.finish)
        end = max(end, found.finish)
    end += g.hand_ns[c] * (parts - 1) // parts
    s.finish[c] = end
    s.place[c] = chosen[0]
    return end

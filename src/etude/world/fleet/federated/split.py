"""Split training: a client holds the layers below its cut, a server the rest; activations and gradients travel.

A step of a client is forward, activations up, the server's part, gradients down, backward. The server has some devices
that serve one client at a time, first come, first served (ties: the lower number). A round begins with the adapters of
a client down and ends with them up. The server's links, if they have a limit, are shared max-min, each way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel
from etude.world.fleet.federated.links import common_level

FETCH, FORWARD, UP, WAIT, SERVED, DOWN, BACKWARD, SEND, DONE = range(9)


@dataclass(frozen=True, slots=True, eq=False)
class ClientSplit:
    """Arrays over clients; [client, length] where two axes are named."""

    cut: I64
    forward_s: F64
    backward_s: F64
    server_s: F64
    step_bytes: F64
    """Activations of a step, one way, [client, length]; 0 where there is no border."""
    adapter_bytes: F64
    """[client]: one way."""
    mix: F64
    """Probability of each length, [client, length]."""
    tokens: F64
    """Tokens per step, [length]."""
    local: NDArray[np.bool_]
    """[client]: whether it needs no server."""
    devices: int

    def lengths(self, chosen: I64, steps: int, rng: np.random.Generator) -> I64:
        """Which length each step of each of these clients has, [client, step]."""
        draws = rng.random((len(chosen), steps))
        return (draws[:, :, None] >= np.cumsum(self.mix[chosen], axis=1)[:, None, :-1]).sum(axis=2)


class ClientWork(NamedTuple):
    """Work of the clients of a round; [client, step] unless stated otherwise."""

    forward_s: F64
    backward_s: F64
    server_s: F64
    step_bytes: F64
    adapter_bytes: F64
    local: NDArray[np.bool_]
    up: F64
    """Bytes a second, [client]."""
    down: F64


class Ended(NamedTuple):
    end_s: F64
    """End of each client; infinite: not before the round was over."""
    round_s: float
    up_bytes: float
    down_bytes: float
    busy_s: float
    """Busy time of the server's devices, summed."""
    wait_s: float
    """Time clients wait for one."""


def work_of(split: ClientSplit, chosen: I64, lengths: I64, up: F64, down: F64) -> ClientWork:
    def at(table: F64) -> F64:
        return np.ascontiguousarray(np.take_along_axis(table[chosen], lengths, axis=1))

    return ClientWork(
        at(split.forward_s), at(split.backward_s), at(split.server_s), at(split.step_bytes),
        split.adapter_bytes[chosen], split.local[chosen], up[chosen], down[chosen],
    )  # fmt: skip


def split_round(work: ClientWork, devices: int, limit: float, wanted: int, until_s: float) -> Ended:
    """Until `wanted` clients are done, or `until_s`. `limit`: bytes a second of the server each way; 0: none."""
    if not len(work.up):
        return Ended(np.zeros(0), until_s, 0.0, 0.0, 0.0, 0.0)
    slow = np.stack([np.argsort(work.up, kind="stable"), np.argsort(work.down, kind="stable")])
    end, round_s, totals = _round(work, slow, devices, float(limit), wanted, float(until_s))
    return Ended(end, float(round_s), *(float(one) for one in totals))


class ClientState(NamedTuple):
    """State of each client."""

    phase: I64
    step: I64
    end: F64
    then: F64
    """When its phase ends; infinite: not known yet."""
    left: F64
    """Bytes of a transfer that shares the server's link."""
    size: F64
    moving: NDArray[np.bool_]
    """[way, client]: up and down, where links of the server are shared."""
    since: F64
    ready: NDArray[np.bool_]
    queue: I64
    tally: I64
    """Queue's head and tail, free devices, clients that are done."""
    total: F64
    """Bytes up, bytes down, seconds of devices in use, seconds that clients waited."""


HEAD, TAIL, FREE, ENDED = range(4)
SENT, GOT, BUSY, WAITED = range(4)


@kernel
def _enter(work: ClientWork, state: ClientState, i: int, now: float, limit: float) -> None:
    """Client `i` goes on to its next phase."""
    phase, steps = state.phase[i], work.forward_s.shape[1]
    state.moving[0, i], state.moving[1, i], state.then[i], state.ready[i] = False, False, np.inf, False
    if phase == SERVED:
        state.tally[FREE] += 1
    if phase == BACKWARD:
        state.step[i] += 1
        phase = FORWARD if state.step[i] < steps else SEND
    elif phase == FORWARD and work.local[i]:
        phase = BACKWARD
    else:
        phase += 1
    state.phase[i], k = phase, state.step[i]
    if phase in (FORWARD, BACKWARD):
        state.then[i] = now + (work.forward_s[i, k] if phase == FORWARD else work.backward_s[i, k])
        state.ready[i] = state.then[i] <= now
    elif phase == WAIT:
        state.queue[state.tally[TAIL] % len(state.queue)] = i
        state.tally[TAIL] += 1
        state.since[i] = now
    elif phase == DONE:
        state.end[i] = now
        state.tally[ENDED] += 1
    else:
        _transfer(work, state, i, now, limit)


@kernel
def _transfer(work: ClientWork, state: ClientState, i: int, now: float, limit: float) -> None:
    phase = state.phase[i]
    way = 0 if phase in (UP, SEND) else 1
    size = work.step_bytes[i, state.step[i]] if phase in (UP, DOWN) else work.adapter_bytes[i]
    state.size[i], state.left[i] = size, size
    state.total[SENT + way] += size
    if size <= 0:
        state.ready[i] = True
    elif limit:
        state.moving[way, i] = True
    else:
        state.then[i] = now + size / (work.up[i] if way == 0 else work.down[i])


@kernel
def _serve(work: ClientWork, state: ClientState, now: float, until: float) -> None:
    """Free devices take who came first."""
    while state.tally[FREE] and state.tally[HEAD] < state.tally[TAIL]:
        j = state.queue[state.tally[HEAD] % len(state.queue)]
        state.tally[HEAD] += 1
        state.tally[FREE] -= 1
        state.phase[j], state.then[j] = SERVED, now + work.server_s[j, state.step[j]]
        state.total[WAITED] += now - state.since[j]
        state.total[BUSY] += min(state.then[j], until) - now


@kernel
def _advance(work: ClientWork, state: ClientState, slow: Any, now: float, limit: float, until: float) -> float:
    """To the next end of a phase; who is there is ready."""
    n = len(state.phase)
    rate, following = np.zeros(n), until
    if limit:
        high = common_level(state.moving[0], work.up, slow[0], limit)
        low = common_level(state.moving[1], work.down, slow[1], limit)
        for i in range(n):
            rate[i] = min(work.up[i], high) if state.moving[0, i] else min(work.down[i], low)
    for i in range(n):
        if state.moving[0, i] or state.moving[1, i]:
            state.then[i] = now + state.left[i] / rate[i]
        following = min(following, state.then[i])
    for i in range(n):
        state.ready[i] = state.then[i] <= following
        if state.moving[0, i] or state.moving[1, i]:
            state.left[i] -= rate[i] * (following - now)
            state.ready[i] |= state.left[i] <= 1e-9 * state.size[i]
    return following


@kernel
def _unsent(work: ClientWork, state: ClientState, i: int, now: float, limit: float) -> float:
    """Bytes of a client's transfer that are not sent when the round ends."""
    if limit:
        return max(state.left[i], 0.0) if state.moving[0, i] or state.moving[1, i] else 0.0
    rate = work.up[i] if state.phase[i] in (UP, SEND) else work.down[i]
    return max(state.then[i] - now, 0.0) * rate if state.then[i] < np.inf else 0.0


@kernel
def _round(work: ClientWork, slow: Any, devices: int, limit: float, wanted: int, until: float) -> Any:
    n, now = len(work.up), 0.0
    state = ClientState(
        np.full(n, FETCH - 1), np.zeros(n, np.int64), np.full(n, np.inf), np.full(n, np.inf), np.zeros(n), np.zeros(n),
        np.zeros((2, n), np.bool_), np.zeros(n), np.ones(n, np.bool_), np.zeros(n, np.int64),
        np.array([0, 0, devices, 0]), np.zeros(4),
    )  # fmt: skip
    while True:
        for i in range(n):
            while state.ready[i]:
                _enter(work, state, i, now, limit)
        _serve(work, state, now, until)
        if state.tally[ENDED] >= wanted:
            break
        now = _advance(work, state, slow, now, limit, until)
        if now >= until:
            break
    for i in range(n):
        if state.phase[i] == SERVED and state.then[i] > now:
            state.total[BUSY] -= min(state.then[i], until) - now
        if state.phase[i] in (FETCH, UP, DOWN, SEND):
            way = 0 if state.phase[i] in (UP, SEND) else 1
            state.total[SENT + way] -= _unsent(work, state, i, now, limit)
    return state.end, now, state.total

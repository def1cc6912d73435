"""Split training: a client holds the layers below its cut, a server the rest; activations and gradients travel.

A step of a client is forward, activations up, the server's part, gradients down, backward. The server has some devices
that serve one client at a time, first come, first served (ties: the lower number). A round begins with the adapters of
a client down and ends with them up. The server's links, if they have a limit, are shared max-min, each way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from etude.kernels.arrays import F64, I64, Bool
from etude.kernels.compile import kernel
from etude.world.fleet.federated.links import common_level

UP, DOWN, WORK, SERVE = range(4)
"""Phases of a client: bytes that are sent or fetched, its own seconds, and seconds of a device of the server."""
HEAD, TAIL, FREE, ENDED = range(4)
BUSY, WAITED = 2, 3


class ClientPhases(NamedTuple):
    """What clients do in sequence."""

    kind: I64
    """[client, phase]"""
    amount: F64
    """Seconds or bytes."""
    rate: F64
    """Bytes a second, [way, client]."""
    slow: I64
    """Clients in order of their rates, [way, place]."""


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
    local: Bool
    """[client]: whether it needs no server."""
    devices: int

    def lengths(self, chosen: I64, steps: int, rng: np.random.Generator) -> I64:
        """Which length each step of each of these clients has, [client, step]."""
        draws = rng.random((len(chosen), steps))
        return (draws[:, :, None] >= np.cumsum(self.mix[chosen], axis=1)[:, None, :-1]).sum(axis=2)

    def phases(self, chosen: I64, lengths: I64, up: F64, down: F64) -> ClientPhases:
        """What these clients do in a round; rates are those of all clients."""
        tables = (self.forward_s, self.server_s, self.backward_s, self.step_bytes)
        *steps, sent = (np.take_along_axis(table[chosen], lengths, axis=1) for table in tables)
        return phases_of(steps, sent, self.adapter_bytes[chosen], self.local[chosen], up[chosen], down[chosen])


def phases_of(
    steps_s: Sequence[F64], step_bytes: F64, adapter_bytes: F64, local: Bool, up: F64, down: F64
) -> ClientPhases:
    """Adapters down, the steps, adapters up; steps of a client without a server are its own work alone. `steps_s`:
    forward, at the server and backward, [client, step] as the bytes of a step."""
    forward, served, backward = steps_s
    adapters, sent = adapter_bytes[:, None], np.where(local[:, None], 0.0, step_bytes)
    each = np.stack([forward, sent, np.where(local[:, None], 0.0, served), sent, backward], 2)
    kind = np.tile([DOWN, *[WORK, UP, SERVE, DOWN, WORK] * forward.shape[1], UP], (len(forward), 1))
    kind[local, 1:-1] = WORK
    amount, rate = np.hstack([adapters, each.reshape(len(each), -1), adapters]), np.stack([up, down])
    return ClientPhases(kind, amount, rate, np.argsort(rate, axis=1, kind="stable"))


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


def split_round(phases: ClientPhases, devices: int, limit: float, wanted: int, until_s: float) -> Ended:
    """Until `wanted` clients are done, or `until_s`. `limit`: bytes a second of the server each way; 0: none."""
    if not len(phases.kind):
        return Ended(np.zeros(0), until_s, 0.0, 0.0, 0.0, 0.0)
    end, round_s, totals = _round(phases, devices, float(limit), wanted, float(until_s))
    return Ended(end, float(round_s), *(float(one) for one in totals))


class ClientState(NamedTuple):
    """State of each client."""

    at: I64
    """Its phase."""
    end: F64
    then: F64
    """When its phase ends; infinite: not known yet."""
    left: F64
    """Bytes of a transfer that shares the server's link."""
    moving: Bool
    """[way, client]: up and down, where links of the server are shared."""
    since: F64
    ready: Bool
    queue: I64
    tally: I64
    """Queue's head and tail, free devices, clients that are done."""
    total: F64
    """Bytes up, bytes down, seconds of devices in use, seconds that clients waited."""


@kernel
def _enter(phases: ClientPhases, state: ClientState, i: int, now: float, limit: float) -> None:
    """Client `i` goes on to its next phase."""
    if state.at[i] >= 0 and phases.kind[i, state.at[i]] == SERVE:
        state.tally[FREE] += 1
    state.at[i] += 1
    state.moving[0, i], state.moving[1, i], state.then[i], state.ready[i] = False, False, np.inf, False
    if state.at[i] == phases.kind.shape[1]:
        state.end[i] = now
        state.tally[ENDED] += 1
        return
    kind, amount = phases.kind[i, state.at[i]], phases.amount[i, state.at[i]]
    if kind == WORK:
        state.then[i] = now + amount
        state.ready[i] = state.then[i] <= now
    elif kind == SERVE:
        state.queue[state.tally[TAIL] % len(state.queue)] = i
        state.tally[TAIL] += 1
        state.since[i] = now
    else:
        state.left[i] = amount
        state.total[kind] += amount
        if amount <= 0:
            state.ready[i] = True
        elif limit:
            state.moving[kind, i] = True
        else:
            state.then[i] = now + amount / phases.rate[kind, i]


@kernel
def _serve(phases: ClientPhases, state: ClientState, now: float, until: float) -> None:
    """Free devices take who came first."""
    while state.tally[FREE] and state.tally[HEAD] < state.tally[TAIL]:
        j = state.queue[state.tally[HEAD] % len(state.queue)]
        state.tally[HEAD] += 1
        state.tally[FREE] -= 1
        state.then[j] = now + phases.amount[j, state.at[j]]
        state.total[WAITED] += now - state.since[j]
        state.total[BUSY] += min(state.then[j], until) - now


@kernel
def _advance(phases: ClientPhases, state: ClientState, now: float, limit: float, until: float) -> float:
    """To the next end of a phase; who is there is ready."""
    n = len(state.at)
    rate, following = np.zeros(n), until
    for way in range(2 if limit else 0):
        level = common_level(state.moving[way], phases.rate[way], phases.slow[way], limit)
        for i in range(n):
            if state.moving[way, i]:
                rate[i] = min(phases.rate[way, i], level)
    for i in range(n):
        if rate[i]:
            state.then[i] = now + state.left[i] / rate[i]
        following = min(following, state.then[i])
    for i in range(n):
        state.ready[i] = state.then[i] <= following
        if rate[i]:
            state.left[i] -= rate[i] * (following - now)
            state.ready[i] |= state.left[i] <= 1e-9 * phases.amount[i, state.at[i]]
    return following


@kernel
def _round(phases: ClientPhases, devices: int, limit: float, wanted: int, until: float) -> Any:
    n, now = len(phases.kind), 0.0
    state = ClientState(
        np.full(n, -1), np.full(n, np.inf), np.full(n, np.inf), np.zeros(n), np.zeros((2, n), np.bool_), np.zeros(n),
        np.ones(n, np.bool_), np.zeros(n, np.int64), np.array([0, 0, devices, 0]), np.zeros(4),
    )  # fmt: skip
    while True:
        for i in range(n):
            while state.ready[i]:
                _enter(phases, state, i, now, limit)
        _serve(phases, state, now, until)
        if state.tally[ENDED] >= wanted:
            break
        now = _advance(phases, state, now, limit, until)
        if now >= until:
            break
    for i in range(n):  # what is cut off was not done, and not sent
        kind = phases.kind[i, min(state.at[i], phases.kind.shape[1] - 1)]
        if kind == SERVE and now < state.then[i] < np.inf:
            state.total[BUSY] -= min(state.then[i], until) - now
        elif kind <= DOWN and state.moving[kind, i]:
            state.total[kind] -= max(state.left[i], 0.0)
        elif kind <= DOWN and not limit and state.then[i] < np.inf:
            state.total[kind] -= max(state.then[i] - now, 0.0) * phases.rate[kind, i]
    return state.end, now, state.total

"""Fast changes: shares of GPU and CPU in closed form, and the resulting times.

A radio function needs g/x + c/y <= d for the longest of its slots, with shares x of the GPU and y of the CPU. The least
x + y that satisfies this is x = (g + sqrt(g c))/d, y = (c + sqrt(g c))/d. The rest of a node is divided among its AI
services as fractions f of both. A service with rate l, time s on all of the rest and deadline d waits and runs for
1/(f/s - l) on average (M/M/1). The sum over services of l/d times that is convex, and minimal at f = l s + (1 - sum l
s) r / sum r with r = sqrt(l s / d). If the demand exceeds the rest, f is proportional to l s.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel

DEADLINES, EVENLY = 0, 1
"""The rest of a node goes to its services by rate and deadline, or in equal parts."""


class Members(NamedTuple):
    """Columns of radio functions and AI services, and the sizes of nodes."""

    radio: NDArray[np.bool_]
    gpu_s: F64
    """Time of a slot or a request at mean load on a GPU of size 1."""
    cpu_s: F64
    deadline_s: F64
    vary: F64
    rate: F64
    """Mean rate of slots or requests, per second."""
    node_gpu: F64
    node_cpu: F64


class Shares(NamedTuple):
    """Shares of each member, in the units of node sizes."""

    gpu: F64
    cpu: F64


@kernel
def shares_at(members: Members, factor: F64, place: I64, how: int) -> Shares:
    """Shares of all members; `factor`: load of each relative to its mean. Radio functions get all that they need
    first."""
    count, nodes = len(place), len(members.node_gpu)
    gpu, cpu = np.zeros(count), np.zeros(count)
    left_gpu, left_cpu = members.node_gpu.copy(), members.node_cpu.copy()
    for i in range(count):
        if members.radio[i]:
            most = factor[i] * (1.0 + members.vary[i])
            both = np.sqrt(members.gpu_s[i] * members.cpu_s[i])
            gpu[i] = (members.gpu_s[i] + both) * most / members.deadline_s[i]
            cpu[i] = (members.cpu_s[i] + both) * most / members.deadline_s[i]
            left_gpu[place[i]] -= gpu[i]
            left_cpu[place[i]] -= cpu[i]
    for i in range(count):
        if members.radio[i]:
            n = place[i]
            if left_gpu[n] < 0.0:
                gpu[i] *= members.node_gpu[n] / (members.node_gpu[n] - left_gpu[n])
            if left_cpu[n] < 0.0:
                cpu[i] *= members.node_cpu[n] / (members.node_cpu[n] - left_cpu[n])
    for n in range(nodes):
        _divide(members, factor, place, how, n, max(left_gpu[n], 0.0), max(left_cpu[n], 0.0), gpu, cpu)
    return Shares(gpu, cpu)


@kernel
def _divide(
    members: Members, factor: F64, place: I64, how: int, node: int, left_gpu: float, left_cpu: float, gpu: F64, cpu: F64
) -> None:
    """Divides what radio functions leave of a node among its AI services."""
    asked, roots, there = 0.0, 0.0, 0
    for i in range(len(place)):
        if place[i] == node and not members.radio[i]:
            wanted = members.rate[i] * factor[i] * _alone_s(members, i, left_gpu, left_cpu)
            asked += wanted
            roots += np.sqrt(wanted / members.deadline_s[i])
            there += 1
    for i in range(len(place)):
        if place[i] != node or members.radio[i]:
            continue
        wanted = members.rate[i] * factor[i] * _alone_s(members, i, left_gpu, left_cpu)
        if how == EVENLY:
            part = 1.0 / there
        elif not np.isfinite(asked) or asked <= 0.0:
            part = 0.0
        elif asked >= 1.0:
            part = wanted / asked
        else:
            part = wanted + (1.0 - asked) * np.sqrt(wanted / members.deadline_s[i]) / roots
        gpu[i], cpu[i] = part * left_gpu, part * left_cpu


@kernel
def _alone_s(members: Members, i: int, gpu: float, cpu: float) -> float:
    """Time of a slot or a request with this much GPU and CPU, s."""
    if (members.gpu_s[i] > 0.0 and gpu <= 0.0) or (members.cpu_s[i] > 0.0 and cpu <= 0.0):
        return np.inf
    on_gpu = members.gpu_s[i] / gpu if members.gpu_s[i] > 0.0 else 0.0
    on_cpu = members.cpu_s[i] / cpu if members.cpu_s[i] > 0.0 else 0.0
    return on_gpu + on_cpu


@kernel
def times_at(members: Members, shares: Shares) -> F64:
    """Time of each member's slot or request at mean work, s; inf without a share."""
    found = np.empty(len(shares.gpu))
    for i in range(len(found)):
        found[i] = _alone_s(members, i, shares.gpu[i], shares.cpu[i])
    return found


@kernel
def slots_in_time(time_s: float, deadline_s: float, vary: float) -> float:
    """Fraction of the slots in time; their work is uniform between 1 - vary and 1 + vary."""
    if not np.isfinite(time_s):
        return 0.0
    fits = deadline_s / time_s * (1.0 + 1e-12)
    if vary <= 0.0:
        return 1.0 if fits >= 1.0 else 0.0
    return min(max((fits - (1.0 - vary)) / (2.0 * vary), 0.0), 1.0)


@kernel
def requests_in_time(time_s: float, deadline_s: float, rate: float) -> float:
    """Fraction of the requests of an M/M/1 queue that wait no longer than the deadline minus their own mean time, if
    others leave (Barrer): 1 - (1 - p) p / (e^(m (1 - p) t) - p^2)."""
    if not np.isfinite(time_s) or time_s >= deadline_s:
        return 0.0
    if rate <= 0.0:
        return 1.0
    busy, patience = rate * time_s, deadline_s - time_s
    if abs(busy - 1.0) < 1e-9:
        return 1.0 - 1.0 / (2.0 + patience / time_s)
    exponent = min((1.0 - busy) * patience / time_s, 700.0)
    return 1.0 - (1.0 - busy) * busy / (np.exp(exponent) - busy * busy)


@kernel
def expected_at(members: Members, factor: F64, place: I64, how: int) -> F64:
    """Expected fraction of each member's slots or requests in time, from the closed forms."""
    times = times_at(members, shares_at(members, factor, place, how))
    found = np.empty(len(place))
    for i in range(len(place)):
        if members.radio[i]:
            found[i] = slots_in_time(times[i] * factor[i], members.deadline_s[i], members.vary[i])
        else:
            found[i] = requests_in_time(times[i], members.deadline_s[i], members.rate[i] * factor[i])
    return found

"""Fast: shares of GPU and CPU in closed form, and what they come to.

A radio function needs g/x + c/y <= d for the longest of its slots, with shares x of the GPU and y of the CPU. The least
x + y with that is x = (g + sqrt(g c))/d, y = (c + sqrt(g c))/d. What is left of a node is divided among its AI services
as fractions f of both. A service with rate l, time s on all that is left and deadline d waits and runs for 1/(f/s - l)
on average (M/M/1). The sum over services of l/d times that is convex, and least where f = l s + (1 - sum l s) r / sum
r with r = sqrt(l s / d). Where more is asked than there is, f goes with l s.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.compile import kernel

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
DEADLINES, EVENLY = 0, 1
"""What is left of a node goes to its services by rate and deadline, or in equal parts."""


class Members(NamedTuple):
    """Columns: radio functions and AI services; and the sizes of nodes."""

    radio: NDArray[np.bool_]
    gpu_s: F64
    """Time of a slot or a request at mean load, on a GPU of size 1."""
    cpu_s: F64
    deadline_s: F64
    vary: F64
    rate: F64
    """Slots or requests per second, on average."""
    node_gpu: F64
    node_cpu: F64


class Shares(NamedTuple):
    """Shares of each member, in sizes of nodes."""

    gpu: F64
    cpu: F64


@kernel
def shares_at(members: Members, factor: F64, place: I64, how: int) -> Shares:
    """`factor`: load of each member over its mean. All that radio needs first, however little that leaves."""
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
    """What radio leaves of a node, to its AI services."""
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
    """What a slot or a request takes with so much of both."""
    if (members.gpu_s[i] > 0.0 and gpu <= 0.0) or (members.cpu_s[i] > 0.0 and cpu <= 0.0):
        return np.inf
    on_gpu = members.gpu_s[i] / gpu if members.gpu_s[i] > 0.0 else 0.0
    on_cpu = members.cpu_s[i] / cpu if members.cpu_s[i] > 0.0 else 0.0
    return on_gpu + on_cpu


@kernel
def times_at(members: Members, shares: Shares) -> F64:
    """What a slot or a request of each takes at mean work; inf where it has no share."""
    found = np.empty(len(shares.gpu))
    for i in range(len(found)):
        found[i] = _alone_s(members, i, shares.gpu[i], shares.cpu[i])
    return found


@kernel
def slots_in_time(time_s: float, deadline_s: float, vary: float) -> float:
    """Part of the slots, whose work is even between 1 - vary and 1 + vary."""
    if not np.isfinite(time_s):
        return 0.0
    fits = deadline_s / time_s * (1.0 + 1e-12)
    if vary <= 0.0:
        return 1.0 if fits >= 1.0 else 0.0
    return min(max((fits - (1.0 - vary)) / (2.0 * vary), 0.0), 1.0)


@kernel
def requests_in_time(time_s: float, deadline_s: float, rate: float) -> float:
    """Part of the requests of an M/M/1 queue that wait no longer than the deadline less their own mean time, where
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
    """Part of the slots or requests of each member that are in time, as far as a closed form can say."""
    times = times_at(members, shares_at(members, factor, place, how))
    found = np.empty(len(place))
    for i in range(len(place)):
        if members.radio[i]:
            found[i] = slots_in_time(times[i] * factor[i], members.deadline_s[i], members.vary[i])
        else:
            found[i] = requests_in_time(times[i], members.deadline_s[i], members.rate[i] * factor[i])
    return found

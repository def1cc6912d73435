"""Requests of satellites one after another: where each is computed, over which links, and when it is done.

Requests are taken in the order of their arrival, and each books its links and its server: a later one waits behind it.
A request sees the graph of its arrival. On a link it waits until the link is free, takes bytes / rate, and arrives
after the latency, whole, before it goes on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from etude.decide.search.constellation import Sky
from etude.decide.search.links import NEVER
from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel

LOCAL, NEAREST, LEAST, DELAY, SHARE = 0, 1, 2, 3, 4
HOME: Final = -1


class TravelRequests(NamedTuple):
    """In order of arrival."""

    at_ns: I64
    home: I64
    size_bytes: I64
    graph: I64
    """Which graph of the sky holds then."""


class RequestDelays(NamedTuple):
    """Per request, ns unless stated otherwise; a delay is the sum of latency, sending, queue, wait and service."""

    server: I64
    """Satellite whose large model was taken; HOME: the small one at home."""
    hops: I64
    latency_ns: I64
    sending_ns: I64
    queue_ns: I64
    """For links."""
    wait_ns: I64
    """For the server."""
    service_ns: I64


class SatellitePaths(NamedTuple):
    """From one satellite to all."""

    at_ns: I64
    """When a request would arrive; NEVER where there is no route."""
    row: I64
    """Row of the link over which it comes."""
    node: I64
    """Satellite from which it comes."""


@kernel
def sending_ns(size: int, rate: int) -> int:
    return 0 if rate == NEVER else -(-size * 1_000_000_000 // rate)


@kernel
def ways(sky: Sky, graph: int, home: int, now_ns: int, size: int, free_ns: I64, blind: bool) -> SatellitePaths:
    """Earliest arrivals, with links as they are booked; `blind`: by latency alone."""
    count = sky.first.shape[1] - 1
    at, row, node = np.full(count, NEVER), np.full(count, -1), np.full(count, -1)
    done = np.zeros(count, np.bool_)
    at[home] = now_ns
    for _ in range(count):
        best = -1
        for n in range(count):
            if not done[n] and at[n] < NEVER and (best < 0 or at[n] < at[best]):
                best = n
        if best < 0:
            break
        done[best] = True
        for e in range(sky.first[graph, best], sky.first[graph, best + 1]):
            then = at[best] + sky.latency_ns[graph, e]
            if not blind:
                then = max(at[best], free_ns[sky.link[graph, e]]) + sending_ns(size, sky.rate[graph, e])
                then += sky.latency_ns[graph, e]
            other = sky.to[graph, e]
            if then < at[other]:
                at[other], row[other], node[other] = then, e, best
    return SatellitePaths(at, row, node)


@kernel
def chosen(found: SatellitePaths, policy: int, now_ns: int, large_at: I64, large_ns: I64, local_ns: int) -> int:
    """The satellite whose large model is taken, or HOME; of equal ones home, then the first. `local_ns`: when the small
    model would be done; NEVER where it must not be taken."""
    best, least = HOME, local_ns
    for c in range(len(large_at)):
        if found.at_ns[c] == NEVER or large_ns[c] == NEVER:
            continue
        if policy == NEAREST:
            then = found.at_ns[c]
        elif policy == LEAST:
            then = max(large_at[c], now_ns) + large_ns[c]
        else:
            then = max(large_at[c], found.at_ns[c]) + large_ns[c]
        if then < least:
            best, least = c, then
    return best


@kernel
def travelled(sky: Sky, load: TravelRequests, small_ns: I64, large_ns: I64, policy: int, shares: F64) -> RequestDelays:
    """`small_ns` and `large_ns`: of each satellite's model, NEVER where it has none. `shares`: of the requests of each
    satellite those that travel, with the policy SHARE."""
    count, links = len(load.at_ns), 1 + (sky.link.max() if sky.link.size else 0)
    zero = np.zeros(count, np.int64)
    done = RequestDelays(np.full(count, HOME), zero, zero.copy(), zero.copy(), zero.copy(), zero.copy(), zero.copy())
    free, small_at, large_at = np.zeros(links, np.int64), np.zeros_like(small_ns), np.zeros_like(large_ns)
    owed = np.zeros(len(small_ns))
    path = np.zeros(len(small_ns), np.int64)
    for r in range(count):
        now, home, graph, size = load.at_ns[r], load.home[r], load.graph[r], load.size_bytes[r]
        local = max(small_at[home], now) + small_ns[home]
        owed[home] += shares[home]
        goes = policy != LOCAL and (policy != SHARE or owed[home] >= 1 - 1e-9)
        server = HOME
        if goes:
            found = ways(sky, graph, home, now, size, free, policy == NEAREST)
            server = chosen(found, policy, now, large_at, large_ns, local if policy in (DELAY, LEAST) else NEVER)
        if server == HOME:
            done.wait_ns[r], done.service_ns[r] = local - small_ns[home] - now, small_ns[home]
            small_at[home] = local
            continue
        owed[home] -= 1
        n, hops = server, 0
        while n != home:
            path[hops], n, hops = found.row[n], found.node[n], hops + 1
        then = now
        for i in range(hops - 1, -1, -1):
            e = path[i]
            start, took = max(then, free[sky.link[graph, e]]), sending_ns(size, sky.rate[graph, e])
            done.queue_ns[r] += start - then
            done.sending_ns[r] += took
            done.latency_ns[r] += sky.latency_ns[graph, e]
            free[sky.link[graph, e]] = start + took
            then = start + took + sky.latency_ns[graph, e]
        begin = max(then, large_at[server])
        done.server[r], done.hops[r], done.wait_ns[r], done.service_ns[r] = server, hops, begin - then, large_ns[server]
        large_at[server] = begin + large_ns[server]
    return done

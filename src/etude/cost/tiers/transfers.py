"""Time of a copy over the link to the host, and of reading or writing a file on a tier."""

from __future__ import annotations

from typing import Final

from etude.base.errors import ClusterError, UsageError
from etude.machine.sharing import HostLink
from etude.machine.system import Device, System
from etude.machine.tier import Tier

DIRECTIONS: Final = ("h2d", "d2h", "both", "h2d_queued", "d2h_queued")


def copy_ns(device: Device, direction: str, size_bytes: float, *, pinned: bool = True) -> float:
    """A copy between a device and its host. `both`: one each way, of this size each; `h2d_queued`: one of many that
    follow one another. Memory that is not pinned goes through the driver's buffers, copied by one thread."""
    link = device.host_link
    if link is None:
        raise ClusterError(
            f"device `{device.name}` does not specify its link to the host", hint="`host_link` in its file"
        )
    if direction not in DIRECTIONS:
        raise UsageError(f"unknown direction `{direction}`", hint=f"known: {', '.join(DIRECTIONS)}")
    if not pinned:
        return _staged(link, direction, size_bytes)
    if direction == "both":
        return link.both_latency_ns + size_bytes * 1e9 / (link.both_bytes_per_s or link.read_bytes_per_s)
    rate = link.read_bytes_per_s if direction.startswith("h2d") else link.write_bytes_per_s
    if direction.endswith("_queued"):
        return max(link.queued_least_ns, link.queued_latency_ns + size_bytes * 1e9 / rate)
    return max(link.least_ns, link.latency_ns + size_bytes * 1e9 / rate)


def _staged(link: HostLink, direction: str, size_bytes: float) -> float:
    if not link.staged_bytes_per_s:
        raise ClusterError(
            "the link does not specify a rate for memory that is not pinned", hint="`staged` in `host_link`"
        )
    near = size_bytes
    if direction.startswith("h2d") and link.staged_far_bytes_per_s:
        near = min(size_bytes, link.staged_near_bytes)
    far = size_bytes - near
    took = near * 1e9 / link.staged_bytes_per_s
    return link.staged_latency_ns + took + (far * 1e9 / link.staged_far_bytes_per_s if far else 0.0)


def tier_of(system: System, name: str) -> Tier:
    found = next((tier for tier in system.tiers if tier.name == name), None)
    if found is None:
        known = ", ".join(tier.name for tier in system.tiers) or "none"
        raise ClusterError(f"system `{system.name}` has no tier `{name}`", hint=f"known: {known}")
    return found


def file_ns(
    system: System, tier: str, size_bytes: float, *, write: bool, request_bytes: float = 0.0, threads: int = 1,
    flush: bool = False,
) -> float:  # fmt: skip
    """Reading or writing this many bytes by requests of one size, `threads` at a time: each waits for its latency in
    turn, all share the rate. `flush`: until the tier below has them too; a read of a copy reads the tier below."""
    place = tier_of(system, tier)
    request = request_bytes or size_bytes
    if place.capacity_bytes and write and size_bytes > place.capacity_bytes:
        raise ClusterError(
            f"tier `{tier}` has room for {place.capacity_bytes:,} bytes, but {size_bytes:,.0f} are to be written"
        )
    calls_ns = -(-size_bytes // request) * (place.call_ns if threads == 1 else place.turn_ns)
    if place.below and not write:
        request = max(request, float(place.read_ahead_bytes))
        below = file_ns(system, place.below, size_bytes, write=False, request_bytes=request, threads=threads)
        return calls_ns + below
    under_way = min(threads, place.slots or threads)
    rate = place.write_bytes_per_s if write else place.read_bytes_per_s
    if place.thread_bytes_per_s and not write:
        rate = min(rate, under_way * place.thread_bytes_per_s)
    latency_ns = place.write_latency_ns if write else place.latency_ns
    turns = -(-size_bytes // request) / max(under_way, 1)
    took = calls_ns + turns * latency_ns + size_bytes * 1e9 / rate
    if flush and place.below:
        took += file_ns(system, place.below, size_bytes, write=True, threads=max(threads, 1))
    return took

"""Tiers of memory below a device's own: host, peers, disks, object stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from etude.base.errors import ClusterError
from etude.base.figures import figure, text

RANK, NODE, ALL = SCOPES = ("rank", "node", "all")
"""Who may have something in common, besides units of a level by its name; `node` is the innermost level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A place for bytes. Requests of `slots` threads or streams are in progress at once (Little's law)."""

    name: str = figure("text", "name: host, peer, nvme, store")
    capacity_bytes: int = figure("bytes", "capacity; 0: no limit", 0)
    read_bytes_per_s: float = figure("bandwidth", "read rate, all requests together")
    write_bytes_per_s: float = figure("bandwidth", "write rate, all requests together")
    thread_bytes_per_s: float = figure("bandwidth", "read rate of one request; 0: no limit", 0.0)
    latency_ns: float = figure("time", "fixed time of a read request", 0.0)
    write_latency_ns: float = figure("time", "fixed time of a write request", 0.0)
    call_ns: float = figure("time", "time of a request in the caller, one after another", 0.0)
    turn_ns: float = figure("time", "the same where several threads take turns", 0.0)
    read_ahead_bytes: int = figure("bytes", "minimum bytes that it requests from the tier below", 0)
    slots: int = figure("count", "largest number of requests in flight; 0: no limit", 0)
    per: str = figure("text", "scope that shares one tier: `rank`, `node`, a level, `all`", "node")
    links: int = figure(
        "count", "number of channels, each with `read` and `write`, that its ranks share; 0: one per rank", 1, zero=True
    )
    below: str = text("the tier below, which it caches and to which it is flushed")
    source: Mapping[str, str] = figure("texts", "source of the values: one text, or one for each key", {})

    def part(self, ranks: int) -> float:
        """Share of its rates for each of this many ranks that use it at once."""
        return min(1.0, self.links / max(ranks, 1)) if self.links else 1.0

    def rate(self, request_bytes: float, *, write: bool = False, requests: int = 0) -> float:
        """Bytes per second of requests of one size: the tier's rate, or what those in progress bring in a latency."""
        whole = self.write_bytes_per_s if write else self.read_bytes_per_s
        latency_ns = self.write_latency_ns if write else self.latency_ns
        under_way = min(self.slots or requests, requests or self.slots)
        if not under_way or not latency_ns or request_bytes <= 0:
            return whole
        return min(whole, under_way * request_bytes / latency_ns * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """One way in which the host writes and reads a checkpoint."""

    name: str = figure("text", "name: torch_save, dcp_load")
    save_bytes_per_s: float = figure(
        "bandwidth", "serialising, with the copy from the device; 0: it does not save", 0.0
    )
    load_bytes_per_s: float = figure("bandwidth", "reading it into the device; 0: it does not load", 0.0)
    reads_file: bool = figure("flag", "the file is also read, if it is not in a cache", False)
    source: Mapping[str, str] = figure("texts", "source of the values: one text, or one for each key", {})

    def __post_init__(self) -> None:
        if bool(self.save_bytes_per_s) == bool(self.load_bytes_per_s):
            raise ClusterError(f"checkpoints: `{self.name}` must either save or load", hint="save: 0.75GB/s")


def check_tiers(tiers: Sequence[Tier], levels: Sequence[str]) -> None:
    """Refuses two of one name, one of a level that is not there, one that is above nothing, and a circle."""
    by_name = {tier.name: tier for tier in tiers}
    scopes = [*SCOPES, *levels]
    for tier in tiers:
        if tier.per not in scopes:
            raise ClusterError(f"tiers: `{tier.name}`: per: no level `{tier.per}`", hint=f"known: {', '.join(scopes)}")
    if len(by_name) < len(tiers):
        raise ClusterError(f"tiers: two have the same name: {', '.join(tier.name for tier in tiers)}")
    for tier in tiers:
        seen = [tier.name]
        while tier.below:
            if tier.below not in by_name:
                hint = f"known: {', '.join(by_name)}"
                raise ClusterError(f"tiers: `{tier.name}` is above `{tier.below}`, which is not a tier", hint=hint)
            tier = by_name[tier.below]
            if tier.name in seen:
                raise ClusterError(f"tiers: a cycle: {' > '.join([*seen, tier.name])}")
            seen.append(tier.name)

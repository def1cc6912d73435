"""What kernels of one device share: cores in clusters, the memory's bandwidth, the link to the host."""

from __future__ import annotations

from dataclasses import dataclass

from etude.base.errors import ClusterError
from etude.base.figures import figure


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSharing:
    """How kernels of several streams contend on a device; see docs/contention.md."""

    clusters: int = figure("count", "clusters of the device, inside which a group of blocks stays (GPCs)", 1)
    core_bandwidth_bytes_per_s: float = figure("bandwidth", "memory bandwidth of one core; 0: no limit", 0.0)
    gap_ns: float = figure(
        "time", "time from the end of a kernel to the first block of the next of its stream", 1000.0, zero=True
    )
    communication_cores: int = figure("count", "cores that a collective or message occupies while it runs", 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """The link between a device and its host's memory."""

    read_bytes_per_s: float = figure("bandwidth", "host to device, pinned memory")
    write_bytes_per_s: float = figure("bandwidth", "device to host, pinned memory")
    both_bytes_per_s: float = figure("bandwidth", "each direction while both are used; 0: as alone", 0.0)
    both_latency_ns: float = figure(
        "time", "fixed time of two copies, one in each direction, if both are waited for", 5000.0, zero=True
    )
    staged_bytes_per_s: float = figure(
        "bandwidth", "memory that is not pinned, copied by one thread; 0: not known", 0.0
    )
    staged_far_bytes_per_s: float = figure(
        "bandwidth", "the same to the device, for data outside the host's cache", 0.0
    )
    staged_near_bytes: int = figure("bytes", "size of the host's cache", 0)
    staged_latency_ns: float = figure("time", "fixed time of such a copy", 0.0)
    latency_ns: float = figure("time", "fixed time of a copy, in addition to its bytes", 5000.0, zero=True)
    least_ns: float = figure("time", "minimum time of a copy", 0.0)
    queued_latency_ns: float = figure(
        "time", "the same of a copy that follows another of its stream", 3000.0, zero=True
    )
    queued_least_ns: float = figure("time", "minimum time of such a copy", 0.0)

    def __post_init__(self) -> None:
        least = min(self.read_bytes_per_s, self.write_bytes_per_s)
        if self.both_bytes_per_s > least:
            raise ClusterError(f"both: {self.both_bytes_per_s:g} B/s each way is more than {least:g} B/s one way alone")

"""System: the machine that a job runs on. Small for now: devices and links as figures, grown with the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from etude.errors import ClusterError


def _from_dict(cls: type[Any], given: Mapping[str, Any], what: str) -> Any:
    known = [f.name for f in fields(cls)]
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ClusterError(f"{what}: unknown key `{unknown[0]}`", hint=f"known: {', '.join(known)}")
    try:
        return cls(**given)
    except TypeError as problem:
        raise ClusterError(f"{what}: {problem}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator. Rates are peaks of the data sheet."""

    name: str
    peak_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    """By data type: `bf16`, `fp8`, ..."""
    memory_byte_per_s: float = 0.0
    memory_bytes: int = 0
    launch_ns: int = 0
    power_w: float = 0.0

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Device:
        device: Device = _from_dict(cls, given, "device")
        return device


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction of a connection between two places."""

    byte_per_s: float
    latency_ns: int = 500

    def __post_init__(self) -> None:
        if not self.byte_per_s > 0:
            raise ClusterError(f"link: bandwidth {self.byte_per_s} B/s is not positive")
        if self.latency_ns < 0:
            raise ClusterError(f"link: latency {self.latency_ns} ns is negative")

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Link:
        link: Link = _from_dict(cls, given, "link")
        return link


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Devices of one kind, `devices_per_node` in a node on `scale_up` links, nodes joined by `scale_out` links.

    Rank r sits on device r % devices_per_node of node r // devices_per_node.
    """

    name: str
    device: Device
    nodes: int = 1
    devices_per_node: int = 1
    scale_up: Link
    scale_out: Link | None = None

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.devices_per_node < 1:
            raise ClusterError(f"system `{self.name}`: {self.nodes} nodes of {self.devices_per_node} devices")
        if self.nodes > 1 and self.scale_out is None:
            raise ClusterError(f"system `{self.name}`: {self.nodes} nodes but no link between them", hint="`scale_out`")

    def __len__(self) -> int:
        """Devices."""
        return self.nodes * self.devices_per_node

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> System:
        inner: dict[str, Any] = dict(given)
        for key, part in (("device", Device), ("scale_up", Link), ("scale_out", Link)):
            if isinstance(inner.get(key), Mapping):
                inner[key] = part.from_dict(inner[key])
        system: System = _from_dict(cls, inner, "system")
        return system

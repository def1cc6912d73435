"""Devices that calls are placed on, from a file.

link: 5GB/s                                # outputs of tasks between devices, and from tools
devices:
  - {name: big, system: dgx-h100, count: 2, memory: 40GB, keep: 4GB, load: 10GB/s}
  - {name: old, system: dgx-2, count: 2, memory: 20GB, keep: 1GB, load: 5GB/s}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from etude.base.errors import UsageError
from etude.base.figures import figure, read, read_mapping, usage_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """Devices of one kind."""

    name: str = figure("text", "name of the devices")
    system: str = figure("text", "system of the catalogue, or a file, that has this device")
    count: int = figure("count", "number of these devices", 1)
    tp: int = figure("count", "ranks per device", 1)
    memory_bytes: int = figure("bytes", "memory for weights of models; unset: no limit", 0)
    keep_bytes: int = figure("bytes", "memory for keys and values of earlier calls", 0)
    load_bytes_per_s: float = figure("bandwidth", "loading rate of weights; unset: they are always resident", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    kinds: tuple[DeviceKind, ...]
    link_bytes_per_s: float = 0.0
    """Rate of task outputs between devices; 0: they take no time."""

    @property
    def kind_of(self) -> list[int]:
        """Kind of each device."""
        return [k for k, kind in enumerate(self.kinds) for _ in range(kind.count)]

    @property
    def names(self) -> list[str]:
        return [f"{kind.name}{n}" for kind in self.kinds for n in range(kind.count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _DevicesHead:
    link_bytes_per_s: float = figure("bandwidth", "bandwidth for outputs of tasks between devices", 0.0)


def open_devices(path: str | PathLike[str]) -> Devices:
    with usage_errors():
        return devices_of(read_mapping(path), fspath(path))


def devices_of(given: Mapping[str, Any], where: str) -> Devices:
    head = read(_DevicesHead, {k: v for k, v in given.items() if k != "devices"}, where)
    listed = given.get("devices")
    if not isinstance(listed, list) or not listed:
        raise UsageError("no `devices`", where=where, hint="devices: [{name: big, system: dgx-h100, count: 2}]")
    kinds = tuple(read(DeviceKind, one, f"{where}: devices[{k}]") for k, one in enumerate(listed))
    if sum(kind.count for kind in kinds) > 256:
        raise UsageError("more than 256 devices", where=where)
    return Devices(kinds=kinds, link_bytes_per_s=head.link_bytes_per_s)

"""The device that `--system` names, for rows of a single device."""

from __future__ import annotations

from functools import cache

from etude.machine import Device, device_names, open_device, open_system


@cache
def device_of(name: str) -> Device:
    """A device of the catalogue, or that of a system."""
    return open_device(name) if name in device_names() else open_system(name).device

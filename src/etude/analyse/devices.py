"""Which device of the catalogue a run was on."""

from __future__ import annotations

import re
from pathlib import Path

from etude.machine import device_names, open_device, open_system, system_names
from etude.machine.system import Device
from etude.model.job import Job

__all__ = ["device_named", "device_of", "recognised"]


def device_of(job: Job, named: str = "", system: str = "") -> Device | None:
    """The named device, else that of the simulated system, else the one in the trace; else None."""
    if named:
        return device_named(named)
    if system:
        return open_system(system).device
    return recognised(job.provenance.get("device", ""))


def device_named(name: str) -> Device:
    """The device of that name, or that of the system of that name or file."""
    is_system = name not in device_names() and (name in system_names() or Path(name).is_file())
    return open_system(name).device if is_system else open_device(name)


def recognised(text: str) -> Device | None:
    """`NVIDIA H100 80GB HBM3` is the catalogue's h100: the longest name whose words are all in the text."""
    said = _kinds(text)
    fitting = [name for name in device_names() if _kinds(name) and _kinds(name) <= said]
    return open_device(max(fitting, key=len)) if fitting else None


def _kinds(text: str) -> set[str]:
    """Words such as `h100` or `mi300x`, by which devices are distinguished."""
    return set(re.findall(r"[a-z]+[0-9]+[a-z]*", text.lower()))

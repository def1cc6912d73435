"""DegreeRule: on how many devices a step of a request runs, and when that changes.

| rule | |
|---|---|
| `fixed:4` | groups of four devices that stay; a request has one from its text to its pixels |
| `elastic`, `elastic:1..8` | a task at a time: text and pixels on one device, steps on as many as pay, in between |
| `FILE.py:name` | like `elastic`, with the degrees that a function says |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etude.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeRule:
    degrees: tuple[int, ...]
    """That a step may run on, rising."""
    elastic: bool = False
    set_up_ns: int = 0
    """Of a group of devices that were not one before."""
    batch: int = 1
    """Requests of one size that may share the steps of a group."""
    order: str = "fcfs"
    """Who goes first: fcfs, edf, shortest."""
    hook: Callable[..., Any] | None = None


def degree_rule(text: str, gpus: int, hook_of: Callable[[str], Callable[..., Any]], **more: Any) -> DegreeRule:
    """From the words of `--degree`, on so many devices."""
    hint = "fixed:4, elastic, elastic:1..8, or FILE.py:name"
    if gpus < 1:
        raise UsageError(f"{gpus} devices", hint="--gpus 16")
    if more.get("order", "fcfs") not in ("fcfs", "edf", "shortest"):
        raise UsageError(f"--scheduling-policy {more['order']}does not apply to images", hint="fcfs, edf, shortest")
    head, colon, rest = text.partition(":")
    powers = tuple(1 << k for k in range(gpus.bit_length()) if 1 << k <= gpus)
    if head == "fixed":
        if not rest.isdecimal() or not int(rest) or gpus % int(rest):
            raise UsageError(f"--degree: `{text}`", hint=f"use fixed:N that divides the {gpus} devices")
        return DegreeRule(degrees=(int(rest),), **more)
    if head == "elastic":
        low, dots, high = rest.partition("..")
        if colon and (not dots or not low.isdecimal() or not high.isdecimal()):
            raise UsageError(f"--degree: `{text}`", hint=hint)
        degrees = tuple(d for d in powers if not colon or int(low) <= d <= int(high))
        if not degrees:
            raise UsageError(f"--degree: `{text}` leaves no power of two up to {gpus}", hint=hint)
        return DegreeRule(degrees=degrees, elastic=True, **more)
    if not colon:
        raise UsageError(f"--degree: `{text}`", hint=hint)
    return DegreeRule(degrees=powers, elastic=True, hook=hook_of(text), **more)

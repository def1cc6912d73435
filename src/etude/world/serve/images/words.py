"""DegreeRule: on how many devices a step of a request runs, and when that changes.

| rule | |
|---|---|
| `fixed:4` | groups of four devices that stay; a request has one from its text to its pixels |
| `elastic`, `elastic:1..8` | per task: text and pixels on one device, steps on as many as pay off |
| `FILE.py:name` | like `elastic`, with degrees from a function |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etude.base.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeRule:
    degrees: tuple[int, ...]
    """Allowed degrees of a step, ascending."""
    elastic: bool = False
    set_up_ns: int = 0
    """Set-up time of a new group of devices."""
    batch: int = 1
    """Requests of one size that may share the steps of a group."""
    order: str = "fcfs"
    """Order of requests: fcfs, edf, shortest."""
    hook: Callable[..., Any] | None = None


def degree_rule(text: str, gpus: int, hook_of: Callable[[str], Callable[..., Any]], **more: Any) -> DegreeRule:
    """Parses the words of `--degree`, for this many devices."""
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

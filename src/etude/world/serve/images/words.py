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
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.grammar import LinePiece, line

EXAMPLE: Final = "fixed:4, elastic, elastic:1..8, or FILE.py:name"


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
    if gpus < 1:
        raise UsageError(f"{gpus} devices", hint="--gpus 16")
    if more.get("order", "fcfs") not in ("fcfs", "edf", "shortest"):
        raise UsageError(f"--scheduling-policy {more['order']}does not apply to images", hint="fcfs, edf, shortest")
    head, rest = line(text, "--degree", EXAMPLE).cut(":")
    powers = tuple(1 << k for k in range(gpus.bit_length()) if 1 << k <= gpus)
    if rest is not None and head.text == "fixed":
        if gpus % rest.count():
            raise rest.wrong(
                f"{gpus} devices are not a multiple of {rest.text}", f"use fixed:N that divides --gpus {gpus}"
            )
        return DegreeRule(degrees=(rest.count(),), **more)
    if head.text == "elastic":
        low, high = _range(rest) if rest is not None else (1, gpus)
        degrees = tuple(d for d in powers if low <= d <= high)
        if not degrees:
            raise head.wrong(f"`{text}` leaves no power of two up to {gpus}")
        return DegreeRule(degrees=degrees, elastic=True, **more)
    if rest is None:
        raise head.wrong(f"`{text}` is not a rule")
    return DegreeRule(degrees=powers, elastic=True, hook=hook_of(text), **more)


def _range(text: LinePiece) -> tuple[int, int]:
    low, high = text.cut("..")
    if high is None:
        raise text.wrong(f"`{text.text}` is not a range")
    return low.count(zero=True), high.count(zero=True)

"""What rows of all kinds share: the systems of their GPUs, their models and their numbers."""

from __future__ import annotations

import math
from typing import Final

from etude.base.errors import UsageError

SYSTEMS: Final = {"H100": "dgx-h100", "B200": "dgx-b200", "H200": "dgx-h200", "A100": "dgx-a100"}

MOST: Final = 1 << 20
"""Upper limit of any count."""


def number(row: dict[str, str], name: str, default: float | None = None) -> float:
    text = row.get(name) or ""
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"`{name}` is `{text}`, which is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"`{name}` is {value}")
    return value


def whole(row: dict[str, str], name: str, default: int | None = None) -> int:
    """A count; 0 or nothing gives the default."""
    found = number(row, name, default)
    if not found and default is not None:
        return default
    if found != int(found) or not 1 <= found <= MOST:
        raise UsageError(f"`{name}` is {found:g}", hint=f"1 to {MOST}")
    return int(found)


def text(row: dict[str, str], name: str) -> str:
    found = row.get(name)
    if not found:
        raise UsageError(f"no `{name}`")
    return found

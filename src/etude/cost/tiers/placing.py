"""Placement in a device's memory or below it, for one token after another: fractions by density of use.

Parts are weights and the cache of keys and values. Each token reads `use` of a part; parts with more reads per byte
held go into the device first. With fractions that is optimal, so more room is never slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etude.base.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    name: str
    size_bytes: float
    use: float = 1.0
    """Fraction of its bytes that a token reads."""

    def __post_init__(self) -> None:
        if self.size_bytes < 0 or not 0 <= self.use <= 1:
            raise UsageError(f"part `{self.name}`: {self.size_bytes:g} bytes, of which {self.use:g} are read")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedParts:
    resident_bytes: dict[str, float]
    near_read_bytes: float
    """Bytes per token, from the device's memory."""
    far_read_bytes: float

    def token_ns(self, near_bytes_per_s: float, far_bytes_per_s: Sequence[float]) -> float:
        """Time of one token: layers follow one another, so near and far reads add up; far ones are split over the
        available paths (the host's own cores, the link to the device) so that all end together."""
        far = sum(far_bytes_per_s)
        if not near_bytes_per_s > 0 or (self.far_read_bytes and not far > 0):
            raise UsageError("a memory has no rate")
        return self.near_read_bytes * 1e9 / near_bytes_per_s + (self.far_read_bytes * 1e9 / far if far else 0.0)


def place(parts: Sequence[StoredPart], room_bytes: float, needed_bytes: float = 0.0) -> PlacedParts:
    """Places parts; `needed_bytes` of the room are always taken: buffers, the layer that streams."""
    if needed_bytes > room_bytes:
        problem = f"{needed_bytes:,.0f} bytes must be on the device, which has room for {room_bytes:,.0f}"
        raise UsageError(problem, hint="use more memory, or smaller buffers")
    left = room_bytes - needed_bytes
    resident: dict[str, float] = {}
    near = 0.0
    for part in sorted(parts, key=lambda p: -p.use):
        here = min(part.size_bytes, left)
        left -= here
        resident[part.name] = here
        near += here * part.use
    far = sum(part.size_bytes * part.use for part in parts) - near
    return PlacedParts(resident_bytes=resident, near_read_bytes=near, far_read_bytes=max(far, 0.0))

"""Which devices of a system are of which kind, as text: `h100: 0-15`, `a100: 16, 18-31`, or units of a level:
`a100: node 2-3` are the devices of its third and fourth unit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from math import prod

import numpy as np

from etude.base.errors import ClusterError
from etude.base.grammar import line
from etude.kernels.arrays import I64

Sizes = tuple[tuple[str, int], ...]
"""Name and size of each level, innermost first."""

_PART = re.compile(r"(?:([A-Za-z][\w.-]*)\s+)?(\d+)(?:\s*-\s*(\d+))?$")


def kind_numbers(devices: Mapping[str, str], sizes: Sizes) -> I64:
    """Position in `devices` of the kind of each device; every device must have one."""
    return _kind_numbers(tuple(devices.items()), sizes)


@lru_cache(maxsize=64)
def _kind_numbers(devices: tuple[tuple[str, str], ...], sizes: Sizes) -> I64:
    count = prod(size for _, size in sizes)
    found = np.full(count, -1, np.int64)
    for number, (kind, text) in enumerate(devices):
        for first, last in _ranges(kind, text, sizes):
            if last >= count:
                raise ClusterError(f"devices: {kind}: device {last} is outside the system's {count}")
            taken = np.flatnonzero(found[first : last + 1] >= 0)
            if len(taken):
                other = devices[int(found[first + taken[0]])][0]
                raise ClusterError(f"devices: device {first + int(taken[0])} is both {other} and {kind}")
            found[first : last + 1] = number
    if (found < 0).any():
        missing = int(np.flatnonzero(found < 0)[0])
        raise ClusterError(
            f"devices: device {missing} of {count} has no kind", hint=f"{devices[-1][0]}: {missing}-{count - 1}"
        )
    found.setflags(write=False)
    return found


def _ranges(kind: str, text: str, sizes: Sizes) -> list[tuple[int, int]]:
    """First and last device of each part of the text."""
    found = []
    for part in line(text, f"devices: {kind}", "0-15, or 0-3, 8, or node 2-3", ClusterError).split(","):
        match = _PART.match(part.text)
        if match is None:
            raise part.wrong(f"`{part.text}` is not a range")
        first, last = int(match[2]), int(match[3] or match[2])
        if last < first:
            raise part.wrong(f"`{part.text}` ends before it begins")
        each = _unit(kind, match[1], sizes) if match[1] else 1
        found.append((first * each, (last + 1) * each - 1))
    return found


def _unit(kind: str, level: str, sizes: Sizes) -> int:
    """Devices of a unit of a level, including the levels below."""
    names = [name for name, _ in sizes]
    if level not in names:
        raise ClusterError(f"devices: {kind}: no level `{level}`", hint=f"known: {', '.join(names)}")
    return prod(size for _, size in sizes[: names.index(level) + 1])


def as_text(names: Sequence[str], kinds: I64) -> dict[str, str]:
    """The mapping as text, from the kind of each device."""
    parts: dict[str, list[str]] = {}
    at = 0
    for number, group in groupby(kinds.tolist()):
        length = len(list(group))
        parts.setdefault(names[number], []).append(f"{at}-{at + length - 1}" if length > 1 else str(at))
        at += length
    return {name: ", ".join(texts) for name, texts in parts.items()}

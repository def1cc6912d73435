"""SplitRules: how the memory of a device is split between embeddings and keys and values.

    --hbm-split "adaptive room=2GB embedding=256KB every=32 decide=32us link=25GB/s"

| word | |
|---|---|
| `0.3`, `0.1..0.9`, `adaptive` | fraction for embeddings: this; each of nine in turn; chosen at run time |
| `sequences` | the sequence of the nine with the lowest P99, of all possible ones: for small cases, as a reference |
| `room=2GB` | of a replica, for both; by default what weights leave |
| `embedding=256KB` | of each item |
| `every=32` | requests of a replica between two decisions |
| `decide=32us` | what a decision takes, of the replica's time |
| `link=25GB/s` | to the host's memory, from which what is missing is loaded; by default the device's own |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.units import parse_bandwidth, parse_bytes, parse_time

RATIOS: Final = np.arange(1, 10) / 10.0
"""Ratios among which a controller chooses."""
HINT: Final = '--hbm-split "0.3 room=2GB", 0.1..0.9, or adaptive'


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRules:
    ratios: tuple[float, ...] = ()
    """Fixed ones, each served in turn; none: a controller chooses."""
    sequences: bool = False
    """All sequences of ratios are tried."""
    room_bytes: int = 0
    embedding_bytes: int = 256 << 10
    every: int = 32
    decide_ns: int = 32_000
    link_bytes_per_s: float = 0.0


def split_rules(text: str) -> SplitRules:
    """From the words of `--hbm-split`."""
    found: dict[str, Any] = {}
    for word in text.replace(",", " ").split():
        key, equals, value = word.partition("=")
        more: dict[str, Any] = _figure(key, value, word) if equals else {"ratios": _ratios(word)}
        if word == "sequences":
            more["sequences"] = True
        if set(more) & set(found):
            raise UsageError(f"--hbm-split: `{word}` is given twice", hint=HINT)
        found |= more
    if "ratios" not in found:
        raise UsageError(f"--hbm-split: `{text}` has no ratio", hint=HINT)
    return SplitRules(**found)


def _ratios(word: str) -> tuple[float, ...]:
    if word in ("adaptive", "sequences"):
        return ()
    if word == "0.1..0.9":
        return tuple(RATIOS.tolist())
    try:
        ratio = float(word)
    except ValueError:
        raise UsageError(f"--hbm-split: unknown word `{word}`", hint=HINT) from None
    if not 0 <= ratio <= 1:
        raise UsageError(f"--hbm-split: {word} is not a fraction of the room", hint="a fraction from 0 to 1")
    return (ratio,)


def _figure(key: str, value: str, word: str) -> dict[str, Any]:
    found: dict[str, Any]
    if key == "room":
        found = {"room_bytes": parse_bytes(value)}
    elif key == "embedding":
        found = {"embedding_bytes": parse_bytes(value)}
    elif key == "every":
        found = {"every": int(value) if value.isdigit() else 0}
    elif key == "decide":
        return {"decide_ns": round(parse_time(value))}
    elif key == "link":
        found = {"link_bytes_per_s": parse_bandwidth(value)}
    else:
        raise UsageError(f"--hbm-split: unknown word `{word}`", hint="known: room, embedding, every, decide, link")
    if not next(iter(found.values())) > 0:
        raise UsageError(f"--hbm-split: `{word}` must be above 0", hint=HINT)
    return found

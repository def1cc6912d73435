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

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from etude.base.figures import figure
from etude.base.grammar import LinePiece, fill, items, line

RATIOS: Final = np.arange(1, 10) / 10.0
"""Ratios among which a controller chooses."""
EXAMPLE: Final = '"0.3 room=2GB", 0.1..0.9, or adaptive'


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRules:
    ratios: tuple[float, ...] = ()
    """Fixed ones, each served in turn; none: a controller chooses."""
    sequences: bool = False
    """All sequences of ratios are tried."""
    room_bytes: int = figure("bytes", "of a replica, for both; 0: what weights leave", 0, zero=False)
    embedding_bytes: int = figure("bytes", "of each item", 256 << 10)
    every: int = figure("count", "requests of a replica between two decisions", 32)
    decide_ns: int = figure("time", "time of a decision", 32_000, zero=True)
    link_bytes_per_s: float = figure("bandwidth", "to the host's memory; 0: the device's own", 0.0, zero=False)


def split_rules(text: str) -> SplitRules:
    """From the words of `--hbm-split`."""
    whole = line(text, "--hbm-split", EXAMPLE)
    words = whole.words()
    said = items(words)
    if not said.bare:
        raise whole.wrong(f"`{text}` has no ratio")
    if len(said.bare) > 1:
        raise said.bare[1].wrong(f"`{said.bare[1].text}` is a second ratio")
    ratio = said.bare[0]
    made = fill(SplitRules, [word for word in words if word is not ratio], whole)
    return replace(made, ratios=_ratios(ratio), sequences=ratio.text == "sequences")


def _ratios(word: LinePiece) -> tuple[float, ...]:
    if word.text in ("adaptive", "sequences"):
        return ()
    return tuple(RATIOS.tolist()) if word.text == "0.1..0.9" else (word.fraction(zero=True),)

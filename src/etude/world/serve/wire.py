"""Transfer of keys and values from the replica that read a prompt to the one that decodes: ports, and codecs.

| column of a codec file | |
|---|---|
| name | |
| ratio | raw bytes over bytes sent |
| encode, decode | raw bytes per second (`400GB/s`); empty: no time |
| fixed | per call (`20us`); empty: none |
| quality | a label; `--kv-quality` selects those with at least this |
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from etude.base.errors import FormatError, UsageError
from etude.base.grammar import line
from etude.base.units import parse_bandwidth, parse_time
from etude.world.serve.state import ASK_CODEC, BEST, LEARNT, KvWire


@dataclass(frozen=True, slots=True)
class Codec:
    name: str
    ratio: float = 1.0
    encode_bytes_per_s: float = float("inf")
    decode_bytes_per_s: float = float("inf")
    fixed_ns: int = 0
    quality: float = 1.0


PLAIN: Final = Codec("none")
NEWEST: Final = 0.25
"""Weight of the newest value in a running mean: assumed."""
CODECS: Final = {"none": PLAIN, "fp8": Codec("fp8", 2.0), "int4": Codec("int4", 4.0)}
"""Narrower numbers, with no time to convert: a bound. A file says what a real codec takes."""


def open_codecs(text: str, quality: float = 0.0) -> list[Codec]:
    """`fp8`, several names, or a CSV file; those with at least this quality."""
    if not text:
        return [PLAIN]
    if text.endswith(".csv"):
        found = _read(Path(text))
    else:
        found = [CODECS[name.choice(CODECS, "codec")] for name in line(text, "--kv-codec").split(",")]
    good = [codec for codec in found if codec.quality >= quality]
    if not good:
        raise UsageError(f"no codec has a quality of {quality}", where=text)
    return good


def _read(path: Path) -> list[Codec]:
    try:
        rows = list(csv.DictReader(path.read_text("utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise FormatError(f"cannot be read: {problem}", path=path) from None
    if not rows:
        raise FormatError("has no codecs", path=path, hint="name,ratio,encode,decode,fixed,quality")
    found = []
    for number, row in enumerate(rows):
        try:
            codec = Codec(
                str(row["name"]).strip(),
                float(row["ratio"]),
                _rate(row.get("encode")),
                _rate(row.get("decode")),
                parse_time(row["fixed"]) if row.get("fixed") else 0,
                float(row.get("quality") or 1.0),
            )
        except (KeyError, TypeError, ValueError, UsageError) as problem:
            raise FormatError(f"not a codec: {problem}", path=path, where=f"row {number}") from None
        if not codec.name or not 0 < codec.ratio < 1e6 or not np.isfinite(codec.quality):
            raise FormatError(f"not a codec: ratio {codec.ratio}", path=path, where=f"row {number}")
        found.append(codec)
    names = [codec.name for codec in found]
    if len(set(names)) != len(names):
        raise FormatError("two codecs have the same name", path=path)
    return found


def _rate(text: Any) -> float:
    return float(parse_bandwidth(text)) if text else float("inf")


def wire_of(
    token_bytes: float,
    bandwidth_bytes_per_s: float = float("inf"),
    latency_ns: int = 0,
    codecs: list[Codec] | None = None,
    choose: str | None = None,
    later: Sequence[tuple[int, float]] = (),
) -> KvWire:
    """`choose`: `best`, `learn`, `learn:0.5`, `fixed:NAME`, or None for a hook; `best` is the fastest one, `learn` the
    fastest at the observed rate of transfers. `later`: times, ns, from which the link has another bandwidth."""
    known = codecs or [PLAIN]
    rows = [[1 / c.ratio, 1e9 / c.encode_bytes_per_s, 1e9 / c.decode_bytes_per_s, float(c.fixed_ns)] for c in known]
    if not bandwidth_bytes_per_s > 0:
        raise UsageError(f"a link of {bandwidth_bytes_per_s} bytes per second")
    return KvWire(
        float(token_bytes),
        1e9 / bandwidth_bytes_per_s,
        np.array([[when, 1e9 / rate] for when, rate in later], np.float64).reshape(-1, 2),
        int(latency_ns),
        np.array(rows, np.float64),
        ASK_CODEC if choose is None else _choice(choose, [c.name for c in known]),
        _weight(choose or ""),
    )


def read_later(text: str) -> list[tuple[int, float]]:
    """`30s:10Gb/s;60s:100Gb/s`: from when on a link has another bandwidth."""
    found: list[tuple[int, float]] = []
    for part in line(text, "--link-later", "30s:10Gb/s;60s:100Gb/s").split(";") if text else ():
        when, rate = part.cut(":")
        if rate is None:
            raise part.wrong(f"`{part.text}` is not a time and a bandwidth")
        if found and when.time_ns(zero=True) <= found[-1][0]:
            raise when.wrong(f"`{when.text}` is not later than the time before it")
        found.append((when.time_ns(zero=True), float(rate.bytes_per_s())))
    return found


def _choice(text: str, names: list[str]) -> int:
    if text == "best":
        return BEST
    whole = line(text, "--kv-choose", f"best, learn, or fixed:NAME; known: {', '.join(names)}")
    word, name = whole.cut(":")
    if word.text == "learn":
        return LEARNT
    if word.text != "fixed" or name is None:
        raise whole.wrong(f"unknown choice `{text}`")
    return names.index(name.choice(names, "codec"))


def _weight(choose: str) -> float:
    """Weight of the newest transfer in the running mean of a link: `learn:0.5`."""
    word, weight = line(choose, "--kv-choose", "learn:0.25").cut(":")
    return weight.fraction() if word.text == "learn" and weight is not None else NEWEST


NO_WIRE: Final = wire_of(0.0, choose="best")

"""Requests: what a serving job answers. From a CSV or JSON trace, or all alike."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from etude.errors import FormatError, UsageError

MAX_BYTES: Final = 256 << 20
MAX_TOKENS: Final = 1 << 27

NAMES: Final = {
    "arrival": ("arrival", "arrival_s", "arrived_at", "arrival_time", "timestamp", "time"),
    "arrival_ns": ("arrival_ns",),
    "prompt": ("prompt", "prompt_tokens", "input_tokens", "num_prefill_tokens", "contexttokens", "input_length"),
    "output": ("output", "output_tokens", "num_decode_tokens", "generatedtokens", "output_length", "decode"),
}
"""Names that public request traces give their columns. Arrivals are seconds, but for `arrival_ns`."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: tokens in, tokens out. The first token out comes with the end of the prompt."""

    prompt: int
    output: int = 1
    arrival_ns: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.prompt <= MAX_TOKENS and 1 <= self.output <= MAX_TOKENS and self.arrival_ns >= 0):
            raise UsageError(f"a request of {self.prompt} tokens in and {self.output} out at {self.arrival_ns} ns")


def read_requests(path: Path) -> tuple[Request, ...]:
    """Requests of a file, in order of arrival."""
    if path.stat().st_size > MAX_BYTES:
        raise FormatError("too large for a request trace", path=path)
    rows = _json(path) if path.suffix == ".json" else _csv(path)
    if not rows:
        raise FormatError("no request in it", path=path)
    columns = _columns(rows[0], path)
    found = []
    for number, row in enumerate(rows):
        where = f"request {number + 1}"
        try:
            arrival = float(row[columns["arrival"]]) * 1e9 if "arrival" in columns else 0.0
            arrival = float(row.get(columns["arrival_ns"], 0)) if "arrival_ns" in columns else arrival
            if not math.isfinite(arrival) or abs(arrival) > 2**62:
                raise ValueError
            prompt, output = int(float(row[columns["prompt"]])), int(float(row[columns["output"]]))
            found.append(Request(prompt, max(output, 1), round(arrival)))
        except (KeyError, ValueError, TypeError, OverflowError):
            shown = ", ".join(f"{k}: {row.get(v)!r}"[:40] for k, v in columns.items())
            raise FormatError(f"not numbers of a request ({shown})", path=path, where=where) from None
        except UsageError as problem:
            raise FormatError(problem.problem, path=path, where=where) from None
    return tuple(sorted(found, key=lambda r: r.arrival_ns))


def _columns(row: Mapping[str, Any], path: Path) -> dict[str, str]:
    plain = {str(name).strip().lower().replace(" ", "_"): name for name in row}
    found = {}
    for what, names in NAMES.items():
        match = next((plain[n] for n in names if n in plain), None)
        if match is not None:
            found[what] = match
    missing = {"prompt", "output"} - set(found)
    if missing:
        raise FormatError(
            f"no column for {' and '.join(sorted(missing))}", path=path, hint="arrival, prompt, output; arrival in s"
        )
    return found


def _csv(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as problem:
        raise FormatError(f"not a CSV file: {problem}", path=path) from None


def _json(path: Path) -> list[dict[str, Any]]:
    import msgspec

    try:
        rows = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as problem:
        raise FormatError(f"not JSON: {problem}", path=path) from None
    rows = rows.get("requests") if isinstance(rows, dict) else rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FormatError("expected a list of requests", path=path, hint='[{"arrival": 0.5, "prompt": 512, ...}]')
    return rows

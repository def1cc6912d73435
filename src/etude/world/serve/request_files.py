"""Files of requests in published formats.

| file | arrival | tokens in, tokens out | more |
|---|---|---|---|
| Azure 2023, 2024 | `TIMESTAMP`, a date and time | `ContextTokens`, `GeneratedTokens` | |
| BurstGPT | `Timestamp`, seconds | `Request tokens`, `Response tokens` | rows without an answer are left out |
| Mooncake | `timestamp`, milliseconds | `input_length`, `output_length` | `hash_ids`: blocks of 512 tokens |
| Vidur, Splitwise | `arrived_at` or `arrival_timestamp`, seconds | `num_prefill_tokens`, `num_decode_tokens` | |
| LLMServingSim, vLLM runs | `arrival_time` or `queued_ts`, seconds | `input_toks`, `output_toks` | |
| measured by vLLM or SGLang | as `etude.capture.ingest.requests` reads it | ... | failed ones are left out |
| segments | `arrival`, seconds | the sum of `segments`, `output` | `segments`: `[[name, tokens, group]]`|

Rows are in order of time, or sorted on request. Any file may have `session`, `tenant`, `tier`, `deadline` (seconds
after the arrival), `branches`, `parents`, `adapter` and `images`.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np

from etude.base.errors import FormatError, UsageError
from etude.base.shapes import names_in
from etude.capture.ingest.requests import holds_requests, measured_requests
from etude.kernels.arrays import I64
from etude.world.serve.requests import MAX_TOKENS, NO_DEADLINE, Requests, requests_of

MAX_BYTES: Final = 4 << 30
SECONDS: Final = names_in("""
    arrival_s arrival arrived_at arrival_time arrival_timestamp timestamp_s queued_ts time timestamp
""")
PROMPT: Final = names_in("""
    prompt prompt_tokens input_tokens input_toks num_prefill_tokens contexttokens request_tokens prompt_size
    input_length prompt_len
""")
OUTPUT: Final = names_in("""
    output output_tokens output_toks num_decode_tokens generatedtokens response_tokens token_size output_length
    output_len
""")
SESSION: Final = ("session", "session_id", "conversation_id")
TENANT: Final = ("tenant", "user", "user_id")
TIER: Final = ("tier", "slo_class", "priority")
DEADLINE: Final = ("deadline", "deadline_s")
BRANCHES: Final = ("branches",)
PARENTS: Final = ("parents", "parent")
ADAPTER: Final = ("adapter", "lora", "lora_name")
IMAGES: Final = ("images", "num_images")


def read_requests(path: str | PathLike[str], *, sort: bool = False, timed: bool = True) -> Requests:
    """Requests of a CSV, JSON or JSON Lines file, compressed by gzip or not. A row that arrives before the previous one
    is refused unless `sort`. Without `timed` only tokens are needed, and a file of measured requests may lack
    arrivals."""
    if holds_requests(path):
        return _measured(Path(path), timed=timed)
    return _from_rows(rows_of(path), Path(path), sort=sort)


def _measured(path: Path, *, timed: bool) -> Requests:
    """Requests of a file written by an engine or its client."""
    found = measured_requests(path)
    for name in ("prompt", "output"):
        if found.table[name].null_count:
            hint = "newer versions of the engine write the tokens of a request"
            raise FormatError(f"no `{name}` tokens of some requests", path=path, hint=hint)
    if timed and found.table["arrival_s"].null_count:
        raise FormatError(
            "no `start_times` of its requests",
            path=path,
            hint="a newer vLLM writes them; SGLang's client does not: --lengths FILE --rate 4 draws requests like them",
        )
    arrival_ns = np.nan_to_num(found.table["arrival_s"].to_numpy() * 1e9).round().astype(np.int64)
    return requests_of(arrival_ns, found.table["prompt"].to_numpy(), found.table["output"].to_numpy())


def rows_of(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Rows as in the file."""
    place = Path(path)
    if not place.is_file():
        raise UsageError("there is no such file", where=str(path))
    if place.stat().st_size > MAX_BYTES:
        raise FormatError("too large for a request file", path=path)
    name = place.name.removesuffix(".gz")
    try:
        data = place.read_bytes()
        if place.name.endswith(".gz"):
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as problem:
        raise FormatError(f"cannot be read: {problem}", path=path) from None
    return _json_rows(data, place) if name.endswith((".json", ".jsonl")) else _csv_rows(data, place)


def _csv_rows(data: bytes, path: Path) -> list[dict[str, Any]]:
    try:
        return list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as problem:
        raise FormatError(f"is not a CSV file: {problem}", path=path) from None


def _json_rows(data: bytes, path: Path) -> list[dict[str, Any]]:
    import msgspec

    try:
        if data.lstrip()[:1] == b"[":
            rows = msgspec.json.decode(data)
        else:
            rows = msgspec.json.Decoder().decode_lines(data)
            if len(rows) == 1 and isinstance(rows[0], dict):
                rows = _one_object(rows[0]) or rows
    except msgspec.DecodeError as problem:
        raise FormatError(f"is not JSON: {problem}", path=path) from None
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise FormatError("is not an object", path=path, where=f"request {number}")
    return list(rows)


def _one_object(record: dict[str, Any]) -> list[Any] | None:
    """Rows of a file that is one object with `requests`."""
    if isinstance(record.get("requests"), list):
        return list(record["requests"])
    return None


def _segments(row: dict[str, Any], name: str, path: Path, where: str) -> list[Any]:
    found = row.get(name)
    listed: list[Any] = found if isinstance(found, list) and found else [found]
    for one in listed:
        right = isinstance(one, list) and len(one) in (2, 3) and isinstance(one[0], str | int)
        numbers = list(zip(one[1:], (1, 0), strict=False)) if right else []
        if not right or any(not isinstance(n, int) or isinstance(n, bool) or n < least for n, least in numbers):
            hint = '[["system", 812], ["item-7", 300, 2]]'
            raise FormatError(f"segments: {one!r}", path=path, where=where, hint=hint)
    return listed


def _from_rows(rows: list[dict[str, Any]], path: Path, *, sort: bool) -> Requests:
    if not rows:
        raise FormatError("has no requests", path=path)
    plain = {str(name).strip().lower().replace(" ", "_"): name for name in rows[0]}
    arrival, prompt, output = (column_of(plain, names) for names in (SECONDS, PROMPT, OUTPUT))
    if "segments" in plain:
        for number, row in enumerate(rows):
            listed = _segments(row, plain["segments"], path, f"request {number}")
            row.setdefault(prompt or "prompt", sum(one[1] for one in listed))
            if row[prompt or "prompt"] != sum(one[1] for one in listed):
                raise FormatError("its segments differ in length from its prompt", path=path, where=f"request {number}")
        prompt = prompt or "prompt"
    if prompt is None or output is None:
        lacking = "prompt" if prompt is None else "output"
        raise FormatError(f"no column for `{lacking}`", path=path, hint="arrival, prompt, output; arrival in s")
    nanoseconds = plain.get("arrival_ns")
    # Mooncake writes milliseconds, and says so nowhere but in its paper; its rows have blocks.
    scale = 1e6 if "hash_ids" in plain else 1e9
    found = []
    for number, row in enumerate(rows):
        where = f"request {number}"
        try:
            at = int(row[nanoseconds]) if nanoseconds else time_ns_of(row[arrival], scale) if arrival else 0
            tokens = int(float(row[prompt])), int(float(row[output]))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise FormatError("does not have the numbers of a request", path=path, where=where) from None
        if not (1 <= tokens[0] <= MAX_TOKENS and 0 <= tokens[1] <= MAX_TOKENS):
            if _failed(plain, tokens):
                continue
            raise FormatError(f"{tokens[0]} tokens in, {tokens[1]} out", path=path, where=where)
        if tokens[1] == 0:
            if _failed(plain, tokens):
                continue
            raise FormatError("has no output token", path=path, where=where, hint="remove such rows")
        found.append((at, *tokens, number))
    if not found:
        raise FormatError("has no request with a response", path=path)
    session = _sessions(rows, column_of(plain, SESSION), [row[3] for row in found])
    blocks = [list(rows[row[3]].get(plain["hash_ids"]) or []) for row in found] if "hash_ids" in plain else None
    segments = [rows[row[3]][plain["segments"]] for row in found] if "segments" in plain else None
    columns = np.array(found, np.int64)
    more = _further(plain, [(rows[row[3]], f"request {row[3]}") for row in found], path)
    if more["parents"] is not None and len(found) != len(rows):
        raise FormatError("parents are row numbers, but some rows are left out", path=path)
    early = np.flatnonzero(np.diff(columns[:, 0]) < 0)
    if len(early) and more["parents"] is None and not sort:
        ahead, row = (rows[int(columns[early[0] + k, 3])][str(nanoseconds or arrival)] for k in (0, 1))
        problem = f"arrives at {row}, before the previous one ({ahead})"
        hint = "--sort sorts the rows by time"
        raise FormatError(problem, path=path, where=f"request {columns[early[0] + 1, 3]}", hint=hint)
    return requests_of(
        columns[:, 0], columns[:, 1], columns[:, 2], session=session, blocks=blocks, segments=segments, **more
    )


def _further(plain: Mapping[str, str], rows: list[tuple[dict[str, Any], str]], path: Path) -> dict[str, Any]:
    """What a file may say about requests besides tokens and times; None where it does not."""
    found: dict[str, Any] = {}
    known: dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
        "tenant": (TENANT, str), "tier": (TIER, str), "deadline_ns": (DEADLINE, _deadline), "branches": (BRANCHES, int),
        "parents": (PARENTS, _parents), "adapter": (ADAPTER, _name), "images": (IMAGES, _images),
    }  # fmt: skip
    for name, (names, read) in known.items():
        column = column_of(plain, names)
        found[name] = None
        if column is None:
            continue
        try:
            found[name] = [read(row.get(column)) for row, where in rows]
        except (TypeError, ValueError, OverflowError):
            where = next(where for row, where in rows if not _readable(read, row.get(column)))
            raise FormatError(f"`{column}` cannot be read", path=path, where=where) from None
    for name in ("tenant", "tier"):
        if found[name] is not None:
            words, found[name] = np.unique(found[name], return_inverse=True)
            found[f"{name}_names"] = tuple(words.tolist())
    if found["adapter"] is not None:  # a row without one has none
        words = np.unique([name for name in found["adapter"] if name])
        found["adapter"] = [int(np.searchsorted(words, name)) if name else -1 for name in found["adapter"]]
    return found


def _name(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _images(value: Any) -> int:
    return 0 if value in (None, "") else int(value)


def _readable(read: Any, value: Any) -> bool:
    try:
        read(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _deadline(value: Any) -> int:
    """Seconds after the arrival; nothing: no deadline."""
    return NO_DEADLINE if value in (None, "") else time_ns_of(value, 1e9)


def _parents(value: Any) -> list[int]:
    """Rows, from 0: a list, or `3;5`."""
    if isinstance(value, list):
        return [int(one) for one in value]
    return [int(one) for one in str("" if value is None else value).split(";") if one.strip()]


def _failed(plain: Mapping[str, str], tokens: tuple[int, int]) -> bool:
    """BurstGPT keeps requests that failed, with no tokens out."""
    return "response_tokens" in plain and min(tokens) <= 0


def column_of(plain: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((plain[name] for name in names if name in plain), None)


def _sessions(rows: list[dict[str, Any]], name: str | None, numbers: list[int]) -> I64 | None:
    if name is None:
        return None
    return np.unique([str(rows[i].get(name)) for i in numbers], return_inverse=True)[1].astype(np.int64)


def time_ns_of(value: Any, scale: float) -> int:
    """Seconds (or what `scale` says) or a date and time, in ns."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        text = str(value).strip()
        whole, _, digits = text.partition(".")  # Azure writes seven digits, more than a datetime holds
        fraction = digits.split("+")[0].rstrip("Z")
        moment = datetime.fromisoformat(whole.removesuffix("Z") + "+00:00")
        return int(moment.timestamp()) * 10**9 + (int(fraction.ljust(9, "0")[:9]) if fraction else 0)
    if not np.isfinite(number) or abs(number) * scale > 2**62:
        raise ValueError
    if abs(number) > 1e6 and scale == 1e9:  # a wall clock: keep the precision of a float
        return int(number) * 10**9 + round((number % 1.0) * 1e9)
    return round(number * scale)

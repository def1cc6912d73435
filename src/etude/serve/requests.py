"""Requests: the columns of a request stream, from the files that people publish or drawn at a rate.

| file | arrival | tokens in, tokens out | more |
|---|---|---|---|
| Azure 2023, 2024 | `TIMESTAMP`, a date and time | `ContextTokens`, `GeneratedTokens` | |
| BurstGPT | `Timestamp`, seconds | `Request tokens`, `Response tokens` | rows without an answer are left out |
| Mooncake | `timestamp`, milliseconds | `input_length`, `output_length` | `hash_ids`: blocks of 512 tokens |
| Vidur, Splitwise | `arrived_at` or `arrival_timestamp`, seconds | `num_prefill_tokens`, `num_decode_tokens` | |
| LLMServingSim, vLLM runs | `arrival_time` or `queued_ts`, seconds | `input_toks`, `output_toks` | |

Any of them may have `session`, `tenant`, `tier`, `deadline` (seconds after the arrival), `branches` and `parents`.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.errors import FormatError, UsageError

I64 = NDArray[np.int64]
MAX_BYTES: Final = 4 << 30
MAX_TOKENS: Final = 1 << 27
BLOCK_TOKENS: Final = 512
"""Tokens of a Mooncake block."""

SECONDS: Final = (
    "arrival_s", "arrival", "arrived_at", "arrival_time", "arrival_timestamp", "timestamp_s", "queued_ts", "time",
    "timestamp",
)  # fmt: skip
PROMPT: Final = (
    "prompt", "prompt_tokens", "input_tokens", "input_toks", "num_prefill_tokens", "contexttokens", "request_tokens",
    "prompt_size", "input_length", "prompt_len",
)  # fmt: skip
OUTPUT: Final = (
    "output", "output_tokens", "output_toks", "num_decode_tokens", "generatedtokens", "response_tokens", "token_size",
    "output_length", "output_len",
)  # fmt: skip
SESSION: Final = ("session", "session_id", "conversation_id")
TENANT: Final = ("tenant", "user", "user_id")
TIER: Final = ("tier", "slo_class", "priority")
DEADLINE: Final = ("deadline", "deadline_s")
BRANCHES: Final = ("branches",)
PARENTS: Final = ("parents", "parent")
NONE: Final = np.zeros(0, np.int64)
NO_DEADLINE: Final = 2**62


def _none() -> I64:
    return NONE


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """In order of arrival; the first arrives at 0 or later. Blocks of request i are block[block_start[i] :
    block_start[i + 1]], where the file names them; requests that must be answered before it, its parents, are
    parent[parent_start[i] : parent_start[i + 1]], and it arrives `arrival_ns` after the last of them. Columns that are
    not given say nothing: one tenant, one tier, no deadline, one branch, no parents."""

    arrival_ns: I64
    prompt: I64
    output: I64
    """Tokens out, of all branches together."""
    session: I64
    block_start: I64
    block: I64
    tenant: I64 = field(default_factory=_none)
    tier: I64 = field(default_factory=_none)
    """Numbers; 0 goes first where tiers have an order. `tier_names` has the names of a file."""
    deadline_ns: I64 = field(default_factory=_none)
    """Of the whole answer, after the arrival."""
    branches: I64 = field(default_factory=_none)
    """Parts of the answer that may be decoded side by side, each after the prompt."""
    parent_start: I64 = field(default_factory=_none)
    parent: I64 = field(default_factory=_none)
    tier_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in ("arrival_ns", "prompt", "output", "session")}
        if len(lengths) != 1 or not len(self):
            raise UsageError("requests: columns of different lengths" if len(self) else "there is no request")
        usual = {"tenant": 0, "tier": 0, "deadline_ns": NO_DEADLINE, "branches": 1}
        for name, value in usual.items():
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(len(self), value, np.int64))
            elif len(getattr(self, name)) != len(self):
                raise UsageError("requests: columns of different lengths")
        if not len(self.parent_start):
            object.__setattr__(self, "parent_start", np.zeros(len(self) + 1, np.int64))
        self._check()

    def _check(self) -> None:
        child = np.repeat(np.arange(len(self)), np.diff(self.parent_start))
        wrong = np.flatnonzero((self.parent >= child) | (self.parent < 0))
        if len(wrong):
            raise UsageError(
                f"waits for request {self.parent[wrong[0]]}",
                where=f"request {child[wrong[0]]}",
                hint="a parent is a row above its child",
            )
        alone = np.flatnonzero(np.diff(self.parent_start) == 0)
        wrong = np.flatnonzero(np.diff(self.arrival_ns[alone]) < 0)
        if len(wrong):
            raise UsageError("arrives before the one ahead of it", where=f"request {alone[wrong[0] + 1]}")
        for name in ("prompt", "output"):
            bad = np.flatnonzero((getattr(self, name) < 1) | (getattr(self, name) > MAX_TOKENS))
            if len(bad):
                raise UsageError(f"{name} of {getattr(self, name)[bad[0]]} tokens", where=f"request {bad[0]}")
        for name, least in (("arrival_ns", 0), ("deadline_ns", 1), ("branches", 1), ("tenant", 0), ("tier", 0)):
            bad = np.flatnonzero(getattr(self, name) < least)
            if len(bad):
                what = "arrives before the start" if name == "arrival_ns" else f"{name} {getattr(self, name)[bad[0]]}"
                raise UsageError(what, where=f"request {bad[0]}")
        bad = np.flatnonzero(self.branches > self.output)
        if len(bad):
            raise UsageError(
                f"{self.branches[bad[0]]} branches of {self.output[bad[0]]} tokens out", where=f"request {bad[0]}"
            )

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def first(self, count: int) -> Requests:
        """The first so many of them."""
        n = min(count, len(self))
        ends = {"block": self.block_start[n], "parent": self.parent_start[n]}
        lengths = dict.fromkeys(("block_start", "parent_start"), n + 1) | ends
        cut = {f.name: getattr(self, f.name)[: lengths.get(f.name, n)] for f in fields(self) if f.name != "tier_names"}
        return replace(self, **cut)


def requests_of(
    arrival_ns: Any,
    prompt: Any,
    output: Any,
    *,
    session: Any = None,
    blocks: list[list[int]] | None = None,
    parents: list[list[int]] | None = None,
    **more: Any,
) -> Requests:
    """From columns in any order of arrival; the earliest is put at 0. `parents` are rows as they are given, which then
    keep their order. `more` are other columns of `Requests`."""
    arrival = np.asarray(arrival_ns, np.int64)
    order = np.arange(len(arrival)) if parents else np.argsort(arrival, kind="stable")
    alone = np.array([not one for one in parents], bool) if parents else np.ones(len(arrival), bool)
    given = np.arange(len(arrival)) if session is None else np.asarray(session, np.int64)
    block_start, flat = _lists([blocks[i] for i in order.tolist()] if blocks is not None else [], len(arrival))
    parent_start, parent = _lists(parents or [], len(arrival))
    early = arrival[alone].min() if alone.any() else 0
    names = more.pop("tier_names", ())
    return Requests(
        arrival[order] - np.where(alone, early, 0),
        np.asarray(prompt, np.int64)[order], np.asarray(output, np.int64)[order], given[order],
        block_start, np.unique(flat, return_inverse=True)[1].astype(np.int64) if len(flat) else flat,
        parent_start=parent_start, parent=parent, tier_names=names,
        **{name: np.asarray(column, np.int64)[order] for name, column in more.items() if column is not None},
    )  # fmt: skip


def _lists(lists: list[list[int]], rows: int) -> tuple[I64, I64]:
    """Starts and values of lists behind one another; none are empty ones."""
    if not lists:
        return np.zeros(rows + 1, np.int64), NONE
    start = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    return start, np.array([b for one in lists for b in one], np.int64)


def poisson(rate_per_s: float, count: int, prompt: int, output: int, *, seed: int = 0, cv: float = 1.0) -> Requests:
    """Requests all alike at a rate. Gaps are gamma distributed with this coefficient of variation: 1 is Poisson, 0 is
    even, more is bursty."""
    if not rate_per_s > 0 or count < 1 or cv < 0:
        raise UsageError(f"{count} requests at {rate_per_s} a second, with a variation of {cv}")
    random = np.random.default_rng(seed)
    gap = random.gamma(1 / cv**2, cv**2 / rate_per_s, count) if cv else np.full(count, 1 / rate_per_s)
    arrival = np.round(np.cumsum(gap) * 1e9).astype(np.int64)
    return requests_of(arrival, np.full(count, prompt), np.full(count, output))


def at_rate(requests: Requests, rate_per_s: float) -> Requests:
    """The same requests, with gaps stretched so that they come at this rate."""
    span = int(requests.arrival_ns[-1])
    if not rate_per_s > 0 or not span:
        raise UsageError(f"a rate of {rate_per_s} for requests over {span} ns")
    factor = (len(requests) - 1) / rate_per_s / (span / 1e9)
    arrival = np.round(requests.arrival_ns * factor).astype(np.int64)
    return replace(requests, arrival_ns=arrival)


def request_stream(
    path: str | PathLike[str] | None = None,
    *,
    first: int = 0,
    rate_per_s: float = 0.0,
    count: int = 500,
    prompt: int = 1024,
    output: int = 128,
    cv: float = 1.0,
    seed: int = 0,
) -> Requests:
    """Those of a file (the first so many, at a rate if one is given), or drawn."""
    if path is None:
        return poisson(rate_per_s, count, prompt, output, seed=seed, cv=cv)
    found = read_requests(path)
    found = found.first(first) if first else found
    return at_rate(found, rate_per_s) if rate_per_s else found


# -- files -------------------------------------------------------------------------------------------------------------


def read_requests(path: str | PathLike[str]) -> Requests:
    """Requests of a CSV, JSON or JSON Lines file, compressed by gzip or not."""
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
    rows = _json_rows(data, place) if name.endswith((".json", ".jsonl")) else _csv_rows(data, place)
    return _from_rows(rows, place)


def _csv_rows(data: bytes, path: Path) -> list[dict[str, Any]]:
    try:
        return list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as problem:
        raise FormatError(f"not a CSV file: {problem}", path=path) from None


def _json_rows(data: bytes, path: Path) -> list[dict[str, Any]]:
    import msgspec

    try:
        if data.lstrip()[:1] == b"[":
            rows = msgspec.json.decode(data)
        else:
            rows = msgspec.json.Decoder().decode_lines(data)
            if len(rows) == 1 and isinstance(rows[0], dict) and isinstance(rows[0].get("requests"), list):
                rows = rows[0]["requests"]
    except msgspec.DecodeError as problem:
        raise FormatError(f"not JSON: {problem}", path=path) from None
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise FormatError("is not an object", path=path, where=f"request {number}")
    return list(rows)


def _from_rows(rows: list[dict[str, Any]], path: Path) -> Requests:
    if not rows:
        raise FormatError("no request in it", path=path)
    plain = {str(name).strip().lower().replace(" ", "_"): name for name in rows[0]}
    arrival, prompt, output = (_column(plain, names) for names in (SECONDS, PROMPT, OUTPUT))
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
            at = int(row[nanoseconds]) if nanoseconds else _time_ns(row[arrival], scale) if arrival else 0
            tokens = int(float(row[prompt])), int(float(row[output]))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise FormatError("not the numbers of a request", path=path, where=where) from None
        if not (1 <= tokens[0] <= MAX_TOKENS and 0 <= tokens[1] <= MAX_TOKENS):
            if _failed(plain, tokens):
                continue
            raise FormatError(f"{tokens[0]} tokens in, {tokens[1]} out", path=path, where=where)
        if tokens[1] == 0:
            if _failed(plain, tokens):
                continue
            raise FormatError("no token out", path=path, where=where, hint="leave such rows away")
        found.append((at, *tokens, number))
    if not found:
        raise FormatError("no request with an answer in it", path=path)
    session = _sessions(rows, _column(plain, SESSION), [row[3] for row in found])
    blocks = [list(rows[row[3]].get(plain["hash_ids"]) or []) for row in found] if "hash_ids" in plain else None
    columns = np.array(found, np.int64)
    more = _further(plain, [(rows[row[3]], f"request {row[3]}") for row in found], path)
    if more["parents"] is not None and len(found) != len(rows):
        raise FormatError("parents are rows, and rows are left out", path=path)
    return requests_of(columns[:, 0], columns[:, 1], columns[:, 2], session=session, blocks=blocks, **more)


def _further(plain: Mapping[str, str], rows: list[tuple[dict[str, Any], str]], path: Path) -> dict[str, Any]:
    """What a file may say of requests beside tokens and times; None where it does not."""
    found: dict[str, Any] = {}
    known: dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
        "tenant": (TENANT, str), "tier": (TIER, str), "deadline_ns": (DEADLINE, _deadline), "branches": (BRANCHES, int),
        "parents": (PARENTS, _parents),
    }  # fmt: skip
    for name, (names, read) in known.items():
        column = _column(plain, names)
        found[name] = None
        if column is None:
            continue
        try:
            found[name] = [read(row.get(column)) for row, where in rows]
        except (TypeError, ValueError, OverflowError):
            where = next(where for row, where in rows if not _readable(read, row.get(column)))
            raise FormatError(f"`{column}` is not readable", path=path, where=where) from None
    for name in ("tenant", "tier"):
        if found[name] is not None:
            words, found[name] = np.unique(found[name], return_inverse=True)
            if name == "tier":
                found["tier_names"] = tuple(words.tolist())
    return found


def _readable(read: Any, value: Any) -> bool:
    try:
        read(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _deadline(value: Any) -> int:
    """Seconds after the arrival; nothing: no deadline."""
    return NO_DEADLINE if value in (None, "") else _time_ns(value, 1e9)


def _parents(value: Any) -> list[int]:
    """Rows, from 0: a list, or `3;5`."""
    if isinstance(value, list):
        return [int(one) for one in value]
    return [int(one) for one in str("" if value is None else value).split(";") if one.strip()]


def _failed(plain: Mapping[str, str], tokens: tuple[int, int]) -> bool:
    """BurstGPT keeps requests that failed, with no tokens out."""
    return "response_tokens" in plain and min(tokens) <= 0


def _column(plain: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((plain[name] for name in names if name in plain), None)


def _sessions(rows: list[dict[str, Any]], name: str | None, numbers: list[int]) -> I64 | None:
    if name is None:
        return None
    return np.unique([str(rows[i].get(name)) for i in numbers], return_inverse=True)[1].astype(np.int64)


def _time_ns(value: Any, scale: float) -> int:
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
    if abs(number) > 1e6 and scale == 1e9:  # a wall clock: keep what a float has of it
        return int(number) * 10**9 + round((number % 1.0) * 1e9)
    return round(number * scale)

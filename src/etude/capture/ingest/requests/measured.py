"""MeasuredRequests: one table, whoever measured them.

| column | |
|---|---|
| `request` | id that the engine gave it, else its number |
| `arrival_s` | since the first arrival of the file |
| `queue_s`, `prefill_s` | until it was scheduled first, and from then to its first token |
| `first_token_s`, `finish_s` | since the first arrival |
| `prompt`, `output`, `cached` | tokens in, tokens out, and those of the prompt that a cache held |
| `ttft_s`, `tpot_s`, `latency_s` | from the arrival to the first token, each further token, the whole answer |
| `itl_s` | times between tokens that followed one another, a list |

What the file does not say is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from etude.kernels.arrays import F64
from etude.model.tokens import token_times


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRequest:
    """One request; None: not in the file. Times in seconds, except `arrival_ns`."""

    name: str
    arrival_ns: int | None = None
    """On the clock of the file."""
    ttft_s: float | None = None
    latency_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    prompt: int | None = None
    output: int | None = None
    cached: int | None = None
    itl_s: Sequence[float] | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MeasuredRequests:
    """The answered requests of a file, in order of arrival if known."""

    table: pa.Table
    source: str
    """The tool that measured them."""
    failed: int = 0
    """Requests without an answer, which the table leaves out."""
    duration_s: float | None = None
    """Duration of the whole measurement, for rates."""
    begin_ns: int | None = None
    """The first arrival, on the clock of the file; for spans since 1970."""
    said: dict[str, float] = field(default_factory=dict)
    """Means that the file itself states, in seconds, under the names of columns."""

    def mean_s(self, name: str) -> float | None:
        """Mean of a column of times, or None if no request has one."""
        values = floats(self.table, name)
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else None


def floats(table: pa.Table, name: str) -> F64:
    """A column as numbers, NaN for null."""
    column: F64 = table[name].combine_chunks().cast(pa.float64()).to_numpy(zero_copy_only=False)
    return column


def table_of(requests: Sequence[MeasuredRequest]) -> tuple[pa.Table, int | None]:
    """The table, sorted by arrival if all are known, and the first arrival."""
    timed = bool(requests) and all(one.arrival_ns is not None for one in requests)
    ordered = sorted(requests, key=lambda one: one.arrival_ns or 0) if timed else list(requests)
    begin = ordered[0].arrival_ns if timed else None
    arrival = [(one.arrival_ns - begin) / 1e9 if begin is not None else None for one in ordered]  # type: ignore[operator]
    columns: dict[str, Any] = {
        "request": pa.array([one.name for one in ordered], pa.string()),
        "arrival_s": pa.array(arrival, pa.float64()),
    }
    for name in ("queue_s", "prefill_s", "ttft_s", "latency_s"):
        columns[name] = pa.array([getattr(one, name) for one in ordered], pa.float64())
    for name in ("prompt", "output", "cached"):
        columns[name] = pa.array([getattr(one, name) for one in ordered], pa.int64())
    lists = [None if one.itl_s is None else list(one.itl_s) for one in ordered]
    columns["itl_s"] = pa.array(lists, pa.list_(pa.float64()))
    return completed(pa.table(columns)), begin


def completed(table: pa.Table) -> pa.Table:
    """With the columns that follow from others: `first_token_s`, `finish_s`, `tpot_s`."""
    arrival, ttft, latency = (floats(table, name) for name in ("arrival_s", "ttft_s", "latency_s"))
    output = floats(table, "output")
    _, tpot = token_times(0.0, ttft, latency, np.where(np.isnan(output), 0, output))
    made = {"first_token_s": arrival + ttft, "finish_s": arrival + latency, "tpot_s": tpot}
    for name, values in made.items():
        table = table.append_column(name, pa.array(values, pa.float64(), mask=np.isnan(values)))
    return table.select(ORDER)


ORDER = [
    "request", "arrival_s", "queue_s", "prefill_s", "first_token_s", "finish_s", "prompt", "output", "cached",
    "ttft_s", "tpot_s", "latency_s", "itl_s",
]  # fmt: skip

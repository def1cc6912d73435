"""Measured requests: percentiles of their times, and rates."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["request_metrics", "request_rates"]

TIMES: Final = ("ttft_s", "tpot_s", "itl_s", "latency_s", "queue_s", "prefill_s")
PERCENTILES: Final = (50, 90, 99)


def request_metrics(requests: pa.Table) -> pa.Table:
    """A row for each time that is known: `metric`, `count`, `mean`, `p50`, `p90`, `p99`, `max`, in seconds. Percentiles
    are interpolated, as NumPy and the clients of vLLM and SGLang do it. `itl_s` is over all tokens of all requests, the
    others over requests."""
    rows: list[dict[str, Any]] = []
    for name in TIMES:
        column = requests[name]
        column = pc.drop_null(pc.list_flatten(column) if pa.types.is_list(column.type) else column)
        values = column.to_numpy()
        if len(values):
            marks = np.percentile(values, PERCENTILES).tolist()
            percentiles = {f"p{p}": mark for p, mark in zip(PERCENTILES, marks, strict=True)}
            head = {"metric": name, "count": len(values), "mean": float(values.mean())}
            rows.append(head | percentiles | {"max": float(values.max())})
    return pa.Table.from_pylist(rows)


def request_rates(requests: pa.Table, duration_s: float | None) -> dict[str, Any]:
    """Requests and tokens, in total and per second; None where the duration is unknown."""
    found: dict[str, Any] = {"requests": len(requests), "duration_s": duration_s}
    counts = {"requests_per_s": len(requests)}
    for name, column in (("prompt_tokens", "prompt"), ("output_tokens", "output")):
        known = requests[column].null_count == 0
        found[name] = int(pc.sum(requests[column]).as_py() or 0) if known else None
        counts[f"{name}_per_s"] = found[name]
    for name, count in counts.items():
        found[name] = count / duration_s if duration_s and count is not None else None
    return found

"""What the client of `vllm bench serve` measured: the result file, beside a stream of its requests served again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from etude.errors import FormatError
from etude.serve.results import request_times
from etude.serve.serving import Served


def bench_result(path: Path) -> dict[str, float]:
    """Means over requests as the client counts them, from the request it sent: `ttft_s`, `tpot_s`, `latency_s`."""
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise FormatError(
            f"cannot be read: {problem}", path=path, hint="a result of `vllm bench serve`, or the folder of a run"
        ) from None
    if not isinstance(record, dict) or "request_throughput" not in record:
        raise FormatError("is not a result of `vllm bench serve`", path=path, hint="--save-result --save-detailed")
    said = {
        name: record[key] / 1e3
        for name, key in (("ttft_s", "mean_ttft_ms"), ("tpot_s", "mean_tpot_ms"), ("latency_s", "mean_e2el_ms"))
        if isinstance(record.get(key), int | float)
    }
    return _from_lists(record, path) | said


def _from_lists(record: dict[str, Any], path: Path) -> dict[str, float]:
    """Where the file has the times of each request."""
    first, gaps, output = (record.get(name) for name in ("ttfts", "itls", "output_lens"))
    if not (isinstance(first, list) and isinstance(gaps, list) and isinstance(output, list)):
        return {}
    if not len(first) == len(gaps) == len(output):
        raise FormatError("`ttfts`, `itls` and `output_lens` differ in length", path=path)
    failed = record.get("errors") or [""] * len(first)
    try:
        rows = [
            (float(t), float(sum(g)), int(n))
            for t, g, n, why in zip(first, gaps, output, failed, strict=True)
            if n and not why
        ]
    except (TypeError, ValueError):
        raise FormatError("times of its requests are not numbers", path=path) from None
    if not rows:
        raise FormatError("no request was answered", path=path)
    ttft, rest, tokens = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    more = tokens > 1
    found = {"ttft_s": float(ttft.mean()), "latency_s": float((ttft + rest).mean())}
    if more.any():
        found["tpot_s"] = float((rest[more] / (tokens[more] - 1)).mean())
    return found


def beside_bench(measured: dict[str, float], served: Served) -> dict[str, Any]:
    """The record of `etude serve --run FILE.json`."""
    times = request_times(served)
    predicted = {name: float(np.nanmean(times[name])) for name in ("ttft_s", "tpot_s", "latency_s") if name in measured}
    return {
        "measured": {name: measured[name] for name in predicted},
        "predicted": predicted,
        "error": {name: predicted[name] / measured[name] - 1.0 for name in predicted},
        "assumed": ["times of the client and the server before the engine are not included"],
    }

"""Results of the benchmark clients: `vllm bench serve --save-result --save-detailed` (and `benchmark_serving.py` before
it), a JSON file, and `python -m sglang.bench_serving --output-details`, a line of JSON for each run.

Both have lists with a place for each request: `input_lens`, `output_lens`, `ttfts`, `itls`, `errors`. vLLM's has
`start_times` (since 0.11) and `latencies` too; without the latter, a request took `ttft` and the sum of its `itl`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from etude.base.errors import FormatError, UsageError
from etude.capture.ingest.requests.measured import MeasuredRequest, MeasuredRequests, table_of

MARK: Final = b'"request_throughput"'
VLLM: Final = "vllm bench serve"
SGLANG: Final = "sglang.bench_serving"
NEEDED: Final = ("input_lens", "output_lens", "ttfts", "itls")
SAID: Final = {
    "mean_ttft_ms": "ttft_s",
    "mean_tpot_ms": "tpot_s",
    "mean_e2el_ms": "latency_s",
    "mean_e2e_latency_ms": "latency_s",
}


def read_bench(data: bytes, path: Path) -> MeasuredRequests:
    record = _record(data, path)
    source = VLLM if "endpoint_type" in record or "start_times" in record else SGLANG if "tag" in record else VLLM
    lists = {name: record.get(name) for name in NEEDED}
    if not all(isinstance(value, list) for value in lists.values()):
        hint = "run it with --output-details" if source == SGLANG else "run it with --save-result --save-detailed"
        raise FormatError(f"a result of `{source}` without its requests", path=path, hint=hint)
    count = len(lists["input_lens"])  # type: ignore[arg-type]
    for name in (*NEEDED, "errors", "start_times", "latencies"):
        value = record.get(name) or []
        if not isinstance(value, list):
            raise FormatError(f"`{name}` is not a list", path=path)
        if len(value) != count and (value or name in NEEDED):
            raise FormatError(f"`{name}` has {len(value):,} entries, `input_lens` has {count:,}", path=path)
    answered = [i for i in range(count) if _answered(record, i)]
    if not answered:
        raise FormatError("no request was answered", path=path)
    try:
        requests = [_request(record, i) for i in answered]
        duration = float(record["duration"]) if record.get("duration") is not None else None
        said = {name: float(record[key]) / 1e3 for key, name in SAID.items() if record.get(key) is not None}
    except (TypeError, ValueError, OverflowError):
        raise FormatError("times or tokens of its requests are not numbers", path=path) from None
    table, begin = table_of(requests)
    return MeasuredRequests(
        table=table, source=source, failed=count - len(answered), duration_s=duration, begin_ns=begin, said=said
    )


def _record(data: bytes, path: Path) -> dict[str, Any]:
    """The one run of a file. SGLang writes an infinite request rate as `Infinity`, which only Python's own reader
    accepts."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    runs = sum(MARK in line for line in lines)
    if runs > 1:
        raise UsageError(
            f"holds {runs} runs", where=str(path), hint=f"keep one line of it: sed -n {len(lines)}p {path} > one.jsonl"
        )
    try:
        record = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            record = json.loads(data)
        except (ValueError, RecursionError) as problem:
            raise FormatError(f"not JSON: {problem}", path=path) from None
    if not isinstance(record, dict):
        raise FormatError(f"not a result of `{VLLM}` or `{SGLANG}`", path=path)
    return record


def _answered(record: dict[str, Any], i: int) -> bool:
    errors = record.get("errors") or []
    return bool(record["output_lens"][i]) and not (errors and errors[i])


def _request(record: dict[str, Any], i: int) -> MeasuredRequest:
    gaps: Sequence[float] = [_number(gap) for gap in record["itls"][i]]
    ttft = _number(record["ttfts"][i])
    latencies = record.get("latencies") or None
    return MeasuredRequest(
        name=str(i),
        arrival_ns=_arrival_ns(record, i),
        ttft_s=ttft,
        latency_s=_number(latencies[i]) if latencies else ttft + math.fsum(gaps),
        prompt=int(record["input_lens"][i]),
        output=int(record["output_lens"][i]),
        itl_s=gaps,
    )


def _arrival_ns(record: dict[str, Any], i: int) -> int | None:
    """When the client sent it; with an infinite rate and no limit of concurrent requests, at once."""
    starts = record.get("start_times") or None
    if isinstance(starts, list):
        return round(_number(starts[i]) * 1e9)
    at_once = str(record.get("request_rate")).lower() in ("inf", "infinity") and not record.get("max_concurrency")
    return 0 if at_once else None


def _number(value: Any) -> float:
    """Seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError
    return float(value)

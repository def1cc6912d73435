"""`etude requests`: what is asked of measured requests, and their figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, switch
from etude.base.outputs import Tabled
from etude.base.talk import say

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.capture.ingest.requests import MeasuredRequests


@dataclass(frozen=True, kw_only=True)
class RequestsInput:
    """TTFT, TPOT, time between tokens and throughput of requests that vLLM or SGLang measured, or that were predicted

    etude requests traces.jsonl
    etude requests result.json --json
    etude requests traces.jsonl --each --csv
    etude requests traces.jsonl --passes trace.json.gz
    etude serve llama3-8b --system dgx-h100 --requests traces.jsonl -o served/; etude requests traces.jsonl served/
    """

    files: tuple[str, ...] = argument(
        "paths",
        "spans of vLLM or SGLang (OTLP JSON), results of their benchmark clients, or what `etude serve` wrote",
        like="other.jsonl",
    )
    each: bool = switch("every request, instead of percentiles")
    passes: str | None = figure(
        "path", "profiler's trace of the same run: every request with the passes in its time", None
    )
    output: Tabled = part(Tabled)


@dataclass(frozen=True, slots=True)
class RequestInputs:
    files: tuple[str, ...]
    passes: Path | None = None
    each: bool = False


def inputs(asked: RequestsInput) -> RequestInputs:
    if asked.passes is None:
        return RequestInputs(asked.files, each=asked.each)
    if len(asked.files) > 1:
        raise UsageError("--passes is of one file of requests", hint="one FILE")
    return RequestInputs(asked.files, Path(asked.passes))


def run(given: RequestInputs) -> pa.Table | list[tuple[str, MeasuredRequests]]:
    """One table of all requests, or the requests of each file."""
    import pyarrow as pa

    from etude.capture.ingest.requests import measured_requests, with_passes

    found = [(str(Path(file)), measured_requests(Path(file))) for file in given.files]
    if given.passes is not None:
        return with_passes(found[0][1], given.passes).drop_columns("itl_s")
    if not given.each:
        return found
    tables = [
        one.table.drop_columns("itl_s").add_column(0, "file", pa.array([name] * len(one.table), pa.string()))
        for name, one in found
    ]
    whole = pa.concat_tables(tables, promote_options="permissive")
    return whole if len(found) > 1 else whole.drop_columns("file")


def record(found: Any) -> Any:
    if not isinstance(found, list):
        return found
    records = [_record(name, one, len(found) > 1) for name, one in found]
    return records if len(found) > 1 else records[0]


def _record(name: str, one: MeasuredRequests, several: bool) -> dict[str, Any]:
    from etude.analyse.requests import request_metrics, request_rates

    times = {row.pop("metric"): row for row in request_metrics(one.table).to_pylist()}
    head: dict[str, Any] = {"file": name} if several else {}
    return head | {"source": one.source, "failed": one.failed} | request_rates(one.table, one.duration_s) | times


def table(found: Any) -> Any:
    """Percentiles of each file; their rates are said."""
    from etude.analyse.requests import request_metrics, request_rates

    if not isinstance(found, list):
        return found
    rows, several = [], len(found) > 1
    for name, one in found:
        rows += [({"file": name} if several else {}) | row for row in request_metrics(one.table).to_pylist()]
        say((f"{name}: " if several else "") + _rates(one, request_rates(one.table, one.duration_s)))
    return rows


def _rates(one: MeasuredRequests, rates: dict[str, Any]) -> str:
    parts = [f"{rates['requests']:,} requests ({one.source})"]
    if one.failed:
        parts[0] += f", {one.failed:,} more failed"
    if rates["duration_s"]:
        parts.append(f"{rates['requests_per_s']:.4g} requests/s over {rates['duration_s']:,.4g} s")
    tokens = {name: rates[f"{name}_tokens_per_s"] for name in ("prompt", "output")}
    parts += [f"{rate:,.4g} {name} tokens/s" for name, rate in tokens.items() if rate is not None]
    return "; ".join(parts)

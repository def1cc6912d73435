from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli.app import ANALYSE, app
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown, emit, say

if TYPE_CHECKING:
    from etude.capture.ingest.requests import MeasuredRequests


@app.command(rich_help_panel=ANALYSE)
def requests(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Spans of vLLM or SGLang (OTLP JSON), results of their benchmark clients, or what `etude serve` "
            "wrote.",
            show_default=False,
        ),
    ],
    each: Annotated[bool, typer.Option("--each", help="Every request, instead of percentiles.")] = False,
    passes: Annotated[
        Path | None,
        typer.Option(help="Profiler's trace of the same run: every request with the passes in its time."),
    ] = None,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """TTFT, TPOT, time between tokens and throughput of requests that vLLM or SGLang measured, or that were predicted

    etude requests traces.jsonl
    etude requests result.json --json
    etude requests traces.jsonl --each --csv
    etude requests traces.jsonl --passes trace.json.gz
    etude serve llama3-8b --system dgx-h100 --requests traces.jsonl -o served/; etude requests traces.jsonl served/
    """
    from etude.analyse.requests import request_metrics, request_rates
    from etude.capture.ingest.requests import measured_requests, with_passes

    found = [(str(file), measured_requests(file)) for file in files]
    several = len(found) > 1
    if passes is not None:
        if several:
            raise UsageError("--passes is of one file of requests", hint="one FILE")
        emit(with_passes(found[0][1], passes).drop_columns("itl_s"), json=json, csv=csv, md=md)
        return
    if each:
        _each(found, json=json, csv=csv, md=md)
        return
    if json:
        records = [_record(name, one, several) for name, one in found]
        emit(records if several else records[0], json=True)
        return
    rows = [
        ({"file": name} if several else {}) | row
        for name, one in found
        for row in request_metrics(one.table).to_pylist()
    ]
    emit(rows, csv=csv, md=md)
    for name, one in found:
        say((f"{name}: " if several else "") + _rates(one, request_rates(one.table, one.duration_s)))


def _each(found: "list[tuple[str, MeasuredRequests]]", json: bool, csv: bool, md: bool) -> None:
    import pyarrow as pa

    tables = [
        one.table.drop_columns("itl_s").add_column(0, "file", pa.array([name] * len(one.table), pa.string()))
        for name, one in found
    ]
    whole = pa.concat_tables(tables)
    emit(whole if len(found) > 1 else whole.drop_columns("file"), json=json, csv=csv, md=md)


def _record(name: str, one: "MeasuredRequests", several: bool) -> dict[str, Any]:
    from etude.analyse.requests import request_metrics, request_rates

    times = {row.pop("metric"): row for row in request_metrics(one.table).to_pylist()}
    head: dict[str, Any] = {"file": name} if several else {}
    return head | {"source": one.source, "failed": one.failed} | request_rates(one.table, one.duration_s) | times


def _rates(one: "MeasuredRequests", rates: dict[str, Any]) -> str:
    parts = [f"{rates['requests']:,} requests ({one.source})"]
    if one.failed:
        parts[0] += f", {one.failed:,} more failed"
    if rates["duration_s"]:
        parts.append(f"{rates['requests_per_s']:.4g} requests/s over {rates['duration_s']:,.4g} s")
    tokens = {name: rates[f"{name}_tokens_per_s"] for name in ("prompt", "output")}
    parts += [f"{rate:,.4g} {name} tokens/s" for name, rate in tokens.items() if rate is not None]
    return "; ".join(parts)

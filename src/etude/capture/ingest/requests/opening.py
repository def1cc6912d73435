"""Opens a file of measured requests, recognised by its content; `.gz` and `.zst` are decompressed."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Final

from etude.base.errors import FormatError, UsageError
from etude.capture.ingest.requests import bench, served, spans
from etude.capture.ingest.requests.measured import MeasuredRequests
from etude.store import compressed

HEAD: Final = 1 << 16
MAX_BYTES: Final = 4 << 30
KNOWN: Final = (
    "spans of vLLM or SGLang (OTLP JSON), a result of `vllm bench serve --save-detailed` or of `sglang.bench_serving "
    "--output-details`, or what `etude serve` wrote (--requests-out, -o)"
)


def holds_requests(path: str | PathLike[str]) -> bool:
    """Whether it is a file of spans or of a benchmark client."""
    place = Path(path)
    if not place.is_file():
        return False
    head = compressed.head(place, HEAD)
    return head.lstrip()[:1] in (b"{", b"[") and (spans.MARK in head or bench.MARK in head)


def measured_requests(path: str | PathLike[str]) -> MeasuredRequests:
    """The requests of a file, or those that `etude serve` predicted."""
    place = Path(path)
    if served.is_served(place):
        return served.read_served(place)
    if not place.is_file():
        raise UsageError("there is no such file", where=str(path))
    if not holds_requests(place):
        raise FormatError("no requests that were measured", path=path, hint=f"known: {KNOWN}")
    heap, size = compressed.load(place, MAX_BYTES)
    data = heap[:size].tobytes()
    return (spans.read_spans if spans.MARK in data[:HEAD] else bench.read_bench)(data, place)

"""Requests from OpenTelemetry spans, as a collector's file exporter writes them: a line of OTLP JSON for each batch.

vLLM (`--otlp-traces-endpoint`) ends a span `llm_request` for each request, whose attributes have its times. SGLang
(`--enable-trace`) has a span for each request (`module` is `sglang::request`), and below it one for each thread and
stage; what its scheduler did is known from stages. Names of attributes and stages are those of vLLM 0.32 and SGLang
0.5.23; those of older versions that are known stand beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from etude.base.errors import FormatError
from etude.capture.ingest.requests.measured import MeasuredRequest, MeasuredRequests, floats, table_of

MARK: Final = b'"resourceSpans"'
VLLM_SPAN: Final = "llm_request"
SGLANG_MODULE: Final = "sglang::request"
STAGES: Final = ("prefill_waiting", "prefill_forward", "decode_loop")
MOST_PARENTS: Final = 8
Stage = tuple[int, int, int]
"""Start and end in ns, and its number among those of its name."""

_TOKENS: Final = {
    "prompt": ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens", "llm.usage.prompt_tokens"),
    "output": ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens", "llm.usage.completion_tokens"),
    "cached": ("gen_ai.usage.cached_tokens",),
}
_TTFT: Final = "gen_ai.latency.time_to_first_token"
_E2E: Final = "gen_ai.latency.e2e"
_QUEUE: Final = "gen_ai.latency.time_in_queue"
_PREFILL: Final = "gen_ai.latency.time_in_model_prefill"


class _Value(msgspec.Struct, rename="camel"):
    string_value: str | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None

    def plain(self) -> Any:
        return next((v for v in (self.string_value, self.int_value, self.double_value) if v is not None), None)


class _Attribute(msgspec.Struct):
    key: str = ""
    value: _Value = msgspec.field(default_factory=_Value)


class _Span(msgspec.Struct, rename="camel"):
    name: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    start_time_unix_nano: int | str = 0
    end_time_unix_nano: int | str = 0
    attributes: list[_Attribute] = []

    def interval(self) -> tuple[int, int]:
        """Start and end in ns since 1970."""
        start, end = int(self.start_time_unix_nano), int(self.end_time_unix_nano)
        if not 0 < start <= end < 1 << 63:
            raise ValueError
        return start, end

    def said(self) -> dict[str, Any]:
        return {one.key: one.value.plain() for one in self.attributes}


class _Scope(msgspec.Struct):
    spans: list[_Span] = []


class _Resource(msgspec.Struct, rename="camel"):
    scope_spans: list[_Scope] = []


class _Batch(msgspec.Struct, rename="camel"):
    resource_spans: list[_Resource] = []


@dataclass(slots=True)
class _Root:
    """The span of a request, and the stages below it."""

    name: str
    start_ns: int
    end_ns: int
    said: dict[str, Any]
    stages: dict[str, list[Stage]] = field(default_factory=dict)


@dataclass(slots=True)
class _Found:
    vllm: list[_Root] = field(default_factory=list)
    sglang: dict[str, _Root] = field(default_factory=dict)
    """By id of the span."""
    parent: dict[str, str] = field(default_factory=dict)
    stages: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    """Name, parent, start, end, number among spans of the same name."""


def read_spans(data: bytes, path: Path) -> MeasuredRequests:
    """Spans of a file; those of other services are ignored."""
    found = _Found()
    try:
        for batch in _batches(data, path):
            for resource in batch.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        _take(span, found)
        _attach(found)
        roots = found.vllm + _paired(list(found.sglang.values()))
        requests = [_of_vllm(root) for root in found.vllm]
        requests += [_of_sglang(root) for root in roots[len(found.vllm) :]]
    except (TypeError, ValueError, OverflowError):
        raise FormatError("times or tokens of its spans are not what they should be", path=path) from None
    if not requests:
        hint = "vllm serve --otlp-traces-endpoint URL; python -m sglang.launch_server --enable-trace"
        raise FormatError("no request of vLLM or SGLang among its spans", path=path, hint=hint)
    answered = [one for one in requests if one.latency_s is not None and one.output != 0]
    if not answered:
        raise FormatError("no request was answered", path=path)
    table, begin = table_of(answered)
    names = [name for name, some in (("vLLM spans", found.vllm), ("SGLang spans", found.sglang)) if some]
    return MeasuredRequests(
        table=table,
        source=", ".join(names),
        failed=len(requests) - len(answered),
        duration_s=float(floats(table, "finish_s").max()),
        begin_ns=begin,
    )


def _batches(data: bytes, path: Path) -> Iterator[_Batch]:
    """Batches of lines, of one object, or of a list of them."""
    decoder = msgspec.json.Decoder(_Batch)
    text = data.strip()
    try:
        if text[:1] == b"[":
            yield from msgspec.json.decode(text, type=list[_Batch])
            return
        lines = [line for line in text.split(b"\n") if line.strip()]
        if len(lines) > 1 and not lines[0].rstrip().endswith(b"}"):  # one object over several lines
            lines = [text]
        for line in lines:
            yield decoder.decode(line)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise FormatError(f"not spans in OTLP JSON: {problem}", path=path) from None


def _take(span: _Span, found: _Found) -> None:
    if span.name in STAGES:
        start, end = span.interval()
        number = span.said().get("decode_ct", len(found.stages)) if span.name == "decode_loop" else 0
        found.stages.append((span.name, span.parent_span_id, start, end, int(number)))
        return
    if span.name == VLLM_SPAN:
        said = span.said()
        if any(key.startswith("gen_ai.") for key in said):
            found.vllm.append(_Root(str(said.get("gen_ai.request.id", span.span_id)), *span.interval(), said))
            return
    if span.attributes:
        said = span.said()
        if said.get("module") == SGLANG_MODULE:
            found.sglang[span.span_id] = _Root(str(said.get("rid", span.span_id)), *span.interval(), said)
            return
    found.parent[span.span_id] = span.parent_span_id


def _attach(found: _Found) -> None:
    """Assigns each stage to the request above it."""
    for name, above, start, end, number in found.stages:
        for _ in range(MOST_PARENTS):
            if above in found.sglang:
                found.sglang[above].stages.setdefault(name, []).append((start, end, number))
                break
            above = found.parent.get(above, "")


def _paired(roots: list[_Root]) -> list[_Root]:
    """If one server reads prompts and another makes tokens, both have a span for a request, in one room: the one that
    ends last represents both, with the stages of both."""
    rooms: dict[str, list[_Root]] = {}
    for number, root in enumerate(roots):
        rooms.setdefault(str(root.said.get("bootstrap_room", f"alone {number}")), []).append(root)
    paired = []
    for members in rooms.values():
        last = max(members, key=lambda root: root.end_ns)
        for other in members:
            for name, some in other.stages.items() if other is not last else ():
                last.stages.setdefault(name, []).extend(some)
        last.start_ns = min(root.start_ns for root in members)
        paired.append(last)
    return paired


def _of_vllm(root: _Root) -> MeasuredRequest:
    """A span begins with the arrival. It ends when it is written, so the engine's own time is better."""
    latency = _seconds(root.said, _E2E)
    return MeasuredRequest(
        name=root.name,
        arrival_ns=root.start_ns,
        ttft_s=_seconds(root.said, _TTFT),
        latency_s=(root.end_ns - root.start_ns) / 1e9 if latency is None else latency,
        queue_s=_seconds(root.said, _QUEUE),
        prefill_s=_seconds(root.said, _PREFILL),
        prompt=_tokens(root.said, "prompt"),
        output=_tokens(root.said, "output"),
    )


def _of_sglang(root: _Root) -> MeasuredRequest:
    """Its prefill attribute counts from the hand-over to the scheduler, including the queue: stages separate them."""
    waits, reads = (root.stages.get(name, []) for name in STAGES[:2])
    ttft = _seconds(root.said, _TTFT)
    if ttft is None and reads:  # older than its gen_ai attributes: the first end of a prefill
        ttft = (min(reads)[1] - root.start_ns) / 1e9
    output = _tokens(root.said, "output")
    return MeasuredRequest(
        name=root.name,
        arrival_ns=root.start_ns,
        ttft_s=ttft,
        latency_s=(root.end_ns - root.start_ns) / 1e9,
        queue_s=_first_s(waits),
        prefill_s=_first_s(reads),
        prompt=_tokens(root.said, "prompt"),
        output=output,
        cached=_tokens(root.said, "cached"),
        itl_s=_gaps(reads, root.stages.get(STAGES[2], []), output),
    )


def _first_s(spans: list[Stage]) -> float | None:
    """Time of the first; more come from further ranks, or after a request lost its blocks."""
    return (min(spans)[1] - min(spans)[0]) / 1e9 if spans else None


def _gaps(reads: list[Stage], loops: list[Stage], output: int | None) -> list[float] | None:
    """Times between the ends of passes that made tokens, by their numbers, from any rank; None unless there is one for
    each token."""
    ends = {number: end for _, end, number in sorted(loops, reverse=True)}
    if output is None or not reads or not loops or len(ends) != output - 1:
        return None
    every = [min(reads)[1], *(ends[number] for number in sorted(ends))]
    return [(after - before) / 1e9 for before, after in pairwise(every)]


def _tokens(said: dict[str, Any], what: str) -> int | None:
    return next((int(said[key]) for key in _TOKENS[what] if key in said), None)


def _seconds(said: dict[str, Any], key: str) -> float | None:
    if key not in said:
        return None
    value = float(said[key])
    if not math.isfinite(value) or value < 0:
        raise ValueError
    return value

"""Requests from spans of vLLM and SGLang and from results of their benchmark clients.

The files of tests/golden/requests were written by the tracing code of vLLM 0.32.0 and SGLang 0.5.23 and OpenTelemetry's
exporter of OTLP JSON, driven with times chosen by hand; ids of the host were taken out. Its `bench` files were written
by the clients of these versions, against a small server that streams tokens at a fixed pace.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from etude.analyse.requests import request_metrics, request_rates
from etude.base.errors import EtudeError
from etude.capture.ingest.requests import holds_requests, measured_requests
from etude.surface.cli import main
from etude.world.serve import request_stream
from recorded import device_json, op, put

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "requests"
VLLM, SGLANG = GOLDEN / "vllm-0.32.0.jsonl", GOLDEN / "sglang-0.5.23.jsonl"


def column(path: Path, name: str) -> list[Any]:
    return measured_requests(path).table[name].to_pylist()


# -- spans of vLLM -----------------------------------------------------------------------------------------------------


def test_requests_of_vllm_come_in_order_of_arrival():
    # id: arrival, ttft, e2e, queue, prefill, tokens: 1: 0, 0.25, 1.25, 0.01, 0.2, 5; 3: 0.1, 0.125, 0.125, 0, 0.1, 1;
    # 2: 0.5, 0.5, 0.75, 0.2, 0.25, 2
    found = measured_requests(VLLM)
    assert found.source == "vLLM spans" and found.failed == 0 and found.duration_s == pytest.approx(1.25)
    assert column(VLLM, "request") == ["chatcmpl-1", "chatcmpl-3", "chatcmpl-2"]
    assert column(VLLM, "arrival_s") == pytest.approx([0, 0.1, 0.5], abs=1e-6)
    assert column(VLLM, "prompt") == [128, 64, 1024] and column(VLLM, "output") == [5, 1, 2]
    assert column(VLLM, "ttft_s") == [0.25, 0.125, 0.5]
    assert column(VLLM, "tpot_s") == [pytest.approx(1.0 / 4), None, pytest.approx(0.25)]
    assert column(VLLM, "queue_s") == pytest.approx([0.01, 0, 0.2])
    assert column(VLLM, "prefill_s") == pytest.approx([0.2, 0.1, 0.25])
    assert column(VLLM, "first_token_s") == pytest.approx([0.25, 0.225, 1.0], abs=1e-6)
    assert column(VLLM, "itl_s") == [None] * 3 and column(VLLM, "cached") == [None] * 3


def test_the_same_spans_in_other_wrappings(tmp_path: Path):
    batch = json.loads(VLLM.read_text())
    wrapped = {
        "one.json": json.dumps(batch, indent=2), "list.json": json.dumps([batch]), "log": f"\n{json.dumps(batch)}\n\n",
    }  # fmt: skip
    for name, text in wrapped.items():
        (tmp_path / name).write_text(text)
        assert measured_requests(tmp_path / name).table.equals(measured_requests(VLLM).table), name
    (tmp_path / "s.jsonl.gz").write_bytes(gzip.compress(VLLM.read_bytes()))
    assert measured_requests(tmp_path / "s.jsonl.gz").table.equals(measured_requests(VLLM).table)


def spans(*rows: dict[str, Any]) -> str:
    """A line of OTLP JSON; of each span its attributes but for name, id, parent, start and end."""
    made = []
    for number, row in enumerate(rows):
        said = {key: value for key, value in row.items() if key not in ("name", "id", "parent", "at")}
        value = {str: "stringValue", int: "intValue", float: "doubleValue"}
        attributes = [
            {"key": key, "value": {value[type(v)]: str(v) if isinstance(v, int) else v}} for key, v in said.items()
        ]
        start, end = row.get("at", (1.0, 2.0))
        made.append(
            {
                "name": row["name"], "spanId": row.get("id", f"{number:016x}"), "parentSpanId": row.get("parent", ""),
                "startTimeUnixNano": str(round(start * 1e9)), "endTimeUnixNano": str(round(end * 1e9)),
                "attributes": attributes,
            }
        )  # fmt: skip
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": made}]}]}) + "\n"


def test_what_a_span_does_not_say_is_null(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    old = {"name": "llm_request", "gen_ai.request.id": "a", "llm.usage.prompt_tokens": 7, "at": (10.0, 12.5)}
    other = {"name": "GET /health", "at": (1.0, 0.5)}  # another service's, however odd
    path.write_text(spans(other, old))
    row = measured_requests(path).table.to_pylist()[0]
    assert row["latency_s"] == 2.5 and row["prompt"] == 7  # as long as the span
    assert row["ttft_s"] is None and row["tpot_s"] is None and row["output"] is None
    with pytest.raises(EtudeError, match="no `output` tokens of some requests"):
        request_stream(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (spans({"name": "other"}), "no request of vLLM or SGLang"),
        (spans({"name": "llm_request", "gen_ai.latency.e2e": -1.0}), "not what they should be"),
        (spans({"name": "llm_request", "gen_ai.latency.e2e": "soon"}), "not what they should be"),
        (spans({"name": "llm_request", "gen_ai.request.id": "a", "at": (2.0, 1.0)}), "not what they should be"),
        (spans({"name": "llm_request", "gen_ai.usage.completion_tokens": 0}), "no request was answered"),
        ('{"resourceSpans": [{"scopeSpans": 3}]}', "not spans in OTLP JSON"),
        ('{"resourceSpans": [', "not spans in OTLP JSON"),
        ('{"other": 1}', "no requests that were measured"),
    ],
)
def test_bad_spans_are_refused(tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "s.jsonl"
    path.write_text(text)
    assert main(["requests", str(path)]) == 2
    assert said in capsys.readouterr().err


# -- spans of SGLang ---------------------------------------------------------------------------------------------------


def test_requests_of_sglang_have_stages():
    # Scheduled 1.5 ms after they entered the queue (the third: 0.5); tokens of the first 10, 12, 14 and 16 ms apart.
    found = measured_requests(SGLANG)
    assert found.source == "SGLang spans"
    assert column(SGLANG, "arrival_s") == pytest.approx([0, 0.03, 0.2], abs=1e-6)
    assert column(SGLANG, "ttft_s") == pytest.approx([0.06, 0.08, 0.03], abs=1e-6)
    assert column(SGLANG, "queue_s") == pytest.approx([0.0015, 0.0015, 0.0005], abs=1e-6)
    assert column(SGLANG, "prefill_s") == pytest.approx([0.054, 0.074, 0.025], abs=1e-6)
    assert column(SGLANG, "prompt") == [64, 512, 32] and column(SGLANG, "cached") == [0, 128, 0]
    first, second, third = column(SGLANG, "itl_s")
    assert first == pytest.approx([0.01, 0.012, 0.014, 0.016], abs=1e-6)
    assert second == pytest.approx([0.01, 0.012], abs=1e-6) and third is None
    assert column(SGLANG, "tpot_s")[0] == pytest.approx((0.112 - 0.06) / 4, abs=1e-6)


def sglang(rid: str, at: tuple[float, float], **said: Any) -> dict[str, Any]:
    return {"name": f" Req {rid}", "id": rid, "module": "sglang::request", "rid": rid, "at": at} | said


def test_sglang_before_it_wrote_tokens(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    thread = {"name": "Scheduler", "id": "t", "parent": "r"}
    reads = [{"name": "prefill_forward", "parent": "t", "at": (s, s + 0.5)} for s in (3.0, 1.25)]  # the later: again
    path.write_text(spans(*reads, thread, sglang("r", (1.0, 5.0))))
    row = measured_requests(path).table.to_pylist()[0]
    assert row["ttft_s"] == 0.75 and row["prefill_s"] == 0.5 and row["latency_s"] == 4.0
    assert row["queue_s"] is None and row["output"] is None


def test_a_prefill_and_a_decode_server_are_one_request(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    room = {"bootstrap_room": "0x2a"}
    path.write_text(
        spans(
            sglang("p", (1.0, 2.0), **room) | {"gen_ai.usage.completion_tokens": 1},
            sglang("d", (1.0, 4.0), **room)
            | {"gen_ai.usage.completion_tokens": 3, "gen_ai.latency.time_to_first_token": 2.0},
            {"name": "prefill_waiting", "parent": "p", "at": (1.0, 1.25)},
            {"name": "decode_loop", "parent": "d", "at": (3.0, 4.0), "decode_ct": 0},
        )
    )
    (row,) = measured_requests(path).table.to_pylist()
    assert row["request"] == "d" and row["output"] == 3 and row["queue_s"] == 0.25 and row["tpot_s"] == 0.5
    assert row["itl_s"] is None  # one pass of the two is not in the file


# -- benchmark clients -------------------------------------------------------------------------------------------------


def result(**changed: Any) -> str:
    lists = {
        "input_lens": [100, 5, 300], "output_lens": [3, 0, 1], "ttfts": [0.2, 0.0, 0.4], "itls": [[0.1, 0.3], [], []],
        "errors": ["", "lost", ""],
    }  # fmt: skip
    return json.dumps({"request_throughput": 0.5, "duration": 4.0} | lists | changed)


def test_a_result_of_vllm(tmp_path: Path):
    path = tmp_path / "r.json"
    path.write_text(result(endpoint_type="vllm", start_times=[9.0, 9.5, 8.5]))
    found = measured_requests(path)
    assert found.source == "vllm bench serve" and found.failed == 1
    assert found.table["request"].to_pylist() == ["2", "0"] and found.table["arrival_s"].to_pylist() == [0, 0.5]
    assert found.table["latency_s"].to_pylist() == pytest.approx([0.4, 0.6])  # of a file without `latencies`
    path.write_text(result(endpoint_type="vllm", start_times=[9.0, 9.5, 8.5], latencies=[0.8, 0.0, 0.5]))
    assert measured_requests(path).table["tpot_s"].to_pylist() == [None, pytest.approx(0.3)]


def test_percentiles_are_those_that_the_clients_print():
    # vLLM's lists have whole answers; those of SGLang end with the last token, 37 us before the client's end.
    for name, off in (("vllm-bench-0.32.0.json", 1e-12), ("sglang-bench-0.5.23.jsonl", 1e-3)):
        said = json.loads((GOLDEN / name).read_text())
        found = measured_requests(GOLDEN / name)
        assert len(found.table) == said["completed"] == 8 and found.duration_s == said["duration"]
        rows = {row["metric"]: row for row in request_metrics(found.table).to_pylist()}
        for metric in ("ttft", "tpot", "itl"):
            mine = rows[f"{metric}_s"]
            theirs = [said[f"{statistic}_{metric}_ms"] / 1e3 for statistic in ("mean", "median", "p99")]
            assert [mine["mean"], mine["p50"], mine["p99"]] == pytest.approx(theirs, rel=off)
        rates = request_rates(found.table, found.duration_s)
        assert rates["requests_per_s"] == pytest.approx(said["request_throughput"])
        assert rates["output_tokens_per_s"] == pytest.approx(said["output_throughput"])
    assert request_stream(GOLDEN / "vllm-bench-0.32.0.json").prompt.tolist() == [10 * k for k in range(1, 9)]
    assert request_stream(GOLDEN / "sglang-bench-inf-0.5.23.jsonl").arrival_ns.tolist() == [0] * 8


def test_a_result_of_sglang_has_no_arrivals(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    path.write_text(result(tag=None, request_rate=4.0))
    found = measured_requests(path)
    assert found.source == "sglang.bench_serving" and found.table["arrival_s"].null_count == 2
    assert found.table["finish_s"].null_count == 2 and found.table["ttft_s"].to_pylist() == [0.2, 0.4]
    with pytest.raises(EtudeError, match="--lengths FILE"):
        request_stream(path)
    drawn = request_stream(like=path, rate_per_s=4.0, count=50, seed=1)
    assert len(drawn) == 50 and drawn.prompt.max() <= 300 and set(drawn.output.tolist()) <= {1, 2, 3}
    path.write_text(result(tag=None, request_rate=float("inf")))  # `Infinity`, as the client writes it
    assert request_stream(path).arrival_ns.tolist() == [0, 0]
    path.write_text(result(tag=None, request_rate=float("inf"), max_concurrency=1))
    with pytest.raises(EtudeError, match="start_times"):
        request_stream(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (result(itls=[[], []]), "`itls` has 2 entries"),
        (result(ttfts=["x", 0, 1]), "not numbers"),
        (result(ttfts=[float("nan"), 0, 1]), "not numbers"),
        (result(itls=[3, [], []]), "not numbers"),
        (result(ttfts=[]), "`ttfts` has 0 entries"),
        (result(errors=7), "`errors` is not a list"),
        (result(errors=["a", "b", "c"]), "no request was answered"),
        (result(ttfts=None), "--save-detailed"),
        (result(tag="x", ttfts=None), "--output-details"),
        (f"{result()}\n{result()}\n", "holds 2 runs"),
    ],
)
def test_bad_results_are_refused(tmp_path: Path, text: str, said: str):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(EtudeError, match=said):
        measured_requests(path)


# -- percentiles, the command, and serving again -----------------------------------------------------------------------


def test_percentiles_and_rates_by_hand():
    rows = {row.pop("metric"): row for row in request_metrics(measured_requests(VLLM).table).to_pylist()}
    # Of 0.125, 0.25, 0.5: the 90th lies 0.8 of the way from 0.25 to 0.5.
    assert rows["ttft_s"]["p50"] == 0.25 and rows["ttft_s"]["p90"] == pytest.approx(0.45)
    assert rows["ttft_s"]["mean"] == pytest.approx(0.875 / 3) and rows["tpot_s"]["count"] == 2
    assert "itl_s" not in rows and rows["queue_s"]["max"] == pytest.approx(0.2)
    gaps = {row["metric"]: row for row in request_metrics(measured_requests(SGLANG).table).to_pylist()}["itl_s"]
    assert gaps["count"] == 6 and gaps["p50"] == pytest.approx(0.012, abs=1e-6)  # of 10, 10, 12, 12, 14, 16 ms
    rates = request_rates(measured_requests(VLLM).table, 2.0)
    assert rates["requests_per_s"] == 1.5 and rates["output_tokens_per_s"] == 4.0 and rates["prompt_tokens"] == 1216


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["requests", str(VLLM), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["requests"] == 3 and record["ttft_s"]["p50"] == 0.25
    assert main(["requests", str(VLLM), str(SGLANG)]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("ttft_s") == 2 and "2.4 requests/s over 1.25 s" in shown.err
    assert main(["requests", str(VLLM), "--each", "--csv"]) == 0
    assert "chatcmpl-3" in capsys.readouterr().out
    assert main(["requests", str(tmp_path / "none")]) == 2


def test_measured_requests_are_served_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert holds_requests(VLLM) and not holds_requests(__file__)
    stream = request_stream(VLLM)
    assert stream.arrival_ns.tolist() == pytest.approx([0, 100_000_000, 500_000_000], abs=1000)
    asked = ["serve", "llama3-8b", "--system", "dgx-h100"]
    assert main([*asked, "--requests", str(VLLM), "-o", str(tmp_path / "served")]) == 0
    capsys.readouterr()
    assert main(["requests", str(VLLM), str(tmp_path / "served"), "--json"]) == 0
    measured, predicted = json.loads(capsys.readouterr().out)
    assert predicted["source"] == "etude serve" and predicted["output_tokens"] == measured["output_tokens"] == 8
    assert 0 < predicted["ttft_s"]["mean"] < 1 and predicted["tpot_s"]["count"] == 2
    assert main([*asked, "--run", str(VLLM), "--json"]) == 0
    beside = json.loads(capsys.readouterr().out)
    assert beside["measured"]["ttft_s"] == pytest.approx(0.875 / 3)
    assert beside["predicted"]["ttft_s"] == pytest.approx(predicted["ttft_s"]["mean"])


# -- passes of a profiler in the time of a request ---------------------------------------------------------------------


def engine_trace(path: Path, base_ns: int) -> Path:
    """Passes of 1 s each, from 9 s on: two read prompts, then four make tokens, the third of which reads, too."""
    names = (
        ["step[EXTEND bs=1 toks=9]"] * 2 + ["step[DECODE bs=1]"] * 2 + ["step[MIXED bs=2 c=1 g=1]", "step[DECODE bs=2]"]
    )
    events = [op(name, (9 + k) * 1_000_000, 900_000, k + 1, cat="user_annotation") for k, name in enumerate(names)]
    put(path, device_json(*events) | {"baseTimeNanoseconds": base_ns})
    return path


def vllm_span(name: str, at: float, queue: float, ttft: float, e2e: float) -> dict[str, Any]:
    said = {"time_in_queue": queue, "time_to_first_token": ttft, "e2e": e2e}
    return {"name": "llm_request", "gen_ai.request.id": name, "at": (at, at + e2e)} | {
        f"gen_ai.latency.{key}": value for key, value in said.items()
    }


def test_passes_in_the_time_of_a_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    base = 1_790_000_000
    trace = engine_trace(tmp_path / "t.json.gz", base * 10**9)
    path = tmp_path / "s.jsonl"
    # a: scheduled at 9, first token at 10.95, done at 14.5. b: scheduled at 13, first token at 13.95. c: before it all.
    path.write_text(
        spans(
            vllm_span("c", base + 1.0, 0.0, 1.0, 1.5),
            vllm_span("a", base + 8.5, 0.5, 2.45, 6.0),
            vllm_span("b", base + 12.0, 1.0, 1.95, 2.9),
        )
    )
    assert main(["requests", str(path), "--passes", str(trace), "--json"]) == 0
    rows = {row["request"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["a"]["prefill_passes"], rows["a"]["decode_passes"]) == (2, 4)  # at 9 and 10; at 11, 12, 13, 14
    assert (rows["b"]["prefill_passes"], rows["b"]["decode_passes"]) == (1, 1)  # at 13; at 14
    assert (rows["c"]["prefill_passes"], rows["c"]["decode_passes"]) == (None, None)
    assert main(["requests", str(path), "--passes", str(engine_trace(tmp_path / "u.json.gz", 0))]) == 2
    assert "not since 1970" in capsys.readouterr().err
    far = engine_trace(tmp_path / "v.json.gz", (base + 500) * 10**9)
    assert main(["requests", str(path), "--passes", str(far)]) == 2
    assert "no request is within the recording" in capsys.readouterr().err

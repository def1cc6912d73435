"""Device traces: exact times, and every kind of event as columns."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.base.errors import FormatError
from etude.capture.link import scan_kernels as k
from etude.model.schema import UNKNOWN
from etude.model.text import pad
from recorded import device_json, event, kernel, launch, op, read_device_json


def ns(text: str) -> int:
    return int(k.parse_time(pad(text.encode()), 0)[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("3845794888531.602", 3845794888531602),
        ("1689180447559362", 1689180447559362000),
        ("1689180447559362.257", 1689180447559362257),
        ("0.001", 1),
        ("-1.5", -1500),
        ('"12.25"', 12250),
        ("0.0004", 0),
        ("0.0005", 1),
        ("1e3", 1000000),
        ("1.6891804475593625E15", 1689180447559362500),
        ("25e-4", 3),
        ("1e300", UNKNOWN),
        ("null", UNKNOWN),
    ],
)
def test_times_are_whole_nanoseconds(text: str, expected: int) -> None:
    assert ns(text) == expected


@given(st.decimals(min_value=-(2**52), max_value=2**52, places=3, allow_nan=False))
def test_no_digit_of_a_time_is_lost(us: Decimal) -> None:
    assert ns(f"{us:f}") == int(us * 1000)


@given(st.integers(0, 2**52), st.text("0123456789", min_size=1, max_size=12))
def test_below_a_nanosecond_halves_go_up(whole: int, fraction: str) -> None:
    exact = Decimal(f"{whole}.{fraction}") * 1000
    assert ns(f"{whole}.{fraction}") == int(exact.quantize(Decimal(1), ROUND_HALF_UP))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 7),
        ("-7", -7),
        ('"12"', 12),
        ("true", 1),
        ("false", 0),
        ("18446744073709551615", -1),
        ('"t3"', UNKNOWN),
        ('"3 of 4"', UNKNOWN),
        ('"0x1f"', UNKNOWN),
        ("null", UNKNOWN),
    ],
)
def test_numbers_and_what_only_looks_like_one(text: str, expected: int) -> None:
    assert int(k.parse_int(pad(text.encode()), 0)[0]) == expected


def test_events_are_rows() -> None:
    trace = read_device_json(
        device_json(
            op("aten::mm", 10.5, 20.25, rf=3),
            launch(12.0, correlation=77),
            kernel("gemm", 15.125, 8, correlation=77, rf=3, stream=13),
            {"ph": "s", "id": 77, "pid": 7, "tid": 7, "ts": 12, "cat": "ac2g", "name": "ac2g"},
            {"ph": "M", "name": "process_name", "pid": "Spans", "tid": 0, "args": {"name": "python"}},
            {"ph": "M", "name": "process_labels", "pid": "Spans", "tid": 0, "args": {"labels": "CPU"}},
            baseTimeNanoseconds=1790857026000000000,
            distributedInfo={"backend": "nccl", "rank": 1, "world_size": 4},
        )
    )
    assert trace.base_ns == 1790857026000000000
    assert trace.distributed["rank"] == 1
    assert trace.start_ns.tolist()[:4] == [10500, 12000, 15125, 12000]
    assert trace.duration_ns.tolist()[:4] == [20250, 1000, 8000, UNKNOWN]
    assert (trace.rf_id[0], trace.external_id[0], trace.external_id[2]) == (3, 1003, 1003)
    assert (trace.correlation[1], trace.correlation[2], trace.stream[2], trace.device[2]) == (77, 77, 13, 0)
    assert (trace.flow[3], trace.phases[trace.phase[3]]) == (77, "s")
    assert trace.pid[4] == trace.pid[5]
    assert trace.identity(int(trace.pid[4])) == "Spans"
    assert trace.texts("label")[2] == ("python",)
    assert trace.is_category("kernel").tolist() == [False, False, True, False, False, False]


def test_what_few_events_carry_is_kept_apart() -> None:
    comm = {"Collective name": "allreduce", "Process Group Name": "1", "In msg nelems": 64, "Src Rank": 2}
    wait = {"cuda_sync_kind": "Stream Wait Event", "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 12}
    trace = read_device_json(
        device_json(
            kernel("ncclDevKernel_AllReduce", 1, 1, 5, 1, **comm),
            event("cuda_sync", "Stream Wait Event", 2, 1, 7, **wait),
            event("cpu_instant_event", "[memory]", 3, 0, 7, Addr=140000000, Bytes=-512),
            event("python_function", "nn.Module: Linear_0", 4, 1, 7, **{"Python id": 5, "Python parent id": 4}),
        )
    )
    assert trace.texts("collective_name")[2] == ("allreduce",)
    assert [list(map(int, trace.rare[c][1])) for c in ("in_msg_nelems", "src_rank", "wait_on_stream")] == [
        [64],
        [2],
        [7],
    ]
    assert trace.spread("wait_on_record_correlation").tolist() == [UNKNOWN, 12, UNKNOWN, UNKNOWN]
    assert trace.rare["memory_bytes"][1].tolist() == [-512]
    assert trace.rare["python_parent"][0].tolist() == [3]


def test_a_bare_list_and_odd_text_read() -> None:
    events = [op('name "with" quotes \\ and \u00b5 \u4e2d', 1, 2, rf=1), op("plain", 3, 1, rf=2)]
    for text in (
        json.dumps(events),
        json.dumps(events, ensure_ascii=False),
        json.dumps({"traceEvents": events}, indent=2),
    ):
        trace = read_device_json(text.encode())
        assert trace.names == ('name "with" quotes \\ and \u00b5 \u4e2d', "plain")
    raw = b'{"traceEvents": [{"ph": "X", "name": "a\tb\xff", "ts": 1, "dur": nan}]}'
    trace = read_device_json(raw)
    assert trace.names == ("a\tb\ufffd",)
    assert trace.duration_ns[0] == UNKNOWN


@given(st.data())
def test_damage_is_an_error_with_a_place_or_nothing(data: st.DataObject) -> None:
    text = bytearray(json.dumps(device_json(op("a", 1, 2, rf=1), kernel("k", 2, 3, 4, 1))).encode())
    if data.draw(st.booleans()):
        del text[data.draw(st.integers(0, len(text) - 1)) :]
    else:
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    said = ""
    try:
        read_device_json(bytes(text), "d.json")
    except FormatError as problem:
        said = str(problem)
    assert not said or said.startswith("d.json: ")


def device_files(shared: Path) -> list[Path]:
    found = [
        *shared.glob("traces/**/*kineto.json.gz"),
        *shared.glob("oracle/chakra_official/**/device*.json.gz"),
        *shared.glob("oracle/hta/inputs/*.json.gz"),
    ]
    return sorted(p for p in found if not p.name.startswith("big_"))


def test_every_recorded_device_trace_reads(shared: Path) -> None:
    from etude.capture.ingest.reading import load_device

    files = device_files(shared)
    assert len(files) > 80
    for path in files:
        trace = load_device(path)
        complete = trace.is_phase("X")
        assert complete.any(), path
        assert (trace.start_ns[complete] != UNKNOWN).all(), path
        assert (trace.duration_ns[complete] != UNKNOWN).all(), path


@given(st.lists(st.sampled_from(["a", "ab", 'a"b', "", 1, 12, [1], [1, 2], {"a": 1}]), max_size=30), st.integers(1, 3))
def test_names_that_come_again_are_the_same_ones(names: list[object], times: int) -> None:
    events = [{"ph": "X", "name": name, "ts": 1} for name in names * times]
    device = read_device_json({"traceEvents": events})
    told = [name if isinstance(name, str) else json.dumps(name) for name in names * times]
    assert [device.names[code] for code in device.name] == told
    assert len(set(device.name.tolist())) == len(set(map(repr, names)))

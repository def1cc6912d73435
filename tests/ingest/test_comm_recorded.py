"""Calls of `torch.distributed` that `etude collect` wrote down, in tiny traces: threads, groups, peers, order."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.base.errors import FormatError
from etude.capture.ingest.causal import convert
from etude.capture.ingest.collectives import Communications, communications
from etude.capture.ingest.comm_recorded import RecordedCall, read_calls
from etude.capture.link.device import DeviceTrace, RecordedTimes
from etude.capture.link.host import HostTrace
from etude.model.schema import Kind
from recorded import device_json, host_json, node, op, read_device_json, read_host_json

GROUPS = [{"pg_name": "0", "ranks": [0, 1, 2, 3]}, {"pg_name": "5", "ranks": [1, 3]}, {"pg_name": "6", "ranks": [0, 1]}]


def c10d(id: int, name: str, rf_id: int, *rest: int, size: int = 64, tid: int = 1) -> dict[str, Any]:
    values, types = (
        [[[7, 8, 0, size, 4, "cpu"]], "<Object>", *rest],
        ["GenericList[Tensor(float)]", "Object", "Int", "Int"],
    )
    return node(id, f"c10d::{name}", 2, rf_id, tid, inputs=(values, [], types))


def work(id: int, name: str, rf_id: int, size: int, tid: int = 1) -> dict[str, Any]:
    inputs = ([[7, 8, 0, size, 4, "cpu"]], [[size]], ["Tensor(float)"])
    return node(id, f"gloo:{name}", 2, rf_id, tid, inputs=inputs)


def ran(name: str, ts: float, dur: float, rf: int, tid: int) -> dict[str, Any]:
    return op(f"gloo:{name}", ts, dur, rf, tid=tid, cat="user_annotation")


def called(name: str, ts: int, **more: Any) -> RecordedCall:
    """A call from 1 us before an event of 5 us until 1 us after it."""
    about = {"thread": 7, "returned_ns": 1000 * (ts + 6)} | more
    return RecordedCall(name=name, issued_ns=1000 * (ts - 1), **about)


def ends(table: Communications) -> list[tuple[str | None, int, int]]:
    groups = [table.groups[g][0] if g >= 0 else None for g in table.group]
    return list(zip(groups, table.src.tolist(), table.dst.tolist(), strict=True))


def messages() -> tuple[HostTrace, DeviceTrace]:
    """Rank 1 sends to the second and receives from the first member of two groups."""
    host = host_json(c10d(4, "send", 10, 1, 9), c10d(5, "recv_", 11, 0, 9))
    return read_host_json(host), read_device_json(
        device_json(op("c10d::send", 10, 5, 10), op("c10d::recv_", 20, 5, 11))
    )


def test_peers_are_those_of_the_call_where_a_rank_is_in_several_groups() -> None:
    recorded = [called("send", 10, group="5", peer=3, tag=9), called("recv", 20, group="6", peer=0, tag=9)]
    without = communications(*messages(), rank=1, groups=GROUPS)
    assert ends(without) == [(None, 1, -1), (None, -1, 1)]
    table = communications(*messages(), rank=1, groups=GROUPS, recorded=recorded)
    assert ends(table) == [("5", 1, 3), ("6", 0, 1)]


def test_calls_of_other_threads_and_types_are_not_taken() -> None:
    recorded = [called("send", 10, group="5", peer=3, thread=8), called("allreduce", 20, group="6")]
    assert [group for group, _, _ in ends(communications(*messages(), rank=1, groups=GROUPS, recorded=recorded))] == [
        None, None,
    ]  # fmt: skip


def test_a_call_of_cpp_in_between_is_the_one_of_the_flight_recorder() -> None:
    """Three all-reduces of one thread, of which Python made the first and the last."""
    host = read_host_json(host_json(*(c10d(4 + k, "allreduce_", 10 + k) for k in range(3))))
    device = read_device_json(device_json(*(op("c10d::allreduce_", 10 + 10 * k, 5, 10 + k) for k in range(3))))
    unseen = RecordedCall(name="gloo:all_reduce", issued_ns=22_000, group="6", sequence=4)
    recorded = [called("allreduce", 10, group="5"), unseen, called("allreduce", 30, group="5")]
    table = communications(host, device, rank=1, groups=GROUPS, recorded=recorded)
    assert [group for group, _, _ in ends(table)] == ["5", "6", "5"]
    assert table.sequence.tolist()[1] == 4


def test_calls_are_found_by_recorded_times_where_a_light_window_gave_others() -> None:
    """A pipeline beside data parallelism: Python sent and received, C++ reduced in between."""
    host = read_host_json(host_json(c10d(4, "send", 10, 1, 9), c10d(5, "allreduce_", 11), c10d(6, "recv_", 12, 0, 9)))
    events = [op("c10d::send", 10, 5, 10), op("c10d::allreduce_", 20, 5, 11), op("c10d::recv_", 30, 5, 12)]
    device = read_device_json(device_json(*events))
    light = np.zeros(len(device), bool)
    recorded = RecordedTimes(device.start_ns, device.duration_ns, device.base_ns, light)
    moved = replace(device, start_ns=device.start_ns // 3, base_ns=device.base_ns + 10**9, recorded=recorded)
    reduced = RecordedCall(name="gloo:all_reduce", issued_ns=22_000, group="6", sequence=4)
    calls = [called("send", 10, group="5", peer=3), reduced, called("recv", 30, group="5", peer=3)]
    for timed in (device, moved):
        table = communications(host, timed, rank=1, groups=GROUPS, recorded=calls)
        assert ends(table) == [("5", 1, 3), ("6", -1, -1), ("5", 3, 1)]


def overlapping(second_us: float, first_us: float) -> tuple[HostTrace, DeviceTrace]:
    """Two all-reduces that one thread requests, carried out by two of gloo's, of which the second begins first."""
    host = host_json(
        c10d(4, "allreduce_", 10, size=96), c10d(5, "allreduce_", 12, size=2),
        work(6, "all_reduce", 13, 2), work(7, "all_reduce", 11, 96),
    )  # fmt: skip
    device = device_json(
        op("c10d::allreduce_", 10, 5, 10), op("c10d::allreduce_", 20, 5, 12),
        ran("all_reduce", 30, second_us, 13, 8), ran("all_reduce", 31, first_us, 11, 9),
    )  # fmt: skip
    return read_host_json(host), read_device_json(device)


@pytest.mark.parametrize(("second_us", "first_us"), [(1, 9), (9, 1), (9, 8), (9, 9)])
@pytest.mark.parametrize("with_host", [True, False])
def test_rows_of_overlapping_collectives_are_in_the_order_of_their_calls(
    second_us: float, first_us: float, *, with_host: bool
) -> None:
    host, device = overlapping(second_us, first_us)
    trace = convert(device, host if with_host else None, rank=0, groups=[{"pg_name": "0", "ranks": [0, 1]}]).part.trace
    rows = [i for i in range(len(trace)) if trace.kind[i] == Kind.COLL]
    ends_of = dict(zip(trace.rf_id.tolist(), range(len(trace)), strict=True))
    assert rows == [ends_of[11], ends_of[13]]
    assert all(source < target for target in range(len(trace))
               for source in trace.data[trace.data_start[target] : trace.data_start[target + 1]])  # fmt: skip


@pytest.mark.parametrize("number", ["sequence", "operation"])
def test_numbers_come_before_times(number: str) -> None:
    """Two threads call one group: the second to begin its call was the first to be numbered."""
    host = host_json(
        c10d(4, "allreduce_", 10, size=96), c10d(5, "allreduce_", 11, size=2, tid=2),
        work(6, "all_reduce", 12, 2, tid=2), work(7, "all_reduce", 13, 96),
    )  # fmt: skip
    device = device_json(
        op("c10d::allreduce_", 10, 5, 10), op("c10d::allreduce_", 11, 5, 11, tid=70),
        ran("all_reduce", 30, 5, 12, 8), ran("all_reduce", 40, 5, 13, 9),
    )  # fmt: skip
    both = read_host_json(host), read_device_json(device)
    recorded = [
        called("allreduce", 10, group="0", **{number: 8}),
        called("allreduce", 11, group="0", thread=70, **{number: 7}),
    ]
    assert communications(*both, rank=0, groups=GROUPS).in_bytes.tolist() == [384, 8]
    table = communications(*both, rank=0, groups=GROUPS, recorded=recorded)
    assert table.in_bytes.tolist() == [8, 384]
    assert table.work.tolist() == [
        2,
        3,
    ]  # each the work of its own thread's call, though both ids come after both calls


def test_one_unknown_number_leaves_the_order_of_times() -> None:
    host, device = overlapping(9, 1)
    recorded = [called("allreduce", 10, group="0", sequence=8), called("allreduce", 20, group="0")]
    table = communications(host, device, rank=0, groups=GROUPS, recorded=recorded)
    assert table.in_bytes.tolist() == [384, 8]


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "trace.rank0.c10d.json.gz"
    row = {"name": "send", "group": "5", "issued_ns": 3, "peer": 3, "device": "cpu", "completed_ns": None}
    path.write_bytes(gzip.compress(json.dumps({"format": 1, "rank": 0, "calls": [row, row]}).encode()))
    first, second = read_calls(path)
    assert (first, first.peer, first.thread) == (second, 3, None)
    too_large = json.dumps({"calls": [row | {"tag": 2**63}]})
    for damage in (
        too_large,
        "[]",
        '{"calls": [{"name": 3}]}',
        '{"calls": [{"name": "", "group": "", "issued_ns": -1}]}',
        "{",
    ):
        path.write_bytes(gzip.compress(damage.encode()))
        with pytest.raises(FormatError, match="communication calls"):
            read_calls(path)

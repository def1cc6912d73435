"""The official rules, each by hand; and the official tools' own files, byte for byte."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import chakra_pb as pb
from etude.base.errors import MismatchError, TraceError
from etude.capture.ingest import official, reading
from etude.capture.ingest.official import trace as official_trace
from etude.model.schema import Collective, Kind
from etude.model.trace import Trace
from etude.store import chakra
from etude.surface.cli import main
from recorded import (
    device_json,
    host_json,
    kernel,
    launch,
    node,
    op,
    read_device_json,
    read_host_json,
)

GOLDEN = [
    *((f"h200_nccl/{run}/{{}}.{rank}.json.gz", f"h200_nccl/{run}/chakra_trace.{rank}.et.gz")
      for run, ranks in (("sync", 1), ("fsdp", 4)) for rank in range(ranks)),
    ("h200_gpt_train/{}.0.json.gz", "h200_gpt_train/chakra_trace.0.et.gz"),
    ("cpu_torch213/{}.0.json.gz", "cpu_torch213/chakra_trace.0.et.gz"),
]  # fmt: skip
HOST_ONLY = ["host_only/1.0.3", "host_only/1.1.1_pt2", "official_tests/1.0.2-chakra.0.0.4"]
TENSOR = ([[11, 2, 0, 256, 4, "cuda:0"]], [[256]], ["Tensor(float)"])


def converted(host: Any, device: Any = None) -> Trace:
    device_trace = None if device is None else read_device_json(device)
    return official.convert(read_host_json(host), device_trace)[0].trace


def names(trace: Trace) -> list[str]:
    return [trace.text("name", i) for i in range(len(trace))]


def waits_for(trace: Trace, name: str) -> list[str]:
    i = names(trace).index(name)
    return [trace.text("name", int(d)) for d in trace.data[trace.data_start[i] : trace.data_start[i + 1]]]


def attribute(trace: Trace, name: str, attr: str) -> Any:
    return {a.name: value for a, value in trace.attributes(names(trace).index(name))}.get(attr)


# -- rules -------------------------------------------------------------------------------------------------------------


def test_a_thread_is_one_chain_and_a_kernel_hangs_on_its_operator() -> None:
    host = host_json(node(4, "child", 3, rf_id=2), node(3, "parent", 2, rf_id=1), node(5, "next", 2, rf_id=3))
    device = device_json(
        op("parent", 0, 100, rf=1),
        op("child", 10, 30, rf=2),
        op("next", 110, 10, rf=3),
        launch(15, 50),
        kernel("gemm", 40, 25.9, 50, rf=2, stream=13),
    )
    trace = converted(host, device)
    assert names(trace)[1:] == ["parent", "child", "gemm", "next"]  # the process has gone, the thread is first
    assert trace.source_id.tolist() == [1, 2, 3, 4, 5]
    assert waits_for(trace, "child") == ["parent"]
    assert waits_for(trace, "gemm") == ["child"]
    assert waits_for(trace, "next") == ["child"]
    assert (trace.duration_ns[1:] // 1000).tolist() == [70, 30, 25, 10]  # own time; whole µs, cut
    assert trace.stream.tolist() == [0, 0, 0, 13, 0]
    assert trace.missing.tolist() == [0]  # the thread's caller has gone


def test_with_equal_starts_the_parent_keeps_the_childs_time() -> None:
    host = host_json(node(4, "child", 3, rf_id=2), node(3, "parent", 2, rf_id=1))
    trace = converted(host, device_json(op("parent", 0, 100, rf=1), op("child", 0, 30, rf=2)))
    assert (trace.duration_ns[1:] // 1000).tolist() == [100, 30]


def test_a_thread_takes_over_from_the_operator_that_started_last_elsewhere() -> None:
    host = host_json(
        node(3, "forward", 2, rf_id=1),
        node(4, "[pytorch|profiler|execution_trace|thread]", 1, tid=2),
        node(5, "backward", 4, rf_id=2, tid=2),
        node(6, "backward again", 4, rf_id=3, tid=2),
    )
    device = device_json(
        op("forward", 1, 50, rf=1), op("backward", 60, 10, rf=2, tid=8), op("backward again", 75, 10, rf=3, tid=8)
    )
    trace = converted(host, device)
    assert waits_for(trace, "backward") == ["forward", "[pytorch|profiler|execution_trace|thread]"]
    assert waits_for(trace, "backward again") == ["forward", "backward"]


def test_a_gap_without_an_earlier_operator_elsewhere_clears_it() -> None:
    host = host_json(node(3, "a", 2, rf_id=1), node(4, "b", 2, rf_id=2))
    assert waits_for(converted(host, device_json(op("a", 0, 5, rf=1), op("b", 2000, 5, rf=2))), "b") == ["a"]


def test_optimizer_steps_take_no_time_and_groups_are_metadata() -> None:
    host = host_json(
        node(3, "## process_group:init ##", 2, inputs=([json.dumps([])], [[]], ["String"])),
        node(4, "Optimizer.step#AdamW.step", 2, rf_id=1),
    )
    trace = converted(host, device_json(op("Optimizer.step#AdamW.step", 0, 100, rf=1, cat="user_annotation")))
    assert trace.kind.tolist() == [Kind.COMP, Kind.METADATA, Kind.COMP]
    assert trace.duration_ns[2] < 0


@pytest.mark.parametrize(
    ("caller", "kind"),
    [("nccl:send 0->1", Kind.SEND), ("nccl:recv 0<-1", Kind.RECV), ("nccl:all_to_all", Kind.COLL)],
)
def test_send_and_receive_are_known_by_their_caller(caller: str, kind: Kind) -> None:
    comms = node(3, "record_param_comms", 2, rf_id=1, pg_name="5", inputs=TENSOR)
    host = host_json(node(4, caller, 3, rf_id=2, inputs=TENSOR), comms)
    device = device_json(
        op("record_param_comms", 0, 50, rf=1),
        op(caller, 10, 20, rf=2),
        launch(15, 50, "cuLaunchKernelEx"),
        kernel("ncclDevKernel_SendRecv(x)", 40, 9, 50, rf=2),
    )
    trace = converted(host, device)
    assert trace.kind[-1] == kind
    assert trace.in_bytes[-1] == 1024
    assert attribute(trace, "ncclDevKernel_SendRecv(x)", "comm_type") == (
        Collective.ALL_TO_ALL if kind == Kind.COLL else None
    )
    assert attribute(trace, "ncclDevKernel_SendRecv(x)", "pg_name") == 0


def test_a_collective_is_known_by_its_kernel_and_its_group_by_kineto() -> None:
    host = host_json(node(3, "nccl:all_reduce", 2, rf_id=1, inputs=TENSOR))
    device = device_json(
        op("nccl:all_reduce", 0, 50, rf=1),
        launch(15, 50),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 40, 9, 50, rf=1, **{"Process Group Name": "3"}),
    )
    decoded, report = official.convert(read_host_json(host), read_device_json(device))
    assert decoded.trace.collective[-1] == Collective.ALL_REDUCE
    assert decoded.group_names == ("3",)
    assert (report["collectives"], report["p2p"], report["device_ops_linked"]) == (1, 0, 1)


@pytest.mark.parametrize(
    ("kernel_name", "expected"),
    [
        ("ncclDevKernel_AllGather_RING_LL(x)", Collective.ALL_GATHER),
        ("ncclKernel_ReduceScatter_RING", Collective.REDUCE_SCATTER),
        ("ncclDevKernel_Broadcast_RING_LL(x)", Collective.BROADCAST),
        ("ncclDevKernel_SendRecv(x)", Collective.ALL_TO_ALL),
    ],
)
def test_kernel_names(kernel_name: str, expected: Collective) -> None:
    assert official.collective_of(kernel_name) == expected


def test_what_the_official_converter_does_not_know_is_refused() -> None:
    with pytest.raises(TraceError, match="ncclDevKernel_Reduce_Sum_f32"):
        official.collective_of("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)")


def test_kernels_without_a_launch_are_left_out_and_counted() -> None:
    host = host_json(node(3, "a", 2, rf_id=1))
    device = device_json(op("a", 0, 5, rf=1), kernel("gemm", 40, 9, 50, rf=1))
    decoded, report = official.convert(read_host_json(host), read_device_json(device))
    assert len(decoded.trace) == 2
    assert report["unmatched"] == [{"reason": "its launch is not in the trace", "count": 1}]


def test_values_are_written_as_python_shows_them() -> None:
    values = [
        [1, 2],
        "it's",
        'a "b"',
        1.0,
        0.1,
        1e-05,
        1e22,
        True,
        False,
        None,
        -0.0,
        0,
        -7,
        "\u00b5",
        123456.75,
        {"k": 1},
    ]
    trace = converted(host_json(node(3, "a", 2, inputs=(values, [], [])), node(4, "b", 2)))
    assert trace.text("in_values", names(trace).index("a")) == str(values)


def test_a_pair_of_two_runs_is_refused_by_its_names() -> None:
    host = host_json(node(3, "aten::mm", 2, rf_id=1), node(4, "aten::add", 2, rf_id=2))
    with pytest.raises(MismatchError, match="2 of 2 operators have a different name there"):
        converted(host, device_json(op("aten::to", 0, 5, rf=1), op("aten::copy_", 6, 5, rf=2)))


def test_a_pair_of_two_runs_is_refused_by_its_process(shared: Path) -> None:
    host = reading.load_host(shared / "traces/public/resnet.et.json.gz")
    device = reading.load_device(shared / "traces/public/resnet.kineto.json.gz")
    with pytest.raises(MismatchError, match="two different runs: process 1734239 on the host, 23442 on the device"):
        official.convert(host, device)


def test_a_forged_pair_is_refused(shared: Path) -> None:
    folder = shared / "oracle/chakra_official/h200_nccl"
    host = reading.load_host(folder / "sync/host.0.json.gz")
    device = reading.load_device(shared / "oracle/chakra_official/h200_gpt_train/device.0.json.gz")
    with pytest.raises(MismatchError, match="of two different runs: 1,"):
        official.convert(host, device)


@pytest.mark.parametrize("schema", ["1.0.4-chakra.0.0.4", "1.1.1-chakra.1.0.0"])
def test_other_schemas_are_refused_as_there(schema: str) -> None:
    with pytest.raises(TraceError, match=schema):
        converted(host_json(node(3, "a", 2), schema=schema))


def test_a_node_without_an_attribute_that_is_written_is_refused() -> None:
    bare = node(3, "a", 2)
    bare["attrs"] = [a for a in bare["attrs"] if a["name"] != "scope"]
    with pytest.raises(TraceError, match="node 3 has no `scope`"):
        converted(host_json(bare))


# -- the official tools' own files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pair", "golden"), GOLDEN)
def test_pairs_come_out_byte_for_byte(shared: Path, pair: str, golden: str) -> None:
    folder = shared / "oracle/chakra_official"
    host, device = (folder / pair.format(side) for side in ("host", "device"))
    decoded, _ = official.convert(reading.load_host(host), reading.load_device(device))
    assert bytes(chakra.encode(decoded)) == gzip.decompress((folder / golden).read_bytes())


@pytest.mark.parametrize("name", HOST_ONLY)
def test_host_traces_alone_come_out_byte_for_byte(shared: Path, name: str) -> None:
    folder = shared / "oracle/chakra_official"
    decoded, _ = official.convert(reading.load_host(folder / f"{name}.host.json.gz"))
    assert bytes(chakra.encode(decoded)) == gzip.decompress((folder / f"{name}.et.gz").read_bytes())


@pytest.mark.parametrize("rank", range(4))
def test_every_collective_without_reduce(shared: Path, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden file was made with the two `reduce` kernels taken out by hand; nothing waits for a kernel."""
    folder = shared / "oracle/chakra_official/h200_nccl/coll"
    pair = reading.load_host(folder / f"host.{rank}.json.gz"), reading.load_device(folder / f"device.{rank}.json.gz")
    with pytest.raises(TraceError, match="ncclDevKernel_Reduce_Sum_f32_RING_LL"):
        official.convert(*pair)
    monkeypatch.setattr(official_trace, "COLLECTIVES", (*official_trace.COLLECTIVES, ("reduce", Collective.REDUCE)))
    ours = pb.read_messages(bytes(chakra.encode(official.convert(*pair)[0])))
    theirs = pb.read_messages(gzip.decompress((folder / f"chakra_trace_noreduce.{rank}.et.gz").read_bytes()))
    kept = [m for m in ours[1] if "ncclDevKernel_Reduce_" not in m.name]
    assert len(kept) == len(ours[1]) - 2
    assert [m.SerializeToString() for m in kept] == [m.SerializeToString() for m in theirs[1]]


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_writes_the_file_and_reports(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared / "oracle/chakra_official/h200_nccl/sync"
    out = tmp_path / "a.et"
    argv = ["link", str(folder / "host.0.json.gz"), str(folder / "device.0.json.gz"), "-o", str(out), "--json"]
    assert main([*argv, "--as-official"]) == 0
    assert out.read_bytes() == gzip.decompress((folder / "chakra_trace.0.et.gz").read_bytes())
    report = json.loads(capsys.readouterr().out)
    assert report == {
        "device_ops": 210, "device_ops_linked": 208, "host_ops": 1899, "host_ops_timed": 1894, "collectives": 0,
        "p2p": 0, "unmatched": [{"reason": "memset", "count": 2}], "span_ns": 48194655,
    }  # fmt: skip
    assert main([*argv, "--as-official"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_command_knows_when_the_files_are_swapped(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared / "oracle/chakra_official/h200_nccl/sync"
    argv = ["link", str(folder / "device.0.json.gz"), str(folder / "host.0.json.gz"), "-o", str(tmp_path / "a.et")]
    assert main([*argv, "--as-official"]) == 2
    assert "is a host trace, but a device trace is needed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

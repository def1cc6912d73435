"""What slices of a timeline carry, what sort they are, and the critical path: worked by hand, read back from files."""

import json
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.analyse.critical_path import critical_path
from etude.model.build import TraceBuilder, job_of
from etude.model.run import Run
from etude.model.schema import Collective, Kind
from etude.model.timing import Origin
from etude.store import chakra
from etude.surface.cli import main
from etude.tell.view.slices import Sort, slices_of
from etude.tell.view.timeline import write_timeline
from timed_jobs import timed, timing_of
from training_step import training_step

CALL = {"kind": Kind.COMP, "cpu": 1, "thread": 5}
KERNEL = {"kind": Kind.COMP, "cpu": 0, "stream": 7}


def run() -> Run:
    """Two ranks: a product that launches a kernel, which has no shapes of its own, and a reduction over `dp`."""
    builders = []
    for _ in range(2):
        b = TraceBuilder()
        call = b.add(Kind.COMP, "aten::mm", cpu=1, thread=5, in_shapes="[[4, 8], [8, 2]]")
        gemm = b.add(Kind.COMP, "gemm", cpu=0, stream=7, data=[call], parent=call, tensor_bytes=96)
        b.add(Kind.COLL, "reduce", cpu=0, stream=9, data=[gemm], collective=Collective.ALL_REDUCE, in_bytes=64,
              group="dp")  # fmt: skip
        builders.append(b)
    timing = timing_of([[0, 10, 30]] * 2, [[5, 30, 50]] * 2, offset=[0, 0])
    return Run(job_of("two", builders, {"dp": [0, 1]}), timing)


WANTED = {
    "aten::mm": {"shapes": "[[4, 8], [8, 2]]"},
    "gemm": {"shapes": "[[4, 8], [8, 2]]", "stream": 7, "bytes": 96},
    "reduce": {"group": "dp", "stream": 9, "bytes": 64},
}


def in_chrome(path: Path) -> list[tuple[str, str, int, dict[str, Any]]]:
    """(name, category, process, arguments without the id) of every slice."""
    events = json.loads(path.read_text())["traceEvents"]
    return [(e["name"], e["cat"], e["pid"], {k: v for k, v in e["args"].items() if k != "id"})
            for e in events if e["ph"] == "X"]  # fmt: skip


def in_perfetto(path: Path) -> list[tuple[str, str, str, int, dict[str, Any]]]:
    """(name, category, track, time in ns, arguments without the id) of every slice, read with Perfetto's schema."""
    proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs perfetto's schema")
    names: dict[str, dict[int, str]] = {"name": {}, "cat": {}, "arg": {}, "text": {}}
    tracks: dict[int, str] = {}
    found = []
    for packet in proto.Trace.FromString(path.read_bytes()).packet:
        data = packet.interned_data
        names["name"] |= {e.iid: e.name for e in data.event_names}
        names["cat"] |= {e.iid: e.name for e in data.event_categories}
        names["arg"] |= {e.iid: e.name for e in data.debug_annotation_names}
        names["text"] |= {e.iid: e.str.decode() for e in data.debug_annotation_string_values}
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor.name
        event = packet.track_event
        if packet.HasField("track_event") and event.type == event.TYPE_SLICE_BEGIN:
            args = {names["arg"][a.name_iid]: names["text"][a.string_value_iid] if a.HasField("string_value_iid")
                    else a.uint_value for a in event.debug_annotations}  # fmt: skip
            assert "id" in args
            del args["id"]
            found.append((names["name"][event.name_iid], names["cat"][event.category_iids[0]],
                          tracks[event.track_uuid], packet.timestamp, args))  # fmt: skip
    return found


def test_slices_carry_shapes_group_and_stream(tmp_path: Path) -> None:
    write_timeline(run(), tmp_path / "run.json")
    write_timeline(run(), tmp_path / "run.pftrace")
    assert [(name, args) for name, _, _, args in in_chrome(tmp_path / "run.json")] == [*WANTED.items()] * 2
    assert [(name, args) for name, _, _, _, args in in_perfetto(tmp_path / "run.pftrace")] == [*WANTED.items()] * 2


def test_a_collective_of_all_says_so(tmp_path: Path) -> None:
    node = {"kind": Kind.COLL, "name": "reduce", "cpu": 0, "stream": 9, "collective": Collective.ALL_REDUCE}
    write_timeline(timed([(node, 0, 5)]), tmp_path / "run.json")
    assert in_chrome(tmp_path / "run.json")[0][3] == {"group": "world", "stream": 9}


@pytest.mark.parametrize(
    ("name", "by", "sort"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "aten::copy_", Sort.MEMORY),
        ("Memset (Device)", "aten::zero_", Sort.MEMORY),
        ("CopyHostToDevice", "aten::copy_", Sort.MEMORY),
        ("CopyDeviceToHost", "", Sort.MEMORY),
        ("FillBuffer", "", Sort.MEMORY),
        ("[CUDA memcpy Host-to-Device]", "", Sort.MEMORY),
        ("zeCommandListAppendMemoryCopy(M2D)", "", Sort.MEMORY),
        ("void at::native::elementwise_kernel<128, direct_copy_kernel_cuda(at::TensorIteratorBase&)>", "", Sort.COPY),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)", "", Sort.COPY),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>(float*)", "", Sort.COPY),
        ("some_kernel_of_a_vendor", "aten::_to_copy", Sort.COPY),
        ("some_kernel_of_a_vendor", "aten::copy_", Sort.COPY),
        ("some_kernel_of_a_vendor", "aten::_foreach_copy_", Sort.COPY),
        ("some_kernel_of_a_vendor", "aten::mul", Sort.COMPUTE),
        ("some_kernel_of_a_vendor", "aten::scatter_add_", Sort.COMPUTE),
        ("triton_poi_fused__to_copy_1", "", Sort.COPY),
        ("triton_poi_fused_add__to_copy_mul_1", "", Sort.COMPUTE),
        ("ncclDevKernel_AllReduce_Sum_f32", "aten::copy_", Sort.COMMUNICATION),
    ],
)
def test_copies_are_no_compute(name: str, by: str, sort: Sort) -> None:
    nodes = [
        (CALL | {"name": by or "aten::mm"}, 0, 5),
        (KERNEL | {"name": name, **({"parent": 0} if by else {})}, 5, 9),
    ]
    found = slices_of(timed(nodes))
    assert found.sort.tolist() == [Sort.HOST, sort]


def test_copies_on_a_host_that_is_the_device() -> None:
    found = slices_of(timed([(CALL | {"name": "aten::copy_"}, 0, 5), (CALL | {"name": "aten::mm"}, 5, 9)]))
    assert found.sort.tolist() == [Sort.COPY, Sort.COMPUTE]


def test_no_slice_of_a_recorded_copy_is_compute(shared: Path) -> None:
    for name in ("h200/llama_infer_kineto", "public/b200_eager.kineto", "public/mi300_bert_small.kineto"):
        s = slices_of(etude.open_run(shared / f"traces/{name}.json.gz"))
        compute = {s.names[n] for n in s.name[s.sort == Sort.COMPUTE].tolist()}
        assert not [n for n in compute if "Memcpy" in n or "Memset" in n or "copy_kernel" in n or "Copy" in n]
        assert (s.sort == Sort.COMPUTE).any()


def test_the_critical_path_has_a_track_of_its_own(tmp_path: Path) -> None:
    """Operator 0..5, nothing that was recorded to 10, product 10..30, reduction 30..50; all on one rank."""
    one = run()
    path = critical_path(one)
    write_timeline(one, tmp_path / "run.pftrace", critical=path)
    mine = [(name, time, args["rank"]) for name, _, track, time, args in in_perfetto(tmp_path / "run.pftrace")
            if track == "critical path"]  # fmt: skip
    rank = mine[0][2]
    assert mine == [("aten::mm", 0, rank), ("gemm (gap)", 5, rank), ("gemm", 10, rank), ("reduce", 30, rank)]
    write_timeline(one, tmp_path / "run.json", critical=path)
    assert [(name, pid) for name, _, pid, args in in_chrome(tmp_path / "run.json") if "rank" in args] == [
        (name, 2) for name, _, _ in mine
    ]
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"} == {
        "rank 0": 0, "rank 1": 1, "critical path": 2
    }  # fmt: skip


def test_ranks_are_in_order_of_their_numbers() -> None:
    node = {"kind": Kind.COMP, "name": "gemm", "cpu": 0, "stream": 7}
    eleven = timed(*[[(node, 0, 5)]] * 11)
    found = slices_of(eleven, [10, 2, 9, 2])
    assert [lane.rank for lane in found.lanes] == [2, 9, 10]
    assert list(found.ranks.values()) == ["rank 02", "rank 09", "rank 10"]


def test_the_command_writes_the_path_unless_told_not_to(tmp_path: Path) -> None:
    chakra.write_job(training_step(), tmp_path)
    args = ["timeline", str(tmp_path), "--system", "dgx-h100", "--ranks", "0-1", "-f", "-o", str(tmp_path / "run.json")]
    assert main(args) == 0
    drawn = [row for row in in_chrome(tmp_path / "run.json") if "rank" in row[3]]
    assert drawn and {row[2] for row in drawn} == {2}
    assert main([*args, "--no-critical-path"]) == 0
    assert not [row for row in in_chrome(tmp_path / "run.json") if "rank" in row[3]]


def test_simulated_paths_are_whole(tmp_path: Path) -> None:
    """Pieces follow one another, so the track is as long as the run."""
    one = timed([(CALL | {"name": "a"}, 0, 10), (KERNEL | {"name": "b", "data": [0]}, 10, 40)], origin=Origin.SIMULATED)
    write_timeline(one, tmp_path / "run.json", critical=critical_path(one))
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    mine = [e for e in events if e["ph"] == "X" and "rank" in e["args"]]
    assert sum(e["dur"] for e in mine) == pytest.approx(0.04)

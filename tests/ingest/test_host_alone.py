"""A host trace without a device trace: operators and what they wait for, and no times."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.base.errors import EtudeError
from etude.capture.ingest import causal, host_alone, reading
from etude.model.check.whole import check
from etude.model.schema import UNKNOWN, Kind, LaneKind, Why
from etude.model.trace import Trace
from etude.surface.cli import main
from recorded import host_json, node, put, read_host_json


def tensor(number: int, elements: int = 64, device: str = "cuda:0") -> list[Any]:
    return [number, number + 100, 0, elements, 4, device]


def tensors(*values: list[Any], shape: tuple[int, ...] = (8, 8)) -> tuple[list[Any], list[Any], list[Any]]:
    return list(values), [list(shape)] * len(values), ["Tensor(float)"] * len(values)


A, B, C, D, E = (tensor(number) for number in range(11, 16))


def program() -> dict[str, Any]:
    """linear{t, addmm}, relu on thread 1; the backward pass on thread 2, which thread 1 waits for; a step."""
    return host_json(
        node(3, "aten::linear", 2, 1, inputs=tensors(A, B), outputs=tensors(C)),
        node(4, "aten::t", 3, 2, inputs=tensors(B), outputs=tensors(B)),
        node(5, "aten::mm", 3, 3, inputs=tensors(A, B), outputs=tensors(C)),
        node(6, "aten::relu", 2, 4, inputs=tensors(C), outputs=tensors(D)),
        node(8, "autograd::engine::evaluate_function: MmBackward0", 7, 5, tid=2, fw_tid=1, fw_parent=3),
        node(9, "aten::mm", 8, 6, tid=2, inputs=tensors(D, B), outputs=tensors(E)),
        node(10, "aten::item", 2, 7, inputs=tensors(tensor(20, device="cpu")), outputs=([], [], [])),
        node(7, "[pytorch|profiler|execution_trace|thread]", 1, tid=2),
    )


def edges(trace: Trace) -> dict[tuple[str, str], str]:
    """(Name before, name) -> why; names with the file's own ids."""
    names = [f"{trace.text('name', i).removeprefix('aten::')[:8]}{trace.source_id[i]}" for i in range(len(trace))]
    found = {}
    for i in range(len(trace)):
        for k in range(trace.data_start[i], trace.data_start[i + 1]):
            found[names[trace.data[k]], names[i]] = Why(int(trace.data_why[k])).name.lower()
    return found


def test_what_waits_for_what() -> None:
    trace = host_alone.convert_host(read_host_json(program())).trace
    assert trace.source_id.tolist() == [3, 4, 5, 6, 8, 9, 10]
    assert trace.parent.tolist() == [-1, 0, 0, -1, -1, 4, -1]
    assert edges(trace) == {
        ("t4", "mm5"): "tensor",  # the view of B; nobody wrote A
        ("mm5", "relu6"): "tensor",
        ("relu6", "mm9"): "tensor",  # also where thread 2 takes over
        ("mm5", "mm9"): "autograd",  # the last of what linear called
        ("mm9", "item10"): "autograd",  # thread 1 goes on
        ("t4", "mm9"): "tensor",
        ("relu6", "item10"): "program",
    }


def test_nothing_has_a_time_and_devices_are_told_by_tensors() -> None:
    part = host_alone.convert_host(read_host_json(program()))
    trace = part.trace
    frames = [0, 4]
    assert [i for i in range(len(trace)) if trace.duration_ns[i] == 0] == frames
    assert all(trace.duration_ns[i] == UNKNOWN for i in range(len(trace)) if i not in frames)
    assert np.flatnonzero(trace.cpu == 0).tolist() == [2, 3, 5]  # mm, relu, mm; a view does nothing on the device
    assert trace.flops[[2, 5]].tolist() == [2 * 8**3] * 2
    kinds = {int(trace.lane_kind[trace.lane[i]]) for i in (2, 3, 5)}
    assert kinds == {LaneKind.STREAM}
    job = host_alone.to_job("w", [part])
    assert job.timing is None and [n.what for n in job.notes] == [host_alone.NOTE]
    assert [f for f in check(job) if f.severity == "error"] == []


def test_a_file_opens_and_keeps_all_on_its_way(tmp_path: Path, capsys) -> None:
    put(tmp_path / "w_et.json.gz", program())
    job = etude.open(tmp_path / "w_et.json.gz")
    assert job.name == "w" and job.nodes == 7
    for to in ("et", "parquet", "json"):
        assert main(["convert", str(tmp_path / "w_et.json.gz"), str(tmp_path / to), "--to", to]) == 0
        assert etude.diff(etude.open(tmp_path / to), job) is None
    capsys.readouterr()
    assert main(["breakdown", str(tmp_path / "w_et.json.gz")]) == 2
    said = capsys.readouterr().err
    assert "no times were recorded" in said and host_alone.NOTE in said
    assert main(["breakdown", str(tmp_path / "w_et.json.gz"), "--system", "dgx-h100"]) == 0
    assert main(["link", str(tmp_path / "w_et.json.gz"), "-o", str(tmp_path / "w.et")]) == 2
    assert "etude convert HOST OUT" in capsys.readouterr().err


def test_a_list_of_host_traces_is_a_job(tmp_path: Path, capsys) -> None:
    files = [str(tmp_path / f"w.rank{rank}.et.json.gz") for rank in (0, 1)]
    for file in files:
        put(Path(file), program())
    assert main(["info", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 2
    put(tmp_path / "again.rank1.et.json.gz", program())
    assert main(["info", *files, str(tmp_path / "again.rank1.et.json.gz")]) == 2  # two of one rank


def test_a_folder_of_execution_graphs_is_a_job_and_other_names_are_runs(tmp_path: Path) -> None:
    for folder in ("dlrm", "loose"):
        (tmp_path / folder).mkdir()
    for rank in (0, 1, 2):
        put(tmp_path / "dlrm" / f"dlrm_eg_{rank}.json", program())
    job = etude.open(tmp_path / "dlrm")
    assert (job.name, job.ranks.tolist(), job.world_size) == ("dlrm", [0, 1, 2], 3)
    for name in ("first.json", "second_1.json.gz"):  # nothing tells that a number is a rank
        put(tmp_path / "loose" / name, program())
    with pytest.raises(EtudeError, match="several runs in one folder: first, second_1"):
        etude.open(tmp_path / "loose")
    assert etude.open(tmp_path / "loose" / "second_1").nodes == job.nodes // 3
    put(tmp_path / "dlrm" / "dlrm.rank1.et.json", program())
    with pytest.raises(EtudeError, match="two files are the host trace of rank 1: dlrm.rank1.et.json, dlrm_eg_1.json"):
        etude.open(tmp_path / "dlrm")


def test_bad_files_are_refused(tmp_path: Path, capsys) -> None:
    put(tmp_path / "a.json.gz", host_json())
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(json.dumps(program()).encode()[:900]))
    put(tmp_path / "w.rank9999999.et.json.gz", program())
    for name in ("a", "b", "w.rank9999999.et"):
        assert main(["info", str(tmp_path / f"{name}.json.gz")]) == 2
        assert "error: " in capsys.readouterr().err
    with pytest.raises(EtudeError, match="no operator"):
        host_alone.convert_host(read_host_json(host_json()))


@pytest.mark.parametrize("name", ["ddp_2p", "moe_2p", "colls_2p", "tp_2p"])
def test_ranks_of_the_reference_data(shared: Path, tmp_path: Path, name: str) -> None:
    """The same operators, communications and work as with the device traces beside them."""
    for rank in (0, 1):
        shutil.copy(shared / f"traces/torch_cpu/{name}.rank{rank}.et.json.gz", tmp_path)
    alone, linked = etude.open(tmp_path), etude.open(shared / "traces/torch_cpu" / name)
    assert alone.ranks.tolist() == [0, 1] and alone.name == name
    assert [f.what for f in check(alone) if f.severity == "error"] == []
    for a, b in zip(alone.traces, linked.traces, strict=True):
        for kind in (Kind.COLL, Kind.SEND, Kind.RECV):
            mine, theirs = a.kind == kind, b.kind == kind
            assert a.collective[mine].tolist() == b.collective[theirs].tolist()
            assert a.in_bytes[mine].tolist() == b.in_bytes[theirs].tolist()
        assert a.data_why[a.data_why == Why.TENSOR].size > 100 or name == "colls_2p"


@pytest.mark.parametrize("name", ["h200/gpt_train", "h200/llama_infer"])
def test_the_work_is_that_of_the_linked_pair(shared: Path, name: str) -> None:
    host = reading.load_host(shared / f"traces/{name}_et.json.gz")
    alone = host_alone.convert_host(host).trace
    linked = causal.convert(reading.load_device(shared / f"traces/{name}_kineto.json.gz"), host).part.trace
    assert alone.flops[alone.flops > 0].sum() == linked.flops[linked.flops > 0].sum()
    assert (alone.cpu[alone.flops > 0] == 0).all()

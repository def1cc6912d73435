"""ASTRA-sim text workloads: byte for byte what Chakra's own converter writes, and what it does not know, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import etude
from etude.base.errors import FormatError, UsageError
from etude.capture.ingest.text import read_text
from etude.model.check.whole import check
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective
from etude.surface.cli import main

GOLDEN = (
    "DLRM_HybridParallel", "MLP_HybridParallel_Data_Model", "MLP_HybridParallel_Model_Data", "MLP_ModelParallel",
    "Resnet50_DataParallel", "microAllReduce",
)  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_workloads_are_byte_identical(shared: Path, tmp_path: Path, name: str, capsys) -> None:
    folder = shared / "oracle/chakra_official/text"
    out = tmp_path / "out"
    args = ["convert", str(folder / f"{name}.txt"), str(out), "--to", "et", "--ranks", "4", "--passes", "2"]
    assert main(args) == 0
    assert sorted(p.name for p in out.iterdir()) == [f"{name}.{rank}.et" for rank in range(4)]
    for rank in (0, 1):
        assert (out / f"{name}.{rank}.et").read_bytes() == (folder / f"{name}.{rank}.et").read_bytes()


def workload(tmp_path: Path, *lines: str, ranks: int = 4, passes: int = 1) -> Job:
    path = tmp_path / "w.txt"
    path.write_text("\n".join(lines) + "\n")
    return read_text(path, ranks, passes=passes)


def layer(name: str, forward: str = "NONE 0", inputs: str = "NONE 0", weights: str = "NONE 0", own: str = "") -> str:
    return f"{name} -1 1 {forward} 2 {inputs} 3 {weights} 4 {own}"


def shown(job: Job) -> list[str]:
    """`layer.part <- what it waits for`, a collective as `layer.TYPE@group`."""
    trace = job.traces[0]
    names = []
    for row in range(len(trace)):
        name = trace.text("name", row).removeprefix("COMP_NODE_").removeprefix("COMM_COLL_NODE_")
        slot = trace.group[row]
        group = f"@{job.groups.names[job.group_slots(0)[slot]]}" if slot >= 0 else ""
        names.append(name + group)
    return [
        f"{names[row]} <- {', '.join(names[d] for d in trace.data[trace.data_start[row] : trace.data_start[row + 1]])}"
        for row in range(len(trace))
    ]


def test_transformer(tmp_path: Path) -> None:
    """Activations in groups of two neighbours, gradients across; what is NONE is no node."""
    job = workload(
        tmp_path, "HYBRID_TRANSFORMER model_parallel_NPU_group: 2", "2",
        layer("a", "ALLREDUCE 8", "ALLREDUCE 8", "ALLREDUCE 16"), layer("b", "ALLGATHER 4", "REDUCESCATTER 4"),
    )  # fmt: skip
    assert shown(job) == [
        "a_FWD <- ", "a_ALLREDUCE@model0 <- a_FWD",
        "b_FWD <- a_ALLREDUCE@model0", "b_ALLGATHER@model0 <- b_FWD",
        "b_BWD_IG <- b_ALLGATHER@model0", "b_REDUCESCATTER@model0 <- b_BWD_IG", "b_BWD_WG <- b_BWD_IG",
        "a_BWD_IG <- b_BWD_WG, b_REDUCESCATTER@model0", "a_BWD_WG <- a_BWD_IG", "a_ALLREDUCE@data0 <- a_BWD_WG",
    ]  # fmt: skip
    members = {job.groups.names[g]: job.groups.ranks(g).tolist() for g in range(len(job.groups))}
    assert members == {"model0": [0, 1], "model1": [2, 3], "data0": [0, 2], "data1": [1, 3]}
    assert [job.groups.names[g] for g in job.group_slots(3)] == ["model1", "data1"]
    assert job.traces[0].duration_ns.tolist()[:3] == [1000, UNKNOWN, 1000]
    assert not [finding for finding in check(job) if finding.severity == "error"]


def test_recomputing(tmp_path: Path) -> None:
    """The last layer's backward pass first runs forward again from the checkpoint at layer 0."""
    head = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 checkpoints: 1 0 checkpoint_initiates: 1 2"
    job = workload(tmp_path, head, "3", layer("a", "ALLREDUCE 8"), layer("b"), layer("c"))
    assert shown(job)[4:9] == [
        "a_FWD_IN_BWD <- c_FWD",
        "a_ALLREDUCE@model0 <- a_FWD_IN_BWD",
        "b_FWD_IN_BWD <- a_ALLREDUCE@model0",
        "c_BWD_IG <- b_FWD_IN_BWD",
        "c_BWD_WG <- c_BWD_IG",
    ]
    plain = "HYBRID_TRANSFORMER_FWD_IN_BCKWD checkpoints: 0 checkpoint_initiates: 0"
    assert len(shown(workload(tmp_path, plain, "1", layer("a")))) == 3


def test_customized(tmp_path: Path) -> None:
    """Each layer as its own parallelism says, whatever else it was given."""
    full = ("ALLREDUCE 8", "ALLREDUCE 8", "ALLREDUCE 8")
    job = workload(
        tmp_path, "HYBRID_CUSTOMIZED", "2", layer("a", *full, own="DATA"), layer("b", *full, own="MODEL"), passes=2
    )
    assert shown(job)[:8] == [
        "a_FWD <- ", "b_FWD <- a_FWD", "b_ALLREDUCE <- b_FWD",
        "b_BWD_IG <- b_ALLREDUCE", "b_ALLREDUCE <- b_BWD_IG", "b_BWD_WG <- b_BWD_IG",
        "a_BWD_IG <- b_BWD_WG, b_ALLREDUCE", "a_BWD_WG <- a_BWD_IG",
    ]  # fmt: skip
    assert shown(job)[9:11] == ["a_FWD <- a_ALLREDUCE", "b_FWD <- a_FWD, b_BWD_WG"]


def test_inference(tmp_path: Path) -> None:
    job = workload(tmp_path, "DISTRIBUTED_INFERENCE", "2", layer("a", "ALLTOALL 8"), layer("b"), passes=2)
    assert shown(job) == ["a_FWD <- ", "a_ALLTOALL <- a_FWD", "b_FWD <- a_ALLTOALL", "a_FWD <- b_FWD",
                          "a_ALLTOALL <- a_FWD", "b_FWD <- a_ALLTOALL"]  # fmt: skip
    assert job.traces[0].collective[1] == Collective.ALL_TO_ALL


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([""], "w.txt: is empty"),
        (["DATAA", "1", layer("a")], "line 1: unknown parallelism `DATAA`"),
        (["DATA"], "line 1: no number of layers follows"),
        (["DATA", "x", layer("a")], "line 2: the number of layers is `x`"),
        (["DATA", "2", layer("a")], "line 2: announces 2 layers, but 1 follow"),
        (["DATA", "0"], "line 2: announces 0 layers, but 0 follow"),
        (["DATA", "1", "a -1 5 NONE"], "line 3: 4 columns, expected 12"),
        (["DATA", "1", layer("a", "ALREDUCE 5")], "line 3: unknown collective `ALREDUCE`, forward"),
        (["DATA", "1", layer("a", "NONE -5")], "line 3: bytes, forward is `-5`"),
        (["DATA", "1", layer("a").replace("-1 1", "-1 1.5")], "line 3: compute time, forward is `1.5`"),
        (["HYBRID_DLRM", "1", layer("a")], "line 1: no last bottom layer is given"),
        (["HYBRID_DLRM 3", "1", layer("a")], "line 1: last bottom layer 3 is not one of the 1 layers"),
        (["HYBRID_CUSTOMIZED", "1", layer("a")], "line 3: 12 columns, expected 13"),
        (["HYBRID_CUSTOMIZED", "1", layer("a", own="MICRO")], "line 3: unknown parallelism of a layer, `MICRO`"),
        (["HYBRID_TRANSFORMER ep: 2", "1", layer("a")], "line 1: unknown key `ep`"),
        (["HYBRID_TRANSFORMER checkpoints: 2 0", "1", layer("a")], "line 1: `checkpoints` announces 2, but 1 follow"),
        (["HYBRID_TRANSFORMER_FWD_IN_BCKWD checkpoints: 0 checkpoint_initiates: 1 0", "1", layer("a")],
         "line 1: layer 0 recomputes, but no checkpoint is before it"),
    ],
)  # fmt: skip
def test_what_is_wrong_and_where(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(FormatError) as problem:
        workload(tmp_path, *lines)
    assert said in str(problem.value)
    assert problem.value.hint


def test_what_cannot_be_asked_for(tmp_path: Path, capsys) -> None:
    path = tmp_path / "w.txt"
    path.write_text(f"HYBRID_TRANSFORMER model_parallel_NPU_group: 3\n1\n{layer('a', 'ALLREDUCE 8')}\n")
    with pytest.raises(UsageError, match="4 ranks are not a multiple of 3"):
        etude.open(path, ranks=4)
    assert len(etude.open(path, ranks=3)) == 3
    assert main(["convert", str(path), str(tmp_path / "out")]) == 2
    assert "does not give its number of ranks" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    path.write_bytes(b"DATA\n\xff\n")
    with pytest.raises(FormatError, match="byte 5: is not a text"):
        etude.open(path, ranks=1)
    folder = tmp_path / "job"
    path.write_text(f"DATA\n1\n{layer('a')}\n")
    assert main(["convert", str(path), str(folder), "--ranks", "2"]) == 0
    assert main(["convert", str(folder), str(tmp_path / "again"), "--ranks", "2"]) == 2
    assert "--ranks is read only where PATH is a text workload" in capsys.readouterr().err

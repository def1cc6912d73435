"""SimAI's text workload of a job, worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import etude
from etude.base.errors import UsageError
from etude.make.generate import MicroOptions, micro
from etude.make.transform.dialects import simai_text
from etude.model.build import TraceBuilder
from etude.model.job import Job, assemble
from etude.model.schema import Collective, Kind
from etude.surface.cli import main

HEAD = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {} ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: {} "
    "checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0"
)


def job_of(data: list[list[int]] | None = None, *, compute_ns: int | None = 700) -> Job:
    """Four ranks: compute, a gather among two neighbours, compute, a sum across them, compute."""
    across = data or [[0, 2], [1, 3]]
    parts = []
    for rank in range(4):
        b = TraceBuilder()
        took = {} if compute_ns is None else {"duration_ns": compute_ns}
        a = b.add(Kind.COMP, "a", cpu=0, **took)
        g = b.add(Kind.COLL, "my gather", data=[a], collective=Collective.ALL_GATHER, in_bytes=10, group="model")
        c = b.add(Kind.COMP, "b", data=[g], cpu=0, **took)
        s = b.add(Kind.COLL, "sum", data=[c], collective=Collective.ALL_REDUCE, in_bytes=64, group="data")
        b.add(Kind.COMP, "c", data=[s], cpu=0, **took)
        mine = next(group for group in across if rank in group)
        parts.append(b.part(rank=rank, groups={"model": [rank // 2 * 2, rank // 2 * 2 + 1], "data": mine}))
    return assemble("w", parts)


def test_lines_by_hand() -> None:
    assert simai_text(job_of()).splitlines() == [
        HEAD.format(2, 4),
        "3",
        "my_gather\t-1\t700\tALLGATHER\t20\t1\tNONE\t0\t1\tNONE\t0\t1",
        "sum\t-1\t700\tNONE\t0\t1\tNONE\t0\t1\tALLREDUCE\t64\t1",
        "rest\t-1\t700\tNONE\t0\t1\tNONE\t0\t1\tNONE\t0\t1",
    ]


def test_collectives_of_all_ranks() -> None:
    job = micro("all_to_all", MicroOptions(ranks=8, sizes=(4096,), compute_ns=5000))
    head, count, line = simai_text(job).splitlines()
    assert (head, count) == (HEAD.format(8, 8), "1")
    assert line.split("\t")[2:5] == ["5000", "ALLTOALL", "4096"]


def test_a_sum_of_all_ranks_beside_groups_is_done_in_two_parts() -> None:
    lines = simai_text(job_of([[0, 1, 2, 3]])).splitlines()
    assert lines[3] == "sum\t-1\t700\tALLREDUCE\t64\t1\tNONE\t0\t1\tALLREDUCE\t64\t1"


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (job_of([[0, 3], [1, 2]]), "neither neighbours nor across"),
        (job_of(compute_ns=None), "has no time"),
        (micro("ring", MicroOptions(ranks=4, sizes=(64,))), "cannot be written in SimAI's text|the same program"),
        (micro("broadcast", MicroOptions(ranks=4, sizes=(64,))), "broadcast cannot be written"),
    ],
    ids=["groups", "times", "messages", "broadcast"],
)
def test_refused(job: Job, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        simai_text(job)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, out = tmp_path / "job", tmp_path / "w.txt"
    micro_job = ["generate", "micro", "all_reduce", "--ranks", "4", "--bytes", "1MB", "--compute", "9us"]
    assert main([*micro_job, "-o", str(job)]) == 0
    assert main(["convert", str(job), str(out), "--to", "simai"]) == 0
    alone = out.read_text().splitlines()[2].split("\t")[2:5]
    assert alone == ["9000", "ALLREDUCE", "1000000"]
    assert "no dependencies" in capsys.readouterr().err
    assert main(["convert", str(job), str(out), "--to", "simai", "--system", "dgx-h100", "-f"]) == 0
    assert out.read_text().splitlines()[2].split("\t")[2:5] == alone


# -- read back ---------------------------------------------------------------------------------------------------------


def test_a_text_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "w.txt"
    path.write_text(simai_text(job_of()))
    job = etude.open(path)
    assert job.world_size == 4 and len(job.traces) == 1
    trace = job.traces[0]
    calls = [row for row in range(len(trace)) if trace.kind[row] == Kind.COLL]
    assert [(Collective(int(trace.collective[r])).name, int(trace.in_bytes[r])) for r in calls] == [
        ("ALL_GATHER", 10), ("ALL_REDUCE", 64),
    ]  # fmt: skip
    slots = [int(trace.group[row]) for row in calls]
    members = [job.groups.ranks(int(job.group_slots(3)[slot])) for slot in slots]
    assert [None if found is None else found.tolist() for found in members] == [[2, 3], [1, 3]]
    forward = [row for row in range(len(trace)) if trace.text("name", row).endswith("_FWD")]
    assert [int(trace.duration_ns[row]) for row in forward] == [700, 700, 700]  # ns, not us
    again = tmp_path / "again.txt"
    again.write_text(simai_text(job))  # the same collectives on the same groups
    said = [[word for word in line.split("\t") if word.isupper() and word != "NONE"] for line in again.open()][2:]
    assert [words for words in said if words] == [["ALLGATHER"], ["ALLREDUCE"]]


@pytest.mark.parametrize(
    ("head", "line", "said"),
    [
        (HEAD.format(2, 4).replace("ep: 1", "ep: 2"), "", "`ep` is 2"),
        (HEAD.format(2, 4).replace("pp: 1", "pp: 4", 1), "", "`pp` is 4"),
        (HEAD.format(2, 0), "", "`all_gpus` is 0"),
        (HEAD.format(3, 4), "", "4 ranks are not a multiple of 3"),
        (HEAD.format(2, 4), "a -1 5 ALLGATHER 21 1 NONE 0 1 NONE 0 1", "not the parts of 2 members"),
        (HEAD.format(2, 4), "a -1 5 ALLTOALL_EP 20 1 NONE 0 1 NONE 0 1", "unknown collective `ALLTOALL_EP`"),
    ],
)
def test_a_text_that_cannot_be_read(tmp_path: Path, head: str, line: str, said: str, capsys) -> None:
    path = tmp_path / "w.txt"
    path.write_text(f"{head}\n1\n{line or 'a -1 5 NONE 0 1 NONE 0 1 NONE 0 1'}\n")
    assert main(["info", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_lines_as_aicb_writes_them(tmp_path: Path) -> None:
    # The kinds of lines of aliyun/SimAI's examples: an older head without vpp, experts of nothing, NONE with bytes.
    path = tmp_path / "w.txt"
    head = HEAD.format(8, 64).replace(" vpp: 1", "").replace("pp_comm: 0", "pp_comm 251658240")
    lines = [
        "grad_norm\t-1\t1\tALLGATHER\t800\t1\tNONE\t0\t1\tREDUCESCATTER\t1600\t100",
        "moe_grad_norm1\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER_DP_EP\t0\t100",
        "embedding_layer     -1 556000  ALLREDUCE   536870912     1      NONE 16777216       1     NONE   0     1 ",
    ]
    path.write_text("\n".join([head, "3", *lines]) + "\n")
    job = etude.open(path)
    trace = job.traces[0]
    calls = {
        Collective(int(trace.collective[row])).name: int(trace.in_bytes[row])
        for row in range(len(trace))
        if trace.kind[row] == Kind.COLL
    }
    assert job.world_size == 64
    assert calls == {"ALL_GATHER": 100, "REDUCE_SCATTER": 1600, "ALL_REDUCE": 536870912}


def test_ranks_of_a_text_are_its_own(tmp_path: Path, capsys) -> None:
    path = tmp_path / "w.txt"
    path.write_text(simai_text(job_of()))
    assert main(["convert", str(path), str(tmp_path / "a"), "--ranks", "4"]) == 0
    assert main(["convert", str(path), str(tmp_path / "b"), "--ranks", "8"]) == 2
    assert "8 ranks of a text for 4" in capsys.readouterr().err

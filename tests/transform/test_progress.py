"""progress: who drives a message, worked out by hand."""

import json
from pathlib import Path

import pytest

import etude
from etude.base.errors import UsageError
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Kind
from etude.run.simulate.shares import Draw
from etude.surface.cli import main
from toy_systems import one_level

TWO = one_level("switch", 2)


def message() -> Job:
    """Rank 0 works for 100, then sends 50 bytes beside work of 300. Rank 1 works for 400, and for 200 once it has the
    message and is free."""
    sender, receiver = TraceBuilder(), TraceBuilder()
    sender.add(Kind.COMP, "first", duration_ns=100, cpu=0)
    sender.add(Kind.SEND, "send", dst=1, in_bytes=50, data=[0], cpu=0)
    sender.add(Kind.COMP, "beside", duration_ns=300, data=[0], cpu=0)
    receiver.add(Kind.COMP, "long", duration_ns=400, cpu=0)
    receiver.add(Kind.RECV, "recv", src=0, in_bytes=50, cpu=0)
    receiver.add(Kind.COMP, "last", duration_ns=200, data=[1], cpu=0)
    return job_of("message", [sender, receiver])


def ends(edit: str, **options) -> dict[str, int]:
    """When each node ends, by its name; those of rank 1 with a 1 behind."""
    job = etude.edit(message(), edit)
    found = etude.simulate(job, TWO, **options)
    return {
        job.trace(rank).text("name", row) + ("1" if rank else ""): int(end)
        for rank in (0, 1)
        for row, end in enumerate(found.timing.block(rank)[1])
    }


ALONE = ends("progress on=host cost=0")["send"] - 100


def test_the_rank_itself_drives_in_turn_with_its_work():
    found = ends("progress on=host cost=30ns")
    assert (found["progress"], found["beside"], found["send"]) == (130, 430, 130 + ALONE)
    assert (found["recv1"], found["progress1"], found["last1"]) == (130 + ALONE, 430, 630)  # it waits for `long`


@pytest.mark.parametrize("unit", ["core", "dpu"])
def test_a_unit_of_its_own_takes_longer_and_holds_nobody_up(unit: str):
    found = ends(f"progress on={unit} cost=60ns")
    assert (found["progress"], found["beside"], found["send"]) == (160, 400, 160 + ALONE)
    assert (found["progress1"], found["last1"]) == (220 + ALONE, 600)


def test_traffic_is_a_load_that_shares_the_memory_with_work():
    edit = "progress on=core cost=30ns traffic=3 memory=1GB/s kind=send"  # 100 bytes more: 100 ns
    assert ends(edit)["send"] == 230 + ALONE
    # from 130 on half the memory each: the load ends at 330, and `beside`, with 30 + 100 done, 170 later
    found = ends(edit, share={"dram": {"compute": Draw(), "memory": Draw()}})
    assert (found["traffic"], found["beside"], found["send"]) == (330, 500, 330 + ALONE)
    job = etude.edit(message(), edit)
    assert job.trace(0).tensor_bytes[job.trace(0).kind == Kind.MEM_LOAD].tolist() == [100]


def test_a_host_that_is_the_device_drives_on_its_own_thread():
    b = TraceBuilder()
    b.add(Kind.COMP, "aten::mm", duration_ns=100, cpu=1, thread=3)
    b.add(Kind.COLL, "call", collective=1, in_bytes=8, group="dp", data=[0], cpu=1, thread=3)
    job = etude.edit(job_of("host", [b, b], {"dp": [0, 1]}), "progress on=host cost=5ns").trace(0)
    assert job.thread.tolist() == [3, 3, 3]
    assert job.duration_ns[1] == 5


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ("on=nic cost=1us", "unknown value `nic`"),
        ("on=dpu", "cost"),
        ("on=dpu cost=1us traffic=0.5", "out of range"),
        ("on=dpu cost=1us traffic=2", "needs the rate of the memory"),
        ("on=dpu cost=-1us", "-1us"),
    ],
)
def test_what_cannot_be_is_refused(edit: str, problem: str):
    with pytest.raises(UsageError, match=problem):
        etude.edit(message(), f"progress {edit}")


def test_the_flag_is_the_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    main(["generate", "micro", "all_pairs", "--ranks", "4", "--bytes", "4KB", "--compute", "20us", "-o", "m"])
    capsys.readouterr()
    assert main(["simulate", "m", "-s", "dgx-h100", "--progress", "on=host", "--progress", "cost=1us", "--json"]) == 0
    rank = json.loads(capsys.readouterr().out)["ranks"][0]
    assert rank["compute_ns"] == 20_000 + (3 + 3) * 1000  # three sends and three receives
    assert main(["simulate", "m", "-s", "dgx-h100", "--progress", "on=gpu", "--progress", "cost=1us"]) == 2
    assert "known: host, core, dpu" in capsys.readouterr().err

"""A folder of ranks: which file is what, and what becomes of them together."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.base.errors import EtudeError, MismatchError, UsageError
from etude.capture.ingest import causal, runs, spill
from etude.model.check.whole import check
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.surface.cli import main
from recorded import ARGS, WORLD, device_json, event, kernel, launch, op, put, rank_json


@pytest.mark.parametrize(
    "name",
    ["t.rank{}.kineto.json.gz", "t_rank{}_kineto.json.gz", "device.{}.json.gz", "t.{}.json.gz", "net.rank{}.json.gz"],
)
def test_ranks_are_found_by_common_names(tmp_path: Path, name: str) -> None:
    for rank in (0, 1):
        put(tmp_path / name.format(rank), rank_json(rank, 0, 50))
    (tmp_path / "t.rank0.manifest.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("")
    _, found = runs.find_run(tmp_path)
    assert [(f.rank, f.device.name) for f in found] == [(r, name.format(r)) for r in (0, 1)]


def test_several_runs_in_one_folder_must_be_told_apart(tmp_path: Path) -> None:
    for run in ("a", "b"):
        put(tmp_path / f"{run}.rank0.kineto.json.gz", rank_json(0, 0, 50))
    with pytest.raises(UsageError, match="several runs"):
        runs.find_run(tmp_path)
    assert runs.find_run(tmp_path / "b")[0] == "b"
    with pytest.raises(UsageError, match="no device trace"):
        runs.find_run(tmp_path / "c")


def test_the_ranks_of_a_run_become_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "run", tmp_path / "job"
    folder.mkdir()
    put(folder / "t.rank0.kineto.json.gz", rank_json(0, 100, 80))  # waits 60 us for the other
    put(folder / "t.rank1.kineto.json.gz", rank_json(1, 160, 20))
    assert main(["link", str(folder), "-o", str(out), "--json", "-j", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["collectives"] == 2 and report["device_ops_linked"] == 2 and len(report["ranks"]) == 2
    raw, job = etude.open(folder), etude.open(out)
    assert raw.timing is not None and job.timing is not None
    for a, b in zip(raw.timing.end_ns, job.timing.end_ns, strict=True):
        assert a.tolist() == b.tolist()
    assert [f for f in check(job) if f.severity == "error"] == []
    for i, trace in enumerate(job.traces):
        at = int(np.flatnonzero(trace.kind == Kind.COLL)[0])
        assert (trace.collective[at], trace.in_bytes[at]) == (Collective.ALL_REDUCE, 1024)
        assert trace.duration_ns[at] == 20_000  # what it took the rank that came last
        start, end = job.timing.block(i)
        assert end[at] - start[at] == (80_000, 20_000)[i]  # as it was recorded
        assert job.groups.ranks(int(job.group_slots(i)[trace.group[at]])).tolist() == [0, 1]  # type: ignore[union-attr]
    late = job.traces[1]
    first = int(np.argmin(job.timing.start_ns[1]))
    assert late.text("name", first) == "host" and late.duration_ns[first] == 60_000  # it is late in the graph, too


def test_ranks_in_processes_of_their_own_give_the_same_job(tmp_path: Path) -> None:
    for rank in (0, 1):
        put(tmp_path / f"t.rank{rank}.kineto.json.gz", rank_json(rank, 10 * rank, 50))
    name, found = runs.find_run(tmp_path)
    jobs = [causal.to_job(name, runs.link_run(found, workers=workers)) for workers in (1, 2)]
    assert etude.diff(*jobs) is None


def test_a_damaged_rank_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    put(folder / "t.rank0.kineto.json.gz", rank_json(0, 0, 50))
    (folder / "t.rank1.kineto.json.gz").write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": [{"ph"'))
    with pytest.raises(EtudeError):
        runs.link_run(runs.find_run(folder)[1])
    assert main(["link", str(folder), "-o", str(tmp_path / "job"), "-j", "1"]) == 2
    assert not (tmp_path / "job").exists()


def test_every_run_of_the_reference_data_is_linked(shared: Path) -> None:
    for name in ("colls_2p", "ddp_2p", "pp_1f1b_2p", "moe_2p"):
        name, found = runs.find_run(shared / "traces/torch_cpu" / name)
        job = causal.to_job(name, runs.link_run(found))
        assert len(job.ranks) == 2
        assert [f.what for f in check(job) if f.severity == "error"] == [], name


def test_large_ranks_lie_in_files_and_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (0, 1):
        put(tmp_path / f"t.rank{rank}.kineto.json.gz", rank_json(rank, 10 * rank, 50))
    name, found = runs.find_run(tmp_path)
    in_memory = causal.to_job(name, runs.link_run(found))
    monkeypatch.setattr(spill, "SMALL", 0)
    for workers in (1, 2):
        in_files = causal.to_job(name, runs.link_run(found, workers=workers))
        assert etude.diff(in_memory, in_files) is None
        assert not in_files.traces[0].name.flags.writeable


def test_processes_of_their_own_for_large_ranks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [runs.RankFiles(rank=rank, device=tmp_path / f"{rank}.json.gz") for rank in range(3)]
    for files in ranks:
        files.device.write_bytes(bytes(1000))
    monkeypatch.setattr(runs.os, "cpu_count", lambda: 2)
    assert runs.workers_for(ranks) == 1
    monkeypatch.setattr(runs, "LARGE", 1000)
    assert runs.workers_for(ranks) == 2
    monkeypatch.setattr(runs, "TAKES", 1 << 60)  # no memory holds that
    assert runs.workers_for(ranks) == 1


def said(folder: Path, rank: int, counted_by: str, numbers: list[int], recorded: list[int] | None = None) -> None:
    """A rank that recorded steps of 1 ms: in step s a sum of s KiB, which rank 1 comes to 100 us later."""
    events = []
    for s in numbers if recorded is None else recorded:
        at = 1000 * s + 100 * rank
        sized = ARGS | {"In msg nelems": 256 * s, "Out msg nelems": 256 * s}
        marked = [event("user_annotation", f"ProfilerStep#{s}", 1000 * s, 950)] if numbers else []
        comms = op("record_param_comms", at + 10, 10, 10 * s + 2)
        events += [*marked, op("aten::mm", at, 10, 10 * s + 1), comms | {"args": comms["args"] | sized}]
        events += [launch(at + 12, s)]
        events += [kernel("ncclDevKernel_AllReduce", at + 20, 250 - 100 * rank, s, 10 * s + 2, stream=9, **sized)]
    put(folder / f"t.rank{rank}.kineto.json.gz", device_json(*events, distributedInfo={"rank": rank, **WORLD}))
    if counted_by:
        about = {"rank": rank, "world_size": 2, "steps": {"counted_by": counted_by, "numbers": numbers}}
        (folder / f"t.rank{rank}.manifest.json").write_text(json.dumps(about))


def sums(job: etude.Job) -> list[list[int]]:
    """The KiB of each rank's all-reduces."""
    traces = [job.trace(rank) for rank in job.ranks.tolist()]
    return [(trace.in_bytes[trace.kind == Kind.COLL] // 1024).tolist() for trace in traces]


@pytest.mark.parametrize("counted_by", ["optimizer", ""])
def test_ranks_are_cut_to_the_steps_that_all_recorded(
    counted_by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(tmp_path, 0, counted_by, [2, 3, 4])
    said(tmp_path, 1, counted_by, [3, 4, 5])
    job = etude.open(tmp_path)
    assert sums(job) == [[3, 4], [3, 4]]
    for rank in (0, 1):  # time between the two is of no step
        assert set(job.trace(rank).step.tolist()) - {UNKNOWN} == {3, 4}
    assert [note.what for note in job.notes] == [
        f"recorded steps {own}, cut to steps 3-4, which all ranks recorded" for own in ("2-4", "3-5")
    ]
    assert {found.kind for found in check(job)} == {"note"}
    start, end = (np.concatenate([job.timing.block(i)[k] for i in (0, 1)]) for k in (0, 1))
    assert end.max() - start.min() == 1_950_000  # from the beginning of step 3 to the end of step 4
    assert main(["breakdown", str(tmp_path)]) == 0
    assert "cut to steps 3-4" in capsys.readouterr().err


def test_ranks_that_count_differently_are_cut_to_the_time_that_all_recorded(tmp_path: Path) -> None:
    said(tmp_path, 0, "optimizer", [3, 4])
    said(tmp_path, 1, "nothing", [], [1, 2, 3, 4, 5])
    job = etude.open(tmp_path)
    assert sums(job) == [[3, 4], [3, 4]]
    assert [note.rank for note in job.notes] == [1] and "all ranks were recording" in job.notes[0].what


@pytest.mark.parametrize(
    ("other", "begin"),
    [
        (("nothing", [], [7, 8]), "everything, without steps"),
        (("nothing", [], [2, 4]), "everything, without steps"),  # another call at that time
        (("optimizer", [7, 8], None), "from step 7 on"),
    ],
)
def test_ranks_that_recorded_different_parts_are_not_joined(
    other: tuple[str, list[int], list[int] | None], begin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(tmp_path, 0, "optimizer", [2, 3, 4])
    said(tmp_path, 1, *other)
    with pytest.raises(MismatchError) as problem:
        etude.open(tmp_path)
    assert problem.value.problem == (
        f"the ranks recorded different parts of the run: rank 0 from step 2 on; rank 1 {begin}"
    )
    assert main(["link", str(tmp_path), "-o", str(tmp_path / "job")]) == 2
    assert "--any-window" in capsys.readouterr().err
    assert main(["link", str(tmp_path), "-o", str(tmp_path / "job"), "--any-window", "-j", "1"]) == 0


def test_ranks_that_only_end_at_different_steps_are_joined(tmp_path: Path) -> None:
    said(tmp_path, 0, "optimizer", [2, 3, 4])
    said(tmp_path, 1, "optimizer", [2, 3])
    assert etude.open(tmp_path).ranks.tolist() == [0, 1]


def test_processes_beside_the_ranks_are_not_part_of_the_job(tmp_path: Path) -> None:
    for who in ("rank0", "rank1", "process71", "process72"):
        put(tmp_path / f"t.{who}.kineto.json.gz", rank_json(int(who == "rank1"), 0, 50))
    name, found = runs.find_run(tmp_path)
    assert (name, [files.rank for files in found]) == ("t", [0, 1])
    assert [files.device.name for files in runs.find_run(tmp_path / "t.process72")[1]] == ["t.process72.kineto.json.gz"]


def test_a_recording_that_is_not_complete_says_so(tmp_path: Path) -> None:
    said(tmp_path, 0, "optimizer", [2, 3])
    said(tmp_path, 1, "", [2, 3])
    about = json.loads((tmp_path / "t.rank0.manifest.json").read_text())
    files = {"device": "t.rank0.kineto.json.gz", "host": "t.rank0.et.json.gz"}
    about |= {"partial": True, "reason": "SIGTERM", "files": files}
    (tmp_path / "t.rank0.manifest.json").write_text(json.dumps(about))
    assert [(note.rank, note.what) for note in etude.open(tmp_path).notes] == [
        (0, "was recorded only in part: SIGTERM"),
        (0, "has no `t.rank0.et.json.gz`, which its manifest names: it was removed, or the recording was cut off"),
        (1, "has no manifest, other ranks have one: its files may be those of another run, or incomplete"),
    ]


@pytest.mark.parametrize(
    ("name", "said_of_it"),
    [
        ("y.0.et", "note: it is rank 1, and `y.0.et` is read as rank 0: name it `y.1.et`"),
        ("y.et.gz", "note: it is rank 1, and `y.et.gz` is read as rank 0: name it `y.1.et.gz`"),
        ("y.1.et", ""),
    ],
)
def test_a_name_that_says_another_rank_is_noticed(
    name: str, said_of_it: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(tmp_path, 1, "", [2])
    assert main(["link", str(tmp_path / "t.rank1.kineto.json.gz"), "-o", str(tmp_path / name)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("note")] == [said_of_it] * bool(said_of_it)


def test_a_trace_that_names_no_rank_may_be_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "t.json.gz", device_json(op("aten::mm", 0, 10, 1)))
    assert main(["link", str(tmp_path / "t.json.gz"), "-o", str(tmp_path / "y.1.et")]) == 0
    assert "note" not in capsys.readouterr().err

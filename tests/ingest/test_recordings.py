"""Files that do not say their rank by their names: the folders of PyTorch's handlers, and lists of files."""

import json
from pathlib import Path

import pytest

import etude
from collected import PROGRAMS, ranks
from etude.base.errors import UsageError
from etude.capture.ingest import recordings, runs
from etude.model.check.whole import check
from etude.model.schema import Kind
from etude.surface.cli import main
from recorded import device_json, put, rank_json

STAMPS = (1794865958123547637, 1794865958205520491)


def handler_name(rank: int, stamp: int) -> str:
    """As `tensorboard_trace_handler` calls its file: a process, not a rank."""
    return f"node-{7 - rank}_{500 + rank}.{stamp + 10 * rank}.pt.trace.json.gz"


@pytest.fixture
def handler(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    folder.mkdir()
    for rank in (0, 1):
        put(folder / handler_name(rank, STAMPS[0]), rank_json(rank, 0, 50))
    return folder


def test_ranks_of_a_handler_are_one_job(handler: Path) -> None:
    name, found = runs.find_run(handler)
    assert name == "log"
    assert [(f.rank, f.device.name) for f in found] == [(r, handler_name(r, STAMPS[0])) for r in (0, 1)]
    assert etude.open(handler).ranks.tolist() == [0, 1]


@pytest.mark.parametrize(
    "name",
    [
        "1794865958.12-TP-{}.trace.json.gz",
        "1794865958.12-TP-{}-DECODE.trace.json.gz",
        "rank{}.1794865958123547637.pt.trace.json.gz",
        "dp0_pp0_tp{0}_dcp0_ep0_rank{0}.1794865958123547637.pt.trace.json.gz",
    ],
)
def test_names_that_engines_give(tmp_path: Path, name: str) -> None:
    for rank in (0, 1):
        put(tmp_path / name.format(rank), rank_json(rank, 0, 50))
    assert [(f.rank, f.device.name) for f in runs.find_run(tmp_path)[1]] == [(r, name.format(r)) for r in (0, 1)]


def test_several_recordings_of_each_rank_are_told_apart(handler: Path, capsys) -> None:
    for rank in (0, 1):
        put(handler / handler_name(rank, STAMPS[1]), rank_json(rank, 0, 90))
    assert main(["breakdown", str(handler)]) == 2
    said = capsys.readouterr().err
    assert "`recording1` (2 ranks: " in said and "`recording2`" in said and f"choose one: {handler}/recording1" in said
    spans = []
    for number in (1, 2):
        found = runs.find_run(handler / f"recording{number}")[1]
        assert [f.device.name for f in found] == [handler_name(r, STAMPS[number - 1]) for r in (0, 1)]
        timing = etude.open_run(handler / f"recording{number}").timing
        spans.append(timing.span()[1] - timing.span()[0])
    assert spans == [70_000, 110_000]  # the kernel begins at 20 us and takes 50 or 90
    with pytest.raises(UsageError, match="no device trace"):
        runs.find_run(handler / "recording3")


def test_ranks_that_were_not_recorded_equally_often_are_refused(handler: Path) -> None:
    put(handler / handler_name(1, STAMPS[1]), rank_json(1, 0, 90))
    with pytest.raises(UsageError, match="rank 1 was recorded 2 times .* and rank 0 1 times"):
        runs.find_run(handler)


def test_recordings_of_one_process_stay_apart(tmp_path: Path, capsys) -> None:
    for stamp in STAMPS:
        content = rank_json(0, 0, 50)
        del content["distributedInfo"]
        put(tmp_path / handler_name(0, stamp), content)
    assert main(["breakdown", str(tmp_path)]) == 2
    assert f"choose one: {tmp_path / handler_name(0, STAMPS[0])}" in capsys.readouterr().err
    assert main(["breakdown", str(tmp_path / handler_name(0, STAMPS[1]))]) == 0


def test_a_world_that_is_larger_than_what_is_there_is_told(tmp_path: Path, capsys) -> None:
    for rank in (0, 2):
        content = rank_json(rank, 0, 50)
        content["distributedInfo"]["world_size"] = 5
        put(tmp_path / handler_name(rank, STAMPS[0]), content)
    assert main(["breakdown", str(tmp_path)]) == 0
    assert "2 of the 5 ranks of this run are present; missing: 1, 3-4" in capsys.readouterr().err
    assert main(["link", str(tmp_path), "-o", str(tmp_path / "job"), "-j", "1"]) == 0
    assert "missing: 1, 3-4" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["before", "behind", "nowhere"])
def test_what_a_file_says_of_itself(tmp_path: Path, where: str) -> None:
    events = device_json()["traceEvents"] * 3 + [{"ph": "M", "args": {"rank": 9}}]
    info = {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{"ranks": list(range(8))}]}
    content = {"before": {"distributedInfo": info, "traceEvents": events}, "nowhere": {"traceEvents": events},
               "behind": {"traceEvents": [*events, {"ph": "x" * (1 << 20)}], "distributedInfo": info}}  # fmt: skip
    put(tmp_path / "a.json.gz", content[where])
    (tmp_path / "a.json").write_text(json.dumps(content[where]))
    for name in ("a.json.gz", "a.json"):
        assert recordings.said(tmp_path / name) == (
            recordings.RecordedRank() if where == "nowhere" else recordings.RecordedRank(rank=3, world_size=8)
        )


# -- lists -------------------------------------------------------------------------------------------------------------


def test_files_one_by_one_are_one_job(handler: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [str(handler / handler_name(rank, STAMPS[0])) for rank in (0, 1)]
    (handler / "list.txt").write_text(f"# two ranks\n{handler_name(1, STAMPS[0])}\n\n{handler_name(0, STAMPS[0])}\n")
    results = []
    for args in ([str(handler)], files, files[::-1], [",".join(files)], [f"{handler}/*.json.gz"],
                 [f"@{handler}/list.txt"]):  # fmt: skip
        assert main(["breakdown", *args, "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert all(result == results[0] for result in results) and len(results[0]["ranks"]) == 2
    monkeypatch.setattr("etude.surface.cli.arguments.LONGEST", 10)  # a list that is too long for a path
    assert main(["breakdown", "--json", *files]) == 0
    assert json.loads(capsys.readouterr().out) == results[0]
    assert main(["link", ",".join(files), "-o", str(handler.parent / "job"), "-j", "1"]) == 0
    assert etude.open(",".join(files)).ranks.tolist() == [0, 1]


def test_commands_of_two_jobs_are_not_confused(handler: Path, capsys) -> None:
    files = [str(handler / handler_name(rank, STAMPS[0])) for rank in (0, 1)]
    assert main(["diff", *files]) == 1
    assert main(["diff", ",".join(files), str(handler)]) == 0
    assert main(["diff", *files, str(handler)]) == 2
    capsys.readouterr()
    assert main(["breakdown", files[0], str(handler / "none.json")]) == 2
    assert "none.json: no such file" in capsys.readouterr().err
    assert main(["breakdown", files[0], str(handler)]) == 2  # a folder is no file of a job


def test_bad_lists_are_refused(handler: Path, tmp_path: Path, capsys) -> None:
    first = handler / handler_name(0, STAMPS[0])
    put(tmp_path / "again.json.gz", rank_json(0, 0, 50))
    put(tmp_path / "alone.json.gz", {"schemaVersion": 1, "traceEvents": []})
    (tmp_path / "w.0.et").write_bytes(b"")
    (tmp_path / "empty.txt").write_text("\n")
    for path, problem in (
        (f"{first},{tmp_path}/again.json.gz", "both are the device trace of rank 0"),
        (f"{first},{tmp_path}/alone.json.gz", "does not name its rank"),
        (f"{first},{tmp_path}/w.0.et", "not a trace of PyTorch's profiler"),
        (f"{first},{tmp_path}/none.json", "no such file"),
        (f"{tmp_path}/no*.json", "no file matches"),
        (f"@{tmp_path}/none.txt", "cannot be read"),
        (f"@{tmp_path}/empty.txt", "does not name a file"),
    ):
        assert main(["breakdown", path]) == 2
        assert problem in capsys.readouterr().err


# -- as PyTorch writes them --------------------------------------------------------------------------------------------


def test_two_ranks_that_record_twice_with_the_handler_of_pytorch(tmp_path: Path, capsys) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: make test TORCH=1")
    ranks(2, PROGRAMS / "handler.py", tmp_path)
    assert len(list(tmp_path.glob("*.pt.trace.json.gz"))) == 4
    assert main(["info", str(tmp_path)]) == 2
    assert "`recording1` (2 ranks" in capsys.readouterr().err
    for number in (1, 2):
        job = etude.open(tmp_path / f"recording{number}")
        assert job.ranks.tolist() == [0, 1] and job.world_size == 2
        calls = [int((trace.kind == Kind.COLL).sum()) for trace in job.traces]
        assert calls[0] == calls[1] >= 2  # an all-reduce a step, at the least
        assert [f for f in check(job) if f.severity == "error"] == []
        steps = [set(trace.step[trace.step >= 0].tolist()) for trace in job.traces]
        assert steps[0] == steps[1] and len(steps[0]) == 2

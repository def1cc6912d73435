"""etude simulate, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest

from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.store import chakra
from etude.surface.cli import main
from tiny_jobs import GROUPS, ring

SMALL = """
name: small
device: {name: d}
levels: [{name: wire, kind: switch, size: 4, bandwidth: 1GB/s, latency: 100ns}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SMALL)
    return tmp_path


def written(folder: Path, job: Job, name: str = "w") -> str:
    place = folder / "run"
    place.mkdir()
    chakra.write_job(job.replace(name=name), place)
    return str(place / name)


def test_the_json_says_how_each_rank_spends_its_time(folder: Path, capsys: pytest.CaptureFixture[str]):
    path = written(folder, job_of("w", [ring(r, first_id=100) for r in range(4)], GROUPS))
    assert main(["simulate", path, "--system", str(folder / "small.yaml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"makespan_ns", "ranks", "links"} <= set(found)
    assert [row["rank"] for row in found["ranks"]] == [0, 1, 2, 3]
    assert max(row["finish_ns"] for row in found["ranks"]) == found["makespan_ns"]
    for row in found["ranks"]:
        parts = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
        assert sum(row[part] for part in parts) == row["span_ns"] <= row["finish_ns"]
        assert "peak_memory_bytes" not in row  # nothing says what is in memory


@pytest.mark.parametrize("network", ["links", "flow"])
def test_a_network_with_links_says_what_went_over_each(network: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    path = written(folder, job_of("w", [ring(r, first_id=100) for r in range(4)], GROUPS))
    asked = ["simulate", path, "--system", str(folder / "small.yaml"), "--network", network]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["makespan_ns"] > 0
    assert found["simulated_ranks"] == 4
    assert all(set(link) == {"link", "bytes", "busy_ns"} for link in found["links"])
    assert sum(link["bytes"] for link in found["links"]) > 0
    busy = [link["busy_ns"] for link in found["links"]]
    assert busy == sorted(busy, reverse=True)
    assert main([*asked, "--fold"]) == 2
    assert "cannot be folded" in capsys.readouterr().err


def test_the_timing_is_a_table_of_all_nodes(folder: Path):
    path = written(folder, job_of("w", [ring(r, first_id=100) for r in range(4)], GROUPS))
    for name in ("t.csv", "t.parquet"):
        out = str(folder / name)
        assert main(["simulate", path, "--system", str(folder / "small.yaml"), "--timing", out]) == 0
    table = pyarrow.csv.read_csv(folder / "t.csv")
    assert table.column_names == ["rank", "source_id", "start_ns", "end_ns"]
    assert table.to_pylist() == pyarrow.parquet.read_table(folder / "t.parquet").to_pylist()
    assert table["source_id"].to_pylist()[:5] == [100, 101, 102, 104, 105]
    assert table.num_rows == 20


def crossed() -> Job:
    builders = []
    for names in (("g", "h"), ("h", "g")):
        b = TraceBuilder()
        for n in names:
            b.add(Kind.COLL, group=n, collective=Collective.ALL_REDUCE, in_bytes=8)
        builders.append(b)
    return job_of("crossed", builders, {"g": [0, 1], "h": [1, 0]})


def test_a_deadlock_is_a_no_with_an_explanation(folder: Path, capsys: pytest.CaptureFixture[str]):
    path = written(folder, crossed())
    assert main(["simulate", path, "--system", str(folder / "small.yaml"), "--json"]) == 1
    told = capsys.readouterr()
    assert "waits for rank 1, which has not reached it" in told.err
    found = json.loads(told.out)["deadlock"]
    assert found["waiting"][0]["rank"] == 0
    assert found["waiting"][0]["waits_for"] == [1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--system", "nothing"], "unknown system `nothing`"),
        (["--collective", "all_reduce=magic"], "has no algorithm `magic`"),
        (["--collective", "all_reduce"], "is not NAME=VALUE"),
        (["--slow-rank", "x=2"], "`x` is not a rank"),
        (["--slow-rank", "1=fast"], "`fast` is not a number"),
        (["--slow-link", "0-9=2"], "rank 9 is outside the world of 4"),
        (["--failed-link", "0-1"], "between ranks 0 and 1 has failed"),
        (["--timing", "t.txt"], "times cannot be written as `.txt`"),
        (["--fold", "--jitter", "compute=0.1"], "with jitter no two ranks are equivalent"),
        (["--overlap", "memory=2"], "unknown name `memory`"),
        (["--remote-memory", "latency=1us"], "no bandwidth is given"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], text: str):
    path = written(folder, job_of("w", [ring(r) for r in range(4)], GROUPS))
    given = options if "--system" in options else ["--system", str(folder / "small.yaml"), *options]
    assert main(["simulate", path, *given]) == 2
    assert text in capsys.readouterr().err


def test_a_system_of_a_file_is_not_grown(folder: Path, capsys: pytest.CaptureFixture[str]):
    b = [TraceBuilder() for _ in range(5)]
    for one in b:
        one.add(Kind.COMP, duration_ns=5)
    path = written(folder, job_of("w", b))
    assert main(["simulate", path, "--system", str(folder / "small.yaml")]) == 2
    assert "no device for rank 4" in capsys.readouterr().err


def test_all_perturbations_at_once(folder: Path):
    path = written(folder, job_of("w", [ring(r) for r in range(4)], GROUPS))
    more = "--policy priority --compute scale=0.5 --eager 1KB --overlap compute=1.1 --jitter compute=0.1"
    more += " --jitter p2p=0.2 --slow-rank 3=1.2 --slow-link 0-1=2 --seed 3 --concurrent-network --no-fold"
    more += " --collective all_reduce=ring --remote-memory bandwidth=1GB/s --remote-memory latency=1us"
    assert main(["simulate", path, "--system", str(folder / "small.yaml"), *more.split()]) == 0

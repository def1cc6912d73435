"""Archives: what is kept of a run is what the analyses say, the same run is there once, several may write at a time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet

import etude
from etude.archive import TABLES, Entry, Lake, entry_of, fingerprint
from etude.cli import main
from etude.errors import FormatError, UsageError
from etude.model.schema import Collective, Kind
from timed_jobs import timed

SAMPLE = Path(etude.__file__).parent / "sample" / "gpt.rank0.kineto.json.gz"
COMP = {"kind": Kind.COMP, "name": "gemm", "cpu": 0, "stream": 7}
COLL = {"kind": Kind.COLL, "name": "sum", "cpu": 0, "stream": 9, "collective": Collective.ALL_REDUCE, "in_bytes": 800}


def run(late: int = 0):
    """Two ranks, two steps: 10 ns of compute, then a sum of 5 ns."""
    ranks = []
    for _ in range(2):
        rows = []
        for step, at in ((3, 100 + late), (4, 200 + late)):
            rows.append((COMP | {"step": step}, at, at + 10))
            rows.append((COLL | {"step": step}, at + 10, at + 15))
        ranks.append(rows)
    return timed(*ranks)


def test_what_is_kept_is_what_the_analyses_say(tmp_path: Path):
    lake, made = Lake(tmp_path / "lake"), entry_of(run(), path="here", version="1")
    assert lake.add(made) and len(lake) == 1 and made.run in lake
    told = lake.query("select * from runs").to_pylist()
    assert len(told) == 1 and told[0] | {"name": ""} == {
        "run": made.run, "name": "", "path": "here", "origin": "measured", "start_ns": 100, "span_ns": 115, "ranks": 2,
        "world_size": 2, "nodes": 8, "steps": 2, "system": None, "model": None, "etude": "1",
    }  # fmt: skip
    steps = lake.query("select rank, step, span_ns, compute_ns, exposed_comm_ns from steps order by rank, step")
    assert [list(row.values()) for row in steps.to_pylist()] == [[r, s, 15, 10, 5] for r in (0, 1) for s in (3, 4)]
    calls = lake.query("select collective, size_bytes, calls, median_transfer_ns from collectives").to_pylist()
    assert calls == [{"collective": "all_reduce", "size_bytes": 800, "calls": 2, "median_transfer_ns": 5}]
    assert lake.query("select count(*) as n from metrics where metric = 'avg_step_time'").to_pylist() == [{"n": 1}]


def test_the_same_run_is_recognised_and_another_is_not(tmp_path: Path):
    lake = Lake(tmp_path / "lake")
    assert lake.add(entry_of(run())) and not lake.add(entry_of(run())) and lake.add(entry_of(run(late=1)))
    assert len(lake) == 2
    assert lake.query("select count(*) as n from steps").to_pylist() == [{"n": 8}]
    assert lake.add(entry_of(run()), force=True)
    assert lake.query("select count(*) as n from steps").to_pylist() == [{"n": 8}]


def test_a_run_is_the_same_in_another_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["convert", str(SAMPLE), str(tmp_path / "job")]) == 0
    assert fingerprint(etude.open_run(SAMPLE)) == fingerprint(etude.open_run(tmp_path / "job"))


def test_plain_duckdb_opens_the_files(tmp_path: Path):
    Lake(tmp_path / "lake").add(entry_of(run()))
    for name, schema in TABLES.items():
        found = duckdb.sql(f"select * from read_parquet('{tmp_path}/lake/{name}/*.parquet')").to_arrow_table()
        assert found.schema.names == schema.names
    assert not list(tmp_path.rglob(".writing/*"))


def test_a_run_that_was_cut_off_is_not_listed_and_can_be_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lake, made = Lake(tmp_path / "lake"), entry_of(run())
    lake._prepare()
    replace = os.replace

    def fails(source: Path, target: Path) -> None:
        if target.parent.name == "runs":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as m:
        m.setattr(os, "replace", fails)
        with pytest.raises(KeyboardInterrupt):
            lake.add(made)
    assert made.run not in lake and len(lake) == 0
    assert (tmp_path / "lake" / "steps" / f"{made.run}.parquet").is_file()
    assert lake.query("select count(*) as n from steps").to_pylist() == [{"n": 0}]
    assert not list((tmp_path / "lake" / ".writing").iterdir())
    assert lake.add(made)
    assert lake.query("select count(*) as n from steps").to_pylist() == [{"n": 4}]


WRITER = """
import sys
from pathlib import Path
import pyarrow as pa
from etude.archive import TABLES, Entry, Lake
lake, first = Lake(Path(sys.argv[1])), int(sys.argv[2])
for number in range(first, first + 30):
    run = f"{number:032x}"
    rows = {n: pa.table([pa.array([run])] + [pa.nulls(1, f.type) for f in list(s)[1:]], schema=s)
            for n, s in TABLES.items()}
    lake.add(Entry(run, rows))
"""


def test_several_write_at_a_time_and_every_run_is_there_once(tmp_path: Path):
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    argv = [sys.executable, "-c", WRITER, str(tmp_path / "lake")]
    writers = [subprocess.Popen([*argv, str(first)], env=env) for first in (0, 15, 15)]
    assert [w.wait(timeout=300) for w in writers] == [0, 0, 0]
    lake = Lake(tmp_path / "lake")
    assert len(lake) == 45
    for name in TABLES:
        assert lake.query(f"select count(*) as n, count(distinct run) as d from {name}").to_pylist() == [
            {"n": 45, "d": 45}
        ]


def test_the_command_adds_lists_and_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lake = str(tmp_path / "a [1] lake")
    assert main(["archive", "add", str(SAMPLE), "--into", lake, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert first["added"] is True
    assert main(["archive", "add", str(SAMPLE), "--into", lake]) == 0
    assert "is there already" in capsys.readouterr().err
    assert main(["archive", "list", "--in", lake, "--json"]) == 0
    assert [row["run"] for row in json.loads(capsys.readouterr().out)] == [first["run"]]
    assert main(["archive", "query", "select count(*) as n from findings", "--in", lake, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["n"] > 0


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("select * from nowhere", "nowhere"),
        ("select * from read_csv('/etc/passwd')", "disabled"),
        ("drop view runs", "refused"),
        ("select 1; select 2", "2 statements"),
        ("copy runs to 'x.csv'", "refused"),
    ],
)
def test_queries_only_read_and_say_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sql: str, problem: str
):
    Lake(tmp_path / "lake").add(entry_of(run()))
    assert main(["archive", "query", sql, "--in", str(tmp_path / "lake")]) == 2
    assert problem in capsys.readouterr().err


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(UsageError, match=r"holds `thesis.txt`"):
        Lake(tmp_path).add(entry_of(run()))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    assert main(["archive", "list", "--in", str(tmp_path)]) == 2
    assert "is not an archive" in capsys.readouterr().err
    with pytest.raises(UsageError, match="not a fingerprint"):
        Lake(tmp_path / "new").add(Entry("../x", {}))


def test_a_damaged_file_is_named(tmp_path: Path):
    lake, made = Lake(tmp_path / "lake"), entry_of(run())
    lake.add(made)
    (tmp_path / "lake" / "steps" / f"{made.run}.parquet").write_bytes(b"nothing")
    with pytest.raises((FormatError, UsageError), match="parquet"):
        lake.query("select * from steps")


def test_files_are_plain_parquet_with_the_columns_of_the_page(tmp_path: Path):
    lake, made = Lake(tmp_path / "lake"), entry_of(run())
    lake.add(made)
    found = parquet.read_table(tmp_path / "lake" / "runs" / f"{made.run}.parquet")
    assert isinstance(found, pa.Table) and found.schema.names == TABLES["runs"].names
    page = (Path(__file__).resolve().parent.parent / "docs" / "archive.md").read_text()
    for name, schema in TABLES.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))
        assert all(f"`{column}`" in row for column in schema.names if column != "run"), name

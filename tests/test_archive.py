"""Archives: what is kept of a run is what the analyses say, the same run is there once, several may write at a time."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet

import etude
from etude.base.errors import FormatError, UsageError
from etude.capture.ingest.runs import WantedTimes
from etude.model.schema import Collective, Kind
from etude.surface.cli import main
from etude.tell.archive import TABLES, Lake, LakeEntry, entry_of, fingerprint
from timed_jobs import timed

SAMPLE = Path(etude.__file__).parent / "capture" / "sample" / "gpt.rank0.kineto.json.gz"
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
    for to, times in (
        ("parquet", WantedTimes()),
        ("et", WantedTimes(estimate=False)),
    ):  # a `.et` file does not say whose it has
        assert main(["convert", str(SAMPLE), str(tmp_path / to), "--to", to]) == 0
        assert fingerprint(etude.open_run(SAMPLE, times=times)) == fingerprint(etude.open_run(tmp_path / to))


def test_plain_duckdb_opens_the_files(tmp_path: Path):
    Lake(tmp_path / "lake").add(entry_of(run()))
    for name, schema in TABLES.items():
        found = duckdb.sql(f"select * from read_parquet('{tmp_path}/lake/{name}/*.parquet')").to_arrow_table()
        assert found.schema.names == schema.names
    assert [path.name for path in tmp_path.rglob(".writing/*")] == ["lock"]


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
    assert [path.name for path in (tmp_path / "lake" / ".writing").iterdir()] == ["lock"]
    assert lake.add(made)
    assert lake.query("select count(*) as n from steps").to_pylist() == [{"n": 4}]


def tiny(number: int, value: float = 0.0) -> LakeEntry:
    """A run with a row in each table, and one more metric."""
    key = f"{number:032x}"
    tables = {n: pa.table([pa.array([key])] + [pa.nulls(1, f.type) for f in list(s)[1:]], schema=s)
              for n, s in TABLES.items()}  # fmt: skip
    one = pa.table([[key], ["speed"], [value], ["1"]], schema=TABLES["metrics"])
    return LakeEntry(key, tables | {"metrics": pa.concat_tables([tables["metrics"], one])})


def speeds(lake: Lake) -> list[float]:
    return lake.query("select value from metrics where metric = 'speed' order by run")["value"].to_pylist()


def anyone(folder: Path, table: str) -> list[int]:
    """Rows and runs of a table, as a program without Etude sees them."""
    found = duckdb.sql(f"select count(*), count(distinct run) from read_parquet('{folder}/{table}/*.parquet')")
    return list(found.fetchall()[0])


def test_packed_runs_answer_as_before_and_can_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lake = Lake(tmp_path / "a [1] lake")  # DuckDB would take that for a pattern
    for number in range(5):
        lake.add(tiny(number, number))
    done = lake.compact()
    assert (done.runs, done.files_before, done.files_after) == (5, 6 * 6, 6 * 2)
    assert len(lake) == 5 and tiny(3).run in lake and not lake.add(tiny(3, 9)) and speeds(lake) == [0, 1, 2, 3, 4]
    assert lake.compact().runs == 0
    lake.add(tiny(7, 7))
    lake.add(tiny(3, 30), force=True)
    assert len(lake) == 6 and speeds(lake) == [0, 1, 2, 30, 4, 7]
    monkeypatch.setattr("etude.tell.archive.compact.LARGE", 5)  # the pack of five stays, with rows of run 3
    assert lake.compact().runs == 2
    assert len(lake) == 6 and speeds(lake) == [0, 1, 2, 30, 4, 7]
    monkeypatch.setattr("etude.tell.archive.compact.LARGE", 50)
    assert lake.compact().files_after == 12 and speeds(lake) == [0, 1, 2, 30, 4, 7]
    assert len(lake) == 6


def test_a_compaction_that_is_cut_off_anywhere_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    replace, unlink = os.replace, os.unlink
    left = 0

    def counted(call):
        def acts(*args: object, **named: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            call(*args, **named)

        return acts

    new, old = Lake(tmp_path / "new"), Lake(tmp_path / "old")
    for number in range(3):
        new.add(tiny(number, number))
    shutil.copytree(new.folder, old.folder)
    old.compact()
    old.add(tiny(1, 10), force=True)
    cuts = 0
    for moment in range(0, 90, 3):
        lake, expected = Lake(tmp_path / str(moment)), [0, 10, 2] if moment % 2 else [0, 1, 2]
        shutil.copytree((old if moment % 2 else new).folder, lake.folder)
        left = moment
        with monkeypatch.context() as m:
            m.setattr(os, "replace", counted(replace))
            m.setattr(os, "unlink", counted(unlink))
            m.setattr(Path, "unlink", lambda self, missing_ok=False: os.unlink(self))
            try:
                lake.compact()
            except KeyboardInterrupt:
                cuts += 1
        assert speeds(lake) == expected and len(lake) == 3
        lake.compact()
        assert speeds(lake) == expected
        assert {name: anyone(lake.folder, name) for name in TABLES} == {
            name: [6 if name == "metrics" else 3, 3] for name in TABLES
        }
        if left > 0:
            break
    assert cuts > 5


WRITER = """
import sys
from pathlib import Path
import pyarrow as pa
from etude.tell.archive import TABLES, Lake
from types import SimpleNamespace
lake, first = Lake(Path(sys.argv[1])), int(sys.argv[2])
for number in range(first, first + 20):
    run = f"{number:032x}"
    rows = {n: pa.table([pa.array([run])] + [pa.nulls(1, f.type) for f in list(s)[1:]], schema=s)
            for n, s in TABLES.items()}
    lake.add(SimpleNamespace(run=run, tables=rows))
"""


def test_several_write_compact_and_ask_at_a_time_and_every_run_is_there_once(tmp_path: Path):
    lake = Lake(tmp_path / "lake")
    lake.add(tiny(99))
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    argv = [sys.executable, "-c", WRITER, str(tmp_path / "lake")]
    writers = [subprocess.Popen([*argv, str(first)], env=env) for first in (0, 10)]
    seen = []
    while any(w.poll() is None for w in writers) or len(seen) < 3:
        lake.compact()
        seen.append(lake.query("select count(*) as n, count(distinct run) as d from steps").to_pylist()[0])
    assert [w.wait(timeout=300) for w in writers] == [0, 0]
    assert all(one["n"] == one["d"] for one in seen)
    assert [one["n"] for one in seen] == sorted(one["n"] for one in seen)
    lake.compact()
    assert len(lake) == 31
    for name in TABLES:
        assert anyone(lake.folder, name)[1] == 31
        assert lake.query(f"select count(distinct run) as d from {name}").to_pylist() == [{"d": 31}]


def test_the_command_adds_lists_and_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lake = str(tmp_path / "a [1] lake")
    assert main(["archive", "add", str(SAMPLE), "--into", lake, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert first["added"] is True
    assert main(["archive", "add", str(SAMPLE), "--into", lake]) == 0
    assert "already there" in capsys.readouterr().err
    assert main(["archive", "list", "--in", lake, "--json"]) == 0
    assert [row["run"] for row in json.loads(capsys.readouterr().out)] == [first["run"]]
    assert main(["archive", "query", "select count(*) as n from findings", "--in", lake, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]["n"]
    assert found > 0
    assert main(["archive", "compact", "--in", lake, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"runs": 1, "files_before": 11, "files_after": 12}
    assert main(["archive", "query", "select count(*) as n from findings", "--in", lake, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["n"] == found
    assert main(["archive", "compact", "--in", str(tmp_path)]) == 2


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
    with pytest.raises(UsageError, match=r"contains `thesis.txt`"):
        Lake(tmp_path).add(entry_of(run()))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    assert main(["archive", "list", "--in", str(tmp_path)]) == 2
    assert "is not an archive" in capsys.readouterr().err
    with pytest.raises(UsageError, match="not a fingerprint"):
        Lake(tmp_path / "new").add(LakeEntry("../x", {}))


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

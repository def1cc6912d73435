"""Folders of results: of every version read, damaged in every way refused by name. `benchmarks/fuzz_results.py` runs
many more cases."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fuzz_results as fuzz
from etude.base.errors import EtudeError, FormatError
from etude.base.results import TableSchema, read_table
from etude.base.shapes import COUNT, SECONDS, SHARE, TEXT, Shape, ValuePlace, check_value, keys, several
from etude.surface.cli import main
from etude.world.fleet import read_fleet, write_fleet
from etude.world.serve.stored import read_served

FOLDERS = sorted(folder.name for folder in fuzz.GOLDEN.iterdir())
NOT_TAKEN = dict.fromkeys(("images", "rates", "served", "workflow"), ("report both",)) | {
    "a_group": ("faults",)
}  # one stream a page; its events are not faults
RECORDS = [
    name for name in FOLDERS if any((fuzz.GOLDEN / name / f"{one}.json").exists() for one in ("fleet", "served"))
]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_damaged_folder_is_read_or_refused(name: str, tmp_path: Path):
    folder = fuzz.GOLDEN / name
    whole = fuzz.heard_of(folder, None, tmp_path)
    assert {verb: heard for verb, heard in whole.items() if heard.code and verb not in NOT_TAKEN.get(name, ())} == {}
    found = {one.name: fuzz.failures(folder, one, tmp_path) for one in fuzz.sample(folder, 12, seed=0)}
    assert {what: wrong for what, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("name", RECORDS)
def test_folders_of_the_first_version_are_read(name: str):
    folder = fuzz.GOLDEN / name
    read = read_fleet if (folder / "fleet.json").exists() else read_served
    record = json.loads(next(folder.glob("*.json")).read_text())
    found = read(folder)
    assert record.pop("format").endswith(" 1") and record.pop("tables", None) in (None, sorted(found.tables))
    assert found.record == record


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A folder of the version of today."""
    old = read_fleet(fuzz.GOLDEN / "jobs")
    write_fleet(old.tables, old.record, tmp_path / "fleet")
    return tmp_path / "fleet"


def test_what_is_written_is_read_and_says_its_rows(fleet: Path):
    old, new = read_fleet(fuzz.GOLDEN / "jobs"), read_fleet(fleet)
    assert (new.record, new.outcome) == (old.record, "jobs")
    assert all(new.tables[name].equals(table) for name, table in old.tables.items())
    head = json.loads((fleet / "fleet.json").read_text())
    assert (head["format"], head["outcome"], head["tables"]) == ("etude fleet 2", "jobs", {"jobs": 6, "states": 15})


def changed(folder: Path, **keys_given: object) -> None:
    path = folder / "fleet.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys_given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"format": "etude fleet 3"}, "fleet.json: has version 3 of `etude fleet`, which is newer"),
        ({"format": "etude fleet 0"}, "version 0 of `etude fleet`, which never was"),
        ({"format": "etude boat 1"}, "is not a fleet run: its format is `etude boat 1`"),
        ({"outcome": "boats"}, "unknown outcome `boats`"),
        ({"tables": {"jobs": 5, "states": 15}}, "jobs.parquet: has 6 rows, but fleet.json says 5"),
        ({"tables": {"jobs": 6}}, "tables: there is no table `states`"),
        ({"tables": {"jobs": 6, "states": 15, "../x": 1}}, "tables: unknown table `../x`"),
        ({"duration_s": "long"}, "fleet.json: duration_s: expected a number, not `long`"),
        ({"duration_s": -3}, "duration_s: -3 is less than"),
        ({"lost_s": {"idle": 1.0}}, "lost_s: has no `detect`"),
        ({"wait_s": None}, "wait_s: expected keys and values, not null"),
        ({"jobs_done": 1.5}, "jobs_done: expected a whole number, not 1.5"),
        ({"utilisation": 1e300}, "utilisation: 1e\\+300 is more than 1e\\+30"),
    ],
)
def test_a_record_is_refused_by_name(fleet: Path, given: dict[str, object], said: str):
    changed(fleet, **given)
    with pytest.raises(FormatError, match=said.replace("(", "\\(")):
        read_fleet(fleet)
    assert main(["compare", str(fleet), str(fleet)]) == 2


def test_a_table_is_refused_by_name(fleet: Path):
    whole = pq.read_table(fleet / "jobs.parquet")
    at = whole.column_names.index("gpus")
    for column, said in (
        (pa.array(["x"] * 6), "column `gpus`: expected whole numbers, not string"),
        (pa.array([1, None, 1, 1, 1, 1]), "column `gpus`: 1 values are missing"),
        (pa.array([1, -4, 1, 1, 1, 1]), "column `gpus`: -4 is less than 0"),
    ):
        pq.write_table(whole.set_column(at, "gpus", column), fleet / "jobs.parquet")
        with pytest.raises(FormatError, match=f"jobs.parquet: {said}"):
            read_fleet(fleet)
    pq.write_table(whole.drop_columns(["gpus"]), fleet / "jobs.parquet")
    with pytest.raises(FormatError, match="jobs.parquet: has no column `gpus`"):
        read_fleet(fleet)
    (fleet / "jobs.parquet").write_bytes(b"x")
    with pytest.raises(FormatError, match="jobs.parquet: is not a fleet run"):
        read_fleet(fleet)


def test_columns_in_order_and_marks_of_a_newer_version(tmp_path: Path):
    schema, file = TableSchema({"a": SECONDS, "b": SECONDS}, ordered=(("a", "b"),)), tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1.0, 5.0], "b": [2.0, 4.0]}), file)
    with pytest.raises(FormatError, match="row 1: `a` is 5, after `b`, 4"):
        read_table(file, schema, "a table")
    pq.write_table(pa.table({"a": [1.0], "b": [2.0]}).replace_schema_metadata({"etude": "etude x 3"}), file)
    assert len(read_table(file, schema, "a table", known={"etude x": 3})) == 1
    with pytest.raises(FormatError, match="version 3 of `etude x`, which is newer"):
        read_table(file, schema, "a table", known={"etude x": 2})


def test_shapes_by_hand():
    shape = keys(a=COUNT, b=SHARE.or_none(), c=several(keys(TEXT), 1), d=Shape("text", among=("x", "y")))
    good = {"a": 3, "b": None, "c": [{"k": "v"}], "d": "x", "more": {"of": [1, None, "it"]}}
    check_value(good, shape, ValuePlace("f"))
    for wrong, said in (
        ({"a": True}, "f: a: expected a whole number, not True"),
        ({"b": 1.5}, "f: b: 1.5 is more than 1"),
        ({"c": []}, "f: c: has 0 entries, but needs 1"),
        ({"c": [{"k": 1}]}, r"f: c\[0\].k: expected a text, not 1"),
        ({"d": "z"}, "f: d: `z` is not known; known: x, y"),
        ({"more": float("nan")}, "f: more: nan is not a number"),
        ({"more": [10**40]}, r"f: more\[0\]: 1000"),
        ({"more": 1e-300}, "f: more: 1e-300 is too small"),
    ):
        with pytest.raises(FormatError, match=said):
            check_value(good | wrong, shape, ValuePlace("f"))
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    with pytest.raises(FormatError, match="nested too deeply"):
        check_value(good | {"more": deep}, shape, ValuePlace("f"))


def test_answers_of_a_study_that_were_changed_are_refused(tmp_path: Path):
    from etude.decide.study.results import FILE, JOURNAL, kept_in, settle

    place = tmp_path / "study"
    shutil.copytree(fuzz.GOLDEN / "study", place)
    with kept_in(place) as old:  # of the first version, without digests
        known = old.items()
        settle(place, old)
    assert len(known) == 3
    table = pq.read_table(place / FILE)
    answers = [text.replace('\\"y\\": 4', '\\"y\\": 5') for text in table["answers"].to_pylist()]
    changed_table = table.set_column(table.column_names.index("answers"), "answers", pa.array(answers))
    assert answers != table["answers"].to_pylist()
    pq.write_table(changed_table, place / FILE)
    with pytest.raises(EtudeError, match="the answer is not the one that was stored"), kept_in(place):
        pass
    (place / FILE).unlink()
    with kept_in(place) as results:
        results.keep("k", "c", {"answers": [{"code": 0, "out": "{}"}], "error": ""})
    with (place / JOURNAL).open("a") as journal:
        journal.write('{"key": ["x"], "commands": "", "answers": [], "error": ""}\n')
        journal.write('{"key": "d", "commands": "", "answers": [], "error": "", "digest": "0"}\n')
    with kept_in(place) as results:
        assert [key for key, _ in results.items()] == ["k"]

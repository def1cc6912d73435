"""Damaged folders of results against every verb that reads them.

Each folder of `golden/results` is copied, one thing in it is damaged (a value of its JSON, a column or a file), and
each verb that takes such folders reads the copy. A verb answers, or refuses with an error of Etude's; anything else
is a failure. `test_fuzz_results.py` has a fixed sample; `benchmarks/fuzz_results.py` runs thousands.
"""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from etude.base.errors import EtudeError
from etude.surface.cli import main

GOLDEN = Path(__file__).parent / "golden" / "results"
JOB = "job"
"""A folder that belongs to what is damaged, and is whole."""
BUG = "this is a bug in etude"
GONE = object()
VALUES: tuple[Any, ...] = (
    GONE, None, True, -1, 0, 0.5, 10**25, -1e300, 1e-310, 1e308, "", "x", "1", [], {}, [[]], {"a": None}, [None],
)  # fmt: skip
FORMATS = ("etude fleet 0", "etude fleet 99", "etude served 99", "etude images 1", "etude workflow 2", "fleet", 7, None)


@dataclass(frozen=True)
class Damage:
    """One damage of a folder, by a name that says where it is."""

    name: str
    apply: Callable[[Path], None]


# -- what may be damaged -----------------------------------------------------------------------------------------------


def damages(folder: Path) -> list[Damage]:
    """All damages of a folder, always in the same order."""
    found: list[Damage] = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.parent.name != JOB):
        name = str(file.relative_to(folder))
        found += _of_file(file, name)
        if file.suffix == ".json":
            found += _of_json(file, name)
        elif file.suffix == ".parquet":
            found += _of_table(file, name)
    return found


def sample(folder: Path, count: int, seed: int) -> list[Damage]:
    """This number of them, in the order of a seed."""
    found = damages(folder)
    random.Random(f"{seed} {folder.name}").shuffle(found)
    return found[:count]


def _of_file(file: Path, name: str) -> Iterator[Damage]:
    data = file.read_bytes()

    def put(what: str, content: bytes) -> Damage:
        return Damage(f"{name}: {what}", lambda place: _write(place / name, content))

    yield Damage(f"{name}: gone", lambda place: (place / name).unlink())
    yield Damage(f"{name}: a folder", lambda place: _folder(place / name))
    yield put("empty", b"")
    yield put("other bytes", b"\xff\xfe\x00" * 40)
    yield put("nested", b"[" * 20_000)
    for part in (0.1, 0.5, 0.9, 0.99):
        yield put(f"cut off at {part}", data[: int(len(data) * part)])
    chance = random.Random(len(data))
    for k in range(12):
        changed = bytearray(data)
        for _ in range(1 + k // 4):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        yield put(f"flipped {k}", bytes(changed))


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _of_json(file: Path, name: str) -> Iterator[Damage]:
    whole = json.loads(file.read_text("utf-8"))
    for at in _places(whole):
        for value in FORMATS if at == ("format",) else VALUES:
            shown = "gone" if value is GONE else json.dumps(value)[:20]
            yield Damage(f"{name}: {'.'.join(map(str, at))} = {shown}", _json_changed(name, at, value))
    yield Damage(f"{name}: more keys", _json_changed(name, ("", "a"), {"b": [1, None]}))


def _places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values; of a list only of the first entries."""
    entries = list(value.items()) if isinstance(value, dict) else list(enumerate(value))[:2]
    for key, inner in entries:
        yield (*before, key)
        if isinstance(inner, dict | list):
            yield from _places(inner, (*before, key))


def _json_changed(name: str, at: tuple[Any, ...], value: Any) -> Callable[[Path], None]:
    def change(place: Path) -> None:
        whole = json.loads((place / name).read_text("utf-8"))
        inner = whole
        for key in at[:-1]:
            inner = inner[key] if not isinstance(inner, dict) or key in inner else inner.setdefault(key, {})
        if value is GONE:
            del inner[at[-1]]
        else:
            inner[at[-1]] = value
        (place / name).write_text(json.dumps(whole), "utf-8")

    return change


def _of_table(file: Path, name: str) -> Iterator[Damage]:
    yield Damage(f"{name}: no rows", _table_changed(name, lambda t: t.slice(0, 0)))
    yield Damage(f"{name}: a row less", _table_changed(name, lambda t: t.slice(0, max(len(t) - 1, 0))))
    yield Damage(f"{name}: no columns", _table_changed(name, lambda t: t.select([])))
    for column in pq.read_schema(file).names:
        for what, make in COLUMNS.items():
            yield Damage(f"{name}: {column} {what}", _column_changed(name, column, make))
        yield Damage(f"{name}: {column} gone", _table_changed(name, lambda t, c=column: t.drop_columns([c])))
        yield Damage(f"{name}: {column} twice", _table_changed(name, lambda t, c=column: _twice(t, c)))


def _twice(table: pa.Table, name: str) -> pa.Table:
    return pa.table(
        [*table.columns, table.column(table.column_names.index(name))],
        schema=pa.schema([*table.schema, table.schema.field(name)]),
    )


def _of(values: list[Any], kind: pa.DataType) -> Callable[[int], pa.Array]:
    return lambda n: pa.array([values[k % len(values)] for k in range(n)], kind)


COLUMNS: dict[str, Callable[[int], pa.Array]] = {
    "as text": _of(["x", "1"], pa.string()),
    "null": _of([None], pa.null()),
    "some null": _of([1.0, None], pa.float64()),
    "null numbers": _of([None], pa.int64()),
    "NaN": _of([float("nan")], pa.float64()),
    "infinite": _of([1.0, float("inf")], pa.float64()),
    "negative": _of([-1, -(2**40)], pa.int64()),
    "huge": _of([1e308, 1.0], pa.float64()),
    "largest": _of([2**63 - 1, 0], pa.int64()),
    "tiny": _of([1e-310], pa.float64()),
    "zero": _of([0], pa.int64()),
    "unsigned": _of([2**64 - 1], pa.uint64()),
    "flags": _of([True, False], pa.bool_()),
    "lists": _of([[1], []], pa.list_(pa.int64())),
    "bytes": _of([b"\xff\xfe"], pa.binary()),
    "times": _of([1], pa.timestamp("ns")),
    "records": _of([{"a": 1}], pa.struct([("a", pa.int64())])),
}


def _column_changed(file: str, name: str, make: Callable[[int], pa.Array]) -> Callable[[Path], None]:
    def change(table: pa.Table) -> pa.Table:
        return table.set_column(table.column_names.index(name), name, make(len(table)))

    return _table_changed(file, change)


def _table_changed(file: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    def apply(place: Path) -> None:
        with pq.ParquetFile(place / file) as opened:
            table = opened.read()
        pq.write_table(change(table), place / file)

    return apply


# -- who reads them ----------------------------------------------------------------------------------------------------


def readings(place: Path, whole: Path, work: Path) -> dict[str, Callable[[], Heard]]:
    """Verb -> what it says of the folder. `whole` is the folder without damage."""
    found: dict[str, Callable[[], Heard]] = {}
    names = sorted(file.stem for file in whole.glob("*.parquet"))
    if (whole / "served.json").exists() or (whole / "fleet.json").exists():
        found["report"] = lambda: said(["report", str(place), "-o", str(work / "page.html"), "-f"])
        found["report both"] = lambda: said(["report", str(whole), str(place), "-o", str(work / "page.html"), "-f"])
        found["compare"] = lambda: said(["compare", str(whole), str(place), "--json"])
        found["compare back"] = lambda: said(["compare", str(place), str(whole)])
    if names and not {"results", "times"} & set(names):
        asked = " union all ".join(f"select count(*) from {name}" for name in names)
        found["query"] = lambda: said(["query", str(place), f"{asked}", "--csv"])
        found["query rows"] = lambda: said(["query", str(place), f"select * from {names[0]} limit 3", "--json"])
    if "requests" in names and "passes" in names:
        found["requests"] = lambda: said(["requests", str(place), "--json"])
        found["requests each"] = lambda: said(["requests", str(place), str(whole), "--each", "--csv"])
    if "events" in names and (whole / "fleet.json").exists():
        found["faults"] = lambda: called(lambda: _events(place))
    if "results" in names:
        found["answers"] = lambda: called(lambda: _answers(place))
    if "times" in names:
        words = ["breakdown", str(whole / JOB), "--timing", str(place / "times.parquet")]
        found["times"] = lambda: said(words)
    if (whole / "runs").is_dir():
        found["archive list"] = lambda: said(["archive", "list", "--in", str(place)])
        for table in ("runs", "metrics", "steps", "collectives", "findings", "cards"):
            asked = ["archive", "query", f"select * from {table}", "--in", str(place), "--json"]
            found[f"archive {table}"] = lambda asked=asked: said(asked)
        found["archive compact"] = lambda: said(["archive", "compact", "--in", str(place)])
        found["archive compacted"] = lambda: said(["archive", "list", "--in", str(place)])
    if (whole / "trend.json").exists():
        job = str(GOLDEN / "times" / JOB)
        found["jitter"] = lambda: said(["simulate", job, "-s", "dgx-h100", "--jitter", f"@{place / 'trend.json'}"])
    if (whole / "node.json").exists():
        found["qualify"] = lambda: called(lambda: _node(place))
    return found


class Heard(NamedTuple):
    """The exit code of a verb, and its error if that is not one of Etude's."""

    code: int
    problem: str = ""


def said(words: list[str]) -> Heard:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    text = err.getvalue()
    return Heard(code, text.partition("error: ")[2].partition("\n")[0] if BUG in text else "")


def called(read: Callable[[], object]) -> Heard:
    try:
        read()
    except EtudeError as problem:
        return Heard(problem.exit_code)
    except Exception as problem:
        return Heard(2, f"{type(problem).__name__}: {problem}")
    return Heard(0)


def _events(place: Path) -> None:
    from etude.world.fleet.events import read_events

    read_events(place / "events.parquet", nodes=4)


def _answers(place: Path) -> None:
    from etude.decide.study.functions import columns_of
    from etude.decide.study.results import kept_in, settle

    with kept_in(place) as results:
        for answer in [found for _, found in results.items()]:
            columns_of(answer)
        settle(place, results)


def _node(place: Path) -> None:
    from etude.run.qualify import read_node

    read_node(place / "node.json")


def folders(work: Path) -> list[Path]:
    """The folders of `golden/results`, and each that has a record once more, as it is written today."""
    from etude.base.results import write_results
    from etude.world.fleet import read_fleet, write_fleet
    from etude.world.serve.stored import read_served
    from etude.world.serve.stored.schema import IMAGES, SERVED, WORKFLOW

    made = []
    for old in sorted(GOLDEN.iterdir()):
        new = work / "today" / f"{old.name}-today"
        new.parent.mkdir(exist_ok=True)
        if (old / "fleet.json").exists():
            found = read_fleet(old)
            write_fleet(found.tables, found.record, new)
        elif (old / "served.json").exists():
            served = read_served(old)
            schema = WORKFLOW if "sessions" in served.tables else IMAGES if "tasks" in served.tables else SERVED
            write_results(new, "served.json", schema, served.record, served.tables)
        made += [old, *([new] if new.exists() else [])]
    return made


def failures(folder: Path, damage: Damage, work: Path) -> dict[str, str]:
    """Verb -> its failure, for one damage of a folder."""
    return {verb: heard.problem for verb, heard in heard_of(folder, damage, work).items() if heard.problem}


def heard_of(folder: Path, damage: Damage | None, work: Path) -> dict[str, Heard]:
    """What every verb says of a copy of the folder, damaged or whole."""
    place = work / folder.name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
    if damage is not None:
        damage.apply(place)
    return {verb: read() for verb, read in readings(place, folder, work).items()}

"""What tasks have answered, by key: one Parquet file, and next to it, while a study runs, a journal that a kill leaves
whole but for its last line.

Each answer has a digest, so that one that was damaged is not taken for what a command said: in the file it is refused,
in the journal it is asked again.
"""

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from etude.base.errors import FormatError, UsageError
from etude.base.files import writing
from etude.base.results import TableSchema, marked, read_table
from etude.base.shapes import TEXT, WHOLE, ValuePlace, check_value, keys, of_each, several
from etude.decide.study.opens import is_as_it_was
from etude.decide.study.tasks import Answer

FILE = "results.parquet"
JOURNAL = "results.journal"
FIELDS = ("commands", "answers", "error", "opened")
FORMAT: Final = "etude answers 3"
"""Version 1 had no digests and no mark, version 2 did not say what was read."""
TABLE: Final = TableSchema(of_each(TEXT, "key commands answers error") | of_each(TEXT.if_there(), "opened digest"))
ROW: Final = keys(
    **of_each(TEXT, "key commands error"),
    answers=several(keys(code=WHOLE, out=TEXT)),
    opened=keys(TEXT),
    digest=TEXT.if_there(),
)
HINT: Final = "remove it, or use another --out"


class Results:
    """Answers by key. `keep` puts one where a kill cannot lose it."""

    def __init__(self, known: dict[str, Answer] | None = None, journal: IO[str] | None = None) -> None:
        self._known = known or {}
        self._journal = journal

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Answer:
        return self._known[key]

    def keep(self, key: str, commands: str, found: Answer) -> None:
        self._known[key] = {"commands": commands, "opened": {}} | {
            name: found[name] for name in FIELDS if name in found
        }
        if self._journal is not None:
            row = {"key": key, **self._known[key]}
            self._journal.write(json.dumps(row | {"digest": _digest(row)}) + "\n")
            self._journal.flush()

    def items(self) -> list[tuple[str, Answer]]:
        """In the order of the keys."""
        return sorted(self._known.items())


@contextmanager
def kept_in(folder: Path | None, again: bool = False) -> Iterator[Results]:
    """The results of a folder, to be added to; `again`: what failed before is not taken. None: nothing is written."""
    if folder is None:
        yield Results()
        return
    with (folder / JOURNAL).open("a+", encoding="utf-8") as journal:
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError("another run of this study is in progress", where=str(folder)) from None
        known = {**_table(folder / FILE), **_lines(journal)}
        known = {key: found for key, found in known.items() if is_as_it_was(found["opened"])}
        if again:
            known = {key: found for key, found in known.items() if not found["error"]}
        journal.write("\n")  # closes a line that was cut off
        yield Results(known, journal)


def forget(folder: Path) -> None:
    """Drops the results of a folder, so that the next run starts over."""
    for name in (FILE, JOURNAL):
        (folder / name).unlink(missing_ok=True)


def settle(folder: Path, results: Results) -> None:
    """All answers of a study in its Parquet file, in the order of their keys; the journal has done its work.

    What the study does not ask for any more is kept too: it may again.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = results.items()
    columns = {
        "key": [key for key, _ in rows],
        "commands": [found["commands"] for _, found in rows],
        "answers": [json.dumps(found["answers"]) for _, found in rows],
        "error": [found["error"] for _, found in rows],
        "opened": [json.dumps(found["opened"]) for _, found in rows],
        "digest": [_digest({"key": key, **found}) for key, found in rows],
    }
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    with writing(folder / FILE, force=True) as path:
        pq.write_table(marked(table, FORMAT), path, compression="zstd")
    (folder / JOURNAL).unlink(missing_ok=True)


def _table(path: Path) -> dict[str, Answer]:
    if not path.exists():
        return {}
    table = read_table(path, TABLE, "a file of a study", hint=HINT, known={"etude answers": 3})
    found: dict[str, Answer] = {}
    for number, row in enumerate(table.to_pylist()):
        place = ValuePlace(str(path), f"row {number}", HINT)
        try:
            whole = row | {"answers": json.loads(row["answers"]), "opened": json.loads(row.get("opened") or "{}")}
        except (ValueError, RecursionError):
            raise place.wrong("`answers` or `opened` is not JSON") from None
        _check(whole, place)
        found[row["key"]] = _record(whole)
    return found


def _lines(journal: IO[str]) -> dict[str, Answer]:
    journal.seek(0)
    found: dict[str, Answer] = {}
    for line in journal:
        try:
            row: Any = json.loads(line)
            _check(row, ValuePlace(JOURNAL))
        except (ValueError, RecursionError, FormatError):
            continue  # empty, cut off by a kill, or damaged: it is asked again
        found[row["key"]] = _record(row)
    return found


def _check(row: Any, place: ValuePlace) -> None:
    """Raises FormatError if an answer is damaged; one without a digest is checked for its types alone."""
    check_value(row, ROW, place)
    if row.get("digest", "") not in ("", _digest(row)):
        raise place.wrong("the answer is not the one that was stored")


def _digest(row: Mapping[str, Any]) -> str:
    whole = json.dumps([row[name] for name in ("key", *FIELDS)], sort_keys=True)
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _record(row: Mapping[str, Any]) -> Answer:
    return {name: row[name] for name in FIELDS}

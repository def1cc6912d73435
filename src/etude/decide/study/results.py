"""What tasks have answered, by key: one Parquet file, and next to it, while a study runs, a journal that a kill leaves
whole but for its last line."""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from etude.base.errors import UsageError
from etude.base.files import writing
from etude.decide.study.tasks import Answer

FILE = "results.parquet"
JOURNAL = "results.journal"
FIELDS = ("commands", "answers", "error")


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
        self._known[key] = {"commands": commands, "answers": found["answers"], "error": found["error"]}
        if self._journal is not None:
            self._journal.write(json.dumps({"key": key, **self._known[key]}) + "\n")
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
    }
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    with writing(folder / FILE, force=True) as path:
        pq.write_table(table, path, compression="zstd")
    (folder / JOURNAL).unlink(missing_ok=True)


def _table(path: Path) -> dict[str, Answer]:
    if not path.is_file():
        return {}
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path, columns=["key", *FIELDS]).to_pylist()
    except (pa.ArrowException, OSError):
        raise UsageError("is not a file of a study", where=str(path), hint="remove it, or use another --out") from None
    return {row["key"]: _record(row | {"answers": json.loads(row["answers"])}) for row in rows}


def _lines(journal: IO[str]) -> dict[str, Answer]:
    journal.seek(0)
    found: dict[str, Answer] = {}
    for line in journal:
        try:
            row: Any = json.loads(line)
        except ValueError:
            continue  # empty, or cut off by a kill
        if isinstance(row, dict) and {"key", *FIELDS} <= set(row):
            found[row["key"]] = _record(row)
    return found


def _record(row: Mapping[str, Any]) -> Answer:
    return {name: row[name] for name in FIELDS}

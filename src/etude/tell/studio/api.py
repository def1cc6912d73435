"""What the page asks for: each function takes the session and what is given, and returns what is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from etude.base.errors import UsageError
from etude.tell.studio import windows
from etude.tell.studio.session import StudioRun, StudioSession
from etude.tell.view.slices import Sort

Answer = Callable[[StudioSession, dict[str, Any]], Any]


class ColumnsAnswer(msgspec.Struct):
    """An answer of columns: what is said of them as JSON, and arrays one after the other."""

    says: dict[str, Any]
    columns: list[Any]

    def to_bytes(self) -> bytes:
        """Length of the JSON as 4 bytes, the JSON, then each column, at a multiple of 8."""
        sizes = [[str(c.dtype), len(c)] for c in self.columns]
        head = msgspec.json.encode({**self.says, "columns": sizes})
        head += b" " * (-(len(head) + 4) % 8)
        body = [len(head).to_bytes(4, "little"), head]
        for column in self.columns:
            plain = column.tobytes()
            body += [plain, b"\0" * (-len(plain) % 8)]
        return b"".join(body)


def contents(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """What is open."""
    return {
        "runs": [_about(one) for one in session.runs],
        "sorts": [sort.label for sort in Sort],
        "out": None if session.out is None else str(session.out),
    }


def _about(one: StudioRun) -> dict[str, Any]:
    index = one.index
    roles = [index.role_of(at) for at in range(len(index.ranks))]
    return {
        "name": str(index.head["name"]),
        "path": str(one.source.path),
        "words": one.words,
        "python": one.python,
        "timing": index.head["timing"],
        "system": index.head["system"],
        "span_ns": index.span_ns,
        "slices": index.head["slices"],
        "untimed": index.head["untimed"],
        "nodes": index.head["nodes"],
        "ranks": index.ranks.tolist(),
        "roles": roles,
        "index": str(index.folder),
    }


def rows(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """The rows of some ranks."""
    return {"rows": windows.rows_of_ranks(session.run(given).index, numbers(given, "ranks"))}


def window(session: StudioSession, given: dict[str, Any]) -> ColumnsAnswer:
    """What is drawn of some rows in a window. Times are in ns, as numbers of 64 bits."""
    index = session.run(given).index
    says, columns = windows.window(
        index, _rows(given), whole(given, "first_ns"), whole(given, "last_ns"), whole(given, "pixels")
    )
    return ColumnsAnswer(says, columns)


def names(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """All names, in the order of their numbers, cut where they are very long."""
    return {"names": [name[: windows.LONGEST_NAME] for name in session.run(given).index.names]}


def search(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Names that contain a text, and the next slice of such a name on the ranks that are drawn."""
    index, wanted = session.run(given).index, text(given, "text")
    found = windows.found_names(index, wanted)
    after = whole(given, "after_ns") if "after_ns" in given else -1
    return {"names": found, "next": windows.next_slice(index, numbers(given, "ranks"), wanted, after)}


def slice_at(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """The slice of a row at a time, or the one before or after it."""
    rank, row, time_ns, by = (whole(given, name) for name in ("rank", "row", "time_ns", "by"))
    return {"slice": windows.slice_at(session.run(given).index, rank, row, time_ns, by)}


def breakdown(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """A range of time, by sort and by name."""
    one = session.run(given)
    found = windows.range_breakdown(one.index, _rows(given), whole(given, "first_ns"), whole(given, "last_ns"))
    return found | {"command": f"etude timeline {one.words} -o run.pftrace", "python": one.python}


ANSWERS: Final[Mapping[str, Answer]] = {
    "about": contents,
    "rows": rows,
    "window": window,
    "names": names,
    "search": search,
    "slice": slice_at,
    "breakdown": breakdown,
}


# -- what is given -----------------------------------------------------------------------------------------------------


def whole(given: dict[str, Any], name: str) -> int:
    """A whole number."""
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) >= 2**63:
        raise UsageError(f"`{name}` is not a number")
    return int(value)


def text(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or len(value) > 100_000:
        raise UsageError(f"`{name}` is not a text")
    return value


def numbers(given: dict[str, Any], name: str) -> list[int]:
    """A list of whole numbers."""
    value = given.get(name)
    if not isinstance(value, list) or any(isinstance(one, bool) or not isinstance(one, int) for one in value):
        raise UsageError(f"`{name}` is not a list of whole numbers")
    return value


def _rows(given: dict[str, Any]) -> list[tuple[int, int]]:
    """(rank, row) of each row that is drawn: `rows: [rank, row, rank, row, ...]`."""
    flat = numbers(given, "rows")
    return list(zip(flat[::2], flat[1::2], strict=True)) if len(flat) % 2 == 0 else []

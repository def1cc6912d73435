"""What the page asks for: each function takes the session and what is given, and returns what is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from etude.base.errors import UsageError
from etude.tell.studio import ask, overview, pairs, plans, ties, windows
from etude.tell.studio.change import KNOBS, WhatIfs
from etude.tell.studio.session import StudioRun, StudioSession
from etude.tell.studio.share import shared_file
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


class FileAnswer(msgspec.Struct):
    """An answer that is a file, and the command that writes it."""

    name: str
    content: bytes
    command: str


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


def heat(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Ranks by steps."""
    return overview.heat_map(session.run(given))


def arrivals(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Ranks by collective calls."""
    return ties.arrivals(session.run(given))


def members(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """The call of a slice, and who else takes part in it."""
    return ties.members(session.run(given), whole(given, "rank"), whole(given, "node"), numbers(given, "ranks"))


def path(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """The critical path."""
    return ties.path_of(session.run(given))


def findings(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """What is wrong."""
    return overview.findings(session.run(given))


def tables(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """What can be queried."""
    return ask.table_columns(session.run(given))


def query(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Rows of a query."""
    return ask.query(session.run(given), text(given, "sql"))


def what_ifs(session: StudioSession, given: dict[str, Any]) -> WhatIfs:
    one = session.run(given)
    found: WhatIfs = one.once("what-ifs", lambda: WhatIfs(one))
    return found


def knobs(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """What can be turned, and the machines there are."""
    from etude.machine import system_names

    usual = what_ifs(session, given).usual
    names = [usual, *(name for name in system_names() if name != usual)]
    return {
        "knobs": [knob.record() for knob in KNOBS],
        "systems": names,
        "ranks": len(session.run(given).index.ranks),
        "write": session.out is not None,
    }


def change(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """The step where the knobs are."""
    return what_ifs(session, given).result(_state(given))


def compare(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Why one run takes longer than another."""
    found = pairs.comparison(session.run(given, "first"), session.run(given, "second"))
    return found | ({"command": "", "python": ""} if given.get("second") in session.computed else {})


def pair(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """A run before and after the knobs, as two runs that can be shown."""
    one, found = session.run(given), what_ifs(session, given)
    before, after = ({"system": state["system"]} if "system" in (state := _state(given)) else {}), _state(given)
    numbers_of = [pairs.run_of(session, one, found.simulated(state), one.words) for state in (before, after)]
    return {"numbers": numbers_of, "runs": [_about(session.computed[number]) for number in numbers_of]}


def save(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Writes a what-if: its job, its files, and the commands."""
    return what_ifs(session, given).save(_state(given), session.out, text(given, "name"))


def share(session: StudioSession, given: dict[str, Any]) -> FileAnswer:
    """A page that opens offline, or a file for Perfetto."""
    return FileAnswer(*shared_file(session.run(given), text(given, "kind"), numbers(given, "ranks")))


def catalogue(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Models and systems."""
    return plans.models_and_systems()


def plan(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """One plan."""
    return plans.plan_point(given)


def _state(given: dict[str, Any]) -> dict[str, Any]:
    state = given.get("state", {})
    if not isinstance(state, dict):
        raise UsageError("`state` is not an object")
    return state


ANSWERS: Final[Mapping[str, Answer]] = {
    "about": contents,
    "rows": rows,
    "window": window,
    "names": names,
    "search": search,
    "slice": slice_at,
    "breakdown": breakdown,
    "heat": heat,
    "arrivals": arrivals,
    "members": members,
    "path": path,
    "findings": findings,
    "tables": tables,
    "query": query,
    "knobs": knobs,
    "change": change,
    "pair": pair,
    "compare": compare,
    "save": save,
    "share": share,
    "catalogue": catalogue,
    "plan": plan,
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

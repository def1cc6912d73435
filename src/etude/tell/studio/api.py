"""What the page asks for: each function takes the session and what is given, and returns what is shown. What a question
needs is loaded when it is first asked, so that the first view waits for nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from etude.base.errors import UsageError
from etude.tell.studio import windows
from etude.tell.studio.answers import ColumnsAnswer, FileAnswer, drawn_rows, numbers, state_given, text, whole
from etude.tell.studio.folders import StudioFolder
from etude.tell.studio.session import StudioRun, StudioSession
from etude.tell.view.slices import Sort

if TYPE_CHECKING:
    from etude.tell.studio.change import WhatIfs

Answer = Callable[[StudioSession, dict[str, Any]], Any]


def contents(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """What is open."""
    return {
        "runs": [_about(one) for one in session.runs],
        "sorts": [sort.label for sort in Sort],
        "out": None if session.out is None else str(session.out),
    }


def _about(one: StudioRun | StudioFolder) -> dict[str, Any]:
    index = one.index
    roles = [index.role_of(at) for at in range(len(index.ranks))]
    found = {
        "name": str(index.head["name"]),
        "kind": "run",
        "words": one.words,
        "python": one.python,
        "timing": index.head["timing"],
        "system": index.head["system"],
        "span_ns": index.span_ns,
        "slices": index.head["slices"],
        "untimed": index.head["untimed"],
        "nodes": index.head["nodes"],
        "program": index.head.get("program", False),
        "ranks": index.ranks.tolist(),
        "roles": roles,
        "units": index.head.get("units"),
        "sets": index.head.get("sets", {}),
        "index": str(index.folder),
    }
    if isinstance(one, StudioFolder):
        return found | {"path": str(one.path), "kind": one.kind, "page": one.has_page, "command": one.command}
    return found | {"path": str(one.source.path)}


def rows(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """The rows of some ranks."""
    return {"rows": windows.rows_of_ranks(session.shown(given).index, numbers(given, "ranks"))}


def window(session: StudioSession, given: dict[str, Any]) -> ColumnsAnswer:
    """What is drawn of some rows in a window. Times are in ns, as numbers of 64 bits."""
    index = session.shown(given).index
    says, columns = windows.window(
        index, drawn_rows(given), whole(given, "first_ns"), whole(given, "last_ns"), whole(given, "pixels")
    )
    return ColumnsAnswer(says, columns)


def names(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """All names, in the order of their numbers, cut where they are very long."""
    return {"names": [name[: windows.LONGEST_NAME] for name in session.shown(given).index.names]}


def search(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Names that contain a text, and the next slice of such a name on the ranks that are drawn."""
    index, wanted = session.shown(given).index, text(given, "text")
    found = windows.found_names(index, wanted)
    after = whole(given, "after_ns") if "after_ns" in given else -1
    return {"names": found, "next": windows.next_slice(index, numbers(given, "ranks"), wanted, after)}


def slice_at(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """The slice of a row at a time, or the one before or after it."""
    rank, row, time_ns, by = (whole(given, name) for name in ("rank", "row", "time_ns", "by"))
    return {"slice": windows.slice_at(session.shown(given).index, rank, row, time_ns, by)}


def breakdown(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """A range of time, by sort and by name."""
    one = session.shown(given)
    found = windows.range_breakdown(one.index, drawn_rows(given), whole(given, "first_ns"), whole(given, "last_ns"))
    return found | {"command": _timeline_command(one), "python": one.python}


def _timeline_command(one: StudioRun | StudioFolder) -> str:
    return one.command if isinstance(one, StudioFolder) else f"etude timeline {one.words} -o run.pftrace"


def heat(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Ranks by steps."""
    from etude.tell.studio import overview

    return overview.heat_map(session.run(given))


def arrivals(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Ranks by collective calls."""
    from etude.tell.studio import ties

    return ties.arrivals(session.run(given))


def recorded_run(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """The same run with the times under the profiler."""
    number = session.recorded(given)
    return {"number": number, "run": _about(session.shown({"run": number}))}


def counters(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Memory or power of ranks over a window."""
    from etude.tell.studio.counters import counters

    window = whole(given, "first_ns"), whole(given, "last_ns")
    return counters(session.run(given), text(given, "name"), numbers(given, "ranks"), window, whole(given, "parts"))


def flows(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Collectives and messages between ranks in a window."""
    from etude.tell.studio.flows import flows

    window = whole(given, "first_ns"), whole(given, "last_ns")
    return flows(session.run(given), numbers(given, "ranks"), window)


def waits(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """What a slice waits for."""
    from etude.tell.studio.flows import waits_for

    return waits_for(session.run(given), whole(given, "rank"), whole(given, "node"))


def notes(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Notes of a timeline."""
    from etude.tell.studio.notes import notes

    return notes(session.shown(given))


def keep(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Keeps notes."""
    from etude.tell.studio.notes import keep_notes

    return keep_notes(session.shown(given), given.get("notes"))


def members(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """The call of a slice, and who else takes part in it."""
    from etude.tell.studio import ties

    return ties.members(session.run(given), whole(given, "rank"), whole(given, "node"), numbers(given, "ranks"))


def path(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """The critical path."""
    from etude.tell.studio import ties

    return ties.path_of(session.run(given))


def findings(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """What is wrong."""
    from etude.tell.studio import overview

    return overview.findings(session.run(given))


def charts(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """What is worth seeing first of a folder that is no run."""
    from etude.tell.studio import folders

    found = session.shown(given)
    if not isinstance(found, StudioFolder):
        raise UsageError("this is a run: its views are the timeline and the others")
    return folders.charts(found)


def tables(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """What can be queried."""
    from etude.tell.studio import ask

    return ask.table_columns(session.shown(given))


def query(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Rows of a query."""
    from etude.tell.studio import ask

    return ask.query(session.shown(given), text(given, "sql"))


def what_ifs(session: StudioSession, given: dict[str, Any]) -> WhatIfs:
    from etude.tell.studio.change import WhatIfs

    one = session.run(given)
    found: WhatIfs = one.once("what-ifs", lambda: WhatIfs(one))
    return found


def knobs(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """What can be turned, and the machines there are."""
    from etude.machine import system_names
    from etude.tell.studio.change import KNOBS, level_names

    usual = what_ifs(session, given).usual
    names = [usual, *(name for name in system_names() if name != usual)]
    return {
        "knobs": [knob.record() for knob in KNOBS],
        "systems": names,
        "levels": {name: level_names(name) for name in names},
        "ranks": len(session.run(given).index.ranks),
        "write": session.out is not None,
    }


def change(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """The step where the knobs are."""
    return what_ifs(session, given).result(state_given(given))


def compare(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Why one run takes longer than another."""
    from etude.tell.studio import pairs

    found = pairs.comparison(session.run(given, "first"), session.run(given, "second"))
    return found | ({"command": "", "python": ""} if given.get("second") in session.computed else {})


def pair(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """A run before and after the knobs, as two runs that can be shown."""
    from etude.tell.studio import pairs
    from etude.tell.studio.change import state_of

    one, found = session.run(given), what_ifs(session, given)
    before, after = (
        ({"system": state["system"]} if "system" in (state := state_given(given)) else {}),
        state_given(given),
    )
    numbers_of = [pairs.run_of(session, one, found.simulated(state), one.words) for state in (before, after)]
    words = found.words(state_of(after, found.usual))
    told = {name: words[name] for name in ("command", "python")}
    return {"numbers": numbers_of, "runs": [_about(session.computed[number]) for number in numbers_of], **told}


def save(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Writes a what-if: its job, its files, and the commands."""
    return what_ifs(session, given).save(state_given(given), session.out, text(given, "name"))


def share(session: StudioSession, given: dict[str, Any]) -> FileAnswer:
    """A page that opens offline, or a file for Perfetto."""
    from etude.tell.studio.share import shared_file

    return FileAnswer(*shared_file(session.run(given), text(given, "kind"), numbers(given, "ranks")))


def catalogue(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """Models and systems."""
    from etude.tell.studio import plans

    return plans.models_and_systems()


def plan(session: StudioSession, given: dict[str, Any]) -> dict[str, Any]:
    """One plan."""
    from etude.tell.studio import plans

    return plans.plan_point(given)


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
    "recorded": recorded_run,
    "notes": notes,
    "keep": keep,
    "counters": counters,
    "flows": flows,
    "waits": waits,
    "path": path,
    "findings": findings,
    "charts": charts,
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

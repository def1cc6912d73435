"""The critical path of a run: what `etude critical-path` asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etude.base.figures import figure, switch
from etude.base.talk import say
from etude.steps.asked.runs import Analysis, RunSource, Topped

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.model.run import Run


DEFAULT = 10
LOOSE = 0.02
"""Share of the device's time without launches from which the command says so."""


@dataclass(frozen=True, kw_only=True)
class CriticalPath(Analysis, Topped):
    """The chain of work that set the length of the run, over hosts, kernels, ranks and collectives

    etude critical-path run/
    etude critical-path trace.json.gz --json
    etude critical-path run/ --buys 30

    buys_50_ns: how much shorter the run is if all nodes of that name take 50% less time, in the same order
    """

    each: bool = switch("list every piece of the path, in order")
    buys: int | None = figure(
        "count",
        "number of the longest operations for which the gain of making them faster is computed; by default 10, or as "
        "many as --top, none with --json",
        None,
        zero=True,
    )


@dataclass(frozen=True, slots=True)
class PathInputs:
    source: RunSource
    view: str
    """pieces, names, or record: pieces, and names only with what making them faster gains."""
    top: int
    buys: int | None = None


def inputs(asked: CriticalPath) -> PathInputs:
    source, top = RunSource.of(asked), asked.top or 0
    if asked.output.json:
        return PathInputs(source, "record", top, asked.buys)
    if asked.each:
        return PathInputs(source, "pieces", top)
    return PathInputs(source, "names", top, (top or DEFAULT) if asked.buys is None else asked.buys)


def run(given: PathInputs) -> dict[str, Any]:
    from etude.analyse import critical_path as analyse
    from etude.analyse.what_if import MOST_NODES, with_gains

    run = given.source.open()
    if given.buys and run.job.nodes > MOST_NODES:
        say(f"note: above {MOST_NODES:,} nodes, the gain of making operations faster is not computed")
    found = analyse.critical_path(run)
    made = {"length_ns": analyse.length_ns(found), "by_kind": analyse.by_kind(found)}
    pieces = _first(found, given.top)
    if given.view == "record":
        made["path"] = pieces
        if given.buys is not None:
            made["what_if"] = with_gains(run, analyse.by_name(found), given.buys).slice(0, given.buys)
        return made
    _say(run, made, len(found))
    if given.view == "pieces":
        return made | {"path": pieces}
    return made | {"longest": _first(with_gains(run, analyse.by_name(found), given.buys or 0), given.top)}


def _first(table: "pa.Table", top: int) -> "pa.Table":
    return table.slice(0, top) if top else table


def _say(run: "Run", made: Mapping[str, Any], pieces: int) -> None:
    from etude.analyse.launches import untied
    from etude.base.units import format_time

    length = made["length_ns"]
    parts = ", ".join(f"{kind} {100 * ns / max(length, 1):.1f}%" for kind, ns in made["by_kind"].items())
    say(f"{format_time(length)} over {pieces:,} pieces: {parts}")
    if (loose := untied(run)) >= LOOSE:
        share = f"{100 * loose:.0f}% of the device's time"
        say(f"note: no launch was recorded for {share}, so host and device are re-timed separately")


def answer(made: Mapping[str, Any]) -> dict[str, Any]:
    return {"by_kind_ns" if name == "by_kind" else name: value for name, value in made.items()}


def table(made: Mapping[str, Any]) -> "pa.Table":
    return made["longest"] if "longest" in made else made["path"]


TOOL_DEFAULTS = {"top": 20}
"""Of an assistant."""

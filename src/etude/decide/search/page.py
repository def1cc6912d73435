"""One page about a search: the answer, the frontier, the best side by side, what was pruned and why."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from etude.base.files import writing
from etude.base.notebook import card, note, records
from etude.base.units import format_bytes, format_time
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.lengths import in_notebook
from etude.tell.view.page import Figure, Page, PageSection, render
from etude.tell.view.plots import PlotPoint, fitted, plot

if TYPE_CHECKING:
    from etude.decide.search.found import Found, Row

PAGE: Final = "index.html"
RECORD: Final = "found.json"
SEATS: Final = 16
"""Most entries of a list in a cell."""
SHORT: Final = ("tp", "pp", "cp", "dp", "ep", "etp", "sp", "mfu")
"""Names that are written in capitals."""
PARTS: Final = (
    ("compute_ns", "compute", "compute"),
    ("exposed_comm_ns", "communication", "communication that compute does not hide"),
    ("exposed_memory_ns", "memory", "memory"),
    ("idle_ns", "idle", "idle: bubbles and waiting"),
)


def write(found: Found, folder: Path, title: str) -> None:
    """Writes the page and the record of a search to its folder, replacing earlier ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((PAGE, page(found, title)), (RECORD, json.dumps(found.record(), indent=1) + "\n")):
        with writing(folder / name, force=True) as path:
            path.write_text(text, "utf-8")


def page(found: Found, title: str) -> str:
    scores = scores_of(found)
    told = {name: shown_value(name, found.best[name]) for name in scores}
    return render(
        Page(
            title=title,
            subtitle="etude search",
            verdict=f"Best: {best_name(found, found.best)}.",
            cards=(
                *(Figure(_head(name), value, "best candidate") for name, value in told.items()),
                Figure("Candidates", f"{found.space:,}", "in the space"),
                Figure("Tried", f"{found.tried:,}", "simulated or computed"),
                Figure("Pruned", f"{sum(found.pruned.values()):,}", "see below why"),
            ),
            sections=tuple(
                filter(None, (frontier_plot(found, scores), _breakdown(found), _table(found), _pruned(found)))
            ),
            facts=_facts(found),
            notes=found.notes,
        )
    )


def scores_of(found: Found) -> list[str]:
    """The scores by which candidates were judged; the first number of the best where none are named."""
    return _scores(found) or _numbers(found.best)[:1]


def _scores(found: Found) -> list[str]:
    return [name for name in found.more.get("scores", []) if name in found.best]


def _constant(found: Found) -> list[str]:
    """Columns of plans that are the same in all rows, except scores: shown once below instead."""
    rows = found.rows or found.frontier
    if "axes" not in found.more or len(rows) < 2:
        return []
    same = [name for name in rows[0] if len({str(row.get(name)) for row in rows}) == 1]
    return [name for name in same if name not in _scores(found)]


def _facts(found: Found) -> tuple[tuple[str, str], ...]:
    axes = {name: ", ".join(map(str, values)) for name, values in found.more.get("axes", {}).items()}
    others = {name: shown_value(name, found.best[name]) for name in _constant(found) if name in found.best}
    return tuple({**others, **axes}.items())


def _numbers(row: Mapping[str, Any]) -> list[str]:
    return [k for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool)]


def _head(name: str) -> str:
    if name in SHORT:
        return name.upper()
    text = name.removesuffix("_ns").removesuffix("_bytes").replace("_", " ").replace("gpu", "GPU")
    return text[:1].upper() + text[1:]


def shown_value(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        more = ", ..." if len(value) > SEATS else ""
        return ", ".join(str(one) for one in value[:SEATS]) + more
    if name.endswith("_ns"):
        return format_time(round(value))
    if name.endswith("_bytes"):
        return format_bytes(round(value))
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def best_name(found: Found, row: Row) -> str:
    """A candidate by its distinguishing axes: those that vary among the tried ones."""
    axes = found.more.get("axes") or dict.fromkeys(row)
    rows = found.rows or found.frontier
    varied = [k for k in axes if k in row and (len({str(r.get(k)) for r in rows}) > 1 or k in ("tp", "pp"))]
    return ", ".join(f"{k.replace('_', ' ')} {row[k]}" for k in varied) or "the only one"


def frontier_plot(found: Found, scores: Sequence[str]) -> PageSection | None:
    if len(scores) < 2 or len(found.rows) < 2:
        return None
    x, y = scores[1], scores[0]
    best = {json.dumps(row, sort_keys=True, default=str) for row in found.frontier}
    marks = []
    for row in found.rows:
        on = json.dumps(row, sort_keys=True, default=str) in best
        tip = f"{best_name(found, row)}\n{shown_value(y, row[y])}, {shown_value(x, row[x])}"
        marks.append(PlotPoint(float(row[x]), float(row[y]), "compute" if on else "idle", tip, 0.3 if on else 0.1))
    line = sorted((float(row[x]), float(row[y])) for row in found.frontier)
    axes = [fitted(_head(n), partial(shown_value, n), [float(r[n]) for r in found.rows], log=False) for n in (x, y)]
    body = legend([("compute", "on the frontier"), ("idle", "others that were tried")])
    body += plot(f"{_head(y)} over {_head(x)}", axes[0], axes[1], marks, [("roof", "", line)])
    lead = "Candidates that no other candidate beats in every score, and all others tried."
    return PageSection("frontier", "Frontier", lead, body)


def _breakdown(found: Found) -> PageSection | None:
    rows = found.more.get("breakdown", [])
    if not rows:
        return None
    shown = [Bar(r["name"], tuple(BarPiece(sort, label, r[key]) for key, sort, label in PARTS)) for r in rows]
    body = legend([(sort, label) for _, sort, label in PARTS]) + bars(shown, lambda v: format_time(round(v)))
    lead = "Breakdown of the step time per GPU, mean over all GPUs, for the best candidates."
    return PageSection("why", "Why the best is best", lead, body)


def _table(found: Found) -> PageSection:
    rows = found.rows or found.frontier
    names = [*_scores(found), *dict.fromkeys(name for row in rows for name in row)]
    names = [name for name in dict.fromkeys(names) if name == "flags" or name not in _constant(found)]
    columns = [
        Heading(n, _head(n), lambda v, n=n: shown_value(n, v), number=n in _numbers(rows[0]), code=n == "flags")  # type: ignore[misc]
        for n in names
    ]
    return PageSection("rows", "Tried", "Tried candidates, the best first.", table("t-rows", rows, columns, first=20))


def _pruned(found: Found) -> PageSection | None:
    if not found.pruned:
        return None
    shown = [Bar(why, (BarPiece("idle", why, count),), f"{count:,}") for why, count in found.pruned.items()]
    return PageSection("pruned", "Left out", "Why candidates were not tried.", bars(shown, lambda v: f"{v:,.0f}"))


def found_html(found: Found) -> str:
    """The best, how many were tried, the frontier as a plot where there are two scores, and the best rows."""
    scores = scores_of(found)
    facts = [(name.replace("_", " "), shown_value(name, found.best[name])) for name in scores]
    facts += [("candidates", f"{found.space:,}"), ("tried", f"{found.tried:,}")]
    facts += [("pruned", f"{sum(found.pruned.values()):,}")]
    plot = frontier_plot(found, scores)
    picture = in_notebook(plot.body) if plot else ""
    rows = records((found.rows or found.frontier)[:10])
    return card(
        "search", f"Best: {best_name(found, found.best)}", facts, picture, rows, *(note(told) for told in found.notes)
    )

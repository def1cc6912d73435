"""One page about a study: the answer, the checks, plots over the sweep, every number and every command."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from etude import __version__
from etude.decide.study.spec import Metric
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.markup import Markup, escaped
from etude.tell.view.page import Figure, Page, PageSection, Told, render
from etude.tell.view.plots import Axis, Line, PlotPoint, fitted, plot

if TYPE_CHECKING:
    from etude.decide.study.run import Outcome

SORTS = ("idle", "compute", "communication", "memory")
"""Colours of variants, the baseline's first; they come round again."""


def page(found: "Outcome") -> str:
    spec, facts = found.spec, found.spec.facts
    good = sum(check["ok"] for check in found.checks)
    failed = sum(bool(row["error"]) for row in found.points)
    return render(
        Page(
            title=str(facts.get("title") or spec.name),
            subtitle=" · ".join(filter(None, (str(facts.get("paper", "")), str(facts.get("group", "")), spec.name))),
            verdict=verdict(found),
            cards=(
                Figure("Points", f"{len(found.points):,}", f"{failed} failed" if failed else "none failed"),
                Figure("Variants", f"{len(spec.variants) - 1}", f"against {spec.baseline}"),
                Figure("Seeds", f"{len(spec.seeds)}" if spec.seeds else "none", spec.stats if spec.seeds else ""),
                Figure("Checks", f"{good} of {len(found.checks)}", "hold"),
            ),
            told=tuple(_told(check) for check in found.checks),
            sections=tuple(_sections(found)),
            facts=tuple((k.replace("_", " "), _text(v)) for k, v in facts.items()),
            notes=tuple(found.notes),
            made_by=f"Etude {__version__}",
        )
    )


def verdict(found: "Outcome") -> str:
    bad = [check["name"] for check in found.checks if not check["ok"]]
    if bad:
        return f"{len(bad)} of {len(found.checks)} checks fail: {', '.join(bad)}."
    if len(found.checks) == 1:
        return "The check passes."
    return f"All {len(found.checks)} checks pass." if found.checks else f"{len(found.points):,} points."


def _told(check: dict[str, Any]) -> Told:
    return Told("good" if check["ok"] else "bad", f"{check['name']} ({check['kind']})", check["detail"])


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _sections(found: "Outcome") -> list[PageSection]:
    made = [s for metric in found.spec.metrics if (s := drawn(found, metric))]
    if len(found.spec.variants) > 1:
        made.append(PageSection("rows", "Against the baseline", _LEAD, _table("t-rows", found.rows)))
    shown = [{k: v for k, v in row.items() if k != "commands"} for row in found.points]
    made.append(PageSection("points", "Points", "Every point and its metrics.", _table("t-points", shown)))
    lines = escaped("\n".join(dict.fromkeys(row["commands"] for row in found.points)))
    made.append(PageSection("commands", "Commands", "The commands of every point.", Markup(f"<pre>{lines}</pre>")))
    return made


_LEAD = (
    "Ratio is the variant over the baseline. Low and high are the limits of its 95% confidence interval if there are "
    "several seeds; a verdict is given if Holm's procedure rejects equality."
)


def _table(id: str, rows: Sequence[dict[str, Any]]) -> Markup:
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = []
    for name in names:
        values = [row.get(name) for row in rows if row.get(name) is not None]
        number = bool(values) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        columns.append(Heading(name, name.replace("_", " "), _figure if number else _text, number=number))
    return table(id, rows, columns, first=20)


def _figure(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def drawn(found: "Outcome", metric: Metric) -> PageSection | None:
    """A metric over the first axis of the sweep that has numbers; without one, a bar for each variant and place."""
    spec = found.spec
    rows = [row for row in found.points if isinstance(row[metric.name], int | float) and not row["error"]]
    if not rows:
        return None
    sorts = {name: SORTS[i % len(SORTS)] for i, name in enumerate(spec.variants)}
    axis = next((a for a in spec.space.names if _many_numbers([row[a] for row in rows])), "")
    unit = f", {metric.unit}" if metric.unit else ""
    title = metric.name.replace("_", " ")
    body = legend([(sorts[name], name) for name in spec.variants])
    if axis:
        body += _curve(rows, metric.name, axis, sorts, f"{title}{unit}")
        lead = f"{title} over {axis}; each point is one row, lines are means."
    else:
        means = _means(rows, lambda r: (r["variant"], *(str(r[a]) for a in spec.space.names)), metric.name)
        if any(value < 0 for value in means.values()):
            return None
        shown = [
            Bar(" ".join(key), (BarPiece(sorts[key[0]], key[0], value),)) for key, value in list(means.items())[:48]
        ]
        body += bars(shown, lambda v: f"{_figure(v)} {metric.unit}".strip())
        lead = f"{title}, mean over seeds."
    return PageSection(f"m-{metric.name}", title[:1].upper() + title[1:], lead, body)


def _many_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values) and len(set(values)) > 1


def _means(rows: Sequence[dict[str, Any]], key: Callable[[dict[str, Any]], Any], name: str) -> dict[Any, float]:
    found: dict[Any, list[float]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(float(row[name]))
    return {k: sum(values) / len(values) for k, values in found.items()}


def _curve(rows: Sequence[dict[str, Any]], name: str, axis: str, sorts: dict[str, str], title: str) -> Markup:
    xs = [float(row[axis]) for row in rows]
    log = min(xs) > 0 and max(xs) >= 8 * min(xs)
    x = fitted(axis, _figure, xs, log=log)
    values = [float(row[name]) for row in rows]
    y = fitted(title, _figure, values, log=False) if min(values) >= 0 else _around(title, values)
    marks = [
        PlotPoint(
            float(r[axis]),
            float(r[name]),
            sorts[r["variant"]],
            f"{r['variant']}, {axis} {r[axis]}\n{_figure(r[name])}",
            0.05,
        )
        for r in rows
    ]
    means = _means(rows, lambda r: (r["variant"], float(r[axis])), name)
    lines: list[Line] = [
        ("roof", variant, sorted((at, value) for (of, at), value in means.items() if of == variant))
        for variant in sorts
        if any(of == variant for of, _ in means)
    ]
    return plot(f"{title} over {axis}", x, y, marks, lines)


def _around(title: str, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    return Axis(title, _figure, False, low, high if high > low else low + 1)

"""One page about a study: the answer, the checks, plots over the sweep, every number and every command."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from etude import __version__
from etude.decide.study.spec import Metric
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.markup import Markup, escaped, joined
from etude.tell.view.page import Figure, Page, PageSection, Told, render
from etude.tell.view.plots import Axis, Line, PlotPoint, fitted, plot

if TYPE_CHECKING:
    from etude.decide.study.run import Outcome

SORTS = ("idle", "compute", "communication", "memory", "copy", "host", "critical", "other")
"""Colours of variants, the baseline's first; they come round again."""


def page(found: "Outcome") -> str:
    spec, facts = found.spec, found.spec.facts
    good = sum(check["ok"] is True for check in found.checks)
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
            told=(*map(_claim, found.claims), *map(_told, found.checks)),
            sections=tuple(_sections(found)),
            facts=tuple((k.replace("_", " "), _text(v)) for k, v in facts.items()),
            notes=tuple(found.notes),
            made_by=f"Etude {__version__}",
        )
    )


def verdict(found: "Outcome") -> str:
    return " ".join(filter(None, (_of_claims(found), _of_checks(found)))) or f"{len(found.points):,} points."


def _of_checks(found: "Outcome") -> str:
    bad = [check["name"] for check in found.checks if check["ok"] is False]
    idle = sum(check["ok"] is None for check in found.checks)
    rest = f" {idle} {'is' if idle == 1 else 'are'} not asked here." if idle else ""
    if bad:
        return f"{len(bad)} of {len(found.checks)} checks fail: {', '.join(bad)}.{rest}"
    if len(found.checks) == 1 and not idle:
        return "The check passes."
    whole = f"All {len(found.checks)} checks pass." if not idle else f"{len(found.checks) - idle} checks pass."
    return whole + rest if found.checks else ""


def _of_claims(found: "Outcome") -> str:
    """How many claims agree, and those that do not by name."""
    if not found.claims:
        return ""
    kinds: dict[str, list[str]] = {}
    for claim in found.claims:
        kinds.setdefault(claim["verdict"], []).append(claim["figure"])
    agree = len(kinds.pop("agrees", []))
    others = "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in kinds.items())
    return f"{agree} of {len(found.claims)} published figures agree{f'; {others}' if others else ''}."


TONES = {"agrees": "good", "stronger": "warn", "weaker": "warn", "contradicts": "bad"}


def _claim(claim: dict[str, Any]) -> Told:
    ours, unit = claim["ours"], f" {claim['unit']}" if claim["unit"] else ""
    said = f"published {published_text(claim)}, ours {_number(ours)}{unit}" if ours is not None else claim["detail"]
    if claim["published"] is None and ours is not None:
        said = "as published" if ours else "not as published"
    if claim["low"] is not None:
        said += f" ({_number(claim['low'])} to {_number(claim['high'])})"
    given = "".join(f"; {text}" for text in (claim["conditions"], claim["why"]) if text)
    return Told(TONES.get(claim["verdict"], "info"), f"{claim['figure']}: {claim['verdict']}", said + given, "claims")


def published_text(claim: dict[str, Any]) -> str:
    """The published figure in words."""
    ends = claim["published"] if isinstance(claim["published"], list) else [claim["published"]]
    return " to ".join(map(_number, ends)) + (f" {claim['unit']}" if claim["unit"] else "")


def _number(value: Any) -> str:
    return "-" if value is None else str(value) if isinstance(value, bool) else f"{value:,.4g}"


def _told(check: dict[str, Any]) -> Told:
    tone = {True: "good", False: "bad", None: "info"}[check["ok"]]
    asked = ", not asked" if check["ok"] is None else ""
    return Told(tone, f"{check['name']} ({check['kind']}{asked})", check["detail"])


def _claims(found: "Outcome") -> PageSection | None:
    """Published figures and ours, one bar below the other."""
    shown = []
    for claim in found.claims:
        if claim["published"] is None or claim["ours"] is None:
            continue
        ends = claim["published"] if isinstance(claim["published"], list) else [claim["published"]]
        scale = max(*map(abs, ends), abs(claim["ours"])) or 1.0
        for name, sort, value, text in (
            (claim["figure"], "idle", max(ends), f"published {published_text(claim)}"),
            (claim["verdict"], "compute", claim["ours"], f"ours {_number(claim['ours'])} {claim['unit']}".strip()),
        ):
            shown.append(Bar(name, (BarPiece(sort, name, max(0.0, value) / scale),), text))
    if not shown:
        return None
    lead = "Each pair has a scale of its own. Where there are seeds, the interval of ours is given above."
    return PageSection("claims", "Published and ours", lead, bars(shown, lambda v: f"{v:.2f}"))


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _sections(found: "Outcome") -> list[PageSection]:
    judged = [metric for metric in found.spec.metrics if metric.better] or list(found.spec.metrics[:1])
    made = [s for s in (_claims(found), *(drawn(found, metric) for metric in judged)) if s]
    helpers = [s for m in found.spec.metrics if m not in judged and (s := drawn(found, m))]
    if helpers:
        inner = joined([_folded(s) for s in helpers])
        made.append(PageSection("helpers", "Other metrics", "What checks use besides. Open one to see it.", inner))
    if len(found.spec.variants) > 1:
        made.append(PageSection("rows", "Against the baseline", _LEAD, _table("t-rows", found.rows)))
    shown = [{k: v for k, v in row.items() if k != "commands"} for row in found.points]
    made.append(PageSection("points", "Points", "Every point and its metrics.", _table("t-points", shown)))
    lines = escaped("\n".join(dict.fromkeys(row["commands"] for row in found.points)))
    made.append(PageSection("commands", "Commands", "The commands of every point.", Markup(f"<pre>{lines}</pre>")))
    return made


def _folded(section: PageSection) -> Markup:
    return Markup(f"<details><summary>{escaped(section.title)}</summary>{section.body}</details>")


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


MOST_FACETS = 12


def drawn(found: "Outcome", metric: Metric) -> PageSection | None:
    """A metric over the first axis of the sweep that has numbers, a plot for each place of the other axes; without
    such an axis, a bar for each variant and place."""
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
        others = [a for a in spec.space.names if a != axis and len({str(row[a]) for row in rows}) > 1]
        facets: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            facets.setdefault(", ".join(f"{a.replace('_', ' ')} {row[a]}" for a in others), []).append(row)
        for place, some in list(facets.items())[:MOST_FACETS]:
            body += Markup(f"<h3>{escaped(place)}</h3>") if place else Markup("")
            body += _curve(some, metric.name, axis, sorts, f"{title}{unit}")
        lead = f"{title} over {axis.replace('_', ' ')}; each point is one row, lines are means over seeds."
        if len(facets) > MOST_FACETS:
            lead += f" The first {MOST_FACETS} of {len(facets)} places of the other axes; the rest is in the table."
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

"""The page of two runs: what differs, and what contributes most to the difference."""

from __future__ import annotations

from typing import Any

from etude.analyse.compare import compare, similarity
from etude.analyse.critical_path import by_kind
from etude.analyse.reasons import reasons
from etude.model.run import Run
from etude.tell.report import breakdown, critical_path, words
from etude.tell.report.compose import facts, timelines
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.page import Figure, Page, PageSection, Told

ALIKE, FEW = 0.02, 0.1
"""Runs count as equal within this; parts of the difference are reported from this share of the run."""
ROWS = 200


def comparison(a: tuple[Run, str], b: tuple[Run, str], *, title: str = "", made_by: str = "Etude") -> Page:
    """Run b compared with run a; each with its name."""
    one, two = (Subject(run, name, label=name) for run, name in (a, b))
    return Page(
        title=title or f"{one.name} and {two.name}",
        subtitle=f"{one.name}: {_about(one)} · {two.name}: {_about(two)}",
        verdict=_verdict(one, two),
        cards=_cards(one, two),
        told=tuple(_told(one, two)),
        sections=(_spent(one, two), _why(one, two), timelines([one, two]), _paths(one, two), _changes(one, two)),
        facts=(*facts(one), *facts(two)),
        made_by=made_by,
    )


def _about(subject: Subject) -> str:
    return f"{words.plural(len(subject.run.job), 'rank')}, {subject.origin}"


def _change(a: float, b: float) -> tuple[str, str]:
    """`8% longer` and `than`, for b relative to a."""
    if not a or abs(b / a - 1) < 0.0005:
        return "as long", "as"
    if b >= 3 * a:
        return f"{words.times(b / a)} as long", "as"
    return f"{words.percent(abs(b / a - 1))} {'longer' if b > a else 'shorter'}", "than"


def _verdict(a: Subject, b: Subject) -> str:
    change, than = _change(a.span_ns, b.span_ns)
    return f"{_capital(b.name)} takes {words.time(b.span_ns)}, {change} {than} {a.name} with {words.time(a.span_ns)}."


def _cards(a: Subject, b: Subject) -> tuple[Figure, ...]:
    cards = [
        Figure(_capital(a.name), words.time(a.span_ns), a.origin),
        Figure(_capital(b.name), words.time(b.span_ns), f"{b.origin}, {_change(a.span_ns, b.span_ns)[0]}"),
    ]
    x, y = _parts(a), _parts(b)
    for sort, label, key in breakdown.PIECES:
        if x[key] or y[key]:
            cards.append(
                Figure(
                    label.capitalize(), _signed(y[key] - x[key]), f"{words.time(x[key])} to {words.time(y[key])}", sort
                )
            )
    return tuple(cards)


def _signed(ns: float) -> str:
    return f"{'+' if ns > 0 else '−' if ns < 0 else ''}{words.time(abs(ns))}"


def _parts(subject: Subject) -> dict[str, float]:
    """Mean over ranks of each part of the time, ns."""
    found = subject.breakdown
    return {key: sum(v or 0 for v in found[key].to_pylist()) / max(1, len(found)) for _, _, key in breakdown.PIECES}


def _told(a: Subject, b: Subject) -> list[Told]:
    found = []
    ratio = b.span_ns / max(a.span_ns, 1)
    if abs(ratio - 1) <= ALIKE:
        apart = words.percent(abs(ratio - 1)) if ratio != 1 else "nothing"
        found.append(Told("good", f"The runs take the same time: they are {apart} apart.",
                          f"{words.time(a.span_ns)} and {words.time(b.span_ns)}.", "breakdown"))  # fmt: skip
    x, y = ({label: _parts(run)[key] for _, label, key in breakdown.PIECES} for run in (a, b))
    changes = sorted(((y[label] - x[label], label) for label in x), key=lambda c: -abs(c[0]))
    for ns, label in changes[:2]:
        if abs(ns) >= FEW * a.span_ns:
            more = "more" if ns > 0 else "less"
            each = " on each rank" if len(b.run.job) > 1 else ""
            found.append(Told("warn", f"{_capital(b.name)} has {words.time(abs(ns))} {more} {label}{each}.",
                              f"{words.time(x[label])} in {a.name}, {words.time(y[label])} in {b.name}; the difference "
                              f"is {words.percent(abs(ns) / a.span_ns)} of the time of {a.name}.",
                              "breakdown"))  # fmt: skip
    for t in reasons(a.run, b.run).slice(0, 3).to_pylist():
        if abs(t["delta_ns"]) >= FEW * a.span_ns / 2:
            more = "more" if t["delta_ns"] > 0 else "less"
            each = ", on each rank" if max(len(a.run.job), len(b.run.job)) > 1 else ""
            of_it = f", {words.percent(abs(t['share']))} of the difference" if (t["share"] or 0) > 0 else ""
            what = f"{_reason(t)} {words.time(abs(t['delta_ns']))} {more}{of_it}."
            why = f"{words.time(t['a_ns'])} in {a.name}, {words.time(t['b_ns'])} in {b.name}{each}"
            found.append(Told("info", what, f"{why}: {t['because']}." if t["because"] else f"{why}.", "why"))
    compared = compare(a.run, b.run)
    alike = similarity(compared)
    found.append(Told(
        "info", f"The runs share {words.percent(alike['structure'])} of their operations.",
        f"{words.percent(alike['time'])} of the time of the shared operations is the same.", "compare",
    ))  # fmt: skip
    if len(a.run.job) != len(b.run.job):
        found.append(
            Told("info", f"{a.name} has {words.plural(len(a.run.job), 'rank')}, {b.name} {len(b.run.job):,}.", "")
        )
    return found


def _spent(a: Subject, b: Subject) -> PageSection:
    rows = []
    for subject in (a, b):
        parts = _parts(subject)
        rows.append(Bar(subject.name, tuple(BarPiece(s, label, parts[key]) for s, label, key in breakdown.PIECES)))
    used = [(s, label) for s, label, key in breakdown.PIECES if any(_parts(subject)[key] for subject in (a, b))]
    body = legend(used) + bars(rows, words.time)
    lead = "The mean over ranks of each part of the devices' time, on one scale."
    return PageSection("breakdown", "Where the time goes", lead, body)


def _reason(row: dict[str, Any]) -> str:
    if row["part"] == "idle":
        return f"{IDLE[row['what']].capitalize()}:"
    return f"{words.short(words.title(row['what']))} takes"


IDLE = {
    "host": "idle until the host launched work",
    "synchronisation": "idle while the host waited for the device",
    "launch": "idle while launched work had not started",
    "communication": "idle until others had arrived",
    "dependency": "idle until a dependency on the host was done",
    "other": "idle for an unknown cause",
}


def _why(a: Subject, b: Subject) -> PageSection:
    rows = reasons(a.run, b.run).slice(0, ROWS).to_pylist()
    rows = [row | {"what": IDLE[row["what"]] if row["part"] == "idle" else row["what"]} for row in rows]
    columns = [
        Heading("part", "part", number=False), Heading("what", "what", words.title, number=False, code=True),
        Heading("change", "change", number=False), Heading("a_ns", a.name, words.time),
        Heading("b_ns", b.name, words.time), Heading("delta_ns", "difference", _signed),
        Heading("share", "share of the difference", words.percent), Heading("because", "because", number=False),
    ]  # fmt: skip
    lead = (
        "Causes of the difference, the largest first. All time of a device belongs to one operation or to one "
        "cause of idle time, so the rows add up to the difference; a negative share reduces it."
    )
    return PageSection(
        "why",
        "Why",
        lead,
        table("t-why", [r for r in rows if r["delta_ns"]], columns),
        empty="The runs do the same work in the same time.",
    )


def _paths(a: Subject, b: Subject) -> PageSection:
    rows: list[Bar] = []
    used: dict[str, None] = {}
    for subject in (a, b):
        kinds = by_kind(subject.path)
        used |= dict.fromkeys(kinds)
        pieces = tuple(
            BarPiece(critical_path.SORT[k], critical_path.LABEL.get(k, k), v, k == "launch")
            for k, v in sorted(kinds.items())
        )
        rows.append(Bar(subject.name, pieces))
    body = legend([(critical_path.SORT[k], critical_path.LABEL.get(k, k)) for k in sorted(used)]) + bars(
        rows, words.time
    )
    return PageSection("critical-path", "Critical path", "The critical path of each run, by kind.", body)


def _changes(a: Subject, b: Subject) -> PageSection:
    rows = compare(a.run, b.run).slice(0, ROWS).to_pylist()
    columns = [
        Heading("name", "name", words.title, number=False, code=True),
        Heading("change", "change", number=False), Heading("count_a", f"calls, {a.name}", _count),
        Heading("count_b", f"calls, {b.name}", _count), Heading("time_a_ns", a.name, words.time),
        Heading("time_b_ns", b.name, words.time), Heading("delta_ns", "difference", _signed),
        Heading("by_count_ns", "by number", _signed), Heading("by_speed_ns", "by speed", _signed),
    ]  # fmt: skip
    lead = (
        "Operations of the devices by name and shape, per rank; the largest difference first. It has two parts: "
        "more or fewer calls, and more or less time per call."
    )
    return PageSection("compare", "What changed", lead, table("t-compared", rows, columns))


def _capital(name: str) -> str:
    return name if name not in ("measured", "simulated", "replayed", "first", "second") else name.capitalize()


def _count(value: float) -> str:
    return words.number(value) if value == round(value) else f"{value:.1f}"

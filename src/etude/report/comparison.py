"""The page of two runs: what differs, and what makes most of the difference."""

from __future__ import annotations

from etude.analyse.compare import compare, similarity
from etude.analyse.critical_path import by_kind
from etude.model.job import Job
from etude.model.timing import Timing
from etude.report import path, time_spent, words
from etude.report.compose import facts, timelines
from etude.report.study import Study
from etude.view.charts import Bar, Column, Piece, bars, legend, table
from etude.view.page import Card, Page, Section, Told

ALIKE, FEW = 0.02, 0.1
"""Runs are called alike within this; a part of the difference is told from this share of the run."""
ROWS = 200


def comparison(
    a: tuple[Job, Timing, str], b: tuple[Job, Timing, str], *, title: str = "", made_by: str = "Etude"
) -> Page:
    """Run b held against run a; each is a job, its times and its name."""
    one, two = (Study(job, timing, name, label=name) for job, timing, name in (a, b))
    return Page(
        title=title or f"{one.name} and {two.name}",
        subtitle=f"{one.name}: {_about(one)} · {two.name}: {_about(two)}",
        verdict=_verdict(one, two),
        cards=_cards(one, two),
        told=tuple(_told(one, two)),
        sections=(_spent(one, two), timelines([one, two]), _paths(one, two), _changes(one, two)),
        facts=(*facts(one), *facts(two)),
        made_by=made_by,
    )


def _about(study: Study) -> str:
    return f"{words.plural(len(study.job), 'rank')}, {study.origin}"


def _change(a: float, b: float) -> str:
    """`8% longer`, of b against a."""
    if not a or abs(b / a - 1) < 0.0005:
        return "as long"
    return (
        f"{words.percent(abs(b / a - 1))} {'longer' if b > a else 'shorter'}"
        if b < 3 * a
        else f"{words.times(b / a)} as long"
    )


def _verdict(a: Study, b: Study) -> str:
    change = _change(a.span_ns, b.span_ns)
    than = "as" if change.endswith("as long") else "than"
    told = f"{b.name} takes {words.time(b.span_ns)}, {change} {than} {a.name} with {words.time(a.span_ns)}."
    return f"{told[:1].upper()}{told[1:]}"


def _cards(a: Study, b: Study) -> tuple[Card, ...]:
    cards = [
        Card(_capital(a.name), words.time(a.span_ns), a.origin),
        Card(_capital(b.name), words.time(b.span_ns), f"{b.origin}, {_change(a.span_ns, b.span_ns)}"),
    ]
    x, y = _parts(a), _parts(b)
    for sort, label, key in time_spent.PIECES:
        if x[key] or y[key]:
            cards.append(
                Card(
                    label.capitalize(), _signed(y[key] - x[key]), f"{words.time(x[key])} to {words.time(y[key])}", sort
                )
            )
    return tuple(cards)


def _signed(ns: float) -> str:
    return f"{'+' if ns > 0 else '−' if ns < 0 else ''}{words.time(abs(ns))}"


def _parts(study: Study) -> dict[str, float]:
    """Mean over ranks of each part of the time, ns."""
    found = study.breakdown
    return {key: sum(v or 0 for v in found[key].to_pylist()) / max(1, len(found)) for _, _, key in time_spent.PIECES}


def _told(a: Study, b: Study) -> list[Told]:
    found = []
    ratio = b.span_ns / max(a.span_ns, 1)
    if abs(ratio - 1) <= ALIKE:
        apart = words.percent(abs(ratio - 1)) if ratio != 1 else "nothing"
        found.append(Told("good", f"The runs take the same time: they are {apart} apart.",
                          f"{words.time(a.span_ns)} and {words.time(b.span_ns)}.", "spent"))  # fmt: skip
    x, y = ({label: _parts(run)[key] for _, label, key in time_spent.PIECES} for run in (a, b))
    changes = sorted(((y[label] - x[label], label) for label in x), key=lambda c: -abs(c[0]))
    for ns, label in changes[:2]:
        if abs(ns) >= FEW * a.span_ns:
            more = "more" if ns > 0 else "less"
            each = " on each rank" if len(b.job) > 1 else ""
            found.append(Told("warn", f"{_capital(b.name)} has {words.time(abs(ns))} {more} {label}{each}.",
                              f"{words.time(x[label])} in {a.name}, {words.time(y[label])} in {b.name}; the difference "
                              f"is {words.percent(abs(ns) / a.span_ns)} of the time of {a.name}.",
                              "spent"))  # fmt: skip
    compared = compare(a.job, a.timing, b.job, b.timing)
    for t in compared.slice(0, 2).to_pylist():
        if abs(t["delta_ns"]) >= FEW * a.span_ns / 2:
            more = "more" if t["delta_ns"] > 0 else "less"
            each = ", on each rank" if max(len(a.job), len(b.job)) > 1 else ""
            why = f"{words.time(t['time_a_ns'])} in {a.name}, {words.time(t['time_b_ns'])} in {b.name}{each}."
            what = f"{words.short(words.title(t['name']))} takes {words.time(abs(t['delta_ns']))} {more}."
            found.append(Told("info", what, why, "kernels"))
    alike = similarity(compared)
    found.append(Told(
        "info", f"The runs share {words.percent(alike['structure'])} of their operations.",
        f"Of the time of those that both have, {words.percent(alike['time'])} is the same.", "kernels",
    ))  # fmt: skip
    if len(a.job) != len(b.job):
        found.append(Told("info", f"{a.name} has {words.plural(len(a.job), 'rank')}, {b.name} {len(b.job):,}.", ""))
    return found


def _spent(a: Study, b: Study) -> Section:
    rows = []
    for study in (a, b):
        parts = _parts(study)
        rows.append(Bar(study.name, tuple(Piece(s, label, parts[key]) for s, label, key in time_spent.PIECES)))
    used = [(s, label) for s, label, key in time_spent.PIECES if any(_parts(study)[key] for study in (a, b))]
    body = legend(used) + bars(rows, words.time)
    lead = "The mean over ranks of each part of the devices' time, on one scale."
    return Section("spent", "Where the time goes", lead, body)


def _paths(a: Study, b: Study) -> Section:
    rows: list[Bar] = []
    used: dict[str, None] = {}
    for study in (a, b):
        kinds = by_kind(study.path)
        used |= dict.fromkeys(kinds)
        pieces = tuple(Piece(path.SORT[k], path.LABEL.get(k, k), v, k == "launch") for k, v in sorted(kinds.items()))
        rows.append(Bar(study.name, pieces))
    body = legend([(path.SORT[k], path.LABEL.get(k, k)) for k in sorted(used)]) + bars(rows, words.time)
    return Section("path", "Critical path", "What the end of each run waited for, by kind.", body)


def _changes(a: Study, b: Study) -> Section:
    rows = compare(a.job, a.timing, b.job, b.timing).slice(0, ROWS).to_pylist()
    columns = [
        Column("name", "name", words.title, number=False, code=True),
        Column("change", "change", number=False), Column("count_a", f"calls, {a.name}", _count),
        Column("count_b", f"calls, {b.name}", _count), Column("time_a_ns", a.name, words.time),
        Column("time_b_ns", b.name, words.time), Column("delta_ns", "difference", _signed),
        Column("by_count_ns", "by number", _signed), Column("by_speed_ns", "by speed", _signed),
    ]  # fmt: skip
    lead = (
        "Operations of the devices by name and shape, a rank; the largest difference first. It has two parts: the "
        "operation comes more or less often, and one takes more or less time."
    )
    return Section("kernels", "What changed", lead, table("t-compared", rows, columns))


def _capital(name: str) -> str:
    return name if name not in ("measured", "simulated", "replayed", "first", "second") else name.capitalize()


def _count(value: float) -> str:
    return words.number(value) if value == round(value) else f"{value:.1f}"

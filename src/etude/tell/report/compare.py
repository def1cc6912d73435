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
from etude.tell.view.sentences import Asked, Sentence, sentence

ALIKE, FEW = 0.02, 0.1
"""Runs count as equal within this; parts of the difference are reported from this share of the run."""
ROWS = 200


def comparison(a: tuple[Run, str], b: tuple[Run, str], *, title: str = "", made_by: str = "Etude") -> Page:
    """Run b compared with run a; each with its name."""
    one, two = (Subject(run, name, label=name, place=place) for place, (run, name) in zip("ab", (a, b), strict=True))
    return Page(
        title=title or f"{one.name} and {two.name}",
        subtitle=sentence(f"{one.name}: {{one}} · {two.name}: {{two}}", one=_about(one), two=_about(two)),
        verdict=_verdict(one, two),
        cards=_cards(one, two),
        told=tuple(_told(one, two)),
        sections=(_spent(one, two), _why(one, two), timelines([one, two]), _paths(one, two), _changes(one, two)),
        facts=(*facts(one), *facts(two)),
        made_by=made_by,
    )


def _about(subject: Subject) -> Sentence:
    return sentence("{ranks}, {origin}", ranks=subject.plural("rank", "run[0].ranks"), origin=subject.origin)


SPAN = "run[0].span_ns"
RATIO = "b.run[0].span_ns / most(a.run[0].span_ns, 1)"


def _value(form: str, query: str, value: float) -> Sentence:
    """A value of both runs, with its expression over the tables of `a` and `b`, `reasons`, `compared`, `similarity`."""
    return Sentence.of(Asked(words.formatted_as(form, value), query, form, value))


def _change(a: float, b: float) -> tuple[Sentence, str]:
    """`8% longer` and `than`, for b relative to a."""
    ratio = b / max(a, 1)
    if not a or abs(ratio - 1) < 0.0005:
        return Sentence.of("as long"), "as"
    if b >= 3 * a:
        return sentence("{times} as long", times=_value("times", RATIO, ratio)), "as"
    query, more = (f"{RATIO} - 1", "longer") if b > a else (f"1 - {RATIO}", "shorter")
    return sentence(f"{{share}} {more}", share=_value("percent", query, abs(ratio - 1))), "than"


def _verdict(a: Subject, b: Subject) -> Sentence:
    change, than = _change(a.span_ns, b.span_ns)
    text = f"{{two}} takes {{b}}, {{change}} {than} {{one}} with {{a}}."
    return sentence(text, a=a.time(SPAN), b=b.time(SPAN), change=change, one=a.name, two=_capital(b.name))


def _cards(a: Subject, b: Subject) -> tuple[Figure, ...]:
    change = _change(a.span_ns, b.span_ns)[0]
    cards = [
        Figure(_capital(a.name), a.time(SPAN), a.origin),
        Figure(_capital(b.name), b.time(SPAN), sentence("{origin}, {change}", origin=b.origin, change=change)),
    ]
    x, y = _parts(a), _parts(b)
    for sort, label, key in breakdown.PIECES:
        if x[key] or y[key]:
            both = sentence("{a} to {b}", a=_part(a, key), b=_part(b, key))
            more = _value("with_sign", f"{_mean('b', key)} - {_mean('a', key)}", y[key] - x[key])
            cards.append(Figure(label.capitalize(), more, both, sort))
    return tuple(cards)


def _mean(place: str, key: str) -> str:
    return f"sum({place}.breakdown.{key}) / most(count({place}.breakdown), 1)"


def _part(subject: Subject, key: str) -> Sentence:
    return _value("time", _mean(subject.place, key), _parts(subject)[key])


def _parts(subject: Subject) -> dict[str, float]:
    """Mean over ranks of each part of the time, ns."""
    found = subject.breakdown
    return {key: sum(v or 0 for v in found[key].to_pylist()) / max(1, len(found)) for _, _, key in breakdown.PIECES}


def _told(a: Subject, b: Subject) -> list[Told]:
    found = []
    ratio = b.span_ns / max(a.span_ns, 1)
    if abs(ratio - 1) <= ALIKE:
        query = f"{RATIO} - 1" if ratio > 1 else f"1 - {RATIO}"
        apart = _value("percent", query, abs(ratio - 1)) if ratio != 1 else "nothing"
        what = sentence("The runs take the same time: they are {apart} apart.", apart=apart)
        both = sentence("{a} and {b}.", a=a.time(SPAN), b=b.time(SPAN))
        found.append(Told("good", what, both, "breakdown"))
    x, y = _parts(a), _parts(b)
    changes = sorted(((y[key] - x[key], label, key) for _, label, key in breakdown.PIECES), key=lambda c: -abs(c[0]))
    for ns, label, key in changes[:2]:
        if abs(ns) >= FEW * a.span_ns:
            more, (high, low) = ("more", "ba") if ns > 0 else ("less", "ab")
            each = " on each rank" if len(b.run.job) > 1 else ""
            query = f"{_mean(high, key)} - {_mean(low, key)}"
            text = f"{{two}} has {{much}} {more} {label}{each}."
            what = sentence(text, two=_capital(b.name), much=_value("time", query, abs(ns)))
            share = _value("percent", f"({query}) / most(a.run[0].span_ns, 1)", abs(ns) / max(a.span_ns, 1))
            text = "{a} in {one}, {b} in {two}; the difference is {share} of the time of {one}."
            why = sentence(text, a=_part(a, key), b=_part(b, key), one=a.name, two=b.name, share=share)
            found.append(Told("warn", what, why, "breakdown"))
    several = max(len(a.run.job), len(b.run.job)) > 1
    for at, row in enumerate(_reasons(a, b)[:3]):
        if abs(row["delta_ns"]) >= FEW * a.span_ns / 2:
            found.append(_reason_told(a, b, at, row, several))
    alike = similarity(compare(a.run, b.run))
    shared = {name: _value("percent", f"similarity[0].{name}", alike[name]) for name in ("structure", "time")}
    found.append(Told(
        "info", sentence("The runs share {structure} of their operations.", structure=shared["structure"]),
        sentence("{time} of the time of the shared operations is the same.", time=shared["time"]), "compare",
    ))  # fmt: skip
    if len(a.run.job) != len(b.run.job):
        ranks = b.number("run[0].ranks")
        text = "{one} has {a}, {two} {b}."
        found.append(
            Told("info", sentence(text, one=a.name, a=a.plural("rank", "run[0].ranks"), two=b.name, b=ranks), "")
        )
    return found


def _reason_told(a: Subject, b: Subject, at: int, row: dict[str, Any], several: bool) -> Told:
    sign, more = ("", "more") if row["delta_ns"] > 0 else ("-", "less")
    much = _value("time", f"{sign}reasons[{at}].delta_ns", abs(row["delta_ns"]))
    share = row["share"] or 0
    of_it = Sentence.of("")
    if share > 0:
        of_it = sentence(
            "{of} {share} of the difference", of=",", share=_value("percent", f"reasons[{at}].share", share)
        )
    what = sentence(f"{{reason}} {{much}} {more}{{of_it}}.", reason=_reason(row), much=much, of_it=of_it)
    one, two = (_value("time", f"reasons[{at}].{key}", row[key]) for key in ("a_ns", "b_ns"))
    each = ", on each rank" if several else ""
    because = Sentence.of(": ", Asked(row["because"], f"reasons[{at}].because", "text", row["because"]))
    text = f"{{one}} in {{a}}, {{two}} in {{b}}{each}{{because}}."
    names = {"a": a.name, "b": b.name, "because": because if row["because"] else ""}
    return Told("info", what, sentence(text, one=one, two=two, **names), "why")


def _spent(a: Subject, b: Subject) -> PageSection:
    rows = []
    for subject in (a, b):
        parts = _parts(subject)
        pieces = [BarPiece(s, label, parts[key], query=_mean(subject.place, key)) for s, label, key in breakdown.PIECES]
        rows.append(Bar(subject.name, tuple(pieces)))
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


def _reasons(a: Subject, b: Subject) -> list[dict[str, Any]]:
    return [row for row in reasons(a.run, b.run).slice(0, ROWS).to_pylist() if row["delta_ns"]]


def _why(a: Subject, b: Subject) -> PageSection:
    rows = [row | {"what": IDLE[row["what"]] if row["part"] == "idle" else row["what"]} for row in _reasons(a, b)]
    columns = [
        Heading("part", "part", number=False), Heading("what", "what", words.title, number=False, code=True),
        Heading("change", "change", number=False), Heading("a_ns", a.name, words.time),
        Heading("b_ns", b.name, words.time), Heading("delta_ns", "difference", words.with_sign),
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
        table("t-why", rows, columns, query="reasons"),
        empty="The runs do the same work in the same time.",
    )


def _paths(a: Subject, b: Subject) -> PageSection:
    rows: list[Bar] = []
    used: dict[str, None] = {}
    for subject in (a, b):
        kinds = by_kind(subject.path)
        used |= dict.fromkeys(kinds)
        at = {row["kind"]: i for i, row in enumerate(subject.table("path_kinds").to_pylist())}
        pieces = tuple(
            BarPiece(
                critical_path.SORT[k],
                critical_path.LABEL.get(k, k),
                v,
                k == "launch",
                query=f"{subject.place}.path_kinds[{at[k]}].time_ns",
            )
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
        Heading("change", "change", number=False), Heading("count_a", f"calls, {a.name}", words.calls),
        Heading("count_b", f"calls, {b.name}", words.calls), Heading("time_a_ns", a.name, words.time),
        Heading("time_b_ns", b.name, words.time), Heading("delta_ns", "difference", words.with_sign),
        Heading("by_count_ns", "by number", words.with_sign), Heading("by_speed_ns", "by speed", words.with_sign),
    ]  # fmt: skip
    lead = (
        "Operations of the devices by name and shape, per rank; the largest difference first. It has two parts: "
        "more or fewer calls, and more or less time per call."
    )
    return PageSection("compare", "What changed", lead, table("t-compared", rows, columns, query="compared"))


def _capital(name: str) -> str:
    return name if name not in ("measured", "simulated", "replayed", "first", "second") else name.capitalize()

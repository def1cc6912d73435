"""The page of one run, or of two side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import pyarrow as pa

from etude.analyse.catalogue import ANALYSES, report_sections
from etude.analyse.clocks import can_align
from etude.analyse.critical_path import length_ns
from etude.analyse.program_figures import ESTIMATED, RECORDED, is_under_profiler, times_of
from etude.machine.system import Device
from etude.model.run import Run
from etude.model.timing import Origin
from etude.tell.report import (
    breakdown,
    collectives,
    critical_path,
    energy,
    kernels,
    links,
    memory,
    roofline,
    steps,
    stragglers,
    words,
)
from etude.tell.report.catalogue_sections import DeclaredSection
from etude.tell.report.subject import Subject
from etude.tell.report.tables import facts as provenance
from etude.tell.report.tables import inside_of
from etude.tell.view.embedded import Packed, pack
from etude.tell.view.page import Figure, Page, PageSection, Told, timeline
from etude.tell.view.sentences import Asked, Sentence, sentence, series

NOTHING = Told(
    "good",
    "No findings.",
    "No part of the time, no rank and no single operation passes the limit from which it is reported; the sections "
    "below show the values.",
)
UNWORKED = 0.1
"""Share of a run after its last work from which a report has a finding."""
_TELL: Final = (stragglers, critical_path, breakdown, steps, kernels, collectives, roofline)
"""Sections that have findings, in the order in which findings of equal cost are listed."""
_ORDER: Final = (breakdown, steps, critical_path, stragglers, kernels, collectives, roofline, memory, energy)
_DECLARED: Final = tuple(import_module(f"etude.tell.report.{name}") for name in report_sections())
_SHOW: Final[tuple[Any, ...]] = (
    *_ORDER,
    *(part for part in _DECLARED if part not in _ORDER),
    *(DeclaredSection(one) for one in ANALYSES if one.table and one.columns),
)
"""Sections in the order of the page; what analyse/catalogue.py declares beyond them comes last."""
PARTS: Final = len(_TELL) + len(_SHOW)
WEIGHT = {"bad": 0, "warn": 1, "info": 2, "good": 3}


def report(
    run: Run, *, name: str = "", device: Device | None = None, allocated: pa.Table | None = None,
    made_by: str = "Etude", advance: Callable[[int], None] = lambda amount: None,
    link_stats: Mapping[str, pa.Table] | None = None,
) -> Page:  # fmt: skip
    """The page of a run, in words and pictures. `allocated` is the allocator's activity, if recorded; `link_stats` is
    that of links, if simulated; `advance` is called for the PARTS as they are done."""
    subject = Subject(run, name or run.job.name, device=device, allocated=allocated, links=link_stats or {})
    told = []
    for part in _TELL:
        told += part.told(subject)
        advance(1)
    told += _doubts(subject)
    sections = [timelines([subject])]
    for part in _SHOW:
        sections.append(part.section(subject))
        advance(1)
    if link_stats:
        sections.append(links.section(subject))
    return Page(
        title=subject.text("run[0].name"),
        subtitle=_subtitle(subject),
        verdict=_verdict(subject),
        cards=(
            Figure("Time", subject.time("run[0].span_ns"), f"{subject.origin}, first to last event"),
            *steps.cards(subject),
            *breakdown.cards(subject),
            *roofline.cards(subject),
            *energy.cards(subject),
        ),
        told=tuple(in_order(told, subject.span_ns) or [NOTHING]),
        sections=tuple(sections),
        facts=facts(subject),
        notes=tuple(subject.text(f"notes[{at}].text") for at in range(len(subject.table("notes")))),
        made_by=made_by,
    )


def findings(run: Run, *, device: Device | None = None) -> list[Told]:
    """The findings of a run's report, without its page: the most expensive first."""
    subject = Subject(run, run.job.name, device=device)
    told = [one for part in _TELL for one in part.told(subject)]
    return in_order([*told, *_doubts(subject)], subject.span_ns)


def in_order(told: Sequence[Told], span_ns: int) -> list[Told]:
    """Findings with their costs, the most expensive first. Problems that are not about time, such as a rank that never
    arrived, come before all others; mere information comes last."""
    shown = [t if t.cost_ns is None else replace(t, cost=_cost(t, min(t.cost_ns, span_ns), span_ns)) for t in told]

    def place(t: Told) -> tuple[bool, int, int]:
        return t.cost_ns is None and t.tone != "bad", -(span_ns if t.cost_ns is None else t.cost_ns), WEIGHT[t.tone]

    return sorted(shown, key=place)


def _cost(told: Told, ns: int, span_ns: int) -> Sentence:
    share = ns / max(span_ns, 1)
    time: str | Asked = words.time(ns)
    part: str | Asked = words.percent(share)
    if told.asked:
        most = f"least(round({told.asked}), run[0].span_ns)"
        time = Asked(words.time(ns), most, "time", ns)
        part = Asked(words.percent(share), f"{most} / run[0].span_ns", "percent", share)
    return Sentence.of(time, " · ", part, " of the run")


def _subtitle(subject: Subject) -> Sentence:
    job, of = subject.run.job, sentence("")
    if len(job) < job.world_size:
        of = sentence("of {size} ", size=subject.number("run[0].world_size"))
    ranks = subject.plural("rank", "run[0].ranks")
    return sentence(
        "{ranks} {of}{gap}· {origin} · {nodes} nodes",
        ranks=ranks,
        of=of,
        gap=" " if of else "",
        origin=subject.origin,
        nodes=subject.number("run[0].nodes"),
    )


def _verdict(subject: Subject) -> Sentence:
    return sentence("{step} {spent}", step=_step(subject), spent=_spent(subject))


def _step(subject: Subject) -> Sentence:
    """What a step of the program takes, where a recording says that; else nothing."""
    if times_of(subject.run.job) == RECORDED or subject.run.timing.origin != Origin.MEASURED:
        return sentence("")
    found = subject.table("program").to_pylist()[0]
    if not found["step_ns"] or found["busy_share"] is None:
        return sentence("")
    here = "program[0]"
    took, busy = subject.time(f"{here}.step_ns"), subject.percent(f"{here}.busy_share")
    if found["low_step_ns"] is not None:
        low, high = subject.time(f"{here}.low_step_ns"), subject.time(f"{here}.high_step_ns")
        took = sentence("about {took} (estimated: {low} to {high})", took=took, low=low, high=high)
        low, high = subject.percent(f"{here}.low_busy_share"), subject.percent(f"{here}.high_busy_share")
        busy = sentence("{busy} ({low} to {high})", busy=busy, low=low, high=high)
    under = sentence("")
    if found["recorded_step_ns"]:
        under = sentence("(recorded under the profiler: {time})", time=subject.time(f"{here}.recorded_step_ns"))
    return sentence(
        "A step takes {took}; the {noun} is busy {busy} of it{gap}{under}.",
        took=took,
        noun=subject.noun,
        busy=busy,
        gap=" " if under else "",
        under=under,
    )


def _spent(subject: Subject) -> Sentence:
    s = breakdown.spent(subject)
    parts = [
        (subject.computing, s.compute, breakdown.COMPUTE),
        ("waiting for communication", s.exposed_comm, breakdown.EXPOSED),
        ("copying memory", s.memory, breakdown.MEMORY),
        (subject.idling, s.idle, breakdown.IDLE),
    ]
    parts = sorted((p for p in parts if p[1] >= 0.005), key=lambda p: -p[1])
    told = series([sentence("{share} {what}", share=subject.percent(query), what=what) for what, _, query in parts])
    takes = sentence("The run takes {time}", time=subject.time("run[0].span_ns"))
    if not parts:
        return sentence("{takes}.", takes=takes)
    whose = (
        f"the {subject.noun} spends its time" if len(subject.run.job) == 1 else f"the {subject.noun}s spend their time"
    )
    used = max(v or 0 for v in subject.breakdown["span_ns"].to_pylist())
    if used < 0.95 * subject.span_ns:
        what = "Work on the device spans" if subject.has_device else "Operators span"
        what = what if len(subject.run.job) == 1 or not subject.has_device else "Work on the devices spans"
        spans = subject.time("max(breakdown.span_ns)")
        return sentence("{takes}. {what} {spans} of that: {parts}.", takes=takes, what=what, spans=spans, parts=told)
    return sentence("{takes}; {whose} {parts}.", takes=takes, whose=whose, parts=told)


def _doubts(subject: Subject) -> list[Told]:
    """Caveats that a reader should know before the rest."""
    found = []
    job, timing = subject.run.job, subject.run.timing
    if not subject.span_ns:
        found.append(
            Told(
                "warn",
                "Nothing in this run takes time.",
                "A collective of one rank has no peers, "
                "and work without FLOPs, bytes or a duration takes none: give all ranks, or the cost of the work.",
            )
        )
    if not subject.has_device and subject.launches:
        found.append(
            Told(
                "warn",
                "Kernels were launched, but none is recorded.",
                sentence(
                    "{calls} are in the trace and no device activity: it was dropped or not recorded, so "
                    "this report covers the host only.",
                    calls=subject.plural("launch call", "host[0].launches"),
                ),
            )
        )
    rest = subject.span_ns - length_ns(subject.path)
    if rest >= UNWORKED * subject.span_ns > 0:
        last = subject.time("run[0].span_ns - path_figures[0].length_ns")
        found.append(
            Told(
                "info",
                sentence("The last {last} of the run contain no work.", last=last),
                "An operator or a step is open until then, and nothing that it does is recorded.",
                "timeline",
            )
        )
    if job.notes and timing.origin == Origin.MEASURED:
        found.append(_lost(subject))
    if timing.origin == Origin.MEASURED and is_under_profiler(job):
        found.append(Told("info", "These times are those under the profiler.",
                          "The program itself may be several times as fast, and its devices busier. `etude collect` "
                          "records a light window too; `--unprofiled 41ms` gives the time of a step."))  # fmt: skip
    elif timing.origin == Origin.MEASURED and times_of(job) == ESTIMATED:
        found.append(_estimated(subject))
    elif timing.origin == Origin.MEASURED and times_of(job) == RECORDED:
        found.append(Told("info", "The file does not say whose times it has.",
                          "If they are those under a profiler, the program itself may be faster."))  # fmt: skip
    if timing.partial:
        found.append(
            Told("warn", "These times do not cover the whole run.", "It was cut off; later events are missing.")
        )
    if len(job) < job.world_size:
        found.append(
            Told(
                "info",
                sentence(
                    "{n} of {size} ranks {are} present.",
                    n=subject.number("run[0].ranks"),
                    size=subject.number("run[0].world_size"),
                    are=words.verb(len(job)),
                ),
                f"The others can only be seen where they communicate with {words.verb(len(job), 'it', 'these')}.",
            )
        )
    if timing.origin == Origin.MEASURED and not _shifted(subject) and not can_align(subject.run):
        found.append(Told("info", "The ranks' clocks were not aligned.",
                          "No collectives were recorded from which their offsets could be estimated."))  # fmt: skip
    return found


def _shifted(subject: Subject) -> bool:
    """Whether the ranks' clocks were aligned."""
    return not subject.run.timing.aligned and bool(subject.aligned.clock_offset_ns.any())


def _estimated(subject: Subject) -> Told:
    """That times are an estimate, and how far it may be off."""
    here = "program[0]"
    if subject.ask(f"{here}.low_step_ns") is None:
        return Told("info", "These times are estimated.", "They were recorded under a profiler.")
    return Told(
        "info",
        "These times are estimated.",
        sentence(
            "They were recorded under a profiler. Without it a step takes {low} to {high}, and the {noun} is idle "
            "{least} to {most} of it; `--as-recorded` shows what was recorded.",
            noun=subject.noun,
            low=subject.time(f"{here}.low_step_ns"),
            high=subject.time(f"{here}.high_step_ns"),
            least=subject.percent(f"1 - {here}.high_busy_share"),
            most=subject.percent(f"1 - {here}.low_busy_share"),
        ),
    )


def _lost(subject: Subject) -> Told:
    """What is missing in the recording, except events cut at its edges."""
    noted = [
        subject.value("text" if at else "capital", f"noted[{at}].text")
        for at in range(min(len(subject.table("noted")), 3))
    ]
    what = Sentence.of(*(piece for at, one in enumerate(noted) for piece in ("; " if at else "", *one.parts)), ".")
    if inside_of(subject.run.job):
        return Told("warn", "The recording is incomplete, or needs care.", what)
    return Told("info", "The recording begins or ends in the middle of work.", what)


def timelines(subjects: list[Subject]) -> PageSection:
    packed = pack([s.shown() for s in subjects]) if len(subjects) > 1 else subjects[0].packed
    lead = sentence(
        "Every lane of every rank on one clock: host threads with their calls nested, then the device's streams. "
        "{drawn} {merged}",
        drawn=_drawn(subjects),
        merged=_merged(subjects, packed),
    )
    ranks = sum(len(s.drawn()) for s in subjects)
    body = timeline(packed, f"Timeline of {ranks} ranks. Arrow keys move from slice to slice.")
    return PageSection("timeline", "Timeline", lead, body, empty="No node has a time.")


def _drawn(subjects: list[Subject]) -> Sentence:
    """Which ranks the timeline has, where that is not all."""
    ranks, kept = sum(len(s.drawn()) for s in subjects), sum(len(s.kept()) for s in subjects)
    total = sum(len(s.run.job) for s in subjects)
    if ranks >= total:
        return sentence("")
    drawn, of = _summed(subjects, "timeline[0].drawn"), _summed(subjects, "timeline[0].ranks")
    choice, left = sentence(""), sentence("")
    if kept > ranks:
        choice = sentence("; select from {kept}", kept=_summed(subjects, "timeline[0].kept"))
    if kept < total:
        left = sentence(
            "; {left} are not on this page, `etude timeline` writes all",
            left=_summed(subjects, "timeline[0].ranks - timeline[0].kept"),
        )
    return sentence("{drawn} of {of} ranks are drawn{choice}{left}.", drawn=drawn, of=of, choice=choice, left=left)


def _summed(subjects: list[Subject], query: str) -> str:
    """A figure of the timeline; of two runs their sum, which no query of one of them is."""
    if len(subjects) == 1:
        return subjects[0].number(query)
    return words.number(sum(subject.ask(query) for subject in subjects))


def _merged(subjects: list[Subject], packed: Packed) -> Sentence:
    if not packed.merged_below_ns:
        return sentence("")
    events, below = words.number(packed.slices), words.time(packed.merged_below_ns)
    if len(subjects) == 1:
        events, below = subjects[0].number("timeline[0].slices"), subjects[0].time("timeline[0].merged_below_ns")
    return sentence(
        "Of {events} events those shorter than {below} are merged with their neighbours; `etude timeline` writes "
        "them all.",
        events=events,
        below=below,
    )


def facts(subject: Subject) -> tuple[tuple[str, str], ...]:
    rows: list[tuple[str, str]] = [
        ("Job", subject.text("run[0].job")),
        ("Ranks", _subtitle(subject)),
        ("Times", subject.origin + (", clocks aligned by collectives" if _shifted(subject) else "")),
    ]
    rows += [(name, subject.text(f"facts[{at}].value")) for at, (name, _) in enumerate(provenance(subject))]
    return tuple(rows)

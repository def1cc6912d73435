"""The page of one run, or of two side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Final

import pyarrow as pa

from etude.analyse.catalogue import report_sections
from etude.analyse.clocks import can_align
from etude.analyse.critical_path import length_ns
from etude.analyse.program_figures import ESTIMATED, RECORDED, is_under_profiler, program_figures, times_of
from etude.machine.system import Device
from etude.model.job import Job, Note
from etude.model.run import Run
from etude.model.timing import Origin
from etude.tell.report import (
    breakdown,
    collectives,
    critical_path,
    energy,
    kernels,
    memory,
    roofline,
    steps,
    stragglers,
    words,
)
from etude.tell.report.subject import Subject
from etude.tell.view.embedded import Packed, Shown, pack
from etude.tell.view.page import Figure, Page, PageSection, Told, timeline

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
_SHOW: Final[tuple[ModuleType, ...]] = (*_ORDER, *(part for part in _DECLARED if part not in _ORDER))
"""Sections in the order of the page; what analyse/catalogue.py declares beyond them comes last."""
PARTS: Final = len(_TELL) + len(_SHOW)
WEIGHT = {"bad": 0, "warn": 1, "info": 2, "good": 3}


def report(
    run: Run, *, name: str = "", device: Device | None = None, allocated: pa.Table | None = None,
    made_by: str = "Etude", advance: Callable[[int], None] = lambda amount: None,
) -> Page:  # fmt: skip
    """The page of a run, in words and pictures. `allocated` is the allocator's activity, if recorded; `advance` is
    called for the PARTS as they are done."""
    subject = Subject(run, name or run.job.name, device=device, allocated=allocated)
    told = []
    for part in _TELL:
        told += part.told(subject)
        advance(1)
    told += _doubts(subject)
    sections = [timelines([subject])]
    for part in _SHOW:
        sections.append(part.section(subject))
        advance(1)
    return Page(
        title=subject.name,
        subtitle=_subtitle(subject),
        verdict=_verdict(subject),
        cards=(
            Figure("Time", words.time(subject.span_ns), f"{subject.origin}, first to last event"),
            *steps.cards(subject),
            *breakdown.cards(subject),
            *roofline.cards(subject),
            *energy.cards(subject),
        ),
        told=tuple(in_order(told, subject.span_ns) or [NOTHING]),
        sections=tuple(sections),
        facts=facts(subject),
        notes=tuple(said_once(run.job.notes)),
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
    shown = [t if t.cost_ns is None else replace(t, cost=_cost(min(t.cost_ns, span_ns), span_ns)) for t in told]

    def place(t: Told) -> tuple[bool, int, int]:
        return t.cost_ns is None and t.tone != "bad", -(span_ns if t.cost_ns is None else t.cost_ns), WEIGHT[t.tone]

    return sorted(shown, key=place)


def _cost(ns: int, span_ns: int) -> str:
    return f"{words.time(ns)} · {words.percent(ns / max(span_ns, 1))} of the run"


def _subtitle(subject: Subject) -> str:
    job = subject.run.job
    ranks = words.plural(len(job), "rank")
    if len(job) < job.world_size:
        ranks += f" of {job.world_size:,}"
    return f"{ranks} · {subject.origin} · {words.number(job.nodes)} nodes"


def _verdict(subject: Subject) -> str:
    return " ".join(filter(None, (_step(subject), _spent(subject))))


def _step(subject: Subject) -> str:
    """What a step of the program takes, where a recording says that; else nothing."""
    if times_of(subject.run.job) == RECORDED or subject.run.timing.origin != Origin.MEASURED:
        return ""
    found = program_figures(subject.run)
    if not found["step_ns"] or found["busy_share"] is None:
        return ""
    took, busy = words.time(found["step_ns"]), words.percent(found["busy_share"])
    if "low" in found:
        low, high = found["low"], found["high"]
        took = f"about {took} (estimated: {words.time(low['step_ns'])} to {words.time(high['step_ns'])})"
        busy = f"{busy} ({words.percent(low['busy_share'])} to {words.percent(high['busy_share'])})"
    recorded = found.get("recorded_step_ns")
    under = f" (recorded under the profiler: {words.time(recorded)})" if recorded else ""
    return f"A step takes {took}; the {subject.noun} is busy {busy} of it{under}."


def _spent(subject: Subject) -> str:
    s = breakdown.spent(subject)
    parts = [(subject.computing, s.compute), ("waiting for communication", s.exposed_comm),
             ("copying memory", s.memory), (subject.idling, s.idle)]  # fmt: skip
    parts = sorted((p for p in parts if p[1] >= 0.005), key=lambda p: -p[1])
    told = words.named([f"{words.percent(share)} {what}" for what, share in parts], 4)
    takes = f"The run takes {words.time(subject.span_ns)}"
    if not parts:
        return f"{takes}."
    whose = (
        f"the {subject.noun} spends its time" if len(subject.run.job) == 1 else f"the {subject.noun}s spend their time"
    )
    used = max(v or 0 for v in subject.breakdown["span_ns"].to_pylist())
    if used < 0.95 * subject.span_ns:
        what = "Work on the device spans" if subject.has_device else "Operators span"
        what = what if len(subject.run.job) == 1 or not subject.has_device else "Work on the devices spans"
        return f"{takes}. {what} {words.time(used)} of that: {told}."
    return f"{takes}; {whose} {told}."


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
        found.append(Told("warn", "Kernels were launched, but none is recorded.",
                          f"{words.plural(subject.launches, 'launch call')} are in the trace and no device activity: "
                          "it was dropped or not recorded, so this report covers the host only."))  # fmt: skip
    rest = subject.span_ns - length_ns(subject.path)
    if rest >= UNWORKED * subject.span_ns > 0:
        found.append(Told("info", f"The last {words.time(rest)} of the run contain no work.",
                          "An operator or a step is open until then, and nothing that it does is recorded.",
                          "timeline"))  # fmt: skip
    if job.notes and timing.origin == Origin.MEASURED:
        found.append(_lost(job))
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
        found.append(Told("info", f"{len(job):,} of {job.world_size:,} ranks {words.verb(len(job))} present.",
                          "The others can only be seen where they communicate "
                          f"with {words.verb(len(job), 'it', 'these')}."))  # fmt: skip
    if timing.origin == Origin.MEASURED and not _shifted(subject) and not can_align(subject.run):
        found.append(Told("info", "The ranks' clocks were not aligned.",
                          "No collectives were recorded from which their offsets could be estimated."))  # fmt: skip
    return found


def _shifted(subject: Subject) -> bool:
    """Whether the ranks' clocks were aligned."""
    return not subject.run.timing.aligned and bool(subject.aligned.clock_offset_ns.any())


def _estimated(subject: Subject) -> Told:
    """That times are an estimate, and how far it may be off."""
    figures = program_figures(subject.run)
    if "low" not in figures:
        return Told("info", "These times are estimated.", "They were recorded under a profiler.")
    low, high = figures["low"], figures["high"]
    step = f"{words.time(low['step_ns'])} to {words.time(high['step_ns'])}"
    idle = f"{words.percent(1 - high['busy_share'])} to {words.percent(1 - low['busy_share'])}"
    return Told("info", "These times are estimated.",
                f"They were recorded under a profiler. Without it a step takes {step}, and the {subject.noun} is idle "
                f"{idle} of it; `--as-recorded` shows what was recorded.")  # fmt: skip


def _lost(job: Job) -> Told:
    """What is missing in the recording, except events cut at its edges."""
    inside = [n for n in job.notes if not n.at_edge]
    said = said_once(inside or list(job.notes))
    if inside:
        return Told("warn", "The recording is incomplete, or needs care.", _sentence("; ".join(said[:3])))
    return Told("info", "The recording begins or ends in the middle of work.", _sentence("; ".join(said[:3])))


def said_once(notes: Sequence[Note]) -> list[str]:
    """Merges notes that differ only in their figures, with their sources."""
    ranks: dict[str, list[int]] = {}
    first: dict[str, str] = {}
    for note in notes:
        alike = re.sub(r"[\d,]+", "#", note.what)
        ranks.setdefault(alike, []).append(note.rank)
        first.setdefault(alike, note.what)
    return [
        what if len(of) < 2 else f"{what} (rank {of[0]}; the same on {words.plural(len(of) - 1, 'other')})"
        for alike, what in first.items()
        for of in [sorted(set(ranks[alike]))]
    ]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def timelines(subjects: list[Subject]) -> PageSection:
    shown = []
    for subject in subjects:
        slices = subject.slices()
        prefix = f"{subject.label} · " if subject.label else ""
        shown.append(Shown(slices, prefix, critical_path.on_path(subject, slices), subject.drawn()))
    packed = pack(shown)
    lead = "Every lane of every rank on one clock: host threads with their calls nested, then the device's streams."
    ranks, kept = sum(len(s.drawn()) for s in subjects), sum(len(s.kept()) for s in subjects)
    total = sum(len(s.run.job) for s in subjects)
    if ranks < total:
        lead += f" {ranks} of {total:,} ranks are drawn" + (f"; select from {kept:,}" if kept > ranks else "")
        lead += f"; {total - kept:,} are not on this page, `etude timeline` writes all." if kept < total else "."
    body = timeline(packed, f"Timeline of {ranks} ranks. Arrow keys move from slice to slice.")
    return PageSection("timeline", "Timeline", lead + _merged(packed), body, empty="No node has a time.")


def _merged(packed: Packed) -> str:
    if not packed.merged_below_ns:
        return ""
    return (
        f" Of {packed.slices:,} events those shorter than {words.time(packed.merged_below_ns)} are merged with "
        "their neighbours; `etude timeline` writes them all."
    )


def facts(subject: Subject) -> tuple[tuple[str, str], ...]:
    job = subject.run.job
    rows = [
        ("Job", job.name),
        ("Ranks", _subtitle(subject)),
        ("Times", subject.origin + (", clocks aligned by collectives" if _shifted(subject) else "")),
    ]
    rows += [(key.replace("_", " ").capitalize(), value) for key, value in job.provenance.items()]
    return tuple(rows)

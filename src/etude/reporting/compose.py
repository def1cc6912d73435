"""The page of one run, or of two side by side."""

from __future__ import annotations

from html import escape

import pyarrow as pa

from etude.model.job import Job
from etude.model.system import Device
from etude.model.timing import Origin, Timing
from etude.reporting import communication, late, memory, path, steps, time_spent, words, work
from etude.reporting.study import Study
from etude.view.embedded import Packed, Shown, pack
from etude.view.page import Card, Page, Section, Told, timeline

WEIGHT = {"bad": 0, "warn": 1, "info": 2, "good": 3}


def report(
    job: Job, timing: Timing, *, name: str = "", device: Device | None = None, allocated: pa.Table | None = None,
    made_by: str = "Etude",
) -> Page:  # fmt: skip
    """What a run did, in words and pictures. `allocated` is what the allocator did, where that was recorded."""
    study = Study(job, timing, name or job.name, device=device, allocated=allocated)
    told = [t for part in (late, time_spent, path, steps, work, communication) for t in part.told(study)] + _doubts(
        study
    )
    sections = [
        timelines([study]),
        time_spent.section(study),
        steps.section(study),
        path.section(study),
        late.section(study),
        work.section(study),
        communication.section(study),
        work.roofs(study),
        memory.section(study),
    ]
    return Page(
        title=study.name,
        subtitle=_subtitle(study),
        verdict=_verdict(study),
        cards=(
            Card("Time", words.time(study.span_ns), f"{study.origin}, first to last event"),
            *time_spent.cards(study),
        ),
        told=tuple(sorted(told, key=lambda t: WEIGHT[t.tone])),
        sections=tuple(sections),
        facts=facts(study),
        notes=tuple(dict.fromkeys(n.what for n in job.notes)),
        made_by=made_by,
    )


def _subtitle(study: Study) -> str:
    job = study.job
    ranks = words.plural(len(job), "rank")
    if len(job) < job.world_size:
        ranks += f" of {job.world_size:,}"
    return f"{ranks} · {study.origin} · {words.number(job.nodes)} nodes"


def _verdict(study: Study) -> str:
    s = time_spent.spent(study)
    parts = [("computing", s.compute), ("waiting for communication", s.exposed_comm), ("copying memory", s.memory),
             ("idle", s.idle)]  # fmt: skip
    parts = sorted((p for p in parts if p[1] >= 0.005), key=lambda p: -p[1])
    told = words.named([f"{words.percent(share)} {what}" for what, share in parts], 4)
    takes = f"The run takes {words.time(study.span_ns)}"
    if not parts:
        return f"{takes}."
    whose = f"the {study.noun} spends its time" if len(study.job) == 1 else f"the {study.noun}s spend their time"
    used = max(v or 0 for v in study.breakdown["span_ns"].to_pylist())
    if used < 0.95 * study.span_ns:
        return f"{takes}. In the {words.time(used)} from its first to its last {study.noun} event {whose} {told}."
    return f"{takes}; {whose} {told}."


def _doubts(study: Study) -> list[Told]:
    """What a reader should know before believing the rest."""
    found = []
    job, timing = study.job, study.timing
    if not study.has_device and study.launches:
        found.append(Told("warn", "Kernels were launched, but none is recorded.",
                          f"{words.plural(study.launches, 'launch call')} are in the trace and no device activity: it "
                          "was dropped or not recorded, so what follows is about the host alone."))  # fmt: skip
    if timing.partial:
        found.append(Told("warn", "These times are not of the whole run.", "It was cut off; later events are missing."))
    if len(job) < job.world_size:
        found.append(Told("info", f"{len(job):,} of {job.world_size:,} ranks are here.",
                          "What the others did can only be seen where they meet these."))  # fmt: skip
    if (
        timing.origin == Origin.MEASURED
        and len(job) > 1
        and not timing.aligned
        and not study.aligned.clock_offset_ns.any()
    ):
        found.append(Told("info", "The ranks' clocks were taken as they are.",
                          "No collectives were recorded from which their offsets could be told."))  # fmt: skip
    return found


def timelines(studies: list[Study]) -> Section:
    shown = []
    for study in studies:
        slices = study.slices()
        prefix = f"{study.label} · " if study.label else ""
        shown.append(Shown(slices, prefix, path.on_path(study, slices)))
    packed = pack(shown)
    lead = "Every lane of every rank on one clock: host threads with their calls nested, then the device's streams."
    ranks = sum(len(s.drawn()) for s in studies)
    total = sum(len(s.job) for s in studies)
    if ranks < total:
        lead += f" {ranks} of {total:,} ranks are drawn."
    body = timeline(packed, f"Timeline of {ranks} ranks. Arrow keys walk from slice to slice.")
    return Section("timeline", "Timeline", escape(lead + _merged(packed)), body, empty="No node has a time.")


def _merged(packed: Packed) -> str:
    if not packed.merged_below_ns:
        return ""
    return (f" Of {packed.slices:,} events those shorter than {words.time(packed.merged_below_ns)} are merged with "
            "their neighbours; `etude timeline` writes them all.")  # fmt: skip


def facts(study: Study) -> tuple[tuple[str, str], ...]:
    job = study.job
    rows = [
        ("Job", job.name),
        ("Ranks", _subtitle(study)),
        ("Times", study.origin + ("" if study.timing.aligned or len(job) < 2 else ", clocks aligned by collectives")),
    ]
    rows += [(key.replace("_", " ").capitalize(), value) for key, value in job.provenance.items()]
    return tuple(rows)

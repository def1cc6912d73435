"""Why devices are idle."""

from __future__ import annotations

from etude.tell.report import gains, words
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.markup import Markup, heading
from etude.tell.view.page import Told
from etude.tell.view.sentences import Sentence, sentence

SECTION = "breakdown"
"""Idle time is a part of that section."""

CAUSE = {
    "host": ("host", "the host had not launched yet"),
    "synchronisation": ("critical", "the host was waiting for the device"),
    "launch": ("memory", "launched, but not started"),
    "communication": ("communication", "waiting for others"),
    "dependency": ("compute", "waiting for host work"),
    "other": ("other", "cause not recorded"),
}
ON_HOST = {"host": "Python, autograd, hooks", "dependency": "waiting for another thread"}
"""The same for a run whose device is the host."""
MUCH, MAIN = 0.25, 0.5
OF_HOST = ("host", "dependency")
"""Causes on the host."""
RANKS = 16


IDLE = "sum(breakdown.idle_ns) / sum(breakdown.span_ns)"


def main_cause(subject: Subject) -> tuple[str, float]:
    """The cause of most of the idle time, and its share of that."""
    total: dict[str, int] = {}
    for row in subject.idle.to_pylist():
        total[row["cause"]] = total.get(row["cause"], 0) + row["time_ns"]
    cause, ns = max(total.items(), key=lambda i: i[1], default=("other", 0))
    return cause, ns / (sum(total.values()) or 1)


ADVICE = {
    "host": "larger batches, torch.compile, CUDA graphs or fewer small operators help",
    "dependency": "larger batches, torch.compile, CUDA graphs or fewer small operators help",
}


def told(subject: Subject, share: float) -> list[Told]:
    """One finding about idle time, with its main cause."""
    if share < MUCH:
        return []
    cause, part = main_cause(subject)
    why: str = {
        "synchronisation": "The host stops to wait for the device (.item(), .cpu(), synchronize) and then has nothing "
        "queued: remove or delay these.",
        "launch": "Kernels were launched early enough and started late: something that was not recorded occupied the "
        "device, or "
        "the clocks of host and device differ.",
        "communication": "The devices wait for other ranks.",
        "other": "The cause was not recorded.",
    }.get(cause) or _of_the_host(subject, cause)
    who = f"The {subject.noun} is" if len(subject.run.job) == 1 else f"The {subject.noun}s are"
    mainly = sentence("")
    if part >= MAIN and subject.has_device:
        much = subject.percent(f'sum(idle[idle.cause == "{cause}"].time_ns) / sum(idle.time_ns)')
        mainly = sentence("{much} of that is because {why}.", much=much, why=_because(subject, cause))
    tone = "bad" if share >= 2 * MUCH else "warn"
    what = sentence(
        "{who} {idling} {share} of the time. {mainly}",
        who=who,
        idling=subject.idling,
        share=subject.percent(IDLE),
        mainly=mainly,
    )
    cost = f"{IDLE} * mean(breakdown[breakdown.span_ns > 0].span_ns)"
    return [Told(tone, what, why, SECTION, subject.device_time(share), asked=cost)]


def _of_the_host(subject: Subject, cause: str) -> Sentence:
    """The text if the host had not finished its work: how far that is the limit, and what being faster gains."""
    once = sum(ns for _, _, ns in subject.first_use)
    if once >= MAIN * subject.span_ns:
        return sentence("Most of that is first use of the device, which does not occur in a warmed-up run.")
    if subject.loading_ns >= MAIN * subject.span_ns:
        return sentence("Most of that is waiting for the data loader.")
    path = sentence(
        "The critical path runs through the host for {share} of the run.",
        share=subject.percent("path_figures[0].host_ns / path_figures[0].whole_ns"),
    )
    pace = gains.pace(subject)
    paced = pace.sentence(subject) if pace else sentence("")
    if not subject.has_device:
        calls = ", calls of the device's runtime" if subject.launches else ""
        helps = ": larger batches or torch.compile help where operators are small" if pace and pace.of_host else ""
        return sentence("That is Python, autograd, hooks{calls}{helps}. {paced}", calls=calls, helps=helps, paced=paced)
    if pace is None:
        return path
    if pace.of_host:
        return sentence(
            "The host is too slow to keep the device busy: {advice}. {paced} {path}",
            advice=ADVICE[cause],
            paced=paced,
            path=path,
        )
    return sentence("{paced} {path}", paced=paced, path=path)


def _cause(subject: Subject, cause: str) -> tuple[str, str]:
    style, label = CAUSE[cause]
    if cause == "host" and not subject.has_device and subject.launches:
        return style, f"{ON_HOST[cause]}, calls of the device's runtime"
    return style, label if subject.has_device else ON_HOST.get(cause, label)


def _because(subject: Subject, cause: str) -> str:
    if cause == "host" and not subject.has_device:
        return "Python, autograd or hooks run between operators"
    return {
        "host": "the host had not launched the next kernel",
        "synchronisation": "the host was waiting for the device",
        "launch": "launched kernels took long to start",
        "communication": "other ranks had not arrived yet",
        "dependency": "the host had not finished its work",
        "other": "of something that was not recorded",
    }[cause]


def figures(subject: Subject) -> Markup:
    """Bars by cause, and a table."""
    rows = subject.idle.to_pylist()
    if not rows:
        return Markup()
    by_rank: dict[int, dict[str, int]] = {}
    for row in rows:
        by_rank.setdefault(row["rank"], {})[row["cause"]] = row["time_ns"]
    drawn = [
        Bar(
            f"rank {rank}",
            tuple(
                BarPiece(
                    *_cause(subject, c),
                    causes[c],
                    query=f'sum(idle[(idle.rank == {rank}) & (idle.cause == "{c}")].time_ns)',
                )
                for c in CAUSE
                if c in causes
            ),
        )
        for rank, causes in list(by_rank.items())[:RANKS]
    ]
    used = [c for c in CAUSE if any(c in causes for causes in by_rank.values())]
    columns = [
        Heading("rank", "rank"), Heading("cause", "cause", lambda c: _cause(subject, c)[1], number=False),
        Heading("gaps", "gaps", words.number), Heading("time_ns", "time", words.time),
        Heading("share", "share of the idle time", words.percent, meter=1.0), Heading("longest_ns", "longest",
    words.time), ]  # fmt: skip
    head = "Why devices are idle" if subject.has_device else "Host activity between operators"
    said = legend([_cause(subject, c) for c in used]) + bars(drawn, words.time)
    return heading(head) + said + table("t-idle", rows[:512], columns, query="idle")

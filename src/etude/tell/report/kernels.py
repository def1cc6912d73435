"""What runs: kernels and operators by time."""

from __future__ import annotations

from etude.model.timing import Origin
from etude.tell.report import gains, words
from etude.tell.report.subject import Subject
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.markup import Markup, heading
from etude.tell.view.page import PageSection, Told
from etude.tell.view.sentences import Sentence, sentence

SECTION = "kernels"

KINDS = {"compute": "compute", "communication": "communication", "memory": "memory", "host": "host"}
ROWS, OPERATORS = 200, 100
"""Rows of the tables of kernels and of operators."""
TINY_NS, MANY_TINY = 5_000, 0.5
"""Kernels shorter than this are dominated by their launches; a report says so if this share of them is."""


COMPUTE = 'sum(kernels[kernels.kind == "compute"].count)'
SHORT = f'sum(kernels[(kernels.kind == "compute") & (kernels.mean_ns < {TINY_NS})].count)'


def told(subject: Subject) -> list[Told]:
    rows = subject.kernels.to_pylist()
    compute = [r for r in rows if r["kind"] == "compute"]
    count = sum(r["count"] for r in compute)
    tiny = sum(r["count"] for r in compute if r["mean_ns"] < TINY_NS)
    found = []
    launched = subject.launches or subject.run.timing.origin == Origin.MEASURED  # without a host launches cost nothing
    if count >= 100 and tiny >= MANY_TINY * count and subject.has_device and launched:
        found.append(
            Told(
                "info",
                sentence(
                    "{share} of the {count} kernels are shorter than {tiny}.",
                    tiny=subject.time(str(TINY_NS)),
                    share=subject.percent(f"{SHORT} / {COMPUTE}"),
                    count=subject.number(COMPUTE),
                ),
                _advice(subject, count),
                SECTION,
            )
        )
    return found


def _advice(subject: Subject, count: int) -> Sentence:
    if subject.replayed_kernels >= MANY_TINY * count:
        return sentence(
            "CUDA graphs replay most of them, so they need no launch each; fusing them would save the gaps."
        )
    pace = gains.pace(subject)
    paced = pace.sentence(subject) if pace else sentence("")
    if pace and not pace.of_host:
        return sentence(
            "Each costs about as much to launch as to run, but launches are not the limit here. {paced}", paced=paced
        )
    return sentence(
        "Each costs about as much to launch as to run. Fusing them (torch.compile) or replaying them from a CUDA "
        "graph saves launches. {paced}",
        paced=paced,
    )


def section(subject: Subject) -> PageSection:
    rows = subject.kernels.slice(0, ROWS).to_pylist()
    if not rows:
        return PageSection(SECTION, "What runs", "", empty="No device activity has a time.")
    what = "kernels" if subject.has_device else "operators"
    most = max(r["share"] for r in rows)
    columns = [
        Heading("name", "name", words.title, number=False, code=True),
        Heading("kind", "kind", number=False), Heading("count", "calls", words.number),
        Heading("total_ns", "total", words.time), Heading("share", "share of the total", words.percent, meter=most),
        Heading("mean_ns", "mean", words.time), Heading("max_ns", "longest", words.time),
    ]  # fmt: skip
    body = _by_kind(subject) + _by_text(subject, "phase", "phases") + _by_text(subject, "module", "modules")
    body += heading(f"The longest {what}") + table("t-kernels", rows, columns, query="kernels")
    host = subject.table("operators").slice(0, OPERATORS).to_pylist() if subject.has_device else []
    if host:
        columns = [
            Heading("name", "operator", words.title, number=False, code=True),
            Heading("count", "calls on the host", words.number),
            Heading("self_ns", "host, itself", words.time),
            Heading("total_ns", "host, total", words.time),
            Heading("device_self_ns", "device, itself", words.time),
            Heading("device_total_ns", "device, total", words.time),
        ]
        launch = any(r["device_total_ns"] for r in host)
        head = "The operators that launch them" if launch else "The operators of the host"
        body += heading(head) + table("t-operators", host, columns, query="operators")
    lead = f"All {what} of all ranks by name. Times of {what} that overlap are added, so they may exceed the run."
    return PageSection(SECTION, "What runs", lead, body)


def _by_kind(subject: Subject) -> Markup:
    pieces = tuple(
        BarPiece(KINDS.get(row["kind"], "other"), row["kind"], row["total_ns"], query=f"kernel_kinds[{at}].total_ns")
        for at, row in enumerate(subject.table("kernel_kinds").to_pylist())
    )
    return legend([(p.sort, p.label) for p in pieces]) + bars([Bar("all", pieces)], words.time)


def _by_text(subject: Subject, by: str, query: str) -> Markup:
    """Bars by phase or module, if the job has them."""
    found = subject.table(query).to_pylist()
    known = [r for r in found if r[by]]
    if not known:
        return Markup()
    none = f"no {by}"
    rows = [
        Bar(
            words.tail(r[by] or none, 26),
            (BarPiece("compute", "device time", r["total_ns"], query=f"{query}[{at}].total_ns"),),
        )
        for at, r in enumerate(found[:12])
    ]
    return heading(f"By {by}") + bars(rows, words.time, thin=True)

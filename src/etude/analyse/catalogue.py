"""The analyses, each declared once: its command, its formats, its row in the docs, its place in a report.

`etude --help`, docs/analyse/index.md and the page of a report are made from this table. A new analysis is a file of
this folder with a function of a run that returns a table, and a line here that names it (`table`): its command with an
option for each figure of the function, its tool for assistants, its section of a report and its row in the docs follow.
One that has several views, or says more than a table, names the file of its parameters (`asked`) and that of its
section (`section`) instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

__all__ = ["ANALYSES", "AnalysisEntry", "command_lines", "declaration_of", "docs_rows", "report_sections"]

TABLES = ("json", "csv", "md")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisEntry:
    """What users see of one analysis."""

    command: str
    does: str
    """The line of `etude --help`."""
    title: str
    question: str
    """Its row in docs/analyse/index.md."""
    section: str = ""
    """The file of report/ that shows it; "" if a report does not."""
    formats: tuple[str, ...] = TABLES
    asked: str = ""
    """`steps.asked.idle:Idle`: the file of its parameters and the class that has them. The file says `inputs`, and what
    else a verb has (`run`, `record`, `table`, `reads`, `answer`, `code`); its command and its tool follow."""
    table: str = ""
    """Where its parameters are those of a function, `longest:longest`: the file of this folder, and its function of a
    run, from which all else follows."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Of its section: columns of the table, and their format on a page (`report/words.py`); none: no section."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What the figures of its function are, for its help."""

    def function(self) -> Callable[..., Any]:
        """The function that `table` names."""
        file, _, name = self.table.partition(":")
        found: Callable[..., Any] = getattr(import_module(f"etude.analyse.{file}"), name)
        return found

    @property
    def page(self) -> str:
        return f"{self.command}.md"


ANALYSES: tuple[AnalysisEntry, ...] = (
    AnalysisEntry(
        command="diagnose", title="Diagnose", asked="steps.asked.diagnose:Diagnose",
        does="What is wrong in a run, and what to do next: faults of ranks, hosts, links and the job, with their cost",
        question="what is wrong, who has the cause, what removing it buys, how sure that is",
    ),
    AnalysisEntry(
        command="breakdown", title="Breakdown", asked="steps.asked.breakdown:Breakdown", section="breakdown",
        does="Where each device's time goes: compute, exposed communication, exposed memory, idle",
        question="how much of the time is compute, exposed communication, exposed memory, idle",
    ),
    AnalysisEntry(
        command="idle", title="Idle", asked="steps.asked.idle:Idle",
        does="Why devices are idle: the host, synchronisation, launches, communication; launches and queues",
        question="why a device is idle; launches and queues",
    ),
    AnalysisEntry(
        command="kernels", title="Kernels and operators", asked="steps.asked.kernels:Kernels", section="kernels",
        does="Kernels by time, or operators by their own time and that of their kernels",
        question="what takes the time, alone and with everything it calls",
    ),
    AnalysisEntry(
        command="collectives", title="Collectives", asked="steps.asked.collectives:CollectivesOf",
        section="collectives",
        does="Collectives matched across ranks: transfer time, waiting time, algorithm and bus bandwidth",
        question="transfer time, waiting time of members, resulting bandwidth",
    ),
    AnalysisEntry(
        command="critical-path", title="Critical path", asked="steps.asked.critical_path:CriticalPath",
        section="critical_path",
        does="The chain of work that set the length of the run, over hosts, kernels, ranks and collectives",
        question="what would have to be shorter for the run to be shorter",
    ),
    AnalysisEntry(
        command="stragglers", title="Stragglers", asked="steps.asked.stragglers:Stragglers", section="stragglers",
        does="Stragglers: slow ranks and links, late hosts, ranks that are missing or disagree; with confidence",
        question="which rank is slow, since when, with what confidence; clocks",
    ),
    AnalysisEntry(
        command="trend", title="Trend", asked="steps.asked.trend:TrendOf", formats=("json",),
        does="Step time over a run or many recordings: trend, cycle, changes of ranks relative to their own history, "
             "forecast",
        question="how step time develops over a run or many recordings; which ranks changed, since when; forecast",
    ),
    AnalysisEntry(
        command="compare", title="Compare", asked="tell.report.asked.compare:Compare",
        does="Two runs side by side: why one takes longer, operation by operation, and whether it became worse",
        question="two runs side by side, why they differ, a gate for continuous integration; steps; patterns",
    ),
    AnalysisEntry(
        command="metrics", title="Metrics", asked="steps.asked.metrics:Metrics",
        does="Metrics that benchmarks publish: step time, MFU, communication, overlap, bandwidth, balance, TTFT and "
             "TPOT",
        question="one number each: step time, MFU, overlap, bandwidth utilisation, balance, TTFT, TPOT",
    ),
    AnalysisEntry(
        command="requests", title="Requests", asked="steps.asked.requests:RequestsInput",
        does="TTFT, TPOT, time between tokens and throughput of requests that vLLM or SGLang measured, or that were "
        "predicted",
        question="TTFT, TPOT, ITL, throughput of requests that an engine or its client measured",
    ),
    AnalysisEntry(
        command="roofline", title="Roofline", asked="steps.asked.roofline:Roofline", section="roofline",
        does="FLOP/s and bytes/s of operators, and how much of the device's roofline they reach",
        question="how far operators are from the limits of the device; MFU, HFU",
    ),
    AnalysisEntry(
        command="memory", title="Memory", asked="steps.asked.memory:MemoryOf", section="memory",
        does="Memory in use over time and its peaks; bandwidth of copies",
        question="memory in use, bandwidth of copies",
    ),
)  # fmt: skip


def command_lines(analyses: Iterable[AnalysisEntry] = ANALYSES) -> dict[str, str]:
    """Command -> its line in `etude --help`."""
    return {one.command: one.does for one in analyses}


def docs_rows(analyses: Iterable[AnalysisEntry] = ANALYSES) -> list[tuple[str, str]]:
    """Rows of docs/analyse/index.md: page, question."""
    return [(f"[{one.title}]({one.page})", one.question) for one in analyses]


def declaration_of(command: str) -> AnalysisEntry | None:
    """The analysis of a command; None of a command that is none."""
    return next((one for one in ANALYSES if one.command == command), None)


def report_sections(analyses: Iterable[AnalysisEntry] = ANALYSES) -> list[str]:
    """Files of report/ that show an analysis."""
    return [one.section for one in analyses if one.section]

"""What is asked of the kernels and operators of a run."""

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from etude.base.figures import switch, text
from etude.base.parameters import only_one
from etude.steps.asked.runs import Analysed, Analysis, Counted, RunSource, Topped

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.model.run import Run

PATTERNS = 50
"""Sequences of kernels that are shown by default."""


@dataclass(frozen=True, kw_only=True)
class Kernels(Analysis, Counted, Topped):
    """Kernels by time, or operators by their own time and that of their kernels

    etude kernels run/ --top 20
    etude kernels run/ --by kind,rank
    etude kernels trace.json.gz --operators --by name,shapes
    etude kernels trace.json.gz --by stack:2
    etude kernels trace.json.gz --graphs
    etude kernels trace.json.gz --patterns --top 10
    etude kernels counted.json.gz --counters --operators
    """

    operators: bool = switch("show operators of the hosts instead")
    graphs: bool = switch("show replays of CUDA graphs, each with its launch")
    patterns: bool = switch("show repeated sequences of kernels instead")
    counters: bool = switch(
        "show hardware counters that CUPTI recorded, summed by kernel; with --operators by operator"
    )
    by: str = text(
        "name, kind, module, phase, shapes, types, stack or `stack:3`, step, stream, rank; separated by commas. With "
        "--counters: kernel, operator, module, phase, step, rank",
        like="module",
        plain=True,
    )


def inputs(asked: Kernels) -> Analysed:
    from etude.analyse import graphs, patterns
    from etude.analyse import operators as analyse
    from etude.analyse.counting import counting_of

    view = only_one(asked, "graphs", "patterns", "counters") or only_one(asked, "graphs", "patterns", "operators")
    source, top = RunSource.of(asked, recorded=view == "counters"), asked.top
    if view == "patterns":
        most = PATTERNS if top is None else top or sys.maxsize
        return Analysed(source, partial(patterns.patterns, top=most))
    if view == "graphs":
        return Analysed(source, graphs.graph_replays, top or 0)
    keys = [name.strip() for name in asked.by.split(",") if name.strip()]
    if view == "counters":
        keys = keys or ["operator" if asked.operators else "kernel"]
        return Analysed(source, partial(_counted, by=keys), top or 0)
    if view == "operators":
        return Analysed(source, partial(analyse.operators, by=keys or ["name"]), top or 0)
    counting = counting_of(asked.counted)
    return Analysed(source, partial(analyse.kernels, by=keys or ["name", "kind"], counting=counting), top or 0)


def _counted(run: "Run", by: list[str]) -> "pa.Table":
    from etude.analyse.counters import counters

    return counters(run.job, by)

"""Collectives matched across ranks: what `etude collectives` asks for."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from etude.base.figures import switch
from etude.base.parameters import only_one
from etude.steps.asked.runs import Analysed, Analysis, RunSource

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.model.run import Run


@dataclass(frozen=True, kw_only=True)
class CollectivesOf(Analysis):
    """Collectives matched across ranks: transfer time, waiting time, algorithm and bus bandwidth

    etude collectives run/
    etude collectives run/ --each --csv
    """

    each: bool = switch("show one row per call instead of one per kind")
    by_group: bool = switch("one row per group")


def inputs(asked: CollectivesOf) -> Analysed:
    from etude.analyse.collectives import collectives

    view = only_one(asked, "each", "by_group")
    compute = collectives if view == "each" else partial(_summary, by_group=view == "by_group")
    return Analysed(RunSource.of(asked), compute)


def _summary(run: "Run", by_group: bool) -> "pa.Table":
    from etude.analyse.collectives import collectives, summarised

    return summarised(collectives(run), by_group=by_group)

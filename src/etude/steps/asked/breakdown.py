"""Where the time of devices goes: what `etude breakdown` asks for."""

from dataclasses import dataclass
from functools import partial

from etude.base.errors import UsageError
from etude.base.figures import figure, switch, text
from etude.base.parameters import only_one
from etude.steps.asked.runs import Analysed, Analysis, Counted, RunSource, record_of, table_of


@dataclass(frozen=True, kw_only=True)
class Breakdown(Analysis, Counted):
    """Where each device's time goes: compute, exposed communication, exposed memory, idle

    etude breakdown run/
    etude breakdown trace.json.gz --json
    etude breakdown run/ --overlap compute --overlap all_to_all
    etude breakdown run/ --steps
    etude breakdown run/ --ray auto            read the ranks on a Ray cluster
    etude breakdown trace.json.gz --as hta     count as HTA does
    """

    overlap: tuple[str, ...] = figure(
        "several",
        "show the overlap of two groups instead; give the option twice. compute, communication, memory, all_reduce, "
        "..., `name:REGEX`, `module:REGEX`, `phase:REGEX`, `stream:7`, or several with `|` between them",
        (),
        like=[["compute", "memory"]],
        plain=True,
    )
    types: bool = switch("show the time in which exactly these classes run, instead")
    steps: bool = switch("every step of every rank instead")
    variation: bool = switch("how much each rank's steps vary instead")
    ray: str = text(
        "read the ranks of a recording on Ray: `auto`, or the address of a cluster that sees its files",
        like="auto",
        local=True,
    )


def inputs(asked: Breakdown) -> Analysed:
    from etude.analyse import breakdown as analyse
    from etude.analyse import steps as by_step
    from etude.analyse.counting import counting_of

    view, source = only_one(asked, "steps", "variation", "types", "overlap"), RunSource.of(asked, asked.ray)
    if view in ("steps", "variation"):
        by = by_step.steps if view == "steps" else by_step.step_times
        return Analysed(source, by, nothing="no steps were recorded")
    counting, pair = counting_of(asked.counted), asked.overlap
    if view == "overlap" and len(pair) != 2:
        raise UsageError(f"an overlap needs two groups, not {len(pair)}", hint="--overlap compute --overlap memory")
    if view == "overlap":
        return Analysed(source, partial(analyse.overlap, a=pair[0], b=pair[1], counting=counting))
    if view:
        return Analysed(source, partial(analyse.kernel_types, counting=counting))
    return Analysed(source, partial(analyse.breakdown, counting=counting), about=True)


run, record, table = Analysed.with_figures, record_of, table_of

"""Why devices are idle: what `etude idle` asks for."""

from dataclasses import dataclass
from functools import partial

from etude.base.figures import switch, text
from etude.base.parameters import is_given, only_one
from etude.steps.asked.runs import Analysed, Analysis, RunSource, counted_as, record_of, table_of


@dataclass(frozen=True, kw_only=True)
class Idle(Analysis):
    """Why devices are idle: the host, synchronisation, launches, communication; launches and queues

    etude idle run/
    etude idle trace.json.gz --launches
    etude idle trace.json.gz --streams --as hta
    etude idle trace.json.gz --queues --calls '^cudaLaunchKernel'
    """

    launches: bool = switch("show durations and delays of launches")
    queues: bool = switch("show the depth of the streams' queues")
    streams: bool = switch("show the gaps of each stream")
    each: bool = switch("list every gap")
    counted: str = counted_as(needs="launches|queues|streams")
    calls: str = text(
        "only calls whose names match this pattern", needs="launches|queues", like="^cudaLaunchKernel", plain=True
    )


def inputs(asked: Idle) -> Analysed:
    from etude.analyse import idle as analyse
    from etude.analyse import launches
    from etude.analyse.counting import counting_of

    view, source = only_one(asked, "launches", "queues", "streams", "each"), RunSource.of(asked)
    if view in ("", "each"):
        return Analysed(source, analyse.gaps if view else analyse.idle, about=not view)
    if view == "streams":
        return Analysed(source, partial(analyse.stream_gaps, counting=counting_of(asked.counted)))
    if is_given(asked, "calls"):
        calls = asked.calls
    else:
        counting = counting_of(asked.counted)
        calls = counting.launches if view == "launches" else counting.enqueues
    return Analysed(source, partial(launches.launches if view == "launches" else launches.queue_depth, calls=calls))


run, record, table = Analysed.with_figures, record_of, table_of

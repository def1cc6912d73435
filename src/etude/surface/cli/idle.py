from dataclasses import dataclass
from typing import TYPE_CHECKING

from etude.base.figures import figure, part
from etude.base.parameters import only_one
from etude.surface.cli.build import Tabled
from etude.surface.cli.runs import Counted, RunInput, RunSource
from etude.surface.verb import Verb

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.analyse.counting import Counting


@dataclass(frozen=True, kw_only=True)
class Idle(RunInput, Counted):
    """Why devices are idle: the host, synchronisation, launches, communication; launches and queues

    etude idle run/
    etude idle trace.json.gz --launches
    etude idle trace.json.gz --queues --calls '^cudaLaunchKernel'
    """

    launches: bool = figure("switch", "show durations and delays of launches", False)
    queues: bool = figure("switch", "show the depth of the streams' queues", False)
    streams: bool = figure("switch", "show the gaps of each stream", False)
    each: bool = figure("switch", "list every gap", False)
    calls: str = figure(
        "text", "only calls whose names match this pattern", "", needs="launches|queues", like="^cudaLaunchKernel"
    )
    output: Tabled = part(Tabled)


@dataclass(frozen=True, slots=True)
class IdleInputs:
    source: RunSource
    view: str
    """launches, queues, streams, each; empty: the causes of idle time."""
    calls: str
    counting: "Counting"


def inputs(asked: Idle) -> IdleInputs:
    from etude.analyse.counting import counting_of

    view, counting = only_one(asked, "launches", "queues", "streams", "each"), counting_of(asked.counted)
    return IdleInputs(RunSource.of(asked), view, asked.calls, counting)


def run(given: IdleInputs) -> "pa.Table":
    from etude.analyse import idle as analyse
    from etude.analyse.launches import launches, queue_depth

    found, counting = given.source.open(), given.counting
    if given.view == "launches":
        return launches(found, given.calls or counting.launches)
    if given.view == "queues":
        return queue_depth(found, given.calls or counting.enqueues)
    if given.view == "streams":
        return analyse.stream_gaps(found, counting)
    return (analyse.gaps if given.view == "each" else analyse.idle)(found)


VERBS = (Verb(name="idle", asks=Idle, inputs=inputs, run=run, tool=True),)

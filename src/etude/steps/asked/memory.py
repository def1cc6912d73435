"""What is asked of the memory of a run."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from etude.base.errors import UsageError
from etude.base.figures import switch
from etude.base.parameters import only_one
from etude.steps.asked.runs import Analysed, Analysis, RunSource, counted_as

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.model.run import Run

NO_EVENTS = "no memory event is in this job; profile(profile_memory=True) records them, --copies needs none"


@dataclass(frozen=True, kw_only=True)
class MemoryOf(Analysis):
    """Memory in use over time and its peaks; bandwidth of copies

    etude memory trace.json.gz                 needs profile_memory=True
    etude memory trace.json.gz --copies
    """

    copies: bool = switch("show the bandwidth of copies, by direction")
    each: bool = switch("list the memory in use over time, event by event")
    counted: str = counted_as(needs="copies")


@dataclass(frozen=True, slots=True)
class AllocatedByRank:
    """Inputs of what the profiler's traces of several ranks say of their allocators."""

    path: Path
    each: bool

    def run(self) -> "pa.Table":
        import pyarrow as pa

        from etude.analyse.memory import peaks
        from etude.capture.ingest import allocations, reading, runs

        tables = []
        for at, files in enumerate(runs.find_run(self.path)[1]):
            found = allocations.allocations(reading.load_device(files.device))
            shown = found if self.each else peaks(found)
            rank = at if files.rank is None else files.rank
            tables.append(shown.add_column(0, "rank", pa.array([rank] * len(shown), pa.int64())))
        joined = pa.concat_tables(tables)
        if not len(joined):
            hint = "profile(profile_memory=True) records allocations; --copies needs none"
            raise UsageError("no rank of this run recorded an allocation", where=str(self.path), hint=hint)
        return joined


@dataclass(frozen=True, slots=True)
class Allocated:
    """Inputs of what a profiler's trace says of its allocator."""

    path: Path
    workers: int
    each: bool

    def run(self) -> "pa.Table":
        from etude.analyse.memory import peaks
        from etude.capture.ingest import allocations, reading

        found = allocations.allocations(reading.load_device(self.path))
        if not len(found):
            hint = "profile(profile_memory=True) records allocations; --copies needs none"
            raise UsageError("no allocation was recorded", where=str(self.path), hint=hint)
        return found if self.each else peaks(found)


def memory_inputs(asked: MemoryOf) -> Analysed | Allocated | AllocatedByRank:
    from etude.analyse import memory as analyse
    from etude.analyse.counting import counting_of
    from etude.capture.opening import is_profile, is_run

    view = only_one(asked, "copies", "each")
    if view == "copies":
        return Analysed(RunSource.of(asked), partial(analyse.copies, counting=counting_of(asked.counted)))
    if not asked.system and asked.timing is None and is_profile(Path(asked.path)):
        return Allocated(Path(asked.path), asked.workers, view == "each")
    if not asked.system and asked.timing is None and is_run(Path(asked.path)):
        return AllocatedByRank(Path(asked.path), view == "each")
    return Analysed(RunSource.of(asked), analyse.levels if view == "each" else _peaks, nothing=NO_EVENTS)


def _peaks(run: "Run") -> "pa.Table":
    from etude.analyse.memory import level_peaks, levels

    return level_peaks(levels(run))

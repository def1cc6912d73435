"""What is asked of the memory of a run."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from etude.base.errors import UsageError
from etude.base.figures import switch
from etude.base.parameters import only_one, spelled
from etude.steps.asked.runs import Analysed, Analysis, RunSource, counted_as

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.model.run import Run

NOT_RECORDED = "profile(profile_memory=True) records allocations; --copies needs none"
NO_EVENTS = "no memory event is in this job; profile(profile_memory=True) records them, --copies needs none"
MOVES_NONE = (
    "no node of this job loads or stores memory; what a model needs is what `etude predict` prints, --copies needs none"
)


@dataclass(frozen=True, kw_only=True)
class MemoryOf(Analysis):
    """Memory in use over time and its peaks; bandwidth of copies

    etude memory trace.json.gz                 needs profile_memory=True
    etude memory trace.json.gz --copies
    etude memory profiled.json --growth        from step to step; of a folder, of each rank
    etude memory snapshot.pickle               of torch.cuda.memory._dump_snapshot; no code of it runs
    """

    copies: bool = switch("show the bandwidth of copies, by direction")
    each: bool = switch("list the memory in use over time, event by event")
    owners: bool = switch("list what is there at the peak and at the end, by owner: of recorded allocations, snapshots")
    growth: bool = switch("show by how much it grows in each step, and whether it leaks: of recorded allocations")
    counted: str = counted_as(needs="copies")


@dataclass(frozen=True, slots=True)
class AllocatedByRank:
    """Inputs of what the profiler's traces of several ranks say of their allocators."""

    path: Path
    view: str

    def run(self) -> "pa.Table":
        import pyarrow as pa

        from etude.capture.ingest import runs

        tables = []
        for at, files in enumerate(runs.find_run(self.path)[1]):
            shown = allocation_view(files.device, self.view)
            rank = at if files.rank is None else files.rank
            tables.append(shown.add_column(0, "rank", pa.array([rank] * len(shown), pa.int64())))
        joined = pa.concat_tables(tables)
        if not len(joined):
            raise UsageError("no rank of this run recorded an allocation", where=str(self.path), hint=NOT_RECORDED)
        return joined


@dataclass(frozen=True, slots=True)
class Allocated:
    """Inputs of what a profiler's trace says of its allocator."""

    path: Path
    workers: int
    view: str

    def run(self) -> "pa.Table":
        found = allocation_view(self.path, self.view)
        if not len(found):
            raise UsageError("no allocation was recorded", where=str(self.path), hint=NOT_RECORDED)
        return found


def allocation_view(path: Path, view: str) -> "pa.Table":
    """The allocations of a trace, or what they come to."""
    from etude.analyse.allocations import allocation_owners, memory_growth
    from etude.analyse.memory import peaks
    from etude.capture.ingest import allocations, reading

    trace = reading.load_device(path)
    if view == "owners":
        return allocation_owners(allocations.owned_allocations(trace))
    if view == "growth":
        return memory_growth(allocations.owned_allocations(trace), allocations.device_bytes(trace))
    found = allocations.allocations(trace)
    return found if view == "each" else peaks(found)


@dataclass(frozen=True, slots=True)
class SnapshotInputs:
    """Inputs of what a snapshot of an allocator says."""

    path: Path
    view: str

    def run(self) -> "pa.Table":
        from etude.analyse.allocator import AllocatorHistory, allocator_levels, allocator_owners, allocator_peaks
        from etude.capture.ingest import allocations

        history = AllocatorHistory(*allocations.read_snapshot(self.path))
        show = {"each": allocator_levels, "owners": allocator_owners}.get(self.view, allocator_peaks)
        return show(history)


def inputs(asked: MemoryOf) -> Analysed | Allocated | AllocatedByRank | SnapshotInputs:
    from etude.analyse import memory as analyse
    from etude.analyse.counting import counting_of
    from etude.capture.opening import is_profile, is_run

    view = only_one(asked, "copies", "each", "owners", "growth")
    simulated = asked.system or asked.timing is not None
    if is_snapshot(asked):
        given = {
            "copies": view == "copies",
            "growth": view == "growth",
            "system": asked.system,
            "timing": asked.timing is not None,
        }
        if unread := next((name for name, is_there in given.items() if is_there), ""):
            raise UsageError(f"{spelled(asked, unread)} is not read of a snapshot of an allocator", where=asked.path)
        return SnapshotInputs(Path(asked.path), view)
    if view == "copies":
        return Analysed(RunSource.of(asked), partial(analyse.copies, counting=counting_of(asked.counted)))
    if not simulated and is_profile(Path(asked.path)):
        return Allocated(Path(asked.path), asked.workers, view)
    if not simulated and is_run(Path(asked.path)):
        return AllocatedByRank(Path(asked.path), view)
    if view in ("owners", "growth"):
        hint = "torch.cuda.memory._record_memory_history(), then torch.cuda.memory._dump_snapshot(FILE)"
        hint = f"profile(profile_memory=True); or {hint}"
        by = next((name for name, given in (("system", asked.system), ("timing", asked.timing)) if given), "path")
        not_there = f"{spelled(asked, by)} has none" if by == "path" else f"{spelled(asked, by)} is of a simulation"
        problem = f"{spelled(asked, view)} is for recorded allocations: {not_there}"
        raise UsageError(problem, where=asked.path, hint=hint)
    nothing = MOVES_NONE if simulated else NO_EVENTS
    return Analysed(RunSource.of(asked), analyse.levels if view == "each" else _peaks, nothing=nothing)


def is_snapshot(asked: MemoryOf) -> bool:
    from etude.capture.ingest import allocations

    return allocations.is_snapshot(Path(asked.path))


def _peaks(run: "Run") -> "pa.Table":
    from etude.analyse.memory import level_peaks, levels

    return level_peaks(levels(run))

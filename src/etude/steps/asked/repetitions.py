"""Several runs of one program, as `compare` takes them on each side: a folder of runs, or one run."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from etude.base.errors import UsageError
from etude.steps.asked.runs import RunSource
from etude.steps.asked.times import TimesWanted

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.analyse.gate_samples import Sampled
    from etude.machine.system import Device
    from etude.model.run import Run


_RANK = re.compile(r"(?P<name>.+)\.\d+\.et(\.gz|\.zst)?")


def runs_at(path: Path) -> list[Path]:
    """The runs at a place: the one that it is, those of several names in one folder, or those in folders within it."""
    from etude.capture import opening

    if not path.is_dir():
        return [path]
    try:
        kind = opening.sniff(path)
    except UsageError:
        inner = [place for place in sorted(path.iterdir(), key=_by_number) if place.is_dir() and _is_run(place)]
        return inner or [path]  # what is wrong with it, opening it will say
    names: list[str] = []
    if kind.holds is opening.is_run:
        from etude.capture.ingest import runs

        names = list(runs.runs_in(path))
    elif not opening.is_columns(path):
        found = [_RANK.fullmatch(place.name) for place in path.iterdir()]
        names = sorted({one["name"] for one in found if one is not None})
    return [path / name for name in sorted(names, key=_number)] if len(names) > 1 and all(names) else [path]


def _is_run(place: Path) -> bool:
    from etude.capture import opening

    try:
        opening.sniff(place)
    except UsageError:
        return False
    return True


def _number(name: str) -> list[tuple[int, str]]:
    """Sort key by number: `run10` comes after `run9`."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d{1,18})", name)]


def _by_number(place: Path) -> list[tuple[int, str]]:
    return _number(place.name)


def opened_runs(
    path: Path, workers: int, system: str = "", times: Path | None = None, *, wanted: TimesWanted = None
) -> "list[tuple[Path, Run]]":
    """The runs at a place, each with its own."""
    places = runs_at(path)
    if len(places) > 1 and times is not None:
        raise UsageError(
            "a file of times belongs to one run", where=str(path), hint=f"give one of the {len(places)} runs"
        )
    found = [(place, RunSource(place, system, times, workers=workers, times=wanted).open()) for place in places]
    _refuse_ranks(path, [run for _, run in found])
    return found


def _refuse_ranks(path: Path, runs: "list[Run]") -> None:
    """Raises UsageError if the files seem to be the ranks of one run rather than several runs."""
    ranks = {int(rank) for run in runs for rank in run.job.ranks}
    alone = all(len(run.job.ranks) == 1 and run.job.world_size > 1 for run in runs)
    if len(runs) > 1 and alone and len(ranks) == len(runs):
        hint = "name the files `run.rank0.json`, `run.rank1.json`, ..."
        raise UsageError("these are ranks of one run, not several runs", where=str(path), hint=hint)


def sampled(place: Path, run: "Run", device: "Device | None", *, memory: bool) -> "Sampled":
    """A run with what else is known of it; `memory` where that is asked for."""
    from etude.analyse.gate_samples import Sampled

    return Sampled(run, device, _allocated(place) if memory and run.timing is run.job.timing else None)


def _allocated(place: Path) -> float | None:
    """The most memory in bytes that a profiler saw allocated on a device, over the ranks of a run; None if unknown."""
    from etude.analyse.memory import peaks
    from etude.capture.ingest import runs

    files = [place] if place.is_file() else [rank.device for found in runs.runs_in(place).values() for rank in found]
    most = []
    for file in files:
        found = allocated(file)
        rows = peaks(found).to_pylist() if found is not None and len(found) else []
        on_device = [row for row in rows if row["device"] != "cpu"] or rows
        most += [float(row["most_allocated_bytes"]) for row in on_device]
    return max(most, default=None)


def allocated(path: Path) -> "pa.Table | None":
    """What the allocator did, where the profiler recorded it."""
    from etude.capture.opening import is_profile
    from etude.store import compressed

    if not is_profile(path) or not re.search(rb'"profile_memory":\s*1', compressed.head(path, 1 << 16)):
        return None
    from etude.capture.ingest import allocations, reading

    return allocations.allocations(reading.load_device(path))

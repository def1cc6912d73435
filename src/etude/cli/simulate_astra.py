"""`etude simulate --astra-network F --astra-system F`: ASTRA-sim's own result from its own files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.cli.inputs import open_job
from etude.cli.output import emit, progress, say
from etude.errors import AnswerNo, DeadlockError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from etude.astra import AstraOptions, AstraResult
    from etude.model.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class AstraFiles:
    """What ASTRA-sim is given on its command line."""

    network: Path
    system: Path
    remote_memory: Path | None = None
    groups: Path | None = None
    backend: str = "unaware"
    num_queues_per_dim: int = 1
    rendezvous: bool = False
    injection_scale: float = 1.0


def simulate_astra(path: Path, files: AstraFiles, *, timing: Path | None, force: bool, json: bool) -> int:
    """Runs, writes the timing, prints; a hang or a crash of ASTRA-sim is the answer "no" with its cause."""
    try:
        found = _run(path, files)
    except AnswerNo as problem:
        if json:
            key = "deadlock" if isinstance(problem, DeadlockError) else "abort"
            emit({key: {"what": problem.problem, "where": problem.where, "hint": problem.hint}}, json=True)
        raise
    if timing is not None:
        _write(found, timing, force)
    _show(found, json)
    return 0


def _run(path: Path, files: AstraFiles) -> "AstraResult":
    from etude import astra

    network, system = astra.read_network(files.network), astra.read_system(files.system)
    options = _options(path, files, {prefix: open_job(Path(prefix)) for prefix in system.custom_prefixes})
    job = _job(path, network.num_npus)
    with progress("simulating") as advance:
        return astra.run(job, network, system, options, _since(advance))


def _since(advance: Callable[[int], None]) -> Callable[[int], None]:
    """Tells of events since the last time, given all so far."""
    done = 0

    def tell(events: int) -> None:
        nonlocal done
        advance(events - done)
        done = events

    return tell


def _options(path: Path, files: AstraFiles, custom: dict[str, "Job"]) -> "AstraOptions":
    from etude import astra

    groups = files.groups or _groups_beside(path)
    more = {"remote_memory": astra.read_remote_memory(files.remote_memory)} if files.remote_memory else {}
    return astra.AstraOptions(
        groups=astra.read_groups(groups) if groups else {} if _ranks_of(path) else None,
        backend=files.backend,
        num_queues_per_dim=files.num_queues_per_dim,
        rendezvous=files.rendezvous,
        injection_scale=files.injection_scale,
        custom=custom,
        is_one_for_all=path.is_file(),
        **more,
    )


def _ranks_of(path: Path) -> tuple[str, dict[int, Path]] | None:
    """Name and files of a job in `.et` files, which ASTRA-sim reads as they are; None of any other."""
    from etude.store import chakra

    try:
        return chakra.find_ranks(path)
    except UsageError:
        return None


def _groups_beside(path: Path) -> Path | None:
    found = _ranks_of(path)
    if found is None:
        return None
    beside = next(iter(found[1].values())).parent / f"{found[0]}.json"
    return beside if beside.is_file() else None


def _job(path: Path, npus: int) -> "Job":
    from etude.transform import for_astra

    job = open_job(path)
    if path.is_file():
        say(f"note: {path.name} is given to each of the {npus:,} NPUs")
    elif len(job) > npus:
        say(f"note: {len(job):,} ranks, of which the network has NPUs for the first {npus:,}")
    return job if _ranks_of(path) else for_astra(job)


def _show(found: "AstraResult", json: bool) -> None:
    from etude.units import format_time

    spent = _spent(found)
    columns = (spent.rank, found.finish_ns, spent.compute_ns, spent.exposed_comm_ns, spent.idle_ns, found.exposed_ns)
    names = ("rank", "finish_ns", "compute_ns", "exposed_comm_ns", "idle_ns", "astra_exposed_ns")
    rows = [dict(zip(names, row, strict=True)) for row in zip(*(c.tolist() for c in columns), strict=True)]
    makespan_ns = max((row["finish_ns"] for row in rows), default=0)
    if json:
        emit({"makespan_ns": makespan_ns, "ranks": rows, "links": [], "warnings": list(found.warnings)}, json=True)
    else:
        emit(rows)
    for warning in found.warnings:
        say(f"warning: {warning}")
    say(f"{len(rows):,} ranks as ASTRA-sim has them, done at {format_time(makespan_ns)}")


def _spent(found: "AstraResult") -> Any:
    """How each rank spent its time, by our own definitions."""
    import numpy as np

    from etude.model.schema import Kind
    from etude.simulate.result import rank_times

    ranks = found.job.ranks
    kind = np.concatenate([found.job.trace(rank).kind for rank in ranks.tolist()])
    start = np.cumsum([0, *(len(block) for block in found.timing.start_ns)])
    use = np.where(kind == Kind.COMP, 1, np.where(kind <= Kind.METADATA, 0, 2)).astype(np.int32)
    times = (np.concatenate(found.timing.start_ns), np.concatenate(found.timing.end_ns))
    return rank_times(ranks, ranks, start, start[:-1], times, use, np.zeros(0, np.int64))


def _write(found: "AstraResult", path: Path, force: bool) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from etude.files import writing
    from etude.model.schema import UNKNOWN

    def known(times: "tuple[NDArray[np.int64], ...]") -> Any:
        flat = np.concatenate(times)
        return pa.array(flat, mask=flat == UNKNOWN)

    job, timing = found.job, found.timing
    ids = [job.trace(rank).source_id + base for rank, base in zip(job.ranks.tolist(), job.id_base, strict=True)]
    columns = {"rank": np.repeat(job.ranks, [len(i) for i in ids]), "source_id": np.concatenate(ids)}
    table = pa.table(columns | {"start_ns": known(timing.start_ns), "end_ns": known(timing.end_ns)})
    with writing(path, force=force) as place:
        if path.suffix == ".csv":
            pyarrow.csv.write_csv(table, place)
        else:
            pyarrow.parquet.write_table(table, place)
    say(f"wrote {path}")

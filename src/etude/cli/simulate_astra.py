"""`etude simulate --astra-network F --astra-system F`: ASTRA-sim's own result from its own files."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from etude.cli.inputs import open_job
from etude.cli.output import emit, progress, say
from etude.errors import AnswerNo, DeadlockError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from etude.astra import AstraResult, Workload


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
    from etude import astra

    network, system = astra.read_network(files.network), astra.read_system(files.system)
    remote = astra.read_remote_memory(files.remote_memory) if files.remote_memory else None
    with _as_et(path) as plain, progress("simulating") as advance:
        done = 0

        def tell(events: int) -> None:
            nonlocal done
            advance(events - done)
            done = events

        try:
            traces, beside = _traces(plain, network.num_npus, path)
            groups = files.groups or beside
            workload = astra.read_workload(traces, astra.read_groups(groups) if groups else None)
            found = astra.run(
                workload, network, system, remote_memory=remote, backend=files.backend,
                num_queues_per_dim=files.num_queues_per_dim, rendezvous=files.rendezvous,
                injection_scale=files.injection_scale, custom=astra.read_custom(system), tell=tell,
            )  # fmt: skip
        except AnswerNo as problem:
            if json:
                key = "deadlock" if isinstance(problem, DeadlockError) else "abort"
                emit({key: {"what": problem.problem, "where": problem.where, "hint": problem.hint}}, json=True)
            raise
    if timing is not None:
        _write(workload, found, timing, force)
    _show(workload, found, json)
    return 0


@contextmanager
def _as_et(path: Path) -> Iterator[Path]:
    """The plain `.et` files that ASTRA-sim reads; a job in another form is written as such for the time of the run."""
    from etude.store import chakra

    try:
        is_plain = all(p.suffix == ".et" for p in chakra.find_ranks(path)[1].values())
    except UsageError:
        is_plain = False
    if is_plain:
        yield path
        return
    from etude.transform import for_astra

    job = for_astra(open_job(path))
    with TemporaryDirectory(prefix="etude-") as folder:
        chakra.write_job(job, Path(folder))
        yield Path(folder)


def _traces(path: Path, npus: int, given: Path) -> tuple[list[Path], Path | None]:
    """A trace for each NPU, and the group file beside them. One file without a rank in its name serves all."""
    from etude.astra import AstraAbort
    from etude.store.chakra import find_ranks

    name, found = find_ranks(path)
    first = next(iter(found.values()))
    groups = first.parent / f"{name}.json"
    if path.is_file():
        say(f"note: {path.name} is given to each of the {npus:,} NPUs")
        return [path] * npus, groups if groups.is_file() else None
    if len(found) > npus:
        say(f"note: {len(found):,} ranks, of which the network has NPUs for the first {npus:,}")
    for rank in range(npus):
        if rank not in found:
            problem = f"the network has {npus:,} NPUs, but there is no trace of rank {rank}"
            raise AstraAbort(problem, where=str(given), hint="ASTRA-sim wants a file per NPU")
    return [found[rank] for rank in range(npus)], groups if groups.is_file() else None


def _show(workload: "Workload", found: "AstraResult", json: bool) -> None:
    from etude.units import format_time

    spent = _spent(workload, found)
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


def _spent(workload: "Workload", found: "AstraResult") -> Any:
    """How each rank spent its time, by our own definitions."""
    import numpy as np

    from etude.astra.workload import COMP, METADATA
    from etude.simulate.result import rank_times

    ranks = np.arange(len(workload.rank_start) - 1, dtype=np.int32)
    use = np.where(workload.kind == COMP, 1, np.where(workload.kind <= METADATA, 0, 2)).astype(np.int32)
    starts = workload.rank_start[:-1]
    times = (found.start_ns, found.end_ns)
    return rank_times(ranks, ranks, workload.rank_start, starts, times, use, np.zeros(0, np.int64))


def _write(workload: "Workload", found: "AstraResult", path: Path, force: bool) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from etude.files import writing
    from etude.model.schema import UNKNOWN

    rank = np.repeat(np.arange(len(workload.rank_start) - 1, dtype=np.int32), np.diff(workload.rank_start))

    def known(times: "NDArray[np.int64]") -> Any:
        return pa.array(times, mask=times == UNKNOWN)

    columns = {"rank": rank, "source_id": workload.source_id}
    table = pa.table(columns | {"start_ns": known(found.start_ns), "end_ns": known(found.end_ns)})
    with writing(path, force=force) as place:
        if path.suffix == ".csv":
            pyarrow.csv.write_csv(table, place)
        else:
            pyarrow.parquet.write_table(table, place)
    say(f"wrote {path}")

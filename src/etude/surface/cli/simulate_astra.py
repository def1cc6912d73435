"""`etude simulate astra WORKLOAD --network F --system F`: ASTRA-sim's own result from its own files."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import AnswerNo, DeadlockError, UsageError
from etude.surface.cli.app import RUN, app
from etude.surface.cli.inputs import open_job
from etude.surface.cli.output import AsJson, emit, progress, say
from etude.surface.cli.runs import rank_table

if TYPE_CHECKING:
    from etude.model.job import Job
    from etude.run.astra import AstraOptions, AstraResult


Backend = StrEnum("Backend", {"UNAWARE": "unaware", "AWARE": "aware"})


@app.command("simulate astra", rich_help_panel=RUN)
def simulate_astra(
    workload: Annotated[Path, typer.Argument(help="A folder or prefix of `.et` files, or any job.")],
    network: Annotated[
        Path, typer.Option("--network", "--network-configuration", help="ASTRA-sim's network file (YAML).")
    ],
    system: Annotated[
        Path, typer.Option("--system", "-s", "--system-configuration", help="ASTRA-sim's system file (JSON).")
    ],
    remote_memory: Annotated[
        Path | None,
        typer.Option("--remote-memory", "--remote-memory-configuration", help="ASTRA-sim's remote-memory file (JSON)."),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            "--groups",
            "--comm-group-configuration",
            help="Communicator groups; by default `name.json` next to the workload.",
        ),
    ] = None,
    backend: Annotated[
        Backend, typer.Option(help="ASTRA-sim's analytical backend: congestion-unaware, or congestion-aware.")
    ] = Backend.UNAWARE,
    num_queues_per_dim: Annotated[int, typer.Option(min=1, help="Queues for collectives in each dimension.")] = 1,
    rendezvous_protocol: Annotated[
        bool, typer.Option("--rendezvous-protocol", help="Messages wait until both sides are ready.")
    ] = False,
    injection_scale: Annotated[float, typer.Option(help="Factor of the endpoint delay.")] = 1.0,
    timing: Annotated[Path | None, typer.Option(help="Write the times of all nodes: `.csv` or `.parquet`.")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing output.")] = False,
    json: AsJson = False,
) -> int:
    """The result of ASTRA-sim for a workload, from its own files: the same cycles, and why it hangs or aborts

    etude simulate astra job/ --network ring.yml --system system.json
    etude simulate astra prefix/llama --network fc.yml --system system.json --backend aware --json

    The long names of ASTRA-sim's own options (`--network-configuration`, ...) are understood, too.
    """
    check_timing_name(timing)
    files = AstraFiles(
        network=network, system=system, remote_memory=remote_memory, groups=groups, backend=backend.value,
        num_queues_per_dim=num_queues_per_dim, rendezvous=rendezvous_protocol, injection_scale=injection_scale,
    )  # fmt: skip
    return run_astra(workload, files, timing=timing, force=force, json=json)


def check_timing_name(timing: Path | None) -> None:
    if timing is not None and timing.suffix not in (".csv", ".parquet"):
        raise UsageError(f"times cannot be written as `{timing.suffix}`", where=str(timing), hint=".csv or .parquet")


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


def run_astra(path: Path, files: AstraFiles, *, timing: Path | None, force: bool, json: bool) -> int:
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
    from etude.run import astra

    network, system = astra.read_network(files.network), astra.read_system(files.system)
    options = _options(path, files, {prefix: open_job(Path(prefix)) for prefix in system.custom_prefixes})
    job = _job(path, network.num_npus)
    with progress("simulating") as advance:
        return astra.run(job, network, system, options, _since(advance))


def _since(advance: Callable[[int], None]) -> Callable[[int], None]:
    """A function that takes the number of events so far and reports those since the last call to `advance`."""
    done = 0

    def tell(events: int) -> None:
        nonlocal done
        advance(events - done)
        done = events

    return tell


def _options(path: Path, files: AstraFiles, custom: dict[str, "Job"]) -> "AstraOptions":
    from etude.run import astra

    groups = files.groups or _groups_beside(path)
    more: dict[str, Any] = {}
    if files.remote_memory:
        more["remote_memory"] = astra.read_remote_memory(files.remote_memory)
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
    """Name and files of a job of `.et` files, which ASTRA-sim reads directly; None for any other job."""
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
    from etude.make.transform.dialects import for_astra, order_problem

    job = open_job(path)
    if path.is_file():
        say(f"note: {path.name} is used for each of the {npus:,} NPUs")
    elif len(job) > npus:
        say(f"note: {len(job):,} ranks, but the network has NPUs only for the first {npus:,}")
    job = job if _ranks_of(path) else for_astra(job)
    if problem := order_problem(job):
        say(f"note: {problem}")
    return job


def _show(found: "AstraResult", json: bool) -> None:
    """Prints ASTRA-sim's results for each rank, and how the rank spent its time by Etude's definitions."""
    import pyarrow as pa

    from etude.base.units import format_time

    spent = rank_table(found)
    spent = spent.set_column(1, "finish_ns", pa.array(found.finish_ns))
    rows = spent.append_column("astra_exposed_ns", pa.array(found.exposed_ns)).to_pylist()
    makespan_ns = max((row["finish_ns"] for row in rows), default=0)
    if json:
        emit({"makespan_ns": makespan_ns, "ranks": rows, "links": [], "warnings": list(found.warnings)}, json=True)
    else:
        emit(rows)
    for warning in found.warnings:
        say(f"warning: {warning}")
    say(f"{len(rows):,} ranks as ASTRA-sim has them, done at {format_time(makespan_ns)}")


def _write(found: "AstraResult", path: Path, force: bool) -> None:
    from etude.base.files import writing
    from etude.store.times import write_timing

    with writing(path, force=force) as place:
        write_timing(found, place)
    say(f"wrote {path}")

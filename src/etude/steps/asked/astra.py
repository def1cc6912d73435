"""What is asked of ASTRA-sim's own result, from its own files: a workload, a network, a system."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import AnswerNo, DeadlockError, UsageError
from etude.base.figures import argument, figure, part, switch
from etude.base.outputs import OutputPlace, Printed
from etude.base.talk import progress, say
from etude.steps.asked.jobs import open_job
from etude.steps.asked.simulate import places_of, write_times

if TYPE_CHECKING:
    from etude.model.job import Job
    from etude.run.astra import AstraOptions, AstraResult


Backend = StrEnum("Backend", {"UNAWARE": "unaware", "AWARE": "aware"})


@dataclass(frozen=True, kw_only=True)
class SimulateAstra:
    """The result of ASTRA-sim for a workload, from its own files: the same cycles, and why it hangs or aborts

    etude simulate astra job/ --network ring.yml --system system.json
    etude simulate astra prefix/llama --network fc.yml --system system.json --backend aware --json

    The long names of ASTRA-sim's own options (`--network-configuration`, ...) are understood, too.
    """

    workload: str = argument("path", "a folder or prefix of `.et` files, or any job", like="other/")
    network: str = figure(
        "path", "ASTRA-sim's network file (YAML)", names=("--network-configuration", "--astra-network"), panel="Input"
    )
    system: str = figure(
        "path",
        "ASTRA-sim's system file (JSON)",
        names=("-s", "--system-configuration", "--astra-system"),
        panel="Input",
    )
    remote_memory: str | None = figure(
        "path",
        "ASTRA-sim's remote-memory file (JSON)",
        None,
        panel="Input",
        names=("--remote-memory-configuration", "--astra-remote-memory"),
    )
    groups: str | None = figure(
        "path",
        "communicator groups; by default `name.json` next to the workload",
        None,
        panel="Input",
        names=("--comm-group-configuration", "--astra-groups"),
    )
    backend: Backend = figure(
        "choice",
        "ASTRA-sim's analytical backend: congestion-unaware, or congestion-aware",
        Backend.UNAWARE,
        panel="Simulation",
    )
    num_queues_per_dim: int = figure("count", "queues for collectives in each dimension", 1, panel="Simulation")
    rendezvous_protocol: bool = switch("messages wait until both sides are ready", panel="Simulation")
    injection_scale: float = figure("number", "factor of the endpoint delay", 1.0, zero=True, panel="Simulation")
    timing: str | None = figure(
        "out", "write the times of all nodes: `.csv` or `.parquet`", None, like="new.parquet", panel="Output"
    )
    force: bool = switch("replace what is there", needs="timing", names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AstraInputs:
    """What ASTRA-sim is given on its command line, and where times are written."""

    workload: Path
    network: Path
    system: Path
    remote_memory: Path | None
    groups: Path | None
    backend: str
    num_queues_per_dim: int
    rendezvous: bool
    injection_scale: float
    timing: tuple[OutputPlace, ...]


def astra_inputs(asked: SimulateAstra) -> AstraInputs:
    remote_memory, groups = (None if one is None else Path(one) for one in (asked.remote_memory, asked.groups))
    return AstraInputs(
        workload=Path(asked.workload), network=Path(asked.network), system=Path(asked.system),
        remote_memory=remote_memory, groups=groups, backend=asked.backend.value,
        num_queues_per_dim=asked.num_queues_per_dim, rendezvous=asked.rendezvous_protocol,
        injection_scale=asked.injection_scale, timing=places_of(asked.timing, asked.force),
    )  # fmt: skip


def astra_result(given: AstraInputs) -> "AstraResult":
    """A hang or a crash of ASTRA-sim is the answer "no" with its cause."""
    from etude.run import astra

    path, network, system = given.workload, astra.read_network(given.network), astra.read_system(given.system)
    options = _options(path, given, {prefix: open_job(Path(prefix)) for prefix in system.custom_prefixes})
    job = _job(path, network.num_npus)
    with progress("simulating") as advance:
        found = astra.run(job, network, system, options, _since(advance))
    for place in given.timing:
        write_times(found, place)
    return found


def no_result(problem: AnswerNo) -> dict[str, Any]:
    """What `--json` prints of a hang or a crash."""
    key = "deadlock" if isinstance(problem, DeadlockError) else "abort"
    return {key: {"what": problem.problem, "where": problem.where, "hint": problem.hint}}


def _since(advance: Callable[[int], None]) -> Callable[[int], None]:
    """A function that takes the number of events so far and reports those since the last call to `advance`."""
    done = 0

    def tell(events: int) -> None:
        nonlocal done
        advance(events - done)
        done = events

    return tell


def _options(path: Path, files: AstraInputs, custom: dict[str, "Job"]) -> "AstraOptions":
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


def astra_record(found: "AstraResult") -> dict[str, Any]:
    """ASTRA-sim's results for each rank, and how the rank spent its time by Etude's definitions."""
    import pyarrow as pa

    from etude.analyse.rank_table import rank_table
    from etude.base.units import format_time

    spent = rank_table(found)
    spent = spent.set_column(1, "finish_ns", pa.array(found.finish_ns))
    rows = spent.append_column("astra_exposed_ns", pa.array(found.exposed_ns)).to_pylist()
    makespan_ns = max((row["finish_ns"] for row in rows), default=0)
    for warning in found.warnings:
        say(f"warning: {warning}")
    say(f"{len(rows):,} ranks as ASTRA-sim has them, done at {format_time(makespan_ns)}")
    return {"makespan_ns": makespan_ns, "ranks": rows, "links": [], "warnings": list(found.warnings)}

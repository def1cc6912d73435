from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import DeadlockError, UsageError
from etude.base.units import counted
from etude.surface.cli.app import RUN, app
from etude.surface.cli.device_times import DeviceTimesOf, HostSpeed, with_times_of
from etude.surface.cli.inputs import JOB_HELP, GroupFile, MaxBytes, Workers, open_job
from etude.surface.cli.ops_flags import OpsBackend, OpsFile
from etude.surface.cli.output import AsJson, emit, progress, say
from etude.surface.cli.running import INTERRUPTED
from etude.surface.cli.runs import grown, rank_table
from etude.surface.cli.simulate_astra import AstraFiles, Backend, check_timing_name, run_astra
from etude.surface.cli.simulate_jobs import (
    At,
    Place,
    last_place,
    places_of,
    run_jobs,
    show_jobs,
    starts_of,
    write_timings,
)
from etude.surface.cli.simulation import (
    Algorithms,
    ByPolicy,
    ComputeTimes,
    Contention,
    Eager,
    FailedLinks,
    Grains,
    Jitter,
    Kernels,
    LinkChanges,
    OnNetwork,
    OnRoutes,
    Overlaps,
    Pairs,
    Policy,
    Progress,
    Routing,
    Seed,
    Shares,
    SlowLinks,
    SlowRanks,
    Times,
    Units,
    changes_option,
    collectives_option,
    compute_option,
    driven,
    grain_option,
    jitter_option,
    links_option,
    numbers,
    options_of,
    pairs,
    rank_option,
    share_option,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from etude.machine.system import System
    from etude.model.job import Job
    from etude.run.simulate import Options, Simulated


@app.command(rich_help_panel=RUN)
def simulate(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="JOB...", help=f"{JOB_HELP} Several jobs share the system.", show_default=False),
    ],
    system: Annotated[
        str, typer.Option("--system", "-s", help="Simulate there: a name of `etude systems`, or a file.")
    ] = "",
    network: OnNetwork = None,
    routing: OnRoutes = Routing.STATIC,
    compute: ComputeTimes = "recorded",
    ops: OpsFile = None,
    backend_of_ops: OpsBackend = "",
    device_times_of: DeviceTimesOf = None,
    host_speed: HostSpeed = "auto",
    kernel: Kernels = None,
    units: Units = "",
    collective: Algorithms = None,
    collective_times: Annotated[
        Times, typer.Option(help="How times of collectives and messages are found.")
    ] = Times.MODELLED,
    policy: ByPolicy = Policy.READY,
    eager: Eager = "",
    concurrent_network: Annotated[bool, typer.Option(help="Do not queue communication that has no stream.")] = False,
    overlap: Overlaps = None,
    share: Shares = None,
    contention: Contention = False,
    grain: Grains = None,
    driver: Progress = None,
    jitter: Jitter = None,
    slow_rank: SlowRanks = None,
    slow_link: SlowLinks = None,
    failed_link: FailedLinks = None,
    link_change: LinkChanges = None,
    remote_memory: Annotated[Pairs | None, typer.Option(help="`bandwidth=50GB/s`, `latency=1us`.")] = None,
    seed: Seed = 0,
    fold: Annotated[bool | None, typer.Option("--fold/--no-fold", help="Simulate identical ranks only once.")] = None,
    timing: Annotated[Path | None, typer.Option(help="Write the times of all nodes: `.csv` or `.parquet`.")] = None,
    link_stats: Annotated[
        Path | None,
        typer.Option(help="Folder of tables for `etude query`: links over time, what shared them, completions."),
    ] = None,
    at: At = "",
    place: Place = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing output.")] = False,
    groups: GroupFile = None,
    workers: Workers = 0,
    max_bytes: MaxBytes = None,
    json: AsJson = False,
    astra_network: Annotated[Path | None, typer.Option(hidden=True)] = None,
    astra_system: Annotated[Path | None, typer.Option(hidden=True)] = None,
    astra_remote_memory: Annotated[Path | None, typer.Option(hidden=True)] = None,
    astra_groups: Annotated[Path | None, typer.Option(hidden=True)] = None,
    backend: Annotated[Backend, typer.Option(hidden=True)] = Backend.UNAWARE,
    num_queues_per_dim: Annotated[int, typer.Option(min=1, hidden=True)] = 1,
    rendezvous_protocol: Annotated[bool, typer.Option("--rendezvous-protocol", hidden=True)] = False,
    injection_scale: Annotated[float, typer.Option(hidden=True)] = 1.0,
) -> int:
    """Run a job on a simulated system: when each rank ends and how it spends its time

    etude simulate job/ --system dgx-h100
    etude simulate run/ --system dgx-a100 --compute roofline
    etude simulate job/ --system dgx-h100 --slow-rank 3=1.2 --timing times.parquet
    etude simulate job/ --system dgx-h100 --collective all_reduce=tree

    Of several jobs it says how much they slow each other down, and over which links. `etude simulate astra` takes
    ASTRA-sim's own files."""
    from etude.base.units import parse_bytes
    from etude.machine import open_system

    several = len(paths) > 1 or bool(at) or bool(place)
    path = paths[0]
    if several and groups is not None and len(paths) > 1:
        raise UsageError(
            "--groups is one file, and there are several jobs",
            hint="`name.json` next to each job's files is read by default",
        )
    if several and device_times_of is not None:
        raise UsageError("--device-times-of is for one job", hint="`etude edit` writes a job with other times")

    check_timing_name(timing)
    if any(f is not None for f in (astra_network, astra_system, astra_remote_memory, astra_groups)):
        if astra_network is None or astra_system is None:
            raise UsageError(
                "ASTRA-sim needs both a network and a system", hint="etude simulate astra W --network F --system F"
            )
        if system:
            raise UsageError("--system and --astra-system are two systems for one run", hint="give one of them")
        if several:
            raise UsageError("ASTRA-sim runs one job, from time 0", hint="--system NAME")
        if driver:
            raise UsageError(
                "--progress does not apply to ASTRA-sim's files", hint="`etude edit` writes it into the job"
            )
        if device_times_of is not None:
            raise UsageError("--device-times-of does not apply to ASTRA-sim's files", hint="--system NAME")
        files = AstraFiles(
            network=astra_network, system=astra_system, remote_memory=astra_remote_memory, groups=astra_groups,
            backend=backend.value, num_queues_per_dim=num_queues_per_dim, rendezvous=rendezvous_protocol,
            injection_scale=injection_scale,
        )  # fmt: skip
        return run_astra(path, files, timing=timing, force=force, json=json)
    if not system:
        raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
    slow_links = links_option(slow_link, failed_link)
    options = options_of(
        policy=policy, **compute_option(compute, ops, backend_of_ops), kernels=tuple(kernel or ()), units=units,
        collective=collectives_option(collective),
        collective_times=collective_times, eager_bytes=parse_bytes(eager) if eager else None,
        concurrent_network=concurrent_network, overlap=numbers("overlap", overlap), share=share_option(share),
        contention=contention, grain=grain_option(grain),
        jitter=jitter_option(jitter),
        slow_ranks={rank_option("slow-rank", k): v for k, v in numbers("slow-rank", slow_rank).items()},
        slow_links=slow_links, link_changes=changes_option(link_change), seed=seed,
        remote_memory=dict(pairs("remote-memory", remote_memory)),
        fold=fold, network=network, routing=routing.value, link_stats=link_stats is not None,
    )  # fmt: skip
    machine = open_system(system)
    if several:
        begins, placed = starts_of(at, len(paths)), places_of(place)
        jobs = [driven(open_job(one, groups, workers, max_bytes), driver)[0] for one in paths]
        shown = run_jobs(jobs, grown(machine, system, last_place(jobs, placed)), options, begins, placed)
        if timing is not None:
            write_timings(shown, timing, force)
        if link_stats is not None:
            _write_links(shown.run, link_stats, force)
        return show_jobs(shown, json)
    job, said = with_times_of(
        open_job(path, groups, workers, max_bytes), device_times_of, host_speed, workers, max_bytes
    )
    job, assumed = driven(job, driver)
    found = _run(job, grown(machine, system, job.world_size), options, json)
    found = replace(found, notes=(*said, *assumed, *found.notes))
    if timing is not None:
        _write(found, timing, force)
    if link_stats is not None:
        _write_links(found, link_stats, force)
    _show(found, json, options.jitter)
    return INTERRUPTED if found.timing.partial else 0


def _run(job: "Job", on: "System", options: "Options", json: bool) -> "Simulated":
    from etude.base.units import format_time
    from etude.run.simulate import simulate as run

    with progress("simulating") as advance:
        done = 0

        def tell(nodes: int, now_ns: int) -> None:
            nonlocal done
            advance(nodes - done, f"at {format_time(now_ns)}")
            done = nodes

        try:
            return run(job, on, options, progress=tell)
        except DeadlockError as problem:
            if json:
                told = {"what": problem.problem, "waiting": list(problem.waiting), "causes": list(problem.causes)}
                emit({"deadlock": told}, json=True)
            raise


def _show(found: "Simulated", json: bool, jitter: "Mapping[str, float]") -> None:
    from etude.base.units import format_time

    rows = rank_table(found)
    if json:
        record: dict[str, Any] = {"makespan_ns": found.makespan_ns, "ranks": rows.to_pylist()}
        record |= {
            "steps": [{"step": step, "end_ns": end_ns} for step, end_ns in found.step_ends().items()],
            "links": [asdict(link) for link in found.links],
            "partial": found.timing.partial,
            "simulated_ranks": found.simulated_ranks,
        }
        record |= {"jitter": dict(jitter)} if jitter else {}
        emit(record | {"notes": list(found.notes)}, json=True)
    else:
        emit(rows)
    for note in found.notes:
        say(f"note: {note}")
    if found.timing.partial:
        say("interrupted: the result covers completed nodes only")
    alike = "" if found.simulated_ranks == len(rows) else f", {found.simulated_ranks:,} simulated"
    say(f"{counted(len(rows), 'rank')}{alike}, done at {format_time(found.makespan_ns)}")


def _write_links(found: "Simulated", path: Path, force: bool) -> None:
    from etude.base.files import writing

    if found.link_stats is not None:
        with writing(path, force=force) as place:
            found.link_stats.write(place)
        say(f"wrote {path}")


def _write(found: "Simulated", path: Path, force: bool) -> None:
    from etude.base.files import writing
    from etude.store.times import write_timing

    with writing(path, force=force) as place:
        write_timing(found, place)
    say(f"wrote {path}")

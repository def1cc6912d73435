from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.cli.app import RUN, app
from etude.cli.device_times import DeviceTimesOf, HostSpeed, with_times_of
from etude.cli.inputs import GroupFile, JobPath, MaxBytes, Workers, open_job
from etude.cli.ops_flags import OpsBackend, OpsFile, ops_options
from etude.cli.output import AsJson, emit, progress, say
from etude.cli.running import INTERRUPTED
from etude.cli.runs import grown, rank_table
from etude.cli.simulate_astra import AstraFiles, simulate_astra
from etude.errors import DeadlockError, UsageError

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.model.job import Job
    from etude.simulate import Options, Simulated

# The choices of etude.simulate.options, which `--help` must not import; a test holds them together.
Policy = StrEnum("Policy", {"READY": "ready", "PRIORITY": "priority", "RECORDED": "recorded", "HINT": "hint"})
Times = StrEnum("Times", {"MODELLED": "modelled", "RECORDED": "recorded"})

Network = StrEnum("Network", {"ANALYTIC": "analytic", "LINKS": "links", "FLOW": "flow"})
Routing = StrEnum("Routing", {"STATIC": "static", "ADAPTIVE": "adaptive", "SPRAY": "spray"})
Backend = StrEnum("Backend", {"UNAWARE": "unaware", "AWARE": "aware"})

Pairs = list[str]
ASTRA = "As ASTRA-sim, from its own files"


@app.command(
    rich_help_panel=RUN,
    epilog="etude simulate run/ --system dgx-h100 --network flow --collective all_reduce=tree --timing times.parquet",
)
def simulate(
    path: JobPath,
    system: Annotated[str, typer.Option("--system", "-s", help="Name in the catalogue, or a file.")] = "",
    network: Annotated[
        Network | None,
        typer.Option(help="Closed forms; links that take one message at a time; links shared fairly. Graphs: `flow`."),
    ] = None,
    routing: Annotated[
        Routing,
        typer.Option(help="Which of equally short routes: by hash, least loaded, or all."),
    ] = Routing.STATIC,
    compute: Annotated[
        str, typer.Option(help="Compute times: `recorded`, `roofline`, `table=ops.csv`, `scale=0.5`.")
    ] = "recorded",
    ops: OpsFile = None,
    backend_of_ops: OpsBackend = "",
    device_times_of: DeviceTimesOf = None,
    host_speed: HostSpeed = "auto",
    collective: Annotated[
        Pairs | None, typer.Option(help="Algorithm: `all_reduce=tree`, `=mine.xml`, `=trace/`.")
    ] = None,
    collective_times: Annotated[Times, typer.Option(help="Times of collectives and messages.")] = Times.MODELLED,
    policy: Annotated[Policy, typer.Option(help="Which ready node a free lane takes.")] = Policy.READY,
    eager: Annotated[str, typer.Option(help="Largest message sent without waiting, `64KiB`; default: all.")] = "",
    concurrent_network: Annotated[bool, typer.Option(help="Communication without a stream does not queue.")] = False,
    overlap: Annotated[Pairs | None, typer.Option(help="`compute=1.1`, `communication=1.2` at a time.")] = None,
    jitter: Annotated[
        Pairs | None, typer.Option(help="`compute=0.05`; host, collective, p2p, memory, step; `@trend.json`.")
    ] = None,
    slow_rank: Annotated[Pairs | None, typer.Option(help="`3=1.2`: rank 3 takes 1.2 times as long.")] = None,
    slow_link: Annotated[Pairs | None, typer.Option(help="`0-1=2`: between ranks; `nic.0/leaf.0=2`: a link.")] = None,
    failed_link: Annotated[Pairs | None, typer.Option(help="`0-1`: between ranks; `nic.0/leaf.0`: a link.")] = None,
    remote_memory: Annotated[Pairs | None, typer.Option(help="`bandwidth=50GB/s`, `latency=1us`.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the jitter.")] = 0,
    fold: Annotated[bool | None, typer.Option("--fold/--no-fold", help="Simulate ranks that are alike once.")] = None,
    timing: Annotated[Path | None, typer.Option(help="Write all times: `.csv` or `.parquet`.")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace what is there.")] = False,
    groups: GroupFile = None,
    workers: Workers = 0,
    max_bytes: MaxBytes = None,
    json: AsJson = False,
    astra_network: Annotated[Path | None, typer.Option(help="Its network YAML.", rich_help_panel=ASTRA)] = None,
    astra_system: Annotated[Path | None, typer.Option(help="Its system JSON.", rich_help_panel=ASTRA)] = None,
    astra_remote_memory: Annotated[Path | None, typer.Option(help="Its memory JSON.", rich_help_panel=ASTRA)] = None,
    astra_groups: Annotated[Path | None, typer.Option(help="Its communicator groups.", rich_help_panel=ASTRA)] = None,
    backend: Annotated[
        Backend, typer.Option(help="ASTRA-sim's backend, by congestion.", rich_help_panel=ASTRA)
    ] = Backend.UNAWARE,
    num_queues_per_dim: Annotated[int, typer.Option(min=1, rich_help_panel=ASTRA)] = 1,
    rendezvous_protocol: Annotated[bool, typer.Option("--rendezvous-protocol", rich_help_panel=ASTRA)] = False,
    injection_scale: Annotated[float, typer.Option(rich_help_panel=ASTRA)] = 1.0,
) -> int:
    """What a job does on a system: when each rank ends and how it spends its time"""
    from etude.machine import open_system
    from etude.units import parse_bytes

    if timing is not None and timing.suffix not in (".csv", ".parquet"):
        raise UsageError(f"a timing is not written as `{timing.suffix}`", where=str(timing), hint=".csv or .parquet")
    if any(f is not None for f in (astra_network, astra_system, astra_remote_memory, astra_groups)):
        if astra_network is None or astra_system is None:
            raise UsageError("ASTRA-sim needs both a network and a system", hint="--astra-network F --astra-system F")
        if system:
            raise UsageError("--system and --astra-system are two systems for one run", hint="give one of them")
        if device_times_of is not None:
            raise UsageError("--device-times-of is not for ASTRA-sim's files", hint="--system NAME")
        files = AstraFiles(
            network=astra_network, system=astra_system, remote_memory=astra_remote_memory, groups=astra_groups,
            backend=backend.value, num_queues_per_dim=num_queues_per_dim, rendezvous=rendezvous_protocol,
            injection_scale=injection_scale,
        )  # fmt: skip
        return simulate_astra(path, files, timing=timing, force=force, json=json)
    if not system:
        raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
    slow_links = _links(slow_link, failed_link)
    options = _options(
        policy=policy, **_compute(compute, ops, backend_of_ops), collective=_collectives(collective),
        collective_times=collective_times, eager_bytes=parse_bytes(eager) if eager else None,
        concurrent_network=concurrent_network, overlap=_numbers("overlap", overlap), jitter=_jitter(jitter),
        slow_ranks={_rank("slow-rank", k): v for k, v in _numbers("slow-rank", slow_rank).items()},
        slow_links=slow_links, remote_memory=dict(_pairs("remote-memory", remote_memory)), seed=seed,
        fold=fold, network=network, routing=routing.value,
    )  # fmt: skip
    machine = open_system(system)
    job, said = with_times_of(
        open_job(path, groups, workers, max_bytes), device_times_of, host_speed, workers, max_bytes
    )
    found = _run(job, grown(machine, system, job.world_size), options, json)
    found = replace(found, notes=(*said, *found.notes))
    if timing is not None:
        _write(found, timing, force)
    _show(found, json)
    return INTERRUPTED if found.timing.partial else 0


def _run(job: "Job", on: "System", options: "Options", json: bool) -> "Simulated":
    from etude.simulate import simulate as run
    from etude.units import format_time

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


def _show(found: "Simulated", json: bool) -> None:
    from etude.units import format_time

    rows = rank_table(found)
    if json:
        record: dict[str, Any] = {"makespan_ns": found.makespan_ns, "ranks": rows.to_pylist()}
        record |= {
            "links": [asdict(link) for link in found.links],
            "partial": found.timing.partial,
            "simulated_ranks": found.simulated_ranks,
        }
        emit(record | {"notes": list(found.notes)}, json=True)
    else:
        emit(rows)
    for note in found.notes:
        say(f"note: {note}")
    if found.timing.partial:
        say("interrupted: these are the nodes that were done")
    alike = "" if found.simulated_ranks == len(rows) else f", {found.simulated_ranks:,} simulated"
    say(f"{len(rows):,} ranks{alike}, done at {format_time(found.makespan_ns)}")


def _write(found: "Simulated", path: Path, force: bool) -> None:
    from etude.files import writing
    from etude.store.times import write_timing

    with writing(path, force=force) as place:
        write_timing(found, place)
    say(f"wrote {path}")


# -- options as text ---------------------------------------------------------------------------------------------------


def _options(**given: Any) -> "Options":
    from etude.simulate import Options, Overlap, RemoteMemory
    from etude.units import parse_bandwidth, parse_bytes, parse_time

    factors, memory = given.pop("overlap"), given.pop("remote_memory")
    _known("overlap", factors, ("compute", "communication"))
    _known("remote-memory", memory, ("bandwidth", "latency", "capacity"))
    remote = None
    if memory:
        if "bandwidth" not in memory:
            raise UsageError("--remote-memory: no bandwidth is given", hint="bandwidth=50GB/s")
        latency, capacity = parse_time(memory.get("latency", "0")), parse_bytes(memory.get("capacity", "0"))
        remote = RemoteMemory(
            bytes_per_s=parse_bandwidth(memory["bandwidth"]), latency_ns=latency, capacity_bytes=capacity
        )
    return Options(overlap=Overlap(**factors), remote_memory=remote, **given)


def _compute(text: str, ops: Path | None, backend: str) -> dict[str, Any]:
    """`recorded` (or `measured`), `roofline`, `table=FILE`, `scale=FACTOR`; or a database of operators."""
    if ops is not None:
        if text != "recorded":
            raise UsageError("--ops and --compute both say where times come from", hint="give one of them")
        return ops_options(ops, backend)
    if backend:
        raise UsageError("--ops-backend is of a database of operators", hint="--ops FILE")
    name, equals, value = text.partition("=")
    if name == "table" and value:
        return {"compute": "table", "table": value}
    if name == "scale" and value:
        return {"compute": "scaled", "scale": _numbers("compute", [text])["scale"]}
    if equals or name not in ("recorded", "measured", "roofline"):
        hint = "recorded, roofline, table=ops.csv, scale=0.5"
        raise UsageError(f"--compute: no such choice `{text}`", hint=hint)
    return {"compute": "recorded" if name == "measured" else name}


def _known(option: str, given: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"--{option}: no such name `{name}`", hint=f"known: {', '.join(known)}")


def _pairs(option: str, given: Pairs | None) -> list[tuple[str, str]]:
    found = []
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"--{option}: `{text}` is not NAME=VALUE")
        found.append((name, value))
    return found


def _numbers(option: str, given: Pairs | None) -> dict[str, float]:
    found = {}
    for name, value in _pairs(option, given):
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"--{option}: `{value}` is not a number") from None
    return found


def _jitter(given: Pairs | None) -> dict[str, float]:
    """`NAME=SPREAD`, or `@FILE`: the spread of whole steps that `etude trend --json` found."""
    found: dict[str, float] = {}
    for text in given or ():
        found |= _spread_in(Path(text[1:])) if text.startswith("@") else _numbers("jitter", [text])
    return found


def _spread_in(path: Path) -> dict[str, float]:
    import msgspec

    hint = "a file that `etude trend --json` wrote"
    try:
        content = msgspec.json.decode(path.read_bytes())
    except OSError as problem:
        raise UsageError(str(problem.strerror or problem).lower(), where=f"--jitter @{path}", hint=hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UsageError("is not JSON", where=f"--jitter @{path}", hint=hint) from None
    spread = content.get("residual_spread") if isinstance(content, dict) else None
    if not isinstance(spread, int | float) or isinstance(spread, bool):
        raise UsageError("has no number `residual_spread`", where=f"--jitter @{path}", hint=hint)
    return {"step": float(spread)}


def _rank(option: str, text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"--{option}: `{text}` is not a rank")
    return int(text)


def _collectives(given: Pairs | None) -> dict[str, Any]:
    """Names of algorithms, or algorithms from files: one for each size of group."""
    from etude.opening import is_algorithm_file, open_algorithm

    found: dict[str, Any] = {}
    for name, value in _pairs("collective", given):
        if not is_algorithm_file(value):
            found[name] = value
            continue
        before = found.get(name, [])
        found[name] = [*(before if isinstance(before, list) else []), open_algorithm(value, name)]
    return found


def _links(slow: Pairs | None, failed: Pairs | None) -> dict[tuple[int | str, int | str], float]:
    found: dict[tuple[int | str, int | str], float] = {}
    for option, pairs in (
        ("slow-link", _numbers("slow-link", slow)),
        ("failed-link", dict.fromkeys(failed or (), float("inf"))),
    ):
        for text, factor in pairs.items():
            found[_ends(option, text)] = factor
    return found


def _ends(option: str, text: str) -> tuple[int | str, int | str]:
    """`0-1` are two ranks, `nic.0/leaf.0` two vertices; a number there is a rank."""
    a, slash, b = text.partition("/")
    if slash and a and b:
        return int(a) if a.isdecimal() else a, int(b) if b.isdecimal() else b
    a, _, b = text.partition("-")
    return _rank(option, a), _rank(option, b)

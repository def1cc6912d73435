"""Options of a simulation as flags and as text, for every command that simulates."""

import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli.ops_flags import ops_options

if TYPE_CHECKING:
    from etude.model.job import Job
    from etude.run.simulate import Options

# The choices of etude.run.simulate.options, which `--help` must not import; a test holds them together.
Policy = StrEnum(
    "Policy",
    {
        "READY": "ready",
        "PRIORITY": "priority",
        "RECORDED": "recorded",
        "HINT": "hint",
    },
)
Times = StrEnum("Times", {"MODELLED": "modelled", "RECORDED": "recorded"})
Network = StrEnum(
    "Network",
    {
        "ANALYTIC": "analytic",
        "LINKS": "links",
        "FLOW": "flow",
    },
)
Routing = StrEnum("Routing", {"STATIC": "static", "ADAPTIVE": "adaptive", "SPRAY": "spray"})

Pairs = list[str]

OnNetwork = Annotated[
    Network | None,
    typer.Option(
        help="`analytic`: closed forms; `links`: one message at a time on a link; `flow`: links are shared fairly. "
        "Graphs need `flow`."
    ),
]
OnRoutes = Annotated[Routing, typer.Option(help="Choice among equally short routes: by hash, least loaded, or all.")]
ComputeTimes = Annotated[str, typer.Option(help="Compute times: `recorded`, `roofline`, `table=ops.csv`, `scale=0.5`.")]
Kernels = Annotated[
    Pairs | None,
    typer.Option(
        help="Another kernel: `product:w4a16:g128`, `product:lcma:2,2,2,7`; with `auto` the fastest for each op."
    ),
]
Units = Annotated[str, typer.Option(help="Units of the device: `auto`, a name, or a split: `cpu+sme`.")]
Algorithms = Annotated[Pairs | None, typer.Option(help="Algorithm: `all_reduce=tree`, `=mine.xml`, `=trace/`.")]
ByPolicy = Annotated[Policy, typer.Option(help="Which ready node a free lane takes.")]
Eager = Annotated[str, typer.Option(help="Largest message sent without waiting, `64KiB`; default: all.")]
Overlaps = Annotated[Pairs | None, typer.Option(help="Slowdown while both run: `compute=1.1`, `communication=1.2`.")]
Shares = Annotated[
    Pairs | None,
    typer.Option(
        help="A shared capacity and what uses it: `hbm=compute:0.8,memory:0.4`, `nic@node=...`; `a>b`: a first; "
        "`b/32MB`."
    ),
]
Contention = Annotated[
    bool, typer.Option("--contention", help="Kernels, collectives and copies compete for cores, memory and host link.")
]
Grains = Annotated[
    Pairs | None,
    typer.Option(
        help="Limit memory lines in flight: `line=128B`, `outstanding=4096`, `ctas=16`, `rate=20GB/s`, `access=load`."
    ),
]
Progress = Annotated[
    Pairs | None,
    typer.Option(
        "--progress",
        help="What drives messages: `on=host`, `core` or `dpu`, `cost=1us` each, `traffic=4`, `memory=100GB/s`.",
    ),
]
Jitter = Annotated[
    Pairs | None,
    typer.Option(
        help="Relative spread of times: `compute=0.05`; also host, collective, p2p, memory, step, action; "
        "`@trend.json`."
    ),
]
SlowRanks = Annotated[Pairs | None, typer.Option(help="Slow down a rank: `3=1.2` makes rank 3 take 1.2 times as long.")]
SlowLinks = Annotated[
    Pairs | None, typer.Option(help="Slow down links: `0-1=2` between ranks; `nic.0/leaf.0=2` one link.")
]
FailedLinks = Annotated[Pairs | None, typer.Option(help="Fail links: `0-1` between ranks; `nic.0/leaf.0` one link.")]
LinkChanges = Annotated[
    Pairs | None,
    typer.Option(
        help="Change a link during the run: `10ms:0/switch0.0=4` makes it four times slower, `=inf` fails it, `=1` "
        "restores it."
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the jitter.")]

PANEL = "Simulation"
_FLAGS: dict[str, tuple[Any, Any]] = {
    "network": (OnNetwork, None),
    "routing": (OnRoutes, Routing.STATIC),
    "compute": (ComputeTimes, "recorded"),
    "kernel": (Kernels, None),
    "units": (Units, ""),
    "collective": (Algorithms, None),
    "policy": (ByPolicy, Policy.READY),
    "eager": (Eager, ""),
    "overlap": (Overlaps, None),
    "share": (Shares, None),
    "contention": (Contention, False),
    "grain": (Grains, None),
    "jitter": (Jitter, None),
    "slow_rank": (SlowRanks, None),
    "slow_link": (SlowLinks, None),
    "failed_link": (FailedLinks, None),
    "link_change": (LinkChanges, None),
}


def with_simulation(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command with the flags of a simulation in a panel of their own; it gets those given as `simulation`."""

    def run(**given: Any) -> Any:
        flags = {name: given.pop(name) for name in _FLAGS}
        changed = {name: value for name, value in flags.items() if value != _FLAGS[name][1]}
        return command(simulation=changed, **given)

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "simulation"]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    parameters += [_parameter(name, *flag) for name, flag in _FLAGS.items()]
    run.__name__, run.__module__ = command.__name__, command.__module__
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind, option = annotation.__origin__, annotation.__metadata__[0]
    placed = typer.Option(*(option.param_decls or ()), help=option.help, rich_help_panel=PANEL)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, placed])


def options_given(given: dict[str, Any]) -> dict[str, Any]:
    """Options of `etude.run.simulate.simulate`, by name, of flags that were given."""
    from etude.base.units import parse_bytes

    found: dict[str, Any] = {}
    for name in ("network", "routing", "policy"):
        if name in given:
            found[name] = given[name].value
    found |= {name: given[name] for name in ("seed", "contention") if name in given}
    if "compute" in given:
        found |= compute_option(given["compute"])
    if "kernel" in given:
        found["kernels"] = tuple(given["kernel"])
    if "units" in given:
        found["units"] = given["units"]
    if "collective" in given:
        found["collective"] = collectives_option(given["collective"])
    if "eager" in given:
        found["eager_bytes"] = parse_bytes(given["eager"])
    if "overlap" in given:
        found["overlap"] = overlap_option(numbers("overlap", given["overlap"]))
    if "share" in given:
        found["share"] = share_option(given["share"])
    if "grain" in given:
        found["grain"] = grain_option(given["grain"])
    if "jitter" in given:
        found["jitter"] = jitter_option(given["jitter"])
    if "slow_rank" in given:
        slow = numbers("slow-rank", given["slow_rank"])
        found["slow_ranks"] = {rank_option("slow-rank", rank): factor for rank, factor in slow.items()}
    if "slow_link" in given or "failed_link" in given:
        found["slow_links"] = links_option(given.get("slow_link"), given.get("failed_link"))
    if "link_change" in given:
        found["link_changes"] = changes_option(given["link_change"])
    return found


# -- options as text ---------------------------------------------------------------------------------------------------


def options_of(**given: Any) -> "Options":
    from etude.base.units import parse_bandwidth, parse_bytes, parse_time
    from etude.run.simulate import Options, RemoteMemory

    factors, memory = given.pop("overlap"), given.pop("remote_memory")
    known_names("remote-memory", memory, ("bandwidth", "latency", "capacity"))
    remote = None
    if memory:
        if "bandwidth" not in memory:
            raise UsageError("--remote-memory: no bandwidth is given", hint="bandwidth=50GB/s")
        latency, capacity = parse_time(memory.get("latency", "0")), parse_bytes(memory.get("capacity", "0"))
        remote = RemoteMemory(
            bytes_per_s=parse_bandwidth(memory["bandwidth"]), latency_ns=latency, capacity_bytes=capacity
        )
    return Options(overlap=overlap_option(factors), remote_memory=remote, **given)


def share_option(given: Pairs | None) -> dict[str, Any]:
    """`NAME=CLASS:DEMAND*WEIGHT/CHUNK,CLASS>CLASS`: those before a `>` come first; demand and weight are 1 by default,
    a chunk is a size or a time."""
    found: dict[str, Any] = {}
    for name, text in pairs("share", given):
        draws: dict[str, Any] = {}
        for priority, level in enumerate(text.split(">")):
            for part in level.split(","):
                klass, draw = _draw(name, part.strip(), priority)
                if klass in draws:
                    raise UsageError(f"--share: {name}: `{klass}` is given twice")
                draws[klass] = draw
        found[name] = draws
    return found


def grain_option(given: Pairs | None) -> Any:
    """Loads and stores of lines; None where nothing is given."""
    from etude.base.units import parse_bandwidth, parse_bytes
    from etude.machine.grain import Access, Grain

    if not given:
        return None
    found = dict(pairs("grain", given))
    known_names("grain", found, ("line", "outstanding", "ctas", "rate", "access"))
    counts = {name: found.get(name, "0") for name in ("outstanding", "ctas")}
    for name, text in counts.items():
        if not text.isdecimal():
            raise UsageError(f"--grain: {name}: `{text}` is not a number")
    if found.get("access", "store") not in list(Access):
        raise UsageError(f"--grain: unknown access `{found['access']}`", hint=f"known: {', '.join(Access)}")
    return Grain(
        line_bytes=parse_bytes(found.get("line", "128B")),
        cta_bytes_per_s=parse_bandwidth(found["rate"]) if "rate" in found else 0.0,
        access=Access(found.get("access", "store")),
        **{name: int(text) for name, text in counts.items()},
    )


def driven(job: "Job", given: Pairs | None) -> tuple["Job", tuple[str, ...]]:
    """The job with the work of those who drive its messages, as the edit `progress` has it, and what was assumed."""
    from etude.make.transform.edits import apply_edits

    if not given:
        return job, ()
    found = apply_edits(job, [" ".join(["progress", *(f"{name}={text}" for name, text in pairs("progress", given))])])
    return found.job, tuple(found.notes)


def _draw(name: str, part: str, priority: int) -> tuple[str, Any]:
    from etude.base.units import parse_bytes, parse_time
    from etude.run.simulate import Draw

    text, slash, chunk = part.partition("/")
    klass, _, figures = text.partition(":")
    demand, _, weight = (figures or "1").partition("*")
    sizes: dict[str, int] = {}
    if slash:
        timed = chunk.endswith("s")
        sizes = {"chunk_ns": round(parse_time(chunk))} if timed else {"chunk_bytes": parse_bytes(chunk)}
    try:
        return klass, Draw(demand=float(demand or 1), weight=float(weight or 1), priority=priority, **sizes)
    except ValueError:
        raise UsageError(f"--share: {name}: `{part}` is not CLASS:DEMAND*WEIGHT/CHUNK") from None


def overlap_option(factors: dict[str, float]) -> Any:
    from etude.run.simulate import Overlap

    known_names("overlap", factors, ("compute", "communication"))
    return Overlap(**factors)


def compute_option(text: str, ops: Path | None = None, backend: str = "") -> dict[str, Any]:
    """`recorded` (or `measured`), `roofline`, `table=FILE`, `scale=FACTOR`; or a database of operators."""
    if ops is not None and text != "recorded":
        raise UsageError("--ops and --compute both set where times come from", hint="give one of them")
    if ops is not None or backend:
        return ops_options(ops, backend)
    name, equals, value = text.partition("=")
    if name == "table" and value:
        return {"compute": "table", "table": value}
    if name == "scale" and value:
        return {"compute": "scaled", "scale": numbers("compute", [text])["scale"]}
    if equals or name not in ("recorded", "measured", "roofline"):
        hint = "recorded, roofline, table=ops.csv, scale=0.5"
        raise UsageError(f"--compute: unknown value `{text}`", hint=hint)
    return {"compute": "recorded" if name == "measured" else name}


def known_names(option: str, given: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"--{option}: unknown name `{name}`", hint=f"known: {', '.join(known)}")


def pairs(option: str, given: Pairs | None) -> list[tuple[str, str]]:
    found = []
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"--{option}: `{text}` is not NAME=VALUE")
        found.append((name, value))
    return found


def numbers(option: str, given: Pairs | None) -> dict[str, float]:
    found = {}
    for name, value in pairs(option, given):
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"--{option}: `{value}` is not a number") from None
    return found


def jitter_option(given: Pairs | None) -> dict[str, float]:
    """`NAME=SPREAD`, or `@FILE`: the spread of whole steps that `etude trend --json` found."""
    found: dict[str, float] = {}
    for text in given or ():
        found |= _spread_in(Path(text[1:])) if text.startswith("@") else numbers("jitter", [text])
    return found


def _spread_in(path: Path) -> dict[str, float]:
    import msgspec

    hint = "give a file that `etude trend --json` wrote"
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


def rank_option(option: str, text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"--{option}: `{text}` is not a rank")
    return int(text)


def collectives_option(given: Pairs | None) -> dict[str, Any]:
    """Names of algorithms, or algorithms from files: one for each size of group."""
    from etude.capture.opening import is_algorithm_file, open_algorithm

    found: dict[str, Any] = {}
    for name, value in pairs("collective", given):
        if not is_algorithm_file(value):
            found[name] = value
            continue
        before = found.get(name, [])
        found[name] = [*(before if isinstance(before, list) else []), open_algorithm(value, name)]
    return found


def links_option(slow: Pairs | None, failed: Pairs | None) -> dict[tuple[int | str, int | str], float]:
    found: dict[tuple[int | str, int | str], float] = {}
    for option, pairs in (
        ("slow-link", numbers("slow-link", slow)),
        ("failed-link", dict.fromkeys(failed or (), float("inf"))),
    ):
        for text, factor in pairs.items():
            found[_ends(option, text)] = factor
    return found


def changes_option(given: Pairs | None) -> tuple[tuple[int, tuple[int | str, int | str], float], ...]:
    """`TIME:END/END=FACTOR`, each from its time on."""
    from etude.base.units import parse_time

    found = []
    for text, factor in numbers("link-change", given).items():
        time, colon, ends = text.partition(":")
        if not colon:
            raise UsageError(f"--link-change: `{text}` has no time", hint="10ms:0-1=4")
        found.append((round(parse_time(time)), _ends("link-change", ends), factor))
    return tuple(found)


def _ends(option: str, text: str) -> tuple[int | str, int | str]:
    """Two ends of a link: `0-1` are two ranks, `nic.0/leaf.0` two vertices; a number instead of a vertex is a rank."""
    a, slash, b = text.partition("/")
    if slash and a and b:
        return int(a) if a.isdecimal() else a, int(b) if b.isdecimal() else b
    a, _, b = text.partition("-")
    return rank_option(option, a), rank_option(option, b)

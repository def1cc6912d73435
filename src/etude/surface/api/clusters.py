"""What a file says runs on one set of devices: jobs, services, tasks of a backbone, radio functions, post-training,
experts as functions. `etude.fleet("pool.yaml")` and the command simulate it alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import keys_in
from etude.base.grammar import line
from etude.base.units import parse_time
from etude.world.fleet import write_fleet

if TYPE_CHECKING:
    import pyarrow as pa


LOADS = 8
"""Loads that a range is cut into."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedFleet:
    """What happened on devices that several share; `.record()` has its figures, `.tables` what lies behind them."""

    kind: str
    """`jobs`, `rl`, `jobs and rl`, `services`, `backbone`, `radio` or `functions`."""
    figures: dict[str, Any]
    tables: dict[str, pa.Table]
    asked: dict[str, Any]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {len(table):,}" for name, table in self.tables.items())
        return f"SharedFleet({self.kind}: {rows})"

    def record(self) -> dict[str, Any]:
        """All figures, as `etude fleet --json` prints them."""
        return dict(self.figures)

    def write(self, folder: str | PathLike[str], *, force: bool = False) -> None:
        """A folder for `etude query`, `compare` and `report`."""
        from pathlib import Path

        write_fleet(self.tables, self.figures | {"asked": self.asked}, Path(folder), force=force)


def kind_of(path: str) -> str:
    """Which kind of file it is; an empty string where it is none: a model, by name or file."""
    from etude.world.fleet.sharing import is_pool

    keys = keys_in(path)
    for key, kind in (
        ("radio", "radio"), ("services", "services"), ("backbone", "backbone"), ("experts_per_function", "functions"),
    ):  # fmt: skip
        if key in keys:
            return kind
    return "pool" if is_pool(path) else ""


def shared_fleet(
    path: str | PathLike[str], *, jobs: str | PathLike[str] | None = None, policy: str = "", switch: str = "",
    migrate: str = "", load: float = 0.0, first: int = 0, seed: int = 0,
) -> SharedFleet:  # fmt: skip
    """What the file says, simulated; `jobs` is a CSV of jobs for a cluster that is a file of nodes. Policies are those
    of the kind; `load` is of radio functions, 0: as the file says."""
    file = fspath(path)
    if jobs is not None:
        return jobs_on(file, jobs, policy, switch, first, seed=seed)
    kind = kind_of(file)
    if not kind:
        raise UsageError("the file does not say what shares its devices", where=file, hint="jobs: jobs.csv")
    if kind == "radio":
        _only(switch, "--switch applies only to jobs that share a cluster", file, "--migrate 2s")
        return with_radio(file, policy, migrate, load, seed=seed)
    _only(migrate or load, "--migrate and --load need a file with `radio` functions", "", "examples/airan.yaml")
    kinds: dict[str, Callable[..., SharedFleet]] = {
        "services": in_turns, "backbone": on_a_backbone, "functions": as_functions, "pool": pooled,
    }  # fmt: skip
    return kinds[kind](file, policy, switch, seed=seed)


def _only(given: Any, problem: str, where: str, hint: str = "") -> None:
    if given:
        raise UsageError(problem, where=where, hint=hint)


# -- the kinds ---------------------------------------------------------------------------------------------------------


def jobs_on(
    cluster: str, jobs: str | PathLike[str], policy: str = "", switch: str = "", first: int = 0, *, seed: int = 0
) -> SharedFleet:
    """Jobs of a CSV on a cluster."""
    from pathlib import Path

    from etude.world.fleet.sharing import Times, read_cluster, read_jobs, share

    if not cluster.endswith((".yaml", ".yml", ".csv")):
        raise UsageError("--jobs needs a cluster: a YAML file, or a CSV file of nodes", hint="cluster.yaml")
    policy, given = policy or "fifo", read_jobs(Path(jobs), first=first)
    found = share(read_cluster(cluster), given, policy, times=Times(switch_ns=switch_of(switch or "0s")), seed=seed)
    asked = {"cluster": cluster, "jobs": str(jobs), "policy": policy, "switch": switch, "first": first}
    return _of_jobs(found, policy, asked)


def pooled(path: str, policy: str = "", switch: str = "", *, seed: int = 0) -> SharedFleet:
    """What a file says runs on its nodes: jobs, streams of requests, post-training."""
    from etude.world.fleet.sharing import read_pool, share

    pool = read_pool(path)
    beside = pool.rl is not None or bool(pool.streams)
    if pool.jobs is None and beside:
        _only(
            policy or switch, "--policy and --switch apply only to jobs, and the file has none", path, "jobs: jobs.csv"
        )
        return _post_trained(pool, seed=seed)
    if pool.jobs is None:
        raise UsageError("the file has no jobs", where=path, hint="jobs: jobs.csv")
    times = replace(pool.times, switch_ns=switch_of(switch)) if switch else pool.times
    policy = policy or pool.policy
    if beside:
        from etude.world.fleet.rl import mixed

        both = mixed(pool, policy, times, seed=seed)
        asked = {"cluster": pool.path, "policy": policy, "seed": seed}
        kind = "jobs and rl" if pool.rl is not None else "jobs and streams"
        return SharedFleet(kind, both.record, both.tables, asked, (*both.notes, *_notes_of(both.shared)))
    found = share(pool.cluster, pool.jobs, policy, times=times, seed=seed)
    return _of_jobs(found, policy, {"cluster": path, "policy": policy, "switch": switch, "seed": seed})


def _of_jobs(found: Any, policy: str, asked: dict[str, Any]) -> SharedFleet:
    from etude.world.fleet.sharing import shared_record, shared_tables

    return SharedFleet(
        "jobs", shared_record(found, policy=policy), shared_tables(found), asked, tuple(_notes_of(found))
    )


def _notes_of(found: Any) -> list[str]:
    """Of jobs that share a cluster: what a reader should know."""
    jobs, notes = found.jobs, list(found.jobs.notes)
    if found.refused:
        names = ", ".join(jobs.name[job] for job in found.refused[:3])
        notes.append(f"{len(found.refused):,} jobs do not fit any node and are left out: {names}")
    if found.stuck:
        notes.append(f"{found.stuck:,} jobs had not ended when the simulation could not progress, or at the horizon")
    return notes


def _post_trained(pool: Any, *, seed: int) -> SharedFleet:
    from etude.world.fleet.rl import beside, read_borrow, read_rl, rl_record, rl_tables

    if pool.rl is None:
        raise UsageError(
            "request streams alone are simulated by `etude serve`", where=pool.path, hint="rl: {...}, jobs: [...]"
        )
    spec, where = read_rl(pool.rl, pool.path), pool.path
    borrow = read_borrow(pool.borrow, pool.streams, where)
    found, more = beside(pool.cluster, spec, pool.streams, borrow, where, seed=seed, horizon_ns=pool.times.horizon_ns)
    record = rl_record(found)
    asked = {"cluster": where, "borrow": borrow.how.value, "seed": seed}
    return SharedFleet("rl", record, rl_tables(found, record) | more, asked, tuple(found.notes))


def in_turns(path: str, policy: str = "", switch: str = "", *, seed: int = 0) -> SharedFleet:
    """Services that take turns on one device."""
    from etude.world.fleet.services import read_services, serve_services, services_record, services_tables

    _only(switch, "--switch applies only to jobs that share a cluster", path)
    spec, services = read_services(path, policy)
    found = serve_services(spec, services, seed=seed)
    record = services_record(found)
    asked = {"file": path, "policy": record["policy"], "seed": seed}
    return SharedFleet("services", record, services_tables(found, record), asked)


def on_a_backbone(path: str, policy: str = "", switch: str = "", *, seed: int = 0) -> SharedFleet:
    """Tasks that share one backbone."""
    from etude.world.fleet.services import backbone_record, backbone_tables, read_backbone, serve_backbone

    _only(switch, "--switch applies only to jobs that share a cluster", path)
    spec, tasks = read_backbone(path, policy)
    found = serve_backbone(spec, tasks, seed=seed)
    record = backbone_record(found)
    asked = {"file": path, "policy": record["policy"], "seed": seed}
    return SharedFleet("backbone", record, backbone_tables(found, record), asked)


def as_functions(path: str, policy: str = "", switch: str = "", *, seed: int = 0) -> SharedFleet:
    """Experts that are called as functions."""
    from etude.world.fleet.functions import call_functions, functions_record, functions_tables, read_functions

    _only(policy or switch, "--policy and --switch apply only to jobs that share a cluster", path)
    found = call_functions(read_functions(path), seed=seed)
    record = functions_record(found)
    return SharedFleet("functions", record, functions_tables(found, record), {"file": path, "seed": seed})


def with_radio(path: str, policy: str = "", migrate: str = "", load: float = 0.0, *, seed: int = 0) -> SharedFleet:
    """Radio functions and AI services on one set of nodes, at one load."""
    from etude.world.fleet.radio import radio_record, radio_tables, read_radio, share_radio

    found = share_radio(read_radio(path, policy=policy, migrate=migrate, load=load), seed=seed)
    record = radio_record(found)
    asked = {"pool": path, "policy": record["policy"], "migrate": record["migrate"], "seed": seed}
    return SharedFleet("radio", record, radio_tables(found, record), asked)


# -- words -------------------------------------------------------------------------------------------------------------


def switch_of(text: str) -> int:
    switch_ns = parse_time(text)
    if switch_ns < 0:
        raise UsageError(f"--switch: {text} is negative", hint="--switch 30s")
    return switch_ns


def loads_of(text: str) -> list[float]:
    """`0.8`, or `0.5..1.2` in eight steps; 0: as the file says."""
    if not text:
        return [0.0]
    whole = line(text, "--load", "0.5..1.2")
    ends = [float(end.figure("number")) for end in whole.cut("..") if end is not None]
    if ends != sorted(ends) or max(ends) > 1e6:
        raise whole.wrong(f"`{text}` is not a load or a range of loads")
    if len(ends) == 1 or ends[0] == ends[1]:
        return ends[:1]
    return [ends[0] + (ends[1] - ends[0]) * k / (LOADS - 1) for k in range(LOADS)]

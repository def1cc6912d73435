"""What shares one set of devices, as it is asked for: jobs, services, tasks of a backbone, radio functions,
post-training, experts as functions. `etude fleet share` and its like, and `etude.fleet("pool.yaml")`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, keys_in, read_mapping, text
from etude.base.grammar import line
from etude.base.parameters import is_given, spelled
from etude.world.fleet.days import said_of
from etude.world.fleet.folder import write_fleet

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.world.fleet.days.request import Provenance
    from etude.world.fleet.functions.spec import Functions
    from etude.world.fleet.radio.spec import RadioFile as RadioPool
    from etude.world.fleet.sharing.cluster import Cluster
    from etude.world.fleet.sharing.gangs import SharingTimes
    from etude.world.fleet.sharing.pool import SharedPool

LOADS: Final = 8
"""Loads that a range is cut into."""
SEED_HELP: Final = "random seed of everything that is drawn"
SHARED: Final = "Sharing"


@dataclass(frozen=True, slots=True, eq=False)
class SharedFleet:
    """What happened on devices that several share; `.record()` has its figures, `.tables` what is behind them."""

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
    return "share" if is_pool(path) else ""


# -- jobs that share a cluster -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ShareRequest:
    """Jobs, request streams and RL jobs that share the devices of a cluster."""

    cluster: str = argument(
        "path", "a YAML file of nodes and of what runs there, or nodes alone (also CSV) with --jobs", like="pool.yaml"
    )
    jobs: str | None = figure("path", "CSV file of jobs that share the cluster", None, like="jobs.csv", panel=SHARED)
    first: int = figure("count", "use only the first jobs, this many; 0: all", 0, needs="jobs", panel=SHARED)
    policy: str = text(
        "fifo, backfill, sjf, srtf, las, deadline, priority, fair, elastic, harvest, gavel, or FILE.py:name; default: "
        "as the file says, or fifo",
        like=["las", "elastic", "backfill"],
        panel=SHARED,
    )
    switch_ns: int | None = figure(
        "time", "time that a stopped job needs to start again", None, zero=True, panel=SHARED
    )
    seed: int = figure("count", SEED_HELP, 0, panel=SHARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareInputs:
    path: str
    keys: dict[str, Any]
    """What the file says, where it says what runs on its nodes; empty: the jobs of a CSV do."""
    cluster: Cluster
    jobs: Path | None
    first: int
    policy: str
    switch_ns: int | None
    """None: as the file says."""
    seed: int
    asked: Provenance


def share_inputs(asked: ShareRequest) -> ShareInputs:
    from etude.world.fleet.sharing.cluster import cluster_of, read_cluster

    path, jobs = asked.cluster, asked.jobs
    if jobs is not None:
        if not path.endswith((".yaml", ".yml", ".csv")):
            raise UsageError("--jobs needs a cluster: a YAML file, or a CSV file of nodes", hint="cluster.yaml")
        cluster, policy, keys = read_cluster(path), asked.policy or "fifo", {}
        switch_ns, seed = _switch(asked, cluster, policy, _columns(jobs)), _seed(asked, cluster)
    else:
        keys = read_mapping(path)
        cluster, policy, switch_ns = cluster_of(keys, path), "", None
        if keys.get("jobs") is None:
            _refuse_of_jobs(asked, path, streams_alone=not keys.get("rl") and bool(keys.get("streams")))
        else:
            policy = asked.policy or str(keys.get("policy", "fifo"))
            switch_ns = _switch(asked, cluster, policy, _columns(keys["jobs"], Path(path).parent))
        seed = asked.seed if keys.get("rl") or keys.get("streams") else _seed(asked, cluster)
    return ShareInputs(
        path=path, keys=keys, cluster=cluster, jobs=None if jobs is None else Path(jobs),
        first=asked.first if jobs is not None else 0, policy=policy, switch_ns=switch_ns, seed=seed,
        asked=said_of(asked),
    )  # fmt: skip


def _refuse_of_jobs(asked: ShareRequest, path: str, *, streams_alone: bool) -> None:
    for name in ("policy", "switch"):
        if is_given(asked, name):
            raise UsageError(
                f"{spelled(asked, name)} applies only to jobs, and the file has none", where=path, hint="jobs: jobs.csv"
            )
    if streams_alone:
        raise UsageError(
            "request streams alone are simulated by `etude serve`", where=path, hint="rl: {...}, jobs: [...]"
        )


def _columns(jobs: Any, folder: Path = Path()) -> set[str]:
    """What is said of jobs: the columns of a file, or the keys of a list."""
    if isinstance(jobs, (str, Path)):
        try:
            with (folder / jobs).open(encoding="utf-8-sig") as file:
                return {name.strip() for name in file.readline().split(",")}
        except (OSError, UnicodeDecodeError):
            return set()  # whoever reads it says so
    return {str(key) for one in jobs if isinstance(one, dict) for key in one} if isinstance(jobs, list) else set()


def _switch(asked: ShareRequest, cluster: Cluster, policy: str, columns: set[str]) -> int | None:
    """`switch`, which is read where a job can be stopped: by the policy, or with its nodes."""
    from etude.world.fleet.sharing.elastic import ELASTIC
    from etude.world.fleet.sharing.policies import FAIR, sharing_policy

    stops = any(group.spot for group in cluster.groups)
    if policy == FAIR:
        stops |= bool(columns & {"min_gpus", "max_gpus", "rates"})
    else:
        stops |= policy in ELASTIC or sharing_policy(policy).preempts
    if stops:
        return None if asked.switch_ns is None else int(asked.switch_ns)
    if is_given(asked, "switch"):
        problem = f"{spelled(asked, 'switch')} is not read under `{policy}`, which never stops these jobs"
        raise UsageError(problem, hint=f"{spelled(asked, 'policy')} las, srtf, priority, deadline, elastic")
    return None


def _seed(asked: ShareRequest, cluster: Cluster) -> int:
    """The seed, which nothing reads where nodes neither come nor go by chance."""
    if any(group.mtbf_ns for group in cluster.groups):
        return asked.seed
    if is_given(asked, "seed"):
        problem = f"{spelled(asked, 'seed')} is read only where something is drawn: nodes with `mtbf`, streams, rl"
        raise UsageError(problem, where=cluster.name, hint="leave it out")
    return 0


def share_devices(given: ShareInputs) -> SharedFleet:
    from etude.world.fleet.sharing import SharingTimes, read_jobs, read_pool, share, shared_record, shared_tables

    pool = read_pool(given.path) if given.jobs is None else None
    times = SharingTimes() if pool is None else pool.times
    times = times if given.switch_ns is None else replace(times, switch_ns=given.switch_ns)
    if pool is not None and (pool.rl is not None or pool.streams):
        return _post_trained(pool, given) if pool.jobs is None else _mixed(pool, given, times)
    jobs = read_jobs(given.jobs or "", first=given.first) if pool is None else pool.jobs
    if jobs is None:
        raise UsageError("the file has no jobs", where=given.path, hint="jobs: jobs.csv")
    cluster = given.cluster if pool is None else pool.cluster
    found = share(cluster, jobs, given.policy, times=times, seed=given.seed)
    return SharedFleet(
        "jobs",
        shared_record(found, policy=given.policy),
        shared_tables(found),
        given.asked.given,
        tuple(_notes_of(found)),
    )


def _mixed(pool: SharedPool, given: ShareInputs, times: SharingTimes) -> SharedFleet:
    from etude.world.fleet.rl import mixed

    both = mixed(pool, given.policy, times, seed=given.seed)
    kind = "jobs and rl" if pool.rl is not None else "jobs and streams"
    return SharedFleet(kind, both.record, both.tables, given.asked.given, (*both.notes, *_notes_of(both.shared)))


def _notes_of(found: Any) -> list[str]:
    """Of jobs that share a cluster: what a reader should know."""
    jobs, notes = found.jobs, list(found.jobs.notes)
    if found.refused:
        names = ", ".join(jobs.name[job] for job in found.refused[:3])
        notes.append(f"{len(found.refused):,} jobs do not fit any node and are left out: {names}")
    if found.stuck:
        notes.append(f"{found.stuck:,} jobs had not ended when the simulation could not progress, or at the horizon")
    return notes


def _post_trained(pool: Any, given: ShareInputs) -> SharedFleet:
    from etude.world.fleet.rl import beside, read_borrow, read_rl, rl_record, rl_tables

    spec, where = read_rl(pool.rl, pool.path), pool.path
    borrow = read_borrow(pool.borrow, pool.streams, where)
    found, more = beside(
        pool.cluster, spec, pool.streams, borrow, where, seed=given.seed, horizon_ns=pool.times.horizon_ns
    )
    record = rl_record(found)
    return SharedFleet("rl", record, rl_tables(found, record) | more, given.asked.given, found.loop.priced.notes)


# -- what shares a device, or nodes, by a file -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FileRequest:
    file: str = argument("path", "YAML file of the model, its functions and requests", like="moe2.yaml")
    seed: int = figure("count", SEED_HELP, 0)


@dataclass(frozen=True, kw_only=True)
class ServicesRequest(FileRequest):
    """Services that take turns on one device, with early exits."""

    file: str = argument("path", "YAML file of the services", like="edge2.yaml")
    policy: str = text("fifo, edf, stability; default: as the file says", like="edf")


@dataclass(frozen=True, kw_only=True)
class BackboneRequest(FileRequest):
    """Tasks that share one backbone, its batches and its memory."""

    file: str = argument("path", "YAML file of the backbone and its tasks", like="backbone2.yaml")
    policy: str = text("partition, colocate, shared; default: as the file says", like="colocate")


@dataclass(frozen=True, kw_only=True)
class RadioRequest(FileRequest):
    """Radio functions and AI services on one set of nodes: shares and moves."""

    file: str = argument("path", "YAML file of nodes, radio functions and AI services", like="airan2.yaml")
    policy: str = text("static, greedy, strict, haf; default: as the file says", like=["greedy", "strict"])
    migrate: str = text(
        "interruption of a radio function or AI service that moves to another node: `2s`, or `endless`", like="5s"
    )
    load: str = text(
        "rates of AI requests next to radio functions, relative to those of the file: `1.2`, or a range `0.5..1.2`",
        like="0.7",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInputs:
    """A file that was read, with what was given over it."""

    spec: Any
    """(Services, list of Service), (Backbone, list of Task), or Functions."""
    seed: int
    asked: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class RadioInputs:
    pools: tuple[RadioPool, ...]
    """One for each load."""
    seed: int
    asked: Provenance


def services_inputs(asked: ServicesRequest) -> FileInputs:
    from etude.world.fleet.services import read_services

    return FileInputs(spec=read_services(asked.file, asked.policy), seed=asked.seed, asked=said_of(asked))


def backbone_inputs(asked: BackboneRequest) -> FileInputs:
    from etude.world.fleet.services import read_backbone

    return FileInputs(spec=read_backbone(asked.file, asked.policy), seed=asked.seed, asked=said_of(asked))


def functions_inputs(asked: FileRequest) -> FileInputs:
    from etude.world.fleet.functions import read_functions

    spec: Functions = read_functions(asked.file)
    return FileInputs(spec=spec, seed=asked.seed, asked=said_of(asked))


def radio_inputs(asked: RadioRequest) -> RadioInputs:
    from etude.world.fleet.radio import read_radio

    file, policy = asked.file, asked.policy
    if is_given(asked, "migrate") and (policy or read_radio(file).spec.policy) == "static":
        problem = f"{spelled(asked, 'migrate')} is not read under `static`, which never moves anything"
        raise UsageError(problem, hint=f"{spelled(asked, 'policy')} haf")
    pools = [read_radio(file, policy=policy, migrate=asked.migrate, load=load) for load in loads_of(asked.load)]
    return RadioInputs(pools=tuple(pools), seed=asked.seed, asked=said_of(asked))


def in_turns(given: FileInputs) -> SharedFleet:
    """Services that take turns on one device."""
    from etude.world.fleet.services import serve_services, services_record, services_tables

    found = serve_services(*given.spec, seed=given.seed)
    record = services_record(found)
    return SharedFleet("services", record, services_tables(found, record), given.asked.given)


def on_a_backbone(given: FileInputs) -> SharedFleet:
    """Tasks that share one backbone."""
    from etude.world.fleet.services import backbone_record, backbone_tables, serve_backbone

    found = serve_backbone(*given.spec, seed=given.seed)
    record = backbone_record(found)
    return SharedFleet("backbone", record, backbone_tables(found, record), given.asked.given)


def as_functions(given: FileInputs) -> SharedFleet:
    """Experts that are called as functions."""
    from etude.world.fleet.functions import call_functions, functions_record, functions_tables

    found = call_functions(given.spec, seed=given.seed)
    record = functions_record(found)
    notes = () if record["latency_s"] else ("no request arrived; use a longer duration",)
    return SharedFleet("functions", record, functions_tables(found, record), given.asked.given, notes)


def with_radio(given: RadioInputs) -> list[SharedFleet]:
    """Radio functions and AI services on one set of nodes, at each load."""
    from etude.world.fleet.radio import radio_record, radio_tables, share_radio

    made = []
    for pool in given.pools:
        found = share_radio(pool, seed=given.seed)
        record = radio_record(found)
        made.append(SharedFleet("radio", record, radio_tables(found, record), given.asked.given))
    return made


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


KINDS: Final[dict[str, tuple[type[Any], Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "share": (ShareRequest, share_inputs, share_devices),
    "services": (ServicesRequest, services_inputs, in_turns),
    "backbone": (BackboneRequest, backbone_inputs, on_a_backbone),
    "functions": (FileRequest, functions_inputs, as_functions),
    "radio": (RadioRequest, radio_inputs, with_radio),
}
"""Kind of file -> what may be asked, its inputs and its run."""

"""simulate: a job on a system, event by event, with any of the networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.errors import EtudeError, MismatchError, TraceError, UsageError
from etude.machine.system import System
from etude.model.check.findings import ProgramClasses as SamePrograms
from etude.model.check.findings import Report
from etude.model.check.groups import check_collectives, check_groups
from etude.model.job import Job
from etude.model.match import Matching, match
from etude.model.schema import UNKNOWN
from etude.model.timing import Origin, Timing
from etude.simulate import kernels as k
from etude.simulate.classes import RankClasses, alone, stable_classes
from etude.simulate.costs import jitter_classes, jittered, node_costs
from etude.simulate.groups import UsedGroups, link_distance, link_factors, used_groups
from etude.simulate.joined import Joined
from etude.simulate.operations import Operations, Run, operations
from etude.simulate.options import JITTER, Network, Options, Policy
from etude.simulate.programs import build_programs, merged, with_values
from etude.simulate.result import LinkUse, Simulated, simulated

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

SLICE = 500_000
"""Nodes between two looks at the clock and the keyboard: a tenth of a second."""
EXPLAINED = 1 << 20
"""Nodes up to which a deadlock of a folded job is looked at again rank by rank."""
Progress = Callable[[int, int], None]
"""(nodes done, simulated time in ns)."""


def simulate(
    job: Job, system: System, options: Options | None = None, *, progress: Progress | None = None, **more: Any
) -> Simulated:
    """What the job does on the system. Options by name (`policy="priority"`), or made before.

    Raises DeadlockError where ranks wait for one another for ever. Ctrl-C ends it with what is done, `partial`.
    """
    if options is not None and more:
        raise UsageError("options are given twice: as one value and by name")
    options = (options or _options(more)).on(system)
    run, notes = prepare(job, system, options)
    ops = operations(run)
    state = make_state(run, ops)
    joined = Joined(run, ops, state) if options.network != Network.ANALYTIC else None
    stopped = _go(joined or state, progress)
    if not stopped and state.done < state.nodes:
        from etude.simulate.deadlock import explain

        if len(run.classes) < len(job.ranks) and job.nodes <= EXPLAINED:
            simulate(job, system, replace(options, fold=False))  # ranks by name, not by class
        raise explain(run, state)
    said = (*notes, *ops.notes, *(joined.notes if joined else ()))
    return _result(job, run, state, joined.links() if joined else (), said, stopped)


def _options(given: dict[str, Any]) -> Options:
    unknown = set(given) - set(Options.__slots__)
    if unknown:
        raise UsageError(f"no such option: {', '.join(sorted(unknown))}", hint=f"known: {', '.join(Options.__slots__)}")
    return Options(**given)


# -- what is simulated -------------------------------------------------------------------------------------------------


def prepare(job: Job, system: System, options: Options) -> tuple[Run, list[str]]:
    """The job checked, matched, priced and, where it may be, folded."""
    _check_places(job, system, options)
    plain = source = with_values(job)
    costs = node_costs(plain, system, options)
    by_trace = costs.by_trace
    if options.fold is not False:
        plain, by_trace = merged(plain, by_trace, options)
    matching = match(plain)
    if _contradiction(plain, matching):
        raise _contradiction(source, match(source)) or MismatchError("collectives contradict each other")
    programs = build_programs(plain, by_trace, options)
    groups = used_groups(plain, matching, system, options)
    classes = _classes(plain, matching, groups, programs.of, system, options)
    length = np.diff(programs.start)[programs.of[classes.first]]
    base = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    if base[-1] >= 1 << 31:
        raise UsageError(
            f"{base[-1]:,} nodes are more than one simulation holds", hint="fold the job, or simulate fewer ranks"
        )
    notes = costs.notes()
    if programs.missing:
        notes.append(f"{programs.missing:,} dependencies are on nodes that are not in the files, and hold nothing up")
    return Run(source, plain, system, options, matching, groups, classes, programs, base), notes


def _check_places(job: Job, system: System, options: Options) -> None:
    if not len(job.ranks):
        raise TraceError("the job has no ranks")
    system.device_of(job.ranks)  # refuses a rank that has no place
    for rank in options.slow_ranks:
        job.index(rank)
    for pair in options.slow_links:
        for end in pair:
            if isinstance(end, int) and not 0 <= end < job.world_size:
                raise UsageError(f"slow link {pair[0]}-{pair[1]}: rank {end} is outside the world of {job.world_size}")
    if options.policy in (Policy.RECORDED, Policy.HINT) and job.timing is not None:
        lengths = {len(b) for b in job.timing.start_ns}
        if not lengths:
            raise TraceError("the recorded times are empty")


_REFUSED = ("member_outside", "member_twice", "not_a_member", "collective_order", "collective_type", "collective_bytes")


def _contradiction(job: Job, matching: Matching) -> EtudeError | None:
    """Collectives that contradict each other are refused; those that are missing end in a deadlock, which says so."""
    report = Report(job)
    check_groups(report, SamePrograms(job.trace_of, ()), matching)
    check_collectives(report, matching)
    for finding in report.sorted():
        if finding.kind in _REFUSED:
            kind = TraceError if finding.kind.startswith("member") else MismatchError
            return kind(finding.what, where=finding.where, hint=finding.hint)
    return None


def _classes(
    job: Job, matching: Matching, groups: UsedGroups, program_of: I32, system: System, options: Options
) -> RankClasses:
    why = _unfoldable(options)
    if options.fold and why:
        raise UsageError(f"the ranks cannot be folded: {why}", hint="leave --fold away, or the option")
    if options.fold is False or why:
        return alone(len(job.ranks), len(groups.group))
    slow = np.array([options.slow_ranks.get(r, 1.0) for r in job.ranks.tolist()]) if options.slow_ranks else None
    start = np.stack([program_of.astype(np.int64), np.zeros(len(job.ranks), np.int64)], 1)
    if slow is not None:
        start[:, 1] = np.unique(slow, return_inverse=True)[1].reshape(-1)
    links = matching.links
    inside = (links.src >= 0) & (links.src < job.world_size) & (links.dst >= 0) & (links.dst < job.world_size)
    distance = np.full(len(links.src), -1, np.int32)
    if inside.any():
        near = link_distance(system, links.src[inside], links.dst[inside])
        factor = np.unique(link_factors(links.src[inside], links.dst[inside], options), return_inverse=True)[1]
        distance[inside] = near * (factor.max() + 1) + factor.reshape(-1)
    classes = stable_classes(start, matching, groups, distance)
    if options.fold and len(classes) == len(job.ranks) > 1:
        raise UsageError(
            "the ranks cannot be folded: no two of them run the same program at the same speed with like partners",
            hint="leave --fold away: all ranks are simulated",
        )
    return classes


def _unfoldable(options: Options) -> str:
    if options.network != Network.ANALYTIC:
        return "ranks share links, and no two are alike"
    return "with jitter no two ranks are alike" if any(options.jitter.values()) else ""


# -- state -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class State:
    """The arrays of `kernels.step`, in its order."""

    s: I64
    node: I32
    time: I64
    prog: I32
    succ_start: I64
    succ: I32
    inst: I64
    lane: I32
    plane_first: I64
    lane_rows: I32
    ready: I64
    dirty: I32
    loose: I32
    op: I32
    op_time: I64
    over: I32
    heap: I64
    net: I64
    work: I64
    op_work: I64
    load: I32
    members: I32
    heads: I32
    changed: I32

    def arrays(self) -> list[NDArray[Any]]:
        return [getattr(self, name) for name in self.__slots__]

    @property
    def nodes(self) -> int:
        return len(self.node)

    @property
    def done(self) -> int:
        return int(self.s[k.DONE_NODES])

    @property
    def now(self) -> int:
        return int(self.s[k.NOW])

    def step(self, max_events: int) -> bool:
        """True while there is more to do."""
        if self.s[k.OVERLAP]:
            self.make_room()
        return bool(k.step(max_events, *self.arrays()))

    def make_room(self) -> None:
        for name, size in (("heap", self.s[k.HEAP_SIZE]), ("net", self.s[k.NET_SIZE])):
            old = getattr(self, name)
            if len(old) - size < 3 * self.nodes + 8:
                new = np.zeros((2 * int(size) + 4 * self.nodes + 8, 2), np.int64)
                new[:size] = old[:size]
                setattr(self, name, new)


def make_state(run: Run, ops: Operations) -> State:
    options, programs, base = run.options, run.programs, run.base
    total, instances = int(base[-1]), len(run.classes)
    program = programs.of[run.classes.first]
    inst = np.zeros((instances, 4), np.int64)
    inst[:, k.BASE], inst[:, k.PROG] = base[:-1], programs.start[program]
    lanes = np.diff(programs.lane_start)[program]
    inst[:, k.LANE0], inst[:, k.PLANE0] = np.cumsum(lanes) - lanes, programs.lane_start[program]
    lane = np.zeros((int(lanes.sum()), 4), np.int32)
    lane[:, k.BUSY], lane[:, k.OWNER] = -1, np.repeat(np.arange(instances), lanes)
    node, time = _nodes(run, ops, program)
    op, op_time = _ops(run, ops)
    overlap = options.overlap.compute != 1.0 or options.overlap.communication != 1.0
    s = np.zeros(k.SCALARS, np.int64)
    s[k.FRESH], s[k.OVERLAP] = 1, overlap
    s[k.STRICT], s[k.FIFO] = options.policy == Policy.RECORDED, options.policy == Policy.READY
    s[k.COMP_MILLI], s[k.COMM_MILLI] = (
        round(f * k.MILLI) for f in (options.overlap.compute, options.overlap.communication)
    )
    shared = total if overlap else 0
    return State(
        s=s,
        node=node,
        time=time,
        prog=programs.prog,
        succ_start=programs.succ_start,
        succ=programs.succ,
        inst=inst,
        lane=lane,
        plane_first=programs.lane_first,
        lane_rows=programs.lane_rows,
        ready=np.zeros(total, np.int64),
        dirty=np.zeros(len(lane), np.int32),
        loose=np.zeros(total, np.int32),
        op=op,
        op_time=op_time,
        over=np.zeros(len(op), np.int32),
        heap=np.zeros((total + 1, 2), np.int64),
        net=np.zeros((len(op) + 1, 2), np.int64),
        work=np.full((shared, 2), -1, np.int64),
        op_work=np.zeros((len(op) if overlap else 0, 2), np.int64),
        load=np.zeros((instances, 5), np.int32),
        members=np.full((shared, 2), -1, np.int32),
        heads=np.full((instances, 2), -1, np.int32),
        changed=np.zeros(instances, np.int32),
    )


def _nodes(run: Run, ops: Operations, program: I32) -> tuple[I32, I64]:
    programs, base = run.programs, run.base
    total = int(base[-1])
    node, time = np.empty((total, 4), np.int32), np.empty((total, 3), np.int64)
    time[:, k.START], time[:, k.END] = UNKNOWN, UNKNOWN
    node[:, k.OP], node[:, k.NEXT] = -1, -1
    for i, p in enumerate(program.tolist()):
        here, there = slice(base[i], base[i + 1]), slice(programs.start[p], programs.start[p + 1])
        node[here, k.WAITS], node[here, k.INST] = programs.waits[there], i
        time[here, k.COST] = _perturbed(run, i, programs.cost_ns[there])
    node[ops.node, k.OP] = ops.of
    time[ops.single_node, k.COST] = ops.single_ns
    time[ops.node, k.COST] = 0
    return node, time


def _perturbed(run: Run, instance: int, cost_ns: I64) -> I64:
    """Costs of one rank: slower if it is slow, with its own jitter."""
    options, at = run.options, int(run.classes.first[instance])
    rank = int(run.job.ranks[at])
    factor = options.slow_ranks.get(rank, 1.0)
    jitter = np.array([options.jitter.get(name, 0.0) for name in JITTER] + [0.0])
    if factor == 1.0 and not jitter.any():
        return cost_ns
    klass = jitter_classes(run.job.traces[int(run.job.trace_of[at])])
    own = klass >= 0
    slowed = np.where(own, np.rint(np.where(own, cost_ns, 0) * factor).astype(np.int64), cost_ns)
    return jittered(slowed, np.where(own, jitter[klass], 0.0), (options.seed, rank)) if jitter.any() else slowed


def _ops(run: Run, ops: Operations) -> tuple[I32, I64]:
    op, op_time = np.zeros((len(ops), 5), np.int32), np.zeros((len(ops), 3), np.int64)
    op[:, k.MISSING], op[:, k.SENDER], op[:, k.HEAD] = ops.missing, ops.sender, -1
    jitter = run.options.jitter
    spread = np.where(ops.is_message, jitter.get("p2p", 0.0), jitter.get("collective", 0.0))
    op_time[:, k.NS] = jittered(ops.time_ns, spread, (run.options.seed, 1 << 40)) if spread.any() else ops.time_ns
    return op, op_time


# -- run and result ----------------------------------------------------------------------------------------------------


def _go(state: State | Joined, progress: Progress | None) -> bool:
    """Runs to the end; True if Ctrl-C came first."""
    try:
        while state.step(SLICE):
            if progress is not None:
                progress(state.done, state.now)
    except KeyboardInterrupt:
        return True
    return False


def _result(
    job: Job, run: Run, state: State, links: tuple[LinkUse, ...], notes: tuple[str, ...], partial: bool
) -> Simulated:
    base, classes = run.base, run.classes
    start, end = np.ascontiguousarray(state.time[:, k.START]), np.ascontiguousarray(state.time[:, k.END])
    if partial:
        open_ = state.node[:, k.WAITS] != k.DONE
        end[open_] = UNKNOWN
    bounds = base[1:-1]
    timing = Timing(
        origin=Origin.SIMULATED,
        start_ns=tuple(np.split(start, bounds)),
        end_ns=tuple(np.split(end, bounds)),
        block_of=classes.of,
        clock_offset_ns=np.zeros(len(job.ranks), np.int64),
        aligned=True,
        partial=partial,
    )
    remote = run.options.remote_memory
    return simulated(
        job, timing, run.system, simulated_ranks=len(classes), links=links, notes=notes,
        remote_capacity_bytes=remote.capacity_bytes if remote else 0,
    )  # fmt: skip

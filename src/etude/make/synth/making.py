"""make(learned, options): a job of any number of ranks and steps that behaves like those that were learned.

The order of a role is written out, with its step as often as wanted. Sizes are drawn from the quantiles of their class:
the k-th of a class in a step is the same on every rank and in every step, so that members of a collective agree. Times
differ from there: by chance as much as nodes of that class did, and by the factors of the rank and of the step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import I64, distinct_values
from etude.make.synth.draw import DrawnTimes, Draws
from etude.make.synth.learned import Learned, LearnedRole
from etude.make.synth.options import MakeOptions
from etude.make.synth.steps import unrolled
from etude.make.synth.world import LearnedWorld
from etude.model.build import build_trace
from etude.model.check.groups import UNEVEN
from etude.model.job import Job
from etude.model.roles import Role, job_of_roles
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.trace import Trace

MAX_VALUES = 200_000_000
"""Most times of single ranks that are drawn."""


def make(learned: Learned, options: MakeOptions | None = None) -> Job:
    """The job. Refused where the ranks are not a multiple of what was learned, or cannot be cut."""
    options = options or MakeOptions()
    template = learned.template(options.ranks or learned.templates[0].ranks)
    world = LearnedWorld(template, options.ranks or template.ranks)
    programs = [_RoleProgram(learned, role, options) for role in template.roles]
    present = np.unique(world.role_of).tolist()  # of a part of the ranks, some roles may be left out
    _reconcile(world, programs, present)
    steps = max(programs[role].steps for role in present)
    times = DrawnTimes(learned, template.roles, world.role_of, steps, seed=options.seed, spread=options.spread)
    if times.differ and sum(p.nodes * int((world.role_of == i).sum()) for i, p in enumerate(programs)) > MAX_VALUES:
        raise UsageError(
            "separate times per rank are too many for this number of ranks", hint="--spread 0, or fewer --ranks"
        )
    roles: list[Role] = []
    values: dict[int, dict[str, I64]] = {}
    for number in present:
        program = programs[number]
        ranks = np.flatnonzero(world.role_of == number)
        larger = world.larger(number)
        program.shard(larger)
        own = [program.times(times, rank) for rank in ranks.tolist()] if times.differ and program.timed else []
        if own:
            values |= {int(rank): {"duration_ns": column} for rank, column in zip(ranks[1:], own[1:], strict=True)}
        role = template.roles[number]
        trace = program.trace(larger, role.groups, role.peers, own[0] if own else None)
        roles.append(Role(trace=trace, ranks=ranks, groups=world.group_of[number], peers=world.peer_of[number]))
    provenance = {"tool": "etude generate learned"}
    return job_of_roles(options.name, roles, groups=world.groups, values=values, provenance=provenance)


class _RoleProgram:
    """Nodes of one role, with the sizes that they have on every rank."""

    def __init__(self, learned: Learned, role: LearnedRole, options: MakeOptions) -> None:
        self.learned, self.options = learned, options
        found = unrolled(learned, role, options.steps, options.depth)
        self.of, self.step, self.data, self.ctrl = found.node_class, found.step, found.data, found.ctrl
        self.nodes, self.steps = len(self.of), int(self.step.max(initial=0)) + 1
        classes = learned.classes
        self.dropped = np.zeros(self.nodes, bool)
        self.kind = np.array([c.kind for c in classes], np.uint8)[self.of]
        self.group = np.array([c.group for c in classes], np.int32)[self.of]
        self.src = np.array([c.src for c in classes], np.int32)[self.of]
        self.dst = np.array([c.dst for c in classes], np.int32)[self.of]
        self.cpu = np.array([c.cpu for c in classes], np.int8)[self.of]
        self.draws = Draws(learned, self.of, self.step, options.seed)
        self.values = self.draws.values()
        self.level = np.where(self.kind == Kind.COMP, np.where(self.cpu == 1, *role.level), 1.0) * options.compute
        """Factor of times of compute."""

    @property
    def timed(self) -> bool:
        return bool((self.values["duration_ns"] != UNKNOWN).any())

    def shard(self, larger: list[float]) -> None:
        """If gradients are scattered to more ranks, each has a smaller part of the optimizer's work."""
        collective = np.array([c.collective for c in self.learned.classes])[self.of]
        scattered = distinct_values(self.group[(collective == Collective.REDUCE_SCATTER) & (self.group >= 0)]).tolist()
        factor = max((larger[slot] for slot in scattered), default=1.0)
        mine = np.array([c.optimizer for c in self.learned.classes])[self.of]
        self.level[mine] /= factor
        for column in ("flops", "tensor_bytes"):
            _times(self.values[column], mine, 1 / factor)

    def times(self, times: DrawnTimes, rank: int) -> I64:
        """Times of compute on one rank."""
        own = self.draws.times(times.random(rank), times.spread)
        factor = np.where(self.cpu == 1, times.host[rank][self.step], times.device[rank][self.step])
        compute = (self.kind == Kind.COMP) & (own != UNKNOWN)
        own = np.where(compute, np.rint(own * factor * self.level), own)
        if own[0] != UNKNOWN and self.kind[0] == Kind.COMP:
            own[0] += times.late_ns[rank]
        return own.astype(np.int64)[~self.dropped]

    def trace(self, larger: list[float], groups: int, peers: int, own: I64 | None) -> Trace:
        classes, of, keep = self.learned.classes, self.of, np.flatnonzero(~self.dropped)
        new = np.cumsum(~self.dropped) - 1
        columns: dict[str, Any] = {
            "kind": self.kind,
            "name": (of, [_word(c.collective, c.kind) for c in classes]),
            "cpu": self.cpu,
            "thread": np.array([1 + c.lane if c.cpu == 1 else UNKNOWN for c in classes], np.int64)[of],
            "stream": np.array([1 + c.lane if c.cpu != 1 and c.lane >= 0 else UNKNOWN for c in classes], np.int64)[of],
            "collective": np.array([c.collective for c in classes], np.uint8)[of],
            "group": self.group,
            "src": self.src,
            "dst": self.dst,
            "priority": np.array([UNKNOWN if c.priority is None else c.priority for c in classes], np.int64)[of],
            "step": self.step,
            **self._scaled(larger),
        }
        columns = {k: (v[0][keep], v[1]) if isinstance(v, tuple) else v[keep] for k, v in columns.items()}
        if own is not None:
            columns["duration_ns"] = own
        return build_trace(
            columns,
            data=self._csr(self.data, keep, new),
            ctrl=self._csr(self.ctrl, keep, new),
            group_slots=[f"g{i}" for i in range(groups)],
            peer_slots=peers,
        )

    def _scaled(self, larger: list[float]) -> dict[str, I64]:
        """Scales compute and traffic by their factors. What is gathered from more ranks has the same total, so each
        gives less; what is scattered to more, each gets less."""
        found = {c: v.copy() for c, v in self.values.items()}
        compute, sent = self.kind == Kind.COMP, np.isin(self.kind, (Kind.COLL, Kind.SEND, Kind.RECV))
        _times(found["duration_ns"], compute, self.level)
        for column in ("flops", "tensor_bytes"):
            _times(found[column], compute, self.options.compute)
        for column in ("in_bytes", "out_bytes"):
            _times(found[column], sent, self.options.traffic)
        collective = np.array([c.collective for c in self.learned.classes])[self.of]
        for slot, factor in enumerate(larger):
            here = self.group == slot
            _times(found["in_bytes"], here & (collective == Collective.ALL_GATHER), 1 / factor)
            _times(found["out_bytes"], here & (collective == Collective.REDUCE_SCATTER), 1 / factor)
        return found

    def _csr(self, edges: list[list[int]], keep: I64, new: I64) -> tuple[I64, I64]:
        kept = [[int(new[j]) for j in edges[row] if not self.dropped[j]] for row in keep.tolist()]
        return np.cumsum([0, *map(len, kept)]), np.array([j for found in kept for j in found], np.int64)


def _times(values: I64, rows: NDArray[np.bool_], factor: float | NDArray[np.float64]) -> None:
    """Scales these rows by a factor; unknown values stay, and nonzero ones stay nonzero."""
    rows = rows & (values != UNKNOWN)
    by = np.broadcast_to(factor, values.shape)[rows]
    values[rows] = np.maximum(np.rint(values[rows] * by), (values[rows] > 0).astype(np.int64)).astype(np.int64)


def _word(collective: int, kind: int) -> str:
    """The name of a node, from what is visible anyway."""
    return Collective(collective).name.lower() if collective else Kind(kind).name.lower()


# -- agreement ---------------------------------------------------------------------------------------------------


def _reconcile(world: LearnedWorld, programs: list[_RoleProgram], present: list[int]) -> None:
    """Where roles meet, makes them issue the same number of calls with the same sizes; surplus calls are dropped.

    Needed if stretched repeats are not equally many on both sides.
    """
    for role in present:
        program, mine = programs[role], int(np.flatnonzero(world.role_of == role)[0])
        for peer in distinct_values(world.peer_of[role][0]).tolist():
            other = int(world.role_of[peer])
            there = world.peer_of[other][int((world.role_of[:peer] == other).sum())]
            slots, back = np.flatnonzero(world.peer_of[role][0] == peer), np.flatnonzero(there == mine)
            sends = np.flatnonzero((program.kind == Kind.SEND) & np.isin(program.dst, slots))
            takes = np.flatnonzero((programs[other].kind == Kind.RECV) & np.isin(programs[other].src, back))
            n = min(len(sends), len(takes))
            program.dropped[sends[n:]] = True
            programs[other].dropped[takes[n:]] = True
            programs[other].values["in_bytes"][takes[:n]] = program.values["in_bytes"][sends[:n]]
    for group in range(len(world.groups)):
        ranks = world.groups.ranks(group)
        roles = distinct_values(world.role_of[ranks]).tolist() if ranks is not None else []
        if len(roles) > 1:
            _agree(world, programs, group, roles)


def _agree(world: LearnedWorld, programs: list[_RoleProgram], group: int, roles: list[int]) -> None:
    """Gives every role the same number of calls, and the same sizes where they were drawn for the same thing. Members
    of a collective that differ by nature (who scatters, who is sent more) still differ."""
    calls = {}
    for role in roles:
        uses = np.flatnonzero((world.group_of[role] == group).any(axis=0))
        calls[role] = np.flatnonzero((programs[role].kind == Kind.COLL) & np.isin(programs[role].group, uses))
    n = min(map(len, calls.values()))
    first, theirs = programs[roles[0]], calls[roles[0]][:n]
    collective = np.array([c.collective for c in first.learned.classes])
    even = ~np.isin(collective[first.of[theirs]], UNEVEN)
    for role in roles:
        mine = calls[role][:n]
        programs[role].dropped[calls[role][n:]] = True
        for column in ("in_bytes", "out_bytes"):
            wanted, drawn = first.values[column][theirs], programs[role].values[column][mine]
            near = np.abs(np.log2(np.maximum(wanted, 1)) - np.log2(np.maximum(drawn, 1))) < 0.5
            same = near | (programs[role].of[mine] == first.of[theirs]) | (even & (column == "in_bytes"))
            known = (wanted != UNKNOWN) & (drawn != UNKNOWN)
            programs[role].values[column][mine] = np.where(same & known, wanted, drawn)

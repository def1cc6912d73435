"""make(learned, options): a job of any number of ranks and steps that behaves like those that were learned.

More ranks are copies of the whole, put in along the data-parallel axis of the numbering, or behind one another where
there is none. Groups that grow join their members of all copies, the others stay within a copy. Fewer ranks are the
first members of the growing groups. Sizes are drawn from the quantiles of their class, the k-th of a class the same on
every rank, so that members of a collective agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.errors import UsageError
from etude.generate.roles import Role, job_of_roles
from etude.generate.synth import COLUMNS, QUANTILES, Learned, NodeClass, Template
from etude.generate.synth_grammar import unfolded
from etude.model.build import build_trace
from etude.model.job import MAX_WORLD, Groups, Job
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.trace import Trace

I64 = NDArray[np.int64]
MAX_NODES = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeOptions:
    ranks: int = 0
    """0: as many as were learned from."""
    steps: int = 1
    """The whole program, one after another."""
    depth: float = 1.0
    """Outermost repeats come so many times as often: more micro-batches, or a deeper model."""
    compute: float = 1.0
    """Factor of FLOPs, bytes and times of compute."""
    traffic: float = 1.0
    """Factor of bytes that are sent."""
    seed: int = 0
    name: str = "learned"

    def __post_init__(self) -> None:
        if self.ranks > MAX_WORLD or self.ranks < 0 or self.steps < 1:
            raise UsageError(f"{self.ranks} ranks and {self.steps} steps", hint="one of each at least")
        if not (0.0 < self.depth <= 1e4 and 0.0 < self.compute <= 1e9 and 0.0 < self.traffic <= 1e9):
            raise UsageError("depth and factors are more than 0")


def make(learned: Learned, options: MakeOptions | None = None) -> Job:
    """The job. Refused where the ranks are no multiple of what was learned, or cannot be cut."""
    options = options or MakeOptions()
    template = learned.template(options.ranks or learned.templates[0].ranks)
    ranks = options.ranks or template.ranks
    world = _World(template, ranks)
    programs = [_Program(learned, role.order, options) for role in template.roles]
    _reconcile(world, programs)
    roles = []
    for number, program in enumerate(programs):
        mine = np.flatnonzero(world.role_of == number)
        role = template.roles[number]
        roles.append(
            Role(
                trace=program.trace(world.shrunk(number), role.groups, role.peers),
                ranks=mine,
                groups=world.group_of[number],
                peers=world.peer_of[number],
            )
        )
    return job_of_roles(options.name, roles, groups=world.groups, provenance={"tool": "etude generate learned"})


# -- ranks -------------------------------------------------------------------------------------------------------


def _flat(runs: Sequence[tuple[int, int]]) -> I64:
    return np.repeat(np.array([v for _, v in runs], np.int64), [t for t, _ in runs])


def _members(runs: Sequence[tuple[int, int, int]]) -> I64:
    parts = [first + stride * np.arange(count, dtype=np.int64) for first, stride, count in runs]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


class _World:
    """Who is who in a job of another size."""

    def __init__(self, template: Template, ranks: int) -> None:
        self.template = template
        members = [_members(g) for g in template.groups]
        role_of = _flat(template.role_of)
        slots, peers = _by_role(template, template.group_of, "groups"), _by_role(template, template.peer_of, "peers")
        self.grows = set(template.grows)
        self.factor = ranks / template.ranks
        if ranks >= template.ranks:
            self._grow(ranks, members, role_of, slots, peers)
        else:
            self._cut(ranks, members, role_of, slots, peers)

    def _grow(self, ranks: int, members: list[I64], role_of: I64, slots: list[I64], peers: list[I64]) -> None:
        t = self.template
        copies, rest = divmod(ranks, t.ranks)
        if rest:
            raise UsageError(f"{ranks} ranks are no multiple of {t.ranks}", hint=f"--ranks {(copies + 1) * t.ranks}")
        at = self._places(copies)
        self.role_of = np.empty(ranks, np.int64)
        self.role_of[at.ravel()] = np.tile(role_of, copies)
        entries: list[I64] = []
        number = np.zeros((copies, len(members)), np.int64)
        for g, m in enumerate(members):
            if g in self.grows:
                number[:, g] = len(entries)
                entries.append(at[:, m].ravel())
            else:
                for c in range(copies):
                    number[c, g] = len(entries)
                    entries.append(at[c, m])
        self._bind(entries)
        self.group_of, self.peer_of = [], []
        for role, (table, far) in enumerate(zip(slots, peers, strict=True)):
            own = np.flatnonzero(role_of == role)
            order = np.argsort(at[:, own].ravel())
            self.group_of.append(np.concatenate([number[c][table] for c in range(copies)])[order])
            self.peer_of.append(np.concatenate([at[c][own[:, None] + far] for c in range(copies)])[order])

    def _places(self, copies: int) -> I64:
        """New number of each rank of each copy."""
        t = self.template
        rank, copy = np.arange(t.ranks)[None, :], np.arange(copies)[:, None]
        if t.axis is None:
            return copy * t.ranks + rank
        stride, size = t.axis
        block, place, inner = rank // (stride * size), rank // stride % size, rank % stride
        return (block * size * copies + copy * size + place) * stride + inner

    def _cut(self, ranks: int, members: list[I64], role_of: I64, slots: list[I64], peers: list[I64]) -> None:
        t = self.template
        parts, rest = divmod(t.ranks, ranks)
        keep = np.ones(t.ranks, bool)
        grown = [members[g] for g in sorted(self.grows)]
        if rest or not grown or any(len(m) % parts for m in grown):
            raise UsageError(f"{ranks} ranks cannot be cut out of {t.ranks}", hint="learn from a smaller job")
        for m in grown:
            keep[m[len(m) // parts :]] = False
        if keep.sum() != ranks:
            raise UsageError(f"{ranks} ranks cannot be cut out of {t.ranks}", hint="learn from a smaller job")
        new = np.cumsum(keep) - 1
        self.role_of = role_of[keep]
        self._bind([new[m[keep[m]]] for m in members])
        self.group_of, self.peer_of = [], []
        for role, (table, far) in enumerate(zip(slots, peers, strict=True)):
            own = np.flatnonzero(role_of == role)
            stays = keep[own]
            self.group_of.append(table[stays])
            peer = own[:, None] + far
            if peer.size and not keep[peer[stays]].all():
                raise UsageError(
                    f"{ranks} ranks: a message would have no one to go to", hint="learn from a smaller job"
                )
            self.peer_of.append(new[peer[stays]])

    def _bind(self, entries: list[I64]) -> None:
        start = np.cumsum([0, *map(len, entries)]).astype(np.int64)
        flat = np.concatenate(entries).astype(np.int32) if entries else np.zeros(0, np.int32)
        names = tuple(str(i + 1) for i in range(len(entries)))
        self.groups = Groups(names, start, flat, np.ones(len(entries), bool))

    def shrunk(self, role: int) -> list[float]:
        """How much larger the group of each slot is than it was: 1 for those that do not grow."""
        tables = _by_role(self.template, self.template.group_of, "groups")[role]
        return [self.factor if int(tables[0, slot]) in self.grows else 1.0 for slot in range(tables.shape[1])]


def _by_role(template: Template, flat: Sequence[Sequence[tuple[int, int]]], count: str) -> list[I64]:
    """Tables of each role: a row for each of its ranks, a column for each slot."""
    role_of = _flat(template.role_of)
    found, at = [], 0
    for number, role in enumerate(template.roles):
        slots = getattr(role, count)
        columns = [_flat(runs) for runs in flat[at : at + slots]]
        at += slots
        rows = int((role_of == number).sum())
        found.append(np.stack(columns, 1) if columns else np.zeros((rows, 0), np.int64))
    return found


# -- programs ----------------------------------------------------------------------------------------------------


class _Program:
    """Nodes of one role: class and edges of each."""

    def __init__(self, learned: Learned, order: list[Any], options: MakeOptions) -> None:
        self.learned, self.options = learned, options
        once = unfolded(order, options.depth)
        if len(once) * options.steps > MAX_NODES:
            raise UsageError(f"{len(once) * options.steps:,} nodes a rank are too many", hint="fewer --steps")
        self.node_class: list[int] = []
        self.data: list[list[int]] = []
        self.ctrl: list[list[int]] = []
        self.step: list[int] = []
        for step in range(options.steps):
            self._place(once, step)
        self.dropped = np.zeros(len(self.node_class), bool)
        classes = self.learned.classes
        of = np.array(self.node_class, np.int64)
        self.of = of
        self.kind = np.array([c.kind for c in classes], np.uint8)[of]
        self.group = np.array([c.group for c in classes], np.int32)[of]
        self.src = np.array([c.src for c in classes], np.int32)[of]
        self.dst = np.array([c.dst for c in classes], np.int32)[of]
        self.values = self._values(of)

    def _place(self, once: list[int], step: int) -> None:
        base = len(self.node_class)
        rows: dict[int, list[int]] = {}
        waited = set()
        for number in once:
            symbol = self.learned.symbols[number]
            row = len(self.node_class)
            edges = []
            for waits in (symbol.data, symbol.ctrl):
                found = [rows[c][-back] for c, back in waits if len(rows.get(c, ())) >= back]
                edges.append(found)
                waited.update(found)
            self.node_class.append(symbol.node_class)
            self.step.append(step)
            self.data.append(edges[0])
            self.ctrl.append(edges[1])
            rows.setdefault(symbol.node_class, []).append(row)
        if step:
            self._join(base)
        self._last = [row for row in range(base, len(self.node_class)) if row not in waited]

    def _join(self, base: int) -> None:
        """A step begins when the one before has ended: one of its last nodes gathers the others."""
        *others, gate = self._last
        self.ctrl[gate] = [*self.ctrl[gate], *others]
        for row in range(base, len(self.node_class)):
            if not self.data[row] and not self.ctrl[row]:
                self.ctrl[row] = [gate]

    def _values(self, of: I64) -> dict[str, I64]:
        """The k-th of a class has the k-th draw of that class, whatever the rank."""
        found = {c: np.full(len(of), UNKNOWN, np.int64) for c in COLUMNS}
        for number in np.unique(of).tolist():
            rows = np.flatnonzero(of == number)
            one = self.learned.classes[number]
            place = np.random.Generator(np.random.PCG64((self.options.seed, number))).random(len(rows))
            for column, values in drawn(one, place).items():
                found[column][rows] = values
        return found

    def trace(self, larger: list[float], groups: int, peers: int) -> Trace:
        classes, of, keep = self.learned.classes, self.of, np.flatnonzero(~self.dropped)
        new = np.cumsum(~self.dropped) - 1
        columns: dict[str, Any] = {
            "kind": self.kind,
            "name": (of, [_word(c) for c in classes]),
            "cpu": np.array([c.cpu for c in classes], np.int8)[of],
            "thread": np.array([1 + c.lane if c.cpu == 1 else UNKNOWN for c in classes], np.int64)[of],
            "stream": np.array([1 + c.lane if c.cpu != 1 and c.lane >= 0 else UNKNOWN for c in classes], np.int64)[of],
            "collective": np.array([c.collective for c in classes], np.uint8)[of],
            "group": self.group,
            "src": self.src,
            "dst": self.dst,
            "priority": np.array([UNKNOWN if c.priority is None else c.priority for c in classes], np.int64)[of],
            "step": np.array(self.step, np.int64),
            **self._scaled(larger),
        }
        columns = {k: (v[0][keep], v[1]) if isinstance(v, tuple) else v[keep] for k, v in columns.items()}
        return build_trace(
            columns,
            data=self._csr(self.data, keep, new),
            ctrl=self._csr(self.ctrl, keep, new),
            group_slots=[f"g{i}" for i in range(groups)],
            peer_slots=peers,
        )

    def _scaled(self, larger: list[float]) -> dict[str, I64]:
        """Compute and traffic by their factors. What is gathered from more ranks is as much in all, so each gives
        less; what is scattered to more, each gets less."""
        found = {c: v.copy() for c, v in self.values.items()}
        compute, sent = self.kind == Kind.COMP, np.isin(self.kind, (Kind.COLL, Kind.SEND, Kind.RECV))
        for column in ("duration_ns", "flops", "tensor_bytes"):
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


def _times(values: I64, rows: NDArray[np.bool_], factor: float) -> None:
    rows = rows & (values != UNKNOWN)
    if factor != 1.0:
        values[rows] = np.maximum(np.rint(values[rows] * factor), (values[rows] > 0).astype(np.int64)).astype(np.int64)


def drawn(one: NodeClass, place: NDArray[np.float64]) -> dict[str, I64]:
    """Values of a class at these places of its distribution, all columns at the same, and their mean as learned."""
    found = {}
    for column, sketch in one.sketches.items():
        values = np.interp(place, QUANTILES, sketch.quantiles)
        mean = np.interp(np.linspace(0, 1, 257), QUANTILES, sketch.quantiles).mean()
        spread = sketch.quantiles[-1] - sketch.quantiles[0]
        if spread and mean > 0:  # straight lines between quantiles have another mean
            values = np.clip(values * (sketch.mean / mean), sketch.quantiles[0], sketch.quantiles[-1])
        found[column] = np.rint(values).astype(np.int64)
    return found


def _word(one: NodeClass) -> str:
    """What a node is called: what can be seen of it anyway."""
    return Collective(one.collective).name.lower() if one.collective else Kind(one.kind).name.lower()


# -- agreement ---------------------------------------------------------------------------------------------------


def _reconcile(world: _World, programs: list[_Program]) -> None:
    """Where roles meet, they make as many calls and agree on their sizes; what is over is left out.

    It happens where repeats were stretched that are not equally many on both sides.
    """
    for role, program in enumerate(programs):
        mine = int(np.flatnonzero(world.role_of == role)[0])
        for peer in np.unique(world.peer_of[role][0]).tolist():
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
        roles = np.unique(world.role_of[ranks]).tolist() if ranks is not None else []
        if len(roles) > 1:
            _agree(world, programs, group, roles)


def _agree(world: _World, programs: list[_Program], group: int, roles: list[int]) -> None:
    calls = {}
    for role in roles:
        uses = np.flatnonzero((world.group_of[role] == group).any(axis=0))
        calls[role] = np.flatnonzero((programs[role].kind == Kind.COLL) & np.isin(programs[role].group, uses))
    n = min(map(len, calls.values()))
    first = programs[roles[0]]
    for role in roles:
        programs[role].dropped[calls[role][n:]] = True
        for column in ("in_bytes", "out_bytes"):
            programs[role].values[column][calls[role][:n]] = first.values[column][calls[roles[0]][:n]]

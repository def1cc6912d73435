"""A learned model of jobs: kinds of nodes, their sizes and order, and the roles of ranks.

It holds no names, shapes, attributes or code, and no exact sizes: numbers are kept as quantiles on a grid of 1/64 of an
octave, which contains no power of two, and without maxima. `synth_learn` makes it from jobs, `synth_make` makes jobs
from it.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from etude.base.errors import FormatError

FORMAT: Final = "etude learned"
COLUMNS: Final = ("duration_ns", "flops", "tensor_bytes", "in_bytes", "out_bytes")
VERSION: Final = 2
RARE: Final = 5
QUANTILES: Final = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97)
"""Quantiles that are kept. Values below the first equal the first; values above the last follow from the mean."""
STEPS: Final = 64
"""Steps per octave of the grid that numbers are kept on."""


Knots = tuple[tuple[float, float], ...]
"""(normal score, value), ascending: the distribution of differences between ranks or steps."""


class Sketch(msgspec.Struct, frozen=True, array_like=True):
    """The values of one column of one class: their mean, and quantiles (see QUANTILES) on the grid. No quantiles: all
    are the same."""

    mean: float
    quantiles: tuple[int, ...] = ()


class NodeClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """Similar nodes: what they do, where they run, how large they are."""

    kind: int
    cpu: int = -1
    lane: int = -1
    """Number of the lane in its rank, by first use."""
    collective: int = 0
    group: int = -1
    """Slot of the group, in its role."""
    src: int = -1
    dst: int = -1
    priority: int | None = None
    optimizer: bool = False
    """Work of the optimizer on the device: if gradients are scattered among ranks, each does its part."""
    sketches: dict[str, Sketch] = {}
    own: float = 0.0
    """Fraction of the variance of its times that varies by rank and step; the rest depends on the position of a
    node."""


class Symbol(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A class and the dependencies of such a node."""

    node_class: int
    data: tuple[tuple[int, int], ...] = ()
    """(class, how many of that class back)."""
    ctrl: tuple[tuple[int, int], ...] = ()


class LearnedRole(msgspec.Struct, frozen=True, omit_defaults=True):
    """One program: its symbols in order, repeats folded. `groups` and `peers` count its slots."""

    order: list[tuple[int, list[Any]]]
    """Its steps: (times, symbols), one after another."""
    groups: int = 0
    peers: int = 0
    late_ns: Knots = ()
    """How much later than the first rank of the job its ranks began, by normal score."""
    level: tuple[float, float] = (1.0, 1.0)
    """Time of its ranks relative to similar ranks, on the host and on the device: a slow rank stays slow."""
    step: int = -1
    """Index in `order` of the entry for more than one step, which can be repeated as often as wanted; -1: none."""


class Template(msgspec.Struct, frozen=True, omit_defaults=True):
    """How ranks are combined, learned from one job."""

    ranks: int
    nodes: int
    roles: tuple[LearnedRole, ...]
    role_of: list[tuple[int, int]]
    """(times, role), over the ranks in order."""
    groups: list[list[tuple[int, int, int]]]
    """Members in order, in runs of (first, stride, count)."""
    group_of: list[list[tuple[int, int]]]
    """By role and slot: (times, group), over the role's ranks."""
    peer_of: list[list[tuple[int, int]]]
    """By role and slot: (times, distance of the peer), over the role's ranks."""
    grows: tuple[int, ...] = ()
    """Groups that take more members when there are more ranks."""
    axis: tuple[int, int] | None = None
    """(stride, size) of the axis along which ranks are added; None: whole copies in sequence."""


class Spread(msgspec.Struct, frozen=True, omit_defaults=True):
    """Factors by which ranks and steps differ from one another in the times of their own work. Empty: none, or
    unknown."""

    rank: Knots = ()
    """Of a rank, in all its steps."""
    step: Knots = ()
    """Of a step, on all ranks."""
    both: Knots = ()
    """Of one step on one rank, beyond these."""


class CopyDifference(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a copy came out from a real job, both simulated: copy over job, less one."""

    ranks: int
    learned_from: tuple[int, ...]
    """Ranks of the jobs that the copy was learned from."""
    withheld: bool
    """Whether the real job was not among them."""
    step: float
    communication: float | None = None
    """Time of communication, of a mean rank; None: there is none."""
    system: str = ""

    @property
    def words(self) -> str:
        sent = "" if self.communication is None else f" and communication {self.communication:+.1%}"
        sizes = _listed(self.learned_from)
        of = f"a job of {self.ranks} ranks that was withheld (learned from {sizes})" if self.withheld else "its own job"
        return f"step {self.step:+.1%}{sent} against {of}, both simulated on {self.system}"


def _listed(sizes: tuple[int, ...]) -> str:
    """1, 2, 4 ranks."""
    return f"{', '.join(map(str, sizes))} rank{'s' if sizes != (1,) else ''}"


class Learned(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="format", tag=FORMAT):
    """The model learned from one or many jobs."""

    version: int
    classes: tuple[NodeClass, ...]
    symbols: tuple[Symbol, ...]
    templates: tuple[Template, ...]
    host: Spread = Spread()
    device: Spread = Spread()
    at_least: int = 1
    """Nodes that every number represents, except those rounded to half an octave."""
    rare: int = 0
    """Classes with fewer than RARE nodes."""
    copies: tuple[CopyDifference, ...] = ()
    """How far copies came out when the model was learned; none: it was not measured."""

    def with_difference(self, **figures: Any) -> Learned:
        """The model with one more measurement of a copy."""
        return msgspec.structs.replace(self, copies=(*self.copies, CopyDifference(**figures)))

    def difference_at(self, ranks: int) -> str:
        """What is known of how far a copy of this many ranks is from a real job."""
        if not self.copies:
            return "how far copies are from real jobs was not measured when this model was learned"
        withheld = [one for one in self.copies if one.withheld]
        here = [one for one in self.copies if one.ranks == ranks]
        if here:
            return "; ".join(f"a copy of {ranks} ranks: {one.words}" for one in here)
        if withheld:
            near = min(withheld, key=lambda one: abs(np.log2(one.ranks / ranks)))
            return f"no job of {ranks} ranks was learned from; the nearest that was measured: {near.words}"
        sizes = _listed(tuple(sorted({one.ranks for one in self.copies})))
        return (
            f"no job of {ranks} ranks was learned from, and none was withheld: how far this copy is from a real one is "
            f"not known; of {sizes}: {self.copies[0].words}"
        )

    def template(self, ranks: int) -> Template:
        """The one whose ranks are nearest to these, the larger of two."""
        return min(self.templates, key=lambda t: (abs(t.ranks - ranks), -t.ranks))


def write(learned: Learned, path: Path) -> None:
    path.write_bytes(msgspec.json.encode(learned) + b"\n")


def read(path: Path) -> Learned:
    """A model from a file; an inconsistent one is refused."""
    data = path.read_bytes()
    try:
        said = msgspec.json.decode(data, type=_Head)
        if said.format == FORMAT and said.version != VERSION:
            hint = "learn it again with `etude learn`" if said.version < VERSION else "it was written by a newer Etude"
            raise FormatError(
                f"is a learned model of version {said.version}; only {VERSION} is read", path=path, hint=hint
            )
        found = msgspec.json.decode(data, type=Learned)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        hint = "`etude learn run/ -o model.json` writes one"
        raise FormatError(f"is not a learned model: {problem}", path=path, hint=hint) from None
    check(found, path)
    return found


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 1


def check(learned: Learned, path: Path) -> None:
    """Checks that every number refers to something that exists."""
    classes, symbols = len(learned.classes), len(learned.symbols)
    fine = bool(learned.templates)
    for symbol in learned.symbols:
        waits = [*symbol.data, *symbol.ctrl]
        fine &= 0 <= symbol.node_class < classes and all(0 <= c < classes and back > 0 for c, back in waits)
    for one in learned.classes:
        fine &= 0.0 <= one.own <= 1.0
        fine &= all(name in COLUMNS and len(s.quantiles) in (0, len(QUANTILES)) for name, s in one.sketches.items())
    for template in learned.templates:
        fine &= _whole(template, symbols)
    for spread in (learned.host, learned.device):
        for knots in (spread.rank, spread.step, spread.both):
            fine &= len(knots) != 1 and all(factor > 0 for _, factor in knots) and _ascending(knots)
    if not fine:
        raise FormatError("is an inconsistent learned model", path=path, hint="learn it again")


def _ascending(knots: Knots) -> bool:
    return all(a[0] < b[0] for a, b in pairwise(knots))


def _whole(template: Template, symbols: int) -> bool:
    roles = len(template.roles)
    held = sum(times for times, _ in template.role_of) == template.ranks > 0
    known = all(0 <= role < roles for _, role in template.role_of)
    slots = len(template.group_of) == sum(r.groups for r in template.roles)
    slots &= len(template.peer_of) == sum(r.peers for r in template.roles)
    inside = all(times > 0 and _symbols(o, symbols) for role in template.roles for times, o in role.order)
    inside &= all(all(ns >= 0 for _, ns in r.late_ns) and _ascending(r.late_ns) for r in template.roles)
    inside &= all(r.order and r.step < len(r.order) for r in template.roles)
    grown = all(0 <= g < len(template.groups) for g in template.grows)
    bound = all(0 <= g < len(template.groups) for slot in template.group_of for _, g in slot)
    along = template.axis is None or (
        min(template.axis) > 0 and template.ranks % (template.axis[0] * template.axis[1]) == 0
    )
    return held and known and slots and inside and grown and bound and along


def _symbols(order: list[Any], symbols: int) -> bool:
    for item in order:
        if isinstance(item, list):
            if len(item) != 2 or not isinstance(item[0], int) or item[0] < 1 or not isinstance(item[1], list):
                return False
            if not _symbols(item[1], symbols):
                return False
        elif not (isinstance(item, int) and 0 <= item < symbols):
            return False
    return True

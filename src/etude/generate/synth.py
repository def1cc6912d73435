"""A learned model of jobs: what kinds of nodes there are, how large they are, in which order they come, who is who.

It holds no names, shapes, attributes or code, and no exact sizes: numbers are kept as quantiles on a grid of 1/64 of an
octave, on which no power of two lies. `synth_learn` makes it from jobs, `synth_make` makes jobs of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from etude.errors import FormatError

FORMAT: Final = "etude learned"
COLUMNS: Final = ("duration_ns", "flops", "tensor_bytes", "in_bytes", "out_bytes")
QUANTILES: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
STEPS: Final = 64
"""Of an octave: the grid that numbers are kept on."""


class Sketch(msgspec.Struct, frozen=True, omit_defaults=True):
    """The values of one column of one class: quantiles (see QUANTILES), on the grid, and what their mean is."""

    quantiles: tuple[int, ...]
    mean: float


class NodeClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """Nodes alike: what they do, where they run, how large they are (work and bytes within a quarter of an octave,
    times within two)."""

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
    scale: tuple[int, ...] = ()
    """Which size this is, column by column."""
    sketches: dict[str, Sketch] = {}


class Symbol(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A class and what such a node waits for."""

    node_class: int
    data: tuple[tuple[int, int], ...] = ()
    """(class, how many of that class back)."""
    ctrl: tuple[tuple[int, int], ...] = ()


class LearnedRole(msgspec.Struct, frozen=True, omit_defaults=True):
    """One program: its symbols in order, repeats folded. `groups` and `peers` count its slots."""

    order: list[Any]
    groups: int = 0
    peers: int = 0


class Template(msgspec.Struct, frozen=True, omit_defaults=True):
    """How ranks are put together, learned from one job."""

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
    """(stride, size) of the axis along which ranks are added; None: whole copies behind one another."""


class Learned(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="format", tag=FORMAT):
    """What was learned of one or many jobs."""

    classes: tuple[NodeClass, ...]
    symbols: tuple[Symbol, ...]
    templates: tuple[Template, ...]
    hidden: dict[str, int] = {}
    """What the jobs had and this has not: how many of it."""

    def template(self, ranks: int) -> Template:
        """The one whose ranks are nearest to these, the larger of two."""
        return min(self.templates, key=lambda t: (abs(t.ranks - ranks), -t.ranks))


def write(learned: Learned, path: Path) -> None:
    path.write_bytes(msgspec.json.encode(learned) + b"\n")


def read(path: Path) -> Learned:
    """A model from a file; what does not hang together is refused."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Learned)
    except msgspec.DecodeError as problem:
        raise FormatError(f"not a learned model: {problem}", path=path) from None
    check(found, path)
    return found


def check(learned: Learned, path: Path) -> None:
    """Every number names something that is there."""
    classes, symbols = len(learned.classes), len(learned.symbols)
    fine = bool(learned.templates)
    for symbol in learned.symbols:
        waits = [*symbol.data, *symbol.ctrl]
        fine &= 0 <= symbol.node_class < classes and all(0 <= c < classes and back > 0 for c, back in waits)
    for one in learned.classes:
        fine &= all(name in COLUMNS and len(s.quantiles) == len(QUANTILES) for name, s in one.sketches.items())
    for template in learned.templates:
        fine &= _whole(template, symbols)
    if not fine:
        raise FormatError("a learned model that does not hang together", path=path, hint="learn it again")


def _whole(template: Template, symbols: int) -> bool:
    roles = len(template.roles)
    held = sum(times for times, _ in template.role_of) == template.ranks > 0
    known = all(0 <= role < roles for _, role in template.role_of)
    slots = len(template.group_of) == sum(r.groups for r in template.roles)
    slots &= len(template.peer_of) == sum(r.peers for r in template.roles)
    inside = all(_symbols(role.order, symbols) for role in template.roles)
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

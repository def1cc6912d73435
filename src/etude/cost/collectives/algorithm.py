"""What an algorithm is: its closed form, its schedule, and how that lies on a group of a system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from etude.cost.collectives.plan import AlgorithmPlan
from etude.cost.groups import GroupShape
from etude.cost.schedule import Schedule
from etude.machine.system import System
from etude.model.schema import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a schedule lies on its members. An algorithm takes of it what it knows."""

    root: int = 0
    dims: Sequence[int] | None = None
    """Members along each dimension, the first varying fastest."""
    inner: Sequence[str] | None = None
    """What goes along each dimension."""
    orders: Sequence[Sequence[int]] | None = None
    """As many rings, each with its part of the data."""
    line: bool = False
    """No wrap closes the ring."""
    counts: int = 1
    """That a source of a one-sided exchange sends to each target."""


ClosedForm = Callable[[System, Collective, GroupShape], AlgorithmPlan]
MakeSchedule = Callable[[Collective, int, Layout], Schedule]
"""Makes the schedule of a collective on this many members."""
MakeLayout = Callable[[System, Collective, GroupShape, tuple[int, ...]], Layout]
"""On a group; the last: members under each unit, level by level, () where they are no product of levels."""

SAME_AS: Final = {
    Collective.REDUCE_SCATTER_BLOCK: Collective.REDUCE_SCATTER,
    Collective.BARRIER: Collective.ALL_REDUCE,  # of nothing
}


def plain(system: System, kind: Collective, shape: GroupShape, dims: tuple[int, ...]) -> Layout:
    """In the order of members."""
    return Layout()


@dataclass(frozen=True, slots=True)
class Algorithm:
    closed_form: ClosedForm
    schedule: MakeSchedule
    collectives: tuple[Collective, ...]
    layout: MakeLayout = plain
    nested: bool = False
    """It works level by level, and needs members that are a product of levels."""
    straight: bool = False
    """Every member posts messages to many others one by one, and they go straight there."""

    def carried_as(self, kind: Collective) -> Collective | None:
        """The collective whose schedule carries out this one; None where there is none."""
        same = SAME_AS.get(kind, kind)
        return kind if kind in self.collectives else same if same in self.collectives else None

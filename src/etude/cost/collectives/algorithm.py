"""The definition of an algorithm: its closed form, its schedule, and its layout on a group of a system."""

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
    """How a schedule is placed on its members. An algorithm uses the parts that it knows."""

    root: int = 0
    dims: Sequence[int] | None = None
    """Members along each dimension, the first varying fastest."""
    inner: Sequence[str] | None = None
    """The algorithm along each dimension."""
    orders: Sequence[Sequence[int]] | None = None
    """One ring for each, with its part of the data."""
    line: bool = False
    """The ring is not closed."""
    counts: int = 1
    """Counts that a source of a one-sided exchange sends to each target."""


ClosedForm = Callable[[System, Collective, GroupShape], AlgorithmPlan]
MakeSchedule = Callable[[Collective, int, Layout], Schedule]
"""Makes the schedule of a collective on this many members."""
MakeLayout = Callable[[System, Collective, GroupShape, tuple[int, ...]], Layout]
"""On a group; the last argument: members under each unit, level by level, () if they are not a product of levels."""

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
    """Every member posts messages to many others one by one, which go straight there."""

    def carried_as(self, kind: Collective) -> Collective | None:
        """The collective whose schedule implements this one; None: none."""
        same = SAME_AS.get(kind, kind)
        return kind if kind in self.collectives else same if same in self.collectives else None

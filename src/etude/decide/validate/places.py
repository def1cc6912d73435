"""Where delays are put: before a module, before its backward pass, on its device, or on one rank alone."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from etude.base.errors import UsageError
from etude.capture.collect import Delay, DelayKind, Moment

DEVICE_PLACES: Final = 2
"""Modules whose device gets extra work, if no places are asked for."""
EXAMPLES: Final = "layers.3, backward:layers.3, device:layers.3, rank1:layers.3"
_TEXT = re.compile(r"(?:(module|backward|device|rank(\d+)):)?(.+)")


class PlaceKind(StrEnum):
    MODULE = "module"
    """A spin of the host before the module."""
    BACKWARD = "backward"
    """A spin of the host before its backward pass."""
    DEVICE = "device"
    """Extra work before it, on its stream; on a CPU extra operators."""
    RANK = "rank"
    """A spin of one rank before the module."""


@dataclass(frozen=True, slots=True)
class AskedPlace:
    """A place as it is given: `layers.3`, `backward:layers.3`, `device:layers.3`, `rank1:layers.3`."""

    kind: PlaceKind
    module: str
    rank: int | None = None

    @classmethod
    def parse(cls, text: str) -> "AskedPlace":
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"`{text}` is not a place", hint=EXAMPLES)
        rank = int(match[2]) if match[2] else None
        return cls(PlaceKind.RANK if rank is not None else PlaceKind(match[1] or "module"), match[3], rank)


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is put in."""

    kind: PlaceKind
    moment: Moment
    rank: int | None = None
    """On this rank alone."""

    @property
    def where(self) -> str:
        """As `--place` takes it."""
        return f"{self.kind}{'' if self.rank is None else self.rank}:{self.moment.module}"

    def delay(self, time_ns: int) -> Delay:
        kind = DelayKind.DEVICE if self.kind is PlaceKind.DEVICE else DelayKind.HOST
        return Delay(self.moment, kind, time_ns, self.rank)


def choose_places(moments: Mapping[int, Sequence[Moment]], asked: Sequence[AskedPlace] = ()) -> list[Place]:
    """The places that were asked for, or all kinds of them, among the moments of each rank."""
    if asked:
        return list(dict.fromkeys(_of_asked(moments, one) for one in asked))
    each = sorted({moment for of_rank in moments.values() for moment in of_rank})
    forward = [moment for moment in each if not moment.backward]
    found = [Place(PlaceKind.MODULE, moment) for moment in forward]
    found += [Place(PlaceKind.BACKWARD, moment) for moment in each if moment.backward]
    found += [Place(PlaceKind.DEVICE, moment) for moment in forward[-DEVICE_PLACES:]]
    if len(moments) > 1:
        for rank in (min(moments), max(moments)):
            own = [moment for moment in sorted(moments[rank]) if not moment.backward]
            found += [Place(PlaceKind.RANK, moment, rank) for moment in own[:1]]
    return found


def _of_asked(moments: Mapping[int, Sequence[Moment]], one: AskedPlace) -> Place:
    if one.rank is not None and one.rank not in moments:
        hint = f"it has {len(moments)}"
        raise UsageError(f"the program has no rank {one.rank}", where=f"rank{one.rank}:{one.module}", hint=hint)
    own = moments.values() if one.rank is None else [moments[one.rank]]
    backward = one.kind is PlaceKind.BACKWARD
    for moment in (moment for of_rank in own for moment in of_rank):
        if moment.module == one.module and moment.backward == backward:
            return Place(one.kind, moment, one.rank)
    what = "has no backward pass that every step comes to" if backward else "is not called in every step"
    raise UsageError(f"module `{one.module}` {what}", hint="names are those of `named_modules()`")

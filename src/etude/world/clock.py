"""One clock for everything that takes longer than a step.

An entity keeps its own state. It does its work up to a moment when it is asked to, and answers events with further
events. Entities that do not meet are never brought to the same moment before the end: one is brought to an instant when
it may have something to say, or when an event is for it.

At an instant, work ends first, in the order of the entities. Then come events that entities announced, in the order in
which they were announced, and last those from outside, such as faults.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeVar

NEVER: Final = 1 << 62


class Event(NamedTuple):
    """Something that happens to an entity."""

    time_ns: int
    kind: str
    to: str
    """Name of the entity."""
    about: Any = None
    """What the entity must know of it."""


class Entity(Protocol):
    """What has a state on the clock."""

    @property
    def name(self) -> str: ...

    def next_ns(self) -> int:
        """The next moment at which it may have an event for others; NEVER: only events can change that."""
        ...

    def advance(self, until_ns: int) -> Iterable[Event]:
        """Does its own work up to a moment, including what ends then; returns events that follow, not before it."""
        ...

    def on(self, event: Event) -> Iterable[Event]:
        """What an event changes, at its moment; returns events that follow."""
        ...


AnyEntity = TypeVar("AnyEntity", bound=Entity)


class DiscreteEntity:
    """What works at instants of its own, and has nothing to say to others."""

    __slots__ = ()

    def due_ns(self) -> int:
        """The next of its instants; NEVER: there is none."""
        raise NotImplementedError

    def instant(self, now: int) -> None:
        """All that happens at an instant."""
        raise NotImplementedError

    def next_ns(self) -> int:
        return NEVER

    def advance(self, until_ns: int) -> Iterable[Event]:
        while (now := self.due_ns()) <= min(until_ns, NEVER - 1):
            self.instant(now)
        return ()

    def on(self, event: Event) -> Iterable[Event]:
        return ()


@dataclass(slots=True)
class Agenda:
    """What an entity has announced to itself, in order of time; of the same rank, what was noted first comes first."""

    _heap: list[tuple[int, int, int, str, Any]] = field(default_factory=list)
    _noted: int = 0

    _dropped: set[int] = field(default_factory=set)

    def note(self, time_ns: int, kind: str, about: Any = None, *, rank: int = 0) -> int:
        """Returns its number, by which it can be dropped."""
        self._noted += 1
        heapq.heappush(self._heap, (time_ns, rank, self._noted, kind, about))
        return self._noted

    def drop(self, number: int) -> None:
        """It will not happen."""
        self._dropped.add(number)

    def next_ns(self) -> int:
        while self._heap and self._heap[0][2] in self._dropped:
            self._dropped.remove(heapq.heappop(self._heap)[2])
        return self._heap[0][0] if self._heap else NEVER

    def pop(self) -> tuple[str, Any]:
        *_, kind, about = heapq.heappop(self._heap)
        return kind, about

    def due(self, time_ns: int) -> Iterator[tuple[str, Any]]:
        """Takes what is due at a moment, also what is noted for it meanwhile."""
        while self.next_ns() == time_ns:
            yield self.pop()

    def times(self, kind: str) -> list[int]:
        """When things of a kind are due."""
        return [time_ns for time_ns, _, _, its, _ in self._heap if its == kind]


@dataclass(slots=True)
class LoneEntity(DiscreteEntity):
    """What it noted for itself happens at its time, and then it settles that instant."""

    name: str = field(init=False, default="alone")
    now_ns: int = field(init=False, default=0)
    later: Agenda = field(init=False, default_factory=Agenda)

    def happen(self, kind: str, about: Any) -> None:
        """Something that it noted."""

    def settle(self) -> None:
        """All of an instant has happened."""

    def due_ns(self) -> int:
        return self.later.next_ns()

    def instant(self, now: int) -> None:
        self.now_ns = now
        for kind, about in self.later.due(now):
            self.happen(kind, about)
        self.settle()


@dataclass(slots=True)
class Clock:
    """Entities up to a horizon. What would happen at the horizon itself does not."""

    horizon_ns: int
    entities: dict[str, Entity] = field(default_factory=dict)
    now_ns: int = 0
    crossings: int = 0
    """Times that an entity was brought to a moment, or got an event."""
    _heap: list[tuple[int, bool, int, Event]] = field(default_factory=list)
    _posted: int = 0

    def add(self, *entities: Entity) -> None:
        for one in entities:
            if one.name in self.entities:
                raise ValueError(f"two entities are called `{one.name}`")
            self.entities[one.name] = one

    def post(self, events: Iterable[Event], *, outside: bool = False) -> None:
        for event in events:
            if event.time_ns < self.now_ns:
                raise ValueError(f"`{event.kind}` for {event.to} at {event.time_ns}: it is {self.now_ns} already")
            self._posted += 1
            heapq.heappush(self._heap, (event.time_ns, outside, self._posted, event))

    def reach(self, entity: Entity) -> None:
        """Brings an entity to the present."""
        self.crossings += 1
        self.post(entity.advance(self.now_ns))

    def run(self, until_ns: int = NEVER) -> None:
        """Everything before the horizon, or before an earlier moment, and all work up to it. From there it may go
        on."""
        order: Sequence[Entity] = list(self.entities.values())
        end_ns = min(self.horizon_ns, until_ns)
        while True:
            times = [one.next_ns() for one in order]
            at = min([*times, self._heap[0][0] if self._heap else NEVER])
            if at >= end_ns:
                break
            self.now_ns = at
            for one, time_ns in zip(order, times, strict=True):
                if time_ns <= at:
                    self.reach(one)
            while self._heap and self._heap[0][0] == at:
                event = heapq.heappop(self._heap)[3]
                entity = self.entities[event.to]
                self.reach(entity)
                self.post(entity.on(event))
        self.now_ns = end_ns
        for one in order:
            self.reach(one)


def run_alone(entity: AnyEntity, horizon_ns: int = NEVER, *, outside: Iterable[Event] = ()) -> AnyEntity:
    """One entity on a clock of its own, and what happens to it from outside."""
    clock = Clock(horizon_ns)
    clock.add(entity)
    clock.post(outside, outside=True)
    clock.run()
    return entity

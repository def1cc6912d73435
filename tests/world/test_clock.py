"""The clock: what comes first at an instant, and who is brought to it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from etude.world.clock import NEVER, Agenda, Clock, DiscreteEntity, Event, LoneEntity, run_alone


@dataclass
class Told:
    """Writes down what happens to it."""

    name: str
    log: list[tuple[str, str, int]]
    wakes: list[int] = field(default_factory=list)
    answers: dict[str, list[Event]] = field(default_factory=dict)

    def next_ns(self) -> int:
        return self.wakes[0] if self.wakes else NEVER

    def advance(self, until_ns: int) -> Iterable[Event]:
        if self.wakes and self.wakes[0] <= until_ns:
            self.wakes.pop(0)
            self.log.append((self.name, "works", until_ns))
        return ()

    def on(self, event: Event) -> Iterable[Event]:
        self.log.append((self.name, event.kind, event.time_ns))
        return self.answers.get(event.kind, ())


def test_work_ends_before_what_was_announced_and_that_before_what_comes_from_outside():
    log: list[tuple[str, str, int]] = []
    a, b = Told("a", log, [5]), Told("b", log, [5])
    clock = Clock(10)
    clock.add(a, b)
    clock.post([Event(5, "fault", "a")], outside=True)
    clock.post([Event(5, "second", "b"), Event(5, "third", "a")])
    clock.run()
    assert log == [
        ("a", "works", 5),
        ("b", "works", 5),
        ("b", "second", 5),
        ("a", "third", 5),
        ("a", "fault", 5),
    ]


def test_an_answer_at_the_same_instant_comes_before_faults():
    log: list[tuple[str, str, int]] = []
    a = Told("a", log, answers={"ask": [Event(3, "answer", "a")]})
    clock = Clock(10)
    clock.add(a)
    clock.post([Event(3, "fault", "a")], outside=True)
    clock.post([Event(3, "ask", "a")])
    clock.run()
    assert [kind for _, kind, _ in log] == ["ask", "answer", "fault"]


def test_nothing_happens_at_the_horizon_but_work_reaches_it():
    log: list[tuple[str, str, int]] = []
    a = Told("a", log, [10])
    clock = Clock(10)
    clock.add(a)
    clock.post([Event(10, "late", "a"), Event(9, "last", "a")])
    clock.run()
    assert log == [("a", "last", 9), ("a", "works", 10)]


def test_who_has_nothing_to_say_is_not_asked():
    log: list[tuple[str, str, int]] = []
    a, quiet = Told("a", log, list(range(1, 50))), Told("quiet", log)
    clock = Clock(100)
    clock.add(a, quiet)
    clock.run()
    assert clock.crossings == 49 + 2  # and both at the end


def test_the_past_is_refused_and_names_are_given_once():
    clock = Clock(10)
    clock.add(Told("a", [], answers={"go": [Event(1, "back", "a")]}))
    clock.post([Event(4, "go", "a")])
    with pytest.raises(ValueError, match="it is 4 already"):
        clock.run()
    with pytest.raises(ValueError, match="two entities"):
        clock.add(Told("a", []))


def test_an_agenda_is_in_order_of_time_then_of_noting():
    agenda = Agenda()
    for time_ns, kind in ((7, "c"), (3, "a"), (7, "d"), (3, "b")):
        agenda.note(time_ns, kind, time_ns)
    assert (agenda.next_ns(), agenda.times("d")) == (3, [7])
    assert [agenda.pop()[0] for _ in range(4)] == ["a", "b", "c", "d"]
    assert agenda.next_ns() == NEVER


def test_what_is_dropped_does_not_happen_and_ranks_come_before_the_order_of_noting():
    agenda = Agenda()
    numbers = [agenda.note(5, kind, rank=rank) for kind, rank in (("b", 1), ("a", 0), ("c", 1))]
    gone = agenda.note(4, "gone")
    agenda.drop(gone)
    agenda.drop(numbers[0])
    assert agenda.next_ns() == 5
    assert [(agenda.next_ns(), agenda.pop()[0]) for _ in range(2)] == [(5, "a"), (5, "c")]
    assert agenda.next_ns() == NEVER


@dataclass(slots=True)
class Counting(LoneEntity):
    log: list[tuple[str, int]] = field(default_factory=list)

    def happen(self, kind: str, about: int) -> None:
        self.log.append((kind, self.now_ns))
        if about:
            self.later.note(self.now_ns + about - 1, "again")

    def settle(self) -> None:
        self.log.append(("settled", self.now_ns))


def test_alone_an_instant_is_settled_once_all_of_it_has_happened():
    made = Counting()
    made.later.note(3, "a", 1)  # and once more at the same instant
    made.later.note(3, "b", 0)
    made.later.note(7, "c", 3)
    assert run_alone(made, 9).log == [
        *(("a", 3), ("b", 3), ("again", 3), ("settled", 3)),
        *(("c", 7), ("settled", 7), ("again", 9), ("settled", 9)),
    ]


class Instants(DiscreteEntity):
    name = "own"

    def __init__(self, *times_ns: int) -> None:
        self.left, self.seen = list(times_ns), list[int]()

    def due_ns(self) -> int:
        return self.left[0] if self.left else NEVER

    def instant(self, now: int) -> None:
        self.seen.append(self.left.pop(0))


def test_instants_of_its_own_up_to_the_horizon_and_at_it():
    own = Instants(2, 5, 10, 11)
    run_alone(own, 10)
    assert own.seen == [2, 5, 10]
    run_alone(own)
    assert own.seen == [2, 5, 10, 11]

"""The feeder in the plainest way: what it means, one set at a time."""

from __future__ import annotations

from collections.abc import Sequence


class NaiveFeeder:
    """waits_for[i]: the nodes that node i waits for."""

    def __init__(self, waits_for: Sequence[Sequence[int]]) -> None:
        self.waits_for = [set(w) for w in waits_for]
        self.issued: set[int] = set()
        self.completed: set[int] = set()

    def ready(self) -> list[int]:
        begun = self.issued | self.completed
        return [i for i, w in enumerate(self.waits_for) if i not in begun and w <= self.completed]

    def next(self) -> int | None:
        found = self.ready()
        if not found:
            return None
        self.issued.add(found[0])
        return found[0]

    def complete(self, node: int) -> None:
        self.issued.remove(node)
        self.completed.add(node)

    def push_back(self, node: int) -> None:
        self.issued.remove(node)

    @property
    def done(self) -> bool:
        return len(self.completed) == len(self.waits_for)

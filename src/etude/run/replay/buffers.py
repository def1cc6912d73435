"""Memory of calls that use their own buffers. Two calls share a buffer if the first is waited for before the second is
issued."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Final

from etude.run.replay.program import CommKind, Program, StepKind
from etude.run.replay.sizes import ELEMENT

IN_PLACE: Final = (CommKind.ALL_REDUCE, CommKind.REDUCE, CommKind.BROADCAST)


class Buffers:
    """The input and output buffer of each call, and the size of each buffer."""

    def __init__(self, program: Program, dtype_of: Callable[[int], str], rows: Container[int] | None = None) -> None:
        """`dtype_of` returns the data type in which a call is sent. With `rows`, only these calls get buffers."""
        self.used: dict[int, tuple[int, int]] = {}
        """Call -> its input buffer and its output buffer."""
        self.sizes: dict[int, tuple[int, int]] = {}
        """Call -> number of elements of the two."""
        self.kind: list[str] = []
        self.elements: list[int] = []
        free: list[int] = []
        steps, comms = program.steps, program.comms
        for what, row in zip(steps.kind.tolist(), steps.row.tolist(), strict=True):
            if what not in (StepKind.COMM, StepKind.WAIT) or (rows is not None and row not in rows):
                continue
            if what == StepKind.COMM:
                self._give(row, comms, dtype_of(row), free)
            if what == StepKind.WAIT or not comms.is_async[row]:
                free += sorted(set(self.used[row]) - set(free))

    @property
    def size_bytes(self) -> int:
        return sum(count * ELEMENT[kind] for count, kind in zip(self.elements, self.kind, strict=True))

    def _give(self, row: int, comms: Any, dtype: str, free: list[int]) -> None:
        width, kind = ELEMENT[dtype], CommKind(int(comms.kind[row]))
        into, out = int(comms.in_bytes[row]) // width, int(comms.out_bytes[row]) // width
        if kind in IN_PLACE:
            into = out = max(into, out)
        first = self._take(dtype, into, free)
        second = first if kind in IN_PLACE else self._take(dtype, out, free)
        self.used[row], self.sizes[row] = (first, second), (into, out)

    def _take(self, dtype: str, elements: int, free: list[int]) -> int:
        fit = [at for at in free if self.kind[at] == dtype]
        if fit:
            enough = [at for at in fit if self.elements[at] >= elements]
            at = min(enough, key=self.elements.__getitem__) if enough else max(fit, key=self.elements.__getitem__)
            free.remove(at)
            self.elements[at] = max(self.elements[at], elements)
            return at
        self.kind.append(dtype)
        self.elements.append(elements)
        return len(self.kind) - 1


def own_rows(program: Program) -> set[int]:
    """Calls without usable tensors: only their sizes are known, or their group has lost members."""
    comms = program.comms
    names = {entry["name"] for entry in program.about.get("shrunk", {}).get("groups", [])}
    shrunk = {number for number, name in enumerate(program.group_names) if name in names}
    return {
        row
        for row in range(len(comms.kind))
        if int(comms.group[row]) in shrunk or not any(slot >= 0 for slot in (*comms.inputs[row], *comms.outputs[row]))
    }

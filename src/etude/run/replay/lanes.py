"""The streams that a player uses: as many as were recorded, and their events.

Needs only the standard library, NumPy and PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from etude.kernels.arrays import distinct_values
from etude.run.replay.program import NOTHING, Program, StepKind, StorageOrigin


class Lanes:
    """The streams of a player. False if the program has one stream, or is played on a CPU, which has none."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self._program, self._device = program, device
        names = distinct_values(program.steps.stream[program.steps.stream != NOTHING]).tolist()
        self._number = {name: k + 1 for k, name in enumerate(names)} if device.type == "cuda" else {}
        self._number[NOTHING] = 0
        self._streams: list[Any] = [None, *(torch.cuda.Stream(device) for _ in range(len(self._number) - 1))]
        """The main stream first: the one that is current when an iteration begins."""
        self._events: dict[int, Any] = {}
        self._current = 0
        self._home: dict[int, int] = {}
        """Storage -> stream on which it was allocated."""

    def __bool__(self) -> bool:
        return len(self._streams) > 1

    def begin(self) -> None:
        """Resets the state; called before the first step is written."""
        self._current, self._home = 0, {}

    def go_on(self) -> None:
        """Called before steps are written that follow others: the stream in use is not known."""
        self._current = -1

    @contextmanager
    def open(self) -> Iterator[None]:
        """Context of an iteration: all streams start after earlier work of the main stream, which waits for them at the
        end."""
        if not self:
            yield
            return
        main = self._streams[0] = torch.cuda.current_stream(self._device)
        for other in self._streams[1:]:
            other.wait_stream(main)
        try:
            yield
        finally:
            torch.cuda.set_stream(main)
            for other in self._streams[1:]:
                main.wait_stream(other)

    def around(self, at: int, lines: list[str], names: dict[str, Any]) -> list[str]:
        """The lines of a step, on its stream. Memory from another stream is kept until this stream has used it."""
        if not lines:
            return lines
        steps = self._program.steps
        stream, before = self._number[int(steps.stream[at])], []
        names["streams"] = self._streams
        if stream != self._current:
            self._current = stream
            names["use"] = torch.cuda.set_stream
            before = [f"use(streams[{stream}])"]
        return [*before, *lines, *self._kept(int(steps.kind[at]), int(steps.row[at]), stream)]

    def _kept(self, kind: int, row: int, stream: int) -> Iterator[str]:
        p = self._program
        if kind != StepKind.CALL:
            return
        for slot in {s for s in p.calls.inputs[row] if s != NOTHING}:
            storage = int(p.slots.storage[slot])
            if p.storages.origin[storage] != StorageOrigin.OUTSIDE and self._home.get(storage, 0) != stream:
                yield f"if v[{slot}] is not None and v[{slot}].is_cuda: v[{slot}].record_stream(streams[{stream}])"
        for slot in p.calls.outputs[row]:
            if slot != NOTHING:
                self._home.setdefault(int(p.slots.storage[slot]), stream)

    def event(self, kind: int, row: int, at: int, names: dict[str, Any]) -> list[str]:
        """The lines that record an event, or make a stream wait for one."""
        if not self:
            return []
        stream = self._number[int(self._program.steps.stream[at])]
        event = self._events.setdefault(row, torch.cuda.Event())
        names[f"e{row}"], names["streams"] = event, self._streams
        return [
            f"e{row}.record(streams[{stream}])" if kind == StepKind.EVENT else f"streams[{stream}].wait_event(e{row})"
        ]

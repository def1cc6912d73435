"""Writes the steps of a program as functions of plain Python, with operators bound to local names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from etude.run.replay.calling import OperatorCalls
from etude.run.replay.heap import touch_new_pages
from etude.run.replay.lanes import Lanes
from etude.run.replay.operators import remapped
from etude.run.replay.program import NOTHING, Program, StepKind
from etude.run.replay.stage import Stage
from etude.run.replay.stand_ins import StandInWork
from etude.run.replay.wording import contiguous, function, opened, text

CHUNK: Final = 400
"""Lines in one function, at least: few enough to be compiled quickly, enough to cost nothing per step."""


@dataclass(slots=True)
class CodeWriter:
    """Writes the steps of one rank as Python code."""

    program: Program
    stage: Stage
    calls: OperatorCalls
    lanes: Lanes
    work: StandInWork
    comms: Any
    """Issues communication; if None, communication is left out."""
    new_pages: int
    before: Callable[[int, int, dict[str, Any]], list[str]]
    """Returns the lines before a step, a wait or a pause, and adds the names that they use to the names."""
    mark: Callable[[], None]
    ends: list[int] = field(default_factory=list)
    """Last step of each function."""
    steps_of: list[list[int]] = field(default_factory=list)
    """For each function, the step of each of its lines."""

    def functions(self) -> Iterator[Callable[[], None]]:
        """The steps as functions. A function ends with the step that brings it to CHUNK lines."""
        last, count = self.calls.last_uses(), len(self.program)
        self.lanes.begin()
        self.ends, self.steps_of = [], []
        lines, of, names = list[str](), list[int](), self._names()
        for at in range(count):
            lines += self._step(at, last.get(at, []), names)
            of += [at] * (len(lines) - len(of))
            if len(lines) >= CHUNK:
                self.ends.append(at)
                self.steps_of.append(of)
                yield function(lines, names)
                lines, of, names = [], [], self._names()
        if lines:
            self.ends.append(count - 1)
            self.steps_of.append(of)
            yield function(lines, names)
        elif self.ends:
            self.ends[-1] = count - 1

    def part(self, first: int, end: int) -> tuple[Callable[[], None], list[int]]:
        """A function of the steps from `first` to `end`, both included, and the step of each of its lines."""
        last, names = self.calls.last_uses(), self._names()
        self.lanes.go_on()
        lines, of = ["pass"], [first]
        for at in range(first, end + 1):
            lines += self._step(at, last.get(at, []), names)
            of += [at] * (len(lines) - len(of))
        return function(lines, names), of

    def _names(self) -> dict[str, Any]:
        return {"v": self.stage.values}

    def _step(self, at: int, last: list[int], names: dict[str, Any]) -> list[str]:
        """The lines of a step, and one that lets go of the slots that no later step uses (`last`)."""
        steps = self.program.steps
        lines = self._lines(int(steps.kind[at]), int(steps.row[at]), at, names)
        lines = self.lanes.around(at, lines, names) if self.lanes else lines
        gone = [slot for slot in last if slot not in self.stage.pinned]
        if not gone or not self.calls.compute:
            return lines
        return [*lines, "=".join(f"v[{slot}]" for slot in gone) + "=None"]

    def _lines(self, kind: int, row: int, at: int, names: dict[str, Any]) -> list[str]:
        p = self.program
        before = self.before(kind, at, names)
        if kind == StepKind.CALL and self.calls.compute:
            return before + self._call_lines(row, at, names)
        if kind == StepKind.VIEW and self.calls.compute:
            base, slot = int(p.views.base[row]), int(p.views.slot[row])
            if slot in self.stage.pinned:
                return []
            layout = int(p.slots.layout[slot])
            shape = p.layouts.shape[layout]
            stride = p.layouts.stride[layout] or contiguous(shape)
            names["view"] = torch.as_strided
            return [f"v[{slot}]=view(v[{base}],{shape},{list(stride)},{int(p.layouts.offset[layout])})"]
        if kind == StepKind.STAND_IN and self.calls.compute:
            names[f"w{at}"] = self.work.of(p, row, int(p.steps.work_ns[at]))
            return [*before, f"w{at}()"]
        if kind in (StepKind.EVENT, StepKind.AWAIT) and self.calls.compute:
            return self.lanes.event(kind, row, at, names)
        if kind == StepKind.END:
            return before
        if kind == StepKind.MARK:
            names["mark"] = self.mark
            names["pages"] = touch_new_pages
            return [*before, "mark()", *([f"pages({self.new_pages})"] if self.new_pages else [])]
        if kind == StepKind.COMM and self.comms is not None:
            names["comms"] = self.comms
            return [*before, f"comms.issue({row}, v)"]
        if kind == StepKind.COMM and self.calls.compute:
            return [f"v[{slot}].zero_()" for slot in self.calls.whole_numbers(row)]
        if kind == StepKind.WAIT and self.comms is not None:
            names["comms"] = self.comms
            return [*before, f"comms.wait({row})"]
        return []

    def _call_lines(self, row: int, at: int, names: dict[str, Any]) -> list[str]:
        p = self.program
        op, form = int(p.calls.op[row]), int(p.calls.form[row])
        if row in self.calls.failures:
            work = self.work.lasting(p, p.ops[op], int(p.steps.work_ns[at]))
            names[f"w{at}"] = work
            return [f"w{at}()"] if work is not None else []
        args = self.calls.fixed.put(row, self.calls.arguments(json.loads(p.forms[form]), p.calls.inputs[row]))
        schema = None if self.calls.is_code(op) else remapped(p.ops[op], self.stage.device.type)
        if schema is not None and schema.quick is not None and (op, form) not in self.calls.not_quick:
            names[f"q{op}"] = schema.quick
            given = [text(each, names, False) for each in args]
            named = (f"{name}={each}" for name, each in zip(schema.named, given[schema.positional :], strict=False))
            call = f"q{op}({','.join((*given[: schema.positional], *named))})"
        else:
            names[f"f{op}"] = self.calls.operator(p.ops[op])
            call = f"f{op}({text(args, names)})"
        outputs = p.calls.outputs[row]
        kept = [slot if slot not in self.stage.pinned else NOTHING for slot in outputs]
        if all(slot == NOTHING for slot in kept):
            return [call]
        schema = schema or remapped(p.ops[op], self.stage.device.type)
        if schema.single:
            return [f"v[{kept[0]}]={call}"]
        if schema.flat:
            return [f"r={call}", *(f"v[{slot}]=r[{k}]" for k, slot in enumerate(kept) if slot != NOTHING), "r=None"]
        names["opened"] = opened
        return [f"r=list(opened({call}))", *(f"v[{s}]=r[{k}]" for k, s in enumerate(kept) if s != NOTHING), "r=None"]

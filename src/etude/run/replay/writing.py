"""Writes the steps of a program as functions of plain Python, with operators bound to local names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from etude.run.replay.calling import Calls
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
class Writer:
    """Writes the steps of one rank as Python code."""

    program: Program
    stage: Stage
    calls: Calls
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

    def functions(self) -> Iterator[Callable[[], None]]:
        """The steps as functions. A function ends with the step that brings it to CHUNK lines."""
        p, last = self.program, self.calls.last_uses()
        self.lanes.begin()
        self.ends = []
        lines: list[str] = []
        names: dict[str, Any] = {"v": self.stage.values}
        for at, (kind, row) in enumerate(zip(p.steps.kind.tolist(), p.steps.row.tolist(), strict=True)):
            made = self._lines(kind, row, at, names)
            lines += self.lanes.around(at, made, names) if self.lanes else made
            gone = [s for s in last.get(at, ()) if s not in self.stage.pinned]
            if gone and self.calls.compute:
                lines.append("=".join(f"v[{slot}]" for slot in gone) + "=None")
            if len(lines) >= CHUNK:
                self.ends.append(at)
                yield function(lines, names)
                lines, names = [], {"v": self.stage.values}
        if lines:
            self.ends.append(len(p) - 1)
            yield function(lines, names)
        elif self.ends:
            self.ends[-1] = len(p) - 1

    def _lines(self, kind: int, row: int, at: int, names: dict[str, Any]) -> list[str]:
        p = self.program
        before = self.before(kind, at, names)
        if kind == StepKind.CALL and self.calls.compute:
            return before + self._call_lines(row, names)
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

    def _call_lines(self, row: int, names: dict[str, Any]) -> list[str]:
        if row in self.calls.failures:
            return []
        p = self.program
        op, form = int(p.calls.op[row]), int(p.calls.form[row])
        args = self.calls.arguments(json.loads(p.forms[form]), p.calls.inputs[row])
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

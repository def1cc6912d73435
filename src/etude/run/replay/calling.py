"""The calls of a program: their operators and arguments, and a rehearsal, step by step, to see what works here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from warnings import catch_warnings, simplefilter

import torch

from etude.base.errors import EtudeError
from etude.run.replay.compiled import compiled_call, triton_call
from etude.run.replay.device_failures import DeviceFailedError, is_broken
from etude.run.replay.fixed import FixedOperands
from etude.run.replay.operators import UnknownOperatorError, operator, remapped
from etude.run.replay.own_cost import COMM, UNCLEAR, Expected
from etude.run.replay.program import COMPILED_SPACE, NOTHING, TRITON_SPACE, StepKind, StorageOrigin
from etude.run.replay.stage import Stage
from etude.run.replay.wording import Slot, filled_in, opened


class LeftOutError(EtudeError):
    """An operator is not called, because the device failed when it was called before."""


@dataclass(slots=True)
class CallFailure:
    """A call that cannot be made here, and why."""

    op: str
    why: str


class OperatorCalls:
    """The calls of one rank. Without `compute` no operator is called. `without`: operators that are not to be called,
    and why."""

    def __init__(self, stage: Stage, compute: bool, without: Mapping[str, str] | None = None) -> None:
        self.stage, self.program, self.compute = stage, stage.program, compute
        self.without = without or {}
        self.fixed = FixedOperands(stage)
        self.failures: dict[int, CallFailure] = {}
        """Rows of `calls` that failed and are played as stand-ins."""
        self.not_quick: set[tuple[int, int]] = set()
        """(operator, form) pairs that PyTorch's Python functions do not accept."""
        self._code: dict[str, Callable[..., Any]] = {}

    def rehearse(self) -> None:
        """Plays every step once. A call that fails becomes a stand-in; a result with another shape than recorded is
        pinned."""
        p = self.program
        values = list(self.stage.values)
        last = self.last_uses()
        for at, (kind, row) in enumerate(zip(p.steps.kind.tolist(), p.steps.row.tolist(), strict=True)):
            if kind == StepKind.CALL and self.compute:
                self._rehearse_call(row, values)
            elif kind == StepKind.VIEW and self.compute:
                base, slot = int(p.views.base[row]), int(p.views.slot[row])
                values[slot] = self.stage.viewed(values[base], slot)
            elif kind == StepKind.COMM:
                for slot in self.whole_numbers(row):
                    values[slot].zero_()
            for slot in last.get(at, ()):
                if values[slot] is not self.stage.values[slot]:
                    values[slot] = None

    def _rehearse_call(self, row: int, values: list[Any]) -> None:
        p = self.program
        name, outputs, got = p.ops[int(p.calls.op[row])], p.calls.outputs[row], list[Any]()
        try:
            if name in self.without:
                raise LeftOutError(self.without[name])
            given = self.arguments(json.loads(p.forms[int(p.calls.form[row])]), p.calls.inputs[row])
            bounded = self.fixed.find(row, name, given, values)
            got = list(opened(self._called(row, name, filled_in(self.fixed.put(row, given), values))))
            if self.stage.on_device:  # an error of the device belongs to this call
                self.stage.synchronise()
            if not bounded and self.is_unsteady(name):
                got = []
        except torch.OutOfMemoryError:
            raise
        except Exception as problem:
            self.lose(row, problem)
        for k, slot in enumerate(outputs):
            if slot != NOTHING:
                made = got[k] if k < len(got) else None
                values[slot] = made if self.stage.is_as_recorded(made, slot) else self.stage.pin(slot)

    def lose(self, row: int, problem: Exception) -> None:
        """Makes a call that failed a stand-in from now on. Raises DeviceFailedError if the device cannot be used any
        more, by this process."""
        name = self.program.ops[int(self.program.calls.op[row])]
        lines = str(problem).strip().splitlines() or [""]
        left_out = isinstance(problem, LeftOutError)
        why = lines[0][:300] if left_out else f"{type(problem).__name__}: {lines[0][:200]}"
        if not left_out and is_broken(self.stage.device):
            raise DeviceFailedError({name: why}, where=f"rank {self.program.about['rank']}") from None
        self.failures[row] = CallFailure(name, why)

    def is_unsteady(self, name: str) -> bool:
        """Whether the shape of an operator's result depends on values."""
        return not self.is_compiled(name) and remapped(name, self.stage.device.type).dynamic

    def _called(self, row: int, name: str, args: list[Any]) -> Any:
        """Makes a call and returns its result; finds out whether PyTorch's Python function accepts these arguments."""
        call = self.operator(name)
        key = int(self.program.calls.op[row]), int(self.program.calls.form[row])
        if not self.is_code(key[0]) and key not in self.not_quick:
            bound = remapped(name, self.stage.device.type)
            if bound.quick is not None:
                named = dict(zip(bound.named, args[bound.positional :], strict=False))
                with suppress(TypeError, ValueError, Warning), catch_warnings():  # raised before any work
                    simplefilter("error")  # a deprecated order of arguments
                    return bound.quick(*args[: bound.positional], **named)
            self.not_quick.add(key)
        return call(*args)

    def arguments(self, form: Any, inputs: list[int]) -> Any:
        """The arguments of a form, with `Slot(k)` in place of tensors."""
        if isinstance(form, list):
            return [self.arguments(each, inputs) for each in form]
        if isinstance(form, dict):
            if "t" in form:
                return Slot(inputs[form["t"]])
            if "device" in form:
                return self.stage.place(form["device"])
            return float(form["f"])
        return form

    def operator(self, name: str) -> Callable[..., Any]:
        """The function to call: an operator of PyTorch, or compiled code."""
        if not self.is_compiled(name):
            return operator(name, self.stage.device.type)
        if name not in self._code:
            if self.stage.on_device != self.stage.with_host_memory:
                raise UnknownOperatorError("the code was compiled for a different kind of device")
            files = self.program.about["compiled"]
            if name.startswith(COMPILED_SPACE):
                self._code[name] = compiled_call(files[name.removeprefix(COMPILED_SPACE)]["code"])
            else:
                kernel, _, file = name.removeprefix(TRITON_SPACE).partition("@")
                self._code[name] = triton_call(files[file]["code"], kernel)
        return self._code[name]

    def is_code(self, op: int) -> bool:
        """Whether an entry of `ops` is compiled code rather than an operator."""
        return self.is_compiled(self.program.ops[op])

    @staticmethod
    def is_compiled(name: str) -> bool:
        return name.startswith((COMPILED_SPACE, TRITON_SPACE))

    def whole_numbers(self, row: int) -> list[int]:
        """Output slots of integer type of a communication. They hold indices or counts, which must not be arbitrary
        data of new memory."""
        p = self.program
        outputs = [slot for slot in p.comms.outputs[row] if slot != NOTHING]
        return [slot for slot in outputs if "int" in p.dtypes[int(p.layouts.dtype[p.slots.layout[slot]])]]

    def last_uses(self) -> dict[int, list[int]]:
        """Step -> slots that no later step uses. Storages from outside are not included."""
        p, last = self.program, {}
        for at, (kind, row) in enumerate(zip(p.steps.kind.tolist(), p.steps.row.tolist(), strict=True)):
            for slot in self._named(kind, row):
                last[slot] = at
        found: dict[int, list[int]] = {}
        for slot, at in last.items():
            if p.storages.origin[p.slots.storage[slot]] != StorageOrigin.OUTSIDE:
                found.setdefault(at, []).append(slot)
        return found

    def _named(self, kind: int, row: int) -> Iterable[int]:
        p = self.program
        if kind == StepKind.CALL:
            return [s for s in (*p.calls.inputs[row], *p.calls.outputs[row]) if s != NOTHING]
        if kind == StepKind.VIEW:
            return [int(p.views.base[row]), int(p.views.slot[row])]
        if kind in (StepKind.COMM, StepKind.WAIT):
            return [s for s in (*p.comms.inputs[row], *p.comms.outputs[row]) if s != NOTHING]
        return []

    def expected(self, upto: int, with_comms: bool) -> Iterator[Expected]:
        """Steps before `upto`, to be matched with a profiler's events."""
        p = self.program
        for at, (kind, row) in enumerate(zip(p.steps.kind[:upto].tolist(), p.steps.row[:upto].tolist(), strict=True)):
            if kind == StepKind.CALL and self.compute:
                op = p.ops[int(p.calls.op[row])]
                plain = row not in self.failures and not self.is_code(int(p.calls.op[row]))
                yield Expected(at, kind, op.partition(".")[0] if plain else UNCLEAR, row)
            elif kind == StepKind.STAND_IN and self.compute:
                yield Expected(at, kind, UNCLEAR, row)
            elif kind in (StepKind.COMM, StepKind.WAIT) and with_comms:
                yield Expected(at, kind, COMM, row)

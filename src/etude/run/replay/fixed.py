"""Operands with fixed values: what a player passes in place of indices, masks and offsets that its steps compute.

What steps compute differs from the recorded program, and from iteration to iteration, since the numbers do. A tensor
that selects rows or decides a shape therefore keeps the values of the rehearsal if they were valid, and is prepared
otherwise. Needs only the standard library, NumPy and PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from etude.run.replay.operands import OperandNeed, needs, operand
from etude.run.replay.program import NOTHING, Program, StepKind, StorageOrigin
from etude.run.replay.stage import Stage
from etude.run.replay.valid_values import copied, is_valid, prepared
from etude.run.replay.wording import Slot, filled_in


class FixedOperands:
    """The fixed operands of one rank. Those of the same operator, shape and requirement share their memory."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._program = stage, stage.program
        self._changes = changing(stage.program)
        self._shared: dict[tuple[Any, ...], torch.Tensor] = {}
        self._of: dict[int, dict[tuple[int, int], torch.Tensor]] = {}
        """Row of `calls` -> (argument, item) -> its tensor."""

    def find(self, row: int, name: str, given: list[Any], values: list[Any]) -> bool:
        """Checks the operands of a call before it is made for the first time, and fixes those that may change. Returns
        whether the operator requires anything of its operands."""
        filled = filled_in(given, values)
        found = needs(name, filled, self._made(row))
        for need in found:
            tensor, slot = operand(filled, need), operand(given, need)
            valid = is_valid(tensor, need)
            kept = need.lasting or (isinstance(slot, Slot) and not self._changes[self._storage(slot.number)])
            if not valid or not kept:
                self._of.setdefault(row, {})[need.argument, need.item] = self._fixed(name, tensor, need, valid)
        return bool(found)

    def _fixed(self, name: str, tensor: torch.Tensor, need: OperandNeed, valid: bool) -> torch.Tensor:
        key = (name, need, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if key not in self._shared:
            self._shared[key] = copied(tensor) if valid else prepared(tensor, need, self._stage.generator)
        return self._shared[key]

    def put(self, row: int, given: list[Any]) -> list[Any]:
        """The arguments of a call, with its fixed operands."""
        for (argument, item), tensor in self._of.get(row, {}).items():
            if item == NOTHING:
                given[argument] = tensor
            else:
                given[argument][item] = tensor
        return given

    def _storage(self, slot: int) -> int:
        return int(self._program.slots.storage[slot])

    def _made(self, row: int) -> list[list[int]]:
        """The recorded shapes of the results; empty for one that nothing uses."""
        p = self._program
        return [p.layouts.shape[int(p.slots.layout[s])] if s != NOTHING else [] for s in p.calls.outputs[row]]


def changing(program: Program) -> Any:
    """For each storage, whether its contents may change while the program is played: steps make it or write to it."""
    found = program.storages.origin != StorageOrigin.OUTSIDE
    writes = np.array(["!" in schema or not schema for schema in program.schemas] + [False])
    for row in program.steps.row[program.steps.kind == StepKind.CALL].tolist():
        if writes[int(program.calls.op[row])]:
            slots = [slot for slot in program.calls.inputs[row] if slot != NOTHING]
            found[program.slots.storage[slots]] = True
    outputs = program.comms.outputs.values
    found[program.slots.storage[outputs[outputs != NOTHING]]] = True
    return found

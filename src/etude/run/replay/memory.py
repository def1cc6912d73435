"""Storages and slots of a program while its steps are planned: which tensor an address means at a given step.

The recording identifies memory by its address. A result at an address that was not among the arguments is new memory,
even if the address was used before; a tensor read at an address where nothing was made comes from outside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from etude.run.replay.arguments import RecordedTensor
from etude.run.replay.builder import ProgramBuilder
from etude.run.replay.program import NOTHING, Fill, StorageOrigin

_WHOLE: Final = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
SCALES: Final = 65536
"""Vectors up to this length are taken to be scales or step counts."""


@dataclass(slots=True)
class HeldStorage:
    """The storage at an address, until another one replaces it."""

    storage: int
    outside: bool
    extent_bytes: int
    slots: dict[tuple[Any, ...], int] = field(default_factory=dict)
    latest: int = NOTHING
    """The slot that was used most recently."""
    copied: list[HeldStorage] = field(default_factory=list)
    """Storages from which the integers in this one were copied."""
    bound: int = 0
    """Integers in this storage are below this; 0 if unknown."""
    positive: bool = False
    average: bool = False
    square: bool = False
    told: Fill | None = None
    """The contents that a call requires, if any."""


class AddressMap:
    """Maps the addresses of a recording to the storages that are there now."""

    def __init__(self, builder: ProgramBuilder) -> None:
        self._b = builder
        self._now: dict[tuple[int, str], HeldStorage] = {}
        self._outside: dict[tuple[int, str], HeldStorage] = {}
        self._first: dict[int, RecordedTensor] = {}
        """The tensor as which each storage from outside was first used."""

    def read(self, tensor: RecordedTensor) -> int:
        """The slot of a tensor that is about to be read or written."""
        held = self.held(tensor)
        slot = held.slots.get(tensor.look, NOTHING)
        if slot == NOTHING:
            slot = self._slot(held, tensor)
            if not held.outside:
                self._b.view(held.latest, slot)
        held.latest = slot
        return slot

    def held(self, tensor: RecordedTensor) -> HeldStorage:
        held = self._now.get(tensor.place)
        extent = tensor.extent_bytes
        if held is not None and (held.outside or extent <= held.extent_bytes):
            if held.outside and extent > held.extent_bytes:
                held.extent_bytes = extent
                self._b.storages[held.storage][0] = extent
            return held
        return self._from_outside(tensor)

    def made(self, tensor: RecordedTensor, given: set[tuple[int, str]]) -> int:
        """The slot that a result becomes; NOTHING if the tensor already exists. `given`: the places of the
        arguments."""
        if tensor.place in given and tensor.place in self._now:
            held = self._now[tensor.place]
            if tensor.look in held.slots:
                return NOTHING
            if tensor.extent_bytes <= held.extent_bytes or held.outside:
                held.extent_bytes = max(held.extent_bytes, tensor.extent_bytes)
                if held.outside:
                    self._b.storages[held.storage][0] = held.extent_bytes
                    self._slot(held, tensor)  # prepared once, since a view of permanent memory costs nothing
                    return NOTHING
                held.latest = self._slot(held, tensor)
                return held.latest
        held = HeldStorage(self._b.storage(tensor.extent_bytes, tensor.device), False, tensor.extent_bytes)
        self._now[tensor.place] = held
        held.latest = self._slot(held, tensor)
        return held.latest

    def outside(self, tensor: RecordedTensor) -> int:
        """The slot of a tensor made by something that is not played: it is treated as coming from outside."""
        held = self._from_outside(tensor)
        return held.slots.get(tensor.look, NOTHING) if tensor.look in held.slots else self._slot(held, tensor)

    def _from_outside(self, tensor: RecordedTensor) -> HeldStorage:
        """The storage from outside at this address. There is one for each address, so that no more memory is used than
        was recorded."""
        held = self._outside.get(tensor.place)
        if held is None:
            storage = self._b.storage(tensor.extent_bytes, tensor.device, StorageOrigin.OUTSIDE)
            held = self._outside[tensor.place] = HeldStorage(storage, True, tensor.extent_bytes)
            self._first[storage] = tensor
        elif tensor.extent_bytes > held.extent_bytes:
            held.extent_bytes = tensor.extent_bytes
            self._b.storages[held.storage][0] = tensor.extent_bytes
        self._now[tensor.place] = held
        return held

    def _slot(self, held: HeldStorage, tensor: RecordedTensor) -> int:
        slot = self._b.slot(held.storage, tensor.dtype, tensor.shape, tensor.stride, tensor.offset)
        held.slots[tensor.look] = slot
        return slot

    # -- what numbers may be -------------------------------------------------------------------------------------------

    def below(self, tensor: RecordedTensor, bound: int) -> None:
        """Declares that the integers in this tensor are below `bound`, since they are indices."""
        if bound > 0 and tensor.dtype in _WHOLE:
            self._bound(self.held(tensor), bound, 0)

    def _bound(self, held: HeldStorage, bound: int, depth: int) -> None:
        if not held.bound or bound < held.bound:
            held.bound = bound
            if depth < 16:
                for source in held.copied:
                    self._bound(source, bound, depth + 1)

    def copies(self, source: RecordedTensor, result: RecordedTensor) -> None:
        """Declares that the integers of a result come from `source`."""
        if source.dtype in _WHOLE and result.dtype in _WHOLE and source.place != result.place:
            self._now[result.place].copied.append(self.held(source))

    def average(self, tensor: RecordedTensor) -> None:
        self.held(tensor).average = True

    def square(self, tensor: RecordedTensor) -> None:
        self.held(tensor).square = True

    def positive(self, tensor: RecordedTensor) -> None:
        self.held(tensor).positive = True

    def told(self, tensor: RecordedTensor, fill: Fill) -> None:
        """Declares the contents of this memory, if it comes from outside. The first declaration counts."""
        held = self.held(tensor)
        if held.told is None:
            held.told = fill

    def fill(self) -> None:
        """Sets the contents of each storage from outside. Called at the end, when all uses are known."""
        moments = any(held.average for held in self._outside.values())
        for held in self._outside.values():
            first = self._first[held.storage]
            dtype = first.dtype
            if dtype in _WHOLE:
                self._b.fill(held.storage, Fill.INTEGERS, 0, max(held.bound, 1))
            elif moments and (held.average or held.square):
                self._b.fill(held.storage, Fill.AVERAGES if held.average else Fill.SQUARES)
            elif dtype == "bool" or held.told == Fill.NONE:
                self._b.fill(held.storage, Fill.NONE)
            elif held.told is not None:
                self._b.fill(held.storage, held.told)
            elif len(first.shape) < 2 and first.numel <= SCALES:  # scales of norms: small ones make gradients vanish
                self._b.fill(held.storage, Fill.ONES)
            else:
                self._b.fill(held.storage, Fill.POSITIVE if held.positive else Fill.NORMAL)

"""The tensors that a player works on: storages are allocated and filled before the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from etude.run.replay.program import NOTHING, Fill, Program, StorageOrigin
from etude.run.replay.wording import contiguous

_RANDOM: Final = (Fill.NORMAL, Fill.POSITIVE, Fill.UNIT, Fill.AVERAGES, Fill.SQUARES)


class Stage:
    """The tensors of one rank on a device."""

    def __init__(self, program: Program, device: torch.device, seed: int) -> None:
        self.program, self.device = program, device
        self.on_device = device.type != "cpu"
        self.with_host_memory = any(not name.startswith("cpu") for name in program.devices)
        self.values: list[Any] = [None] * len(program.slots.storage)
        """Slot -> its tensor, while it exists."""
        self.pinned: set[int] = set()
        """Slots for which the call does not return the recorded shape, for example because it depends on values: they
        hold a prepared tensor as recorded."""
        self.held: dict[int, torch.Tensor] = {}
        """Storage -> its memory, if it exists before the first step."""
        self.dtypes = [getattr(torch, name) for name in program.dtypes]
        self.generator = torch.Generator().manual_seed(seed)

    def place(self, recorded: str) -> torch.device:
        """The device for a recorded device: the CPU for host memory of a recording that also has device memory."""
        return torch.device("cpu") if recorded.startswith("cpu") and self.with_host_memory else self.device

    def fill(self) -> None:
        """Makes the tensors that exist before the first step."""
        p = self.program
        outside = np.flatnonzero(p.storages.origin == StorageOrigin.OUTSIDE).tolist()
        memory = {row: self._filled(row) for row in outside}
        for slot, storage in enumerate(p.slots.storage.tolist()):
            if storage in memory:
                self.values[slot] = self._look(memory[storage], int(p.slots.layout[slot]))
        self.held = memory

    def _filled(self, row: int) -> torch.Tensor:
        """The filled memory of a storage, as bytes."""
        p = self.program
        size, place = int(p.storages.size_bytes[row]), self.place(p.devices[int(p.storages.device[row])])
        fill, low, high = Fill(int(p.storages.fill[row])), int(p.storages.low[row]), int(p.storages.high[row])
        slot = int(np.flatnonzero(p.slots.storage == row)[0]) if (p.slots.storage == row).any() else NOTHING
        dtype = self.dtypes[int(p.layouts.dtype[p.slots.layout[slot]])] if slot != NOTHING else torch.uint8
        count = -(-max(size, 1) // dtype.itemsize)
        if fill == Fill.INTEGERS:
            high = min(high, torch.iinfo(dtype).max)
            made = torch.randint(low, max(high, low + 1), (count,), generator=self.generator, dtype=dtype)
            return made.to(place).view(torch.uint8)
        made = torch.zeros(count, dtype=dtype, device=place)
        if fill in _RANDOM and (dtype.is_floating_point or dtype.is_complex):
            spread = 1.0 if fill == Fill.UNIT else 0.02
            positive = fill in (Fill.POSITIVE, Fill.SQUARES)
            if dtype.itemsize == 1:  # floats of 8 bits have hardly any operators
                drawn = torch.randn(count, generator=self.generator).mul_(spread)
                made.copy_(drawn.abs_() if positive else drawn)
            else:
                seeded = torch.Generator(place).manual_seed(row)
                made.normal_(0.0, spread, generator=seeded)
                if positive and dtype.is_floating_point:
                    made.abs_()
        elif fill == Fill.ONES:
            made.fill_(1)
        return made.view(torch.uint8)

    def _look(self, memory: torch.Tensor, layout: int) -> torch.Tensor:
        """A tensor with this layout in this memory."""
        p = self.program
        shape, stride = p.layouts.shape[layout], p.layouts.stride[layout]
        dtype, offset = self.dtypes[int(p.layouts.dtype[layout])], int(p.layouts.offset[layout])
        found = torch.empty(0, dtype=dtype, device=memory.device)
        found.set_(memory.untyped_storage(), offset, shape, stride or contiguous(shape))
        return found

    def fresh(self, slot: int) -> torch.Tensor:
        """A new tensor of zeros with the layout of a slot."""
        p = self.program
        storage, layout = int(p.slots.storage[slot]), int(p.slots.layout[slot])
        place = self.place(p.devices[int(p.storages.device[storage])])
        size = max(int(p.storages.size_bytes[storage]), 1)
        return self._look(torch.zeros(size, dtype=torch.uint8, device=place), layout)

    def pin(self, slot: int) -> torch.Tensor:
        """Has a slot hold a prepared tensor from now on, and returns it."""
        self.pinned.add(slot)
        self.values[slot] = self.fresh(slot)
        return self.values[slot]

    def restore(self) -> None:
        """Makes prepared tensors again that a part of an iteration let go."""
        for slot in self.pinned:
            if self.values[slot] is None:
                self.values[slot] = self.fresh(slot)

    def is_as_recorded(self, made: Any, slot: int) -> bool:
        """Whether a result has the recorded shape and data type, and is in the memory of the recorded kind."""
        p = self.program
        layout, storage = int(p.slots.layout[slot]), int(p.slots.storage[slot])
        return (
            isinstance(made, torch.Tensor)
            and list(made.shape) == p.layouts.shape[layout]
            and made.dtype == self.dtypes[int(p.layouts.dtype[layout])]
            and made.device.type == self.place(p.devices[int(p.storages.device[storage])]).type
        )

    def synchronise(self) -> None:
        """Waits for the device, which reports errors of earlier calls."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def viewed(self, base: torch.Tensor, slot: int) -> torch.Tensor:
        """A slot as a view of a tensor; if the tensor's type differs or its memory is too small, a pinned tensor of its
        own."""
        p = self.program
        layout = int(p.slots.layout[slot])
        shape, stride = p.layouts.shape[layout], p.layouts.stride[layout]
        dtype, offset = self.dtypes[int(p.layouts.dtype[layout])], int(p.layouts.offset[layout])
        stride = stride or contiguous(shape)
        reach = (offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1) * dtype.itemsize
        if dtype == base.dtype and (0 in shape or reach <= base.untyped_storage().nbytes()):
            return base.as_strided(shape, stride, offset)
        return self.pin(slot)

    def moments(self, iteration: Callable[[], None]) -> None:
        """Prepares the moments of an optimizer. They are 0 where the gradient is 0, as in rows that no index selects:
        on some CPUs the root of 0 takes 15 times as long. Elsewhere second moments get random values as large as
        before, so that weights hardly change.
        """
        fill = self.program.storages.fill
        of = {
            which: [self._typed(row) for row in np.flatnonzero(fill == which).tolist() if row in self.held]
            for which in (Fill.AVERAGES, Fill.SQUARES)
        }
        if not of[Fill.SQUARES]:
            return
        for moment in (*of[Fill.AVERAGES], *of[Fill.SQUARES]):
            moment.zero_()
        iteration()
        for moment in of[Fill.SQUARES]:
            moment.copy_(
                torch.where(moment != 0, torch.randn(moment.shape, generator=self.generator).abs() * 0.02, 0.0)
            )

    def _typed(self, row: int) -> torch.Tensor:
        """The memory of a storage as a tensor of the data type of its first slot."""
        slot = int(np.flatnonzero(self.program.slots.storage == row)[0])
        return self.held[row].view(self.dtypes[int(self.program.layouts.dtype[self.program.slots.layout[slot]])])

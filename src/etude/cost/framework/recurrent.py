"""Recurrent networks of cuDNN: in each layer and direction one time step after another.

    recurrent_ns("aten::_cudnn_rnn", shapes, "fp32", device)

The products of what is read are taken for all time steps at once. The products of the state are small and wait for one
another, so that the library's own time for a time step decides: it issues them, the gates and what orders its streams
from the host, for all layers and directions in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from etude.cost import ops
from etude.cost.compute import compute_time_ns
from etude.cost.ops import OpTable, Work
from etude.machine.system import Device

FORWARD: Final = "aten::_cudnn_rnn"
BACKWARD: Final = "aten::_cudnn_rnn_backward"
STEP_NS = 22_200.0
"""Of the library for a time step of one layer and direction, forward or backward. Fitted to two programs on one H200
(`benchmarks/fit_recurrent.py`); a third one shows how good it is."""
TF32: Final = "tf32"
"""What cuDNN takes for 32 bits, unless a program says otherwise (`torch.backends.cudnn.allow_tf32`)."""
Shape = Sequence[int]


class RecurrentLayers(NamedTuple):
    """A call, by the shapes of its tensors."""

    steps: int
    batch: int
    inputs: tuple[int, ...]
    """Width of what each layer and direction reads."""
    columns: int
    """Of the gates together."""
    state: int
    """Width of what one time step gives the next."""

    @property
    def rows(self) -> int:
        return self.steps * self.batch

    def works(self, dtype: str, *, backward: bool) -> tuple[list[Work], list[Work]]:
        """(For all time steps at once, of each layer and direction; of one time step in one of these.)"""
        rows, columns, state = self.rows, self.columns, self.state
        read = [ops.matmul(rows, columns, width, dtype=dtype) for width in self.inputs]
        if backward:
            read += [ops.matmul(rows, width, columns, dtype=dtype) for width in self.inputs]  # gradients of weights
            read += [ops.matmul(state, columns, rows, dtype=dtype) for _ in self.inputs]
        gates = ops.elementwise(self.batch * columns, inputs=2, dtype="fp32" if dtype == TF32 else dtype)
        return read, [ops.matmul(self.batch, columns, state, dtype=dtype), gates]


def layers_of(shapes: Sequence[Shape]) -> RecurrentLayers | None:
    """Of what is read, the weights, all weights as one, and the states, the first tensor of three dimensions after
    these; None: they are not those of a recurrent network."""
    if not shapes:
        return None
    given, *others = shapes
    at = next((i for i, shape in enumerate(others) if len(shape) == 3), 0)
    if at < 2:
        return None
    matrices = [shape for shape in others[: at - 1] if len(shape) == 2]
    units, batch, state = others[at]
    if not units or not batch or len(matrices) % units:
        return None
    inputs = tuple(shape[1] for shape in matrices[:: len(matrices) // units])
    return RecurrentLayers(int(np.prod(given[:-1])) // batch, batch, inputs, matrices[0][0], state)


def is_timed(name: str, dtype: str) -> bool:
    """Whether it is a recurrent network in 32 bits. In 16 bits the library has kernels that hold the weights for all
    time steps, of which nothing is known."""
    return name in (FORWARD, BACKWARD) and dtype == "fp32"


def recurrent_ns(name: str, shapes: Sequence[Shape], dtype: str, device: Device) -> float | None:
    """Time of a call; None: of such operators nothing is known here."""
    found = layers_of(shapes) if is_timed(name, dtype) else None
    if found is None:
        return None
    narrow = TF32 if TF32 in device.peak_flop_per_s else dtype
    read, step = found.works(narrow, backward=name == BACKWARD)
    times = compute_time_ns(device, OpTable.of([*read, *step])).astype(np.float64)
    whole, each = times[: len(read)].sum(), times[len(read) :].sum()
    return float(whole + len(found.inputs) * found.steps * max(each, STEP_NS))

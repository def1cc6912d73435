"""Recurrent networks on a CUDA device: one operator of cuDNN, where the host takes one for each layer or each time.

What its forward pass keeps for the backward one, and what both need while they work, is counted as cuDNN asks for it:
`benchmarks/measure_recurrent.py` measures both, and a test holds these sizes to what an H200 said.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple

MODES: Final = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
KEPT_OF_MODE: Final = (1, 1, 5, 6)
"""Numbers that a layer keeps of each element of its state at each time: gates, cells, and what makes them."""
GATES: Final = (1, 1, 4, 3)
WORKED_WITH: Final = ((4.8, 12.4), (4.8, 12.4), (5.6, 15.0), (4.9, 12.9))
"""Numbers that either pass works with for each element of a layer's state at each time, whatever the number of layers;
of one direction and of two. Medians of what was measured, which the script prints."""
PRODUCTS_BYTES: Final = 8 << 20
"""For the products of a layer and direction."""
LSTM: Final = MODES["lstm"]
HEADER_BYTES: Final = 256


class RecurrentWork(NamedTuple):
    """What a pass works on; `elements` are those of a layer's state in one direction, at all times together."""

    mode: int
    elements: int
    layers: int
    directions: int
    dropout: bool
    element_size: int

    @property
    def kept_bytes(self) -> int:
        """What a forward pass keeps."""
        between = (self.layers - 1) * self.directions
        numbers = KEPT_OF_MODE[self.mode] * self.layers * self.directions + between
        masks = between * self.directions * self.elements // 8 if self.dropout else 0
        return HEADER_BYTES + numbers * self.elements * self.element_size + masks

    def scratch_bytes(self, weights: int) -> int:
        """What a pass needs while it works: a copy of its `weights` numbers among it."""
        numbers = WORKED_WITH[self.mode][self.directions - 1] + float(self.dropout and self.directions == 1)
        return round((numbers * self.elements + weights) * self.element_size) + PRODUCTS_BYTES * (
            self.layers * self.directions
        )


class RecurrentCall(NamedTuple):
    """What cuDNN's operator is given."""

    given: Any
    weights: Any
    weights_of_layer: int
    flat: Any
    hidden: Any
    cell: Any
    mode: int
    state: int
    narrow: int
    layers: int
    batch_first: bool
    dropout: float
    training: bool
    both: bool
    sizes: Any
    dropout_state: Any

    @property
    def work(self) -> RecurrentWork:
        length, batch = self.given.shape[:2]
        size = self.given.element_size()
        return RecurrentWork(
            self.mode, length * batch * self.state, self.layers, 2 if self.both else 1, self.dropout > 0, size
        )


def recurrent_on_cuda(torch: Any) -> None:
    """Replaces the functions of recurrent modules, and gives PyTorch the shapes of what cuDNN's operators make."""
    aten, rules = torch.ops.aten, import_module("torch._subclasses.fake_impls").op_implementations_dict
    rules[aten._cudnn_rnn.default] = functools.partial(_forward, torch)
    rules[aten._cudnn_rnn_backward.default] = functools.partial(_backward, torch)
    torch.backends.cudnn.is_acceptable = lambda given: False  # weights stay where they are; they are not copied again
    for name, mode in MODES.items():
        original = getattr(torch._VF, name)
        setattr(torch._VF, name, functools.wraps(original)(functools.partial(_called, torch, original, mode)))


def _called(torch: Any, original: Callable[..., Any], mode: int, given: Any, *args: Any) -> Any:
    is_packed = not isinstance(args[2], bool)
    if is_packed or not hasattr(given, "fake_mode") or given.device.type != "cuda" or given.dtype == torch.float64:
        return original(given, *args)
    hidden, weights, biased, layers, dropout, training, both, batch_first = args
    hidden, cell = hidden if mode == LSTM else (hidden, None)
    if torch.is_autocast_enabled("cuda"):
        kind = torch.get_autocast_dtype("cuda")
        given, hidden = given.to(kind), hidden.to(kind)
        cell, weights = None if cell is None else cell.to(kind), [one.to(kind) for one in weights]
    state, out = weights[1].shape[0] // GATES[mode], hidden.shape[-1]
    narrow = out if out != state else 0
    each, flat = (4 if biased else 2) + bool(narrow), weights[0].detach()
    share = dropout if training else 0.0
    shape = (mode, state, narrow, layers, batch_first, share, training, both)
    call = RecurrentCall(given, weights, each, flat, hidden, cell, *shape, [], None)
    needed = call.work.scratch_bytes(sum(one.numel() for one in weights))
    scratch = functools.partial(torch.empty, needed, dtype=torch.uint8, device=given.device)
    held = scratch()
    results = torch.ops.aten._cudnn_rnn.default(*call)
    del held
    if (node := results[0].grad_fn) is not None:
        during: list[Any] = []
        node.register_prehook(lambda grads: during.append(scratch()))
        node.register_hook(lambda made, grads: during.clear())
    return results[:3] if mode == LSTM else results[:2]


def _forward(torch: Any, _mode: Any, _function: Any, *args: Any) -> Any:
    """(Outputs, the last state, the last cell, what the backward pass needs, the weights.)"""
    call = RecurrentCall(*args)
    given, cell, first = call.given, call.cell, call.batch_first
    times, batch = given.shape[int(first)], given.shape[1 - first]
    wide = (call.narrow or call.state) * call.work.directions
    output = given.new_empty((times, batch, wide))  # cuDNN's own order, whatever the program's is
    output = output.transpose(0, 1) if first else output
    reserve = given.new_empty(call.work.kept_bytes if call.training else 0, dtype=torch.uint8)
    last = call.hidden.new_empty(call.hidden.shape)
    return output, last, given.new_empty(0) if cell is None else cell.new_empty(cell.shape), reserve, call.flat


def _backward(torch: Any, _mode: Any, _function: Any, *args: Any) -> Any:
    """Gradients of what was read, of both states and of the weights, as far as they are wanted."""
    given, weights, _, _, hidden, cell, *_, wanted = args
    made = [
        one.new_empty(one.shape) if one is not None and asks else None
        for one, asks in zip((given, hidden, cell), wanted, strict=False)
    ]
    return (*made, [one.new_empty(one.shape) for one in weights] if wanted[3] else [])

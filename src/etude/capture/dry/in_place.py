"""What PyTorch's C++ does in place, and does not under a mode: sums of gradients, and formulas of the backward pass.

Where gradients from several places meet, PyTorch adds to the one that came first if nothing else holds it. It asks that
only of plain tensors: under a mode every sum is a new tensor. So PyTorch's rule stands here: a sum that the backward
pass asks for itself is in place if its first tensor is dense, and only the backward pass holds it or its storage.
How many holders that is, as they are counted from here, is found out with a sum that is known to be in place.

Formulas that fill a tensor of zeros, the mask of attention and biases of `nn.MultiheadAttention` are in place too
unless a tensor is of another class.
"""

import sys
from typing import Any

_ENGINE = "_engine_run_backward"
_DEPTH = 12
"""Frames between an operator and the backward pass that asks for it: those of PyTorch's wrappers."""
SELECTING = frozenset(
    f"{name}Backward{number}"
    for name in ("Topk", "Sort", "Max", "Min", "Kthvalue", "Mode", "Median")
    for number in "01"
)
"""Nodes of operators that select values, whose gradients go back to where these were."""


Call = tuple[Any, Any, Any]


class InPlace:
    """Tells which operators are in place where tensors are plain. `called`: functions of PyTorch that the program's
    Python is in."""

    def __init__(self, torch: Any, called: list[Any]) -> None:
        self._torch, self._called = torch, called
        aten = torch.ops.aten
        self._sum, self._in_place_sum = aten.add.Tensor, aten.add_.Tensor
        self._attention = torch._C._nn.scaled_dot_product_attention
        self._heads = torch.nn.functional.multi_head_attention_forward
        self._filled = {
            aten.scatter.src: aten.scatter_.src,
            aten.scatter_add.default: aten.scatter_add_.default,
            aten.index_add.default: aten.index_add_.default,
        }
        self._holders: tuple[int, ...] | None = None
        self.learning = False
        self._node: Any = None
        self._first_row = 0

    def learn(self) -> None:
        """Counts the holders of a gradient that nothing else holds."""
        torch = self._torch
        if not hasattr(torch.Tensor, "_use_count") or not hasattr(torch._C, "_storage_Use_Count"):
            return
        self.learning = True
        try:
            with torch.enable_grad():
                given = torch.ones(2, device="cpu", requires_grad=True)
                (given.sin() + given.cos()).square().sum().backward()
        finally:
            self.learning = False

    def call(self, function: Any, args: Any, kwargs: Any, rows: int, writer: Any) -> Call:
        """The call that PyTorch makes of plain tensors. `rows` is how many operators there were; `writer` says which
        of them wrote last to a tensor's storage."""
        autograd = self._torch._C
        if autograd._current_graph_task_id() < 0:
            inside = self._called[-1] if function is self._sum and self._called else None
            is_bias = inside is self._heads and isinstance(args[1], self._torch.Tensor) and args[1].dim() == 1
            return (
                (self._in_place_sum, args, kwargs) if is_bias or inside is self._attention else (function, args, kwargs)
            )
        node = autograd._current_autograd_node()
        if node is not self._node:
            self._node, self._first_row = node, rows
        if node is None or self._torch.is_grad_enabled() or not _engine_asks():
            return function, args, kwargs
        if function is self._sum:
            same = len(args) == 2 and isinstance(args[1], self._torch.Tensor) and args[0].device == args[1].device
            in_place = same and self._sums_in_place(node, args[0], writer)
            return self._in_place_sum if in_place else function, args, kwargs
        return self._formula(node.name(), function, args, kwargs, writer)

    def _sums_in_place(self, node: Any, first: Any, writer: Any) -> bool:
        if self.learning:
            self._holders = self._held(first)
            return True
        if self._holders is None or self._held(first) != self._holders or not _is_dense(first):
            return False
        # What a node made itself is added by its own formula, unless it hands two gradients to the same place.
        return bool(writer(first) < self._first_row) or _meets_itself(node)

    def _formula(self, name: str, function: Any, args: Any, kwargs: Any, writer: Any) -> Call:
        aten = self._torch.ops.aten
        if function is aten.new_zeros.default and name in SELECTING:
            kept = args[0]
            return aten.zeros.default, (args[1],), {"dtype": kept.dtype, "device": kept.device} | kwargs
        if function is aten.index_put.default and name == "IndexBackward0":
            return aten._index_put_impl_.default, (*args[:3], True, True), {}
        in_place = self._filled.get(function)
        if in_place is not None and writer(args[0]) >= self._first_row:
            return in_place, args, kwargs
        return function, args, kwargs

    def _held(self, tensor: Any) -> tuple[int, ...]:
        """How often a tensor is held by C++ and by Python, and its storage."""
        storage = tensor.untyped_storage()
        return tensor._use_count(), sys.getrefcount(tensor), self._torch._C._storage_Use_Count(storage._cdata)


def _engine_asks() -> bool:
    """Whether the backward pass itself asks: between it and the mode there is no Python of a function or a hook."""
    frame: Any = sys._getframe(3)
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_name == _ENGINE:
            return True
        if frame.f_code.co_name not in ("_fn", "inner"):
            return False
        frame = frame.f_back
    return False


def _is_dense(tensor: Any) -> bool:
    """Whether its elements fill a piece of memory, each once, in some order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _meets_itself(node: Any) -> bool:
    places = [(id(function), index) for function, index in node.next_functions if function is not None]
    return len(set(places)) < len(places)

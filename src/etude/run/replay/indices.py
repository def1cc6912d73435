"""Which values tensors may hold, derived from the operators that read them: indices in range, variances above 0.

A table: operator -> function that reports to a Memory what its arguments must be. Arguments are in schema order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from etude.run.replay.arguments import Arguments, Tensor
from etude.run.replay.memory import Memory
from etude.run.replay.program import Fill

Told = Callable[[Memory, Arguments], None]


def _tensor(given: Arguments, at: int) -> Tensor | None:
    value = given.form[at] if at < len(given.form) else None
    return given.tensors[value["t"]] if isinstance(value, dict) and "t" in value else None


def _tensors(given: Arguments, at: int) -> list[Tensor]:
    value = given.form[at] if at < len(given.form) else None
    each = value if isinstance(value, list) else [value]
    return [given.tensors[v["t"]] for v in each if isinstance(v, dict) and "t" in v]


def _number(given: Arguments, at: int) -> int:
    value = given.form[at] if at < len(given.form) else None
    return value if isinstance(value, int) else 0


def _rows_of(table: int, index: int) -> Told:
    """Argument `index` selects rows of argument `table`."""

    def tell(memory: Memory, given: Arguments) -> None:
        rows, picked = _tensor(given, table), _tensor(given, index)
        if rows is not None and picked is not None and rows.shape:
            memory.below(picked, rows.shape[0])

    return tell


def _counted(index: int, number: int) -> Told:
    """Argument `number` is the number of rows from which argument `index` selects."""

    def tell(memory: Memory, given: Arguments) -> None:
        if (picked := _tensor(given, index)) is not None:
            memory.below(picked, _number(given, number))

    return tell


def _along(dim: int, index: int) -> Told:
    """Argument `index` selects from argument 0, along the dimension given by argument `dim`."""

    def tell(memory: Memory, given: Arguments) -> None:
        table, picked = _tensor(given, 0), _tensor(given, index)
        if table is not None and picked is not None and table.shape:
            memory.below(picked, table.shape[_number(given, dim) % len(table.shape)])

    return tell


def _classes(scores: int, target: int) -> Told:
    """Argument `target` holds classes; argument `scores` has a score for each class."""

    def tell(memory: Memory, given: Arguments) -> None:
        table, picked = _tensor(given, scores), _tensor(given, target)
        if table is not None and picked is not None and table.shape:
            memory.below(picked, table.shape[1 if len(table.shape) > 1 else 0])

    return tell


def _each(memory: Memory, given: Arguments) -> None:
    """`index` and `index_put_`: a list of index tensors, one for each dimension."""
    table = _tensor(given, 0)
    value = given.form[1] if len(given.form) > 1 else None
    for at, one in enumerate(value if isinstance(value, list) else []):
        if table is not None and isinstance(one, dict) and "t" in one and at < len(table.shape):
            memory.below(given.tensors[one["t"]], table.shape[at])


def _above_zero(*at: int) -> Told:
    def tell(memory: Memory, given: Arguments) -> None:
        for argument in at:
            for tensor in _tensors(given, argument):
                memory.positive(tensor)

    return tell


def _averaged(at: int) -> Told:
    """Argument `at` holds first moments of an optimizer."""

    def tell(memory: Memory, given: Arguments) -> None:
        for tensor in _tensors(given, at):
            memory.average(tensor)

    return tell


def _squared(at: int) -> Told:
    """Argument `at` holds second moments of an optimizer, which are averages of squares."""

    def tell(memory: Memory, given: Arguments) -> None:
        for tensor in _tensors(given, at):
            memory.square(tensor)

    return tell


def _all(*several: Told) -> Told:
    def tell(memory: Memory, given: Arguments) -> None:
        for one in several:
            one(memory, given)

    return tell


def _filled(fill: Fill, *at: int) -> Told:
    def tell(memory: Memory, given: Arguments) -> None:
        for argument in at:
            if (tensor := _tensor(given, argument)) is not None:
                memory.told(tensor, fill)

    return tell


RANGES: Final[dict[str, Told]] = {
    "aten::embedding": _all(_rows_of(0, 1), _filled(Fill.UNIT, 0)),
    "aten::layer_norm": _filled(Fill.NONE, 3),
    "aten::native_layer_norm": _filled(Fill.NONE, 3),
    "aten::native_group_norm": _filled(Fill.NONE, 2),
    "aten::linear": _filled(Fill.NONE, 2),
    "aten::addmm": _filled(Fill.NONE, 0),
    "aten::convolution": _filled(Fill.NONE, 2),
    "aten::conv2d": _filled(Fill.NONE, 2),
    "aten::embedding_dense_backward": _counted(1, 2),
    "aten::embedding_backward": _counted(1, 2),
    "aten::_embedding_bag": _rows_of(0, 1),
    "aten::index_select": _along(1, 2),
    "aten::gather": _along(1, 2),
    "aten::scatter": _along(1, 2),
    "aten::scatter_": _along(1, 2),
    "aten::scatter_add": _along(1, 2),
    "aten::scatter_add_": _along(1, 2),
    "aten::index_add": _along(1, 2),
    "aten::index_add_": _along(1, 2),
    "aten::index_copy_": _along(1, 2),
    "aten::one_hot": _counted(0, 1),
    "aten::nll_loss_forward": _classes(0, 1),
    "aten::nll_loss": _classes(0, 1),
    "aten::nll_loss_nd": _classes(0, 1),
    "aten::nll_loss2d_forward": _classes(0, 1),
    "aten::nll_loss_backward": _classes(1, 2),
    "aten::cross_entropy_loss": _classes(0, 1),
    "aten::index": _each,
    "aten::index_put_": _each,
    "aten::_index_put_impl_": _each,
    "aten::_unsafe_index": _each,
    "aten::lerp_": _averaged(0),
    "aten::_foreach_lerp_": _averaged(0),
    "aten::addcmul_": _squared(0),
    "aten::_foreach_addcmul_": _squared(0),
    "aten::sqrt": _above_zero(0),
    "aten::rsqrt": _above_zero(0),
    "aten::log": _above_zero(0),
    "aten::_foreach_sqrt": _above_zero(0),
    "aten::_fused_adamw_": _above_zero(3, 4, 5),
    "aten::_fused_adam_": _above_zero(3, 4, 5),
    "aten::native_batch_norm": _all(_above_zero(4), _filled(Fill.NONE, 2, 3)),
    "aten::cudnn_batch_norm": _all(_above_zero(4), _filled(Fill.NONE, 2, 3)),
    "aten::cudnn_batch_norm_backward": _above_zero(6),
}
COPIES: Final = frozenset({
    "aten::clone", "aten::to", "aten::_to_copy", "aten::contiguous", "aten::cat", "aten::stack", "aten::index_select",
    "aten::copy_", "aten::repeat", "aten::repeat_interleave", "aten::flatten", "aten::reshape", "aten::index",
    "aten::masked_fill", "aten::where", "aten::clamp", "aten::view_copy", "aten::roll", "aten::flip", "aten::gather",
    "aten::slice", "aten::pad", "aten::constant_pad_nd",
})  # fmt: skip
"""Operators whose results contain only numbers from their arguments, and 0."""


def tell(memory: Memory, name: str, given: Arguments) -> None:
    """Reports to `memory` what this call implies about its arguments."""
    if (told := RANGES.get(name)) is not None:
        told(memory, given)


def made_of(memory: Memory, name: str, given: Arguments, gave: Any) -> None:
    """Reports to `memory` which arguments the integers in the results come from. `memory` must know the results
    already."""
    if name in COPIES:
        for result in gave.tensors:
            for source in given.tensors:
                memory.copies(source, result)

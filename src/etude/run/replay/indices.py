"""Which values tensors may hold, derived from the operators that read them: indices in range, variances above 0.

A table: operator -> function that reports to a Memory what its arguments must be; `operands.py` has the one of indices.
Arguments are in schema order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from etude.run.replay.arguments import Arguments, RecordedTensor
from etude.run.replay.memory import AddressMap
from etude.run.replay.operands import Content, needs, operand
from etude.run.replay.program import Fill

Told = Callable[[AddressMap, Arguments], None]


def _tensor(given: Arguments, at: int) -> RecordedTensor | None:
    value = given.form[at] if at < len(given.form) else None
    return given.tensors[value["t"]] if isinstance(value, dict) and "t" in value else None


def _tensors(given: Arguments, at: int) -> list[RecordedTensor]:
    value = given.form[at] if at < len(given.form) else None
    each = value if isinstance(value, list) else [value]
    return [given.tensors[v["t"]] for v in each if isinstance(v, dict) and "t" in v]


def _above_zero(*at: int) -> Told:
    def tell(memory: AddressMap, given: Arguments) -> None:
        for argument in at:
            for tensor in _tensors(given, argument):
                memory.positive(tensor)

    return tell


def _averaged(at: int) -> Told:
    """Argument `at` holds first moments of an optimizer."""

    def tell(memory: AddressMap, given: Arguments) -> None:
        for tensor in _tensors(given, at):
            memory.average(tensor)

    return tell


def _squared(at: int) -> Told:
    """Argument `at` holds second moments of an optimizer, which are averages of squares."""

    def tell(memory: AddressMap, given: Arguments) -> None:
        for tensor in _tensors(given, at):
            memory.square(tensor)

    return tell


def _all(*several: Told) -> Told:
    def tell(memory: AddressMap, given: Arguments) -> None:
        for one in several:
            one(memory, given)

    return tell


def _filled(fill: Fill, *at: int) -> Told:
    def tell(memory: AddressMap, given: Arguments) -> None:
        for argument in at:
            if (tensor := _tensor(given, argument)) is not None:
                memory.told(tensor, fill)

    return tell


RANGES: Final[dict[str, Told]] = {
    "aten::embedding": _filled(Fill.UNIT, 0),
    "aten::layer_norm": _filled(Fill.NONE, 3),
    "aten::native_layer_norm": _filled(Fill.NONE, 3),
    "aten::native_group_norm": _filled(Fill.NONE, 2),
    "aten::linear": _filled(Fill.NONE, 2),
    "aten::addmm": _filled(Fill.NONE, 0),
    "aten::convolution": _filled(Fill.NONE, 2),
    "aten::conv2d": _filled(Fill.NONE, 2),
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


def tell(memory: AddressMap, name: str, given: Arguments) -> None:
    """Reports to `memory` what this call implies about its arguments."""
    values = [_read(value, given.tensors) for value in given.form]
    for need in needs(name, values):
        if need.content == Content.INDEX:
            memory.below(operand(values, need), need.bound)
    if (told := RANGES.get(name)) is not None:
        told(memory, given)


def _read(value: Any, tensors: list[RecordedTensor]) -> Any:
    """An argument, with tensors in place of their numbers."""
    if isinstance(value, list):
        return [_read(each, tensors) for each in value]
    return tensors[value["t"]] if isinstance(value, dict) and "t" in value else value


def made_of(memory: AddressMap, name: str, given: Arguments, gave: Any) -> None:
    """Reports to `memory` which arguments the integers in the results come from. `memory` must know the results
    already."""
    if name in COPIES:
        for result in gave.tensors:
            for source in given.tensors:
                memory.copies(source, result)

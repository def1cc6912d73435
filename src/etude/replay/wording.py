"""Pieces of the Python that a player makes of a program: arguments as text, functions of lines, results opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot in place of an argument."""

    number: int


def function(lines: list[str], names: dict[str, Any]) -> Callable[[], None]:
    """A function of these lines; its names are arguments with defaults, which are the fastest to look up. The lines
    hold numbers and names made here, nothing of what was recorded."""
    head = ",".join(f"{name}={name}" for name in names)
    space = dict(names)
    exec(compile(f"def play({head}):\n " + "\n ".join(lines), "<program>", "exec"), space)
    play: Callable[[], None] = space["play"]
    return play


def text(value: Any, names: dict[str, Any], top: bool = True) -> str:
    """An argument as Python; what is no number, slot or list of those gets a name."""
    if isinstance(value, list):
        inner = ",".join(text(each, names, False) for each in value)
        return inner if top else f"[{inner}]"
    if isinstance(value, Slot):
        return f"v[{value.number}]"
    if value is None or type(value) in (bool, int) or (type(value) is float and value - value == 0):
        return repr(value)
    name = f"c{len(names)}"
    names[name] = value
    return name


def filled_in(value: Any, values: list[Any]) -> Any:
    """Arguments with the tensors of their slots."""
    if isinstance(value, list):
        return [filled_in(each, values) for each in value]
    return values[value.number] if isinstance(value, Slot) else value


def opened(result: Any) -> Iterator[Any]:
    """Results one after the other, lists and tuples opened."""
    if isinstance(result, (list, tuple)):
        for each in result:
            yield from opened(each)
    else:
        yield result


def contiguous(shape: list[int]) -> list[int]:
    """Strides of a tensor without holes."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return stride[::-1]

"""Parts of the Python code that a player generates from a program: arguments as text, functions, flattened results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

_SOURCE: Final = "<program>"


@dataclass(frozen=True, slots=True)
class Slot:
    """An argument that is a slot."""

    number: int


def function(lines: list[str], names: dict[str, Any]) -> Callable[[], None]:
    """A function of these lines. The names become arguments with defaults, which are the fastest to look up. The lines
    consist only of numbers and generated names, never of recorded text."""
    head = ",".join(f"{name}={name}" for name in names)
    space = dict(names)
    exec(compile(f"def play({head}):\n " + "\n ".join(lines), _SOURCE, "exec"), space)
    play: Callable[[], None] = space["play"]
    return play


def failed_line(problem: BaseException) -> int | None:
    """The line of a generated function in which an error arose; None if it arose elsewhere."""
    trace = problem.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _SOURCE:
            return trace.tb_lineno - 2  # the first line is the head
        trace = trace.tb_next
    return None


def text(value: Any, names: dict[str, Any], top: bool = True) -> str:
    """An argument as Python code; anything but numbers, slots and lists of these is bound to a name."""
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
    """The arguments, with tensors in place of their slots."""
    if isinstance(value, list):
        return [filled_in(each, values) for each in value]
    return values[value.number] if isinstance(value, Slot) else value


def opened(result: Any) -> Iterator[Any]:
    """Yields the results one after the other, with lists and tuples flattened."""
    if isinstance(result, (list, tuple)):
        for each in result:
            yield from opened(each)
    else:
        yield result


def contiguous(shape: list[int]) -> list[int]:
    """Strides of a contiguous tensor, in elements."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return stride[::-1]

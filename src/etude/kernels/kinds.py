"""Kinds of arguments: what decides which compiled code of a kernel fits a call.

A kind is at least as fine as the type that Numba would give the argument, and is found without Numba. Arguments that
have none (subclasses of arrays, strings, enums, whole numbers of more than 64 bits) raise `NoKindError`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

ROWS, COLUMNS, ALIGNED, WRITEABLE = 1, 2, 0x100, 0x400
"""Bits of the flags of an array."""
_WHICH: Final = ROWS | COLUMNS | ALIGNED | WRITEABLE


class NoKindError(Exception):
    """An argument whose kind is not known here; Numba may know its type."""


def _layout(flags: int) -> str:
    order = "C" if flags & ROWS else "F" if flags & COLUMNS else "A"
    return order + ("w" if flags & WRITEABLE else "r") + ("a" if flags & ALIGNED else "u")


_LAYOUTS: Final = {flags: _layout(flags) for flags in range(_WHICH + 1) if not flags & ~_WHICH}


def _array(value: Any) -> Any:
    return value.dtype, value.ndim, _LAYOUTS[value.flags.num & _WHICH]


def _whole(value: int) -> Any:
    if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        return int
    raise NoKindError


def _none(value: Any) -> Any:
    raise NoKindError


def _importable(cls: type) -> bool:
    """Is this the class that its name leads to? Another of the same name must not be taken for it."""
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


class _How(dict[type, Callable[[Any], Any]]):
    """By class: the function that gives the kind of a value. Those of NamedTuples and scalars are found when met."""

    def __missing__(self, cls: type) -> Callable[[Any], Any]:
        made = self._made(cls)
        self[cls] = made
        return made

    def _made(self, cls: type) -> Callable[[Any], Any]:
        if issubclass(cls, tuple) and (cls is tuple or (hasattr(cls, "_fields") and _importable(cls))):
            return lambda value: (cls, *[self[part.__class__](part) for part in value])
        if issubclass(cls, np.number | np.bool):
            return lambda value: cls
        return _none


HOW: Final = _How({np.ndarray: _array, int: _whole} | dict.fromkeys((float, bool, type(None)), type))


def kinds(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Kind of each argument of a call; NoKindError if one has none."""
    return tuple([HOW[value.__class__](value) for value in values])


def text(kind: Any) -> str:
    """A kind in words that are the same in every process."""
    if isinstance(kind, type):
        return f"{kind.__module__}.{kind.__qualname__}{getattr(kind, '_fields', '')}"
    if isinstance(kind[0], np.dtype):
        dtype, ndim, layout = kind
        return f"{dtype!r}:{dtype.byteorder}{dtype.itemsize} {ndim} {layout}"
    return f"{text(kind[0])}({', '.join(text(part) for part in kind[1:])})"

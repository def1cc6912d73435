"""What a kernel takes, as a digest: its code, and every kernel, constant, enum and NamedTuple that it reads.

Compiled code is kept under a key that holds it, so that nothing is used that was compiled from something else.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from types import CodeType, ModuleType
from typing import Any

import numpy as np

PACKAGE = __name__.partition(".")[0]


def taken(function: Any) -> str:
    """A digest of a function's code and of all that it reads from the modules of this package."""
    digest = hashlib.sha256()
    _add_function(getattr(function, "py_func", function), digest, set())
    return digest.hexdigest()


class _Counter:
    """Counts bytes as a digest would take them."""

    size = 0

    def update(self, piece: bytes) -> None:
        self.size += len(piece)


def code_bytes(function: Any) -> int:
    """Bytes of a kernel and of all that it takes: how much there is to compile."""
    counter = _Counter()
    _add_function(getattr(function, "py_func", function), counter, set())
    return counter.size


def _add_function(function: Any, digest: Any, seen: set[int]) -> None:
    if id(function) in seen:
        return
    seen.add(id(function))
    digest.update(f"{function.__qualname__}{function.__defaults__}".encode())
    names = _add_code(function.__code__, digest)
    for name in sorted(names & function.__globals__.keys()):
        _add_value(name, function.__globals__[name], names, digest, seen)
    for cell in function.__closure__ or ():
        _add_value("", cell.cell_contents, names, digest, seen)


def _add_code(code: CodeType, digest: Any) -> set[str]:
    """Adds the code, that of functions inside it too; returns the names it uses."""
    digest.update(code.co_code + repr(code.co_names).encode())
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _add_code(constant, digest)
        else:
            digest.update(repr(constant).encode())
    return names


def _add_value(name: str, value: Any, names: set[str], digest: Any, seen: set[int]) -> None:
    digest.update(name.encode())
    if hasattr(value, "py_func") and hasattr(value, "targetoptions"):  # a kernel, or another dispatcher of Numba's
        digest.update(repr(sorted(value.targetoptions.items())).encode())
        _add_function(value.py_func, digest, seen)
    elif isinstance(value, ModuleType):
        if value.__name__.partition(".")[0] == PACKAGE:
            for inner in sorted(names & vars(value).keys()):
                _add_value(inner, vars(value)[inner], names, digest, seen)
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, type):
        inside = list(value) if issubclass(value, Enum) else getattr(value, "_fields", "")
        digest.update(f"{value.__qualname__}{inside}".encode())
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            _add_value(str(number), part, names, digest, seen)
    elif value is None or isinstance(value, bool | int | float | str | bytes | np.generic | np.dtype):
        digest.update(repr(value).encode())
    elif hasattr(value, "__code__") and value.__module__.partition(".")[0] == PACKAGE:
        _add_function(value, digest, seen)

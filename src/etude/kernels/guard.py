"""Looks at the arguments of a call in machine code: do they have the kinds that some compiled code was made for?

`kinds.kinds` finds the same out in Python, which takes longer than a small kernel. Here the kinds are written down as
numbers, a program: the class of an object, of an array its dtype, dimensions and flags, of a tuple those of all that it
holds. One function of LLVM's own language compares arguments with such a program; if all are as it says it calls the
code, else it returns `REFUSED`.

It reads fields of Python's and NumPy's objects where they are in memory, and is used only if `as_expected()`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from etude.kernels.kinds import ALIGNED, COLUMNS, ROWS, WRITEABLE

REFUSED: Final = object()
"""What a guarded kernel returns that was given arguments of other kinds."""
NAME: Final = "etude_guarded"
_PLAIN, _ARRAY, _TUPLE = 0, 1, 2
_ORDER: Final = {"C": (ROWS, ROWS), "F": (ROWS | COLUMNS, COLUMNS), "A": (ROWS | COLUMNS, 0)}
"""Layout -> (flags to look at, how they must be)."""
_NDIM_AT, _DTYPE_AT, _FLAGS_AT, _BYTES_AT = 24, 56, 64, 32
_ITEMS_AT: Final = tuple.__basicsize__
"""24, and 32 from Python 3.14 on, whose tuples hold their hash too."""

SOURCE: Final = f"""
declare void @Py_IncRef(ptr)

define internal ptr @check(ptr %object, ptr %p) {{
entry:
  %type_at = getelementptr i64, ptr %object, i64 1
  %type = load i64, ptr %type_at
  %type_wanted = load i64, ptr %p
  %what_at = getelementptr i64, ptr %p, i64 1
  %what = load i64, ptr %what_at
  %same = icmp eq i64 %type, %type_wanted
  br i1 %same, label %which, label %other
other:
  ret ptr null
which:
  switch i64 %what, label %plain [ i64 {_ARRAY}, label %array
                                   i64 {_TUPLE}, label %tuple ]
plain:
  %after_plain = getelementptr i64, ptr %p, i64 2
  ret ptr %after_plain
array:
  %dtype_at = getelementptr i8, ptr %object, i64 {_DTYPE_AT}
  %dtype = load i64, ptr %dtype_at
  %ndim_at = getelementptr i8, ptr %object, i64 {_NDIM_AT}
  %ndim_short = load i32, ptr %ndim_at
  %ndim = sext i32 %ndim_short to i64
  %flags_at = getelementptr i8, ptr %object, i64 {_FLAGS_AT}
  %flags_short = load i32, ptr %flags_at
  %flags = sext i32 %flags_short to i64
  %dtype_wanted_at = getelementptr i64, ptr %p, i64 2
  %dtype_wanted = load i64, ptr %dtype_wanted_at
  %ndim_wanted_at = getelementptr i64, ptr %p, i64 3
  %ndim_wanted = load i64, ptr %ndim_wanted_at
  %mask_at = getelementptr i64, ptr %p, i64 4
  %mask = load i64, ptr %mask_at
  %flags_wanted_at = getelementptr i64, ptr %p, i64 5
  %flags_wanted = load i64, ptr %flags_wanted_at
  %flags_seen = and i64 %flags, %mask
  %same_dtype = icmp eq i64 %dtype, %dtype_wanted
  %same_ndim = icmp eq i64 %ndim, %ndim_wanted
  %same_flags = icmp eq i64 %flags_seen, %flags_wanted
  %same_two = and i1 %same_dtype, %same_ndim
  %same_all = and i1 %same_two, %same_flags
  %after_array = getelementptr i64, ptr %p, i64 6
  %answer = select i1 %same_all, ptr %after_array, ptr null
  ret ptr %answer
tuple:
  %count_at = getelementptr i64, ptr %object, i64 2
  %count = load i64, ptr %count_at
  %count_wanted_at = getelementptr i64, ptr %p, i64 2
  %count_wanted = load i64, ptr %count_wanted_at
  %first = getelementptr i64, ptr %p, i64 3
  %items = getelementptr i8, ptr %object, i64 {_ITEMS_AT}
  %as_many = icmp eq i64 %count, %count_wanted
  br i1 %as_many, label %loop, label %other
loop:
  %i = phi i64 [ 0, %tuple ], [ %next_i, %item ]
  %at = phi ptr [ %first, %tuple ], [ %next_at, %item ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %item, label %done
item:
  %item_at = getelementptr i64, ptr %items, i64 %i
  %inside = load ptr, ptr %item_at
  %next_at = call ptr @check(ptr %inside, ptr %at)
  %next_i = add i64 %i, 1
  %fits = icmp ne ptr %next_at, null
  br i1 %fits, label %loop, label %other
done:
  ret ptr %at
}}

define ptr @{NAME}(ptr %self, ptr %arguments, ptr %named) {{
entry:
  %program = getelementptr i8, ptr %self, i64 {_BYTES_AT}
  %refused = load ptr, ptr %program
  %code_at = getelementptr i64, ptr %program, i64 1
  %code = load ptr, ptr %code_at
  %closure_at = getelementptr i64, ptr %program, i64 2
  %closure = load ptr, ptr %closure_at
  %first = getelementptr i64, ptr %program, i64 3
  %end = call ptr @check(ptr %arguments, ptr %first)
  %fits = icmp ne ptr %end, null
  br i1 %fits, label %call, label %refuse
call:
  %result = tail call ptr %code(ptr %closure, ptr %arguments, ptr %named)
  ret ptr %result
refuse:
  call void @Py_IncRef(ptr %refused)
  ret ptr %refused
}}
"""


@cache
def as_expected() -> bool:
    """Do the fields of objects have the offsets at which they are read?"""
    array = np.zeros((2, 3), np.int32)[:, ::2]
    start, around = id(array), (array,)
    return (
        bytes.__basicsize__ == _BYTES_AT + 1
        and ctypes.c_void_p.from_address(start + 8).value == id(np.ndarray)
        and ctypes.c_int.from_address(start + _NDIM_AT).value == 2
        and ctypes.c_void_p.from_address(start + _DTYPE_AT).value == id(array.dtype)
        and ctypes.c_int.from_address(start + _FLAGS_AT).value & 0xFFFF == array.flags.num
        and ctypes.c_void_p.from_address(id(around) + _ITEMS_AT).value == start
    )


def _words(kind: Any) -> list[int]:
    if isinstance(kind, type):
        return [id(kind), _PLAIN]
    if isinstance(kind[0], np.dtype):
        dtype, ndim, (order, may_write, aligned) = kind
        mask, flags = _ORDER[order]
        flags |= (WRITEABLE if may_write == "w" else 0) | (ALIGNED if aligned == "a" else 0)
        return [id(np.ndarray), _ARRAY, id(dtype), ndim, mask | WRITEABLE | ALIGNED, flags]
    words = [id(kind[0]), _TUPLE, len(kind) - 1]
    for part in kind[1:]:
        words += _words(part)
    return words


class _Method(ctypes.Structure):
    """A function of C as Python knows it."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_WITH_NAMES: Final = 3
"""METH_VARARGS | METH_KEYWORDS."""


class Loaded(NamedTuple):
    """Compiled code in memory."""

    bare: Callable[..., Any]  # must be given arguments of the kinds that it was compiled for
    guarded: Callable[..., Any]  # returns REFUSED otherwise; also for a dtype that is equal but not the same object


def guarded(kind: tuple[Any, ...], code: int, function: Any, guard: int) -> Loaded:
    """`function`, whose code is at an address, behind the guard at another: for arguments of these kinds alone."""
    words = [id(REFUSED), code, id(function.__self__), *_words((tuple, *kind))]
    program = struct.pack(f"{len(words)}q", *words)
    method = _Method(function.__name__.encode(), guard, _WITH_NAMES, None)
    _keep((kind, function, program, method))
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return Loaded(function, make(ctypes.addressof(method), program, None))


def _keep(pointed_to: tuple[Any, ...]) -> None:
    """For good: when Python ends it frees modules in an order of its own, and a function may outlive them all."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pointed_to))

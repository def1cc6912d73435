"""The one decorator of all kernels: how they are compiled, and when what is in the cache is still valid.

@kernel
def total(columns: Columns) -> int: ...

A kernel takes scalars, arrays and NamedTuples of arrays, never an address or a position in a list. It releases the
GIL, and a division by zero gives what NumPy gives.

Compiled code is kept next to the source (`kept.py`). The key of an entry is a digest of all that the kernel takes, so
that it is dropped when a constant, a kernel or a NamedTuple changes, in its own file or another. Code that is there is
run without Numba (`native.py`), which is imported when something has to be compiled (`dispatch.py`).

What Python calls and what other kernels call is compiled apart. A kernel that only kernels call needs no entry for
Python, which reads every array of every NamedTuple and is most of the code of a small kernel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cached_property, update_wrapper
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import Any, Final, Literal

from etude.kernels import kept
from etude.kernels.digest import code_bytes as code_bytes
from etude.kernels.digest import taken as taken
from etude.kernels.guard import REFUSED, Loaded
from etude.kernels.kinds import NoKindError, kinds

_STARRED = CO_VARARGS | CO_VARKEYWORDS


def _compiled_at_all() -> bool:
    """Numba's switch NUMBA_DISABLE_JIT: kernels are then plain functions."""
    config = sys.modules.get("numba.core.config")
    if config is not None:
        return not config.DISABLE_JIT
    return os.environ.get("NUMBA_DISABLE_JIT", "").strip() in ("", "0")


def kernel(
    function: Callable[..., Any] | None = None, *, allocates: bool = True, inline: bool | Literal["llvm"] = False
) -> Any:
    """Compiles a function when it is first called, and keeps the result on disk.

    `allocates=False`: it makes no arrays, nor does anything it calls; no references are counted, which small kernels
    that are called for every event feel. `inline`: its body is put where it is called, by Numba, which types and
    translates it again at every call; `inline="llvm"`: by LLVM, which is much sooner compiled and as fast, but not for
    a kernel that makes no arrays and returns a slice of one.
    """
    if function is None:
        return lambda given: kernel(given, allocates=allocates, inline=inline)
    if not _compiled_at_all():
        return function
    options = {
        "nopython": True,
        "boundscheck": None,
        "nogil": True,
        "error_model": "numpy",
        "inline": "always" if inline is True else "never",
    }
    if inline == "llvm":
        options["forceinline"] = True
    if not allocates:
        options["_nrt"] = False
    return Kernel(function, options)


def _refuse(*_: Any) -> Any:
    return REFUSED


_BY_NUMBA: Final = Loaded(_refuse, _refuse)
"""For arguments without code that runs without Numba."""


class Kernel:
    """A function that is compiled when Python calls it; other kernels see and call `inner`."""

    def __init__(self, py_func: Callable[..., Any], targetoptions: dict[str, Any]) -> None:
        self.__qualname__ = py_func.__qualname__
        update_wrapper(self, py_func)
        self.py_func = py_func
        self.targetoptions = targetoptions
        code = py_func.__code__
        self._names = code.co_varnames[: code.co_argcount]
        self._count = -1 if code.co_kwonlyargcount or code.co_flags & _STARRED else code.co_argcount
        self._entries: dict[tuple[Any, ...], Loaded] = {}
        self._last: Callable[..., Any] = _refuse
        """Target of the previous call: most calls of a kernel are alike."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if named:
            return self._called(arguments, named)
        found = self._last(*arguments)
        return found if found is not REFUSED else self._by_kinds(arguments)

    def _by_kinds(self, arguments: tuple[Any, ...]) -> Any:
        """A call whose arguments are not of the kinds of the call before."""
        if len(arguments) != self._count:
            return self._called(arguments, {})
        if self._place is None:
            self._last = self.dispatcher
            return self.dispatcher(*arguments)
        try:
            kind = kinds(arguments)
        except NoKindError:
            return self.dispatcher(*arguments)
        found = self._entries.get(kind)
        if found is None:
            found = self._entries[kind] = self._found(self._place, kind, arguments)
        if found is _BY_NUMBA:
            return self.dispatcher(*arguments)
        self._last = found.guarded
        return found.bare(*arguments)

    def _called(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """With names, or without arguments that have a default, which Numba types in its own way."""
        rest = self._names[len(arguments) :]
        if self._count < 0 or len(arguments) + len(rest) != self._count or set(rest) != set(named):
            return self.dispatcher(*arguments, **named)
        return self(*arguments, *[named[name] for name in rest])

    def _found(self, place: kept.KernelFolder, kind: tuple[Any, ...], arguments: tuple[Any, ...]) -> Loaded:
        """Code for arguments of these kinds, from the disk or from the compiler."""
        entry = place.read(kind)
        found = self._loaded(entry, kind)
        if found is _BY_NUMBA:
            entry = self.dispatcher.compiled_for(arguments, lambda entry: place.write(kind, entry))
            found = self._loaded(entry, kind)
        return found

    def _loaded(self, entry: kept.CompiledEntry | None, kind: tuple[Any, ...]) -> Loaded:
        from etude.kernels import native

        try:
            return native.load(entry, self.py_func, kind) if entry is not None else _BY_NUMBA
        except Exception:  # whatever it is, Numba can do without
            return _BY_NUMBA

    @cached_property
    def _place(self) -> kept.KernelFolder | None:
        try:
            return kept.KernelFolder(self.py_func, self.targetoptions) if kept.usable() else None
        except OSError:  # a function without a file
            return None

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's, made when there is something to compile."""
        from etude.kernels.dispatch import Outer

        return Outer(self.py_func, targetoptions=self.targetoptions)

    @cached_property
    def inner(self) -> Any:
        """Made when a kernel that calls this one is compiled."""
        from etude.kernels.dispatch import only_for_kernels

        return only_for_kernels(self.py_func, self.targetoptions)

    @property
    def signatures(self) -> Any:
        """Those that were compiled in this process."""
        return self.dispatcher.signatures

    @property
    def _numba_type_(self) -> Any:
        return self.inner._numba_type_

    def __reduce__(self) -> Any:
        found: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        return self.__qualname__ if found is self else (Kernel, (self.py_func, self.targetoptions))

    def __repr__(self) -> str:
        return f"<kernel {self.__qualname__}>"

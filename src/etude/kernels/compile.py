"""The one decorator of all kernels: how they are compiled, and when what lies in the cache still holds.

@kernel
def total(columns: Columns) -> int: ...

A kernel takes scalars, arrays and NamedTuples of arrays, never an address or a position in a list. It releases the
GIL, and a division by zero gives what NumPy gives.

Compiled code is kept beside the source. Numba drops it when the kernel's own file changes; here it is also dropped when
a constant, a kernel or a NamedTuple changes that the kernel takes from somewhere else, since the key of an entry holds
a digest of all of them.

What Python calls and what other kernels call is compiled apart. A kernel that only kernels call needs no entry for
Python, which reads every array of every NamedTuple and is most of the code of a small kernel.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property, partial
from types import CodeType, ModuleType
from typing import Any, Literal

import numba
import numpy as np
from numba.core import config
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.core.registry import CPUDispatcher

from etude.kernels import first_use, inner, records, sooner

PACKAGE = __name__.partition(".")[0]
BLAS = "scipy.linalg.cython_blas"
BEST = 3
"""Numba's own level of optimization; code of another (`NUMBA_OPT=1`, which is compiled sooner) is kept apart."""


def _know_arrays() -> None:
    """Loads what Numba knows of arrays. It looks whether SciPy has a BLAS by loading all of its linear algebra, which
    takes as long as the rest of a small command; kernels here multiply no matrices, and who does loads it then."""
    if BLAS in sys.modules:
        return
    sys.modules[BLAS] = ModuleType(BLAS)
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        del sys.modules[BLAS]


_know_arrays()
CHANGED = numba.__version__.startswith(sooner.NUMBA)
if CHANGED:  # any other Numba compiles as it does
    sooner.install()
    inner.install()


def kernel(
    function: Callable[..., Any] | None = None, *, allocates: bool = True, inline: bool | Literal["llvm"] = False
) -> Any:
    """Compiles a function when it is first called, and keeps the result on disk.

    `allocates=False`: it makes no arrays, nor does anything it calls; no references are counted, which small kernels
    that are called for every event feel. `inline`: its body is put where it is called, by Numba, which types and
    translates it anew at every call; `inline="llvm"`: by LLVM, which is much sooner compiled and as fast, but not for
    a kernel that makes no arrays and returns a slice of one.
    """
    if function is None:
        return lambda given: kernel(given, allocates=allocates, inline=inline)
    if config.DISABLE_JIT:
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
    return Kernel(function, targetoptions=options)


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """A function that is compiled when Python calls it; other kernels see and call `inner`."""

    def __init__(self, py_func: Callable[..., Any], locals: Any = None, targetoptions: Any = None) -> None:
        super().__init__(py_func, locals or {}, targetoptions)
        self._cache = LateCache(py_func)
        self.compile: Any = first_use.interruptible(self._compile_at_once)

    @cached_property
    def inner(self) -> Any:
        """Made when a kernel that calls this one is compiled."""
        bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        made = CPUDispatcher(self.py_func, self.locals, self.targetoptions | bare)
        made._cache = LateCache(self.py_func, inner=True)
        return made

    def _compile_at_once(self, signature: Any) -> Any:
        with sooner.no_garbage_collection():
            return super().compile(signature)

    @property
    def _numba_type_(self) -> Any:
        return self.inner._numba_type_


class LateCache:
    """A cache that is looked for when a kernel is first called: Numba tries to write where it is to be."""

    def __init__(self, function: Callable[..., Any], *, inner: bool = False) -> None:
        self._make = partial(Cache, function, inner=inner)

    @cached_property
    def _made(self) -> Cache:
        return self._make()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


class Cache(FunctionCache):  # type: ignore[misc]
    """Numba's own, with what a kernel takes from elsewhere in the key of each entry."""

    def __init__(self, function: Callable[..., Any], *, inner: bool = False) -> None:
        super().__init__(function)
        self.inner = inner

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        fields = tuple(sorted({f"{t.instance_class.__qualname__}{t.instance_class._fields}" for t in _records(sig)}))
        key = (*super()._index_key(sig, codegen), fields, taken(self._py_func), records.PASSED, CHANGED)
        if int(config.OPT) != BEST:
            key = (*key, int(config.OPT))
        return (*key, "inner") if self.inner else key

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            found = super().load_overload(sig, target_context)
        except (AttributeError, ImportError):  # the index names a NamedTuple that is no longer there
            self.flush()
            found = None
        if found is None:
            first_use.announce(self._py_func.__name__, lambda: code_bytes(self._py_func))
        return found


def _records(signature: Any) -> Iterator[Any]:
    """The types of NamedTuples in a signature, those inside others too."""
    for kind in signature:
        if hasattr(kind, "instance_class"):
            yield kind
        if hasattr(kind, "types"):
            yield from _records(kind.types)


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
    for name in sorted(names & set(function.__globals__)):
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
    if isinstance(value, Dispatcher):
        digest.update(repr(sorted(value.targetoptions.items())).encode())
        _add_function(value.py_func, digest, seen)
    elif isinstance(value, ModuleType):
        if value.__name__.partition(".")[0] == PACKAGE:
            for inner in sorted(names & set(vars(value))):
                _add_value(inner, vars(value)[inner], names, digest, seen)
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, type):
        inside = list(value) if issubclass(value, Enum) else getattr(value, "_fields", "")
        digest.update(f"{value.__qualname__}{inside}".encode())
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            _add_value(str(number), part, names, digest, seen)
    elif isinstance(value, bool | int | float | str | bytes | np.generic):
        digest.update(repr(value).encode())
    elif hasattr(value, "__code__") and value.__module__.partition(".")[0] == PACKAGE:
        _add_function(value, digest, seen)

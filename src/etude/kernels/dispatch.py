"""Kernels as Numba compiles them: its dispatchers, its cache, and what of its results is kept to be run without it.

This loads Numba, which takes longer than most small commands; `compile.Kernel` does so when there is something to
compile.
"""

from __future__ import annotations

import gc
import importlib
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from types import ModuleType
from typing import Any

import llvmlite.binding as llvm
from numba.core import config
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.environment import lookup_environment
from numba.core.registry import CPUDispatcher

from etude.kernels import elf, first_use, guard, inner, kept, native, records
from etude.kernels.digest import code_bytes, taken

BLAS = "scipy.linalg.cython_blas"
BEST = 3
"""Numba's own level of optimization; code of another (`NUMBA_OPT=1`, which is compiled sooner) is kept apart."""
ENVIRONMENT = "_ZN08NumbaEnv"
"""How the names of places begin where code looks for Python's objects."""


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
CHANGED = kept.has_piece("inner")
if CHANGED:  # any other Numba compiles as it does
    inner.install()


class _Paused:
    count = 0
    lock = threading.Lock()
    was_on = False


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Python looks for circles among all objects again and again while Numba makes millions of small ones that live
    as long as the kernel is compiled."""
    with _Paused.lock:
        if _Paused.count == 0:
            _Paused.was_on = gc.isenabled()
            gc.disable()
        _Paused.count += 1
    try:
        yield
    finally:
        with _Paused.lock:
            _Paused.count -= 1
            if _Paused.count == 0 and _Paused.was_on:
                gc.enable()


def only_for_kernels(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """The dispatcher that other kernels see and call: without an entry for Python."""
    bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    made = CPUDispatcher(function, {}, options | bare)
    made._cache = LateCache(function, inner=True)
    return made


class Outer(CPUDispatcher):  # type: ignore[misc]
    """The dispatcher that Python calls."""

    def __init__(self, py_func: Callable[..., Any], locals: Any = None, targetoptions: Any = None) -> None:
        super().__init__(py_func, locals or {}, targetoptions)
        self._cache = LateCache(py_func)
        self.compile: Any = first_use.interruptible(self._compile_at_once)

    def _compile_at_once(self, signature: Any) -> Any:
        with inner.compiling(), _no_garbage_collection():
            return super().compile(signature)

    def compiled_for(
        self, arguments: tuple[Any, ...], keep: Callable[[kept.CompiledEntry], bool]
    ) -> kept.CompiledEntry | None:
        """Compiles for arguments of these types. Code that can be run without Numba is returned and given to `keep`;
        Numba keeps it if that says no."""
        signature = tuple(self.typeof_pyval(argument) for argument in arguments)
        self._cache.not_yet.add(signature)
        self.compile(signature)
        entry = entry_of(self.overloads[signature])
        new = self._cache.unsaved.pop(signature, None)
        if (entry is None or not keep(entry)) and new is not None:
            self._cache.save(signature, new)
        return entry


class LateCache:
    """A cache that is looked for when a kernel is first called: Numba tries to write where it is to be."""

    def __init__(self, function: Callable[..., Any], *, inner: bool = False) -> None:
        self._make = partial(Cache, function, inner=inner)
        self.not_yet: set[Any] = set()  # signatures whose code is not to be saved when it is made
        self.unsaved: dict[Any, Any] = {}

    @cached_property
    def _made(self) -> Cache:
        return self._make()

    def save_overload(self, signature: Any, compiled: Any) -> None:
        if signature in self.not_yet:
            self.unsaved[signature] = compiled
        else:
            self.save(signature, compiled)

    def save(self, signature: Any, compiled: Any) -> None:
        self._made.save_overload(signature, compiled)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


class SealedFiles(IndexDataCacheFile):  # type: ignore[misc]
    """Numba's files of a kernel, each with the user's seal: a file that is damaged or another's is as one that is not
    there. Where nothing can be sealed, nothing is kept."""

    def _load_index(self) -> dict[Any, str]:
        body = kept.read_sealed(self._index_path)
        stamp, overloads = pickle.loads(body) if body is not None else (None, {})
        return overloads if stamp == self._stamp else {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        kept.write_sealed(self._index_path, self._dump((self._stamp, overloads)))

    def _load_data(self, name: str) -> Any:
        body = kept.read_sealed(self._data_path(name))
        if body is None:
            raise FileNotFoundError(name)  # Numba compiles the kernel again
        return pickle.loads(body)

    def _save_data(self, name: str, data: Any) -> None:
        kept.write_sealed(self._data_path(name), self._dump(data))

    @property
    def _stamp(self) -> tuple[Any, ...]:
        return self._version, self._source_stamp


class Cache(FunctionCache):  # type: ignore[misc]
    """Numba's own, sealed, with what a kernel takes from elsewhere in the key of each entry."""

    def __init__(self, function: Callable[..., Any], *, inner: bool = False) -> None:
        super().__init__(function)
        self.inner = inner
        self._cache_file = SealedFiles(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=self._impl.locator.get_source_stamp(),
        )

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        fields = tuple(sorted({f"{t.instance_class.__qualname__}{t.instance_class._fields}" for t in _records(sig)}))
        key = (*super()._index_key(sig, codegen), fields, taken(self._py_func), records.PASSED, CHANGED)
        if int(config.OPT) != BEST:
            key = (*key, int(config.OPT))
        if self.inner:
            return (*key, "inner")
        return (*key, "not kept") if kept.usable() else key  # what Numba kept before is compiled again, to be kept here

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


def entry_of(compiled: Any) -> kept.CompiledEntry | None:
    """What is needed to run compiled code without Numba; None if it cannot be."""
    library = compiled.library
    code = library._compiled_object  # None: Numba has it from its own cache
    if not code or compiled.lifted or library.has_dynamic_globals or not elf.is_elf(code):
        return None
    code = code.replace(*native.UNPICKLE)
    defined, expected = elf.symbols(code)
    own = compiled.fndesc.env_name
    names = [own, *sorted(name for name in defined if name.startswith(ENVIRONMENT) and name != own)]
    environments = [(name, lookup_environment(name)) for name in names]
    if own not in defined or any(one is None for _, one in environments):
        return None
    objects = tuple((name, tuple(one.consts)) for name, one in environments)
    if b"numba" in pickle.dumps([one for _, one in objects]):
        return None
    looks = library.codegen._tm.emit_object(llvm.parse_assembly(guard.SOURCE))
    return kept.CompiledEntry(compiled.fndesc.llvm_cpython_wrapper_name, code, tuple(sorted(expected)), objects, looks)

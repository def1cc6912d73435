"""Kernels that only kernels call are kept as LLVM's own code: machine code is made once, of what Python calls.

Numba optimises every kernel with all that it calls, makes machine code of it, and does both again in each of its
callers. Python never calls an inner kernel, so all it needs is to be linked: whoever Python calls is optimised and
translated with the whole tree below it.

They are compiled once for all integers: Numba would compile one again for every constant that a call names and for
every width of an index.

`install()` puts five functions of this file in place of Numba's. Outside of `compiling()` they do what Numba's do, so
that the kernels of others in this process are compiled as without Etude.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import llvmlite.binding as llvm
from numba.core import codegen, targetconfig, typed_passes
from numba.core import types as numba_types
from numba.core.errors import TypingError
from numba.core.types import functions

types: Any = numba_types
DispatcherType: Any = functions.Dispatcher
PACKAGE: Final = __name__.partition(".")[0]
KIND: Final = "inner"
"""How a library without machine code is marked in the cache."""


class _Compiling(threading.local):
    depth = 0


_compiling: Final = _Compiling()


@contextmanager
def compiling() -> Iterator[None]:
    """While this thread compiles a kernel of this package."""
    _compiling.depth += 1
    try:
        yield
    finally:
        _compiling.depth -= 1


class InnerLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]
    """Code to be linked into callers, neither optimised nor translated by itself."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._ready()

    def _ready(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """None is made: 0, as Numba says of a symbol that is not there."""
        self._ensure_finalized()
        return 0

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        self._ensure_finalized()
        return self.name, KIND, self._get_module_for_linking().as_bitcode()

    @classmethod
    def read(cls, made_by: Any, state: tuple[str, str, bytes]) -> InnerLibrary:
        name, _, bitcode = state
        library = cls(made_by, name)
        library._disable_inspection = True
        library._final_module = llvm.parse_bitcode(bitcode)
        library._ready()
        return library


class _Environments:
    """Where code finds Python's objects is written into it once it is machine code: for an inner kernel that is when
    a caller of it is."""

    def __init__(self) -> None:
        self.waiting: dict[str, Any] = {}

    def set(self, made_by: Any, name: str, environment: Any) -> None:
        if made_by._engine.is_symbol_defined(name):
            _SET_ENV(made_by, name, environment)
        else:
            self.waiting[name] = environment

    def set_waiting(self, made_by: Any) -> None:
        for name in [name for name in self.waiting if made_by._engine.is_symbol_defined(name)]:
            _SET_ENV(made_by, name, self.waiting.pop(name))


def _is_inner(flags: Any) -> bool:
    """Does only compiled code call this? What Numba itself has in Python is compiled while something else is, and has
    no entry for Python; one that C may call is asked for by itself."""
    return flags.no_cpython_wrapper and (flags.no_cfunc_wrapper or len(targetconfig.ConfigStack()) > 1)


def _as_passed(kind: Any) -> Any:
    """The type of an argument inside a kernel: 64 bits for an integer with a sign, and no constant."""
    kind = types.unliteral(kind)
    return types.int64 if isinstance(kind, types.Integer) and kind.signed else kind


def _type_of_call(self: Any, context: Any, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
    """Type of a call of a kernel in a kernel."""
    if self.dispatcher.py_func.__module__.partition(".")[0] == PACKAGE:
        try:
            passed = {name: _as_passed(kind) for name, kind in kws.items()}
            return _TYPE_OF_CALL(self, context, tuple(_as_passed(kind) for kind in args), passed)
        except TypingError:  # it needs a constant: as the place of a tuple, or for a branch that has no type
            pass
    return _TYPE_OF_CALL(self, context, args, kws)


def install() -> None:
    """From here on inner kernels, and what Numba writes in Python itself, are compiled this way."""
    environments = _Environments()

    def lower(self: Any, state: Any) -> Any:
        if _compiling.depth and state.library is None and _is_inner(state.flags):
            state.flags.no_cfunc_wrapper = True
            state.library = InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
            state.library.enable_object_caching()
        return _LOWER(self, state)

    def make_code(self: Any) -> None:
        _MAKE_CODE(self)
        environments.set_waiting(self._codegen)

    def read(self: Any, state: tuple[str, str, Any]) -> Any:
        return InnerLibrary.read(self, state) if state[1] == KIND else _READ(self, state)

    def set_environment(self: Any, name: str, environment: Any) -> None:
        environments.set(self, name, environment)

    typed_passes.BaseNativeLowering.run_pass = lower
    codegen.JITCodeLibrary._finalize_specific = make_code
    codegen.CPUCodegen.unserialize_library = read
    codegen.JITCPUCodegen.set_env = set_environment
    DispatcherType.get_call_type = _type_of_call


_TYPE_OF_CALL = DispatcherType.get_call_type
_LOWER = typed_passes.BaseNativeLowering.run_pass
_MAKE_CODE = codegen.JITCodeLibrary._finalize_specific
_READ = codegen.CPUCodegen.unserialize_library
_SET_ENV = codegen.JITCPUCodegen.set_env

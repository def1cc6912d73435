"""Runs compiled kernels without Numba: LLVM puts their object files into memory, and Numba's own extension modules,
which are loaded from their files without the package around them, have the functions that the code calls.

What Python calls is the entry that Numba wrote for the kernel: it takes Python's objects apart and makes the result.
It looks at no types, so it must be given arguments of the kinds that it was compiled for.
"""

from __future__ import annotations

import builtins
import ctypes
import os
import pickle
import sys
import threading
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any, Final

from etude.kernels import guard, kept

UNPICKLE: Final = b"numba_unpickle\0", b"etude_unpickle\0"
"""Numba's function that reads Python objects out of code, which imports Numba, and the one here in its place."""
_ENGINES: list[tuple[Any, set[str]]] = []
"""(engine of LLVM, symbols that Python calls in it); a symbol that is there is not defined in the same one again."""
_LOCK: Final = threading.Lock()


class NotLoadedError(Exception):
    """This code cannot be run here without Numba."""


def load(entry: kept.CompiledEntry, function: Any, kind: tuple[Any, ...]) -> guard.Loaded:
    """Puts code into memory. NotLoadedError if it needs a function that is not there."""
    if not guard.as_expected():
        raise NotLoadedError("objects have a different layout in memory")
    with _LOCK:
        engine = _engine_for(entry.name)  # the first one makes symbols of the process known to LLVM
        for name in entry.expected:
            _provide(name)
        _add(engine, entry.code)
        address = engine.get_function_address(entry.name)
        own, objects = _environments(engine, entry, function)
        doc = f"compiled wrapper for {function.__qualname__!r}"
        made = _extension("_dynfunc").make_function(
            sys.modules[function.__module__], function.__name__, doc, address, own, (engine, objects)
        )
        return guard.guarded(kind, address, made, _guard(entry.guard))


def _add(engine: Any, code: bytes) -> None:
    engine.add_object_file(_binding().ObjectFileRef.from_data(code))
    engine.finalize_object()


@cache
def _guard(code: bytes) -> int:
    """Its address; it is the same for all kernels."""
    engine = _engine_for(guard.NAME)
    _add(engine, code)
    address: int = engine.get_function_address(guard.NAME)
    return address


def _environments(engine: Any, entry: kept.CompiledEntry, function: Any) -> tuple[Any, list[Any]]:
    """(the first, all of them), each written where the code looks for it."""
    made = []
    for name, objects in entry.environments:
        environment = _extension("_dynfunc").Environment(function.__globals__)
        environment.consts[:] = objects
        place = engine.get_global_value_address(name)
        ctypes.c_void_p.from_address(place).value = id(environment)
        made.append(environment)
    return made[0], made


def _engine_for(name: str) -> Any:
    if not _ENGINES or name in _ENGINES[-1][1]:
        llvm = _binding()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        _ENGINES.append((llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine), set()))
    engine, names = _ENGINES[-1]
    names.add(name)
    return engine


@cache
def _binding() -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@cache
def _provide(name: str) -> None:
    """LLVM ends the process at a symbol that it cannot find, so each is looked for before."""
    address = _address(name)
    if address:
        _binding().add_symbol(name, address)
    elif not _binding().address_of_symbol(name):
        raise NotLoadedError(name)


def _address(name: str) -> int | None:
    """Address that Numba would give LLVM for a name; None if it is found in the process."""
    if name == UNPICKLE[1][:-1].decode():
        return ctypes.cast(_unpickle, ctypes.c_void_p).value
    if name == "_Py_NoneStruct":
        return id(None)
    if name.startswith("PyExc_"):
        return id(getattr(builtins, name.removeprefix("PyExc_"), None))
    helpers: dict[str, int] = _extension("_helperlib").c_helpers
    if name.startswith("NRT_"):
        return _extension("core.runtime._nrt_python").c_helpers.get(name.removeprefix("NRT_"))
    if name.startswith("numba_"):
        own = name.removeprefix("numba_")
        return helpers.get(own) or _extension("_dynfunc").c_helpers.get(own)
    return helpers.get(name)  # functions of the C library for mathematics


@cache
def _extension(name: str) -> Any:
    """An extension module of Numba; it is known under its name, so that Numba, if it is imported later, takes it."""
    known = sys.modules.get(f"numba.{name}")
    module = known if known is not None else _load_extension(name)
    if name == "core.runtime._nrt_python":
        module.memsys_use_cpython_allocator()  # as Numba does when it is imported
    return module


def _load_extension(name: str) -> ModuleType:
    start = os.path.join(str(kept.numba_folder()), *name.split("."))
    path = next((start + suffix for suffix in EXTENSION_SUFFIXES if os.path.exists(start + suffix)), None)
    if path is None:
        raise NotLoadedError(name)
    spec = spec_from_file_location(f"numba.{name}", path)
    if spec is None or spec.loader is None:
        raise NotLoadedError(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[f"numba.{name}"] = module
    return module


_objects: dict[bytes, Any] = {}
"""Those that code has asked for, kept as long as it is there."""


@ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
def _unpickle(place: int, size: int, _: int) -> Any:
    """An object out of code: a class of a result, or an exception with its arguments."""
    told = ctypes.string_at(place, size)
    if told not in _objects:
        _objects[told] = pickle.loads(told)
    return _objects[told]

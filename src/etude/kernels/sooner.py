"""Numba compiles sooner: the same code of the same kernels, in less time.

Two thirds of compiling is Python that Numba runs, and much of that is spent in few places. Each change below does what
it replaces did. `install()` makes them for this process.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import codegen, ir, postproc, targetconfig, transforms
from numba.core import types as numba_types
from numba.core.types import functions

types: Any = numba_types
BaseFunction: Any = functions.BaseFunction
NUMBA = "0.68."
"""The versions whose inside this was written for and tested with."""


class _Paused:
    count = 0
    lock = threading.Lock()
    was_on = False


@contextmanager
def no_garbage_collection() -> Iterator[None]:
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


# -- options of a kernel, part of the key of every overload that is looked up ------------------------------------------


def _same_options(self: Any, other: Any) -> Any:
    if self is other:
        return True
    if not isinstance(other, targetconfig.TargetConfig):
        return NotImplemented
    if self._values.keys() == other._values.keys() and type(self) is type(other):
        return self._values == other._values
    return self.values() == other.values()


def _hash_of_options(self: Any) -> int:
    """Numba hashes the names of all options, which every instance of a class has."""
    return hash(type(self))


# -- variables of an instruction ---------------------------------------------------------------------------------------

_NOTHING, _VARIABLE, _INSTRUCTION, _SEQUENCE, _MAPPING = range(5)
_holds: dict[type, int] = {}
"""What instances of a class hold, by class."""


def _what_it_holds(kind: type) -> int:
    kinds = (ir.Var, _VARIABLE), (ir.Inst, _INSTRUCTION), (list | tuple, _SEQUENCE), (dict, _MAPPING)
    found = next((holds for base, holds in kinds if issubclass(kind, base)), _NOTHING)
    _holds[kind] = found
    return found


def _variables_in(self: Any, value: Any) -> list[Any]:
    found: list[Any] = []
    _gather((value,), found)
    return found


def _gather(values: Any, found: list[Any]) -> None:
    for value in values:
        kind = value.__class__
        holds = _holds[kind] if kind in _holds else _what_it_holds(kind)
        if holds == _NOTHING:
            continue
        if holds == _VARIABLE:
            found.append(value)
        elif holds == _INSTRUCTION:
            found.extend(value.list_vars())
        else:
            _gather(value if holds == _SEQUENCE else value.values(), found)


# -- lifetimes of variables --------------------------------------------------------------------------------------------

_process = postproc.PostProcessor.run


def _process_again(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    """Numba finds out after every pass which variables live at the start of each block, which generators alone need;
    how long they live is found out when it is asked for."""
    if emit_dels or self.func_ir.is_generator:
        _process(self, emit_dels, extend_lifetimes)
        return
    self.func_ir.blocks = transforms.canonicalize_cfg(self.func_ir.blocks)
    self.func_ir.variable_lifetime = postproc.VariableLifetime(self.func_ir.blocks)
    self.func_ir.generator_info = None


# -- the type of a call ------------------------------------------------------------------------------------------------

_PLAIN = (
    types.Number,
    types.Boolean,
    types.Array,
    types.SliceType,
    types.Literal,
    types.NoneType,
    types.BaseTuple,
    types.Record,
    types.DType,
    types.NumberClass,
)
"""Types whose calls are always the same: they are made of nothing that changes."""

_type_of_call = BaseFunction.get_call_type
_known_calls: dict[int, tuple[Any, dict[Any, Any]]] = {}
"""By function, which is kept so that its number stays its own: the types of its arguments -> signature and key."""


_options: list[Any] = []
"""Those seen, each once."""
_numbers: dict[int, tuple[Any, int]] = {}
"""By the identity of options, which are kept so that it stays theirs: their place among those seen. Numba's stack holds
copies that do not change."""


def _number_of(options: Any) -> int:
    known = _numbers.get(id(options))
    if known is None:
        if options not in _options:
            _options.append(options)
        known = _numbers[id(options)] = options, _options.index(options)
    return known[1]


def _remembered_type_of_call(self: Any, context: Any, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
    """Numba tries every way to add two numbers for every sum; a function with other ways is another object."""
    if kws or not all(isinstance(kind, _PLAIN) for kind in args):
        return _type_of_call(self, context, args, kws)
    known = _known_calls.setdefault(id(self), (self, {}))[1]
    key = context, args, _number_of(targetconfig.ConfigStack.top_or_none())
    if key not in known:
        signature = _type_of_call(self, context, args, kws)
        if signature is None:
            return None
        known[key] = signature, self._impl_keys[signature.args]
    signature, self._impl_keys[signature.args] = known[key]
    return signature


# -- LLVM's passes over single functions ------------------------------------------------------------------------------


def _optimize_bodies(self: Any, module: Any) -> None:
    """Numba sets up these passes for every function that is declared, most of which have no body here."""
    module.data_layout = self._codegen._data_layout
    for function in module.functions:
        if not function.is_declaration:
            passes, builder = self._codegen._function_pass_manager()
            with self._recorded_timings.record(f"Function passes on {function.name!r}", builder):
                passes.run(function, builder)


def install() -> None:
    """Numba with these functions in place of its own."""
    targetconfig.TargetConfig.__eq__ = _same_options
    targetconfig.TargetConfig.__hash__ = _hash_of_options
    ir.Inst._rec_list_vars = _variables_in
    postproc.PostProcessor.run = _process_again
    BaseFunction.get_call_type = _remembered_type_of_call
    codegen.CPUCodeLibrary._optimize_functions = _optimize_bodies

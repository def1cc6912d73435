"""How kernels are given records: NamedTuples of this package that Python passes to a kernel, by their address.

Numba takes a tuple apart at every call: each array of a record is seven arguments and more, so that a kernel that hands
a state of forty arrays on has hundreds, which take most of the time of compiling. Here the entry of a kernel writes the
record into its frame once, and kernels hand on where it is. A field is read from there when it is used.

A record that a kernel makes itself stays a tuple as Numba knows it.
"""

from __future__ import annotations

import hashlib
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import default_manager
from numba.core.datamodel.models import PrimitiveModel
from numba.core.imputils import impl_ret_borrowed, lower_builtin, lower_getattr_generic
from numba.core.pythonapi import NativeValue, box, unbox
from numba.core.types.containers import NamedTuple
from numba.core.typing.typeof import typeof_impl

PACKAGE = __name__.partition(".")[0]
PASSED = "by address"  # part of the key of compiled code


class Record(NamedTuple):  # type: ignore[misc]
    """The type of a record that came from Python."""

    def __init__(self, fields: tuple[Any, ...], cls: type) -> None:
        super().__init__(fields, cls)
        known = f"{cls.__module__}.{cls.__qualname__}{cls._fields}{[str(field) for field in fields]}"  # type: ignore[attr-defined]
        self.name = f"{cls.__name__}.{hashlib.sha256(known.encode()).hexdigest()[:16]}"

    @property
    def key(self) -> str:
        return self.name  # short, for it is compared and hashed all the time


_tuple_type = typeof_impl.dispatch(tuple)


@typeof_impl.register(tuple)
def _type_of_tuple(value: Any, context: Any) -> Any:
    cls = type(value)
    if hasattr(cls, "_fields") and cls.__module__.partition(".")[0] == PACKAGE:
        fields = tuple(typeof_impl(field, context) for field in value)
        return None if None in fields else Record(fields, cls)
    return _tuple_type(value, context)


class _Address(PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Record) -> None:
        super().__init__(manager, kind, layout(manager, kind).as_pointer())


default_manager.register(Record, _Address)


def layout(manager: Any, kind: Record) -> Any:
    """What is at the address of a record: its fields, records among them as they are."""
    return ir.LiteralStructType(
        [
            layout(manager, field) if isinstance(field, Record) else manager.lookup(field).get_value_type()
            for field in kind.types
        ]
    )


def field(context: Any, builder: Any, kind: Record, address: Any, index: int) -> Any:
    place = cgutils.gep_inbounds(builder, address, 0, index)
    value = place if isinstance(kind.types[index], Record) else builder.load(place)
    return impl_ret_borrowed(context, builder, kind.types[index], value)


@lower_getattr_generic(Record)
def _attribute(context: Any, builder: Any, kind: Record, address: Any, name: str) -> Any:
    return field(context, builder, kind, address, kind.fields.index(name))


@lower_builtin("static_getitem", Record, types.IntegerLiteral)
def _item(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind, index = signature.args
    return field(context, builder, kind, arguments[0], index.literal_value % len(kind.types))


@unbox(Record)
def _from_python(kind: Record, found: Any, c: Any) -> Any:
    address = cgutils.alloca_once(c.builder, layout(c.context.data_model_manager, kind))
    failed = cgutils.alloca_once_value(c.builder, cgutils.false_bit)
    cleanups: list[Any] = []
    _write(kind, found, address, failed, cleanups, c)

    def cleanup() -> None:
        for undo in reversed(cleanups):
            undo()

    return NativeValue(address, cleanup=cleanup, is_error=c.builder.load(failed))


def _write(kind: Record, found: Any, address: Any, failed: Any, cleanups: list[Any], c: Any) -> None:
    for index, inside in enumerate(kind.types):
        item = c.pyapi.tuple_getitem(found, index)
        place = cgutils.gep_inbounds(c.builder, address, 0, index)
        if isinstance(inside, Record):
            _write(inside, item, place, failed, cleanups, c)
            continue
        native = c.unbox(inside, item)
        c.builder.store(native.value, place)
        with c.builder.if_then(native.is_error, likely=False):
            c.builder.store(cgutils.true_bit, failed)
        if native.cleanup is not None:
            cleanups.append(native.cleanup)
        if c.context.enable_nrt:
            cleanups.append(lambda kind=inside, value=native.value: c.context.nrt.decref(c.builder, kind, value))


@box(Record)
def _to_python(kind: Record, address: Any, c: Any) -> Any:
    values = [field(c.context, c.builder, kind, address, index) for index in range(len(kind.types))]
    items = [c.box(inside, value) for inside, value in zip(kind.types, values, strict=True)]
    cls = c.pyapi.unserialize(c.pyapi.serialize_object(kind.instance_class))
    made = c.pyapi.call_function_objargs(cls, items)
    for item in (*items, cls):
        c.pyapi.decref(item)
    return made

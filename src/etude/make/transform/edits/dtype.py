"""dtype: selected nodes in another data type."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.cost.aten_inputs import dtype_of
from etude.cost.ops import DTYPE_BYTES, NARROW
from etude.cost.traces import trace_time_ns
from etude.make.transform.edits.definition import Definition, Here, Parameter, choice, rounded
from etude.model.schema import UNKNOWN

_SPELLED: Final = {
    "fp64": "double",
    "fp32": "c10::Float",
    "bf16": "c10::BFloat16",
    "fp16": "c10::Half",
    "fp8": "c10::Float8_e4m3fn",
    "int8": "signed char",
}
"""How types are spelled in recorded inputs."""


def rewrite(here: Here, to: str) -> None:
    """Bytes by the widths of both types; FLOPs are unchanged. A known time was for the other type: with a system it is
    scaled by the roofline of its device, without one it is dropped."""
    trace, made = here.trace, here.made
    codes, words = trace.coded("in_types", here.rows)
    types = [dtype_of(word) for word in words]
    changes = np.array([*(kind not in ("", to) for kind in types), False])[codes]
    if (codes < 0).any() or "" in types:
        here.note("nodes without a known data type are not changed")
    rows, codes = here.rows[changes], codes[changes]
    if not len(rows):
        return
    factor = np.array([DTYPE_BYTES[to] / DTYPE_BYTES.get(kind, DTYPE_BYTES[to]) for kind in types])[codes]
    for name in ("in_bytes", "out_bytes", "tensor_bytes"):
        old = getattr(trace, name)[rows]
        if (old != UNKNOWN).any():
            made.set(name, rows, np.where(old == UNKNOWN, UNKNOWN, rounded(np.where(old == UNKNOWN, 0, old) * factor)))
    for column in ("in_types", "out_types"):
        mine, spelled = trace.coded(column, rows)
        if spelled:
            made.words(column, rows, [_respelled(word, to) for word in spelled], mine)
    timed = rows[trace.duration_ns[rows] != UNKNOWN]
    if not len(timed):
        return
    if here.system is None:
        made.set("duration_ns", timed, UNKNOWN)
        here.note("times recorded in another data type are left out: --system scales them by the roofline of a device")
        return
    device = here.system.device.busy()
    before, after = trace_time_ns(device, trace)[timed], trace_time_ns(device, made.trace())[timed]
    made.set("duration_ns", timed, rounded(trace.duration_ns[timed] * (after / np.maximum(before, 1))))


def _respelled(types: str, to: str) -> str:
    """`['Tensor(c10::BFloat16)', 'Int']` with tensors of numbers to compute with in another type."""

    def other(found: re.Match[str]) -> str:
        return f"({_SPELLED[to]})" if dtype_of(f"['Tensor{found[0]}']") else found[0]

    changed = re.sub(r"\([^()]*\)", other, types)
    if dtype_of(types) and changed == types:
        raise UsageError(f"data types as they are written in `{types[:60]}` cannot be changed", hint="select others")
    return changed


def _by_recipe(to: str) -> str:
    """Recipes of 8 bits change the products of linear layers alone."""
    return "linear" if to in NARROW else ""


EDIT = Definition(
    machine=lambda **_: True,
    doc="selected nodes in data type `to`: bytes by the widths, the device's peak by the type; FLOPs are unchanged. "
    "With `fp8` and `int8`, unless `kind` or `op` says more: products of linear layers but the head and routers",
    cannot="accuracy, casts at the boundaries, and the real speed of a kernel of that type",
    parameters={"to": Parameter(read=choice(*_SPELLED), doc="fp8, bf16, fp16, fp32, fp64, int8")},
    selects="compute",
    narrower=_by_recipe,
    rewrite=rewrite,
)

"""Forms of one operator: `aten::mm` with and without `out=`, in place, and by the names of its overloads.

Eager code calls `aten::mm(a, b)`, compiled code `aten::mm(a, b, out=c)`: profilers record the output tensor as an extra
input, so neither names nor shapes are equal although the work is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["base_name", "forms", "one_form"]

Key = tuple[str, str, str | None]
"""Kind, name, shapes."""
Forms = Mapping[Key, Key]

_OPERATOR: Final = re.compile(r"(?P<space>\w+::)(?P<op>\w+)(?:\.\w+)?")
_MOST_OUTPUTS: Final = 4
_TAKES_MORE: Final = frozenset({"max", "min", "where", "bernoulli", "normal", "repeat_interleave", "clamp"})
"""Operators that do something else with one more tensor: `max(x)` is a reduction, `max(x, y)` is not."""


def base_name(name: str) -> str:
    """`aten::mm` of `aten::mm.out`, `aten::add` of `aten::add_` and `aten::add.Tensor`; other names as they are."""
    found = _OPERATOR.fullmatch(name)
    if found is None:
        return name
    op = found["op"].removesuffix("_out")
    if op.endswith("_") and not op.endswith("__"):
        op = op[:-1]
    return f"{found['space']}{op}"


def one_form(keys: Iterable[Key]) -> Forms:
    """For each operation of all compared runs, the key that all of its forms share. An operation with one form keeps
    its name."""
    by_base: dict[tuple[str, str], list[Key]] = {}
    for key in dict.fromkeys(keys):
        by_base.setdefault((key[0], base_name(key[1] or "")), []).append(key)
    found: dict[Key, Key] = {}
    for (kind, base), mine in by_base.items():
        plain = _without_outputs(base, {shapes for _, _, shapes in mine if shapes is not None})
        together: dict[str | None, list[Key]] = {}
        for key in mine:
            together.setdefault(plain.get(key[2] or "", key[2]), []).append(key)
        for shapes, alike in together.items():
            names = {name for _, name, _ in alike}
            found |= dict.fromkeys(alike, (kind, names.pop() if len(names) == 1 else base, shapes))
    return found


def forms(alike: Iterable[Key], shapes: str | None) -> str:
    """Names of the forms of one operation: `aten::mm, aten::mm(out=)`; empty if there is one."""
    called = {f"{name}(out=)" if mine != shapes else str(name) for _, name, mine in alike}
    return ", ".join(sorted(called)) if len(called) > 1 else ""


def _without_outputs(base: str, every: set[str]) -> dict[str, str]:
    """For shapes that end with output tensors, those of the same call without them, if that call exists."""
    if base.rpartition("::")[2] in _TAKES_MORE or "::" not in base:
        return {}
    parsed = {shapes: _parsed(shapes) for shapes in every}
    known = {json.dumps(inputs): shapes for shapes, inputs in parsed.items() if inputs is not None}
    found = {}
    for shapes, inputs in parsed.items():
        rest = list(inputs or ())
        for _ in range(_MOST_OUTPUTS):
            if len(rest) < 2 or not _is_tensor(rest[-1]):
                break
            rest.pop()
            if (same := known.get(json.dumps(rest))) is not None:
                found[shapes] = same
    return found


def _parsed(shapes: str) -> list[object] | None:
    try:
        inputs = json.loads(shapes)
    except ValueError:
        return None
    return inputs if isinstance(inputs, list) else None


def _is_tensor(shape: object) -> bool:
    return isinstance(shape, list) and bool(shape) and all(type(size) is int for size in shape)

"""Expressions over tables: what a number on a page says of itself, and what `etude evaluate` works out.

    sum(breakdown.exposed_comm_ns) / sum(breakdown.span_ns)
    median(steps[steps.rank == 3].span_ns)
    kernels[0].total_ns

`TABLE.column` is a column, `TABLE[3]` a row (`TABLE[-1]` the last), `TABLE[CONDITION]` the rows for which it holds;
conditions compare columns and are joined by `&` and `|`. Values that are not known are left out of sums, means,
medians and extremes. Nothing else of Python is understood, so an expression of a file runs no code.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.kernels.arrays import I64

__all__ = ["Lookup", "evaluate"]

Lookup = Callable[[str], pa.Table]
"""A table by its name; raises KeyError for one that is not known."""
MOST_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    table: pa.Table
    chosen: I64 | None = None

    def column(self, name: str) -> Any:
        if name not in self.table.column_names:
            raise UsageError(f"no column `{name}`", hint=f"known: {', '.join(self.table.column_names)}")
        values = self.table[name].to_numpy(zero_copy_only=False)
        return values if self.chosen is None else values[self.chosen]

    def __len__(self) -> int:
        return len(self.table) if self.chosen is None else len(self.chosen)

    def at(self, number: int) -> _Row:
        if not -len(self) <= number < len(self):
            raise UsageError(f"no row {number} of {len(self)}")
        place = number % len(self)
        return _Row(self.table, place if self.chosen is None else int(self.chosen[place]))


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    table: pa.Table
    number: int

    def value(self, name: str) -> Any:
        if name not in self.table.column_names:
            raise UsageError(f"no column `{name}`", hint=f"known: {', '.join(self.table.column_names)}")
        return self.table[name][self.number].as_py()


def _known(values: Any) -> Any:
    found = np.asarray(values)
    if found.dtype == object:
        found = np.array([value for value in found.tolist() if value is not None])
    return found[~np.isnan(found)] if found.dtype.kind == "f" else found


def _sum(values: Any) -> int | float:
    known = _known(values)
    total: int | float = known.sum().item() if len(known) else 0
    return total


def _over(reduce: Callable[[Any], Any]) -> Callable[[Any], float | None]:
    def found(values: Any) -> float | None:
        known = _known(values)
        return reduce(known).item() if len(known) else None

    return found


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "sum": _sum,
    "mean": _over(np.mean),
    "median": _over(np.median),
    "min": _over(np.min),
    "max": _over(np.max),
    "count": len,
    "quantile": lambda values, part: float(np.quantile(_known(values), part)) if len(_known(values)) else None,
    "abs": np.abs,
    "least": min,
    "most": max,
    "round": round,
    "item": lambda values, number: values[number],
}
"""`quantile` takes the part that lies below it (0.99); `least` and `most` take single values; `item` is one of a list
that is a value."""
_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.BitAnd: np.logical_and,
    ast.BitOr: np.logical_or,
}
_COMPARED: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def evaluate(text: str, lookup: Lookup, functions: Mapping[str, Callable[..., Any]] | None = None) -> Any:
    """The value of an expression: a number, a text, a truth, or None where it is not known."""
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"an expression of {len(text):,} characters", hint=f"at most {MOST_CHARACTERS:,}")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        hint = "sum(breakdown.idle_ns) / sum(breakdown.span_ns)"
        raise UsageError(f"`{text}` is no expression", hint=hint) from problem
    try:
        found = _Evaluation(lookup, {**FUNCTIONS, **(functions or {})}).of(tree)
    except ZeroDivisionError as problem:
        raise UsageError("division by 0", where=text) from problem
    except (TypeError, ValueError, IndexError, AttributeError) as problem:
        raise UsageError(f"`{text}` cannot be worked out: {problem}") from problem
    if isinstance(found, (_Rows, _Row)) or (isinstance(found, np.ndarray) and found.ndim):
        raise UsageError(f"`{text}` is not one value", hint="sum(...), median(...), count(...), or a row: TABLE[0]")
    return found.item() if isinstance(found, (np.generic, np.ndarray)) else found


@dataclass(frozen=True, slots=True)
class _Evaluation:
    lookup: Lookup
    functions: Mapping[str, Callable[..., Any]]

    def of(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value) if isinstance(value, (int, float, str, bool)) or value is None:
                return value
            case ast.Name(id=name):
                return self._table(name)
            case ast.Attribute(value=inner, attr=name):
                of = self.of(inner)
                if isinstance(of, _Rows):
                    return of.column(name)
                if isinstance(of, _Row):
                    return of.value(name)
            case ast.Subscript(value=inner, slice=index):
                return self._chosen(self.of(inner), self.of(index))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](self.of(left), self.of(right))
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self.of(inner)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
                return _COMPARED[type(op)](self.of(left), self.of(right))
            case ast.Call(func=ast.Name(id=name), args=given, keywords=named) if name in self.functions:
                more = {one.arg: self.of(one.value) for one in named if one.arg}
                return self.functions[name](*map(self.of, given), **more)
            case ast.Call(func=ast.Name(id=name)):
                raise UsageError(f"no function `{name}`", hint=f"known: {', '.join(sorted(self.functions))}")
        raise UsageError(f"`{ast.unparse(node)}` is not understood", hint="TABLE.column, TABLE[CONDITION], sum(...)")

    def _table(self, name: str) -> _Rows:
        try:
            return _Rows(self.lookup(name))
        except KeyError as problem:
            raise UsageError(f"no table `{name}`", hint=f"known: {problem.args[0]}") from None

    def _chosen(self, of: Any, index: Any) -> _Rows | _Row:
        if not isinstance(of, _Rows):
            raise UsageError("only of a table rows are chosen")
        if isinstance(index, (int, np.integer)) and not isinstance(index, (bool, np.bool_)):
            return of.at(int(index))
        held = np.asarray(index)
        if held.dtype != bool or held.shape != (len(of),):
            raise UsageError("rows are chosen by a number or by a condition", hint="TABLE[TABLE.rank == 3]")
        rows = np.flatnonzero(held)
        return _Rows(of.table, rows if of.chosen is None else of.chosen[rows])

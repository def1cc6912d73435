"""Expressions of studies: arithmetic, comparisons and a few functions over named values, and nothing else."""

import ast
import math
from collections.abc import Callable, Container, Iterator, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError

_NODES: Final = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Store, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
    ast.IfExp, ast.Call, ast.keyword, ast.Subscript, ast.Slice, ast.List, ast.Tuple, ast.Attribute, ast.ListComp,
    ast.GeneratorExp, ast.comprehension, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip

MOST_BITS: Final = 4096
MOST_VALUES: Final = 1_000_000


def numbers(*ends: int) -> list[int]:
    """As Python's range."""
    if len(found := range(*ends)) > MOST_VALUES:
        raise UsageError(f"more than {MOST_VALUES:,} values")
    return list(found)


class NotAskedError(UsageError):
    """What a check or a claim needs is not part of this study."""


def _series(values: Any) -> NDArray[np.float64]:
    row = np.atleast_1d(np.asarray(values, np.float64))
    if len(row) < 2:
        raise NotAskedError("one point neither rises nor falls")
    return row


def rising(values: Any, by: float = 0.0) -> bool:
    """Whether no value is below the one before, by more than this part of it, and the last is above the first."""
    row = _series(values)
    return bool((row[1:] >= row[:-1] * (1 - by)).all() and row[-1] > row[0])


def falling(values: Any, by: float = 0.0) -> bool:
    """Whether no value is above the one before, by more than this part of it, and the last is below the first."""
    row = _series(values)
    return bool((row[1:] <= row[:-1] * (1 + by)).all() and row[-1] < row[0])


def close(a: Any, b: Any, rel: float = 1e-9) -> Any:
    """Whether two figures are equal but for rounding."""
    return np.isclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=rel, atol=0)


def get(of: Any, key: Any, default: Any = None) -> Any:
    """What is under a key, or the default."""
    return of.get(key, default) if isinstance(of, Mapping) else default


def pick(rows: Any, key: str, value: Any) -> Any:
    """The first record of a list that has this value under this key."""
    for row in rows:
        if isinstance(row, Mapping) and row.get(key) == value:
            return row
    raise UsageError(f"no record has `{value}` as its `{key}`")


def lines(texts: Any) -> str:
    """Texts, each on a line of its own."""
    return "\n".join(map(str, texts)) + "\n"


def values(of: Mapping[str, Any]) -> list[Any]:
    return list(of.values())


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "abs": abs, "all": np.all, "any": np.any, "ceil": math.ceil, "close": close, "falling": falling,
    "float": float, "floor": math.floor, "get": get, "int": int, "len": len, "lines": lines, "log2": np.log2,
    "max": np.max, "mean": np.mean, "median": np.median, "min": np.min, "pick": pick, "range": numbers,
    "rising": rising, "round": round, "sin": math.sin, "sorted": sorted, "sqrt": np.sqrt, "str": str, "sum": sum,
    "values": values, "zip": zip,
}  # fmt: skip


def evaluated(text: str, names: Mapping[str, Any], where: str) -> Any:
    """What the expression comes to, with these names and the functions."""
    code, used = _compiled(text, where)
    missing = sorted(used - set(names) - set(FUNCTIONS))
    if missing:
        known = ", ".join(sorted(map(str, names))[:40])
        raise UsageError(f"unknown name `{missing[0]}` in `{text}`", where=where, hint=f"known: {known}")
    try:
        return eval(code, {"__builtins__": {}, **FUNCTIONS, **names, **_BOUNDED, "_member": _member})
    except UsageError as problem:
        raise type(problem)(problem.problem, where=problem.where or where, hint=problem.hint) from None
    except (ArithmeticError, TypeError, ValueError, LookupError, AttributeError) as problem:
        raise UsageError(f"`{text}` cannot be evaluated: {problem}", where=where) from None


CONDITIONS: Final = ("all", "any", "close", "falling", "rising")
"""Functions whose answer is yes or no."""


def is_condition(text: str) -> bool:
    """Whether the expression can only be true or false."""
    return _is_condition(ast.parse(text.strip(), mode="eval").body)


def _is_condition(node: ast.AST) -> bool:
    if isinstance(node, ast.BoolOp):
        return all(map(_is_condition, node.values))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not) and _is_condition(node.operand)
    if isinstance(node, ast.IfExp):
        return _is_condition(node.body) and _is_condition(node.orelse)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in CONDITIONS
    return isinstance(node, ast.Compare)


def calls_in(text: str, names: Container[str]) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """(name, arguments, keywords) of calls of these names, as far as they are written out; others are None."""
    for node in ast.walk(ast.parse(text.strip(), mode="eval")):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            keywords = {one.arg: _written(one.value) for one in node.keywords if one.arg}
            yield node.func.id, [_written(one) for one in node.args], keywords


def _written(node: ast.AST) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def names_in(text: str, where: str) -> set[str]:
    """The names that an expression uses; it is checked by that."""
    return set(_compiled(text, where)[1])


@lru_cache(4096)
def _compiled(text: str, where: str) -> tuple[CodeType, frozenset[str]]:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"`{text}` is not an expression", where=where) from None
    bound: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            problem = f"`{text}` uses {type(node).__name__.lower()}, which expressions do not support"
            hint = "arithmetic, comparisons, and or not, calls, lists, [x for x in y]"
            raise UsageError(problem, where=where, hint=hint)
        if isinstance(node, ast.Name):
            if node.id.startswith("_"):
                raise UsageError(f"unknown name `{node.id}` in `{text}`", where=where)
            (bound if isinstance(node.ctx, ast.Store) else used).add(node.id)
    whole = ast.fix_missing_locations(_Members().visit(tree))
    return compile(whole, "<study>", "eval"), frozenset(used - bound)


class _Members(ast.NodeTransformer):
    """`a.b` is the key `b` of the record `a`, never an attribute of a Python object; powers and products have a size
    that can be held."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        left, right = self.visit(node.left), self.visit(node.right)
        bounded = {ast.Pow: "_power", ast.Mult: "_product", ast.LShift: "_shift"}.get(type(node.op))
        if bounded is None:
            return ast.BinOp(left, node.op, right)
        return ast.Call(ast.Name(bounded, ast.Load()), [left, right], [])

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        inner = self.visit(node.value)
        return ast.Call(ast.Name("_member", ast.Load()), [inner, ast.Constant(node.attr)], [])


def _power(of: Any, by: Any) -> Any:
    if isinstance(of, int) and isinstance(by, int) and of.bit_length() * by > MOST_BITS:
        raise UsageError(f"a power of more than {MOST_BITS:,} bits")
    return of**by


def _product(of: Any, by: Any) -> Any:
    if isinstance(of, int) and isinstance(by, int):
        if of.bit_length() + by.bit_length() > MOST_BITS:
            raise UsageError(f"a product of more than {MOST_BITS:,} bits")
    else:
        for a, b in ((of, by), (by, of)):
            if isinstance(a, list | tuple | str) and isinstance(b, int) and len(a) * b > MOST_VALUES:
                raise UsageError(f"more than {MOST_VALUES:,} values")
    return of * by


def _shift(of: Any, by: Any) -> Any:
    if isinstance(of, int) and isinstance(by, int) and of.bit_length() + by > MOST_BITS:
        raise UsageError(f"a number of more than {MOST_BITS:,} bits")
    return of << by


_BOUNDED: Final = {"_power": _power, "_product": _product, "_shift": _shift}


def _member(of: Any, key: str) -> Any:
    """A key of a record; of a list of records, that of each."""
    if isinstance(of, Mapping):
        if key not in of:
            raise UsageError(f"there is no `{key}`", hint=f"known: {', '.join(map(str, of)) or 'no keys'}")
        return of[key]
    if isinstance(of, list):
        return [_member(item, key) for item in of]
    raise UsageError(f"`{key}` is looked up in {type(of).__name__}, which is not a record")

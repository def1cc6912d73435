"""Expressions of studies: arithmetic, comparisons and a few functions over named values, and nothing else."""

import ast
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError

_NODES: Final = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Store, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
    ast.IfExp, ast.Call, ast.keyword, ast.Subscript, ast.Slice, ast.List, ast.Tuple, ast.Attribute, ast.ListComp,
    ast.GeneratorExp, ast.comprehension, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip


def rising(values: Any, by: float = 0.0) -> bool:
    """Whether no value is below the one before, by more than this part of it, and the last is above the first."""
    row = np.asarray(values, np.float64)
    return bool(len(row) > 1 and (row[1:] >= row[:-1] * (1 - by)).all() and row[-1] > row[0])


def falling(values: Any, by: float = 0.0) -> bool:
    """Whether no value is above the one before, by more than this part of it, and the last is below the first."""
    row = np.asarray(values, np.float64)
    return bool(len(row) > 1 and (row[1:] <= row[:-1] * (1 + by)).all() and row[-1] < row[0])


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
    "max": np.max, "mean": np.mean, "median": np.median, "min": np.min, "pick": pick, "range": range, "rising": rising,
    "round": round, "sin": math.sin, "sorted": sorted, "sqrt": np.sqrt, "str": str, "sum": sum, "values": values,
    "zip": zip,
}  # fmt: skip


def evaluated(text: str, names: Mapping[str, Any], where: str) -> Any:
    """What the expression comes to, with these names and the functions."""
    code, used = _compiled(text, where)
    missing = sorted(used - set(names) - set(FUNCTIONS))
    if missing:
        known = ", ".join(sorted(map(str, names))[:40])
        raise UsageError(f"unknown name `{missing[0]}` in `{text}`", where=where, hint=f"known: {known}")
    try:
        return eval(code, {"__builtins__": {}, **FUNCTIONS, **names, "_member": _member})
    except UsageError as problem:
        raise UsageError(problem.problem, where=problem.where or where, hint=problem.hint) from None
    except (ArithmeticError, TypeError, ValueError, LookupError, AttributeError) as problem:
        raise UsageError(f"`{text}` cannot be evaluated: {problem}", where=where) from None


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
    """`a.b` is the key `b` of the record `a`, never an attribute of a Python object."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        inner = self.visit(node.value)
        return ast.Call(ast.Name("_member", ast.Load()), [inner, ast.Constant(node.attr)], [])


def _member(of: Any, key: str) -> Any:
    """A key of a record; of a list of records, that of each."""
    if isinstance(of, Mapping):
        if key not in of:
            raise UsageError(f"there is no `{key}`", hint=f"known: {', '.join(map(str, of)) or 'no keys'}")
        return of[key]
    if isinstance(of, list):
        return [_member(item, key) for item in of]
    raise UsageError(f"`{key}` is looked up in {type(of).__name__}, which is not a record")

"""Mutants of a source file: one operator, constant or statement each, changed so that a number may change.

    for one in mutants_of("src/etude/world/serve/fit.py", text): print(one.line, one.kind, one.after)

Positions come from the syntax tree, the change is made in the text, so that the rest of a file stays as it is. Left out
is what changes no number: annotations, decorators, errors that are raised, f-strings, and how an option is shown.
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
from dataclasses import dataclass
from typing import Any, Final

COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, ...]]] = {
    ast.Lt: ("<", "<=", ">"), ast.LtE: ("<=", "<", ">="), ast.Gt: (">", ">=", "<"), ast.GtE: (">=", ">", "<="),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: (r"not\s+in", "in"),
    ast.Is: ("is", "is not"), ast.IsNot: (r"is\s+not", "is"),
}  # fmt: skip
"""Operator -> how it is written, and what replaces it."""
ARITHMETIC: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.Add: (r"\+", "-"), ast.Sub: ("-", "+"), ast.Mult: (r"\*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"), ast.Pow: (r"\*\*", "*"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"), ast.BitOr: (r"\|", "&"),
}  # fmt: skip
SWAPPED: Final = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any",
    "floor": "ceil", "ceil": "floor", "argmin": "argmax", "argmax": "argmin",
}  # fmt: skip
SHOWN: Final = frozenset({"rare", "panel", "names", "like", "metavar", "plain", "local", "strict", "doc", "hint"})
"""Keywords whose values change no number."""
LARGE: Final = 1000
"""From here on one more or less is lost in the noise: a constant is multiplied instead."""


@dataclass(frozen=True, slots=True)
class Mutant:
    path: str
    line: int
    kind: str
    start: int
    end: int
    """Bytes of the file that are replaced."""
    put: bytes
    before: str
    after: str
    """The line, without and with the change."""
    function: str
    """The function that it is in, with its class; empty: none."""

    @property
    def key(self) -> str:
        """The same as long as the line and its file are called the same, wherever the line stands."""
        text = "\n".join((self.path, self.function, self.before, self.after))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def applied(self, text: bytes) -> bytes:
        return text[: self.start] + self.put + text[self.end :]

    def parses(self, text: bytes) -> bool:
        """Whether Python can read the file with the change: a syntax error needs no test."""
        try:
            ast.parse(self.applied(text))
        except (SyntaxError, ValueError):
            return False
        return True


def mutants_of(path: str, text: bytes) -> list[Mutant]:
    """All mutants of a file, in the order of their places."""
    finder = _Finder(text)
    finder.visit(ast.parse(text))
    found: dict[tuple[int, int, bytes], Mutant] = {}
    for kind, start, end, put, function in finder.changes:
        line = text.count(b"\n", 0, start)
        first, last = text.rfind(b"\n", 0, start) + 1, text.find(b"\n", end)
        before = text[first : last if last >= 0 else len(text)]
        after = before[: start - first] + put + before[end - first :]
        one = Mutant(path, line + 1, kind, start, end, put, *(_shown(one) for one in (before, after)), function)
        found.setdefault((start, end, put), one)
    return sorted(found.values(), key=lambda one: (one.start, one.end, one.put))


def _shown(lines: bytes) -> str:
    """One line, however many there are."""
    return " ".join(lines.decode().split())


class _Finder(ast.NodeVisitor):
    def __init__(self, text: bytes) -> None:
        self.text = text
        self.starts = [0]
        for line in text.split(b"\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.changes: list[tuple[str, int, int, bytes, str]] = []
        self.inside: list[str] = []

    # -- places --------------------------------------------------------------------------------------------------------

    def _span(self, node: Any) -> tuple[int, int]:
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _of(self, node: Any) -> bytes:
        start, end = self._span(node)
        return self.text[start:end]

    def _change(self, kind: str, start: int, end: int, put: bytes) -> None:
        self.changes.append((kind, start, end, put, ".".join(self.inside)))

    def _between(self, kind: str, left: Any, right: Any, written: str, puts: tuple[str, ...]) -> None:
        """Replaces an operator between two operands."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = re.sub(rb"#[^\n]*", lambda m: b" " * len(m[0]), self.text[start:end])
        word = rf"\b{written}\b" if written[0].isalpha() else written
        match = re.search(word.encode(), gap)
        if match:
            for put in puts:
                self._change(kind, start + match.start(), start + match.end(), put.encode())

    # -- what is left out ----------------------------------------------------------------------------------------------

    def visit_Raise(self, node: ast.Raise) -> None: ...
    def visit_Assert(self, node: ast.Assert) -> None: ...
    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...
    def visit_Import(self, node: ast.Import) -> None: ...
    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None: ...

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in SHOWN:
            self.visit(node.value)

    def _scope(self, node: Any) -> None:
        self.inside.append(node.name)
        if isinstance(node, ast.FunctionDef):
            self.visit(node.args)
        for one in node.body:
            self.visit(one)
        self.inside.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _scope

    # -- what is changed -----------------------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            written, *puts = COMPARISONS[type(operator)]
            self._between("comparison", left, right, written, tuple(puts))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not any(_is_text(side) for side in (node.left, node.right)) and type(node.op) in ARITHMETIC:
            written, put = ARITHMETIC[type(node.op)]
            self._between("arithmetic", node.left, node.right, written, (put,))
            if isinstance(node.op, ast.Mult | ast.Div):
                self._change("factor", *self._span(node), b"(1000 * (" + self._of(node) + b"))")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        written, put = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between("boolean", left, right, written, (put,))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._change("dropped not" if isinstance(node.op, ast.Not) else "sign", *self._span(node),
                         b"(" + self._of(node.operand) + b")")  # fmt: skip
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._change("constant", *self._span(node), str(not value).encode())
        elif isinstance(value, int | float):
            puts: list[Any] = (
                [value * 1000] if abs(value) >= LARGE else [value + 1, *([value - 1] if value >= 1 else [])]
            )
            for put in filter(math.isfinite, puts):
                self._change("constant", *self._span(node), repr(put).encode())

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func
        word = name.id if isinstance(name, ast.Name) else name.attr if isinstance(name, ast.Attribute) else ""
        if word in SWAPPED:
            end = self._span(name)[1]
            self._change("swapped", end - len(word), end, SWAPPED[word].encode())
        self.generic_visit(node)

    def _negated(self, node: Any) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self._change("negated", *self._span(node.test), b"not (" + self._of(node.test) + b")")
            self.generic_visit(node)

    visit_If = visit_While = visit_IfExp = _negated

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._change("negated", *self._span(test), b"not (" + self._of(test) + b")")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        written, put = ARITHMETIC.get(type(node.op), ("", ""))
        if written:
            self._between("arithmetic", node.target, node.value, f"{written}=", (f"{put}=",))
        self._change("removed", *self._span(node), b"pass")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)


def _is_text(node: ast.expr) -> bool:
    """Whether an operand shows that no number is made: texts, lists and mappings."""
    made = ast.JoinedStr | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.ListComp | ast.DictComp
    return isinstance(node, made) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))

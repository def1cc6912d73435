"""Figures of a source tree: size, long functions, long argument lists, circles, the longest chain of imports.

    python benchmarks/measure_tree.py [ROOT ...]      ROOT holds src/etude; by default this checkout

Imports under `if TYPE_CHECKING:` count for nothing, those inside functions do.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

LINES, ARGUMENTS, FILE = 40, 6, 400


def module_name(path: Path, src: Path) -> str:
    parts = path.relative_to(src.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def for_types(tree: ast.AST) -> set[int]:
    """Nodes that only a type checker sees."""
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for part in node.body
        for inner in ast.walk(part)
    }


def imports(tree: ast.AST, module: str, is_package: bool, modules: set[str]) -> Iterator[str]:
    skipped = for_types(tree)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in modules)
        elif isinstance(node, ast.ImportFrom):
            stem = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*stem, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                if whole in modules or base in modules:
                    yield whole if whole in modules else base


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected parts of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = []
            while True:
                part.append(stack.pop())
                if part[-1] == node:
                    break
            if len(part) > 1:
                found.append(sorted(part))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    @cache
    def chain(node: str) -> tuple[str, ...]:
        return (node, *max((chain(other) for other in sorted(graph[node])), key=len, default=()))

    return list(max((chain(node) for node in graph), key=len))


def measure(root: Path) -> dict[str, object]:
    src = root / "src" / "etude"
    paths = {module_name(p, src): p for p in sorted(src.rglob("*.py"))}
    trees = {name: ast.parse(path.read_text()) for name, path in paths.items()}
    graph = {
        name: set(imports(tree, name, paths[name].name == "__init__.py", set(paths))) - {name}
        for name, tree in trees.items()
    }
    functions = [n for t in trees.values() for n in ast.walk(t) if isinstance(n, ast.FunctionDef)]
    public = Counter(
        n.name for t in trees.values() for n in t.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")
    )
    lines = {name: path.read_text().count("\n") for name, path in paths.items()}
    rooms = {name: ".".join(name.split(".")[:2]) for name in paths}
    inside = {r: {n: {o for o in graph[n] if rooms[o] == r} for n in graph if rooms[n] == r} for r in rooms.values()}
    found = [c for part in inside.values() for c in circles(part)]
    figures: dict[str, object] = {
        "files": len(paths),
        "lines": sum(lines.values()),
        f"files over {FILE} lines": sum(n > FILE for n in lines.values()),
        f"functions over {LINES} lines": sum((f.end_lineno or 0) - f.lineno + 1 > LINES for f in functions),
        f"functions of over {ARGUMENTS} arguments": sum(
            len(f.args.args) + len(f.args.kwonlyargs) + len(f.args.posonlyargs) > ARGUMENTS for f in functions
        ),
        "public class names that stand twice": sum(n > 1 for n in public.values()),
        "circles of modules inside a room": len(found),
        "circles of modules in the tree": len(circles(graph)),
    }
    if not circles(graph):
        figures["longest chain of imports"] = len(longest_chain(graph))
    figures["in circles"] = "; ".join(", ".join(c) for c in found) or "-"
    figures["twice"] = ", ".join(sorted(n for n, count in public.items() if count > 1)) or "-"
    return figures


def main() -> int:
    roots = [Path(a) for a in sys.argv[1:]] or [Path(__file__).resolve().parent.parent]
    for root in roots:
        print(f"== {root}")
        for name, value in measure(root).items():
            print(f"{name:42} {value}")
    return 0


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    raise SystemExit(main())

"""Which module imports which, from the source alone. Imports under `if TYPE_CHECKING:` count for nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Import = ast.Import | ast.ImportFrom


@dataclass(frozen=True)
class Source:
    """What the tests of the house ask of a source file."""

    imports: tuple[Import, ...]
    for_types: frozenset[int]
    """Places in `imports` of what only a type checker sees."""
    calls: tuple[tuple[int, str], ...]
    """Line and dotted name of what is called."""
    shown: frozenset[str]
    """The names in its `__all__`."""


def dotted(node: ast.expr) -> str:
    """`sys.exit` of the tree of `sys.exit`; nothing of what is no plain name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@cache
def source(path: Path) -> Source:
    """A file, parsed and walked once for all who ask."""
    tree = ast.parse(path.read_text())
    imports: list[Import] = []
    unseen: set[int] = set()
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, Import):
            imports.append(node)
        elif isinstance(node, ast.Call):
            calls.append((node.lineno, dotted(node.func)))
        elif isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING"):
            unseen.update(id(inner) for part in node.body for inner in ast.walk(part))
    shown: frozenset[str] = frozenset()
    for part in tree.body:
        if isinstance(part, ast.Assign) and dotted(part.targets[0]) == "__all__":
            shown = frozenset(ast.literal_eval(part.value))
    hidden = frozenset(place for place, node in enumerate(imports) if id(node) in unseen)
    return Source(tuple(imports), hidden, tuple(calls), shown)


def module_name(path: Path, src: Path) -> str:
    parts = path.relative_to(src.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(of: Source, module: str, is_package: bool, modules: set[str]) -> Iterator[str]:
    for place, node in enumerate(of.imports):
        if place in of.for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in modules)
        else:
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


def module_graph(src: Path) -> dict[str, set[str]]:
    """Module -> modules of the same package that it imports, also inside functions."""
    paths = {module_name(p, src): p for p in sorted(src.rglob("*.py"))}
    return {
        name: set(imports(source(path), name, path.name == "__init__.py", set(paths))) - {name}
        for name, path in paths.items()
    }


GROUPS = ("capture", "make", "run", "world", "tell", "decide", "surface")
"""Folders that join several rooms."""


def room(module: str) -> str:
    """`etude.model.check.groups` is in the room `etude.model`, `etude.run.simulate.run` in `etude.run.simulate`."""
    parts = module.split(".")
    return ".".join(parts[: 3 if len(parts) > 2 and parts[1] in GROUPS else 2])


def inside(graph: dict[str, set[str]]) -> list[dict[str, set[str]]]:
    """The part of the graph within each room."""
    rooms = sorted({room(name) for name in graph})
    return [{n: {o for o in graph[n] if room(o) == r} for n in graph if room(n) == r} for r in rooms]


def folders(graph: dict[str, set[str]], packages: set[str]) -> dict[str, set[str]]:
    """The graph of sub-rooms: each module counts as its folder, files right in a room as themselves."""

    def place(module: str) -> str:
        parent = module.rpartition(".")[0]
        return parent if parent in packages and parent.startswith(f"{room(module)}.") else module

    found: dict[str, set[str]] = {}
    for module, others in graph.items():
        found.setdefault(place(module), set()).update(place(o) for o in others if place(o) != place(module))
    for other in {o for others in found.values() for o in others}:
        found.setdefault(other, set())
    return found

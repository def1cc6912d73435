"""Figures of a source tree: size, long functions, long argument lists, circles, the longest chain of imports.

    python benchmarks/measure_tree.py [ROOT ...]      ROOT holds src/etude; by default this checkout

Imports under `if TYPE_CHECKING:` count for nothing, those inside functions do.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from module_graph import circles, inside, longest_chain, module_graph, module_name

LINES, ARGUMENTS, FILE = 40, 6, 400


def measure(root: Path) -> dict[str, object]:
    src = root / "src" / "etude"
    paths = {module_name(p, src): p for p in sorted(src.rglob("*.py"))}
    trees = {name: ast.parse(path.read_text()) for name, path in paths.items()}
    graph = module_graph(src)
    functions = [n for t in trees.values() for n in ast.walk(t) if isinstance(n, ast.FunctionDef)]
    public = Counter(
        n.name for t in trees.values() for n in t.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")
    )
    lines = {name: path.read_text().count("\n") for name, path in paths.items()}
    found = [c for part in inside(graph) for c in circles(part)]
    figures: dict[str, object] = {
        "files": len(paths),
        "lines": sum(lines.values()),
        f"files over {FILE} lines": sum(n > FILE for n in lines.values()),
        f"functions over {LINES} lines": sum((f.end_lineno or 0) - f.lineno + 1 > LINES for f in functions),
        f"functions of over {ARGUMENTS} arguments": sum(
            len(f.args.args) + len(f.args.kwonlyargs) + len(f.args.posonlyargs) > ARGUMENTS for f in functions
        ),
        "public class names that occur twice": sum(n > 1 for n in public.values()),
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

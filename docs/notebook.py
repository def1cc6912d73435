"""Writes examples/first_look.ipynb: runs its cells one after another and keeps what each shows. `make docs` calls it."""

import ast
import json
from pathlib import Path
from typing import Any

PLACE = Path(__file__).resolve().parent.parent / "examples" / "first_look.ipynb"
CELLS = [
    "# A first look\n\nA recording of PyTorch in a notebook: what is in it, where its time goes, what a change would give. "
    "The recording comes with Etude; `etude collect` makes one of yours.",
    "from pathlib import Path\n\nimport etude\n\nsample = Path(etude.__file__).parent / \"capture\" / \"sample\"\nrun = etude.open_run(sample)\nrun",
    "## Where the time goes\n\nAn analysis takes a run and returns an Arrow table; times and sizes show their units.",
    "etude.breakdown(run)",
    "## SQL over its nodes\n\nNodes, dependencies, groups and ranks are tables.",
    "sql = \"\"\"\n    SELECT name, count(*) AS calls, sum(duration_ns) AS time_ns\n    FROM nodes WHERE kind = 'COMP_NODE' AND duration_ns IS NOT NULL\n"
    "    GROUP BY ALL ORDER BY time_ns DESC, name\n\"\"\"\netude.query(run.job, sql)",
    "## Simulated\n\n`simulate` runs the job on a system of the catalogue, or of a file of yours; compute takes as long as it was recorded.",
    "system = etude.open_system(\"h200\")\nsystem",
    "there = etude.simulate(run.job, system)\nthere",
    "## What if\n\nThe run is bound by its host. An edit is a sentence; its result is a job like any other: here everything on the host takes half the time.",
    "faster = etude.edit(run.job, \"speed kind=host by=2\")\netude.simulate(faster, system).timing",
]  # fmt: skip


def executed(cells: list[str]) -> list[dict[str, Any]]:
    """The cells as a notebook has them, with what the last expression of each shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    made: list[dict[str, Any]] = []
    for number, text in enumerate(cells):
        lines = text.splitlines(keepends=True)
        if text.startswith("#"):
            made.append({"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": lines})
            continue
        count = sum(cell["cell_type"] == "code" for cell in made) + 1
        found = run_cell(text, names)
        made.append({
            "cell_type": "code", "execution_count": count, "id": f"cell-{number}", "metadata": {},
            "outputs": [] if found is None else [shown(found, count)], "source": lines,
        })  # fmt: skip
    return made


def run_cell(text: str, names: dict[str, Any]) -> Any:
    """What the last expression of a cell gives; None where it ends in a statement."""
    tree = ast.parse(text)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last is not None else None


def shown(value: Any, count: int) -> dict[str, Any]:
    from etude.base import notebook

    html = value._repr_html_() if hasattr(value, "_repr_html_") else notebook.table(value)
    plain = f"<{type(value).__name__}>"
    data = {"text/html": html.splitlines(keepends=True), "text/plain": [plain]}
    return {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}


def notebook_text() -> str:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": executed(CELLS), "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PLACE.write_text(notebook_text(), "utf-8")

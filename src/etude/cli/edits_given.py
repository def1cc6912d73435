"""Edits as they are given to commands: their text, or `@FILE` with one a line."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from etude.errors import UsageError

if TYPE_CHECKING:
    from etude.transform.edits import Edit

WhatIfEdits = Annotated[
    list[str] | None,
    typer.Option(
        "--edit",
        help="What if: `compress group=dp ratio=2`, or `@FILE`; several in order. See docs/edits.md.",
    ),
]


def edits_of(given: list[str] | None) -> "list[Edit]":
    """All edits, in their order; lines of a file that are empty or begin with `#` are none."""
    from etude.transform.edits import Edit

    found = []
    for text in given or ():
        if not text.startswith("@"):
            found.append(Edit.parse(text))
            continue
        path = Path(text[1:])
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else "is not text"
            raise UsageError(str(why).lower(), where=str(path), hint="a file with an edit on each line") from None
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                try:
                    found.append(Edit.parse(line))
                except UsageError as problem:
                    where = f"{path}:{number}" + (f": {problem.where}" if problem.where else "")
                    raise UsageError(problem.problem, where=where, hint=problem.hint) from None
    if given and not found:
        raise UsageError("no edit is given", hint="compress group=dp ratio=2")
    return found

"""What files that somebody else wrote may not do: load Python, run programs, write outside their folder.

with limited("/tmp/point"):         # and in every process that is started meanwhile
    ...                             # `check_code` and `check_write` refuse
with command_line(["mine.py:route"]):   # code that these texts name
    ...                             # `check_code` refuses what only a file names
with trusting():                    # --trust: both are allowed
    ...
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from etude.base.errors import UsageError

HINT: Final = "--trust allows it, if you know the file and who wrote it"
WRITES: Final = {"-o", "--out", "--memory-out", "--requests-out", "--job-out", "--link-stats"}
"""Options that name what is written."""
WRITES_THERE: Final = {
    ("simulate", "--timing"),
    ("simulate jobs", "--timing"),
    ("simulate astra", "--timing"),
    ("energy", "--timeline"),
    ("anonymise", "--key"),
}
"""Options that do so in one command only."""
OUT_BEHIND: Final = {"convert": 1}
"""Command -> how many things it reads before the place that it writes."""
_LIMITED: Final = "ETUDE_LIMITED"
"""Set within limits: the folder that may be written, or nothing if only code is refused. An environment variable,
because processes of commands have the same limits."""

_TRUSTED: Final = "ETUDE_TRUST"
"""Set where what files name is run."""
_named: tuple[str, ...] | None = None
"""Texts of the command line; None outside of a command, in a program that decides for itself."""


@contextmanager
def limited(folder: str | os.PathLike[str] = "") -> Iterator[None]:
    """Code is refused, and so is writing outside the folder; without one, the limits on writing stay as they are."""
    before = os.environ.get(_LIMITED)
    os.environ[_LIMITED] = os.path.realpath(folder) if folder else before or ""
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LIMITED]
        else:
            os.environ[_LIMITED] = before


@contextmanager
def trusting() -> Iterator[None]:
    """Code that only files name is run, here and in processes that are started meanwhile."""
    before = os.environ.get(_TRUSTED)
    os.environ[_TRUSTED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TRUSTED]


@contextmanager
def command_line(texts: Iterable[str]) -> Iterator[None]:
    """A command with these texts on its line: code that none of them names is named by a file."""
    global _named
    before, _named = _named, tuple(texts)
    try:
        yield
    finally:
        _named = before


def check_code(what: str) -> None:
    """Refuses to run a program or Python code within limits, and what a file names that is not trusted."""
    if _LIMITED in os.environ:
        raise UsageError(f"`{what}` runs code", hint=HINT)
    if _named is not None and _TRUSTED not in os.environ and not _is_named(what, _named):
        raise UsageError(f"`{what}` is code that a file names", hint=HINT)


def _is_named(what: str, texts: tuple[str, ...]) -> bool:
    whole = re.compile(rf"(?<![\w./-]){re.escape(what)}(?![\w./-])")
    return any(whole.search(text) for text in texts)


def check_write(target: Path, shown: Path) -> None:
    """Refuses to write outside the folder within limits. `target` is a path without links."""
    folder = os.environ.get(_LIMITED)
    if folder and not target.is_relative_to(folder):
        raise UsageError("is outside the folder that may be written", where=str(shown), hint=HINT)

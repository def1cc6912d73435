"""Edit: one edit as a value that can be parsed, printed, stored and applied."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from etude.base.errors import EtudeError, UsageError
from etude.make.transform.edits.table import TABLE
from etude.make.transform.rewrite import Selector
from etude.make.transform.rewrite.selector import KEYS, parsed


@dataclass(frozen=True, slots=True)
class Edit:
    """`compress group=dp ratio=2`: what is done, to which nodes, and with which parameters."""

    name: str
    select: Selector
    parameters: tuple[tuple[str, str], ...] = ()
    """As they were written, in the order of the definition."""

    @classmethod
    def parse(cls, text: str) -> Edit:
        """Parses an edit; refuses unknown verbs and keys, and invalid values."""
        try:
            words = shlex.split(text)
        except ValueError:
            raise UsageError("a quotation mark is not closed", where=f"edit `{text}`") from None
        if not words:
            raise UsageError("an edit is empty", hint=f"known: {', '.join(TABLE)}")
        name, *pairs = words
        if name not in TABLE:
            raise UsageError(f"unknown edit `{name}`", hint=_known(name, list(TABLE)))
        keys = TABLE[name].parameters
        selected: dict[str, Any] = {}
        given: dict[str, str] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            where = f"edit `{name}`"
            if not equals:
                raise UsageError(f"`{pair}` is not KEY=VALUE", where=where, hint=f"keys: {', '.join((*keys, *KEYS))}")
            if key in selected or key in given:
                raise UsageError(f"`{key}` is given twice", where=where)
            if key in keys:
                given[key] = value
            elif key in KEYS:
                selected[key] = _said(where, key, parsed, key, value)
            else:
                raise UsageError(f"unknown key `{key}`", where=where, hint=_known(key, [*keys, *KEYS]))
        made = cls(name, Selector(**selected), tuple((key, given[key]) for key in keys if key in given))
        made.arguments()
        return made

    def __str__(self) -> str:
        parts = [self.name, str(self.select), *(f"{key}={_quoted(value)}" for key, value in self.parameters)]
        return " ".join(part for part in parts if part)

    def arguments(self) -> dict[str, Any]:
        """The values of all parameters."""
        given, found = dict(self.parameters), dict[str, Any]()
        for key, parameter in TABLE[self.name].parameters.items():
            text = given.get(key, parameter.default)
            if text is None:
                raise UsageError(f"`{key}` is not given", where=f"edit `{self.name}`", hint=f"{key}: {parameter.doc}")
            found[key] = _said(f"edit `{self.name}`", key, parameter.read, text)
        return found


def edit_table() -> list[dict[str, str]]:
    """The catalogue: what each edit does, its parameters, and what it cannot show."""
    return [
        {
            "edit": name,
            "does": one.doc,
            "parameters": ", ".join(
                key if p.default is None else f"{key}={p.default}" for key, p in one.parameters.items()
            ),
            "works on": one.selects,
            "cannot show": one.cannot,
        }
        for name, one in TABLE.items()
    ]


def _said(where: str, key: str, read: Any, *given: str) -> Any:
    try:
        return read(*given)
    except EtudeError as problem:
        text = problem.problem if problem.problem.startswith(f"{key}:") else f"{key}: {problem.problem}"
        raise UsageError(text, where=where, hint=problem.hint) from None


def _known(word: str, known: list[str]) -> str:
    near = get_close_matches(word, known, 1)
    return (f"did you mean `{near[0]}`? " if near else "") + f"known: {', '.join(known)}"


def _quoted(value: str) -> str:
    return shlex.quote(value)

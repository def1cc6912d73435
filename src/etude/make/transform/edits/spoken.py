"""Edit: one edit as a value that can be parsed, printed, stored and applied."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any

from etude.base.errors import EtudeError, UsageError
from etude.base.grammar import items, line
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
        words = line(text, f"edit `{text}`").shell_words()
        if not words:
            raise UsageError("an edit is empty", hint=f"known: {', '.join(TABLE)}")
        name = replace(words[0], where="").choice(TABLE, "edit")
        keys, where = TABLE[name].parameters, f"edit `{name}`"
        found = items([replace(word, where=where) for word in words[1:]], (*keys, *KEYS))
        for word in found.bare:
            raise word.wrong(f"`{word.text}` is not KEY=VALUE", f"keys: {', '.join((*keys, *KEYS))}")
        selected: dict[str, Any] = {}
        for key, value in found.values.items():
            try:
                if key in keys:
                    keys[key].read(value.text)
                else:
                    selected[key] = parsed(key, value.text)
            except EtudeError as problem:
                raise value.said(problem) from None
        given = tuple((key, found.values[key].text) for key in keys if key in found.values)
        made = cls(name, Selector(**selected), given)
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

    @property
    def reads_system(self) -> bool:
        """Whether a system makes a difference to it."""
        return TABLE[self.name].machine(**self.arguments())


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


def _quoted(value: str) -> str:
    return shlex.quote(value)

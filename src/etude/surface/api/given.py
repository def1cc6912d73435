"""What is given to a verb: refused before anything is worked out, by the same words for all verbs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from etude.base.parameters import PYTHON, Spelling, ask, parameters_of, refuse_unread, unknown


def keywords(thing: Any) -> list[str]:
    """Names that a dataclass or a function takes by name."""
    if is_dataclass(thing):
        return [f.name for f in fields(thing) if f.init]
    return [p.name for p in inspect.signature(thing).parameters.values() if p.kind is p.KEYWORD_ONLY]


def refuse_unknown(verb: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises UsageError for the first name that means nothing, with the nearest one."""
    names = dict.fromkeys(known)
    for name in given:
        if name not in names:
            raise unknown(name, names, PYTHON, verb)


def built(
    cls: type[Any], build: Callable[[Any], Any], given: Mapping[str, Any], verb: str, spelling: Spelling = PYTHON
) -> tuple[Any, Any]:
    """The inputs of a run, and the request that they were built of; what it does not read is refused."""
    asked = ask(cls, given, spelling, verb=verb)
    inputs = build(asked)
    refuse_unread(asked)
    return inputs, asked


def unlike(cls: type[Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """What was given: not as the declaration has it where nothing is said."""
    known = parameters_of(cls)
    return {name: value for name, value in said.items() if value != known[name].default}

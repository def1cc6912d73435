"""What is given to a verb: refused before anything is worked out, by the same words for all verbs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from etude.base.parameters import PYTHON, unknown


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

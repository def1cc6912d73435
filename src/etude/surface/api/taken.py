"""Public verbs as callers call them, with paths and names for nouns.

`etude.breakdown("run/")` opens the run, `etude.simulate(made, "dgx-h100")` takes the job of what `generate` made. It is
done once, where the verbs of `etude` and `etude.extend` are handed out (`faces.face`), by the types that a verb says it
takes; behind that door they are strict. What fits nothing is refused by name, with what would fit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from etude.base.parameters import PYTHON, unknown
from etude.steps.asked.nouns import NOUNS, fitting


def opening_door(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb, for paths and names as well; itself where it takes none of these nouns."""
    signature = inspect.signature(verb)
    taken = {name: kinds for name, p in signature.parameters.items() if (kinds := _kinds(p.annotation)) & NOUNS}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    if not taken:
        return verb

    @wraps(verb)
    def door(*args: Any, **options: Any) -> Any:
        try:
            given = signature.bind(*args, **options)
        except TypeError:
            for name in (name for name in options if name not in signature.parameters and not takes_any):
                raise unknown(name, signature.parameters, PYTHON, verb.__name__) from None
            return verb(*args, **options)  # which says what is missing
        for name in (name for name in taken if name in given.arguments):
            given.arguments[name] = fitting(name, given.arguments[name], taken[name], given.arguments)
        return verb(*given.args, **given.kwargs)

    return door


def _kinds(annotation: Any) -> set[str]:
    """`Job | str` -> {"Job", "str"}."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return {part.rpartition(".")[2] for part in text.split(" | ")}

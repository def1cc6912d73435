"""Options of a simulation as Python gives them, by name: unknown names, and those without the one that they need, are
refused as flags are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, make_dataclass
from typing import Any, Final

from etude.base.figures import figure
from etude.base.parameters import PYTHON, ask, refuse_unread
from etude.run.simulate.options import Options

NEEDS: Final = {"seed": "jitter", "scale": "compute=scaled", "table": "compute=table", "backend": "ops"}
"""Option -> the one without which nothing reads it."""


def _figures() -> list[tuple[str, Any, Any]]:
    found = []
    for f in fields(Options):
        usual = f.default if f.default_factory is MISSING else f.default_factory()
        more: dict[str, Any] = {"needs": NEEDS[f.name]} if f.name in NEEDS else {}
        found.append((f.name, Any, figure("one", "", usual, **more)))
    return found


_BY_NAME: Final[type[Any]] = make_dataclass("OptionsByName", _figures(), frozen=True, kw_only=True)


def options_by_name(given: Mapping[str, Any], verb: str) -> dict[str, Any]:
    """What was given to `etude.VERB`. Raises UsageError for what is unknown, or would not be read."""
    asked: Any = ask(_BY_NAME, given, PYTHON, verb=verb)
    found = {name: getattr(asked, name) for name in given}
    refuse_unread(asked)
    return found

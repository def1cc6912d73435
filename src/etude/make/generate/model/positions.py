"""The longest sequence that a model takes, where it is known."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from etude.base.figures import parse, read_mapping
from etude.make.generate.model.open import catalogue_name

LONGER: Final = re.compile(r"llama-3\.[1-9]|-2507|-1m\b|-\d+k\b|long", re.IGNORECASE)
"""Ids of versions that take longer sequences than the model with their shape."""


def positions_of(name: str) -> int:
    """Tokens of the longest sequence of a model, by its name, Hugging Face id or `config.json`; 0: not known."""
    if Path(name).suffix in (".yaml", ".yml", ".json"):
        given = read_mapping(name)
        return _stated(given) or _stated(given.get("text_config"))
    return 0 if LONGER.search(name) else _known().get(catalogue_name(name), 0)


def _stated(given: Any) -> int:
    found = given.get("max_position_embeddings") if isinstance(given, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


@cache
def _known() -> dict[str, int]:
    given = parse(files("etude.make.generate.model").joinpath("positions.yaml").read_text("utf-8"), "positions.yaml")
    return {name: int(tokens) for tokens, names in given.items() for name in names}

"""Models that a space names, with as many of their layers as are simulated."""

from __future__ import annotations

from dataclasses import replace

from etude.base.errors import UsageError
from etude.decide.search.given import Given
from etude.make.generate.model import Model


def model_file(given: Given) -> str:
    """A file in the folder of the space, or a name of the catalogue."""
    name = str(given.keys.get("model", ""))
    if not name:
        raise UsageError("`model` is needed", where=given.where, hint="model: llama3-8b")
    return str(given.folder / name) if (given.folder / name).is_file() else name


def system_file(given: Given) -> str:
    """A file in the folder of the space, or a name of the catalogue."""
    name = given.keys.get("system")
    if not isinstance(name, str) or not name:
        raise UsageError("`system` is needed", where=given.where, hint="system: dgx-h100, or a file")
    return str(given.folder / name) if (given.folder / name).is_file() else name


def shortened(model: Model, layers: int) -> Model:
    """This many of its layers, which are alike; 0: all."""
    if not layers:
        return model
    if not model.blocks:
        return model.replace(layers=min(layers, model.layers))
    blocks = [replace(b, repeat=min(layers, b.repeat)) for b in model.blocks]
    return model.replace(blocks=tuple(blocks))


def count(given: Given, name: str, usual: int = 0, least: int = 0) -> int:
    found = given.keys.get(name, usual)
    if not isinstance(found, int) or isinstance(found, bool) or found < least:
        raise UsageError(f"`{found}` is not a count", where=f"{given.where}: {name}", hint=f"{name}: {usual or 2}")
    return found

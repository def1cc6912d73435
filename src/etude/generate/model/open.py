"""The one door to a Model: a name of the catalogue, a YAML file, or a Hugging Face `config.json`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from etude.config import read_mapping
from etude.errors import UsageError
from etude.generate.model.hugging_face import from_config
from etude.generate.model.shape import Model


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    import yaml

    found: dict[str, dict[str, Any]] = {}
    for entry in sorted(files("etude.generate.model").joinpath("catalogue").iterdir(), key=lambda f: f.name):
        if entry.name.endswith(".yaml"):
            found |= yaml.safe_load(entry.read_text("utf-8"))
    return found


def model_names() -> tuple[str, ...]:
    """Models of the catalogue."""
    return tuple(_catalogue())


def open_model(name_or_path: str | PathLike[str]) -> Model:
    """A model of the catalogue, or of a YAML file; a `config.json` of Hugging Face is recognised."""
    text = fspath(name_or_path)
    if text in _catalogue():
        return Model.from_dict({"name": text, **_catalogue()[text]}, f"model `{text}`")
    path = Path(text)
    if path.suffix not in (".yaml", ".yml", ".json"):
        from difflib import get_close_matches

        near = get_close_matches(text, model_names(), n=3) or model_names()
        raise UsageError(f"unknown model `{text}`", hint=f"known: {', '.join(near)}; or a .yaml file")
    given = read_mapping(path)
    if "model_type" in given or "architectures" in given:
        return from_config(given, where=str(path))
    return Model.from_dict({"name": path.stem, **given}, str(path))

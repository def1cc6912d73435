"""The only way to open a Model: a name of the catalogue, a Hugging Face id, a YAML file, or a `config.json`."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import read_mapping, safe_loader
from etude.make.generate.model.hugging_face import from_config, without_blocks
from etude.make.generate.model.shape import Model

_VARIANT: Final = re.compile(
    r"-(instruct|it|chat|base|pt|thinking|captioner|hf|diffusers|fp8|fp4|nvfp4|mxfp4|bf16|awq|gptq|gguf|int4|int8|w8a8|"
    r"w4a16|dynamic|original|turbo|preview|bnb|4bit|8bit|quantized|\d{4})(?=-|$)"
)
"""Words of an id that say how a model was trained or stored, not its shape."""
_REFUSED: Final = {"google/gemma-3n-": "gemma3n"}
"""Beginnings of ids -> `model_type` of configs that are refused."""


_STORED: Final = re.compile(r"^[^/]+/[^/]+-(?:(fp8)|(?:nv|mx)?(fp4))$")
"""Ids whose last word gives the bits of the weights of layers."""


def _yaml(name: str) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = {}
    for entry in sorted(files("etude.make.generate.model").joinpath(name).iterdir(), key=lambda f: f.name):
        if entry.name.endswith(".yaml"):
            found |= yaml.load(entry.read_text("utf-8"), safe_loader())
    return {key: value for key, value in found.items() if not key.startswith("x-")}  # pieces that entries share


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    return _yaml("catalogue")


@cache
def _ids() -> dict[str, str]:
    """Hugging Face id, in lower case -> name in the catalogue."""
    return {one.lower(): name for name, ids in _yaml("ids").items() for one in ids}


def model_names() -> tuple[str, ...]:
    """Models of the catalogue."""
    return tuple(_catalogue())


def catalogue_name(text: str) -> str:
    """The name in the catalogue of a model that is named so, or has this Hugging Face id; empty: none."""
    return text if text in _catalogue() else _ids().get(text.lower(), "")


def model_ids() -> tuple[str, ...]:
    """Known Hugging Face ids."""
    return tuple(one for ids in _yaml("ids").values() for one in ids)


def _known(name: str) -> Model:
    given, where = dict(_catalogue()[name]), f"model `{name}`"
    if "config" not in given:
        return Model.from_dict({"name": name, **given}, where)
    config = given.pop("config")
    about = Model.from_dict(
        {"name": name, "family": "decoder", "layers": 1, "hidden": 1, "heads": 1, "ffn": 1, "vocab": 1, **given}, where
    )
    found = from_config(config, where=where)
    more = {"seq": about.seq or found.seq, "towers": about.towers or found.towers}
    return found.replace(name=name, params=about.params, source=about.source, **more)


def open_model(name_or_path: str | PathLike[str]) -> Model:
    """A model of the catalogue, by its name or its Hugging Face id, or of a YAML file; a `config.json` of Hugging Face
    is recognised, and so is one of Diffusers. An id without a published shape is refused: none is guessed from its
    size.

    etude.extend.open_model("llama3-8b").layers
    """
    text = fspath(name_or_path)
    if text in _catalogue():
        return _known(text)
    path = Path(text)
    if path.suffix in (".yaml", ".yml", ".json"):
        given = read_mapping(path)
        if any(key in given for key in ("model_type", "architectures", "_class_name")):
            return from_config(given, where=str(path))
        return Model.from_dict({"name": path.stem, **given}, str(path))
    if text.lower() in _ids():
        return _known(_ids()[text.lower()]).replace(name=text.rsplit("/", 1)[-1])
    if text.count("/") == 1:
        return _by_id(text)
    from difflib import get_close_matches

    near = get_close_matches(text, model_names(), n=3) or model_names()
    raise UsageError(f"unknown model `{text}`", hint=f"known: {', '.join(near)}; or a Hugging Face id, or a .yaml file")


def stored_as(text: str) -> str:
    """The precision that the last word of a Hugging Face id names: `fp8` of `-FP8`, `fp4` of `-NVFP4`; otherwise
    empty."""
    found = _STORED.match(text.lower())
    return (found[1] or found[2]) if found else ""


def _by_id(text: str) -> Model:
    """An id that is not listed: another variant of a model that is, or a copy of it by others."""
    plain, name = _without_variant(text), text.rsplit("/", 1)[-1]
    for one, known in _ids().items():
        if _without_variant(one) == plain:
            return _known(known).replace(name=name, assumed=f"the shape: that of {known}, of which the id is a variant")
    for one, known in _ids().items():
        if _without_variant(one).partition("/")[2] == plain.partition("/")[2]:
            return _known(known).replace(
                name=name, assumed=f"the shape: that of {known} ({one}), whose name the id has"
            )
    for beginning, kind in _REFUSED.items():
        if text.lower().startswith(beginning):
            raise without_blocks(kind, text)
    hint = "give its config.json with --hf, a .yaml file, or a name of the catalogue; a size alone is not a shape"
    raise UsageError(f"model `{text}` is not known: the catalogue has no published shape of it", hint=hint)


def _without_variant(text: str) -> str:
    return _VARIANT.sub("", text.lower())

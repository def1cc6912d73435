"""The model of a row of a table: from the catalogue if the name is known, else by its shape."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from etude.base.errors import EtudeError, UsageError
from etude.make.generate.model import Model, model_names, open_model

SHAPE: Final = ("layers", "hidden", "heads", "ffn", "vocab")
GPT: Final = {"norm": "layer", "positions": "learned", "bias": True, "tied": True}
MPT: Final = {"norm": "layer", "norm_bias": False, "positions": "none", "tied": True}
LLAMA: Final = {"gated": True}
STYLES: Final = (
    (("mpt",), MPT),
    (("llama", "mistral", "qwen", "yi", "olmo", "deepseek", "gemma", "phi"), LLAMA),
)
"""Words in a name -> architecture of such models; GPT for all others."""
HEAD: Final = 128
ASPECT: Final = 128
"""Width over layers of GPT models, if a row has neither."""


def row_model(row: Mapping[str, str], said: list[str]) -> Model:
    """A model of the catalogue if the row's shape does not contradict it, else one of the row's shape."""
    return known_model(row) or _shaped(row, said)


def known_model(row: Mapping[str, str]) -> Model | None:
    """The model of the catalogue that a row names, if the row's shape does not contradict it."""
    known = _catalogue().get(_folded(row.get("model", "")))
    if known is None:
        return None
    model = open_model(known)
    return model if all(_number(row, k) in (0, getattr(model, k)) for k in ("layers", "hidden")) else None


def _folded(name: str) -> str:
    """Lower case without punctuation; `3.1` and `3.3` are shapes of `3`."""
    text = re.sub(r"(?<=\d)\.[1-9](?=-\d+b)", "", name.strip().lower().rpartition("/")[2])
    return re.sub(r"[^a-z0-9]+", "", text)


@cache
def _catalogue() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in model_names():
        found.setdefault(_folded(name), name)
    return found


def _number(row: Mapping[str, str], name: str) -> int:
    return int(float(row.get(name) or 0))


def _shaped(row: Mapping[str, str], said: list[str]) -> Model:
    name = (row.get("model") or "model").strip().replace(" ", "-").lower()
    shape = {key: _number(row, key) for key in SHAPE}
    if not shape["layers"] or not shape["hidden"]:
        shape |= _from_parameters(row, shape, said)
    shape["heads"] = shape["heads"] or max(shape["hidden"] // HEAD, 1)
    style = next((style for words, style in STYLES if any(name.startswith(w) for w in words)), GPT)
    if not shape["ffn"]:
        shape["ffn"] = 4 * shape["hidden"]
        style = {k: v for k, v in style.items() if k != "gated"}
        said.append("feed-forward of 4 times the width")
    if not shape["vocab"]:
        shape["vocab"] = 51200
        said.append("vocabulary of 51,200")
    return _nearest(name, shape, style, float(row.get("params") or 0))


def _from_parameters(row: Mapping[str, str], shape: Mapping[str, int], said: list[str]) -> dict[str, int]:
    """Width and layers of a GPT of this many parameters: 12 layers x width², width = 128 layers."""
    count = float(row.get("params") or 0)
    if not count:
        raise UsageError(
            f"neither the catalogue nor the row has the shape of `{row.get('model', '')}`",
            hint="columns layers, hidden, heads, ffn, vocab; or params",
        )
    hidden = shape["hidden"] or max(round((count * ASPECT / 12) ** (1 / 3) / HEAD), 1) * HEAD
    layers = shape["layers"] or max(round(count / (12 * hidden**2)), 1)
    said.append(f"{layers} layers of width {hidden:,}, from the number of parameters")
    return {"hidden": hidden, "layers": layers}


def _nearest(name: str, shape: Mapping[str, int], style: Mapping[str, Any], count: float) -> Model:
    """The variant of such a model (with a gate or not, all heads of keys or 8) whose parameters are nearest to those of
    the row; by its name if the row states none."""
    made = list(_ways(name, shape, style))
    if not made:
        raise UsageError(f"no model has {', '.join(f'{k} {v}' for k, v in shape.items())}")
    if not count or style in (MPT, GPT):
        return made[0]
    return min(made, key=lambda m: abs(weights(m) / count - 1))


def weights(m: Model) -> int:
    """Weights of a dense decoder's matrices: layers, embedding and head."""
    attention = m.hidden * m.head * (2 * m.heads + 2 * m.kv)
    feed_forward = m.hidden * m.ffn * (3 if m.gated else 2)
    return m.layers * (attention + feed_forward) + m.vocab * m.hidden * (1 if m.tied else 2)


def _ways(name: str, shape: Mapping[str, int], style: Mapping[str, Any]) -> Iterator[Model]:
    for gated in (style.get("gated", False), True, False):
        for kv in (0, 8):
            try:
                yield Model.from_dict({"name": name, "seq": 2048, **shape, **style, "gated": gated, "kv_heads": kv})
            except EtudeError:
                continue

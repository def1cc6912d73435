"""The model of a row of a table: of the catalogue, by its name or its shape, else one of the row's shape.

What a row states decides, not how its model is called: `params` between a gated feed-forward and a plain one, an output
layer that is tied to the embedding and one that is not, and 8 heads of keys and values or all. Columns `kv_heads`,
`gated` and `tied` say so themselves; `experts`, `top_k`, `expert_ffn`, `shared_ffn`, `dense_layers` describe a mixture
of experts, or the notes do: `128 experts, top-8, expert ffn 768`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from etude.base.errors import EtudeError, UsageError
from etude.make.generate.model import Family, Model, model_names, open_model
from etude.steps.measured.row_figures import attention_weights, whole

SHAPE: Final = ("layers", "hidden", "heads", "ffn", "vocab")
EXPERTS: Final = ("experts", "top_k", "expert_ffn", "shared_ffn", "dense_layers", "moe_every")
SWITCHES: Final = ("gated", "tied")
GPT: Final = {"norm": "layer", "positions": "learned", "bias": True, "tied": True}
MPT: Final = {"norm": "layer", "norm_bias": False, "positions": "none", "tied": True}
LLAMA: Final = {"gated": True}
STYLES: Final = (
    (("mpt",), MPT),
    (("llama", "mistral", "qwen", "yi", "olmo", "deepseek", "gemma", "phi"), LLAMA),
    (("gpt", "bloom", "opt", "turing"), GPT),
)
"""Words in a name -> architecture of such models, which decides only what a row leaves open."""
HEAD: Final = 128
ASPECT: Final = 128
"""Width over layers of GPT models, if a row has neither."""
ROUNDED: Final = 0.02
"""Relative error of a number of parameters as tables state it, without norms, biases, positions and some digits."""
_TASK: Final = re.compile(
    r"\b(q?lora|peft|frozen|sft|dpo|full|pre-?train(ing|ed)?|fine-?tun(e|ed|ing)|instruct|chat|base)\b", re.IGNORECASE
)
"""Words of a name that say what is done with a model, not which it is."""
_SPARSE: Final = re.compile(r"\d+x\d+(\.\d+)?b\b|\ba\d+(\.\d+)?b\b|\bmoe\b", re.IGNORECASE)
"""Words of a name that say that a model has experts: 8x7B, 30B-A3B."""
_SIZE: Final = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b\b", re.IGNORECASE)
"""A size in a name: 14B."""
_NOTED: Final = (
    ("experts", re.compile(r"(\d+) (?:routed )?experts", re.IGNORECASE)),
    ("top_k", re.compile(r"top[- ](\d+)", re.IGNORECASE)),
    ("expert_ffn", re.compile(r"expert ffn (\d+)", re.IGNORECASE)),
    ("shared", re.compile(r"shared (\d+)", re.IGNORECASE)),
    ("dense_layers", re.compile(r"dense layers (\d+)", re.IGNORECASE)),
)
"""How notes describe experts; `shared` counts experts that every token passes through."""


def row_model(row: Mapping[str, str], said: list[str]) -> Model:
    """The model of a row; `said` gets what was assumed of it."""
    return known_model(row) or _shaped(row, said)


def known_model(row: Mapping[str, str]) -> Model | None:
    """The model of the catalogue that a row names, or else one that has its shape."""
    return named_model(row) or _of_this_shape(row)


def named_model(row: Mapping[str, str]) -> Model | None:
    """The model of the catalogue that a row names, if the row's shape does not contradict it."""
    known = _named(_folded(row.get("model", "")))
    if not known:
        return None
    model = open_model(known)
    return model if all(whole(row, k) in (0, getattr(model, k)) for k in ("layers", "hidden")) else None


def _named(folded: str) -> str:
    """The name in the catalogue; one without its size, if only one size has the rest of it."""
    if found := _catalogue().get(folded):
        return found
    sized = [name for key, name in _catalogue().items() if folded and re.fullmatch(rf"{folded}\d+b(a\d+b)?", key)]
    return sized[0] if len(sized) == 1 else ""


def _of_this_shape(row: Mapping[str, str]) -> Model | None:
    """The model of the catalogue with the layers, the width and whatever else of a shape that the row states."""
    given = {k: whole(row, k) for k in (*SHAPE, "kv_heads", "experts", "top_k", "expert_ffn") if whole(row, k)}
    count = float(row.get("params") or 0)
    if not {"layers", "hidden"} <= given.keys() or not (count or {"heads", "ffn", "vocab"} <= given.keys()):
        return None
    sparse = bool(given.get("experts") or _SPARSE.search(row.get("model", "")))
    for name in _by_size().get((given["layers"], given["hidden"]), ()):
        model = open_model(name)
        if any(getattr(model, "kv" if key == "kv_heads" else key) != value for key, value in given.items()):
            continue
        if count and abs(weights(model) / count - 1) > ROUNDED:
            continue
        if count or bool(model.experts) == sparse:
            return model
    return None


def _folded(name: str) -> str:
    """Lower case without punctuation and without what is done with the model; `3.1` and `3.3` are shapes of `3`."""
    text = re.sub(r"(?<=\d)\.[1-9](?=-\d+b)", "", name.strip().lower().rpartition("/")[2])
    return re.sub(r"[^a-z0-9]+", "", _TASK.sub("", text))


@cache
def _catalogue() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in model_names():
        found.setdefault(_folded(name), name)
    return found


@cache
def _by_size() -> dict[tuple[int, int], list[str]]:
    """Decoders of the catalogue by layers and width."""
    found: dict[tuple[int, int], list[str]] = {}
    for name in model_names():
        model = open_model(name)
        if model.family == Family.DECODER and set(model.mixers) == {"a"}:
            found.setdefault((model.layers, model.hidden), []).append(name)
    return found


def _shaped(row: Mapping[str, str], said: list[str]) -> Model:
    name = (row.get("model") or "model").strip().replace(" ", "-").lower()
    shape = {key: whole(row, key) for key in SHAPE}
    experts = _experts(row, said)
    if not shape["layers"] or not shape["hidden"]:
        shape |= _from_parameters(row, shape, said)
    shape["heads"] = shape["heads"] or max(shape["hidden"] // HEAD, 1)
    style = next((style for words, style in STYLES if any(name.startswith(w) for w in words)), {})
    if not shape["ffn"] and experts:
        shape["ffn"] = experts["expert_ffn"]
    elif not shape["ffn"]:
        shape["ffn"], style = 4 * shape["hidden"], style if "norm" in style else GPT
        said.append("plain feed-forward of 4 times the width")
    if not shape["vocab"]:
        shape["vocab"] = 51200
        said.append("vocabulary of 51,200")
    if not style:
        style = GPT if shape["ffn"] == 4 * shape["hidden"] and not experts else LLAMA
    fixed = {**experts, **{key: _switch(row, key) for key in SWITCHES if row.get(key)}}
    if kv := whole(row, "kv_heads"):
        fixed["kv_heads"] = kv
    return _nearest(name, {**shape, **fixed}, style, float(row.get("params") or 0))


def _switch(row: Mapping[str, str], key: str) -> bool:
    text = row[key].lower()
    if text not in ("yes", "true", "1", "no", "false", "0"):
        raise UsageError(f"`{row[key]}` of `{key}` is neither yes nor no")
    return text in ("yes", "true", "1")


def _experts(row: Mapping[str, str], said: list[str]) -> dict[str, int]:
    """Experts of the row's columns, or of its notes; empty: none. A name that has experts without their shape is
    refused: it would be priced as a dense model."""
    found = {key: whole(row, key) for key in EXPERTS if row.get(key)}
    if not found.get("experts"):
        notes = row.get("notes", "")
        noted = {key: int(match[1]) for key, way in _NOTED if (match := way.search(notes))}
        if {"experts", "top_k", "expert_ffn"} <= noted.keys():
            noted["shared_ffn"] = noted.pop("shared", 0) * noted["expert_ffn"]
            found = noted
            said.append("experts as the notes say")
    if found.get("experts"):
        if not (found.get("top_k") and found.get("expert_ffn")):
            raise UsageError("the row has experts, but not `top_k` of a token and their width, `expert_ffn`")
        return found
    if _SPARSE.search(row.get("model", "")):
        raise UsageError(
            f"`{row['model']}` is a mixture of experts by its name: columns experts, top_k, expert_ffn are needed"
        )
    return {}


def _from_parameters(row: Mapping[str, str], shape: Mapping[str, int], said: list[str]) -> dict[str, int]:
    """Width and layers of a GPT of this many parameters: 12 layers x width², width = 128 layers."""
    count = float(row.get("params") or 0) or _sized(row.get("model", ""), said)
    if not count:
        hint = "columns layers, hidden, heads, ffn, vocab; or params"
        raise UsageError(f"neither the catalogue nor the row has the shape of `{row.get('model', '')}`", hint=hint)
    unit = HEAD * max(whole(row, "tp"), 1)  # ranks share heads
    hidden = shape["hidden"] or max(round((count * ASPECT / 12) ** (1 / 3) / unit), 1) * unit
    layers = shape["layers"] or max(round(count / (12 * hidden**2)), 1)
    said.append(f"{layers} layers of width {hidden:,}, from the number of parameters")
    return {"hidden": hidden, "layers": layers}


def _sized(name: str, said: list[str]) -> float:
    """Parameters by the size in the name of a dense model: `Qwen2.5-14B`; 0: it has none."""
    sizes = [float(size) for size in _SIZE.findall(name)]
    if len(sizes) != 1 or _SPARSE.search(name):
        return 0.0
    said.append(f"{sizes[0]:g} billion parameters, by its name")
    return sizes[0] * 1e9


def _nearest(name: str, shape: Mapping[str, Any], style: Mapping[str, Any], count: float) -> Model:
    """The first way to build such a model that has the row's parameters, as tables round these, else the nearest; the
    first one if the row states none."""
    made = list(_ways(name, shape, style))
    if not made:
        raise UsageError(f"no model has {', '.join(f'{k} {v}' for k, v in shape.items())}")
    if not count:
        return made[0]
    errors = [abs(weights(model) / count - 1) for model in made]
    return next((m for m, e in zip(made, errors, strict=True) if e < ROUNDED), made[errors.index(min(errors))])


def weights(m: Model) -> int:
    """Weights of a decoder's matrices: layers, all experts, embedding and head."""
    matrices = 3 if m.gated else 2
    width = (m.expert_ffn or m.ffn) * m.experts + m.shared_ffn
    sparse = sum(m.has_experts(layer) for layer in range(m.layers))
    layers = m.layers * attention_weights(m) + matrices * m.hidden * ((m.layers - sparse) * m.ffn + sparse * width)
    return layers + sparse * m.hidden * m.experts + m.vocab * m.hidden * (1 if m.tied else 2)


def _ways(name: str, shape: Mapping[str, Any], style: Mapping[str, Any]) -> Iterator[Model]:
    """Ways to build a model of a shape, that of its style first. A gate comes with the norms and positions of Llama."""
    plain = style if "norm" in style else {"gated": False}
    first, *others = (LLAMA, plain) if style.get("gated") else (plain, LLAMA)
    for one in (first, *others):
        for tied in (one.get("tied", False), not one.get("tied", False)):
            for kv in (0, 8):
                made = {"name": name, "seq": 2048, "kv_heads": kv, **one, "tied": tied, **shape}
                try:
                    yield Model.from_dict(made)
                except EtudeError:
                    continue

"""Operators measured by other tools, as rows of the database: profile folders of serving simulators, Vidur's table.

A profile folder has `meta.yaml` and, for each number of tensor-parallel ranks, `tp1/dense.csv` (layer, tokens,
time_us), `attention.csv` (prefill_chunk, kv_prefill, n_decode, kv_decode, time_us), `per_sequence.csv` (layer,
sequences, time_us) and for experts `moe.csv` (tokens, activated_experts, time_us). What its layers do follows from the
shape of the model that it names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from numpy.typing import NDArray

from etude.base.errors import FormatError
from etude.base.figures import read_mapping
from etude.base.files import note_open
from etude.cost.opdb.database import SCHEMA, OpDatabase, checked
from etude.cost.opdb.schema import DIMS
from etude.kernels.arrays import F64, I64

META: Final = "meta.yaml"
VARIANTS: Final = {"bf16": "bf16", "fp16": "fp16"}
Found = tuple[str, dict[str, Any]]
"""An op, and its dimensions: a column for each, or one number for all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The dimensions of operators that a model fixes."""

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    gated: bool
    vocab: int
    experts: int = 0
    expert_ffn: int = 0


def read_profile(folder: str | PathLike[str], shape_of: Callable[[str], ModelShape]) -> OpDatabase:
    """The rows of a profile folder; `shape_of` gives the shape of a model by its name."""
    place = Path(folder)
    if not (place / META).is_file():
        raise FormatError(f"it has no `{META}`", path=place, hint="a folder such as RTX4090/meta-llama/.../bf16")
    meta = read_mapping(place / META)
    for name in ("hardware", "model", "variant", "vllm_version"):
        if not isinstance(meta.get(name), str):
            raise FormatError(f"no text `{name}`", path=place / META)
    if meta["variant"] not in VARIANTS:
        raise FormatError(f"variant `{meta['variant']}` is not known", path=place / META, hint=", ".join(VARIANTS))
    shape, about = (
        shape_of(meta["model"]),
        {
            "device": meta["hardware"].lower(),
            "backend": f"vllm-{meta['vllm_version']}",
            "dtype": VARIANTS[meta["variant"]],
        },
    )
    tables = [
        _rows(source, op, dims, time_us, about)
        for part in sorted(place.glob("tp[0-9]*"))
        for source, op, dims, time_us in _folder(part, shape, int(part.name.removeprefix("tp")))
    ]
    if not tables:
        raise FormatError("it has no `tp1/dense.csv`", path=place)
    return OpDatabase(checked(numbered(pa.concat_tables(tables)), fspath(folder)), fspath(folder))


def _rows(source: str, op: str, dims: dict[str, Any], time_us: F64, about: dict[str, str]) -> pa.Table:
    """Rows of one op, without a repeat number; a dimension is a column, or one number for all."""
    rows = len(time_us)
    texts = {**about, "op": op, "source": source}
    columns: dict[str, Any] = {name: pa.repeat(text, rows) for name, text in texts.items()}
    columns |= {name: np.broadcast_to(np.asarray(dims.get(name, 0), np.int64), rows) for name in DIMS}
    columns |= {"time_us": time_us, "repeat": np.zeros(rows, np.int64)}
    return pa.table({name: columns[name] for name in SCHEMA.names}, schema=pa.schema(list(SCHEMA)))


def numbered(table: pa.Table) -> pa.Table:
    """Rows that differ only in their time are repeats, numbered in order."""
    names = [name for name in SCHEMA.names if name not in ("time_us", "repeat")]
    rows = table.append_column("row", pa.array(np.arange(table.num_rows)))
    found = rows.group_by(names, use_threads=False).aggregate([("row", "list")])["row_list"].combine_chunks()
    lengths = np.diff(found.offsets.to_numpy())
    repeat = np.zeros(table.num_rows, np.int64)
    repeat[found.values.to_numpy()] = np.arange(table.num_rows) - np.repeat(found.offsets.to_numpy()[:-1], lengths)
    return table.set_column(SCHEMA.names.index("repeat"), "repeat", pa.array(repeat))


def _folder(part: Path, shape: ModelShape, tp: int) -> Iterator[tuple[str, str, dict[str, Any], F64]]:
    """(layer, op, dimensions, microseconds) of the rows that are ops of the database, layer by layer."""
    dense = _columns(part / "dense.csv", ("layer", "tokens"))
    for layer, rows in _layers(dense):
        found = _dense(layer, dense["tokens"][rows], shape, tp)
        if found is not None:
            yield layer, *found, dense["time_us"][rows]
    if (path := part / "per_sequence.csv").is_file():
        last = _columns(path, ("layer", "sequences"))
        for layer, rows in _layers(last):
            found = _last(layer, last["sequences"][rows], shape, tp)
            if found is not None:
                yield layer, *found, last["time_us"][rows]
    if (path := part / "attention.csv").is_file():
        passes = _columns(path, ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"))
        yield "attention", *_attention(passes, shape, tp), passes["time_us"]
    if (path := part / "moe.csv").is_file():
        experts = _columns(path, ("tokens", "activated_experts"))
        yield "moe", *_experts(experts, shape, tp), experts["time_us"]


def _columns(path: Path, names: tuple[str, ...], time: str = "time_us") -> dict[str, Any]:
    """Columns of a CSV, numbers as numbers."""
    if not path.is_file():
        raise FormatError(f"it has no `{path.name}`", path=path.parent)
    types = {name: pa.string() if name in TEXTS else pa.int64() for name in names} | {time: pa.float64()}
    note_open(path)
    try:
        table = pc.read_csv(path, convert_options=pc.ConvertOptions(column_types=types, null_values=[""]))
    except (pa.ArrowInvalid, OSError) as problem:
        raise FormatError(f"cannot be read: {str(problem).splitlines()[0]}", path=path) from None
    for name in (*names, time):
        if name not in table.schema.names:
            raise FormatError(f"no column `{name}`", path=path, hint=f"columns: {', '.join((*names, time))}")
        if table[name].null_count:
            raise FormatError(f"column `{name}` has empty values", path=path)
    found = {name: table[name].to_numpy(zero_copy_only=False) for name in (*names, time)}
    wrong = np.flatnonzero(~np.isfinite(found[time]) | (found[time] <= 0))
    if len(wrong):
        raise FormatError(f"line {wrong[0] + 2}: a time of {found[time][wrong[0]]} us is not valid", path=path)
    return found


TEXTS: Final = ("layer", "device", "model", "op", "gated")


def _layers(columns: dict[str, Any]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    for layer in sorted(set(columns["layer"].tolist())):
        yield layer, columns["layer"] == layer


def _dense(layer: str, tokens: I64, s: ModelShape, tp: int) -> Found | None:
    heads, kv = s.heads // tp, max(s.kv_heads // tp, 1)
    match layer:
        case "qkv_proj":
            return "linear", {"tokens": tokens, "n": (heads + 2 * kv) * s.head_size, "k": s.hidden}
        case "o_proj":
            return "linear", {"tokens": tokens, "n": s.hidden, "k": heads * s.head_size}
        case "gate_up_proj":
            return "linear", {"tokens": tokens, "n": 2 * s.ffn // tp, "k": s.hidden}
        case "down_proj":
            return "linear", {"tokens": tokens, "n": s.hidden, "k": s.ffn // tp}
        case "layernorm":
            return "rms_norm", {"tokens": tokens, "n": s.hidden}
        case "qk_norm":
            return "rms_norm", {"tokens": tokens * (heads + kv), "n": s.head_size}
        case "act_fn":
            return "silu", {"elements": tokens * (s.ffn // tp), "inputs": 2}
        case "rotary_emb":
            return "mul", {"elements": tokens * (heads + kv) * s.head_size, "inputs": 1}
        case "embedding":
            return "embedding", {"tokens": tokens, "n": s.hidden}
    return None  # the final norm has the shape of the others


def _last(layer: str, sequences: I64, s: ModelShape, tp: int) -> Found | None:
    if layer == "lm_head":
        return "linear", {"tokens": sequences, "n": s.vocab // tp, "k": s.hidden}
    return ("multinomial", {"tokens": sequences, "n": s.vocab}) if layer == "sampler" else None


def _attention(passes: dict[str, Any], s: ModelShape, tp: int) -> Found:
    dims = {"heads": s.heads // tp, "kv_heads": max(s.kv_heads // tp, 1), "head_size": s.head_size}
    names = {"tokens": "prefill_chunk", "keys": "kv_prefill", "batch": "n_decode", "batch_keys": "kv_decode"}
    return "attention_serve", dims | {name: passes[column] for name, column in names.items()}


def _experts(columns: dict[str, Any], s: ModelShape, tp: int) -> Found:
    dims = {"experts": s.experts, "n": s.expert_ffn // tp, "k": s.hidden}
    return "experts_serve", {**dims, "tokens": columns["tokens"], "batch": columns["activated_experts"]}


# -- Vidur -------------------------------------------------------------------------------------------------------------

VIDUR: Final = ("device", "model", "op", "tokens", "tp", "heads", "kv_heads", "hidden", "ffn", "vocab", "gated")


def is_vidur(path: str | PathLike[str]) -> bool:
    """Whether a file has the columns of Vidur's operators."""
    try:
        with open(path, encoding="utf-8") as file:
            names = re.split(r"[,\s]+", file.readline().strip())
    except (OSError, UnicodeDecodeError):
        return False
    return set(VIDUR) <= set(names)


def read_vidur(path: str | PathLike[str]) -> pa.Table:
    """Operators of models that Vidur measured (device, model, op, tokens, tp, the model's shape, median_us)."""
    columns = _columns(Path(path), VIDUR, "median_us")
    tables = []
    names = [name for name in VIDUR if name != "tokens"]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(zip(*(columns[name].tolist() for name in names), strict=True)):
        groups.setdefault(key, []).append(row)
    for key, rows in groups.items():
        about = dict(zip(names, key, strict=True))
        _check_vidur(about, path)
        found = vidur_op(about, columns["tokens"][rows])
        if found is not None:
            named = {"device": about["device"], "backend": "vidur", "dtype": "fp16"}
            tables.append(_rows(about["model"], *found, columns["median_us"][rows], named))
    if not tables:
        raise FormatError("none of its rows is an op of the database", path=path)
    return checked(numbered(pa.concat_tables(tables)), fspath(path))


def _check_vidur(about: dict[str, Any], path: str | PathLike[str]) -> None:
    for name in ("tp", "heads", "kv_heads", "hidden", "ffn"):
        if about[name] <= 0:
            raise FormatError(f"`{name}` is {about[name]}, of model `{about['model']}`", path=path)


def vidur_op(row: dict[str, Any], tokens: I64) -> Found | None:
    """The operator of a row on one of its tensor-parallel ranks; norms, sums and embeddings are not split."""
    tp, hidden, heads, kv_heads = (row[name] for name in ("tp", "hidden", "heads", "kv_heads"))
    size, ffn, gated = hidden // heads, row["ffn"] // tp, row["gated"] == "True"
    match row["op"]:
        case "attn_pre_proj":
            return "linear", {"tokens": tokens, "n": (heads + 2 * kv_heads) // tp * size, "k": hidden}
        case "attn_post_proj":
            return "linear", {"tokens": tokens, "n": hidden, "k": heads // tp * size}
        case "mlp_up_proj":
            return "linear", {"tokens": tokens, "n": ffn * (2 if gated else 1), "k": hidden}
        case "mlp_down_proj":
            return "linear", {"tokens": tokens, "n": hidden, "k": ffn}
        case "mlp_act":
            return "act", {"tokens": tokens, "n": ffn, "inputs": 2 if gated else 1}
        case "input_layernorm" | "post_attention_layernorm":
            return "rms_norm", {"tokens": tokens, "n": hidden}
        case "attn_rope":
            return "mul", {"elements": tokens * (heads + kv_heads) // tp * size, "inputs": 1}
        case "add":
            return "add", {"elements": tokens * hidden, "inputs": 2}
        case "emb":
            return "embedding", {"tokens": tokens, "n": hidden}
    return None


def numbers_of(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of the worker as a table."""
    columns = {name: [row[name] for row in rows] for name in SCHEMA.names}
    columns["time_us"] = [float(value) for value in columns["time_us"]]
    return pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names})

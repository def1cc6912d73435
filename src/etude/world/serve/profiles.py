"""Step costs from an operator profile of an engine: a folder with `meta.yaml` and `tp1/dense.csv` (layer, tokens,
time_us), `attention.csv` (prefill_chunk, kv_prefill, n_decode, kv_decode, time_us), `per_sequence.csv` (layer,
sequences, time_us) and for experts `moe.csv` (tokens, activated_experts, time_us)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from numpy.typing import NDArray

from etude.base.errors import FormatError, MismatchError, UsageError
from etude.base.figures import read_mapping
from etude.base.files import note_open
from etude.kernels.arrays import F64
from etude.machine import System
from etude.make.generate.model import Model
from etude.world.serve.network import gathered_ns, reduced_ns
from etude.world.serve.operators import database_cost
from etude.world.serve.stacks import ServingStack
from etude.world.serve.steps import StepCost, step_cost

GRAPHS: Final = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Batch sizes that vLLM captures by default."""
WIDE: Final = (*GRAPHS, *range(528, 1025, 16))
"""Those of gpt-oss."""
PADDED: Final = (1, 2, 4, *range(8, 129, 8), 256, 384, 512, 1024, 2048)
"""Those of TensorRT-LLM with padding, and those of its performance pages above."""
KERNELS: Final = 10
"""Kernels of a layer, as vLLM compiles it."""
ONCE: Final = ("embedding", "final_layernorm")
TWICE: Final = ("layernorm",)
"""Layers of a profile that occur once per model, and those that occur twice per layer."""
AXES: Final = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")


def profile_cost(
    folder: Path,
    model: Model,
    system: System,
    stack: ServingStack,
    *,
    tp: int = 1,
    spread: int = 1,
    groups: int = 1,
    graphs: Sequence[int] = GRAPHS,
) -> StepCost:
    """With communication over the links of the system, and the gaps between kernels of a stack. Experts are spread over
    `spread` ranks, and take the tokens of `groups` data-parallel groups. A file is a database of `etude ops`."""
    gaps = stack.kernel_ns * KERNELS * model.layers
    if folder.is_file():
        if spread > 1 or groups > 1:
            raise UsageError("experts spread over several ranks cannot use a database", where=str(folder))
        return database_cost(folder, model, system, tp=tp, gaps_ns=gaps, graphs=graphs)
    tables = profile_tables(folder, model, tp, spread=spread, groups=groups)
    tokens = tables["tokens"]
    sent = reduced_ns(model, system, tp, tokens, 2 * model.layers) + gathered_ns(model, system, groups, tokens)
    tables["layers_ns"] = tables["layers_ns"] + sent
    return step_cost(**tables, graphs=graphs, pass_ns=(gaps, gaps))


def graphs_of(model: str, max_num_seqs: int) -> tuple[int, ...]:
    """Sizes that vLLM captures for a model and a limit of sequences: up to twice as many."""
    sizes = WIDE if "gpt-oss" in model.lower() else GRAPHS
    return tuple(size for size in sizes if size <= 2 * max_num_seqs)


def profile_tables(folder: Path, model: Model, tp: int, *, spread: int = 1, groups: int = 1) -> dict[str, Any]:
    """`tokens`, `layers_ns`, `head` and `attention` of a step cost, of a whole model without communication. Experts are
    spread over `spread` ranks, and take the tokens of `groups` groups."""
    part = folder / f"tp{tp}"
    if not (part / "dense.csv").is_file():
        there = ", ".join(sorted(p.name for p in folder.glob("tp[0-9]*"))) or "nothing"
        raise FormatError(f"it has no profile for {tp} ranks", path=folder, hint=f"available: {there}")
    meta = read_mapping(folder / "meta.yaml") if (folder / "meta.yaml").is_file() else {}
    named = str(meta.get("model", ""))
    if named and named.rpartition("/")[2].lower() != model.name.rpartition("/")[2].lower():
        _check_model(named, model, folder)
    dense = _columns(part / "dense.csv", ("layer", "tokens"))
    tokens = np.unique(dense["tokens"]).astype(np.float64)
    layers_ns = np.zeros(len(tokens))
    for layer in np.unique(dense["layer"]).tolist():
        rows = dense["layer"] == layer
        times = 1 if layer in ONCE else (2 if layer in TWICE else 1) * model.layers
        layers_ns += times * 1000 * _curve(dense["tokens"][rows], dense["time_us"][rows], tokens)
    own, whole = part / "moe.csv", folder / "tp1" / "moe.csv"
    if model.experts and (own.is_file() or whole.is_file()):
        # Where experts are not spread, ranks share each of them.
        shared = 1 if own.is_file() or spread > 1 else tp
        found = _columns(own if own.is_file() and spread == 1 else whole, ("tokens", "activated_experts"))
        layers_ns += model.layers * 1000 * _experts(found, model, tokens, spread, groups) / shared
    last = _columns(part / "per_sequence.csv", ("layer", "sequences"))
    sequences = np.unique(last["sequences"]).astype(np.float64)
    head_ns = np.zeros(len(sequences))
    for layer in np.unique(last["layer"]).tolist():
        rows = last["layer"] == layer
        head_ns += 1000 * _curve(last["sequences"][rows], last["time_us"][rows], sequences)
    attention = _attention(_columns(part / "attention.csv", AXES))
    return {
        "tokens": tokens,
        "layers_ns": layers_ns,
        "head": (sequences, head_ns),
        "attention": (*attention[:4], attention[4] * 1000 * model.layers),
    }


def _check_model(named: str, model: Model, folder: Path) -> None:
    from etude.make.generate.model import open_model

    other = open_model(named)
    if (other.layers, other.hidden, other.vocab) != (model.layers, model.hidden, model.vocab):
        raise MismatchError(f"the profile is for `{named}`, but the model is `{model.name}`", where=str(folder))


def _columns(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    types = {name: pa.string() if name == "layer" else pa.int64() for name in names} | {"time_us": pa.float64()}
    note_open(path)
    try:
        table = pc.read_csv(path, convert_options=pc.ConvertOptions(column_types=types, include_columns=list(types)))
    except (pa.ArrowException, OSError, KeyError) as problem:
        raise FormatError(f"cannot be read: {str(problem).splitlines()[0]}", path=path) from None
    return {name: table[name].to_numpy(zero_copy_only=False) for name in types}


def _curve(places: NDArray[Any], time_us: F64, at: F64) -> F64:
    order = np.argsort(places, kind="stable")
    return np.interp(at, places[order].astype(np.float64), time_us[order])


def _experts(columns: Mapping[str, NDArray[Any]], model: Model, tokens: F64, spread: int, groups: int) -> F64:
    """Time of a layer's experts on a rank, if tokens choose theirs uniformly: from the number of active experts and the
    tokens that a whole layer would have."""
    active = model.experts / spread * (1.0 - (1.0 - model.top_k / model.experts) ** (tokens * groups))
    mine = tokens * groups / spread
    places = np.unique(columns["tokens"]).astype(np.float64)
    found = np.zeros((len(places), len(tokens)))
    for i, place in enumerate(places.tolist()):
        rows = columns["tokens"] == place
        found[i] = _curve(columns["activated_experts"][rows], columns["time_us"][rows], active)
    return np.array([np.interp(t, places, found[:, j]) for j, t in enumerate(mine.tolist())])


def _attention(columns: Mapping[str, NDArray[Any]]) -> tuple[F64, F64, F64, F64, F64]:
    """The grid over all four axes, in us. Each chunk may have been measured at different points: they are resampled to
    the common axes, linearly and beyond the ends with the last slope."""
    chunk, *others = (np.unique(columns[name]).astype(np.float64) for name in AXES)
    grid = np.zeros((len(chunk), *map(len, others)))
    for i, size in enumerate(chunk.tolist()):
        rows = columns["prefill_chunk"] == size
        found = [columns[name][rows].astype(np.float64) for name in AXES[1:]]
        grid[i] = _resampled(found, columns["time_us"][rows], others)
    grid[0, :, 0, :] = 0.0  # nothing to do
    return chunk, others[0], others[1], others[2], np.maximum(grid, 0.0)


def _resampled(places: list[F64], time_us: F64, axes: list[F64]) -> F64:
    """Values of scattered points of a grid on other axes, the last axis first."""
    if not axes:
        return np.asarray(time_us.mean())
    own = np.unique(places[0])
    parts = [
        _resampled([p[places[0] == at] for p in places[1:]], time_us[places[0] == at], axes[1:]) for at in own.tolist()
    ]
    stacked = np.stack(parts)
    if len(own) == 1:
        return np.repeat(stacked, len(axes[0]), axis=0)
    at = np.clip(np.searchsorted(own, axes[0]) - 1, 0, len(own) - 2)
    part = ((axes[0] - own[at]) / (own[at + 1] - own[at])).reshape(-1, *[1] * (stacked.ndim - 1))
    return np.asarray(stacked[at] + part * (stacked[at + 1] - stacked[at]))

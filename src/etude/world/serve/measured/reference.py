"""Runs of a reference engine: a folder with `configs_*.json`, `requests_*.csv[.gz]`, `iterations_*.csv.gz` and
`step_grid_*.csv`. Its rules: one iteration at a time; first come first served; a request holds room for its whole
answer; prompts whole and alone, or in chunks together with decodes. Decode-only steps replay a graph padded to the next
size, all others are launched by the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from etude.base.errors import FormatError, UsageError
from etude.base.files import note_open
from etude.kernels.arrays import F64
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import Model, open_model
from etude.world.serve.catalogue import pass_tables
from etude.world.serve.engine import Engine
from etude.world.serve.fit import fit_stack
from etude.world.serve.measured.run import MeasuredRun, means
from etude.world.serve.pass_time import attention_at, times_ns
from etude.world.serve.requests import requests_of
from etude.world.serve.stacks import ServingStack, serving_stack
from etude.world.serve.steps import PassContent, StepCost, step_cost

STEPS: Final = ("recorded", "grid", "catalogue")
MODELS: Final = {"llama1b": "meta-llama/Llama-3.2-1B", "llama8b": "meta-llama/Llama-3.1-8B"}
SYSTEM: Final = "dgx-h200"
STACK: Final = "torch-flash2"
IDLE_NS: Final = 2_000_000
"""A longer gap after an iteration was spent waiting for requests."""
MOST_OFF: Final = 4.0
FAR: Final = 3.0
"""Steps of a grid that are a factor of e**3 away have the same weight as the table itself."""
START: Final = {
    "products": 1.1, "attention": 1.5, "decode_attention": 1.5, "rest": 1.2, "layer_floor_ns": 2.5e5,
    "mixed_floor_ns": 3e5, "chain_ns": 20.0,
}  # fmt: skip


def reference_run(folder: Path, config: str, steps: str) -> MeasuredRun:
    """One configuration, with step times as recorded, from the grid of the folder, or from the catalogue."""
    if steps not in STEPS:
        raise UsageError(f"unknown steps `{steps}`", hint=f"known: {', '.join(STEPS)}")
    about = _config(folder, config)
    name = str(about["model"])
    rows = _rows(folder, f"requests_{name}", config)
    arrival, first, finish, prompt, output = (
        rows[column].to_numpy()
        for column in ("arrival_ns", "first_token_ns", "finish_ns", "prompt_tokens", "output_tokens")
    )
    whole = about["policy"] == "prefill_first"
    engine = Engine(
        chunked=not whole,
        max_num_batched_tokens=int(about["max_prefill_tokens"] if whole else about["chunk_tokens"]),
        max_num_seqs=int(about["max_batch"]),
        block_size=1,
        num_gpu_blocks=int(about["kv_budget_tokens"]),
        reserve=True,
        async_scheduling=False,
    )
    return MeasuredRun(
        requests=requests_of(arrival, prompt, output),
        engine=engine,
        cost=_cost(folder, name, config, steps),
        measured=means(arrival / 1e9, first / 1e9, finish / 1e9, output),
        since="arrival",
        assumed=[f"steps: {steps}"],
        unstated=[
            f"model {MODELS.get(name, name)} for `{name}`",
            f"system {SYSTEM}",
            f"stack {STACK}",
            "sizes of CUDA graphs: those that steps were padded to, and multiples of 8",
        ],
    )


def _config(folder: Path, config: str) -> dict[str, Any]:
    known: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("configs_*.json")):
        try:
            known |= {str(one["config"]): one for one in json.loads(path.read_text("utf-8"))["configs"]}
        except (ValueError, KeyError, TypeError):
            raise FormatError("is not a list of configurations", path=path) from None
    if not known:
        raise FormatError("has neither meta.json nor configs_*.json", path=folder)
    if config not in known:
        what = f"unknown configuration `{config}`" if config else "no configuration is named"
        raise UsageError(what, where=str(folder), hint=f"--config NAME; known: {', '.join(known)}")
    return known[config]


def _rows(folder: Path, stem: str, config: str = "") -> pa.Table:
    """Rows of a CSV file, compressed or not; those of one configuration."""
    path = next((p for p in (folder / f"{stem}.csv", folder / f"{stem}.csv.gz") if p.is_file()), None)
    if path is None:
        raise FormatError(f"has no {stem}.csv", path=folder)
    note_open(path)
    table = csv.read_csv(path)
    if config:
        table = table.filter(pc.equal(table["config"], config))
        if not table.num_rows:
            raise FormatError(f"has no row of `{config}`", path=path)
    return table


def _cost(folder: Path, name: str, config: str, steps: str) -> StepCost:
    if steps == "recorded":
        return _recorded(_rows(folder, f"iterations_{name}", config))
    tables = pass_tables(_model(name), Plan(gpus=1), open_system(SYSTEM))
    graphs = {"decode_graphs": _graphs(folder, name)}
    own = serving_stack(STACK, "h200")
    if steps == "catalogue":
        return tables.step_cost(own, **graphs)
    cost = tables.step_cost(fitted(folder, name), **graphs)
    # Steps of a grid have nothing between them.
    engine_ns = cost.engine_ns + np.repeat([own.pass_ns, own.sequence_ns], 2)
    return met(cost, *_grid(folder, name))._replace(engine_ns=engine_ns)


def met(cost: StepCost, shapes: list[PassContent], measured_ns: F64) -> StepCost:
    """With attention of decodes as in the steps of a grid: the measured time without the other parts of the pass, over
    the table's value. Between steps of the grid nearer ones weigh more; far from all of them nothing changes."""
    plain = cost._replace(attention_ns=np.zeros_like(cost.attention_ns), chain_ns=np.zeros(2))
    others, rows = times_ns(plain, shapes), [i for i, s in enumerate(shapes) if not s.prompt_tokens]
    places = np.array([(s.decode, s.decode_keys / s.decode) for s in shapes if not s.prompt_tokens])
    said = np.array([attention_at(cost, 0.0, 0.0, float(n), float(keys)) for n, keys in places])
    off = np.log(np.clip((measured_ns - others)[rows] / said, 1 / MOST_OFF, MOST_OFF))
    mesh = np.stack(np.meshgrid(np.log(cost.decode[1:]), np.log(cost.keys), indexing="ij"), axis=-1)
    apart = mesh[:, :, None, :] - np.log(places)
    weight = 1.0 / ((apart**2).sum(axis=-1) ** 1.5 + 1e-9)
    factor = np.exp((weight * off).sum(axis=-1) / (weight.sum(axis=-1) + FAR**-3))
    grid_ns = cost.grid_ns.copy()
    grid_ns[:, :, 1:] += cost.grid_ns[0, 0, 1:] * (factor - 1.0)
    return cost._replace(attention_ns=grid_ns.ravel())


def _model(name: str) -> Model:
    if name not in MODELS:
        raise UsageError(f"the shape of model `{name}` is not known", hint=f"known: {', '.join(MODELS)}")
    return open_model(MODELS[name])


def _recorded(rows: pa.Table) -> StepCost:
    """The time from each iteration to the next, or its own where the engine was idle after it."""
    start, own = rows["start_ns"].to_numpy(), rows["duration_ns"].to_numpy()
    step = np.diff(start, append=start[-1] + own[-1])
    return step_cost(tokens=[1], layers_ns=[0], recorded=np.where(step - own < IDLE_NS, step, own))


def _graphs(folder: Path, name: str) -> list[int]:
    """Sizes that steps were seen to be padded to, and multiples of 8 beyond them."""
    found = np.unique(_rows(folder, f"iterations_{name}")["graph_bucket"].to_numpy())
    return sorted({int(size) for size in found if size > 0} | set(range(8, 257, 8)))


def fitted(folder: Path, name: str) -> ServingStack:
    """The factors on the tables of the catalogue that fit the step grid of a folder best."""
    shapes, measured_ns = _grid(folder, name)
    tables = pass_tables(_model(name), Plan(gpus=1), open_system(SYSTEM))
    return fit_stack(tables, shapes, measured_ns, START, decode_graphs=_graphs(folder, name))


def _grid(folder: Path, name: str) -> tuple[list[PassContent], F64]:
    """Shapes of the steps of a grid as the engine runs them, and what they took."""
    table = _rows(folder, f"step_grid_{name}").to_pydict()
    shapes, measured = [], []
    for i, kind in enumerate(table["kind"]):
        if kind == "decode" and table["mode"][i] == "eager":
            continue
        decode = int(table["decode_batch"][i])
        outputs = decode + int(table["prefill_requests"][i])
        shapes.append(
            PassContent(int(table["prefill_tokens"][i]), float(table["prefill_attn_pairs"][i]), decode,
                  int(table["decode_context_tokens"][i]), outputs, int(table["context_tokens"][i]))
        )  # fmt: skip
        measured.append(float(table["wall_ns_median"][i]))
    return shapes, np.array(measured)

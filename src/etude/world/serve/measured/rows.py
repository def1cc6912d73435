"""Rows of measured serving (the columns of ML.ENERGY's leaderboard), predicted: all requests are there at the start,
`max_num_seqs` run at a time, and figures are of the steady state, which needs no loop: passes of `avg_batch_size`
sequences that decode, some of them with the prompt of a request that replaces one that ended."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from os import PathLike
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from etude.base.errors import EtudeError, FormatError, UsageError
from etude.cost.energy import idle_w, limit_w
from etude.machine import System, open_system
from etude.machine.system import Device
from etude.make.generate.model import open_model
from etude.world.serve.catalogue import PassTables, pass_tables
from etude.world.serve.deployment import replica_plan
from etude.world.serve.measured.diffusion import image_latency_s
from etude.world.serve.measured.systems import SYSTEMS, number, text, whole
from etude.world.serve.pass_time import passes_ns
from etude.world.serve.profiles import graphs_of
from etude.world.serve.stacks import ServingStack, serving_stack
from etude.world.serve.steps import PassContent

STACK: Final = "vllm-0.11"
PRECISIONS: Final = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "mxfp4": "bf16"}
MXFP4: Final = 4.25 / 16
"""Bits of an expert's weight in mxfp4, with its scales, over those in bf16."""
PROMPTS: Final = {"lm-arena-chat": 100, "gpqa": 250, "sourcegraph-fim": 3000, "image-chat": 1000, "video-chat": 4000}
"""Tokens of a typical prompt by task, which the rows do not state; for pictures and videos including their tokens."""
MEAN: Final = {"lm-arena-chat": 2.5}
"""Mean prompt over typical prompt: a few conversations are long."""
ENTER_MOST: Final = 100
"""Requests that may enter in a pass, on average."""
MIXED: Final = 256
"""Passes with prompts that are evaluated."""
LATENCY: Final = "batch_latency_s"
"""The column that rows of images and videos have."""
NUMBERS: Final = ("median_itl_ms", "output_throughput_tokens_per_sec", "avg_power_watts", "energy_per_token_joules")


@dataclass(frozen=True, slots=True, eq=False)
class Steady:
    """A row as the costs of passes see it."""

    tables: PassTables
    system: System
    gpus: int
    """Per copy of the model."""
    copies: int
    batch: int
    """Sequences per copy."""
    output: float
    prompt: float
    """Input tokens of a typical request."""
    mean: float
    """... of the mean one."""
    graphs: tuple[int, ...]
    """Batch sizes for which the engine has a CUDA graph."""

    def passes(self) -> tuple[Any, Any]:
        """Shapes of passes and their frequencies: one without a prompt, and MIXED with prompts of new requests, with
        random counts and the lengths of conversations."""
        rate = self.batch / self.output
        alone = math.exp(-rate)
        counts = _entering(rate)
        chosen = _prompts(int(counts.sum()), self.prompt, self.mean)
        starts = np.cumsum(counts) - counts
        tokens, pairs = np.add.reduceat(chosen, starts), np.add.reduceat(chosen * (chosen + 1) / 2, starts)
        keys = self.mean + self.output / 2
        plain = PassContent(0, 0.0, self.batch, round(self.batch * keys), self.batch, round(keys))
        shapes = np.tile(np.array(plain, np.float64), (1 + MIXED, 1))
        shapes[1:, 0], shapes[1:, 1] = tokens, pairs
        shapes[1:, 4] += counts
        weights = np.full(len(shapes), (1.0 - alone) / MIXED)
        weights[0] = alone
        return shapes, weights


def _entering(rate: float) -> Any:
    """Numbers of requests that enter in passes with at least one, at even quantiles; `rate` is the mean per pass."""
    most = int(rate + 10 * math.sqrt(rate) + 10)
    counts = np.arange(1, most + 1)
    chance = np.cumsum(np.exp(counts * math.log(rate) - np.cumsum(np.log(counts))))
    at = (np.arange(MIXED) + 0.5) / MIXED * chance[-1]
    return np.random.default_rng(0).permutation(counts[np.searchsorted(chance, at)])


def _prompts(count: int, typical: float, mean: float) -> Any:
    """Lengths with this mean, log-normal around the typical one, at even quantiles."""
    width, normal = math.sqrt(2.0 * math.log(mean / typical)), NormalDist()
    lengths = np.exp(width * np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)]))
    return np.random.default_rng(1).permutation(np.maximum(np.rint(lengths * mean / lengths.mean()), 1.0))


def steady_figures(row: Steady, stack: ServingStack) -> dict[str, float]:
    """Time between tokens, tokens per second, watts of all GPUs, joules of a token."""
    shapes, weights = row.passes()
    time_ns = passes_ns(row.tables.step_cost(stack, graphs=row.graphs), shapes)
    mean_ns = float(weights @ time_ns)
    tokens_per_s = row.copies * row.batch / (mean_ns / 1e9)
    work_j = float(weights @ passes_ns(row.tables.energy(row.system.device, stack), shapes)) / 1e9
    watts = row.copies * row.gpus * _watts(row, stack, work_j / (mean_ns / 1e9))
    return {
        "median_itl_ms": middle(time_ns, weights) / 1e6,
        "output_throughput_tokens_per_sec": tokens_per_s,
        "avg_power_watts": watts,
        "energy_per_token_joules": watts / tokens_per_s,
    }


def middle(values: Any, weights: Any) -> float:
    """The median of weighted values."""
    order = np.argsort(values, kind="stable")
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), 0.5 * weights.sum())])


def _watts(row: Steady, stack: ServingStack, work_w: float) -> float:
    """Power of one GPU: idle, and its work; at most its limit."""
    device = row.system.device
    return min(idle_w(device) + stack.power * work_w, limit_w(device))


def predict_rows(
    path: str | PathLike[str], *, stack: str = STACK, advance: Callable[[int], None] | None = None
) -> list[dict[str, Any]]:
    """`row`, `measured` and `predicted`, or why it is `refused`."""
    found = []
    for place, given in enumerate(read_rows(path)):
        record: dict[str, Any] = {"row": place}
        try:
            measured, predicted = predicted_row(given, stack)
            record |= {"measured": measured, "predicted": predicted}
        except EtudeError as problem:
            record["refused"] = str(problem).splitlines()[0]
        finally:
            found.append(record)
            if advance is not None:
                advance(1)
    return found


def predicted_row(given: dict[str, str], stack: str = STACK) -> tuple[dict[str, float], dict[str, float]]:
    """Measured and predicted values of a row, by the names of its columns."""
    if LATENCY in given:
        latency_s = image_latency_s(given)
        return {LATENCY: number(given, LATENCY)}, {LATENCY: latency_s}
    row = steady(given)
    predicted = steady_figures(row, serving_stack(stack, given["gpu"].lower()))
    return {name: number(given, name) for name in NUMBERS if given.get(name)}, predicted


def assumed_of(given: dict[str, str], stack: str = STACK) -> list[str]:
    """What a row of a served model does not state."""
    task, copies = given["task"], whole(given, "dp", 1)
    typical, mean = PROMPTS[task], PROMPTS[task] * MEAN.get(task, 1.0)
    network = open_model(given["model"])
    ranks = whole(given, "num_gpus") // copies
    said = [
        f"system {SYSTEMS[given['gpu']]} for the GPU {given['gpu']}",
        f"stack {stack}",
        f"prompts of {typical:,} tokens, {mean:,.0f} on average, for the task {task}",
        "steady state: requests that end are replaced at once, and prompts are not split",
        f"{max(round(number(given, 'avg_batch_size') / copies), 1):,} sequences per copy: `avg_batch_size`, rounded",
        f"answers of {max(number(given, 'avg_output_len'), 2.0):,.0f} tokens: `avg_output_len` of all",
        "batch sizes of CUDA graphs as the engine chooses them",
        "times between tokens are medians over tokens, as the row has them",
    ]
    said += [f"model {network.name}, {network.assumed}"] if network.assumed else []
    said += [f"tensor parallel {ranks}: all GPUs of a copy"] if ranks > 1 else []
    said += [f"experts spread over {ranks} ranks of a copy"] if number(given, "ep", 1) > 1 else []
    said += [] if given.get("dp") else ["one copy of the model"]
    said += [] if given.get("max_num_seqs") else ["max_num_seqs 256"]
    if given["weight_precision"] == "mxfp4":
        said.append(f"mxfp4: experts take {16 * MXFP4:g} bits per weight, the rest is {PRECISIONS['mxfp4']}")
    return said


def read_rows(path: str | PathLike[str]) -> list[dict[str, str]]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise FormatError(f"cannot be read: {getattr(problem, 'strerror', None) or problem}", path=path) from None
    needed = "model", "gpu", "num_gpus"
    lacking = [name for name in needed if not rows or name not in rows[0]]
    if lacking:
        raise FormatError(f"no column `{lacking[0]}`", path=path, hint=f"columns: {', '.join(needed)}")
    return rows


def steady(row: dict[str, str], device: Device | None = None) -> Steady:
    """The request of a row; `device` replaces the catalogue's, for fits of its power."""
    task, gpu, stored = (text(row, name) for name in ("task", "gpu", "weight_precision"))
    for value, what, known in ((task, "task", PROMPTS), (gpu, "GPU", SYSTEMS), (stored, "precision", PRECISIONS)):
        if value not in known:
            raise UsageError(f"unknown {what} `{value}`", hint=f"known: {', '.join(known)}")
    gpus, copies = whole(row, "num_gpus"), whole(row, "dp", 1)
    spread = number(row, "ep", 1) > 1
    running, output = number(row, "avg_batch_size"), max(number(row, "avg_output_len"), 2.0)
    if not running or running > output * ENTER_MOST:
        raise UsageError(f"{running:g} sequences that answer {output:g} tokens each do not form a steady state")
    if gpus % copies:
        raise UsageError(f"{copies} copies on {gpus} GPUs")
    ranks = gpus // copies
    key = text(row, "model"), gpu, ranks, copies, spread, stored
    tables, system = _tables(*key) if device is None else _made(*key, device)
    return Steady(
        tables=tables,
        system=system,
        gpus=ranks,
        copies=copies,
        batch=max(round(running / copies), 1),
        output=output,
        prompt=PROMPTS[task],
        mean=PROMPTS[task] * MEAN.get(task, 1.0),
        graphs=graphs_of(key[0], whole(row, "max_num_seqs", 256)),
    )


@cache
def _tables(*key: Any) -> tuple[PassTables, System]:
    return _made(*key)


def _made(
    model: str, gpu: str, ranks: int, copies: int, spread: bool, stored: str, device: Device | None = None
) -> tuple[PassTables, System]:
    system = open_system(SYSTEMS[gpu])
    system = system.replace(device=device) if device is not None else system
    network = open_model(model)
    plan = replica_plan(network, ranks, ep=ranks if spread and ranks > 1 else 1, precision=PRECISIONS[stored])
    packed = MXFP4 if stored == "mxfp4" else 1.0
    return pass_tables(network, plan, system, packed=packed, groups=copies if spread else 1), system

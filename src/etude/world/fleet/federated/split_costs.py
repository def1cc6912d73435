"""Times of the two sides of a cut: a step with adapters is predicted once for each device, length and rank, and its
nodes are assigned to the embedding, the layers and the head."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import F64
from etude.machine.system_key import SystemKey

if TYPE_CHECKING:
    from etude.machine import System
    from etude.make.generate import Plan
    from etude.make.generate.model import Model

WIDTH: Final = 2
"""Bytes of an activation and of its gradient."""


@dataclass(frozen=True, slots=True, eq=False)
class StepSeconds:
    """Seconds of one step, by cut from 0 to the number of layers."""

    forward_s: F64
    """Client time up to the activations that it sends; without a server its whole time."""
    backward_s: F64
    """Client time from the gradients that it gets to the update of its adapters."""
    server_s: F64
    """Server time between them: the layers above the cut forward and backward, and the update of their adapters."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientMemory:
    """Memory and adapters of a client, by cut from 0 to the number of layers; bytes unless stated otherwise."""

    memory: F64
    """Peak of a client: weights, adapters with gradients and state, and kept activations."""
    adapters: F64
    """Parameters of the adapters of a client."""
    whole: float
    """Memory of a whole step on one device."""


@dataclass(frozen=True, slots=True)
class SplitModel:
    """The model, the ranks of its adapters, and the micro-batch."""

    model: Model
    rank: int
    cut_rank: int
    micro_batch: int

    def plan(self, length: int, rank: int) -> Plan:
        from etude.make.generate import Plan

        return Plan.from_dict({
            "gpus": 1, "micro_batch": self.micro_batch, "global_batch": self.micro_batch, "seq": length,
            "train": f"lora:{rank}" if rank else "all",
        }, self.model.name)  # fmt: skip


def sides(asked: SplitModel, system: System, length: int) -> StepSeconds:
    """Times for samples of `length` tokens on one device. The last layer of a client has adapters of the smaller
    rank."""
    usual, least = (_blocks(asked, system, length, rank) for rank in (asked.rank, asked.cut_rank))
    held = held_by_cut(asked, length)
    layers = asked.model.layers
    part = held.adapters / held.adapters[-1]
    forward, backward = (_below(usual[k], least[k]) for k in range(2))
    total = float(usual[0].sum() + usual[1].sum() + usual[2].sum())
    update = float(usual[2].sum()) * part
    above = np.array([usual[0][c + 1 :].sum() + usual[1][c + 1 :].sum() for c in range(layers + 1)])
    above += float(usual[2].sum()) * (1 - np.arange(layers + 1) / layers)
    above[0], above[-1] = total, 0.0
    return StepSeconds(forward / 1e9, (backward + update) / 1e9, above / 1e9)


def _below(usual: F64, least: F64) -> F64:
    """Time in ns of the blocks below each cut: 0 below cut 0; the last cut includes the head."""
    own = np.concatenate([[0.0], np.cumsum(usual)])
    below = own[1:-1] - usual[:-1] + least[:-1]
    below[0], below[-1] = 0.0, own[-1]
    return below


def whole_step_s(asked: SplitModel, system: System, length: int) -> float:
    """Time of a step that trains all weights."""
    return float(sum(part.sum() for part in _blocks(asked, system, length, 0))) / 1e9


def _blocks(asked: SplitModel, system: System, length: int, rank: int) -> tuple[F64, F64, F64]:
    """Times in ns of (embedding, layers, head): forward, backward, and update."""
    return _predicted(asked, SystemKey.of(system), length, rank)


@lru_cache(maxsize=512)
def _predicted(asked: SplitModel, on: SystemKey, length: int, rank: int) -> tuple[F64, F64, F64]:
    from etude.cost.stacks import open_stack
    from etude.steps import predict

    model = asked.model
    step = predict(model, asked.plan(length, rank), on.system, stack=open_stack("default"), check=False)
    trace = step.generated.job.trace(0)
    start = np.asarray(step.simulated.timing.block(0)[0])
    if len(set(trace.lane.tolist())) != 1:
        raise UsageError("its step runs on several lanes, so a cut is not a prefix", where=model.name)
    took = np.diff(np.append(start, step.step_time_ns)).astype(np.float64)
    found = np.zeros((3, model.layers + 2))
    for i in range(len(trace)):
        block, phase = _block(trace.text("module", i), model.layers), trace.text("phase", i)
        found[0 if phase == "forward" else 1 if phase.startswith("backward") else 2, block] += took[i]
    if (np.diff(start) < 0).any() or not found[0, 1:-1].all():
        raise UsageError("its step does not run layer by layer", where=model.name, hint="use a decoder: llama3.2-1b")
    return found[0], found[1], found[2]


def _block(module: str, layers: int) -> int:
    """Index of a module's block: 0 for the embedding, 1 for the first layer, the last for the head and everything
    else."""
    first, _, rest = module.partition(".")
    number = rest.partition(".")[0]
    if first == "layers" and number.isdigit():
        return int(number) + 1
    return 0 if first == "embedding" else layers + 1


@lru_cache(maxsize=64)
def held_by_cut(asked: SplitModel, length: int) -> ClientMemory:
    """Memory by cut, from the memory of models with fewer layers. The server has the head, unless the client has
    everything; working memory inside a layer is not counted. Raises UsageError for a model of one layer."""
    from etude.make.generate.train import plan_memory

    model, plan = asked.model, asked.plan(length, asked.rank)
    of = [plan_memory(model.replace(layers=k), plan)[0] for k in range(1, model.layers + 1)]
    if len(of) < 2:
        raise UsageError("a model of one layer cannot be cut", where=model.name)
    rest = 2 * of[0].activation_bytes - of[1].activation_bytes
    head = 0 if model.tied else model.vocab * model.hidden * WIDTH
    memory = np.array([0, *(one.static_bytes - head + one.activation_bytes - rest for one in of)], np.float64)
    memory[-1] = of[-1].peak_bytes
    params = np.array([0, *(one.gradients / 4 for one in of)], np.float64)
    layer = np.diff(params)
    fewer = params.copy()
    fewer[1:-1] -= layer[:-1] * (1 - asked.cut_rank / asked.rank)
    return ClientMemory(memory, fewer, float(of[-1].peak_bytes))

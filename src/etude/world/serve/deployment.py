"""A model on a system as an engine runs it: the costs of its passes, and the blocks of keys and values that fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.units import format_bytes
from etude.cost.compute import cost_of, memory_ns
from etude.cost.ops import DTYPE_BYTES, OpClass
from etude.machine import System, device_names, open_device
from etude.machine.system import Device
from etude.make.generate import Plan
from etude.make.generate.model import Model
from etude.make.generate.passes import held_by
from etude.world.serve.adapters import NO_LORA, LoraCost
from etude.world.serve.beside import lora_cost
from etude.world.serve.cache import CacheRules, on_system
from etude.world.serve.catalogue import PassTables, pass_tables
from etude.world.serve.context import in_context, in_parts
from etude.world.serve.energy import UNKNOWN, ReplicaPower, energy_of
from etude.world.serve.engine import Engine
from etude.world.serve.network import stage_shares, staged_ns
from etude.world.serve.offload import ExpertRules, far_experts, tables_of
from etude.world.serve.profiles import PADDED, graphs_of, profile_cost
from etude.world.serve.program_tables import ProgramTables
from etude.world.serve.requests import BLOCK_TOKENS
from etude.world.serve.stacks import ServingStack, serving_stack
from etude.world.serve.steps import StepCost

UTILISATION: Final = 0.9
"""Fraction of the memory that an engine uses, vLLM's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShare:
    """What of a device's memory an engine takes for keys and values."""

    fraction: float = UTILISATION
    of_rest: bool = False
    """Of what weights and passes leave (TensorRT-LLM); otherwise of all, which weights and passes share (vLLM)."""


VLLM_SHARE: Final = MemoryShare()


class NoRoomError(UsageError):
    """A model and its keys and values do not fit a device."""


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    cost: StepCost
    blocks: int
    """Blocks of keys and values on a replica."""
    token_bytes: int
    """Keys and values of a token on a rank."""
    energy: ReplicaPower
    caching: CacheRules
    """Cache rules of the engine, with the rates of the system's tiers."""
    weights_bytes: float = 0.0
    """Per rank."""
    error: tuple[float, float] | None = None
    """Error of interpolated step costs, median and largest; None if times come from operators."""
    lora: LoraCost = NO_LORA
    experts: dict[str, Any] = field(default_factory=dict)
    """Figures of experts in the host's memory."""
    notes: tuple[str, ...] = ()
    """What was assumed of a program."""
    stages: tuple[float, ...] = (1.0,)
    """Part of the layers of each stage that a pass goes through."""


def replica_plan(model: Model, tp: int, *, ep: int = 1, precision: str = "bf16") -> Plan:
    """Tensor parallelism over all ranks of a replica; experts are spread over `ep` of them, or each is split like the
    other layers."""
    if ep > 1 and not model.experts:
        raise UsageError(f"`{model.name}` has no experts", hint="leave out --ep")
    if ep > 1 and tp % ep:
        hint = "use an --ep that divides --tp, or --tp times --replicas (replicas that share experts)"
        raise UsageError(f"experts cannot be spread over {ep} of {tp} ranks", hint=hint)
    split = tp // ep if model.experts else 1
    return Plan.from_dict({"gpus": tp, "tp": tp, "ep": ep, "etp": split, "precision": precision}, model.name)


def shared_plan(model: Model, tp: int, groups: int, precision: str = "bf16") -> Plan:
    """Plan of replicas that share their experts, each of which is whole on one rank."""
    ranks = tp * groups
    if model.experts % ranks:
        raise UsageError(
            f"{model.experts} experts cannot be spread over {ranks} ranks",
            hint="use a number of ranks that divides the experts",
        )
    return Plan.from_dict({"gpus": ranks, "tp": tp, "ep": ranks, "etp": 1, "precision": precision}, model.name)


def deployed(
    model: Model,
    plan: Plan,
    system: System,
    engine: Engine,
    *,
    stack: str | ServingStack = "vllm",
    ops: Path | None = None,
    kv_dtype: str = "",
    memory_bytes: int = 0,
    groups: int = 1,
    experts: ExpertRules | None = None,
    streams: int = 0,
    packed: float = 1.0,
    pp: int = 1,
    cp: int = 1,
    share: MemoryShare = VLLM_SHARE,
) -> Deployment:
    """One replica: the ranks of the plan. Experts may be spread over the ranks of `groups` replicas; or `experts` are
    in the host's memory, which `streams` other replicas use as well. `packed`: bytes of the experts' weights over those
    of the plan's precision.

    Of `pp` stages it is one of the `pp` groups of requests that follow one another through them: a pass takes as long
    as that of all layers on one stage's ranks, and what it sends between stages, if no stage is busy with another group
    (`Rules.stages`); a group has its part of the memory that the weights leave on the stage with the most layers.

    With `cp` each rank has that part of the tokens of a prompt, and of all keys and values."""
    stages = stage_shares(model, pp)
    software = serving_stack(stack, device_name(system))
    graphs = graphs_of(model.name, engine.max_num_seqs) if software.graphs and software.prompt_graphs else ()
    decode_graphs = PADDED if software.graphs and not software.prompt_graphs else ()
    record: dict[str, Any] = {}
    if experts is not None:
        if ops is not None or plan.ep > 1 or pp > 1:
            raise UsageError('--offload "experts" cannot be combined with --ops, --ep or --pp', hint="use one of them")
        tables = tables_of(model, plan, system, experts, kv_dtype=kv_dtype)
        far = far_experts(model, plan, system, experts, tables, software, streams=streams)
        cost, weights, record = tables.step_cost(software, **far.curves), far.weights_bytes, far.record
    else:
        tables = pass_tables(model, plan, system, kv_dtype=kv_dtype, packed=packed, groups=groups)
        weights = _weights_bytes(model, plan, tables, groups, packed) * max(stages)
        if ops is None:
            cost = tables.step_cost(software, graphs=graphs, decode_graphs=decode_graphs)
        else:
            spread = plan.tp * groups if groups > 1 else plan.ep
            cost = profile_cost(ops, model, system, software, tp=plan.tp, spread=spread, groups=groups, graphs=graphs)
        if pp > 1:
            sent_ns = staged_ns(model, system, plan.tp, pp, cost.tokens)
            cost = _in_stages(cost, sent_ns, pp, _logits_ns(model, plan.tp, system.device, software))
    token, work = float(tables.token_bytes[0]), tables.energy(system.device, software)
    if cp > 1:
        cost, work = in_context(cost, model, system, plan.tp, cp, token), in_parts(work, cp)
    lora = lora_cost(model, plan.tp, system, software, engine.max_lora_rank, engine.max_loras)
    beside = float(tables.working_bytes[0]) * engine.max_num_batched_tokens + lora.slot_bytes * engine.max_loras
    block_bytes = token * engine.block_size * max(stages) * pp / cp
    blocks = _blocks(model.name, memory_bytes or system.device.memory_bytes, weights, beside, block_bytes, share)
    # The power of a host that computes is unknown.
    energy = UNKNOWN if record else energy_of(system.device, work, plan.tp * cp, software.power)
    caching = on_system(engine.caching, system, token * plan.tp * BLOCK_TOKENS)
    error = (float(tables.error[0]), float(tables.error[1])) if ops is None else None
    return Deployment(cost, blocks, round(token), energy, caching, weights, error, lora, record, stages=stages)


def _in_stages(cost: StepCost, sent_ns: Any, pp: int, logits_ns: float) -> StepCost:
    """Each stage is on its part of the layers for that part of the time of a pass, and an engine does its own work for
    all sequences of the pass on each of them. The weights of the logits are read on the last stage, and by passes that
    have a token out: they go from the curve of layers to that of the head."""
    floor_ns = cost.floor_ns.copy()
    floor_ns[4] *= pp
    read_ns = min(logits_ns, float(cost.layers_ns.min()))
    return cost._replace(
        layers_ns=cost.layers_ns - read_ns + sent_ns,
        head_ns=cost.head_ns + read_ns,
        floor_ns=floor_ns,
        engine_ns=cost.engine_ns * pp,
    )


def _logits_ns(model: Model, tp: int, device: Device, stack: ServingStack) -> float:
    """Reading the weights of the output layer, which are in 16 bits."""
    size_bytes = np.array([2.0 * model.vocab * model.hidden / tp])
    return float(stack.products * memory_ns(device.busy(), cost_of(device, OpClass.GEMM), size_bytes)[0])


def _weights_bytes(model: Model, plan: Plan, tables: PassTables, groups: int, packed: float) -> float:
    """Weights of all layers on a rank."""
    whole = float(tables.weights_bytes[0])
    if groups > 1:
        whole = float(held_by(model, shared_plan(model, plan.tp, groups, plan.precision), 1).weights_bytes)
    if packed < 1.0:
        whole -= (1.0 - packed) * expert_params(model) * DTYPE_BYTES[plan.precision] / (plan.tp * groups)
    return whole


def expert_params(model: Model) -> int:
    """Parameters of all routed experts."""
    return sum(model.has_experts(layer) for layer in range(model.layers)) * model.experts * model.one_expert


def _blocks(
    name: str, memory: int, weights: float, beside: float, block_bytes: float, share: MemoryShare = VLLM_SHARE
) -> int:
    """Blocks of keys and values that fit beside weights and what a pass needs; 0: they take no memory."""
    used = weights + beside
    left = (memory - used) * share.fraction if share.of_rest else memory * share.fraction - used
    if left < block_bytes:
        raise NoRoomError(
            f"weights of {format_bytes(round(weights))} leave no memory for keys and values of {format_bytes(memory)}",
            where=name,
            hint="use more --tp, --precision fp8, or a device with more memory",
        )
    return int(left // block_bytes) if block_bytes else 0


def deployed_program(
    name: str, tables: ProgramTables, system: System, engine: Engine, *, stack: str = "vllm"
) -> Deployment:
    """One replica of a program: on one device, or on as many as it shards itself over."""
    software, ranks = serving_stack(stack, device_name(system)), tables.facts.ranks
    facts, memory = tables.facts, system.device.memory_bytes
    beside = facts.working_bytes * engine.max_num_batched_tokens + facts.sequence_bytes * engine.max_num_seqs
    blocks = _blocks(name, memory, facts.weights_bytes, beside, facts.token_bytes * engine.block_size)
    energy = energy_of(system.device, tables.energy(system.device, software), ranks, software.power)
    caching = on_system(engine.caching, system, facts.token_bytes * ranks * BLOCK_TOKENS)
    return Deployment(
        tables.step_cost(software),
        blocks,
        round(facts.token_bytes),
        energy,
        caching,
        facts.weights_bytes,
        tables.interpolation_error(),
        notes=(*facts.notes, _launched(facts.kernels, stack, software, one=ranks == 1)),
    )


def _launched(kernels: int, stack: str, software: ServingStack, *, one: bool) -> str:
    launch_ns = software.one_launch_ns if one else software.launch_ns
    host = f"{launch_ns:,.0f} ns of the host for each" if launch_ns else "the host's time to launch them is not counted"
    return f"{kernels:,} kernels of a pass, with {software.kernel_ns:,.0f} ns between two (stack `{stack}`); {host}"


def device_name(system: System) -> str:
    """Name in the catalogue of the device of a system; empty where it is not from there."""
    return next((name for name in device_names() if open_device(name).name == system.device.name), "")

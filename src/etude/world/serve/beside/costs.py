"""What a model has besides its layers: adapters (LoRA) of requests, and towers that turn images into tokens. Closed
forms and generated passes, not compared with measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from etude.base.errors import UsageError
from etude.base.grammar import line, pairs
from etude.machine import System
from etude.machine.system import OpCost
from etude.make.generate import Plan
from etude.make.generate.model import Family, Model
from etude.steps import predict
from etude.world.serve.adapters import NO_LORA, LoraCost
from etude.world.serve.requests import Requests
from etude.world.serve.stacks import ServingStack

HOST_BYTES_PER_S: Final = 25e9
"""Default for a link to the host that the device does not state."""
CALLS: Final = 2
"""Kernels of an adapter per product: down to its rank, and up again."""
WIDTH: Final = 2
"""Bytes of a weight and of a value between layers."""


def _products(model: Model, tp: int) -> list[tuple[str, float, float]]:
    """Name, inputs and outputs on a rank of the products that have adapters: attention, and feed-forward layers that
    are not experts. Products of one name share their kernels."""
    hidden, inner = float(model.hidden), float(model.heads * model.head)
    found = [
        ("qkv", hidden, inner / tp),
        *[("qkv", hidden, model.kv * model.head / tp)] * 2,
        ("out", inner / tp, hidden),
    ]
    if model.ffn and not model.experts:
        found += [("up", hidden, model.ffn / tp)] * (2 if model.gated else 1)
        found += [("down", model.ffn / tp, hidden)]
    return found


def adapter_bytes(model: Model, rank: int, tp: int = 1) -> float:
    """Weights of one adapter on a rank."""
    return WIDTH * rank * sum(wide + out for _, wide, out in _products(model, tp)) * model.layers


def lora_cost(model: Model, tp: int, system: System, stack: ServingStack, rank: int, slots: int) -> LoraCost:
    """A pass reads the weights of each adapter in it, and inputs and outputs of its products once more; launches and
    gaps are those of two kernels per product."""
    if not slots:
        return NO_LORA
    if model.family is not Family.DECODER or not model.heads:
        raise UsageError(f"`{model.name}`: adapters need a decoder with attention", hint="leave out --max-loras")
    device, products = system.device, _products(model, tp)
    moved = sum(WIDTH * (wide + 2 * out) + 2 * 4 * rank for _, wide, out in products)
    flops = sum(2 * rank * (wide + out) for _, wide, out in products)
    held = adapter_bytes(model, rank, tp)
    memory, peak = device.memory_bandwidth_bytes_per_s, device.peak_flop_per_s.get("bf16", 0.0)
    if not memory or not peak:
        raise UsageError("does not specify its memory or its rate in bf16", where=device.name)
    kernels = CALLS * len({name for name, _, _ in products}) * model.layers
    each = device.ops["default"] if "default" in device.ops else OpCost()
    link = device.host_link.read_bytes_per_s if device.host_link else HOST_BYTES_PER_S
    return LoraCost(
        pass_ns=kernels * (stack.kernel_ns + each.fixed_ns),
        adapter_ns=held / memory * 1e9,
        token_ns=model.layers * max(moved / memory, flops / peak) * 1e9,
        load_ns=math.ceil(held / link * 1e9),
        slot_bytes=held,
    )


@dataclass(frozen=True, slots=True)
class TowerCost:
    """For one image: ns of a replica, and its number of tokens."""

    image_ns: int = 0
    tokens: int = 0


def tower_cost(model: Model, tp: int, system: System) -> TowerCost:
    """The towers of a model as a separate pass. Every rank of a replica has all of them, and the ranks take images in
    turn."""
    if not model.towers:
        raise UsageError(f"`{model.name}` has no tower for images", hint="leave out `images`, or use qwen3-vl-8b")
    tower = model.towers[0]
    alone = replace(model, name=f"{model.name}-tower", family=Family.COMPOSED, streams=tower.streams,
                    blocks=tower.blocks, towers=(), params="")  # fmt: skip
    tokens = tower.streams[0].tokens
    part = predict(alone, Plan(gpus=1, seq=tokens, train="forward"), system, check=False).simulated.part(0)
    whole = float(part.end_ns[part.timed].max() - part.start_ns[part.timed].min())
    merged = [one.factor for block in tower.blocks for one in block.parts if one.part == "merge"]
    return TowerCost(math.ceil(whole / tp), tokens // max(merged, default=1))


def with_images(requests: Requests, cost: TowerCost) -> Requests:
    """Prompts plus the tokens of their images."""
    return replace(requests, prompt=requests.prompt + requests.images * cost.tokens)


def weighed(requests: Requests, text: str) -> Requests:
    """Weights of tenants from `chat=3,batch=1`; others have 1."""
    found = dict.fromkeys(requests.tenant_names, 1000)
    if text and not found:
        raise UsageError("--tenant-weights: no request belongs to a tenant", hint="a column `tenant`")
    parts = line(text, "--tenant-weights", "chat=3,batch=1").split(",") if text else ()
    for name, value in pairs(parts, found).items():
        weight = round(value.number(most=1e6) * 1000)
        if not weight:
            raise value.wrong(f"`{value.text}` is less than 0.001")
        found[name] = weight
    return replace(requests, weights=tuple(found.values()))

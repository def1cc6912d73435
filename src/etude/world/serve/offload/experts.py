"""Experts outside the device: they are in the host's memory, and a pass computes them there or loads them.

- `host`: the host's cores compute them, and tokens go there and back. With `batches=2` a pass is split into two halves
  if that is shorter, one on the device while the other is on the host;
- `stream`: each layer's experts are loaded while the layer before computes, whichever of them the tokens choose. The
  device has room for those of one layer;
- `auto`: a pass takes whichever is shorter for its tokens, attention aside, which is the same in both.

Layers count as equally long, so a load is hidden by 1 / layers of the device's time in the pass. If the first layer has
experts, nothing hides its load.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.grammar import line, pairs
from etude.base.units import format_bytes
from etude.kernels.arrays import F64
from etude.machine import System, open_system
from etude.make.generate import Plan
from etude.make.generate.model import Model
from etude.world.serve.catalogue import PARTS, TOKENS, PassTables, experts_ns, factors_of, pass_tables
from etude.world.serve.stacks import ServingStack

PATHS: Final = ("host", "stream", "auto")
EXAMPLE: Final = '"experts path=auto host=xeon-8480", and bits=4, batches=2'
WHOLE: Final = np.array([name.endswith("experts") for name in PARTS])
BATCHES: Final = 2
MOST: Final = 1 << 16
"""Longest pass, in tokens, for which the crossing of the two paths is searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRules:
    path: str
    host: str
    """A device of the catalogue, or a system file, whose memory holds them."""
    bits: float = 0.0
    """Bits of an expert's weight; 0: like the others."""
    batches: int = 1


def expert_rules(words: str) -> ExpertRules:
    """`experts path=auto host=xeon-8480 bits=4 batches=2`."""
    what, *parts = line(words, "--offload", EXAMPLE).words()
    what.choice(("experts",))
    found = pairs(parts, ("path", "host", "bits", "batches"))
    for key in ("path", "host"):
        if key not in found:
            raise what.wrong(f"key `{key}` is missing")
    bits = found["bits"].number(most=16) if "bits" in found else 0.0
    if 0 < bits < 1:
        raise found["bits"].wrong(f"`{found['bits'].text}` is less than one bit")
    batches = found["batches"].count(most=BATCHES) if "batches" in found else 1
    return ExpertRules(path=found["path"].choice(PATHS), host=found["host"].text, bits=bits, batches=batches)


@dataclass(frozen=True, slots=True, eq=False)
class Far:
    """Input of `steps.step_cost` for these layers, and what the device holds."""

    curves: dict[str, Any]
    weights_bytes: float
    """Per rank, including the room for a streamed layer."""
    record: dict[str, Any]


def tables_of(model: Model, plan: Plan, system: System, rules: ExpertRules, *, kv_dtype: str) -> PassTables:
    """Passes of the device, which may compute the experts too. They are the same with any tier."""
    packed = (rules.bits or _width(plan)) / _width(plan)
    return pass_tables(model, plan, replace(system, tiers=()), kv_dtype=kv_dtype, packed=packed)


def far_experts(
    model: Model,
    plan: Plan,
    system: System,
    rules: ExpertRules,
    tables: PassTables,
    stack: ServingStack,
    *,
    streams: int = 0,
) -> Far:
    """`streams`: links that use the host's memory at the same time."""
    moe = [model.has_experts(i) for i in range(model.layers)] if model.experts else []
    if not any(moe):
        raise UsageError(f"`{model.name}` has no experts", hint='--offload "kv path=dual"')
    bits = rules.bits or _width(plan)
    layer_bytes = model.experts * model.one_expert * bits / 8
    link, latency_ns = _link(system)
    load = latency_ns + layer_bytes / plan.tp / link * 1e9
    host = _host(rules.host, sum(moe) * layer_bytes, streams * link)
    factor = factors_of(stack)
    own = (factor * ~WHOLE) @ tables.layers_ns
    near = (factor * WHOLE) @ tables.layers_ns
    # The host has no narrow products: it reads weights as they are stored, and computes in 16 bits.
    far = sum(moe) * experts_ns(model, host, bits / 16)
    sent = 2 * (latency_ns + np.array(TOKENS) * model.hidden * 2 / link * 1e9) * sum(moe)
    ways = _Ways(own, near, far + sent, load, sum(moe), model.layers, bool(moe[0]), rules.batches)
    crossing = ways.crossing() if rules.path == "auto" else 0 if rules.path == "stream" else MOST
    axis = np.array(sorted({*TOKENS, *({crossing, crossing + 1} if 0 < crossing < MOST else set())}), np.float64)
    streamed = axis > crossing
    curves = np.where(streamed, ways.streamed(axis), ways.hosted(axis))
    room = layer_bytes / plan.tp if rules.path != "host" else 0.0
    there = sum(moe) * model.experts * model.one_expert * _width(plan) / 8 / plan.tp
    return Far(
        {"tokens": axis, "layers_ns": curves[0], "beside": curves[1:]},
        float(tables.weights_bytes[0]) - there + room,
        {
            "path": rules.path,
            "host_bytes": round(sum(moe) * layer_bytes),
            "layers": sum(moe),
            "load_s": load / 1e9,
            "streams_from_tokens": crossing + 1 if crossing < MOST else None,
            "token_bytes": round(sum(moe) * layer_bytes * model.top_k / model.experts),
            "host_bytes_per_s": host.device.memory_bandwidth_bytes_per_s,
        },
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """Times of passes at TOKENS, in ns."""

    own: F64
    """Device time without experts."""
    near: F64
    """Experts on the device."""
    far: F64
    """Experts on the host."""
    load: float
    """Load time of a layer."""
    moe: int
    layers: int
    first: bool
    """The first layer has experts."""
    batches: int

    def streamed(self, tokens: F64) -> F64:
        """Time of layers; parallel time; and the fraction of the device's time that hides no load."""
        hidden = self.moe - self.first
        alone = 1.0 - hidden / self.layers
        beside = self.moe * self.load - self.first * alone * self.load
        layers = _at(self.own + self.near, tokens) + self.first * self.load
        return np.array([layers, np.full(len(tokens), beside), np.full(len(tokens), alone)])

    def hosted(self, tokens: F64) -> F64:
        whole = np.array([_at(self.own, tokens) + _at(self.far, tokens), 0 * tokens, 0 * tokens])
        if self.batches == 1:
            return whole
        each = tokens / BATCHES
        halves = BATCHES * np.array([_at(self.own, each), _at(self.far, each), 0 * each])
        halves[2] = 1.0 / (BATCHES * self.layers)
        return np.where((tokens >= BATCHES) & (_total(halves) < _total(whole)), halves, whole)

    def crossing(self) -> int:
        """Tokens of the longest pass that the host computes; MOST: it always does."""
        tokens = np.arange(1, MOST + 1, dtype=np.float64)
        sooner = np.flatnonzero(_total(self.streamed(tokens)) < _total(self.hosted(tokens)))
        return int(sooner[0]) if len(sooner) else MOST


def _total(curves: F64) -> F64:
    layers, beside, alone = curves
    return np.maximum(layers, beside + alone * layers)


def _at(values: F64, tokens: F64) -> F64:
    """Interpolated between TOKENS, extrapolated with the last slope."""
    slope = (values[-1] - values[-2]) / (TOKENS[-1] - TOKENS[-2])
    return np.interp(tokens, TOKENS, values) + np.maximum(tokens - TOKENS[-1], 0.0) * slope


def _width(plan: Plan) -> float:
    return 8.0 if str(plan.precision) == "fp8" else 16.0


def _link(system: System) -> tuple[float, float]:
    """Bytes per second into a device, and the latency of a load in ns: of the tier `host`, or of the device."""
    for tier in system.tiers:
        if tier.name == "host":
            return tier.read_bytes_per_s, tier.latency_ns
    link = system.device.host_link
    if link is None:
        raise UsageError("does not specify its link to the host", where=system.name, hint="a tier `host` in its file")
    return link.read_bytes_per_s, link.latency_ns


def _host(name: str, held_bytes: float, drawn_bytes_per_s: float) -> System:
    """The host, whose memory bandwidth is reduced by streams."""
    host = open_system(name)
    device = host.device
    if held_bytes > device.memory_bytes:
        raise UsageError(
            f"experts of {format_bytes(round(held_bytes))} do not fit in {format_bytes(device.memory_bytes)} of memory",
            where=name,
            hint="use fewer bits, or a host with more memory",
        )
    left = device.memory_bandwidth_bytes_per_s - drawn_bytes_per_s
    if left <= 0:
        raise UsageError("streams use the whole memory bandwidth", where=name, hint="use fewer prefill replicas")
    return replace(host, device=replace(device, memory_bandwidth_bytes_per_s=left))

"""Stack: the effect of a software stack on a device, as factors on its times, and its recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from etude.base.errors import ClusterError
from etude.base.figures import figure, plain, read, text
from etude.cost.compute import cost_of
from etude.cost.ops import MATRIX, OpClass
from etude.machine.system import CollectiveSettings, Device, Protocol, System

ANY: Final = "any"
"""Key of the figures for every generation of GPUs without its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Factors on the times of the device and the network of the catalogue."""

    products: float = figure("number", "matrix products in 16 or 32 bits", 1.0)
    fp8: float = figure("number", "matrix products in 8 bits, and in 4", 1.0)
    attention: float = figure("number", "fused attention", 1.0)
    rest: float = figure("number", "everything else that a device computes or copies, except the optimizer", 1.0)
    network: float = figure("number", "collectives and messages", 1.0)
    overlap: float = figure("number", "compute, while the rank communicates; at least 1", 1.0)
    host: float = figure("number", "the host's time for an op", 1.0)

    def times(self, other: Efficiency) -> Efficiency:
        """Both combined."""
        return Efficiency(**{name: getattr(self, name) * getattr(other, name) for name in KNOBS})

    def values(self) -> tuple[float, ...]:
        return tuple(float(getattr(self, name)) for name in KNOBS)


KNOBS: Final = tuple(f.name for f in fields(Efficiency))
NEUTRAL: Final = Efficiency()


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Error of predictions: half of the rows are off by no more than `p50`, nine of ten by no more than `p90`."""

    p50: float = figure("number", "median of |predicted / measured - 1|", zero=True)
    p90: float = figure("number", "its 90th percentile", zero=True)
    rows: int = figure("count", "rows behind it")
    source: str = text("which rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Fields of a plan that a recipe sets if its conditions hold."""

    when: Mapping[str, str] = figure("map of text", "conditions: `tp: 2+`, `gpu: gb200`, `model: gpt-oss*`", {})
    plan: Mapping[str, Any] = figure("one", "fields of a plan", of=None)
    why: str = text("source of this rule")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A software stack. `efficiency` has one entry for each generation of GPUs, and one for any other."""

    name: str = figure("text", "name")
    doc: str = text("description")
    names: Mapping[str, str] = figure("texts", "names in tables: name -> years, as `..2023` or `2024..`", {})
    family: str = text("stacks that share kernels: megatron, xla, pytorch, eager; empty: none")
    user_buffers: bool = figure("flag", "pieces of tensor-parallel collectives are copies into open buffers", False)
    efficiency: Mapping[str, Efficiency] = figure("map of one", "by generation of GPUs, or `any`", {}, of=Efficiency)
    experts: Efficiency = figure("one", "factors over those, for mixtures of experts", NEUTRAL, of=Efficiency)
    years: Mapping[str, Efficiency] = figure(
        "map of one", "over those, for runs up to a year on a generation: `hopper 2024`", {}, of=Efficiency
    )
    short_rows: bool = figure("flag", "short rows of a norm share a block: its kernels take several at once", False)
    attention: str = text("kernel of attention, if not the vendor's: `flash-2`")
    policies: Mapping[str, str] = figure("texts", "its words for recomputation -> what is recomputed", {})
    recipe: tuple[Rule, ...] = figure("list", "defaults for what is not given; later rules win", (), of=Rule)
    bands: Mapping[str, Band] = figure("map of one", "errors of its own rows, by kind", {}, of=Band)
    source: str = text("source of the values")

    def __post_init__(self) -> None:
        for key, found in self.efficiency.items():
            if found.overlap < 1.0:
                raise ClusterError(f"efficiency: {key}: an overlap of {found.overlap} is less than 1")
        for key in self.years:
            if not key.rpartition(" ")[2].isdecimal():
                raise ClusterError(f"years: `{key}` is not a generation and a year", hint="hopper 2024")

    def on(self, generation: str, *, experts: bool) -> Efficiency:
        """Factors on a generation of GPUs."""
        found = self.efficiency.get(generation) or self.efficiency.get(ANY) or NEUTRAL
        return found.times(self.experts) if experts else found

    def in_year(self, year: int) -> Stack:
        """The stack as it was in that year; 0, or later than all known: the current one."""
        known: dict[str, tuple[int, Efficiency]] = {}
        for key, factor in self.years.items():
            generation, _, last = key.rpartition(" ")
            if year and year <= int(last) < known.get(generation, (9999, factor))[0]:
                known[generation] = int(last), factor
        if not known:
            return self
        plain = self.efficiency.get(ANY, NEUTRAL)
        then = {g: _not_below(self.efficiency.get(g, plain).times(factor)) for g, (_, factor) in known.items()}
        return replace(self, efficiency={**self.efficiency, **then}, years={})

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`, ready for YAML."""
        found = plain(replace(self, recipe=()))
        if self.recipe:
            rules = ({"when": dict(r.when), "plan": dict(r.plan), "why": r.why} for r in self.recipe)
            found["recipe"] = [{k: v for k, v in rule.items() if v} for rule in rules]
        return found

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], where: str = "stack") -> Stack:
        return read(cls, given, where)


def _not_below(by: Efficiency) -> Efficiency:
    """Overlap at least 1."""
    return replace(by, overlap=max(by.overlap, 1.0))


PRODUCTS: Final = {c.key for c in MATRIX if c not in (OpClass.ATTENTION, OpClass.ATTENTION_DECODE)}


def tuned(system: System, by: Efficiency) -> System:
    """The system with its times multiplied; `overlap` and `host` belong to the run, not to the machine."""
    levels = tuple(
        replace(level, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s / by.network) for level in system.levels
    )
    return system.with_devices(lambda device: _tuned_device(device, by)).replace(levels=levels)


def _tuned_device(device: Device, by: Efficiency) -> Device:
    ops = {}
    for name, cost in device.ops.items():
        if name in PRODUCTS or name == OpClass.ATTENTION.key:
            factor = by.products if name in PRODUCTS else by.attention
            ops[name] = replace(cost, flop_efficiency=cost.flop_efficiency / factor)
        elif name == OpClass.OPTIMIZER.key:
            ops[name] = cost  # its states go through the memory whatever the software: nothing is fused or cached
        else:
            # Whatever the software, no kernel moves its bytes faster than the memory does.
            traffic = max(cost.traffic * by.rest, min(cost.memory_efficiency, cost.traffic))
            ops[name] = replace(cost, traffic=traffic, flop_efficiency=cost.flop_efficiency / by.rest,
                                row_ns=cost.row_ns * by.rest, fixed_ns=cost.fixed_ns * by.rest)  # fmt: skip
    # Products in 8 bits, and those in 4, which are scaled and cast alike, run through the same class of ops: their peak
    # compensates the factor of `products`.
    scaled = ("fp8", "fp4")
    peak = {k: v * by.products / by.fp8 if k in scaled else v for k, v in device.peak_flop_per_s.items()}
    return replace(device, ops=ops, peak_flop_per_s=peak)


BLOCK: Final = 1024
"""Elements that a block of 128 threads reads at once, 16 bytes each: as norms of Transformer Engine are launched."""


def with_kernels(system: System, stack: Stack | None) -> System:
    """The system with the kernels of a stack: norms that take several short rows at once."""
    if stack is None or not stack.short_rows:
        return system

    def with_block(device: Device) -> Device:
        key = OpClass.NORMALISATION.key
        return replace(device, ops={**device.ops, key: replace(cost_of(device, OpClass.NORMALISATION), block=BLOCK)})

    return system.with_devices(with_block)


COPIES: Final = CollectiveSettings(protocols={"simple": Protocol(launch_ns=1000.0)})


def user_buffers(system: System) -> System:
    """Pieces of a layer's collective that overlap its product are copies into open buffers of the peers: no kernel is
    started for each, and no pipeline is filled."""
    level, own = system.levels[0], system.collectives
    copies = replace(COPIES, message_ns=own.message_ns, p2p_launch_ns=own.p2p_launch_ns)
    near = replace(level, step_ns={**level.step_ns, "simple": level.latency_ns})
    return system.replace(levels=(near, *system.levels[1:]), collectives=copies)

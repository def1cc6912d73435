"""System: the machine that a job runs on. Devices, the levels of their network, how collectives run, placement of
ranks.

Devices are numbered level by level, innermost fastest: with levels of 8 and 4, device 11 is the fourth of the second
eight. A rate is in bytes per second of payload, one direction, one device; a latency in ns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import Any, Final

import numpy as np

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import figure, plain, read, said, text
from etude.kernels.arrays import I64
from etude.machine.data_plane import DataPlane
from etude.machine.mix import as_text, kind_numbers
from etude.machine.power import PowerCosts
from etude.machine.sharing import HostLink, KernelSharing
from etude.machine.tier import Checkpointing, Tier, check_tiers
from etude.machine.topology import Topology

DTYPES: Final = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp6", "fp4", "int4")
"""Data types that a peak rate can be given for; `fp32` is the vector units' rate, the others are the matrix units'."""
PROTOCOLS: Final = ("ll", "ll128", "simple")
IN_SWITCH: Final = "in_switch"
STEPS: Final = (*PROTOCOLS, IN_SWITCH)
"""Steps with their own latency: those of a protocol, or through a switch that reduces."""


class LevelKind(StrEnum):
    """How the units of a level are connected."""

    NONE = ""
    RING = "ring"
    """Each to its two neighbours; several such levels make a torus."""
    FULL = "full"
    """Each to each, the bandwidth split evenly over the peers."""
    SWITCH = "switch"
    """Each to a switch (or a fabric of switches) with all of its bandwidth."""
    MESH = "mesh"
    """Each to its two neighbours, in a line: a ring that is cut open. A device at an end has half of the bandwidth."""


LINED: Final = (LevelKind.RING, LevelKind.MESH)
"""Levels whose units are connected to their neighbours: several of them make a torus."""


class LevelPort(StrEnum):
    """How a device reaches a switch level that is not the innermost."""

    NONE = ""
    """As the bandwidths say: `etude.machine.fabrics.own_ports`."""
    OWN = "own"
    """Through a port that no other level uses."""
    SHARED = "shared"
    """Through the switch of the level below, as the tiers of a fat tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Costs of an op of one class in addition to its roofline; see docs/costs.md for the formula."""

    fixed_ns: float = figure("time", "fixed time on the device", 2000.0, zero=True)
    flop_efficiency: float = figure("fraction", "reachable part of the peak rate", 0.8)
    memory_efficiency: float = figure("fraction", "reachable part of the memory bandwidth", 0.9)
    traffic: float = figure("number", "bytes moved for each byte counted", 1.0)
    depth_ns: float = figure("time", "latency of 1024 steps along the reduced dimension, or along a row", 0.0)
    wave_ns: float = figure("time", "start and end of one wave of tiles", 0.0)
    tile_falloff: float = figure(
        "number", "fraction of a core's time with the largest tile that grows for smaller tiles", 0.2, zero=True
    )
    tile_rows: int = figure("count", "rows to which a product of fewer than 64 rows is padded", 64)
    split_ns: float = figure("time", "cost of adding up a reduction that is split over cores", 3000.0, zero=True)
    epilogue: float = figure("number", "fraction of the time to write a product's result that is not hidden", 0.0)
    row_ns: float = figure("time", "cost of a row of a normalisation or softmax", 0.0)
    block: int = figure("count", "elements that a block of threads takes at once: shorter rows share one; 0: none", 0)
    width_exponent: float = figure("number", "growth of the traffic with the row's width / 1024", 0.0)


_NOT_A_UNIT: Final = ("", "auto")


def _check_peaks(where: str, peaks: Mapping[str, float]) -> None:
    for dtype, rate in peaks.items():
        if dtype not in DTYPES:
            raise ClusterError(f"{where}: unknown data type `{dtype}`", hint=f"known: {', '.join(DTYPES)}")
        if not rate > 0:
            raise ClusterError(f"{where}: {dtype}: {rate} is not positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator. Rates are dense peaks of the data sheet."""

    name: str = figure("text", "name")
    peak_flop_per_s: Mapping[str, float] = figure("map of rate", "peak by data type, dense", {})
    units: Mapping[str, Mapping[str, float]] = figure(
        "map of map of rate", "units on its one memory: peak by data type of each, for `--units`", {}
    )
    packed: tuple[str, ...] = figure(
        "list", "units with their own operand layout: results of others are copied first", (), of=str
    )
    memory_bytes: int = figure("bytes", "size of its memory", 0)
    memory_bandwidth_bytes_per_s: float = figure("bandwidth", "peak bandwidth of its memory", 0.0)
    cache_bytes: int = figure("bytes", "last-level cache", 0)
    cache_speedup: float = figure("number", "cache bandwidth over memory bandwidth", 1.0)
    cores: int = figure("count", "multiprocessors, compute units or cores that take one tile each", 1)
    cpu: bool = figure("flag", "whether it is a CPU: a program finds no accelerator on it", False)
    sustained_fraction: float = figure(
        "fraction", "fraction of the reachable matrix rate that is sustained (power)", 1.0
    )
    sustained_after_ns: float = figure("time", "duration of an op at which half of the drop is reached", 200_000.0)
    launch_ns: float = figure("time", "host time to launch a kernel", 4000.0, zero=True)
    power_w: float = figure("power", "board power limit; 0 unknown", 0.0)
    idle_power_w: float = figure("power", "power when idle; 0 unknown", 0.0)
    energy: PowerCosts | None = figure("one", "energy of work beyond idle; default: derived", None, of=PowerCosts)
    price: float = figure("number", "price in dollars per hour; 0 unknown", 0.0)
    available: float = figure("fraction", "fraction of hours in which one is available", 1.0)
    ops: Mapping[str, OpCost] = figure("map of one", "constants by op class, `default` for the others", {}, of=OpCost)
    sharing: KernelSharing = figure("one", "how kernels of several streams share it", KernelSharing(), of=KernelSharing)
    host_link: HostLink | None = figure("one", "link to the host's memory", None, of=HostLink)
    source: Mapping[str, str] = figure("texts", "source of the values: one text, or one for each key", {})

    def __post_init__(self) -> None:
        _check_peaks("peak", self.peak_flop_per_s)
        for name, peaks in self.units.items():
            if name in _NOT_A_UNIT or "+" in name or not peaks:
                raise ClusterError(f"units: `{name}` has no rates, or a name that is reserved by `--units`")
            _check_peaks(f"units: {name}", peaks)
        for name in self.packed:
            if name not in self.units:
                raise ClusterError(f"packed: no unit `{name}`", hint=f"known: {', '.join(self.units) or 'none'}")
        if self.units and not self.peak_flop_per_s:
            hint = "peak: those of the fastest unit"
            raise ClusterError("units are given without `peak`, which applies if no unit is named", hint=hint)
        if self.power_w and self.idle_power_w >= self.power_w:
            raise ClusterError(f"idle_power: {self.idle_power_w:g} W is not below the limit of {self.power_w:g} W")
        if min(self.power_w, self.idle_power_w, self.price) < 0:
            raise ClusterError("power: a value is negative")

    def peak(self, dtype: str) -> float:
        """FLOP/s of the matrix units, of the next wider type if this one has no rate; 0 if none has. Weights of 4 bits
        are unpacked to 16 where the units have no such products."""
        wider = {"fp4": "bf16", "fp6": "fp8", "fp8": "bf16", "int4": "int8", "int8": "bf16", "bf16": "fp16"}
        wider |= {"fp16": "tf32", "tf32": "fp32", "fp64": "fp32"}
        while dtype:
            if dtype in self.peak_flop_per_s:
                return self.peak_flop_per_s[dtype]
            dtype = wider.get(dtype, "")
        return 0.0

    def on_units(self, names: Sequence[str]) -> Device:
        """The device restricted to these units, each of which runs a part of an op in proportion to its rate."""
        unknown = [name for name in names if name not in self.units]
        if unknown:
            known = ", ".join(self.units) or "none"
            raise ClusterError(f"device `{self.name}` has no unit `{unknown[0]}`", hint=f"known: {known}")
        alone = [replace(self, peak_flop_per_s=self.units[name]) for name in names]
        if len(alone) == 1:
            return alone[0]
        sums = {dtype: sum(unit.peak(dtype) for unit in alone) for dtype in DTYPES}
        return replace(self, peak_flop_per_s={dtype: rate for dtype, rate in sums.items() if rate})

    def busy(self) -> Device:
        """The device in the middle of long work, at its power limit from the first product on."""
        return replace(self, sustained_after_ns=1e-6)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], where: str = "device") -> Device:
        return read(cls, given, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of the network: `size` units (devices, or units of the level below) connected as `kind` says."""

    name: str = figure("text", "name")
    kind: LevelKind = figure("choice", "how its units are connected", of=LevelKind)
    size: int = figure("count", "units joined")
    bandwidth_bytes_per_s: float = figure(
        "bandwidth", "bandwidth of one device, one direction, all its links of this level"
    )
    latency_ns: float = figure("time", "latency of a single message from one device to the next", 500.0, zero=True)
    efficiency: float = figure("fraction", "part of the bandwidth that payload reaches", 1.0)
    efficiency_by_units: Mapping[str, float] = figure(
        "map of fraction", "the same for a collective over this many of its units", {}
    )
    in_switch_efficiency: float = figure("fraction", "the same for reduction in the switch; 0: not supported", 0.0)
    wrap: int = figure("count", "a slice of the ring closes if its size is a multiple of this; 0: always", 0)
    wrap_together: bool = figure(
        "flag", "the ring closes only where that holds for every dimension of the torus", False
    )
    oversubscription: float = figure("number", "ratio of the bandwidth into the level to the bandwidth across it", 1.0)
    rails: bool = figure("flag", "units of the same position share a switch; the others are reached through it", False)
    on_host_link: bool = figure("flag", "its bytes use the device's link to the host (PCIe), which copies share", False)
    port: LevelPort = figure(
        "choice", "`own`, or `shared` with the level below; by default by bandwidth", LevelPort.NONE
    )
    step_ns: Mapping[str, float] = figure(
        "map of time", "latency of a collective's step by protocol, and `in_switch`", {}, zero=True
    )
    source: Mapping[str, str] = figure("texts", "source of the values: one text, or one for each key", {})

    def __post_init__(self) -> None:
        if self.kind == LevelKind.NONE:
            raise ClusterError("kind is missing", hint=f"known: {', '.join(k for k in LevelKind if k)}")
        if self.size < 1:
            raise ClusterError(f"size: {self.size} units")
        if not (self.bandwidth_bytes_per_s > 0 and math.isfinite(self.bandwidth_bytes_per_s)):
            raise ClusterError(f"bandwidth: {self.bandwidth_bytes_per_s} B/s is not positive")
        if self.wrap and self.kind not in LINED:
            raise ClusterError(f"wrap: a level of kind {self.kind} has no open ends to join")
        if self.oversubscription < 1:
            raise ClusterError(f"oversubscription: {self.oversubscription} is less than 1")
        if self.in_switch_efficiency and self.kind != LevelKind.SWITCH:
            raise ClusterError(f"in_switch_efficiency: a level of kind {self.kind} has no switch")
        for name in self.efficiency_by_units:
            if not (name.isdecimal() and int(name) > 1):
                raise ClusterError(
                    f"efficiency_by_units: `{name}` is not a number of units", hint="write for example 2: 0.65"
                )
        for name in self.step_ns:
            if name not in STEPS:
                raise ClusterError(f"step: unknown protocol `{name}`", hint=f"known: {', '.join(STEPS)}")

    @property
    def rate_bytes_per_ns(self) -> float:
        """Payload rate of one device when all use the level."""
        return self.bandwidth_bytes_per_s * self.efficiency / self.oversubscription / 1e9

    def efficiency_of(self, units: int) -> float:
        """Fraction of the bandwidth that a collective of this many units reaches: as given, linear in the logarithm
        between two given numbers, beyond them as for the nearest."""
        given = sorted((int(k), v) for k, v in self.efficiency_by_units.items())
        if not given:
            return self.efficiency
        return float(np.interp(math.log(units), [math.log(k) for k, _ in given], [v for _, v in given]))

    def step(self, protocol: str) -> float:
        """Latency of one step of a collective in ns. A level that cannot reduce in its switch uses `simple`."""
        if protocol == IN_SWITCH and not self.in_switch_efficiency:
            protocol = "simple"
        return float(self.step_ns.get(protocol, self.latency_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A way to move the bytes of a collective, of which NCCL has three: a short start for a fraction of the
    bandwidth."""

    launch_ns: float = figure("time", "fixed cost of a collective", 0.0)
    bandwidth_fraction: float = figure("fraction", "payload in what is sent", 1.0)
    most_bytes: int = figure("bytes", "payload above which it is not used; 0: no limit", 0)
    least_ns: float = figure("time", "minimum time of a collective", 0.0)
    chunk_ns: float = figure("time", "cost of one more chunk in flight; makes the pipeline's ramp", 0.0)
    ramp_bytes: int = figure("bytes", "bytes through a port above which chunks stop growing", 64_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSettings:
    """How collectives run."""

    algorithm: Mapping[str, str] = figure("map of text", "algorithm by collective; `auto` where none is named", {})
    protocols: Mapping[str, Protocol] = figure("map of one", "available protocols", {}, of=Protocol)
    message_ns: float = figure("time", "cost of one more message of an all-to-all or gather", 0.0)
    p2p_launch_ns: float = figure("time", "fixed cost of a single message", 0.0)
    p2p_least_ns: float = figure("time", "minimum time of a single message", 0.0)
    max_chunks: int = figure("count", "largest number of chunks of a pipelined collective", 64)
    window_counts: int = figure("count", "counts that `put` and `get` send to each target: experts of a rank", 1)
    source: Mapping[str, str] = figure("texts", "source of the values: one text, or one for each key", {})

    def __post_init__(self) -> None:
        for name in self.protocols:
            if name not in STEPS:
                raise ClusterError(f"protocols: unknown protocol `{name}`", hint=f"known: {', '.join(STEPS)}")

    def used(self) -> Mapping[str, Protocol]:
        """The protocols, or a free one if none is given."""
        return self.protocols or {"simple": Protocol()}

    def of_plan(self, *, in_switch: bool) -> Mapping[str, Protocol]:
        """Protocols that may carry a plan. Reduction in a switch has its own if given, else `simple` only."""
        used = self.used()
        if in_switch:
            own = IN_SWITCH if IN_SWITCH in used else "simple"
            return {name: used[name] for name in (own,) if name in used}
        return {name: protocol for name, protocol in used.items() if name != IN_SWITCH}


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Devices, of one kind or several, on a network of levels, innermost first. Rank r sits on device placement[r], or
    r.

    system: etude.System = etude.open_system("dgx-h100")
    """

    name: str = figure("text", "name")
    doc: str = text("description")
    device: Device = figure("one", "the accelerator, or the name of one in the catalogue", of=Device)
    devices: Mapping[str, str] = figure(
        "map of text", "a mix instead: which devices are of which kind, `h100: 0-15` or `a100: nvlink 2-3`", {}
    )
    kinds: Mapping[str, Device] = figure(
        "map of one", "kinds of `devices` that are not in the catalogue", {}, of=Device
    )
    levels: tuple[Level, ...] = figure("list", "levels of the network, innermost first", of=Level)
    collectives: CollectiveSettings = figure("one", "how they run", CollectiveSettings(), of=CollectiveSettings)
    placement: tuple[int, ...] = figure("list", "device of each rank; rank order if empty", (), of=int)
    tiers: tuple[Tier, ...] = figure("list", "memory below the devices': host, peer, nvme, store", (), of=Tier)
    checkpoints: tuple[Checkpointing, ...] = figure(
        "list", "methods by which the host writes and reads checkpoints", (), of=Checkpointing
    )
    data: DataPlane = figure("one", "what feeds it: store, producers, workers", DataPlane(), of=DataPlane)
    topology: Topology | None = None
    """The graph itself, if it comes from a file: rank r is on its device r. The levels then only approximate it."""
    link_changes: tuple[tuple[int, tuple[int, int], float], ...] = ()
    """(ns, ranks, factor): when circuits of the graph fail and return, as phases of a file say."""
    phases: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = ()
    """(name, circuits) of each phase."""
    irregular: str = ""
    """Why the levels are a rough approximation that closed forms may not use; empty if they may."""
    linkless: str = ""
    """What to name instead, of a device by itself: nothing is known of a link to others; empty if there is one."""

    def __post_init__(self) -> None:
        if not self.levels:
            raise ClusterError("levels: none is given", hint="one device alone is a level of size 1")
        names = [level.name for level in self.levels]
        if len(set(names)) < len(names):
            raise ClusterError(f"levels: two have the same name: {', '.join(names)}")
        unknown = [name for name in self.devices if name not in self.kinds]
        if unknown:
            raise ClusterError(f"devices: unknown kind `{unknown[0]}`", hint=f"known: {', '.join(self.kinds)}")
        if self.devices:
            kind_numbers(self.devices, self._sizes)
        seats = self.placement
        if len(set(seats)) < len(seats):
            raise ClusterError("placement: two ranks are on the same device")
        if seats and not 0 <= min(seats) <= max(seats) < len(self):
            raise ClusterError(f"placement: a device outside the system's {len(self)}")
        check_tiers(self.tiers, names)

    def __len__(self) -> int:
        """Number of devices."""
        return math.prod(level.size for level in self.levels)

    @property
    def _sizes(self) -> tuple[tuple[str, int], ...]:
        return tuple((level.name, level.size) for level in self.levels)

    @property
    def all_kinds(self) -> tuple[Device, ...]:
        """The devices of the system, each kind once."""
        return tuple(self.kinds[name] for name in self.devices) or (self.device,)

    def kind_of(self, ranks: Any) -> I64:
        """Position in `all_kinds` of the device of each rank."""
        seats = self.device_of(ranks)
        return kind_numbers(self.devices, self._sizes)[seats] if self.devices else np.zeros(len(seats), np.int64)

    def with_devices(self, change: Callable[[Device], Device]) -> System:
        """The same with each kind of device changed."""
        kinds = {name: change(device) for name, device in self.kinds.items()}
        return replace(self, device=change(self.device), kinds=kinds)

    @property
    def memory_bytes(self) -> int:
        """Smallest memory of the devices that state it; 0 if none does."""
        return min((kind.memory_bytes for kind in self.all_kinds if kind.memory_bytes), default=0)

    def peak(self, dtype: str, ranks: int) -> float:
        """FLOP/s of this many ranks, the first ones."""
        if not self.devices:
            return self.device.peak(dtype) * ranks
        count = np.bincount(self.kind_of(np.arange(ranks)), minlength=len(self.all_kinds))
        return float(sum(n * kind.peak(dtype) for n, kind in zip(count.tolist(), self.all_kinds, strict=True)))

    @property
    def num_ranks(self) -> int:
        return len(self.placement) or len(self)

    def device_of(self, ranks: Any) -> I64:
        """Device number of each rank."""
        wanted = np.asarray(ranks, np.int64)
        if wanted.size:
            self.check_linked(int(wanted.max()) + 1)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < self.num_ranks:
            bad = wanted[(wanted < 0) | (wanted >= self.num_ranks)][0]
            hint = "" if self.topology is not None else "use more nodes: `resized(devices)`"
            raise UsageError(f"system `{self.name}` has no device for rank {bad}: it has {self.num_ranks}", hint=hint)
        return np.array(self.placement, np.int64)[wanted] if self.placement else wanted

    def __repr__(self) -> str:
        kinds = " and ".join(device.name for device in self.all_kinds)
        levels = " × ".join(f"{level.name} {level.size}" for level in self.levels)
        return said(self, f"`{self.name}`: {len(self):,} of {kinds}, {levels}")

    def _repr_html_(self) -> str:
        from etude.machine.shown import system_html

        return system_html(self)

    def replace(self, **changes: Any) -> System:
        return replace(self, **changes)

    def check_linked(self, devices: int) -> None:
        """Refuses more than one device where nothing is known of a link between them."""
        if self.linkless and devices > 1:
            problem = f"`{self.name}` is one device, and its link to others is not given: {devices:,} were asked for"
            raise UsageError(problem, hint=self.linkless)

    def resized(self, devices: int) -> System:
        """The same system with `devices` devices: the outermost level grows or shrinks; a part of a node stays one.

        Of a torus a slice is taken, as near to a cube as the sizes allow; `wrap` of its levels says which of its
        dimensions still close.
        """
        if self.topology is not None:
            raise UsageError(f"system `{self.name}` is a graph with a fixed number of devices")
        self.check_linked(devices)
        if self._is_slice(devices):
            if self.devices:
                raise UsageError(f"system `{self.name}`: a torus with several kinds of devices cannot be sliced")
            return replace(self, levels=slice_of(self._torus, devices, self.name), placement=())
        levels = list(self.levels)
        below = math.prod(level.size for level in levels[:-1])
        while len(levels) > 1 and devices <= below:
            levels.pop()
            below = math.prod(level.size for level in levels[:-1])
        if devices < 1 or devices % below:
            raise UsageError(f"system `{self.name}`: {devices} devices are not a multiple of {below}")
        levels[-1] = replace(levels[-1], size=devices // below)
        if not self.devices:
            return replace(self, levels=tuple(levels), placement=())
        if devices > len(self):
            raise UsageError(f"system `{self.name}` does not define the kind of more than {len(self)} devices")
        kept = kind_numbers(self.devices, self._sizes)[:devices]
        return replace(self, levels=tuple(levels), placement=(), devices=as_text(list(self.devices), kept))

    @property
    def _torus(self) -> tuple[Level, ...]:
        """The innermost levels, as long as they connect neighbours."""
        return tuple(takewhile(lambda level: level.kind in LINED, self.levels))

    def _is_slice(self, devices: int) -> bool:
        torus = self._torus
        return bool(torus) and (len(torus) > 1 or torus[0].wrap > 0) and 0 < devices < math.prod(v.size for v in torus)

    def for_ranks(self, ranks: int) -> System:
        """A system for this many ranks: more units if it is too small, a slice if it is a torus."""
        if self.topology is not None or self.placement:
            return self
        if self._is_slice(ranks):
            return self.resized(ranks)
        unit = len(self) // self.levels[-1].size
        return self if len(self) >= ranks else self.resized(-(-ranks // unit) * unit)

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`: figures with their units, ready for YAML."""
        return plain(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], where: str = "system") -> System:
        plain: Any = given
        if isinstance(plain, Mapping) and isinstance(plain.get("levels"), list):
            levels = enumerate(plain["levels"])
            parts = [part for i, level in levels for part in _torus(level, f"{where}: levels[{i}]")]
            plain = {**plain, "levels": parts}
        return read(cls, plain, where)


def slice_of(torus: Sequence[Level], devices: int, name: str) -> tuple[Level, ...]:
    """The levels of a slice: the dimensions with the smallest sum that fit, the small ones first."""
    shape = _most_cubic([level.size for level in torus], devices)
    if not shape:
        sizes = "x".join(str(level.size) for level in torus)
        raise UsageError(
            f"system `{name}`: {devices} devices are not a slice of its {sizes}", hint="use a power of two"
        )
    closes = [not level.wrap or size % level.wrap == 0 for level, size in zip(torus, shape, strict=True)]
    if any(level.wrap_together for level in torus) and not all(closes):
        closes = [False] * len(shape)
    kept = []
    for level, size, wraps in zip(torus, shape, closes, strict=True):
        kind = level.kind if wraps else LevelKind.MESH
        if size > 1:
            kept.append(replace(level, size=size, kind=kind))
    return tuple(kept) or (replace(torus[0], size=1),)


def _most_cubic(sizes: Sequence[int], devices: int) -> tuple[int, ...]:
    """Factors of `devices`, none larger than its dimension, that grow outwards if they can; empty where there are
    none."""
    if len(sizes) == 1:
        return (devices,) if devices <= sizes[0] else ()
    found = []
    for first in range(1, min(sizes[0], devices) + 1):
        rest = _most_cubic(sizes[1:], devices // first) if devices % first == 0 else ()
        if rest:
            found.append((first, *rest))
    return min(found, key=lambda shape: (sum(shape), sorted(shape) != list(shape), shape), default=())


def _torus(level: Any, where: str) -> list[Any]:
    """`kind: torus, shape: [4, 4, 2]` is a ring level for each dimension; the bandwidth is that of one dimension.
    `kind: mesh` with a `shape` likewise has no wraps."""
    if not isinstance(level, Mapping) or not (level.get("kind") == "torus" or _is_mesh(level)):
        return [level]
    shape, axes = level.get("shape"), "xyzuvw"
    if not isinstance(shape, list) or not 0 < len(shape) <= len(axes):
        raise ClusterError("a torus needs its `shape`", where=where, hint="for example shape: [4, 4, 4]")
    rest = {k: v for k, v in level.items() if k not in ("kind", "shape", "name")}
    name = level.get("name", "torus")
    kind = "ring" if level["kind"] == "torus" else "mesh"
    return [{**rest, "name": f"{name}_{axis}", "kind": kind, "size": n} for axis, n in zip(axes, shape, strict=False)]


def _is_mesh(level: Mapping[str, Any]) -> bool:
    return level.get("kind") == "mesh" and "shape" in level

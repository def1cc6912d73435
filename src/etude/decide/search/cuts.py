"""Cuts of a chain of layers over devices in order, at given rates of the links between them.

A cut is the layer at which each device but the first begins: (3, 5) of 8 layers is 0-2, 3-4, 5-7. A device may have no
layer; what passes it travels over both of its links. Once all layers are done nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb

import numpy as np
from numpy.typing import NDArray

from etude.cost.energy import costs_of, idle_w
from etude.decide.search.found import Row
from etude.decide.search.layers import Layers
from etude.decide.search.links import NEVER, VaryingLink
from etude.kernels.arrays import F64, I64
from etude.machine import Device

Cut = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CutScore:
    latency_ns: int
    energy_j: float
    bottleneck_ns: int
    """The longest stage or message: the interval of results if inferences follow one another."""

    def of(self, name: str) -> float:
        return self.energy_j if name == "energy" else self.latency_ns if name == "latency" else self.bottleneck_ns


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Costs of layers on each device."""

    layers: Layers
    devices: tuple[Device, ...]
    links: tuple[VaryingLink, ...]
    ends_ns: I64
    """(device, layer): total of the layers before this one; a stage is a difference of two."""
    ends_j: F64
    """The same for energy above idle."""
    message_bytes: I64
    """By the layer that follows; the last, after all layers, is 0."""
    idle_w: float
    """Sum over all devices."""
    talking_w: tuple[float, ...]
    """Per link: what both of its devices draw above idle during a message."""
    fits: NDArray[np.bool_]
    """(device, first layer, layer after the last): whether these layers fit in its memory."""

    @property
    def space(self) -> int:
        """Number of cuts."""
        return comb(len(self.layers) + len(self.links), len(self.links))

    def stages(self, cut: Cut) -> list[tuple[int, int]]:
        """First layer and the one after the last, of each device."""
        return list(zip((0, *cut), (*cut, len(self.layers)), strict=True))

    def score(self, cut: Cut, rates: Sequence[int]) -> CutScore:
        """Score if the links kept these rates."""
        return self._walked(cut, 0, lambda link, size, now: self.links[link].constant_ns(size, rates[link]))

    def walk(self, cut: Cut, start_ns: int) -> CutScore:
        """Score of an inference that begins at this time, with the rates of the links while messages are sent."""
        return self._walked(cut, start_ns, lambda link, size, now: self.links[link].arrival_ns(size, now) - now)

    def _walked(self, cut: Cut, start_ns: int, message_ns: Callable[[int, int, int], int]) -> CutScore:
        """`message_ns`: time of a message over a link, of its size, sent now."""
        now, energy, longest = start_ns, 0.0, 0
        for d, (a, b) in enumerate(self.stages(cut)):
            hop = message_ns(d - 1, int(self.message_bytes[a]), now) if d and a < len(self.layers) else 0
            stage = int(self.ends_ns[d, b] - self.ends_ns[d, a])
            energy += self.talking_w[d - 1] * hop / 1e9 if d else 0.0
            energy += float(self.ends_j[d, b] - self.ends_j[d, a])
            longest, now = max(longest, hop, stage), now + hop + stage
        return CutScore(now - start_ns, energy + self.idle_w * (now - start_ns) / 1e9, longest)

    def hop_ns(self, link: int, layer: int, rate: int) -> int:
        """Time of a message before this layer; 0 if all layers are done."""
        done = layer == len(self.layers)
        return 0 if done else self.links[link].constant_ns(int(self.message_bytes[layer]), rate)

    def fitting(self) -> int:
        """Number of cuts that fit in the memories of all devices."""
        size = len(self.layers) + 1
        ways = np.zeros(size, object)
        ways[0] = 1
        for fits in self.fits:
            ways = np.array([sum(ways[a] for a in range(b + 1) if fits[a, b]) for b in range(size)], object)
        return int(ways[-1])


def chain_of(layers: Layers, devices: Sequence[Device], links: Sequence[VaryingLink], memory: Sequence[int]) -> Chain:
    """`memory`: bytes of each device, 0: no limit."""
    size = len(layers) + 1
    ends_ns = np.zeros((len(devices), size), np.int64)
    ends_j = np.zeros((len(devices), size))
    fits = np.ones((len(devices), size, size), bool)
    for d, device in enumerate(devices):
        ends_ns[d, 1:] = np.cumsum(layers.time_ns(device))
        ends_j[d, 1:] = np.cumsum(layers.work_j(device))
        if memory[d]:
            for a in range(size):
                for b in range(a, size):
                    fits[d, a, b] = _needed(layers, a, b) <= memory[d]
    talks = [costs_of(device).communication_w for device in devices]
    return Chain(
        layers, tuple(devices), tuple(links), ends_ns, ends_j, np.concatenate((layers.in_bytes, [0])),
        sum(idle_w(device) for device in devices), tuple(a + b for a, b in pairwise(talks)), fits,
    )  # fmt: skip


def _needed(layers: Layers, first: int, after: int) -> int:
    """Weights of these layers, and the largest input and output of one."""
    part = slice(first, after)
    most = (layers.in_bytes[part] + layers.out_bytes[part]).max(initial=0)
    return int(layers.weight_bytes[part].sum() + most)


def best_cut(chain: Chain, rates: Sequence[int], score: str, deadline_ns: int = 0) -> Cut | None:
    """By dynamic programming; None if no cut is within the limits. Among equal cuts the one that leaves least to the
    first devices."""
    if deadline_ns and score != "latency":
        return _within(chain, rates, score, deadline_ns)
    size = len(chain.layers) + 1
    best = np.full(size, np.inf)
    best[0] = 0
    froms = []
    for d in range(len(chain.devices)):
        hop, stage = _costs(chain, d, rates, score)
        both = np.maximum(best, hop)[:, None] if score == "bottleneck" else (best + hop)[:, None]
        whole = np.maximum(both, stage) if score == "bottleneck" else both + stage
        whole[~chain.fits[d] | ~np.tri(size, dtype=bool).T] = np.inf
        froms.append(whole.argmin(axis=0))
        best = whole.min(axis=0)
    if not np.isfinite(best[-1]) or (deadline_ns and best[-1] > deadline_ns):
        return None
    cut, layer = [], size - 1
    for came in froms[:0:-1]:
        layer = int(came[layer])
        cut.append(layer)
    return tuple(cut[::-1])


def _costs(chain: Chain, d: int, rates: Sequence[int], score: str) -> tuple[F64, F64]:
    """Costs of the message to a device by the layer that it begins with, and of its stage by first layer and the one
    after the last."""
    size = len(chain.layers) + 1
    hop = np.zeros(size)
    if d:
        taken = [chain.hop_ns(d - 1, layer, rates[d - 1]) for layer in range(size)]
        hop = np.array([np.inf if t >= NEVER else t for t in taken], np.float64)
    ends = chain.ends_ns[d]
    stage = (ends[None, :] - ends[:, None]).astype(np.float64)
    if score == "energy":
        joules = chain.ends_j[d]
        hop = hop * ((chain.talking_w[d - 1] if d else 0) + chain.idle_w) / 1e9
        stage = stage * chain.idle_w / 1e9 + (joules[None, :] - joules[:, None])
    return hop, stage


Label = tuple[float, float, Cut]
"""Score so far, latency so far, and the first layers of devices."""


def _within(chain: Chain, rates: Sequence[int], score: str, deadline_ns: int) -> Cut | None:
    """The same with a deadline: each place keeps the labels that no other beats in both score and latency."""
    size = len(chain.layers) + 1
    labels: list[list[Label]] = [[(0.0, 0.0, ())], *([] for _ in range(size - 1))]
    for d in range(len(chain.devices)):
        hop, stage = _costs(chain, d, rates, score)
        hop_ns, stage_ns = _costs(chain, d, rates, "latency")
        found: list[list[Label]] = [[] for _ in range(size)]
        for a in range(size):
            for b in range(a, size):
                took = hop_ns[a] + stage_ns[a, b]
                if not chain.fits[d, a, b]:
                    continue
                for so_far, latency, cut in labels[a]:
                    if latency + took <= deadline_ns:
                        parts = (so_far, hop[a], stage[a, b])
                        value = max(parts) if score == "bottleneck" else sum(parts)
                        found[b].append((value, latency + took, (*cut, a)))
        labels = [_unbeaten(place) for place in found]
    return min(labels[-1])[2][1:] if labels[-1] else None


def _unbeaten(labels: list[Label]) -> list[Label]:
    kept: list[Label] = []
    for label in sorted(labels):
        if not kept or label[1] < kept[-1][1]:
            kept.append(label)
    return kept


def row_of(chain: Chain, cut: Cut, score: CutScore) -> Row:
    """A cut and its scores, as a row of the table."""
    found: Row = {
        "cut": list(cut),
        "latency_ms": score.latency_ns / 1e6,
        "energy_j": score.energy_j,
        "bottleneck_ms": score.bottleneck_ns / 1e6,
    }
    names = chain.layers.name
    for d, (device, (a, b)) in enumerate(zip(chain.devices, chain.stages(cut), strict=True)):
        key = device.name if device.name not in found else f"{device.name} ({d})"
        found[key] = "-" if a == b else names[a] if b == a + 1 else f"{names[a]} ... {names[b - 1]}"
    return found

"""Tensors of a model's layers, and the cost of each in the device, copied to it, or computed by the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from etude.base.errors import ClusterError, UsageError
from etude.cost.contention.launches import memory_rate
from etude.cost.tiers.placing import StoredPart
from etude.machine.system import Device, OpCost
from etude.make.generate.model import Mixer, Model
from etude.steps.placing import parts_of

UP: Final = 2 / 3
"""Fraction of a gated feed-forward layer in the up projections; the rest is the down projection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceWork:
    """Work of one piece in one phase."""

    read_bytes: float
    flops: float
    ahead: bool = True
    """Whether the needed bytes are known before the piece's turn, so that a copy can start early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPiece:
    """Similar tensors, one for each of `count` layers."""

    name: str
    count: int
    size_bytes: float
    """Of one piece."""
    prompt: PieceWork
    token: PieceWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A device with its link, and the host below it. Rates are those that kernels reach."""

    near_bytes_per_ms: float
    link_bytes_per_ms: float
    far_bytes_per_ms: float
    device_flop_per_ms: float
    host_flop_per_ms: float
    hop_ms: float
    """Round trip for what the host computes in the middle of a pass."""

    def device_ms(self, work: PieceWork) -> float:
        return max(work.read_bytes / self.near_bytes_per_ms, work.flops / self.device_flop_per_ms)

    def host_ms(self, work: PieceWork) -> float:
        return self.hop_ms + max(work.read_bytes / self.far_bytes_per_ms, work.flops / self.host_flop_per_ms)


def client_of(device: Device, host: Device) -> Client:
    link = device.host_link
    if link is None:
        raise ClusterError(
            f"device `{device.name}` does not specify its link to the host", hint="`host_link` in its file"
        )
    reached = [(one.ops.get("gemm") or OpCost()).flop_efficiency * one.peak("bf16") / 1e3 for one in (device, host)]
    return Client(
        near_bytes_per_ms=1e6 * memory_rate(device),
        link_bytes_per_ms=link.read_bytes_per_s / 1e3,
        far_bytes_per_ms=1e6 * memory_rate(host),
        device_flop_per_ms=reached[0],
        host_flop_per_ms=reached[1],
        hop_ms=2 * link.latency_ns / 1e6,
    )


def pieces_of(model: Model, prompt: int, bits: float, *, whole: bool = False) -> list[TensorPiece]:
    """Pieces of a sequence with a prompt of this many tokens. `whole`: layers are not cut."""
    layers = sum(model.mixer_of(i) == Mixer.ATTENTION for i in range(model.layers))
    if not layers or layers != model.layers or model.kv_rank:
        raise UsageError(f"`{model.name}` is not a decoder whose layers all attend with keys and values", where="model")
    total = {part.name: part for part in _parts(model, prompt, bits)}
    table = float(model.vocab * model.hidden) * bits / 8
    head = table if not model.tied else 0.0
    attention = float(model.hidden * model.head * 2 * (model.heads + model.kv)) * bits / 8
    dense = (total["weights"].size_bytes - table - head) / layers - attention
    product = _products(prompt, bits)
    found = [replace(product("attention", attention), count=layers), _kv(model, total["kv"].size_bytes, layers, prompt)]
    if model.experts:
        # The rest of a layer (router, norms, shared experts, dense layers) goes with its attention.
        found[0] = replace(product("attention", attention + dense), count=layers)
        found += _experts(total["experts"].size_bytes / layers, total["experts"].use, prompt, bits, layers)
    else:
        up = UP if model.gated else 0.5
        found += [
            replace(product("up", dense * up), count=layers),
            replace(product("down", dense * (1 - up)), count=layers),
        ]
    if whole:
        found = [_joined(found)]
    words = PieceWork(read_bytes=table, flops=2.0 * model.vocab * model.hidden)
    return [*found, TensorPiece(name="head", count=1, size_bytes=table + head, prompt=words, token=words)]


@lru_cache(64)
def _parts(model: Model, prompt: int, bits: float) -> tuple[StoredPart, ...]:
    return tuple(parts_of(model, prompt, bits))


def _products(prompt: int, bits: float) -> Callable[[str, float], TensorPiece]:
    """Weights that every token is multiplied with."""

    def made(name: str, size_bytes: float) -> TensorPiece:
        flops = 2.0 * size_bytes * 8 / bits
        return TensorPiece(
            name=name,
            count=1,
            size_bytes=size_bytes,
            token=PieceWork(read_bytes=size_bytes, flops=flops),
            prompt=PieceWork(read_bytes=size_bytes, flops=flops * prompt),
        )

    return made


def _experts(size_bytes: float, use: float, prompt: int, bits: float, layers: int) -> list[TensorPiece]:
    """A token reads the experts of a layer that it is routed to, known only then; a prompt reads nearly all."""
    found = []
    for name, part in (("experts up", UP), ("experts down", 1 - UP)):
        size, active = size_bytes * part, 2.0 * size_bytes * part * use * 8 / bits
        found.append(TensorPiece(
            name=name, count=layers, size_bytes=size, token=PieceWork(read_bytes=size * use, flops=active, ahead=False),
            prompt=PieceWork(read_bytes=size * (1 - (1 - use) ** prompt), flops=active * prompt),
        ))  # fmt: skip
    return found


def _kv(model: Model, size_bytes: float, layers: int, prompt: int) -> TensorPiece:
    """Keys and values, with the products of attention."""
    size, pair = size_bytes / layers, 4.0 * model.heads * model.head
    return TensorPiece(
        name="kv",
        count=layers,
        size_bytes=size,
        token=PieceWork(read_bytes=size, flops=pair * prompt),
        prompt=PieceWork(read_bytes=size, flops=pair * prompt * (prompt + 1) / 2),
    )


def _joined(pieces: list[TensorPiece]) -> TensorPiece:
    """All of a layer as one piece."""
    works = [
        PieceWork(
            read_bytes=sum(w.read_bytes for w in of), flops=sum(w.flops for w in of), ahead=all(w.ahead for w in of)
        )
        for of in ([p.prompt for p in pieces], [p.token for p in pieces])
    ]
    size = sum(piece.size_bytes for piece in pieces)
    return TensorPiece(name="layer", count=pieces[0].count, size_bytes=size, prompt=works[0], token=works[1])

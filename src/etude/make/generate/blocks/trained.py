"""Training: which weights get gradients, and how far back gradients go.

all            every weight
forward        nothing, and there is no backward pass: a teacher, an encoder that stays as it is
frozen         no weight, but gradients go through to what comes before
layers:24..    layers from number 24 (the first is 0) to the last, and the head; `layers:8..15`: those eight alone
lora:16        adapters of rank 16 added to every product of a layer with a weight of a higher rank; the rest is frozen
lora:16:qkv    adapters of the products for queries, keys and values alone
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import lru_cache
from typing import Any, Final

from etude.base.errors import ClusterError, UsageError
from etude.base.grammar import line
from etude.make.generate.blocks.ops import GEMMS, Op, Phase, add, linear
from etude.make.generate.blocks.recompute import is_layer
from etude.make.generate.blocks.shard import Block

PRODUCTS: Final = (*GEMMS, "aten::convolution")
HINT: Final = "all, forward, frozen, layers:24.., layers:8..15, lora:16 or lora:16:qkv"
QKV: Final = "qkv"
_MOST: Final = 999_999


@dataclass(frozen=True, slots=True)
class Trained:
    """`first` and `last` are numbers of layers; `last` is -1 where the head is trained too."""

    kind: str
    first: int = 0
    last: int = -1
    rank: int = 0
    adapted: str = ""
    """Products with adapters; empty: all."""


@lru_cache(64)
def parse(text: str) -> Trained:
    whole = line(text, "train", HINT, ClusterError)
    kind, rest = whole.cut(":")
    if rest is None and kind.text in ("all", "forward", "frozen"):
        return Trained(kind.text)
    if rest is None:
        raise whole.wrong(f"unknown value `{kind.text}`")
    if kind.text == "lora":
        rank, adapted = rest.cut(":")
        if adapted is not None:
            adapted.choice((QKV,))
        return Trained("lora", rank=rank.count(most=_MOST), adapted="" if adapted is None else adapted.text)
    first, last = rest.cut("..")
    if kind.text != "layers" or last is None:
        raise whole.wrong(f"`{text}` does not say what is trained")
    begin, end = first.count(zero=True, most=_MOST), last.count(zero=True, most=_MOST) if last.text else -1
    if 0 <= end < begin:
        raise rest.wrong(f"`{rest.text}` ends before it begins")
    return Trained("layers", begin, end)


def only(blocks: Sequence[Block], what: Trained, *, tied: bool = False) -> list[Block]:
    """The blocks with the remaining backward ops, and with untrained weights marked. `tied`: the head is the embedding,
    and is trained if that is."""
    if what.kind == "all":
        return list(blocks)
    made: dict[tuple[int, str], tuple[Op, ...]] = {}
    found, layer = [], -1
    for block in blocks:
        layer += is_layer(block)
        mode = _mode(block, layer, what)
        key = id(block.ops), mode
        if key not in made:
            made[key] = _ops(block.ops, mode, what)
            if what.kind == "layers" and layer >= 0 and mode in ("all", "frozen"):
                made[key] = tuple(map(_as_the_table(what, tied=tied), block.ops, made[key]))
        found.append(changed(block, ops=made[key]))
    if what.kind == "layers" and max(what.first, what.last) > layer:
        raise UsageError(f"train: the model has layers 0 to {layer}, not {max(what.first, what.last)}")
    return found


def _as_the_table(what: Trained, *, tied: bool) -> Callable[[Op, Op], Op]:
    """An op that uses the embedding table is trained if the table is, whatever its block."""

    def chosen(usual: Op, made: Op) -> Op:
        if not usual.tied_params and not (tied and usual.part == "logits"):
            return made
        return _frozen(usual) if what.first else usual

    return chosen


def _mode(block: Block, layer: int, what: Trained) -> str:
    """How a block is trained; `layer`: its number, or that of the last one before it."""
    if what.kind != "layers":
        return what.kind if what.kind != "lora" or is_layer(block) else "frozen"
    if layer < what.first:
        return "forward" if what.first else "all"
    if what.last < 0:
        return "all"
    return "all" if layer <= what.last and is_layer(block) else "frozen"


def _ops(ops: tuple[Op, ...], mode: str, what: Trained) -> tuple[Op, ...]:
    if mode == "all":
        return ops
    if mode == "forward":
        return tuple(_forward(op) for op in ops)
    frozen = [_frozen(op) for op in ops]
    if mode == "frozen":
        return tuple(frozen)
    return tuple(one for op in frozen for one in (op, *(_adapters(op, what.rank) if _is_adapted(op, what) else ())))


def _is_adapted(op: Op, what: Trained) -> bool:
    return not what.adapted or (op.part.startswith("attention.") and not op.part.endswith(".out"))


def _forward(op: Op) -> Op:
    """Nothing is kept; its inputs exist while it runs."""
    while_it_runs = max(op.temp_bytes, op.saved_bytes)
    return op.replace(backward=(), saved_bytes=0, inner_bytes=0, temp_bytes=while_it_runs, frozen=True)


def _frozen(op: Op) -> Op:
    """Without the weight gradient, and without the input kept for it."""
    back = tuple(one for one in op.backward if one.phase != Phase.WEIGHT)
    product = op.name in PRODUCTS and not op.core
    return op.replace(backward=back, frozen=True, saved_bytes=0 if product else op.saved_bytes)


def _adapters(op: Op, rank: int) -> list[Op]:
    """Down to the rank and up again, added to the output of the product before it is reduced. An adapter of a weight
    that is split by its outputs has its upper half split, one that is split by its inputs its lower half."""
    if op.name not in PRODUCTS or not op.params or op.core:
        return []
    left, right = json.loads(op.in_shapes)[:2]
    if op.name == "aten::convolution":
        return []
    batch, (m, k), n = (left[0] if len(left) == 3 else 1), left[-2:], right[-1]
    ways = op.ways
    deep, wide = (k * ways if op.split == "in" else k), (n * ways if op.split == "out" else n)
    if rank >= min(deep, wide):
        return []
    copies = max(round(op.params / op.local_params / ways), 1)  # experts that other ranks hold
    dtype = "bf16" if op.dtype in ("fp8", "fp4") else op.dtype
    more: dict[str, Any] = {"dtype": dtype, "batch": batch, "expert": op.expert, "load": op.load}
    down = linear(m, k, rank, op.part, params=copies * batch * deep * rank, local=batch * k * rank, **more)
    up = linear(m, rank, n, op.part, params=copies * batch * rank * wide, local=batch * rank * n, **more)
    if op.split == "out":  # each rank computes a part of the gradient of a replicated weight
        down = down.replace(summed=("tp", down.local_params))
    elif op.split == "in":
        up = up.replace(summed=("tp", up.local_params))
    return [down, up, add(batch * m * n, op.part, dtype=dtype).replace(load=op.load)]

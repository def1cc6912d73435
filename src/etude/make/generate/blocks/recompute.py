"""Recomputation: which ops of a block are recomputed, when, and what need not be kept because of it.

none                        nothing
selective                   the core of attention: its scores, or the sums of its rows
selective:norm,activation   parts by name; what comes out of a norm or an activation is made again for the product
                            behind it
selective:experts,ffn       a mixture of experts or a feed-forward layer whole, exchanges of tokens included: what goes
                            into it is kept
selective:latent            queries, keys and values of latent attention, made again from what they are made of
full                        whole layers: what goes into them is kept
full:needed                 layers as far as the backward pass needs them: not the product that they end with
                            (checkpoints of PyTorch that are not reentrant, JAX)
full:qkv,out,core,gate      so too, and what these give is kept: the products before and behind attention, its core, the
                            gate of a feed-forward layer
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import Final

from etude.base.errors import ClusterError
from etude.base.grammar import line
from etude.make.generate.blocks.ops import GEMMS, Op, bytes_of, gemm
from etude.make.generate.blocks.shard import Block

PARTS: Final = ("attention", "norm", "activation", "experts", "ffn", "latent")
WHOLE: Final = {"experts": ("experts.", "shared."), "ffn": ("ffn.",)}
"""Prefixes of the ops of a part that is recomputed as a whole."""
LATENT: Final = ("attention.q", "attention.q_up", "attention.kv_up", "attention.rotary")
LAYER: Final = "layer"
NEEDED: Final = "needed"
KEPT: Final = {
    "qkv": ("attention.q", "attention.kv"),
    "out": ("attention.out",),
    "core": ("attention.core",),
    "gate": ("ffn.up",),
}
"""Prefixes of the ops whose results may be kept where a layer is recomputed. A gate is half of the first product."""
NOTHING: Final = frozenset[str]()
EXAMPLE: Final = "selective:norm,activation, or whole layers except what is kept: full:qkv,core"


@lru_cache(64)
def parse(text: str) -> frozenset[str]:
    """Parts that are recomputed; `LAYER` for all of a layer."""
    if text in ("none", "full", "selective"):
        return {"none": NOTHING, "full": frozenset({LAYER}), "selective": frozenset({"attention"})}[text]
    kind, names = line(text, "recompute", EXAMPLE, ClusterError).cut(":")
    if names is None or kind.text not in ("full", "selective"):
        raise kind.wrong(f"unknown kind `{kind.text}`", f"none, selective, full, parts by name: {EXAMPLE}")
    whole = kind.text == "full"
    found = frozenset(name.choice((NEEDED, *KEPT) if whole else PARTS, "part") for name in names.split(","))
    return found | {LAYER, NEEDED} if whole else found


def is_layer(block: Block) -> bool:
    return "." in block.name


def redone(block: Block, twice: frozenset[str]) -> dict[int, list[Op]]:
    """Ops to recompute, by the op before whose backward pass this happens."""
    if not twice or not is_layer(block):
        return {}
    ops = block.ops
    if LAYER in twice:
        return {len(ops) - 1: _again(ops, twice)}
    found: dict[int, list[Op]] = {}
    whole = _whole(ops, twice)
    core = _of_latent(ops, twice)
    if core:
        found[core[-1]] = [op for op in ops if op.part in LATENT]
    for first, last in sorted([*_runs(ops), *whole]):
        if (first, last) in whole:
            found.setdefault(last, []).extend(ops[first : last + 1])
            continue
        if ops[first].unit not in twice or any(a <= first <= b for a, b in whole):
            continue
        user = last if ops[first].unit == "attention" else _last_of(ops, _user(ops, last))
        user = next((b for a, b in whole if a <= user <= b), user)
        of_latent = bool(core) and ops[user].part in LATENT
        user = core[-1] if of_latent else user
        again = [*ops[first : last + 1]]
        if last + 1 < len(ops) and ops[last + 1].name == "aten::_to_copy":  # what was kept was cast
            again.append(ops[last + 1])
        if of_latent:  # the inputs of queries, keys and values come before them
            found[user][:0] = again
        else:
            found.setdefault(user, []).extend(again)
    return found


def _again(ops: tuple[Op, ...], twice: frozenset[str]) -> list[Op]:
    """Recomputed ops of a layer: all of it, or what is needed and not kept."""
    if NEEDED not in twice:
        return list(ops)
    last = max((i for i, op in enumerate(ops) if op.saved_bytes), default=-1)
    end = next((i for i, op in enumerate(ops) if last >= 0 and op.part == ops[last].part), len(ops))
    found: list[Op] = []
    for op in ops[:end]:
        part = next((name for name in KEPT if name in twice and op.part.startswith(KEPT[name])), "")
        if part == "gate" and op.name in GEMMS:
            found.append(_half(op))
        elif part in ("", "gate"):
            found.append(op)
    return found


def _result(op: Op) -> list[int]:
    """Sizes of the outputs of an op."""
    return [int(size) for size in re.findall(r"\d+", op.out_shapes)]


def _half(op: Op) -> Op:
    """A product with half of its columns."""
    *_, m, n = _result(op)
    k = int(re.findall(r"\d+", op.in_shapes)[-2])
    half = gemm(m, max(n // 2, 1), k, op.part, dtype=op.dtype)
    return op.replace(
        flops=half.flops, size_bytes=half.size_bytes, in_shapes=half.in_shapes, out_shapes=half.out_shapes
    )


def kept(block: Block, twice: frozenset[str]) -> list[int]:
    """Bytes that each op keeps for the backward pass."""
    ops = block.ops
    sizes = [op.saved_bytes for op in ops]
    if not is_layer(block):
        return sizes
    if LAYER in twice:  # its input, as large as its output, and what is kept of it
        sizes = [_kept_result(op, twice) for op in ops]
        sizes[0] += block.out_bytes
        return sizes
    for first, last in _whole(ops, twice):
        into = _user(ops, first - 1)
        sizes[first : last + 1] = [sizes[i] if i == into else 0 for i in range(first, last + 1)]
    for i in _of_latent(ops, twice):
        sizes[i] -= ops[i].saved_bytes - ops[i].inner_bytes
    for first, last in _runs(ops):
        unit = ops[first].unit
        if unit == "attention" and unit in twice:
            for i in range(first, last + 1):
                sizes[i] -= ops[i].inner_bytes
        elif unit in twice:
            sizes[_user(ops, last)] = 0
    return sizes


def _kept_result(op: Op, twice: frozenset[str]) -> int:
    names = [name for name in KEPT if name in twice and op.part.startswith(KEPT[name])]
    if not names or (op.name not in GEMMS and not op.core):
        return 0
    size = bytes_of(prod(_result(op)), op.dtype)
    return size // 2 if names == ["gate"] else size


def _whole(ops: tuple[Op, ...], twice: frozenset[str]) -> list[tuple[int, int]]:
    """(first, last) of the parts that are recomputed as a whole; the ops of each are contiguous."""
    found = []
    for name in sorted(twice & WHOLE.keys()):
        rows = [i for i, op in enumerate(ops) if op.part.startswith(WHOLE[name])]
        found += [(rows[0], rows[-1])] if rows else []
    return found


def _of_latent(ops: tuple[Op, ...], twice: frozenset[str]) -> list[int]:
    """The core of latent attention, if its inputs are recomputed."""
    if "latent" not in twice or all(op.part != "attention.kv_up" for op in ops):
        return []
    return [i for i, op in enumerate(ops) if op.core]


def _runs(ops: tuple[Op, ...]) -> list[tuple[int, int]]:
    """(first, last) of neighbours that are one unit."""
    found: list[tuple[int, int]] = []
    for i, op in enumerate(ops):
        if not op.unit:
            continue
        if found and found[-1][1] == i - 1 and ops[i - 1].unit == op.unit and ops[i - 1].part == op.part:
            found[-1] = found[-1][0], i
        else:
            found.append((i, i))
    return found


def _user(ops: tuple[Op, ...], made: int) -> int:
    """The op that keeps the output of another: the next one that keeps anything."""
    return next((i for i in range(made + 1, len(ops)) if ops[i].saved_bytes), made)


def _last_of(ops: tuple[Op, ...], one: int) -> int:
    """The last op of the same layer: a product may be in pieces, with a collective behind."""
    last = one
    while last + 1 < len(ops) and ops[last + 1].part == ops[one].part:
        last += 1
    return last

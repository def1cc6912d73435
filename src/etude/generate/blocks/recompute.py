"""What is computed twice: which ops of a block, when they are done again, and what need not be kept because of it.

none                        nothing
selective                   the core of attention: its scores, or the sums of its rows
selective:norm,activation   parts by name; what comes out of a norm or an activation is made again for the product
                            behind it
full                        whole layers: what goes into them is kept
"""

from __future__ import annotations

from typing import Final

from etude.errors import ClusterError
from etude.generate.blocks.ops import Op
from etude.generate.blocks.shard import Block

PARTS: Final = ("attention", "norm", "activation")
LAYER: Final = "layer"
NOTHING: Final = frozenset[str]()


def parse(text: str) -> frozenset[str]:
    """Parts that are computed twice; `LAYER` for all of a layer."""
    kind, colon, names = text.partition(":")
    if text in ("none", "full", "selective"):
        return {"none": NOTHING, "full": frozenset({LAYER}), "selective": frozenset({"attention"})}[text]
    found = frozenset(name.strip() for name in names.split(","))
    if kind != "selective" or not colon or not found <= set(PARTS):
        raise ClusterError(
            f"recompute `{text}`", hint=f"none, selective, full, or parts by name: selective:{','.join(PARTS)}"
        )
    return found


def is_layer(block: Block) -> bool:
    return "." in block.name


def redone(block: Block, twice: frozenset[str]) -> dict[int, list[Op]]:
    """Ops to do again, by the op before whose backward pass they are done."""
    if not twice or not is_layer(block):
        return {}
    ops = block.ops
    if LAYER in twice:
        return {len(ops) - 1: list(ops)}
    found: dict[int, list[Op]] = {}
    for first, last in _runs(ops):
        if ops[first].unit not in twice:
            continue
        user = last if ops[first].unit == "attention" else _last_of(ops, _user(ops, last))
        again = [*ops[first : last + 1]]
        if last + 1 < len(ops) and ops[last + 1].name == "aten::_to_copy":  # what was kept was cast
            again.append(ops[last + 1])
        found.setdefault(user, []).extend(again)
    return found


def kept(block: Block, twice: frozenset[str]) -> list[int]:
    """Bytes that each op keeps for the backward pass."""
    ops = block.ops
    sizes = [op.saved_bytes for op in ops]
    if not is_layer(block):
        return sizes
    for first, last in _runs(ops):
        unit = ops[first].unit
        if unit == "attention" and unit in twice:
            for i in range(first, last + 1):
                sizes[i] -= ops[i].inner_bytes
        elif unit in twice:
            sizes[_user(ops, last)] = 0
    return sizes


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
    """The op that keeps what another gives: the next that keeps anything."""
    return next((i for i in range(made + 1, len(ops)) if ops[i].saved_bytes), made)


def _last_of(ops: tuple[Op, ...], one: int) -> int:
    """The last op of the same layer: a product may be in pieces, with a collective behind."""
    last = one
    while last + 1 < len(ops) and ops[last + 1].part == ops[one].part:
        last += 1
    return last

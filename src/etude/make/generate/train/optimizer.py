"""Optimizers: the state that they keep for a rank's weights, and the work of their update.

    adamw        two moments of every weight
    adamw_8bit   two moments of a byte each, with a scale in 32 bits for every 256 of them
    adafactor    sums of the rows and of the columns of a matrix in place of its second moment; no first
    muon         one moment of the matrices of layers, made orthogonal by products; AdamW for all else
    momentum     one moment
    sgd          nothing

In addition a copy of the weights in 32 bits, if the plan keeps one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Final

from etude.cost import ops as work
from etude.cost.ops import OpClass, Work, width
from etude.make.generate.blocks.ops import Op, Phase, bytes_of, compute, shapes
from etude.make.generate.blocks.shard import Block
from etude.make.generate.blocks.trained import PRODUCTS
from etude.make.generate.choices import Optimizer
from etude.make.generate.plan import Plan
from etude.make.generate.train.sharing import copies, owned

SCALED: Final = 256
"""Number of 8-bit moments that share a scale."""
ROUNDS: Final = 5
"""Newton-Schulz iterations with which Muon makes a matrix orthogonal: three products each."""
NAMES: Final = {
    Optimizer.ADAMW: "aten::_fused_adamw_",
    Optimizer.ADAMW_8BIT: "optimizer::adamw_8bit",
    Optimizer.ADAFACTOR: "optimizer::adafactor",
    Optimizer.MUON: "optimizer::muon",
    Optimizer.MOMENTUM: "aten::_fused_sgd_",
    Optimizer.SGD: "aten::_fused_sgd_",
}
FLOPS: Final = {Optimizer.MOMENTUM: 4, Optimizer.SGD: 2}
"""FLOPs per weight; 14 for all other optimizers."""

Stages = Sequence[Sequence[Block]]


def state_bytes(plan: Plan, stages: Stages) -> int:
    """Bytes of state that a rank keeps for these stages."""
    params = sum(owned(plan, blocks) for blocks in stages)
    return _moments(plan, stages, params) + _master(plan) * params


def _master(plan: Plan) -> int:
    return 4 if plan.master and plan.dtype != "fp32" else 0


def _moments(plan: Plan, stages: Stages, params: int) -> int:
    each = width(plan.state_dtype)
    match plan.optimizer:
        case Optimizer.SGD:
            return 0
        case Optimizer.MOMENTUM:
            return int(each * params)
        case Optimizer.ADAMW_8BIT:
            return 2 * (params + 4 * -(-params // SCALED))
        case Optimizer.ADAFACTOR:
            return int(each * sum(_factored(plan, blocks) for blocks in stages))
        case Optimizer.MUON:
            hidden = sum(count * rows * columns for (rows, columns), count in hidden_matrices(stages).items())
            return int(each * (2 * params - hidden))
        case _:
            return int(2 * each) * params


def _factored(plan: Plan, blocks: Sequence[Block]) -> int:
    """Number of values in place of second moments: one for each row and column of a matrix, one for each other
    weight."""
    total = 0
    for expert in (False, True):
        found = 0
        for op in (op for b in blocks for op in b.ops if op.expert == expert and not op.frozen and op.local_params):
            shape = _matrix(op)
            whole = shape[0] * shape[1] * shape[2] if shape else 0
            found += shape[2] * (shape[0] + shape[1]) + op.local_params - whole if shape else op.local_params
        total += -(-found // copies(plan, expert=expert).shards)
    return total


def hidden_matrices(stages: Stages) -> Counter[tuple[int, int]]:
    """Shapes of the trained matrices of layers, and the number of each; without embeddings and head."""
    found: Counter[tuple[int, int]] = Counter()
    for op in (op for blocks in stages for b in blocks if "." in b.name for op in b.ops):
        shape = _matrix(op) if op.name in PRODUCTS and not op.frozen else None
        if shape:
            found[shape[0], shape[1]] += shape[2]
    return found


def _matrix(op: Op) -> tuple[int, int, int] | None:
    """Rows and columns of an op's weight, and the number of such matrices; None where it has no matrix."""
    if not op.local_params or (op.name not in PRODUCTS and op.name != "aten::embedding"):
        return None
    tensors = json.loads(op.in_shapes)
    if op.name == "aten::embedding":
        rows, columns = tensors[0]
        count = 1
    elif op.name == "aten::convolution":
        rows, count = tensors[1][0], 1
        columns = op.local_params // rows
    else:
        (rows, columns), count = tensors[1][-2:], tensors[1][0] if len(tensors[1]) == 3 else 1
    return (rows, columns, count) if rows * columns * count <= op.local_params else None


def update(plan: Plan, stages: Stages, params: int) -> list[Op]:
    """Ops of the update: the gradient is read, the state read and written, the weight written (and read, if there is no
    copy)."""
    weight = width(plan.dtype) * (1 if _master(plan) else 2)
    kept = _moments(plan, stages, params) + _master(plan) * params
    size = int(params * (width(plan.grad_dtype) + weight)) + 2 * kept
    w = Work(op_class=OpClass.OPTIMIZER, flops=FLOPS.get(plan.optimizer, 14) * params, size_bytes=size, dtype="fp32")
    shape = shapes((params,))
    one = compute(NAMES[plan.optimizer], "update", w, shape, shape, phase=Phase.OPTIMIZER)
    return [*(_orthogonal(stages) if plan.optimizer == Optimizer.MUON else []), one]


def norm(plan: Plan, params: int) -> Op:
    """The op that computes the norm of the gradients for clipping: each gradient is read."""
    w = Work(op_class=OpClass.REDUCTION, flops=2 * params, size_bytes=bytes_of(params, plan.grad_dtype))
    one = compute("aten::_foreach_norm", "norm", w, shapes((params,)), shapes((1,)), phase=Phase.OPTIMIZER)
    return one.replace(dtype=plan.grad_dtype)


def _orthogonal(stages: Stages) -> list[Op]:
    """Products in bf16 that make matrices orthogonal, with m the shorter side: X X', its square, and the product of
    both with X."""
    ops: list[Op] = []
    for (rows, columns), count in hidden_matrices(stages).items():
        m, n, batch = min(rows, columns), max(rows, columns), ROUNDS * count
        for out, deep in ((m, n), (m, m), (n, m)):
            w = work.matmul(m, out, deep, batch=batch, dtype="bf16")
            ins, outs = shapes((batch, m, deep), (batch, deep, out)), shapes((batch, m, out))
            ops.append(compute("aten::bmm", "orthogonal", w, ins, outs, phase=Phase.OPTIMIZER))
    return ops

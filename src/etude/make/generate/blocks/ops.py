"""Op: one node of a program before it is placed, with the ops of its backward pass.

A block (a layer, the embedding, the head) is a list of ops for the forward pass. Each lists the ops of its backward
pass; so recomputation, split backwards and closed forms all come from one description. Figures are those of one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Final

from etude.cost import ops as work
from etude.cost.aten_matrix import VARLEN
from etude.cost.ops import Work, width
from etude.model.schema import UNKNOWN, Collective, Kind


class Phase(IntEnum):
    """Which part of a step an op belongs to."""

    FORWARD = 0
    RECOMPUTE = 1
    INPUT = 2
    """Gradients of inputs: the part of a backward pass that other ranks wait for."""
    WEIGHT = 3
    """Gradients of weights."""
    OPTIMIZER = 4
    # serving
    PREFILL = 5
    DECODE = 6
    MIXED = 7
    """Prefill and decode tokens in one pass."""
    DRAFT = 8

    @property
    def label(self) -> str:
        return _LABEL[self]


_LABEL = {
    Phase.FORWARD: "forward",
    Phase.RECOMPUTE: "recompute",
    Phase.INPUT: "backward-input",
    Phase.WEIGHT: "backward-weight",
    Phase.OPTIMIZER: "optimizer",
    Phase.PREFILL: "prefill",
    Phase.DECODE: "decode",
    Phase.MIXED: "mixed",
    Phase.DRAFT: "draft",
}


class Stream(IntEnum):
    """Numbers of device streams in the trace: what a rank can do at the same time. A receive occupies none."""

    NONE = 0
    COMPUTE = 7
    TENSOR = 13
    CONTEXT = 14
    EXPERT = 15
    PIPELINE = 16
    GATHER = 17
    """Parameters of sharded data parallelism."""
    REDUCE = 18
    """Gradients."""
    BORDER = 19
    """Activations between sections."""
    MEMORY = 20
    STORE = 21
    """To the host's memory."""


TYPES: Final = {
    "fp32": "c10::Float",
    "tf32": "c10::Float",
    "bf16": "c10::BFloat16",
    "fp16": "c10::Half",
    "fp8": "c10::Float8_e4m3fn",
    "fp4": "c10::Float4_e2m1fn_x2",
    "int64": "long int",
}


@dataclass(frozen=True, kw_only=True)
class Op:
    """A future node. The `flow` fields say how it depends on its neighbours; see program.py."""

    name: str
    part: str = ""
    """Path in the block: `attention.qkv`."""
    kind: Kind = Kind.COMP
    flops: int = UNKNOWN
    size_bytes: int = UNKNOWN
    in_shapes: str = ""
    out_shapes: str = ""
    dtype: str = "bf16"
    # communication
    collective: Collective = Collective.NONE
    in_bytes: int = UNKNOWN
    out_bytes: int = UNKNOWN
    group: str = ""
    """Group slot of a collective, peer slot of a message."""
    stream: Stream = Stream.COMPUTE
    mark: str = ""
    """An attribute of the node that identifies it."""
    # flow
    start: str = ""
    """What follows does not wait for it; the op that waits for this name does."""
    waits: tuple[str, ...] = ()
    side: bool = False
    """No op's input: a weight gradient. Ordered by control, not data."""
    phase: Phase = Phase.FORWARD
    # training
    backward: tuple[Op, ...] = ()
    """In the order in which they are issued."""
    params: int = 0
    """Parameters of the whole model in this op."""
    local_params: int = 0
    """Parameters of one rank."""
    tied_params: int = 0
    """Weights of the embedding that it uses: `local_params` too on a rank that does not hold the embedding itself."""
    copied_params: int = 0
    """For a layer split over tensor-parallel ranks, the parameters that each of them has whole: the bias after a
    sum."""
    summed: tuple[str, int] = ("", 0)
    """(group slot, weights): each rank of the group computes a part of the gradient, however tokens are distributed."""
    expert: bool = False
    """Replicated over the data-parallel ranks of an expert, not over all."""
    frozen: bool = False
    """Its weights are not trained: no gradient, no optimizer."""
    split: str = ""
    """How tensor-parallel ranks share the weight of a product: by its inputs (`in`) or outputs (`out`), if at all."""
    ways: int = 1
    """Ranks that share it."""
    saved_bytes: int = 0
    """Bytes kept from the forward to the backward pass."""
    temp_bytes: int = 0
    """Additional bytes while it runs."""
    back_bytes: int = 0
    """The same for its backward pass, without gradients of its inputs and outputs; 0: equal."""
    inner_bytes: int = 0
    """Part of those that is restored if the op is recomputed from its inputs."""
    unit: str = ""
    """Its name for recomputation: attention (its core), norm, activation."""
    load: bool = False
    """Work that depends on routing: a rank's share of tokens."""
    # the host
    calls: float = 1.0
    """Host work to issue it, relative to a usual op; 0 if the call of another op issues it too."""
    read: bool = False
    """Whether the host needs its result before it issues more: how many tokens each expert has."""

    @property
    def core(self) -> bool:
        """Part of the core of attention."""
        return self.unit == "attention"

    def replace(self, **changes: Any) -> Op:
        """As `dataclasses.replace`, which looks at each field: a large step makes tens of thousands of ops."""
        made = object.__new__(Op)
        made.__dict__.update(self.__dict__, **changes)
        if len(made.__dict__) != len(self.__dict__):
            raise TypeError(f"an op has no {', '.join(sorted(changes.keys() - self.__dict__.keys()))}")
        return made


def shapes(*tensors: Sequence[int]) -> str:
    return "[" + ", ".join("[" + ", ".join(map(str, t)) + "]" for t in tensors) + "]"


@cache
def types(dtype: str, count: int, *, ends: bool = False) -> str:
    """`ends`: the last tensor holds row numbers."""
    one = f"'Tensor({TYPES.get(dtype, dtype)})'"
    return "[" + ", ".join([one] * (count - ends) + ["'Tensor(int)'"] * ends) + "]"


ENDS: Final = {"aten::_grouped_mm": 3, VARLEN: 4}
"""Ops whose last tensor says where pieces end, with this number of tensors."""


def in_types(op: Op, in_shapes: str) -> str:
    count = count_of(in_shapes)
    return types(op.dtype, count, ends=ENDS.get(op.name) == count) if in_shapes else ""


def shapes_of(op: Op) -> tuple[str, str]:
    """Shapes in and out; communication as one-dimensional tensors."""
    if op.kind not in (Kind.COLL, Kind.SEND, Kind.RECV):
        return op.in_shapes, op.out_shapes
    size = WIDTH.get(op.dtype) or width(op.dtype)

    def flat(moved: int) -> str:
        return shapes((int(moved / size),)) if moved != UNKNOWN and moved % size == 0 else ""

    return flat(op.in_bytes), flat(op.out_bytes)


WIDTH: Final = {"int64": 8}


def count_of(shape_list: str) -> int:
    """Tensors in a list of shapes."""
    return max(shape_list.count("[") - 1, 0)


_BARE: Final = Op(name="")


def compute(name: str, part: str, w: Work, ins: str, outs: str, **more: Any) -> Op:
    return _BARE.replace(
        name=name,
        part=part,
        flops=w.flops,
        size_bytes=w.size_bytes,
        dtype=w.dtype or "bf16",
        in_shapes=ins,
        out_shapes=outs,
        **more,
    )


def bytes_of(elements: int, dtype: str) -> int:
    return int(-(-elements * width(dtype) // 1))


# -- compute ------------------------------------------------------------------------------------------


GEMMS: Final = ("aten::mm", "aten::bmm", "aten::_grouped_mm")
"""Matrix products by name."""


def gemm(m: int, n: int, k: int, part: str, *, dtype: str, batch: int = 1, ragged: str = "", **more: Any) -> Op:
    """One product (or one for each of `batch` experts), m x k by k x n. `ragged`: experts have unequal `rows`, or for
    gradients of weights `depth`, stored consecutively; a third tensor says where they end."""
    w = work.matmul(m, n, k, batch=batch, dtype=dtype)
    if batch == 1:
        return compute("aten::mm", part, w, shapes((m, k), (k, n)), shapes((m, n)), **more)
    ins, outs = shapes((batch, m, k), (batch, k, n)), shapes((batch, m, n))
    if ragged == "rows":
        ins, outs = shapes((batch * m, k), (batch, k, n), (batch,)), shapes((batch * m, n))
    elif ragged:
        ins = shapes((m, batch * k), (batch * k, n), (batch,))
    return compute("aten::_grouped_mm", part, w, ins, outs, **more)


def linear(
    m: int,
    k: int,
    n: int,
    part: str,
    *,
    dtype: str,
    params: int,
    local: int,
    batch: int = 1,
    saved_bytes: int | None = None,
    grad_bytes: float = 0.0,
    ragged: bool = False,
    **more: Any,
) -> Op:
    """A layer with weights: its backward is a product for the input and one for the weights.

    `grad_bytes` are moved per weight if its gradient is accumulated; 0: written in `dtype`.
    """
    both = {"dtype": dtype, "batch": batch, "load": more.get("load", False), "calls": more.get("calls", 1.0)}
    rows, depth = ("rows", "depth") if ragged else ("", "")
    wgrad = gemm(k, n, m, part, phase=Phase.WEIGHT, side=True, ragged=depth, **both)
    if grad_bytes:
        wgrad = wgrad.replace(size_bytes=wgrad.size_bytes + int(batch * k * n * (grad_bytes - width(dtype))))
    backward = (gemm(m, k, n, part, phase=Phase.INPUT, ragged=rows, **both), wgrad)
    keep = bytes_of(batch * m * k, dtype) if saved_bytes is None else saved_bytes
    return gemm(
        m,
        n,
        k,
        part,
        dtype=dtype,
        batch=batch,
        params=params,
        local_params=local,
        saved_bytes=keep,
        backward=backward,
        ragged=rows,
        **more,
    )


def norm(rows: int, size: int, part: str, *, dtype: str, kind: str, params: int, **more: Any) -> Op:
    """Layer or RMS norm. Backward reads the input and the gradient, and writes one."""
    name = "aten::rms_norm" if kind == "rms" else "aten::native_layer_norm"
    shape = shapes((rows, size))
    w = work.normalisation(rows, size, dtype=dtype)
    b = Work(op_class=w.op_class, flops=2 * w.flops, size_bytes=w.size_bytes * 3 // 2, dtype=dtype)
    back = compute(f"{name}_backward", part, b, shapes((rows, size), (rows, size)), shape, phase=Phase.INPUT)
    return compute(
        name,
        part,
        w,
        shape,
        shape,
        params=params,
        local_params=params,
        backward=(back,),
        saved_bytes=bytes_of(rows * size, dtype),
        unit="norm",
        **more,
    )


def activation(elements: int, part: str, *, gated: bool, dtype: str, load: bool = False) -> Op:
    """gelu, or silu times the gate. Backward reads its inputs and the gradient, and writes a gradient for each."""
    ins = 2 if gated else 1
    w = work.activation(elements, inputs=ins, dtype=dtype)
    b = Work(op_class=w.op_class, flops=2 * w.flops, size_bytes=bytes_of((2 * ins + 1) * elements, dtype), dtype=dtype)
    name = "aten::silu" if gated else "aten::gelu"
    shape = shapes(*[(elements,)] * ins)
    back = compute(f"{name}_backward", part, b, shapes(*[(elements,)] * (ins + 1)), shape, phase=Phase.INPUT, load=load)
    return compute(
        name,
        part,
        w,
        shape,
        shapes((elements,)),
        backward=(back,),
        load=load,
        saved_bytes=bytes_of(ins * elements, dtype),
        unit="activation",
    )


def add(elements: int, part: str, *, dtype: str, name: str = "aten::add", backward: bool = False) -> Op:
    """A residual. Its gradient is passed on; two gradients are added (`backward`)."""
    w = work.elementwise(elements, inputs=2, dtype=dtype)
    one = compute(name, part, w, shapes((elements,), (elements,)), shapes((elements,)))
    return one.replace(backward=(one.replace(phase=Phase.INPUT),)) if backward else one


def pointwise(elements: int, part: str, *, dtype: str, name: str = "aten::mul", inputs: int = 1) -> Op:
    """Elementwise both ways: rotary positions, scaling, masks."""
    w = work.elementwise(elements, inputs=inputs, dtype=dtype)
    one = compute(name, part, w, shapes(*[(elements,)] * inputs), shapes((elements,)))
    return one.replace(backward=(one.replace(phase=Phase.INPUT),))


def permute(elements: int, part: str, *, dtype: str) -> Op:
    """Rows in another order, both ways: tokens to experts and back."""
    w = work.copy(elements, dtype=dtype)
    one = compute("aten::index_select", part, w, shapes((elements,)), shapes((elements,)), load=True, calls=2.0)
    return one.replace(backward=(one.replace(phase=Phase.INPUT),))


def embedding(tokens: int, size: int, part: str, *, dtype: str, params: int, local: int) -> Op:
    w = work.embedding(tokens, size, dtype=dtype)
    b = work.embedding(tokens, size, dtype=dtype, backward=True)
    ins, out = shapes((local // max(size, 1), size), (tokens,)), shapes((tokens, size))
    back = compute("aten::embedding_dense_backward", part, b, out, ins, phase=Phase.WEIGHT)
    return compute(
        "aten::embedding",
        part,
        w,
        ins,
        out,
        params=params,
        local_params=local,
        backward=(back,),
        saved_bytes=8 * tokens,
    )


# -- communication ------------------------------------------------------------------------------------------

OPPOSITE: Final = {
    Collective.ALL_GATHER: Collective.REDUCE_SCATTER,
    Collective.REDUCE_SCATTER: Collective.ALL_GATHER,
    Collective.ALL_TO_ALL: Collective.ALL_TO_ALL,
    Collective.ALL_REDUCE: Collective.ALL_REDUCE,
}
NAMES: Final = {
    Collective.ALL_GATHER: "nccl:_all_gather_base",
    Collective.REDUCE_SCATTER: "nccl:_reduce_scatter_base",
    Collective.ALL_TO_ALL: "nccl:all_to_all",
    Collective.ALL_REDUCE: "nccl:all_reduce",
}


def collective(kind: Collective, group: str, size: int, full_bytes: int, part: str, stream: Stream, **more: Any) -> Op:
    """`full_bytes` is the larger side: the output of a gather, the input of a scatter, the reduced or exchanged
    data."""
    part_bytes = -(-full_bytes // size)
    ins = part_bytes if kind == Collective.ALL_GATHER else full_bytes
    outs = part_bytes if kind == Collective.REDUCE_SCATTER else full_bytes
    return Op(
        name=NAMES[kind],
        part=part,
        kind=Kind.COLL,
        collective=kind,
        in_bytes=ins,
        out_bytes=outs,
        group=group,
        stream=stream,
        **more,
    )


def exchanged(
    kind: Collective, group: str, size: int, full_bytes: int, part: str, stream: Stream, **more: Any
) -> list[Op]:
    """A collective whose backward is its opposite; nothing in a group of one."""
    if size == 1:
        return []
    dtype = more.get("dtype", "bf16")
    back = collective(OPPOSITE[kind], group, size, full_bytes, part, stream, phase=Phase.INPUT, dtype=dtype)
    return [collective(kind, group, size, full_bytes, part, stream, backward=(back,), **more)]


def message(kind: Kind, peer: str, size_bytes: int, part: str, stream: Stream, **more: Any) -> Op:
    name = "nccl:send" if kind == Kind.SEND else "nccl:recv"
    stream = stream if kind == Kind.SEND else Stream.NONE
    return Op(name=name, part=part, kind=kind, in_bytes=size_bytes, group=peer, stream=stream, **more)

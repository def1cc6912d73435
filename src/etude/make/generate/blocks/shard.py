"""Shard: the dimensions of a model on one rank of a plan, and linear layers split over tensor-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from etude.base.errors import UsageError
from etude.cost import ops as work
from etude.cost.ops import OpClass, Work
from etude.make.generate.blocks.ops import Op, Phase, Stream, bytes_of, collective, compute, gemm, linear, shapes
from etude.model.schema import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Sizes of one rank's part of one micro-batch."""

    samples: int
    seq: int
    tp: int = 1
    sp: bool = False
    """Sequence parallel: between the split layers each tensor-parallel rank has its part of the tokens."""
    cp: int = 1
    cp_kind: str = "ring"
    """`map`: keys go only to the ranks that read them, with unequal parts of the sequence; figures are those of equal
    parts."""
    domain: tuple[int, int] = (1, 1)
    """Rows and columns of context-parallel ranks that share a picture."""
    ep: int = 1
    etp: int = 1
    ep_node: int = 0
    """Expert-parallel ranks of a node, to which a token is sent once; 0: every copy is sent."""
    moe_nodes: int = 0
    """Most nodes that the experts of a token are on; 0: any."""
    dtype: str = "bf16"
    gemm_dtype: str = "bf16"
    scaling: str = "delayed"
    """Where the scales of 8-bit products come from."""
    dispatch_dtype: str = ""
    """Data type in which tokens go to their experts, and gradients to the experts; empty: as activations."""
    keep_cast: bool = False
    """Inputs of activations are kept in the type of the products."""
    loss_dtype: str = "fp32"
    unfused: frozenset[str] = frozenset()
    """Gated activations or RMS norms that are computed by plain tensor operations."""
    flash: bool = True
    chunks: int = 1
    """Pieces that a split layer and its collective are cut into, so that they overlap."""
    capacity: float = 0.0
    """Most tokens of an expert, over the mean; 0: all, and then the host waits for the counts."""
    uneven: bool = False
    """Whether the experts of a rank are unequally full."""
    grad_bytes: float = 0.0
    """Bytes moved per weight by the product that computes its gradient: read and written if it is accumulated."""
    training: bool = True
    real: int = 0
    """Tokens of a pass that are not padding; 0: all."""

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on a context-parallel rank."""
        return self.samples * self.seq // self.cp

    @property
    def rows(self) -> int:
        """Tokens that a rank has between split layers."""
        return self.tokens // self.tp if self.sp else self.tokens

    @property
    def routed(self) -> int:
        """Tokens of all ranks that send to the experts of one rank."""
        return -(-(self.real or self.tokens) * self.ep * self.etp // (self.tp if self.sp else 1))

    def cast_bytes(self, elements: int) -> int:
        """Bytes of what is cast, with its scales."""
        scales = {"mx": -(-elements // 32), "block": 4 * -(-elements // 128)}.get(self.scaling, 0)
        return bytes_of(elements, self.gemm_dtype) + (scales if self.gemm_dtype != self.dtype else 0)

    @property
    def sent_dtype(self) -> str:
        return self.dispatch_dtype or self.dtype

    def split(self, count: int, what: str) -> int:
        """A count divided over tensor-parallel ranks."""
        if count % self.tp:
            hint = f"a --tp that divides {count:,}"
            raise UsageError(f"{count:,} {what} cannot be split over {self.tp} tensor-parallel ranks", hint=hint)
        return count // self.tp


@dataclass(frozen=True)
class Block:
    """A piece of a model that is never split between pipeline stages. Its sums are computed once."""

    name: str
    """Module path: `layers.7`."""
    ops: tuple[Op, ...]
    out_bytes: int
    """Bytes sent to the next stage after it."""
    last: bool = False
    """Stays with the head: no stage ends before it."""

    @property
    def params(self) -> int:
        return sum(op.params for op in self.ops)

    def local_params(self, *, expert: bool, trained: bool = False) -> int:
        """Parameters of one rank; `trained`: only those with gradients."""
        return self._sums[expert, trained]

    @cached_property
    def _sums(self) -> dict[tuple[bool, bool], int]:
        """(Expert, trained) -> parameters."""
        found = {(expert, trained): 0 for expert in (False, True) for trained in (False, True)}
        for op in self.ops:
            found[op.expert, False] += op.local_params
            found[op.expert, True] += 0 if op.frozen else op.local_params
        return found

    @cached_property
    def goes_back(self) -> bool:
        """Whether it has work in a backward pass."""
        return any(op.backward for op in self.ops)

    @property
    def cast_params(self) -> int:
        """Parameters of one rank that are cast to 8 or 4 bits for their products."""
        return sum(op.local_params for op in self.ops if op.dtype in ("fp8", "fp4"))


FP4_GROUP: Final = 16
"""Elements of NVFP4 that share a scale of a byte."""


def cast(local: Shard, elements: int, part: str, *, load: bool = False) -> list[Op]:
    """To 8 bits, both layouts, each with its scales. With `current` scaling the largest value is computed first. To 4
    bits (NVFP4) in three passes: the largest value, rows, and columns that a Hadamard transform turns."""
    if local.gemm_dtype == local.dtype:
        return []
    w = work.elementwise(elements, dtype=local.dtype)
    if local.gemm_dtype == "fp4":
        written = bytes_of(elements, "fp4") + -(-elements // FP4_GROUP)
        w = replace(w, size_bytes=3 * bytes_of(elements, local.dtype) + 2 * written)
    else:
        scales = 2 * (local.cast_bytes(elements) - bytes_of(elements, local.gemm_dtype))
        w = replace(w, size_bytes=w.size_bytes + scales)
    one = compute("aten::_to_copy", part, w, shapes((elements,)), shapes((elements,)), load=load, calls=0.0)
    if local.scaling != "current":
        return [one]
    read = Work(
        op_class=OpClass.REDUCTION, flops=elements, size_bytes=bytes_of(elements, local.dtype), dtype=local.dtype
    )
    return [compute("aten::amax", part, read, shapes((elements,)), shapes((1,)), load=load, calls=0.0), one]


def uncast(local: Shard, elements: int, part: str, *, load: bool = False) -> tuple[Op, ...]:
    """The same for a gradient in the backward pass."""
    return tuple(op.replace(phase=Phase.INPUT) for op in cast(local, elements, part, load=load))


def plain(
    local: Shard,
    m: int,
    k: int,
    n: int,
    part: str,
    *,
    params: int,
    batch: int = 1,
    expert: bool = False,
    load: bool = False,
    local_params: int | None = None,
    calls: float = 1.0,
) -> list[Op]:
    """A linear layer without a collective."""
    held = params if local_params is None else local_params
    one = linear(
        m,
        k,
        n,
        part,
        dtype=local.gemm_dtype,
        params=params,
        local=held,
        batch=batch,
        expert=expert,
        load=load,
        calls=calls,
        saved_bytes=local.cast_bytes(batch * m * k),
        grad_bytes=local.grad_bytes,
        ragged=load and local.uneven,
    )
    one = one.replace(backward=(*uncast(local, batch * m * n, part, load=load), *one.backward))
    return [*cast(local, batch * m * k, part, load=load), one]


def pieces(total: int, parts: int) -> list[int]:
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]


def column(local: Shard, k: int, n: int, part: str, *, params: int, held: int = -1) -> list[Op]:
    """A linear layer split by its outputs: the input is gathered before, its gradient reduced after. `held`: weights of
    a rank if they are not an even share."""
    tokens = local.tokens
    held = -(-params // local.tp) if held < 0 else held
    made = plain(local, tokens, k, n, part, params=params, local_params=held)
    if local.tp == 1:
        return made
    one = made[-1].replace(split="out", ways=local.tp)
    gathered = local.cast_bytes(tokens * k)  # casts are gathered in their type
    *casts, _, wgrad = one.backward
    if not local.sp:
        return [*made[:-1], one.replace(backward=(*casts, *_reduced(local, tokens, n, k, part, Phase.INPUT), wgrad))]
    again = _gather(local, gathered, part, "x", Phase.WEIGHT)
    wgrad = wgrad.replace(waits=("x",))
    sizes = pieces(tokens, local.chunks)
    gathers, products, back = [], [], []
    last = len(sizes) - 1
    for i, m in enumerate(sizes):
        key = f"gather{i}" if last else ""
        some = bytes_of(m * k, local.dtype)
        cut = local.cast_bytes(m * k)
        gathers.append(_gather(local, cut, part, key, Phase.FORWARD))
        products.append(_piece(gemm(m, n, k, part, dtype=one.dtype, waits=(key,) if key else ()), one, i == last))
        back.append(gemm(m, k, n, part, dtype=one.dtype, phase=Phase.INPUT, calls=float(i == last)))
        back.append(_scatter(local, some, part, i, last, Phase.INPUT))
    products[-1] = products[-1].replace(backward=(*casts, again, *back, wgrad), saved_bytes=one.saved_bytes // local.tp)
    return [*cast(local, tokens * k // local.tp, part), *gathers, *products]


def _gather(local: Shard, size: int, part: str, start: str, phase: Phase) -> Op:
    """Pieces of a split layer are one call of the host, which issues the products and their exchanges."""
    return collective(
        Collective.ALL_GATHER, "tp", local.tp, size, part, Stream.TENSOR,
        phase=phase, start=start, calls=0.0, dtype=local.gemm_dtype,
    )  # fmt: skip


def _scatter(local: Shard, size: int, part: str, piece: int, last: int, phase: Phase) -> Op:
    """Overlaps with the following pieces; the last one waits for all."""
    start, waits = (f"scatter{piece}", ()) if piece < last else ("", tuple(f"scatter{j}" for j in range(last)))
    return collective(
        Collective.REDUCE_SCATTER, "tp", local.tp, size, part, Stream.TENSOR,
        phase=phase, start=start, waits=waits, calls=0.0, dtype=local.dtype,
    )  # fmt: skip


def _reduced(local: Shard, tokens: int, k: int, n: int, part: str, phase: Phase) -> list[Op]:
    """A product of partial sums and their reduction, piece by piece: the next piece is computed while one is
    reduced."""
    found: list[Op] = []
    sizes = pieces(tokens, local.chunks)
    last = len(sizes) - 1
    for i, m in enumerate(sizes):
        waits = tuple(f"reduce{j}" for j in range(last)) if i == last else ()
        calls = float(i == last)
        one = _all_reduce(local, bytes_of(m * n, local.dtype), part).replace(phase=phase, waits=waits, calls=calls)
        found.append(gemm(m, n, k, part, dtype=local.gemm_dtype, phase=phase, calls=calls))
        found.append(one if i == last else one.replace(start=f"reduce{i}"))
    return found


def _all_reduce(local: Shard, full: int, part: str) -> Op:
    return collective(Collective.ALL_REDUCE, "tp", local.tp, full, part, Stream.TENSOR, dtype=local.dtype)


def row(local: Shard, k: int, n: int, part: str, *, params: int, bias: bool = False) -> list[Op]:
    """A linear layer split by its inputs: partial sums are reduced after, their gradient gathered before. A bias is
    added after the sum, so each rank has all of it; it is one of the `params`."""
    tokens, whole = local.tokens, n if bias else 0
    held = -(-(params - whole) // local.tp) + whole
    made = plain(local, tokens, k, n, part, params=params, local_params=held)
    made[-1] = made[-1].replace(copied_params=whole)
    if local.tp == 1:
        return made
    one, full = made[-1].replace(split="in", ways=local.tp), bytes_of(tokens * n, local.dtype)
    if not local.sp:
        if local.chunks == 1:
            return [*made[:-1], one, _all_reduce(local, full, part)]
        *first, product, reduction = _reduced(local, tokens, k, n, part, Phase.FORWARD)
        return [*made[:-1], *first, _piece(product, one, True), reduction.replace(backward=one.backward)]
    wgrad = one.backward[-1]
    sizes = pieces(tokens, local.chunks)
    forward, gathers, back = [], [], []
    last = len(sizes) - 1
    for i, m in enumerate(sizes):
        some, cut = bytes_of(m * n, local.dtype), local.cast_bytes(m * n)
        forward.append(_piece(gemm(m, n, k, part, dtype=one.dtype), one, i == last).replace(backward=()))
        forward.append(_scatter(local, some, part, i, last, Phase.FORWARD))
        key = f"gather{i}" if last else ""
        gathers.append(_gather(local, cut, part, key, Phase.INPUT))
        waits = (key,) if key else ()
        back.append(gemm(m, k, n, part, dtype=one.dtype, phase=Phase.INPUT, waits=waits, calls=float(i == last)))
    casts = list(uncast(local, tokens * n // local.tp, part))
    forward[-1] = forward[-1].replace(backward=(*casts, *gathers, *back, wgrad))
    return [*made[:-1], *forward]


def _piece(op: Op, whole: Op, last: bool) -> Op:
    """A piece of a layer; the last one carries its parameters and kept tensors."""
    if not last:
        return op.replace(calls=0.0)
    return op.replace(
        params=whole.params,
        local_params=whole.local_params,
        copied_params=whole.copied_params,
        saved_bytes=whole.saved_bytes,
        split=whole.split,
        ways=whole.ways,
    )

"""Attention: fused or not, over any number of context-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from etude.base.errors import UsageError
from etude.cost import ops as work
from etude.cost.ops import OpClass, Work
from etude.make.generate.blocks.ops import (
    Op,
    Phase,
    Stream,
    add,
    bytes_of,
    collective,
    compute,
    exchanged,
    message,
    pointwise,
    shapes,
)
from etude.make.generate.blocks.shard import Shard
from etude.model.schema import Collective, Kind

FLASH = "aten::_scaled_dot_product_flash_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Attention of one rank: heads after tensor parallelism, whole sequences before context parallelism."""

    samples: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    causal: bool
    window: int = 0
    past: int = 0
    """Keys before the first query (decoding)."""

    @property
    def pairs(self) -> int:
        """Pairs of query and key that are computed, in one head of one sample."""
        q, k = self.queries, self.keys
        if not self.causal:
            return q * min(k, self.window or k)
        first = k - q + 1  # keys that the first query sees
        total = q * (first - 1) + q * (q + 1) // 2
        if self.window and k > self.window:
            over = k - self.window  # the last query sees this many too many, the one before it one less, ...
            rows = min(over, q)
            total -= rows * (over - rows) + rows * (rows + 1) // 2
        return total

    def flops(self, pairs: int, *, backward: bool) -> int:
        """Two products forward, five backward (the scores are recomputed)."""
        each = 3 * self.key_size + 2 * self.value_size if backward else self.key_size + self.value_size
        return 2 * self.samples * self.heads * pairs * each


def core(local: Shard, heads: Heads, part: str) -> list[Op]:
    """The ops from queries, keys and values to the context, communication between context-parallel ranks included."""
    if local.cp > 1 and heads.past:
        raise UsageError("context parallelism applies only to training and prefill")
    if not local.flash:
        if local.cp > 1:
            raise UsageError("context parallelism needs fused attention", hint="leave out --attention unfused")
        return _unfused(local, heads, part)
    if local.cp == 1:
        return [_fused(local, heads, heads.pairs, heads.queries, heads.keys, part)]
    return {"ring": _ring, "map": _mapped, "all_gather": _gathered, "ulysses": _ulysses}[local.cp_kind](
        local, heads, part
    )


def _fused(local: Shard, h: Heads, pairs: int, queries: int, keys: int, part: str) -> Op:
    dtype = local.dtype
    q, k = (h.samples, h.heads, queries, h.key_size), (h.samples, h.kv_heads, keys, h.key_size)
    v, out = (h.samples, h.kv_heads, keys, h.value_size), (h.samples, h.heads, queries, h.value_size)
    elements = h.samples * (queries * h.heads + keys * h.kv_heads) * (h.key_size + h.value_size)
    read = bytes_of(elements, dtype)
    forward = Work(op_class=OpClass.ATTENTION, flops=h.flops(pairs, backward=False), size_bytes=read, dtype=dtype)
    back = replace(forward, flops=h.flops(pairs, backward=True), size_bytes=2 * read)
    backward = compute(f"{FLASH}_backward", part, back, shapes(out, q, k, v), shapes(q, k, v), phase=Phase.INPUT)
    sums = 4 * h.samples * h.heads * queries  # of each row of scores
    kept = bytes_of(elements - h.samples * queries * h.heads * h.value_size, dtype) + sums
    return compute(
        FLASH,
        part,
        forward,
        shapes(q, k, v),
        shapes(out),
        backward=(backward,),
        saved_bytes=kept,
        inner_bytes=sums,
        unit="attention",
    )


def _unfused(local: Shard, h: Heads, part: str) -> list[Op]:
    """Scores in memory: two batched products over all pairs, a softmax with its mask and dropout between them."""
    b, q, k = h.samples * h.heads, h.queries, h.keys

    def product(m: int, n: int, depth: int, phase: Phase = Phase.FORWARD) -> Op:
        w = work.matmul(m, n, depth, batch=b, dtype=local.dtype)
        return compute("aten::bmm", part, w, shapes((b, m, depth), (b, depth, n)), shapes((b, m, n)), phase=phase)

    scores = product(q, k, h.key_size).replace(
        unit="attention",
        saved_bytes=bytes_of(h.samples * (q * h.heads + k * h.kv_heads) * h.key_size, local.dtype),
        backward=(product(q, h.key_size, k, Phase.INPUT), product(k, h.key_size, q, Phase.INPUT)),
    )
    w = work.softmax(b * q, k, dtype=local.dtype)
    soft = compute("aten::_softmax", part, w, shapes((b * q, k)), shapes((b * q, k)))
    soft = soft.replace(
        unit="attention",
        saved_bytes=bytes_of(b * q * k, local.dtype),
        inner_bytes=bytes_of(b * q * k, local.dtype),
        backward=(
            soft.replace(name="aten::_softmax_backward_data", size_bytes=soft.size_bytes * 3 // 2, phase=Phase.INPUT),
        ),
    )
    masked = b * q * k + bytes_of(b * q * k, local.dtype)
    drop = pointwise(b * q * k, part, dtype=local.dtype, name="aten::native_dropout").replace(
        unit="attention", saved_bytes=masked, inner_bytes=masked
    )
    context = product(q, h.value_size, k).replace(
        unit="attention",
        saved_bytes=bytes_of(h.samples * k * h.kv_heads * h.value_size, local.dtype),
        backward=(product(q, k, h.value_size, Phase.INPUT), product(k, h.value_size, q, Phase.INPUT)),
    )
    return [scores, soft, drop, context]


def _ring(local: Shard, h: Heads, part: str) -> list[Op]:
    """Keys and values travel around the ring; each rank has an early and a late piece of the sequence, so that causal
    work is balanced. Backward sends them around again, with the gradients accumulated so far."""
    cp = local.cp
    if h.causal and h.queries % (2 * cp):
        raise UsageError(f"a causal sequence of {h.queries:,} has no {2 * cp} equal pieces for {cp} context ranks")
    mine, keys = h.queries // cp, h.keys // cp
    piece = mine // 2
    first = piece * (piece + 1) + piece * piece if h.causal else mine * keys
    later = 2 * piece * piece if h.causal else mine * keys
    pairs = _shared(h.pairs // cp, [first, *[later] * (cp - 1)])
    size = bytes_of(h.samples * keys * h.kv_heads * (h.key_size + h.value_size), local.dtype)
    ops: list[Op] = []
    for step in range(cp):
        one = _fused(local, h, pairs[step], mine, keys, part)
        (grad,) = one.backward
        moves: list[Op] = []
        back: list[Op] = []
        if step + 1 < cp:
            moves = _hop(
                local, size, part, wait=f"kv{step}" if step else "", start=f"kv{step + 1}", phase=Phase.FORWARD
            )
            grad = grad.replace(waits=(f"dkv{step + 1}",))
        if step:
            back = _hop(local, 2 * size, part, wait="", start=f"dkv{step}", phase=Phase.INPUT)
        one = one.replace(waits=(f"kv{step}",) if step else (), backward=(*back, grad))
        ops += [*moves, one if step == 0 else one.replace(saved_bytes=0, inner_bytes=0)]
    return ops


def _shared(total: int, parts: list[int]) -> list[int]:
    """A number split in proportion to these parts; the parts themselves if they already add up to it (no window)."""
    ends = [total * sum(parts[: i + 1]) // sum(parts) for i in range(len(parts))]
    return [end - before for end, before in zip(ends, [0, *ends], strict=False)]


def _hop(local: Shard, size: int, part: str, *, wait: str, start: str, phase: Phase) -> list[Op]:
    """One step of the ring, overlapped with attention to the piece that the rank has."""
    send = message(Kind.SEND, "cp_next", size, part, Stream.CONTEXT, start="sent", phase=phase, dtype=local.dtype)
    recv = message(Kind.RECV, "cp_prev", size, part, Stream.NONE, start=start, phase=phase, dtype=local.dtype)
    unit = "attention" if phase == Phase.FORWARD else ""
    return [send.replace(waits=(wait,) if wait else (), unit=unit), recv.replace(unit=unit)]


def _mapped(local: Shard, h: Heads, part: str) -> list[Op]:
    """Each rank attends to its own keys while others arrive from their owners, then to these, rank by rank; backward
    fetches them again and returns their gradients. Figures are those of equal parts; see maps/."""
    if not h.causal or h.queries != h.keys:
        raise UsageError("a map needs causal attention", hint="leave out --cp-map")
    size = bytes_of(h.samples * h.keys // local.cp * h.kv_heads * (h.key_size + h.value_size), local.dtype)
    mine, pairs = h.queries // local.cp, max(h.pairs // local.cp // local.cp, 1)
    others = range(1, local.cp)
    near = _fused(local, h, pairs, mine, mine, part)
    far = [_fused(local, h, pairs, mine, mine, f"{part}.far.{k}") for k in others]

    def hop(k: int, name: str, where: str, phase: Phase, *, back: bool = False) -> list[Op]:
        """To the k-th next rank of the ring, from the k-th previous one; gradients the other way."""
        to, source = (f"cp{-k:+d}", f"cp{k:+d}") if back else (f"cp{k:+d}", f"cp{-k:+d}")
        send = message(Kind.SEND, to, size, where, Stream.CONTEXT, start="sent", phase=phase, dtype=local.dtype)
        recv = message(Kind.RECV, source, size, where, Stream.NONE, start=name, phase=phase, dtype=local.dtype)
        return [send, recv]

    again = [one for k in reversed(others) for one in hop(k, f"kv{k}", f"{part}.keys", Phase.INPUT)]
    for k in others:
        (grad,) = far[k - 1].backward
        back = (grad.replace(waits=(f"kv{k}",)), *hop(k, f"dkv{k}", f"{part}.back", Phase.INPUT, back=True))
        back = (*again, *back) if k == local.cp - 1 else back
        far[k - 1] = far[k - 1].replace(saved_bytes=0, inner_bytes=0, waits=(f"kv{k}",), backward=back)
    total = add(size // 2, f"{part}.sum", dtype=local.dtype)
    total = total.replace(phase=Phase.INPUT, waits=tuple(f"dkv{k}" for k in others))
    first, *rest = [one for k in others for one in hop(k, f"kv{k}", f"{part}.keys", Phase.FORWARD)]
    return [first.replace(backward=(total,)), *rest, near, *far]


def _gathered(local: Shard, h: Heads, part: str) -> list[Op]:
    """All keys and values are gathered first; backward gathers them again and scatters their gradients."""
    size = bytes_of(h.samples * h.keys * h.kv_heads * (h.key_size + h.value_size), local.dtype)
    gather = collective(
        Collective.ALL_GATHER, "cp", local.cp, size, part, Stream.CONTEXT, dtype=local.dtype, unit="attention"
    )
    scatter = collective(
        Collective.REDUCE_SCATTER, "cp", local.cp, size, part, Stream.CONTEXT, dtype=local.dtype, phase=Phase.INPUT
    )
    one = _fused(local, h, h.pairs // local.cp, h.queries // local.cp, h.keys, part)
    again = gather.replace(phase=Phase.INPUT, unit="")
    others = size - size // local.cp  # only its own part is kept
    kept = one.saved_bytes - others
    return [gather, one.replace(backward=(again, *one.backward, scatter), saved_bytes=kept, temp_bytes=size)]


def _ulysses(local: Shard, h: Heads, part: str) -> list[Op]:
    """Heads for tokens: an exchange gives each rank whole sequences of some heads, another one afterwards reverses
    it."""
    if h.heads % local.cp or h.kv_heads % local.cp:
        problem = f"{h.heads} heads and {h.kv_heads} of keys and values cannot be spread over {local.cp} context ranks"
        raise UsageError(problem, hint="--cp-kind ring")
    mine = replace(h, heads=h.heads // local.cp, kv_heads=h.kv_heads // local.cp)
    queries, keys = h.queries // local.cp, h.keys // local.cp
    into = bytes_of(
        h.samples * (queries * h.heads * h.key_size + keys * h.kv_heads * (h.key_size + h.value_size)), local.dtype
    )
    out = bytes_of(h.samples * queries * h.heads * h.value_size, local.dtype)
    return [
        *exchanged(
            Collective.ALL_TO_ALL, "cp", local.cp, into, part, Stream.CONTEXT, dtype=local.dtype, unit="attention"
        ),
        _fused(local, mine, mine.pairs, mine.queries, mine.keys, part),
        *exchanged(
            Collective.ALL_TO_ALL, "cp", local.cp, out, part, Stream.CONTEXT, dtype=local.dtype, unit="attention"
        ),
    ]

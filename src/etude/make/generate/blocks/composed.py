"""Models composed of parts: streams of tokens pass through them, and each part gives its ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from etude.base.errors import UsageError
from etude.cost import ops as work
from etude.make.generate.blocks.attention import Heads, core
from etude.make.generate.blocks.ops import (
    Op,
    Phase,
    activation,
    add,
    bytes_of,
    compute,
    embedding,
    norm,
    pointwise,
    shapes,
)
from etude.make.generate.blocks.pixels import batch_norm, convolution, pooled
from etude.make.generate.blocks.recurrent import linear_core
from etude.make.generate.blocks.shard import Block, Shard, column, plain, row
from etude.make.generate.model.parts import LayerPart, NormKind, PartKind, Piece, QkNorm, Split, TokenStream
from etude.make.generate.model.shape import Model


@dataclass(slots=True)
class Flow:
    """A stream at some point: tokens, width, and the sides of a picture if it is one."""

    tokens: int
    width: int
    side: int = 0
    frames: int = 1

    @classmethod
    def of(cls, given: TokenStream, seq: int) -> Flow:
        tokens = given.frames * given.side**2 if given.side else given.tokens or seq
        return cls(tokens, given.width, given.side, given.frames)

    def resized(self, side: int, frames: int) -> None:
        self.side, self.frames, self.tokens = side, frames, frames * side * side


@dataclass(slots=True)
class Walker:
    """Streams at one point of a model."""

    local: Shard
    flows: dict[str, Flow]
    kept: dict[str, list[Flow]] = field(default_factory=dict)
    """Streams kept under a name, the latest last."""

    def flow(self, part: LayerPart) -> Flow:
        return self.named(part.stream or next(iter(self.flows)))

    def named(self, name: str) -> Flow:
        if name not in self.flows:
            raise UsageError(f"no stream `{name}`", hint=f"streams: {', '.join(self.flows)}")
        return self.flows[name]

    def shard(self, flow: Flow) -> Shard:
        """A rank's part of a stream. What exists once per sample is on every context-parallel rank."""
        cp = self.local.cp
        if cp > 1 and flow.tokens > 1 and (flow.side or flow.tokens % cp):
            raise UsageError(f"{flow.tokens:,} tokens cannot be split over {cp} context-parallel ranks", hint="--cp 1")
        return replace(self.local, seq=flow.tokens, sp=False, cp=cp if flow.tokens > 1 else 1)

    def size_bytes(self, names: set[str]) -> int:
        """Bytes of the streams and kept tensors with these names."""
        live = [f for name, f in self.flows.items() if name in names]
        live += [f for name, stack in self.kept.items() if name in names for f in stack]
        return sum(bytes_of(self.shard(f).tokens * f.width, self.local.dtype) for f in live)


def blocks(model: Model, local: Shard) -> list[Block]:
    return built(model.blocks, model.streams, local)


def built(pieces: Sequence[Piece], streams: Sequence[TokenStream], local: Shard, prefix: str = "") -> list[Block]:
    """Blocks of these pieces. The first and the last stay with the neighbouring layers unless they are repeated."""
    walker = Walker(local, {s.name: Flow.of(s, local.seq) for s in streams})
    found: list[Block] = []
    for number, piece in enumerate(pieces):
        alone = piece.repeat == 1 and number in (0, len(pieces) - 1) and not prefix
        later = _needed(pieces[number + 1 :], next(iter(walker.flows)))
        ops: tuple[Op, ...] = ()
        start: dict[str, Flow] = {}
        for i in range(piece.repeat):
            before = {name: replace(f) for name, f in walker.flows.items()}
            if not ops or before != start or _keeps(piece):
                made = tuple(op for part in piece.parts for op in ops_of(walker, part))
                start, ops = before, ops if ops == made else made  # equal layers share their ops
            needed = later | (_needed([piece], next(iter(walker.flows))) if i + 1 < piece.repeat else set())
            name = piece.name if alone else f"{piece.name}.{i}"
            found.append(Block(prefix + name, ops, walker.size_bytes(needed)))
    return found


def _keeps(piece: Piece) -> bool:
    return any(part.part in (PartKind.KEEP, PartKind.JOIN) for part in piece.parts)


def _needed(pieces: Sequence[Piece], first: str) -> set[str]:
    """Streams and kept tensors that these pieces use."""
    found: set[str] = set()
    for part in (part for piece in pieces for part in piece.parts):
        found |= set((part.stream or first).split("+")) | ({part.keys} if part.keys else set())
        found |= {part.name} if part.part == PartKind.JOIN else set()
    return found


def ops_of(walker: Walker, part: LayerPart) -> list[Op]:
    if part.part == PartKind.CORE:
        return _core(walker, part)
    if "+" not in part.stream:
        return PARTS[part.part](walker, walker.flow(part), part)
    flows = [walker.named(name) for name in part.stream.split("+")]
    if len({f.width for f in flows}) > 1:
        raise UsageError(f"part `{_path(part)}`: streams `{part.stream}` differ in width")
    both = Flow(sum(f.tokens for f in flows), flows[0].width)
    ops = PARTS[part.part](walker, both, part)
    for flow in flows:
        flow.width = both.width
    return ops


# -- layers ------------------------------------------------------------------------------------------


def _path(part: LayerPart) -> str:
    return part.name or str(part.part)


def _linear(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    local, into, out = walker.shard(flow), flow.width, part.out
    params = 0 if part.tied else into * out + (out if part.bias else 0)
    flow.width = into if part.aside else out
    if part.split == Split.COLUMN:
        return column(local, into, local.split(out, "columns"), _path(part), params=params)
    if part.split == Split.ROW:
        return row(local, local.split(into, "rows"), out, _path(part), params=params, bias=part.bias and not part.tied)
    return plain(local, local.tokens, into, out, _path(part), params=params)


def _conv1d(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    local, into = walker.shard(flow), part.kernel * flow.width
    flow.width = part.out
    params = into * part.out + (part.out if part.bias else 0)
    return plain(local, local.tokens, into, part.out, _path(part), params=params)


def _mlp(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    local, ways, out = walker.shard(flow), 2 if part.gated else 1, part.out or flow.width
    mine, path, into = local.split(part.ffn, "feed-forward columns"), _path(part), flow.width
    bias_in, bias_out = (ways * part.ffn, out) if part.bias else (0, 0)
    flow.width = out
    return [
        *column(local, into, ways * mine, f"{path}.up", params=ways * into * part.ffn + bias_in),
        activation(local.tokens * mine, f"{path}.activation", gated=part.gated, dtype=local.dtype),
        *row(local, mine, out, f"{path}.down", params=part.ffn * out + bias_out, bias=part.bias),
    ]


def _attention(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    """Projections, then attention; keys and values come from another stream if it names one."""
    other = walker.named(part.keys) if part.keys else flow
    local, theirs = walker.shard(flow), walker.shard(other)
    size, kv = part.head_size or flow.width // part.heads, part.kv_heads or part.heads
    heads, kv_here = local.split(part.heads, "attention heads"), local.split(kv, "heads of keys and values")
    path, wide, narrow = _path(part), part.heads * size, kv * size
    extra = int(part.bias)
    lacking = narrow if part.bias and part.key_bias is False else 0
    if part.keys:
        ops = column(local, flow.width, heads * size, f"{path}.q", params=(flow.width + extra) * wide)
        params = 2 * (other.width + extra) * narrow - lacking
        ops += column(theirs, other.width, 2 * kv_here * size, f"{path}.kv", params=params)
    else:
        params = (flow.width + extra) * (wide + 2 * narrow) - lacking
        ops = column(local, flow.width, (heads + 2 * kv_here) * size, f"{path}.qkv", params=params)
    ops += _qk_norm(local, part, heads + kv_here, size, (wide + narrow, 2 * size))
    if part.rotary:
        ops.append(pointwise(local.tokens * (heads + kv_here) * size, f"{path}.rotary", dtype=local.dtype))
    ops += core(local, _heads(part, local, flow.tokens, other.tokens, heads, kv_here, size), f"{path}.core")
    out = part.out or flow.width
    biased = part.bias if part.out_bias is None else part.out_bias
    flow.width = out
    return [*ops, *row(local, heads * size, out, f"{path}.out", params=(wide + biased) * out, bias=biased)]


def _heads(part: LayerPart, local: Shard, queries: int, keys: int, heads: int, kv: int, size: int) -> Heads:
    return Heads(
        samples=local.samples, queries=queries, keys=keys, heads=heads, kv_heads=kv, key_size=size, value_size=size,
        causal=part.causal, window=part.window,
    )  # fmt: skip


def _qk_norm(local: Shard, part: LayerPart, heads: int, size: int, params: tuple[int, int]) -> list[Op]:
    """`params`: over all heads, or over one."""
    if part.qk_norm == QkNorm.NONE:
        return []
    count = params[0] if part.qk_norm == QkNorm.WIDE else params[1]
    kind = "rms" if part.norm == NormKind.RMS else "layer"
    count *= 1 if kind == "rms" else 2
    one = norm(local.tokens * heads, size, f"{_path(part)}.qk_norm", dtype=local.dtype, kind=kind,
               params=count if part.affine else 0)  # fmt: skip
    return [one.replace(unit="")]


def _core(walker: Walker, part: LayerPart) -> list[Op]:
    """Attention of streams that attend together, after their projections."""
    flows = [walker.named(name) for name in (part.stream or next(iter(walker.flows))).split("+")]
    local = walker.shard(Flow(sum(f.tokens for f in flows), 1))
    width = flows[0].width
    size, kv = part.head_size or width // part.heads, part.kv_heads or part.heads
    heads, kv_here = local.split(part.heads, "attention heads"), local.split(kv, "heads of keys and values")
    sets = 1 if part.tied else len(flows)
    ops = _qk_norm(local, part, heads + kv_here, size, (sets * (part.heads + kv) * size, sets * 2 * size))
    if part.rotary:
        ops.append(pointwise(local.tokens * (heads + kv_here) * size, f"{_path(part)}.rotary", dtype=local.dtype))
    shape = _heads(part, local, local.seq, local.seq, heads, kv_here, size)
    for flow in flows:
        flow.width = part.out or part.heads * size
    return [*ops, *core(local, shape, _path(part))]


def _linear_attention(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    local = walker.shard(flow)
    size = part.head_size or flow.width // part.heads
    flow.width = part.heads * size
    heads = local.split(part.heads, "attention heads")
    return [linear_core(local, heads, size, size, _path(part), chunk=0)]


def _norm(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    local = walker.shard(flow)
    if part.norm in (NormKind.BATCH, NormKind.GROUP):
        elements, weights = local.tokens * flow.width, 2 * flow.width * part.affine
        return [batch_norm(elements, weights, _path(part), local.dtype, batch=part.norm == NormKind.BATCH)]
    params = flow.width * (2 if part.norm == NormKind.LAYER and part.bias else 1) * part.affine
    return [norm(local.tokens, flow.width, _path(part), dtype=local.dtype, kind=str(part.norm), params=params)]


def _activation(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    flow.width //= 2 if part.gated else 1
    elements = walker.shard(flow).tokens * flow.width
    return [activation(elements, _path(part), gated=part.gated, dtype=walker.local.dtype)]


def _scale(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    elements = walker.shard(flow).tokens * flow.width
    return [pointwise(elements, _path(part), dtype=walker.local.dtype, inputs=2)]


def _add(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    return [add(walker.shard(flow).tokens * flow.width, _path(part), dtype=walker.local.dtype, backward=True)]


def _table(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    flow.width = part.out
    tokens, params = walker.shard(flow).tokens, 0 if part.tied else part.rows * part.out
    one = embedding(tokens * part.lookups, part.out, _path(part), dtype=walker.local.dtype, params=params, local=params)
    return [one]


def _weights(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    one = add(walker.shard(flow).tokens * flow.width, _path(part), dtype=walker.local.dtype)
    return [one.replace(params=part.params, local_params=part.params)]


# -- pictures, tokens ------------------------------------------------------------------------------------------


def _conv(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    if not flow.side:
        raise UsageError(f"part `{_path(part)}`: a convolution needs a stream of images", hint="side: 224")
    if walker.local.tp > 1:
        raise UsageError("convolutions cannot be split over tensor-parallel ranks", hint="--tp 1")
    groups = part.groups or flow.width
    around = part.padding if part.valid or part.padding else part.kernel // 2
    side = (flow.side + 2 * around - part.kernel) // part.stride + 1
    before, into = (flow.frames, flow.side), flow.width
    flow = replace(flow) if part.aside else flow
    flow.resized(side, -(-flow.frames // (part.stride if part.depth > 1 and part.valid else 1)))
    flow.width = part.out
    return [convolution(walker.shard(flow), into, part.out, before, (flow.frames, side), part, groups, _path(part))]


def _pool(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    before = walker.shard(flow).tokens * flow.width
    if flow.side:
        flow.resized(flow.side // part.factor if part.factor else 1, flow.frames if part.factor else 1)
    else:
        flow.tokens = flow.tokens // part.factor if part.factor else 1
    return [pooled(before, walker.shard(flow).tokens * flow.width, _path(part), walker.local.dtype)]


def _upsample(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    before = walker.shard(flow).tokens * flow.width
    flow.resized(flow.side * part.factor, flow.frames)
    return [pooled(before, walker.shard(flow).tokens * flow.width, _path(part), walker.local.dtype)]


def _merge(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    up = part.part == PartKind.MERGE
    if flow.side:
        step = part.factor
        flow.resized(flow.side // step if up else flow.side * step, flow.frames)
        flow.width = flow.width * step * step if up else flow.width // (step * step)
        return []
    flow.tokens = flow.tokens // part.factor if up else flow.tokens * part.factor
    flow.width = flow.width * part.factor if up else flow.width // part.factor
    return []


def _tokens(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    flow.tokens, flow.side, flow.frames = part.count, 0, 1
    return []


def _keep(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    walker.kept.setdefault(part.name, []).append(replace(flow))
    return []


def _join(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    if not walker.kept.get(part.name):
        raise UsageError(f"no result was kept as `{part.name}`", hint=f"kept: {', '.join(walker.kept)}")
    flow.width += walker.kept[part.name].pop().width
    return [pooled(0, walker.shard(flow).tokens * flow.width, "join", walker.local.dtype)]


# -- others ------------------------------------------------------------------------------------------


def _gather(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    """Sums of neighbouring rows: an embedding with as many lookups as there are edges."""
    one = embedding(
        part.count * walker.local.samples, flow.width, _path(part), dtype=walker.local.dtype, params=0, local=0
    )
    (back,) = one.backward
    return [one.replace(backward=(back.replace(phase=Phase.INPUT),))]


def _distance(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    """Distances of every sample to every row; then the rows near the nearest one move towards it. There is no gradient:
    the moves replace it, and are summed over copies like one."""
    local, params = walker.shard(flow), part.rows * flow.width
    found = plain(local, local.tokens, flow.width, part.rows, _path(part), params=params)
    move = plain(local, part.rows, local.tokens, flow.width, f"{_path(part)}.move", params=0)
    w = work.softmax(local.tokens, part.rows, dtype=local.dtype)
    shape = shapes((local.tokens, part.rows))
    nearest = compute("aten::argmin", f"{_path(part)}.nearest", w, shape, shapes((local.tokens,)))
    moves = tuple(op.replace(backward=(), saved_bytes=0, phase=Phase.WEIGHT) for op in move)
    return [op.replace(backward=(), saved_bytes=0) for op in found] + [nearest.replace(backward=moves, saved_bytes=0)]


def _loss(walker: Walker, flow: Flow, part: LayerPart) -> list[Op]:
    return [pointwise(walker.shard(flow).tokens * flow.width, _path(part), dtype="fp32", inputs=2)]


PARTS: Final[dict[PartKind, Callable[[Walker, Flow, LayerPart], list[Op]]]] = {
    PartKind.LINEAR: _linear,
    PartKind.MLP: _mlp,
    PartKind.ATTENTION: _attention,
    PartKind.NORM: _norm,
    PartKind.ACTIVATION: _activation,
    PartKind.SCALE: _scale,
    PartKind.ADD: _add,
    PartKind.TABLE: _table,
    PartKind.WEIGHTS: _weights,
    PartKind.CONV: _conv,
    PartKind.CONV1D: _conv1d,
    PartKind.POOL: _pool,
    PartKind.UPSAMPLE: _upsample,
    PartKind.MERGE: _merge,
    PartKind.UNMERGE: _merge,
    PartKind.TOKENS: _tokens,
    PartKind.KEEP: _keep,
    PartKind.JOIN: _join,
    PartKind.LINEAR_ATTENTION: _linear_attention,
    PartKind.GATHER: _gather,
    PartKind.DISTANCE: _distance,
    PartKind.LOSS: _loss,
}

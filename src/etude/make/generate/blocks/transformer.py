"""Transformers as blocks: embedding, layers (attention, feed-forward or experts), head with its loss."""

from __future__ import annotations

from dataclasses import replace

from etude.base.errors import UsageError
from etude.cost import ops as work
from etude.cost.ops import OpClass, Work
from etude.make.generate.blocks.attention import Heads, core
from etude.make.generate.blocks.ops import (
    Op,
    Phase,
    Stream,
    activation,
    add,
    bytes_of,
    collective,
    compute,
    embedding,
    exchanged,
    norm,
    permute,
    pointwise,
    shapes,
)
from etude.make.generate.blocks.recurrent import mixer as recurrent_mixer
from etude.make.generate.blocks.shard import Block, Shard, cast, column, plain, row, uncast
from etude.make.generate.blocks.sparse import indexer
from etude.make.generate.model.shape import Family, Feed, Mixer, Model, Positions
from etude.model.schema import Collective


def blocks(model: Model, local: Shard) -> list[Block]:
    """The model from first to last, figures of one rank and one micro-batch. Equal layers share their ops."""
    out = bytes_of(local.rows * model.hidden, local.dtype)
    made: dict[tuple[Mixer, Feed, int], tuple[Op, ...]] = {}
    found = [Block("embedding", tuple(embed(model, local)), out)]
    causal = model.family != Family.ENCODER
    for i in range(model.layers):
        key = model.mixer_of(i), model.feed_of(i), model.window_of(i)
        if key not in made:
            mixer, feed, window = key
            if mixer != Mixer.ATTENTION or feed == Feed.NONE:
                made[key] = tuple(hybrid_layer(model, local, mixer, feed))
            else:
                ops = layer(model, local, experts=feed == Feed.EXPERTS, window=window, causal=causal)
                made[key] = tuple(ops)
        found.append(Block(f"layers.{i}", made[key], out))
    found.append(Block("head", tuple(head(model, local)), 0))
    if model.predict_layers:
        deeper = tuple(predict_layer(model, local))
        found += [Block(f"predict.{i}", deeper, 0, last=True) for i in range(model.predict_layers)]
    return found


def norm_params(model: Model) -> int:
    if not model.norm_weights:
        return 0
    return model.hidden * (2 if model.norm == "layer" and model.norm_bias else 1)


def normed(model: Model, local: Shard, part: str, rows: int = 0) -> Op:
    one = norm(rows or local.rows, model.hidden, part, dtype=local.dtype, kind=model.norm, params=norm_params(model))
    return _plain_norm(one, local) if model.norm == "rms" and "norm" in local.unfused else one


def _plain_norm(one: Op, local: Shard) -> Op:
    """Cast to 32 bits, squared, averaged, scaled, cast back and weighted: six kernels that move 36 bytes per 16-bit
    element instead of 4, and keep the cast and the normalised one."""
    back = tuple(op.replace(size_bytes=9 * op.size_bytes, calls=6.0) for op in one.backward)
    elements = one.saved_bytes // bytes_of(1, local.dtype)
    kept = 4 * elements + bytes_of(elements, local.dtype)
    return one.replace(size_bytes=9 * one.size_bytes, calls=6.0, saved_bytes=kept, backward=back)


def activated(model: Model, local: Shard, elements: int, part: str, *, load: bool = False) -> Op:
    """The activation of a feed-forward layer. With plain operations the gate and its product are two kernels, and the
    second keeps the output of the first: 10 bytes per 16-bit element are moved forward and 18 backward, instead of 6
    and 10. Where both halves are clamped (GPT-OSS in Megatron-Core), each is clamped by a kernel of its own, and they
    are joined for the gate's: 22 and 30 bytes, and what was clamped is kept too."""
    one = activation(elements, part, gated=model.gated, dtype=local.dtype, load=load)
    if local.keep_cast:
        return _kept_cast(one, local)
    if not model.gated or "activation" not in local.unfused:
        return one
    forward, backward, kept, calls = (11, 15, 4, 4.0) if model.gate_clamp else (5, 9, 3, 2.0)
    back = tuple(op.replace(size_bytes=op.size_bytes * backward // 5, calls=calls + 1) for op in one.backward)
    kept = one.saved_bytes * kept // 2
    return one.replace(size_bytes=one.size_bytes * forward // 3, calls=calls, saved_bytes=kept, backward=back)


def _kept_cast(one: Op, local: Shard) -> Op:
    """With its inputs kept in fewer bits: the forward pass writes them again, the backward pass reads less."""
    fewer = local.cast_bytes(one.saved_bytes // bytes_of(1, local.dtype))
    less = one.saved_bytes - fewer
    back = tuple(op.replace(size_bytes=op.size_bytes - less) for op in one.backward)
    return one.replace(size_bytes=one.size_bytes + fewer, saved_bytes=fewer, backward=back)


def vocab_of(model: Model, local: Shard) -> int:
    """Rows of the vocabulary on a rank; padded up, as trainers do."""
    return -(-model.vocab // local.tp)


def embed(model: Model, local: Shard) -> list[Op]:
    rows = vocab_of(model, local)
    ops = [
        embedding(
            local.tokens,
            model.hidden,
            "tokens",
            dtype=local.dtype,
            params=model.vocab * model.hidden,
            local=rows * model.hidden,
        )
    ]
    full = bytes_of(local.tokens * model.hidden, local.dtype)
    if local.sp:
        ops += exchanged(Collective.REDUCE_SCATTER, "tp", local.tp, full, "tokens", Stream.TENSOR, dtype=local.dtype)
    elif local.tp > 1:
        ops += [collective(Collective.ALL_REDUCE, "tp", local.tp, full, "tokens", Stream.TENSOR, dtype=local.dtype)]
    if model.positions == Positions.LEARNED:
        table = (model.max_positions or local.seq) * model.hidden
        ops.append(
            add(local.rows * model.hidden, "positions", dtype=local.dtype).replace(params=table, local_params=table)
        )
    if model.token_types:
        table = model.token_types * model.hidden
        ops.append(add(local.rows * model.hidden, "types", dtype=local.dtype).replace(params=table, local_params=table))
    if model.embedding_norm:
        ops.append(normed(model, local, "norm"))
    return ops


def predict_layer(model: Model, local: Shard) -> list[Op]:
    """Multi-token prediction: the output for a token, joined with the embedding of the next one, goes through one more
    layer and the same head. Embedding and head are the model's own."""
    h, full = model.hidden, bytes_of(local.tokens * model.hidden, local.dtype)
    table, *rest = embed(model.replace(positions=Positions.NONE, token_types=0, embedding_norm=False), local)
    ops = [table.replace(params=0, local_params=0, tied_params=table.local_params), *rest]
    ops += [normed(model, local, part).replace(unit="") for part in ("token_norm", "hidden_norm")]
    ops += column(local, 2 * h, local.split(h, "columns"), "join", params=2 * h * h)
    if local.tp > 1:  # columns are gathered; with sequence parallelism each rank continues with its tokens
        gather = collective(Collective.ALL_GATHER, "tp", local.tp, full, "join", Stream.TENSOR, dtype=local.dtype)
        ops.append(gather.replace(backward=(gather.replace(phase=Phase.INPUT),)) if local.sp else gather)
    final = model.layers - 1
    ops += layer(model, local, experts=model.has_experts(final), window=model.window_of(final))
    shared = [op.replace(params=0, local_params=0, tied_params=0) for op in _logits(model, local)]
    return [*ops, normed(model, local, "norm"), *shared, *loss(model, local, vocab_of(model, local))]


def layer(model: Model, local: Shard, *, experts: bool, window: int = 0, causal: bool = True) -> list[Op]:
    """Attention and feed-forward, in sequence even if a model adds both to the same residual."""
    residual = add(local.rows * model.hidden, "residual", dtype=local.dtype, backward=True)
    attend = latent_attention if model.kv_rank else self_attention
    ops = [normed(model, local, "attention_norm"), *attend(model, local, window=window, causal=causal)]
    ops += [normed(model, local, "attention_after").replace(unit="")] if model.norms == 4 else []
    ops.append(residual)
    ops += [normed(model, local, "ffn_norm")] if model.norms > 1 else []
    ops += mixture(model, local) if experts else feed_forward(model, local)
    ops += [normed(model, local, "ffn_after").replace(unit="")] if model.norms == 4 else []
    return [*ops, residual]


def hybrid_layer(model: Model, local: Shard, mixer: Mixer, feed: Feed) -> list[Op]:
    """A layer with a state instead of keys, or with only one of its two halves."""
    residual = add(local.rows * model.hidden, "residual", dtype=local.dtype, backward=True)
    ops: list[Op] = []
    if mixer == Mixer.ATTENTION:
        attend = latent_attention if model.kv_rank else self_attention
        ops += [normed(model, local, "attention_norm"), *attend(model, local), residual]
    elif mixer != Mixer.NONE:
        ops += [normed(model, local, "mixer_norm"), *recurrent_mixer(model, local, mixer), residual]
    if feed != Feed.NONE:
        inner = mixture(model, local) if feed == Feed.EXPERTS else feed_forward(model, local)
        ops += [normed(model, local, "ffn_norm"), *inner, residual]
    return ops


def self_attention(
    model: Model, local: Shard, *, window: int = 0, causal: bool = True, part: str = "attention"
) -> list[Op]:
    h, d = model.hidden, model.head
    heads = local.split(model.heads, "attention heads")
    kv = max(model.kv // local.tp, 1)
    if model.kv % local.tp and local.tp % model.kv:
        raise UsageError(f"{model.kv} heads of keys and values cannot be split over {local.tp} tensor-parallel ranks")
    gate = model.gated_attention
    out = (heads + gate * heads + 2 * kv) * d
    wide = (model.heads + gate * model.heads + 2 * model.kv) * d
    each = h + 1 if model.bias or model.qkv_bias else h
    ops = column(local, h, out, f"{part}.qkv", params=each * wide, held=each * out)
    if local.tp > model.kv:  # some ranks share a head of keys and values, each with its part of the gradient
        ops = [op.replace(summed=(f"kv{local.tp // model.kv}", each * 2 * kv * d)) if op.params else op for op in ops]
    if model.qk_norm:
        params = (model.heads + model.kv) * d if model.qk_norm_wide else 2 * d
        held = (heads + kv) * d if model.qk_norm_wide else params
        one = norm(local.tokens * (heads + kv), d, f"{part}.qk_norm", dtype=local.dtype, kind=model.norm, params=params)
        one = one.replace(local_params=held, unit="")
        ops.append(one if model.qk_norm_wide else one.replace(summed=("tp", params)))  # each rank has its own heads
    if model.positions == Positions.ROTARY:
        turned = local.tokens * (heads + kv) * d
        ops.append(pointwise(turned, f"{part}.rotary", dtype=local.dtype))
    shape = Heads(
        samples=local.samples,
        queries=local.seq,
        keys=local.seq,
        heads=heads,
        kv_heads=kv,
        key_size=d,
        value_size=d,
        causal=causal,
        window=window,
    )
    inner = core(local, shape, f"{part}.core")
    if model.sinks:
        inner[-1] = inner[-1].replace(params=model.heads, local_params=heads)
    if gate:
        inner.append(activation(local.tokens * heads * d, f"{part}.gate", gated=True, dtype=local.dtype))
    size = model.heads * d
    bias = model.bias or model.out_bias
    return [*ops, *inner, *row(local, heads * d, h, f"{part}.out", params=size * h + bias * h, bias=bias)]


def latent_attention(model: Model, local: Shard, *, window: int = 0, causal: bool = True) -> list[Op]:
    """Queries, keys and values through a low rank; one rotary key is shared by all heads."""
    h, rank = model.hidden, model.kv_rank
    key_size = model.nope_size + model.rope_size
    heads = local.split(model.heads, "attention heads")
    ops: list[Op] = []
    down = rank + model.rope_size
    if model.q_rank:
        ops += plain(local, local.rows, h, model.q_rank, "attention.q_down", params=h * model.q_rank)
        ops.append(_rank_norm(local, model.q_rank, "attention.q_norm", model))
        ops += column(
            local, model.q_rank, heads * key_size, "attention.q_up", params=model.q_rank * model.heads * key_size
        )
    else:
        ops += column(local, h, heads * key_size, "attention.q", params=h * model.heads * key_size)
    ops += plain(local, local.rows, h, down, "attention.kv_down", params=h * down)
    ops.append(_rank_norm(local, rank, "attention.kv_norm", model))
    wide = model.nope_size + model.value_size
    ops += column(local, rank, heads * wide, "attention.kv_up", params=rank * model.heads * wide)
    ops += _rotary_key(model, local)
    shape = Heads(
        samples=local.samples,
        queries=local.seq,
        keys=local.seq,
        heads=heads,
        kv_heads=heads,
        key_size=key_size,
        value_size=model.value_size,
        causal=causal,
        window=window,
    )
    if model.index_top:
        ops += indexer(model, local, shape.pairs)
        shape = replace(shape, window=model.index_top)  # a query sees as many keys as with a window
    ops += core(local, shape, "attention.core")
    return ops + row(local, heads * model.value_size, h, "attention.out", params=model.heads * model.value_size * h)


def _rotary_key(model: Model, local: Shard) -> list[Op]:
    """The rotary key of a token is the same for all heads: gathered if tokens are split; its gradient is the sum over
    the ranks' heads."""
    heads, part = model.heads // local.tp, "attention.rotary"
    turn = pointwise(local.tokens * (heads + 1) * model.rope_size, part, dtype=local.dtype)
    full = bytes_of(local.tokens * model.rope_size, local.dtype)
    if local.sp:
        return [*exchanged(Collective.ALL_GATHER, "tp", local.tp, full, part, Stream.TENSOR, dtype=local.dtype), turn]
    if local.tp > 1:
        total = collective(Collective.ALL_REDUCE, "tp", local.tp, full, part, Stream.TENSOR, dtype=local.dtype)
        turn = turn.replace(backward=(*turn.backward, total.replace(phase=Phase.INPUT)))
    return [turn]


def _rank_norm(local: Shard, size: int, part: str, model: Model) -> Op:
    return norm(local.rows, size, part, dtype=local.dtype, kind=model.norm, params=size)


def feed_forward(model: Model, local: Shard, *, ffn: int = 0, part: str = "ffn", bias: bool | None = None) -> list[Op]:
    ffn = ffn or model.ffn
    bias = (model.bias or model.ffn_bias) if bias is None else bias
    mine, ways = local.split(ffn, "feed-forward columns"), 2 if model.gated else 1
    h = model.hidden
    ops = column(local, h, ways * mine, f"{part}.up", params=ways * ffn * h + (ways * ffn if bias else 0))
    ops.append(activated(model, local, local.tokens * mine, f"{part}.activation"))
    return ops + row(local, mine, h, f"{part}.down", params=ffn * h + bias * h, bias=bias)


def mixture(model: Model, local: Shard) -> list[Op]:
    """Router, exchange of tokens over the expert-parallel ranks, the rank's experts, exchange back, sum."""
    if local.tp > 1 and not local.sp:
        raise UsageError("experts with tensor parallelism need sequence parallelism", hint="--sp")
    if model.experts % local.ep:
        raise UsageError(f"{model.experts} experts cannot be spread over {local.ep} ranks", hint="an --ep that divides")
    h, ffn, e = model.hidden, model.expert_ffn or model.ffn, model.experts
    if ffn % local.etp:
        raise UsageError(f"experts of width {ffn} cannot be split over {local.etp} ranks")
    mine, ways, held = e // local.ep, 2 if model.gated else 1, ffn // local.etp
    params = h * e + (e if model.expert_bias else 0) + (e if model.router_bias else 0)
    ops = plain(_unquantised(local), local.rows, h, e, "experts.router", params=params)
    ops.append(_gate(local, e))
    # Tokens may go to their experts in fewer columns, and come back so.
    w = model.expert_latent or h
    ops += plain(local, local.rows, h, w, "experts.latent_down", params=h * w) if w != h else []
    sent = local.rows * model.top_k
    # Cast before it is sent, or on arrival.
    early = local.ep * local.etp > 1 and local.sent_dtype != local.dtype
    there, back = local.sent_dtype if early else local.dtype, local.dtype
    ops += cast(local, local.rows * w, "experts.dispatch") if early else []
    # A dispatcher that knows nodes reads tokens where they are, and adds up the copies of one.
    ops += [] if local.ep_node else [_permuted(sent * w, "experts.dispatch", there, back)]
    ops += _sent(local, model.top_k, w, "experts.dispatch", (there, back))
    gathered = sent * local.etp * w
    ops += _exchanged(local, Collective.ALL_GATHER, "etp", local.etp, gathered, "experts.dispatch", (there, back))
    # What arrives is ordered by sender, and the experts need their own tokens together.
    sorts = local.ep > 1 and mine > 1
    ops += [_permuted(sent * local.etp * w, "experts.sort", there, back)] if sorts else []
    read, come = mine, sent * local.etp
    if not local.training:
        read, come = chosen(mine, model, local.routed), -(-local.routed * model.top_k // local.ep)
    rows = -(-come // read)
    # One call for all experts, which then issues products, and in 8 bits casts, expert by expert.
    calls = 1.0 + mine * (CALLS_OF_8_BITS if local.gemm_dtype != local.dtype else CALLS_OF_16_BITS)
    up, down = ways * ffn * w + model.expert_bias * ways * ffn, ffn * w + model.expert_bias * w
    into = plain(
        local,
        rows,
        w,
        ways * held,
        "experts.up",
        params=e * up,
        batch=read,
        expert=True,
        load=True,
        calls=calls,
        local_params=mine * up // local.etp,
    )
    ops += into[-1:] if early else into
    ops.append(activated(model, local, rows * read * held, "experts.activation", load=True))
    out = plain(
        local,
        rows,
        held,
        w,
        "experts.down",
        params=e * down,
        batch=read,
        expert=True,
        load=True,
        calls=calls,
        local_params=mine * down // local.etp,
    )
    out[-1] = out[-1].replace(backward=out[-1].backward[-2:]) if early else out[-1]
    ops += out
    if model.expert_bias and "bias" in local.unfused:
        ops.append(_biased(rows * read * w, read, local))
    ops += [_permuted(sent * local.etp * w, "experts.sort", back, there)] if sorts else []
    ops += _exchanged(local, Collective.REDUCE_SCATTER, "etp", local.etp, gathered, "experts.combine", (back, there))
    ops += _sent(local, model.top_k, w, "experts.combine", (back, there))[::-1]
    ops += [] if local.ep_node else [_permuted(sent * w, "experts.combine", back, back)]
    casts = uncast(local, sent * w, "experts.combine") if early else ()
    # Backward goes from the last op: gradients are cast before they are sent.
    first = casts + ops[-1].backward if local.ep_node else ops[-1].backward + casts
    ops[-1] = ops[-1].replace(backward=first)
    ops += plain(local, local.rows, w, h, "experts.latent_up", params=w * h) if w != h else []
    if model.shared_ffn:
        ops += feed_forward(model, local, ffn=model.shared_ffn, part="shared", bias=False)
        if model.shared_gate:
            ops += plain(local, local.rows, h, 1, "shared.gate", params=h)
        ops.append(add(local.rows * h, "shared.sum", dtype=local.dtype))
    return ops


def _biased(elements: int, experts: int, local: Shard) -> Op:
    """Biases of the experts' last product, times the weight of each token, as Megatron-Core adds them: in 32 bits, with
    two kernels for each expert, then joined and cast back. Forward 24 bytes and two 16-bit elements are moved for each
    element. Backward 32 and four: two casts, the parts joined, and two products that are summed, for the biases and
    for the weights of tokens."""
    one = pointwise(elements, "experts.bias", dtype=local.dtype, name="aten::add")
    size = bytes_of(elements, local.dtype)
    forward, backward = 24 * elements + 2 * size, 32 * elements + 4 * size
    back = tuple(
        op.replace(size_bytes=backward, calls=1.0 + 5 * experts * CALLS_OF_16_BITS, load=True) for op in one.backward
    )
    return one.replace(size_bytes=forward, calls=1.0 + 2 * experts * CALLS_OF_16_BITS, load=True, backward=back)


def chosen(held: int, model: Model, tokens: int) -> int:
    """How many of a rank's experts are used by this many tokens, each choosing uniformly: few tokens read few
    experts."""
    met = held * (1 - (1 - model.top_k / model.experts) ** tokens)
    return min(max(round(met), 1), held)


def _permuted(elements: int, part: str, there: str, back: str) -> Op:
    """Rows in another order, in one data type forward and another backward."""
    return permute(elements, part, dtype=there).replace(backward=permute(elements, part, dtype=back).backward)


def _sent(local: Shard, top_k: int, hidden: int, part: str, dtypes: tuple[str, str]) -> list[Op]:
    """Tokens to the ranks of their experts: each copy by itself, or once to each node and there once to each rank."""
    if not local.ep_node:
        every = local.rows * top_k * hidden
        return _exchanged(local, Collective.ALL_TO_ALL, "ep", local.ep, every, part, dtypes)
    nodes, near = local.ep // local.ep_node, local.ep_node
    each = round(local.rows * distinct(min(local.moe_nodes or nodes, nodes) * near, top_k) * hidden)
    if nodes == 1:
        return _exchanged(local, Collective.ALL_TO_ALL, "ep", local.ep, each, part, dtypes)
    once = round(local.rows * distinct(min(local.moe_nodes or nodes, nodes), top_k) * hidden)
    across = _exchanged(local, Collective.ALL_TO_ALL, "ep_out", nodes, once, part, dtypes)
    inside = _exchanged(local, Collective.ALL_TO_ALL, "ep_in", near, each, part, dtypes)
    return [*across, *map(_same_call, inside)]


def _same_call(op: Op) -> Op:
    """Nothing for the host to issue: one call sends between nodes and inside them."""
    return op.replace(calls=0.0, backward=tuple(back.replace(calls=0.0) for back in op.backward))


def distinct(places: int, top_k: int) -> float:
    """Mean number of nodes, or of ranks, that a token goes to, each of whose experts is on any of them."""
    return places * (1 - (1 - 1 / places) ** top_k)


def _exchanged(
    local: Shard, kind: Collective, group: str, size: int, elements: int, part: str, dtypes: tuple[str, str]
) -> list[Op]:
    """The same for an exchange: tokens are sent in 8 bits, with their scales, and return as sums in 16; so do
    gradients."""
    sizes = [local.cast_bytes(elements) if d == local.gemm_dtype else bytes_of(elements, d) for d in dtypes]
    one, other = (
        exchanged(kind, group, size, full, part, Stream.EXPERT, dtype=d) for full, d in zip(sizes, dtypes, strict=True)
    )
    return [op.replace(backward=twin.backward) for op, twin in zip(one, other, strict=True)]


CALLS_OF_ROUTER = 8.0
"""Choosing experts and counting tokens takes some 30 small kernels; a usual op takes a few. Backward half as many."""
CALLS_OF_16_BITS, CALLS_OF_8_BITS = 0.1, 0.25
"""For each expert of a rank: the product only, or with casts and scales in both layouts."""


def _gate(local: Shard, experts: int) -> Op:
    """Probabilities of experts. The host waits for them: all following sizes depend on the tokens' choice."""
    w = work.softmax(local.rows, experts, dtype="fp32")
    shape = shapes((local.rows, experts))
    half = CALLS_OF_ROUTER / 2
    back = compute("aten::_softmax_backward_data", "experts.router", w, shape, shape, phase=Phase.INPUT, calls=half)
    return compute(
        "aten::_softmax",
        "experts.router",
        w,
        shape,
        shape,
        backward=(back,),
        calls=CALLS_OF_ROUTER,
        read=not local.capacity,
    )


def head(model: Model, local: Shard) -> list[Op]:
    """Norm, logits, loss. A tied head has no parameters of its own; the layout of stages decides which of the
    embedding's it holds."""
    ops = [normed(model, local, "norm")] if model.final_norm else []
    if model.pooler:
        size = model.hidden * model.hidden + model.hidden
        ops += plain(local, local.samples, model.hidden, model.hidden, "pooler", params=size)
    return [*ops, *_logits(model, local), *loss(model, local, vocab_of(model, local))]


def _logits(model: Model, local: Shard) -> list[Op]:
    rows, bias = vocab_of(model, local), int(model.head_bias)
    table = 0 if model.tied else model.hidden
    params = model.vocab * (table + bias)
    wide = column(_unquantised(local), model.hidden, rows, "logits", params=params, held=rows * (table + bias))
    if model.tied:
        wide[-1] = wide[-1].replace(tied_params=rows * model.hidden)
    return wide


def _unquantised(local: Shard) -> Shard:
    """In 8-bit training logits and routers stay in 16 bits, unsplit."""
    return replace(local, gemm_dtype=local.dtype, chunks=1)


def loss(model: Model, local: Shard, vocab: int) -> list[Op]:
    """Cross entropy, in 32 bits by default: logits are cast to that and their gradients back; over split vocabularies
    the maximum and the sum are reduced. Log-probabilities are kept; their gradient is as large."""
    tokens, wide = local.tokens, local.loss_dtype
    w = work.softmax(tokens, vocab, dtype=wide)
    shape = shapes((tokens, vocab))
    given, made = bytes_of(tokens * vocab, local.dtype), bytes_of(tokens * vocab, wide)
    b = Work(op_class=OpClass.ELEMENTWISE, flops=2 * tokens * vocab, size_bytes=2 * made, dtype=wide)
    back = compute("aten::_softmax_backward_data", "loss", b, shape, shape, phase=Phase.INPUT)
    c = Work(op_class=OpClass.ELEMENTWISE, flops=tokens * vocab, size_bytes=given + made, dtype=wide)
    copy = compute("aten::_to_copy", "loss", c, shape, shape)
    casts = [] if local.dtype == wide else [copy.replace(backward=(copy.replace(phase=Phase.INPUT),))]
    ops = [
        compute(
            "aten::_log_softmax",
            "loss",
            w,
            shape,
            shape,
            backward=(back,),
            saved_bytes=made,
            temp_bytes=given + (made if casts else 0),
            back_bytes=made,
        )
    ]
    if local.tp > 1:
        small = collective(Collective.ALL_REDUCE, "tp", local.tp, 4 * tokens, "loss", Stream.TENSOR, dtype="fp32")
        ops = [small, ops[0], small]
    return [*casts, *ops]

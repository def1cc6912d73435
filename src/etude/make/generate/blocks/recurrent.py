"""Layers with a state instead of keys and values: Mamba, Mamba-2, gated delta rules, linear attention.

All of them read a sequence in chunks: inside a chunk tokens interact as in attention, between chunks a state of fixed
size is passed. So work grows with tokens, not with pairs; and a served sequence holds one state, whatever its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from etude.base.errors import UsageError
from etude.cost.ops import OpClass, Work
from etude.make.generate.blocks.ops import Op, Phase, activation, bytes_of, compute, norm, shapes
from etude.make.generate.blocks.shard import Shard, column, plain, row
from etude.make.generate.model.shape import Mixer, Model

CHUNK: Final = {Mixer.MAMBA: 1, Mixer.MAMBA2: 256, Mixer.DELTA: 64, Mixer.CHANNEL_DELTA: 64}
"""Tokens of a chunk, as in the public kernels; Mamba scans token by token."""
NAME: Final = "linear_attention::"
STATE_BYTES: Final = 4


def mixer(model: Model, local: Shard, kind: Mixer) -> list[Op]:
    """From the residual stream back to it."""
    if local.cp > 1:
        raise UsageError("layers with a state cannot be split over context-parallel ranks", hint="--cp 1")
    if kind != Mixer.MAMBA and model.ssm_groups % local.tp and (local.training or local.tp % model.ssm_groups):
        problem = f"{model.ssm_groups} groups of a state cannot be split over {local.tp} tensor-parallel ranks"
        raise UsageError(problem, hint=f"a --tp that divides {model.ssm_groups}")
    made = {Mixer.MAMBA: _mamba, Mixer.MAMBA2: _mamba2, Mixer.DELTA: _delta, Mixer.CHANNEL_DELTA: _channel_delta}
    return made[kind](model, local)


def state_bytes(model: Model, kind: Mixer, tp: int) -> int:
    """Bytes that a sequence holds in one such layer on one rank: the state, and the last inputs of the convolution."""
    if kind not in CHUNK:
        return 0
    inner = model.ssm_heads * model.ssm_head_size // tp
    return STATE_BYTES * inner * model.state + bytes_of((model.conv - 1) * _mixed(model, kind, tp), "bf16")


def core(model: Model, kind: Mixer, tp: int, queries: Sequence[int], dtype: str, part: str) -> Op:
    """The scan over sequences of `queries` new tokens each. The state is read and written for every chunk."""
    heads, groups = model.ssm_heads // tp, max(model.ssm_groups // tp, 1)
    size, state = model.ssm_head_size, model.state
    flops, states = 0, 0
    for q in queries:
        chunk = min(CHUNK[kind], q)
        flops += q * _each(kind, heads, groups, size, state, chunk)
        states += -(-q // chunk) if chunk > 1 else 1
    tokens = sum(queries)
    moved = bytes_of(tokens * (2 * heads * size + 2 * groups * state), dtype)
    if kind == Mixer.CHANNEL_DELTA:  # a decay for each channel of a key, where the others have one for a head
        moved += bytes_of(tokens * groups * state, dtype)
    moved += 2 * STATE_BYTES * states * heads * size * state
    ins = shapes((tokens, heads, size), (tokens, groups, state), (tokens, groups, state))
    return _op(f"{NAME}{kind.word}", part, flops, moved, dtype, ins, shapes((tokens, heads, size)))


def linear_core(local: Shard, heads: int, key_size: int, value_size: int, part: str, *, chunk: int) -> Op:
    """Sums of keys times values, multiplied by the queries: no scores. `chunk` 0: all tokens see all."""
    tokens, inside = local.tokens, 2 * chunk * (key_size + value_size)
    flops = tokens * heads * (4 * key_size * value_size + inside)
    moved = bytes_of(tokens * heads * 2 * (key_size + value_size), local.dtype)
    shape = shapes((tokens, heads, key_size))
    return _op(f"{NAME}linear", part, flops, moved, local.dtype, shape, shapes((tokens, heads, value_size)))


def _op(name: str, part: str, flops: int, moved: int, dtype: str, ins: str, outs: str) -> Op:
    w = Work(op_class=OpClass.ATTENTION, flops=flops, size_bytes=moved, dtype=dtype)
    back = Work(op_class=OpClass.ATTENTION, flops=2 * flops, size_bytes=2 * moved, dtype=dtype)
    grad = compute(f"{name}_backward", part, back, ins, outs, phase=Phase.INPUT)
    return compute(name, part, w, ins, outs, backward=(grad,), saved_bytes=moved // 2, unit="state")


def _each(kind: Mixer, heads: int, groups: int, size: int, state: int, chunk: int) -> int:
    """FLOPs per token: in its chunk, into the state, out of it."""
    if kind == Mixer.MAMBA:  # elementwise: decay, input, sum, output
        return 9 * heads * size * state
    if kind == Mixer.MAMBA2:
        return 2 * chunk * state * groups + heads * (2 * chunk * size + 4 * state * size)
    # Keys against keys, the triangle's inverse onto keys and values, queries against keys, onto values; three
    # products with the state.
    return heads * (2 * chunk * (3 * state + 2 * size) + 6 * state * size)


def _mixed(model: Model, kind: Mixer, tp: int) -> int:
    """Channels that the short convolution mixes along the sequence."""
    inner, keys = model.ssm_heads * model.ssm_head_size // tp, max(model.ssm_groups // tp, 1) * model.state
    return inner if kind == Mixer.MAMBA else inner + 2 * keys


def _short_conv(model: Model, local: Shard, kind: Mixer) -> list[Op]:
    """A depthwise convolution over a few tokens, and its activation."""
    channels, whole = _mixed(model, kind, local.tp), _mixed(model, kind, 1)
    elements = local.tokens * channels
    w = Work(
        op_class=OpClass.ELEMENTWISE,
        flops=2 * model.conv * elements,
        size_bytes=bytes_of(2 * elements, local.dtype),
        dtype=local.dtype,
    )
    one = compute("causal_conv1d::fwd", "mixer.conv", w, shapes((elements,)), shapes((elements,)))
    taps = model.conv + model.conv_bias
    one = one.replace(
        backward=(one.replace(name="causal_conv1d::bwd", flops=2 * one.flops, phase=Phase.INPUT),),
        params=whole * taps,
        local_params=channels * taps,
        saved_bytes=bytes_of(elements, local.dtype),
    )
    return [one, activation(elements, "mixer.activation", gated=False, dtype=local.dtype)]


def _scanned(model: Model, local: Shard, kind: Mixer, params: int) -> Op:
    one = core(model, kind, local.tp, [local.seq // local.cp] * local.samples, local.dtype, "mixer.core")
    return one.replace(params=params, local_params=-(-params // local.tp))


def _mamba2(model: Model, local: Shard) -> list[Op]:
    h, inner, keys = model.hidden, model.ssm_heads * model.ssm_head_size, model.ssm_groups * model.state
    heads = local.split(model.ssm_heads, "heads of the state")
    wide = 2 * inner + 2 * keys + model.ssm_heads
    mine = 2 * heads * model.ssm_head_size + 2 * max(model.ssm_groups // local.tp, 1) * model.state + heads
    ops = column(local, h, mine, "mixer.in", params=(h + model.ssm_bias) * wide)
    ops += _short_conv(model, local, Mixer.MAMBA2)
    ops.append(_scanned(model, local, Mixer.MAMBA2, 3 * model.ssm_heads))
    ops += _gated_norm(local, heads * model.ssm_head_size, heads, inner)
    return ops + row(local, inner // local.tp, h, "mixer.out", params=(inner + model.ssm_bias) * h, bias=model.ssm_bias)


def _gated_norm(local: Shard, width: int, heads: int, params: int) -> list[Op]:
    gate = activation(local.tokens * width, "mixer.gate", gated=True, dtype=local.dtype)
    one = norm(local.tokens * heads, width // heads, "mixer.norm", dtype=local.dtype, kind="rms", params=params)
    return [gate, one.replace(unit="")]


def _mamba(model: Model, local: Shard) -> list[Op]:
    h, inner, n, rank = model.hidden, model.ssm_heads * model.ssm_head_size, model.state, model.ssm_rank
    mine = local.split(inner, "channels of the state")
    ops = column(local, h, 2 * mine, "mixer.in", params=2 * (h + model.ssm_bias) * inner)
    ops += _short_conv(model, local, Mixer.MAMBA)
    # Every rank needs all of it: summed, not scattered.
    ops += row(replace(local, sp=False), mine, rank + 2 * n, "mixer.x", params=inner * (rank + 2 * n))
    if model.ssm_norm:
        ops.append(norm(local.tokens, rank + 2 * n, "mixer.x_norm", dtype=local.dtype, kind="rms", params=rank + 2 * n))
    ops += plain(local, local.tokens, rank, mine, "mixer.dt", params=(rank + 1) * inner, local_params=(rank + 1) * mine)
    ops.append(_scanned(model, local, Mixer.MAMBA, (n + 1) * inner))
    ops.append(activation(local.tokens * mine, "mixer.gate", gated=True, dtype=local.dtype))
    return ops + row(local, mine, h, "mixer.out", params=(inner + model.ssm_bias) * h, bias=model.ssm_bias)


def _delta(model: Model, local: Shard) -> list[Op]:
    """Keys and queries have `ssm_groups` heads of the state's size, values `ssm_heads`."""
    h, inner, keys = model.hidden, model.ssm_heads * model.ssm_head_size, model.ssm_groups * model.state
    heads = local.split(model.ssm_heads, "heads of the state")
    local.split(model.ssm_groups, "heads of keys")
    wide = 2 * inner + 2 * keys + 2 * model.ssm_heads
    ops = column(local, h, wide // local.tp, "mixer.in", params=h * wide)
    ops += _short_conv(model, local, Mixer.DELTA)
    ops.append(_scanned(model, local, Mixer.DELTA, 2 * model.ssm_heads))
    ops += _gated_norm(local, inner // local.tp, heads, model.ssm_head_size)
    return ops + row(local, inner // local.tp, h, "mixer.out", params=inner * h)


def _channel_delta(model: Model, local: Shard) -> list[Op]:
    """Queries, keys and values of `ssm_heads` heads; the decays of a key's channels and the gate of the output each
    through a projection as narrow as a head, which every rank has whole."""
    h, size, inner = model.hidden, model.ssm_head_size, model.ssm_heads * model.ssm_head_size
    heads, mine = local.split(model.ssm_heads, "heads of the state"), inner // local.tp
    ops = column(local, h, 3 * mine + heads, "mixer.in", params=h * (3 * inner + model.ssm_heads))
    for name in ("mixer.decay", "mixer.gate_value"):
        ops += plain(local, local.tokens, h, size, f"{name}.in", params=h * size)
        ops += plain(local, local.tokens, size, mine, f"{name}.out", params=size * inner, local_params=size * mine)
    ops += _short_conv(model, local, Mixer.CHANNEL_DELTA)
    ops.append(_scanned(model, local, Mixer.CHANNEL_DELTA, inner + model.ssm_heads))
    ops += _gated_norm(local, mine, heads, size)
    return ops + row(local, mine, h, "mixer.out", params=inner * h)

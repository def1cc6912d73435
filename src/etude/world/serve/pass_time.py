"""The time of a pass from a StepCost, in compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from etude.kernels.compile import kernel
from etude.world.serve.steps import PassContent, StepCost


@kernel(allocates=False, inline="llvm")
def _place(axis, x):
    """The interval of `axis` that holds x, or the outermost; and how far into it x is."""
    if len(axis) == 1:
        return 0, 0.0
    low, high = 0, len(axis) - 2
    while low < high:
        middle = (low + high + 1) // 2
        if axis[middle] < x:
            low = middle
        else:
            high = middle - 1
    return low, (x - axis[low]) / (axis[low + 1] - axis[low])


@kernel(allocates=False, inline="llvm")
def _curve(axis, value, x):
    i, w = _place(axis, x)
    if len(axis) == 1:
        return value[0]
    return max(value[i] + w * (value[i + 1] - value[i]), 0.0)


@kernel(allocates=False, inline="llvm")
def attention_at(cost, chunk, past, decode, keys):
    """Attention time in ns, of all layers."""
    a, u = _place(cost.chunk, chunk)
    b, v = _place(cost.past, past)
    c, w = _place(cost.decode, decode)
    d, x = _place(cost.keys, keys)
    pasts, decodes, all_keys = len(cost.past), len(cost.decode), len(cost.keys)
    total = 0.0
    for i in range(2 if u != 0.0 else 1):
        p = u if i else 1.0 - u
        for j in range(2 if v != 0.0 else 1):
            q = p * (v if j else 1.0 - v)
            for k in range(2 if w != 0.0 else 1):
                r = q * (w if k else 1.0 - w)
                row = (((a + i) * pasts + b + j) * decodes + c + k) * all_keys + d
                for m in range(2 if x != 0.0 else 1):
                    total += r * (x if m else 1.0 - x) * cost.attention_ns[row + m]
    return max(total, 0.0)


@kernel(allocates=False, inline="llvm")
def attention_of(cost, shape):
    """Several prompts count as one with the same number of tokens and pairs; with fewer pairs than one prompt would
    have, as shorter prompts that share a launch and take no longer than the one. Sequences that decode count with the
    mean of their keys."""
    keys = shape.decode_keys / shape.decode if shape.decode else 0.0
    even = _attention(cost, shape, keys)
    if cost.chain_ns[0] == 0.0:
        return even
    # One thread block walks along the keys of a sequence, unless there are too few sequences to fill the device.
    tokens = attention_at(cost, 0.0, 0.0, float(shape.decode), keys)
    prompts = even - tokens
    if shape.prompt_tokens:
        prompts = max(prompts, cost.chain_ns[0] * (shape.pairs / shape.prompt_tokens + shape.prompt_tokens / 2.0))
    if shape.decode:
        tokens = max(tokens, cost.chain_ns[0] * shape.most_keys / max(cost.chain_ns[1] / shape.decode, 1.0))
    return prompts + tokens


@kernel(allocates=False, inline="llvm")
def _attention(cost, shape, keys):
    """Attention with this many keys per decoding sequence."""
    chunk = float(shape.prompt_tokens)
    if chunk == 0.0:
        return attention_at(cost, 0.0, 0.0, float(shape.decode), keys)
    least = chunk * (chunk + 1.0) / 2.0
    if shape.pairs >= least:
        return attention_at(cost, chunk, (shape.pairs - least) / chunk, float(shape.decode), keys)
    each = max(2.0 * shape.pairs / chunk - 1.0, 1.0)
    alone = attention_at(cost, 0.0, 0.0, float(shape.decode), keys)
    apart = (attention_at(cost, each, 0.0, float(shape.decode), keys) - alone) * chunk / each
    return min(alone + apart, attention_at(cost, chunk, 0.0, float(shape.decode), keys))


@kernel(allocates=False, inline="llvm")
def graph_of(cost, shape):
    """Tokens that layers run with, and 1 if there is no graph for them. Of a prompt in parts each rank has one."""
    tokens = np.int64(np.ceil(shape.prompt_tokens / cost.parts[0])) + shape.decode + shape.more_tokens
    known = cost.padded if shape.prompt_tokens else cost.decode_padded
    eager = 1 if tokens >= len(known) else 0
    return tokens if eager else known[tokens], eager


@kernel(allocates=False, inline="llvm")
def head_of(cost, shape):
    """Logits and sampling, which the last stage of layers has."""
    return _curve(cost.sequences, cost.head_ns, float(shape.outputs)) if shape.outputs else 0.0


@kernel(allocates=False, inline="llvm")
def host_of(cost, shape, eager):
    """Time of the host while the device works, and of the engine after it."""
    sequences = shape.decode + shape.outputs
    own = cost.engine_ns[eager] + cost.engine_ns[2 + eager] * sequences
    host = cost.floor_ns[eager * (2 if shape.prompt_tokens and shape.decode else 1)]
    schedule = cost.floor_ns[4] * sequences
    return host + schedule if cost.floor_ns[5] else max(host, schedule), own


@kernel(allocates=False, inline="llvm")
def pass_ns(cost, shape, number):
    """Time of one pass; `number` says which of the recorded ones it is."""
    if len(cost.recorded):
        return cost.recorded[min(number, len(cost.recorded) - 1)]
    run, eager = graph_of(cost, shape)
    device = (_curve(cost.tokens, cost.layers_ns, float(run)) + attention_of(cost, shape)) * shape.depth
    device += head_of(cost, shape)
    if len(cost.beside_ns):
        points = len(cost.tokens)
        beside = _curve(cost.tokens, cost.beside_ns[:points], float(run))
        device = max(device, beside + _curve(cost.tokens, cost.beside_ns[points:], float(run)) * device)
    host, own = host_of(cost, shape, eager)
    return max(np.int64(np.ceil(max(device + cost.floor_ns[3], host) + own - 1e-6)), 1)


@kernel
def passes_ns(cost, shapes):
    """Times of passes whose shapes are rows."""
    found = np.zeros(len(shapes))
    for i in range(len(shapes)):
        s = shapes[i]
        shape = PassContent(
            np.int64(s[0]), s[1], np.int64(s[2]), np.int64(s[3]), np.int64(s[4]), np.int64(s[5]), np.int64(s[6]), s[7]
        )
        found[i] = pass_ns(cost, shape, 0)
    return found


def times_ns(cost: StepCost, shapes: Sequence[PassContent]) -> NDArray[np.float64]:
    """Times of passes of these shapes."""
    return np.asarray(passes_ns(cost, np.array(shapes, np.float64).reshape(len(shapes), len(PassContent._fields))))

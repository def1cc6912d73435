"""The next pass of a replica, in compiled code: its shape, its time, and the blocks that its requests hold."""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel
from etude.world.serve import state as at
from etude.world.serve.machines import machine_ns
from etude.world.serve.prefix import evict
from etude.world.serve.steps import PassContent


@kernel(allocates=False)
def shape_of(its):
    return PassContent(
        its.prompt_tokens,
        its.pairs,
        its.decode,
        its.decode_keys,
        its.outputs,
        its.most_keys,
        its.more_tokens,
        its.depth,
    )


@kernel(allocates=False)
def time_of(mine, put_together, rules, machines):
    """Time of the pass, with the draft's passes, transfers to and from the host, and loads from a store."""
    shape = shape_of(put_together)
    time_ns = machine_ns(machines, mine.kind, shape, mine.passes)
    if rules.speculate and rules.draft != at.NOBODY and shape.decode:
        none, half = at.NONE, shape.pairs * 0.0
        one = PassContent(none, half, shape.decode, shape.decode_keys, shape.decode, shape.most_keys, none, half + 1.0)
        time_ns += rules.speculate * machine_ns(machines, rules.draft, one, none)
    if mine.adapters:
        tokens = shape.prompt_tokens + shape.decode + shape.more_tokens
        more = rules.lora_pass_ns + rules.lora_adapter_ns * mine.adapters + rules.lora_token_ns * tokens
        time_ns += np.int64(np.ceil(more))
    return time_ns + np.int64(np.ceil(mine.moved * rules.swap_ns)) + mine.loading_ns


@kernel(allocates=False)
def blocks_of(tokens, block):
    return -(-tokens // block)


@kernel(allocates=False)
def hold(state, i, r, blocks, rules):
    q = state.request
    more = blocks - q[r].held
    if more > 0:
        mine = state.replica[i]
        if mine.used + more > mine.room:
            return False
        q[r].held = blocks
        mine.used += more
        mine.taken += more
        if rules.prefix:
            evict(state, i, mine.room)
        if mine.used > mine.peak:
            mine.peak = mine.used
    return True

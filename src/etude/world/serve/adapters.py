"""Adapters (LoRA) of requests, in compiled code: which of them a replica holds, and what they add to a pass.

A replica has a fixed number of slots. As in vLLM, a request enters only if its adapter is already in use there or a
slot is free; others behind it may go first. An adapter that is not in a slot is loaded from the host, replacing the
least recently used one, and the pass that it enters waits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel
from etude.world.serve import state as at

USERS, USED_AT = 0, 1
"""Columns of a replica's table: running requests with an adapter, or NOBODY if it is in no slot; when it was last
used."""


def adapters_of(replicas: int, count: int) -> I64:
    """A table with no slot taken."""
    found = np.zeros((replicas, count, 2), np.int64)
    found[:, :, USERS] = at.NOBODY
    return found


@kernel(allocates=False)
def may_enter(q, mine, table, slots, r):
    adapter = q[r].adapter
    return adapter == at.NOBODY or table[adapter, USERS] > 0 or mine.adapters < slots


@kernel(allocates=False)
def take_adapter(q, mine, table, rules, r):
    """A request that enters uses its adapter."""
    adapter = q[r].adapter
    if adapter == at.NOBODY:
        return
    if table[adapter, USERS] == at.NOBODY:
        if mine.resident >= rules.lora_slots:
            oldest, since = at.NOBODY, at.NEVER
            for other in range(len(table)):
                if table[other, USERS] == 0 and table[other, USED_AT] < since:
                    oldest, since = other, table[other, USED_AT]
            table[oldest, USERS] = at.NOBODY
            mine.resident -= 1
        table[adapter, USERS] = 0
        mine.resident += 1
        mine.loaded += 1
        mine.loading_ns += rules.lora_load_ns
    if table[adapter, USERS] == 0:
        mine.adapters += 1
    table[adapter, USERS] += 1


@kernel(allocates=False)
def leave_adapter(q, mine, table, r, now):
    adapter = q[r].adapter
    if adapter == at.NOBODY:
        return
    table[adapter, USERS] -= 1
    if table[adapter, USERS] == 0:
        table[adapter, USED_AT] = now
        mine.adapters -= 1


class LoraCost(NamedTuple):
    """Time in ns that adapters add to a pass, and bytes of one adapter on a rank."""

    pass_ns: float = 0.0
    """Launches, if any token has an adapter."""
    adapter_ns: float = 0.0
    """Reading the weights of each adapter."""
    token_ns: float = 0.0
    load_ns: int = 0
    slot_bytes: float = 0.0


NO_LORA: Final = LoraCost()

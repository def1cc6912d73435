"""Adapters (LoRA) of requests, in compiled code: which of them a replica holds, and what they add to a pass.

A replica has so many slots. A request enters only if its adapter is in use there already or a slot is not in use, as in
vLLM; others behind it may go first. An adapter that is not in a slot is loaded from the host, in the place of the one
that was used longest ago, and the pass that it enters waits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.compile import kernel
from etude.serve import state as at

I64 = NDArray[np.int64]
USERS, USED_AT = 0, 1
"""Columns of the table of a replica: running requests with an adapter, or NOBODY if no slot has it; when it was left
last."""


def adapters_of(replicas: int, count: int) -> I64:
    """No slot is taken."""
    found = np.zeros((replicas, count, 2), np.int64)
    found[:, :, USERS] = at.NOBODY
    return found


@kernel(allocates=False)
def may_enter(q, mine, table, slots, r):
    adapter = q[r, at.ADAPTER]
    return adapter == at.NOBODY or table[adapter, USERS] > 0 or mine[at.ADAPTERS] < slots


@kernel(allocates=False)
def take_adapter(q, mine, table, rules, r):
    """A request that enters uses its adapter."""
    adapter = q[r, at.ADAPTER]
    if adapter == at.NOBODY:
        return
    if table[adapter, USERS] == at.NOBODY:
        if mine[at.RESIDENT] >= rules.lora_slots:
            oldest, since = at.NOBODY, at.NEVER
            for other in range(len(table)):
                if table[other, USERS] == 0 and table[other, USED_AT] < since:
                    oldest, since = other, table[other, USED_AT]
            table[oldest, USERS] = at.NOBODY
            mine[at.RESIDENT] -= 1
        table[adapter, USERS] = 0
        mine[at.RESIDENT] += 1
        mine[at.LOADED] += 1
        mine[at.LOADING] += rules.lora_load_ns
    if table[adapter, USERS] == 0:
        mine[at.ADAPTERS] += 1
    table[adapter, USERS] += 1


@kernel(allocates=False)
def leave_adapter(q, mine, table, r, now):
    adapter = q[r, at.ADAPTER]
    if adapter == at.NOBODY:
        return
    table[adapter, USERS] -= 1
    if table[adapter, USERS] == 0:
        table[adapter, USED_AT] = now
        mine[at.ADAPTERS] -= 1


class LoraCost(NamedTuple):
    """What adapters add to a pass, and what one takes: ns, and bytes of a rank."""

    pass_ns: float = 0.0
    """Of the launches, if any token has an adapter."""
    adapter_ns: float = 0.0
    """To read the weights of each of them."""
    token_ns: float = 0.0
    load_ns: int = 0
    slot_bytes: float = 0.0


NO_LORA: Final = LoraCost()

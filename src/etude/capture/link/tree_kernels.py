"""Compiled walks over call trees, in which callers come before callees."""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel


@kernel(allocates=False)
def inherit(order, parent, value):
    """Rows without a value (-1) take that of their parent, which comes before them in `order`."""
    for i in order:
        if value[i] < 0 and parent[i] >= 0:
            value[i] = value[parent[i]]


@kernel(allocates=False)
def lend(order, parent, value, lent, may):
    """Rows without a value (-1) that may have one take `lent` from one of their children."""
    for at in range(len(order) - 1, -1, -1):
        i = order[at]
        if value[i] == lent and parent[i] >= 0 and value[parent[i]] < 0 and may[parent[i]]:
            value[parent[i]] = lent


@kernel
def claims(order, parent, known, made_of_others, claim):
    """claim[i]: the operator to which the work of i belongs; -1: none is known. Outermost first, but an operator made
    of others claims only if none of those is known."""
    below = np.zeros(len(parent), np.bool_)
    for at in range(len(order) - 1, -1, -1):
        i = order[at]
        if parent[i] >= 0 and (below[i] or (known[i] and not made_of_others[i])):
            below[parent[i]] = True
    for i in order:
        if parent[i] >= 0 and claim[parent[i]] >= 0:
            claim[i] = claim[parent[i]]
        elif known[i] and not (made_of_others[i] and below[i]):
            claim[i] = i
        else:
            claim[i] = -1

"""Compiled: which of some intervals is the innermost around another."""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel


@kernel
def innermost(thread, start, end, is_outer, order, slack, found):
    """found[i]: the latest interval in `order` that is an outer one, of the same thread, and holds i; -1: none.

    `order` is by thread, start and, longest first, end. An outer interval that reaches out of the one that it begins
    in, by more than `slack`, holds nothing.
    """
    stack = np.empty(len(order), np.int64)
    depth = 0
    last = np.int64(-1)
    for i in order:
        if last >= 0 and thread[i] != thread[last]:
            depth = 0
        last = i
        while depth and end[stack[depth - 1]] <= start[i]:
            depth -= 1
        level = depth
        while level and end[i] > end[stack[level - 1]] + slack:
            level -= 1
        found[i] = stack[level - 1] if level else -1
        if is_outer[i] and level == depth:
            stack[depth] = i
            depth += 1


@kernel
def inherit(order, parent, value):
    """Rows without a value (-1) take that of their parent, which comes before them in `order`."""
    for i in order:
        if value[i] < 0 and parent[i] >= 0:
            value[i] = value[parent[i]]


@kernel
def lend(order, parent, value, lent, may):
    """Rows without a value (-1) that may have one take `lent` from a row that they are around."""
    for at in range(len(order) - 1, -1, -1):
        i = order[at]
        if value[i] == lent and parent[i] >= 0 and value[parent[i]] < 0 and may[parent[i]]:
            value[parent[i]] = lent


@kernel
def claims(order, parent, known, made_of_others, claim):
    """claim[i]: the operator whose work what i does is part of; -1: none is known. Outermost first, but an operator
    that is made of others claims only where none of those is known."""
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

"""Kernels of the analyses: arrays in, arrays out. Every index is checked before it comes here."""

import numpy as np

from etude.kernels.compile import kernel


@kernel
def add_to_callers(parent, rows, value, total):
    """Adds the value of each row to all that called it, directly or not."""
    for i in range(len(rows)):
        node = parent[rows[i]]
        steps = 0
        while node >= 0 and steps < len(parent):  # a circle of callers ends, too
            total[node] += value[i]
            node = parent[node]
            steps += 1


@kernel
def outermost(parent, label):
    """Rows that no caller of the same label is above."""
    found = np.ones(len(parent), np.bool_)
    for i in range(len(parent)):
        node = parent[i]
        steps = 0
        while node >= 0 and steps < len(parent):
            if label[node] == label[i]:
                found[i] = False
                break
            node = parent[node]
            steps += 1
    return found

"""Kernels of the analyses: arrays in, arrays out. Callers check every index."""

import numpy as np

from etude.kernels.compile import kernel


@kernel(allocates=False)
def add_to_callers(parent, rows, value, total):
    """Adds the value of each row to all that called it, directly or not."""
    for i in range(len(rows)):
        node = parent[rows[i]]
        steps = 0
        while node >= 0 and steps < len(parent):  # also ends for a cycle of callers
            total[node] += value[i]
            node = parent[node]
            steps += 1


@kernel
def outermost(parent, label):
    """Rows without a caller of the same label."""
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


@kernel
def taken_in_turn(at, which, length, time_before, sequences):
    """Counts the occurrences of each sequence from the first on, skipping those that overlap one already counted.

    Occurrence i starts at at[i], in order, and is of sequence which[i]; all have one length. Returns (count, time) of
    each sequence, with the time of what comes before each position."""
    count, total = np.zeros(sequences, np.int64), np.zeros(sequences, np.int64)
    free = np.zeros(sequences, np.int64)
    for i in range(len(at)):
        if at[i] >= free[which[i]]:
            count[which[i]] += 1
            total[which[i]] += time_before[at[i] + length] - time_before[at[i]]
            free[which[i]] = at[i] + length
    return count, total

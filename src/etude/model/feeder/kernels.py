"""Kernels of the feeder: successors, the set of ready nodes, issue and release. Each sees arrays only.

The ready set is a tree of 64-bit words: bit i of the lowest level is node i, bit w of a level says that word w of the
level below is not zero, the highest level is one word. The levels are stored one after the other in `bits`; level k
begins at `base[k]`. Finding the smallest ready node walks down, an insertion walks up, and a node costs a little more
than 1/8 B.
"""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel

READY, ISSUED, COMPLETED = 0, -1, -2
"""Values of `remaining` for a node that waits for nothing; above 0 it is the number of completions it waits for."""

_ONE = np.uint64(1)
_LOW = np.uint64(63)


@kernel(allocates=False)
def bad_edge(start, dep, missing):
    """-1 if the CSR can be walked and all entries are rows or name missing ids, else the node where it cannot."""
    n = len(start) - 1
    for i in range(n):
        if start[i] < 0 or start[i] > start[i + 1] or start[i + 1] > len(dep):
            return i
        for k in range(start[i], start[i + 1]):
            if dep[k] >= n or ~dep[k] >= missing:
                return i
    return -1


@kernel(allocates=False)
def count_edges(start, dep, indegree, succ_start):
    """Adds to the in-degrees and, one place up, to the numbers of successors. Returns (edges to a missing node, the
    first node that has one, edges to a later row)."""
    lost, first, forward = 0, -1, 0
    for i in range(len(start) - 1):
        for k in range(start[i], start[i + 1]):
            d = dep[k]
            if d < 0:
                lost += 1
                if first < 0:
                    first = i
                continue
            forward += d >= i
            indegree[i] += 1
            succ_start[d + 1] += 1
    return lost, first, forward


# -- the ready set -----------------------------------------------------------------------------------------------------


@kernel(inline=True)
def _lowest(word):
    """The number of the lowest bit that is set."""
    low = word & (~word + np.uint64(1))
    count = 0
    if low & np.uint64(0xFFFFFFFF00000000):
        count += 32
    if low & np.uint64(0xFFFF0000FFFF0000):
        count += 16
    if low & np.uint64(0xFF00FF00FF00FF00):
        count += 8
    if low & np.uint64(0xF0F0F0F0F0F0F0F0):
        count += 4
    if low & np.uint64(0xCCCCCCCCCCCCCCCC):
        count += 2
    if low & np.uint64(0xAAAAAAAAAAAAAAAA):
        count += 1
    return count


@kernel(inline=True)
def _insert(bits, base, node):
    for level in range(len(base)):
        at = base[level] + (node >> 6)
        old = bits[at]
        bits[at] = old | _ONE << (np.uint64(node) & _LOW)
        if old != np.uint64(0):
            return
        node >>= 6


@kernel(inline=True)
def _pop(bits, base):
    """Takes the smallest node out; -1 if there is none."""
    node = np.int64(0)
    for level in range(len(base) - 1, -1, -1):
        word = bits[base[level] + node]
        if word == np.uint64(0):
            return np.int64(-1)
        node = node << 6 | _lowest(word)
    part = node
    for level in range(len(base)):
        at = base[level] + (part >> 6)
        bits[at] &= bits[at] - _ONE
        if bits[at] != np.uint64(0):
            break
        part >>= 6
    return node


@kernel
def fill_ready(remaining, bits, base):
    """Puts all nodes that wait for nothing into an empty set; returns how many."""
    count = 0
    for i in range(len(remaining)):
        if remaining[i] == 0:
            _insert(bits, base, i)
            count += 1
    return count


@kernel
def peek(bits, words, out):
    """The first len(out) nodes of the set, ascending; `words` is the size of the lowest level."""
    count = 0
    for w in range(words):
        word = bits[w]
        while word != np.uint64(0):
            if count == len(out):
                return
            out[count] = w << 6 | _lowest(word)
            count += 1
            word &= word - _ONE


# -- issue and release -------------------------------------------------------------------------------------------------


@kernel
def issue(remaining, bits, base, out):
    """Takes len(out) nodes out of the set, which holds at least as many, and marks them as issued."""
    for k in range(len(out)):
        node = _pop(bits, base)
        remaining[node] = ISSUED
        out[k] = node


@kernel
def complete(nodes, remaining, succ_start, succ, bits, base):
    """Completes nodes and releases what waited only for them; (released, -1), or (0, position of the first node that is
    not issued) with nothing changed."""
    for k in range(len(nodes)):
        if nodes[k] < 0 or nodes[k] >= len(remaining) or remaining[nodes[k]] != ISSUED:
            for j in range(k):
                remaining[nodes[j]] = ISSUED
            return 0, k
        remaining[nodes[k]] = COMPLETED
    released = 0
    for k in range(len(nodes)):
        for e in range(succ_start[nodes[k]], succ_start[nodes[k] + 1]):
            other = succ[e]
            remaining[other] -= 1
            if remaining[other] == 0:
                _insert(bits, base, other)
                released += 1
    return released, -1


@kernel
def drain(remaining, succ_start, succ, bits, base, out):
    """Issues the smallest ready node and completes it at once, until len(out) are done or none is ready; returns how
    many were. The set has grown by `released - drained`."""
    done = released = 0
    while done < len(out):
        node = _pop(bits, base)
        if node < 0:
            break
        out[done] = node
        done += 1
        remaining[node] = COMPLETED
        for e in range(succ_start[node], succ_start[node + 1]):
            other = succ[e]
            remaining[other] -= 1
            if remaining[other] == 0:
                _insert(bits, base, other)
                released += 1
    return done, released


# -- circles -----------------------------------------------------------------------------------------------------------


@kernel
def one_cycle(remaining, succ_start, succ, before):
    """Given the rest of a topological order: fills `before` with one reason to wait for each stuck node; returns a node
    on a cycle."""
    last = -1
    for i in range(len(remaining)):
        if remaining[i] > 0:
            last = i
            for e in range(succ_start[i], succ_start[i + 1]):
                before[succ[e]] = i
    for _ in range(len(remaining)):  # back along the reasons until surely on the cycle
        last = before[last]
    return last


@kernel(allocates=False)
def reasons(node, remaining, succ_start, succ, out):
    """Incomplete nodes that `node` waits for, each once, ascending; returns how many there are, writes those that
    fit."""
    count = 0
    for i in range(len(remaining)):
        if remaining[i] == COMPLETED:
            continue
        for e in range(succ_start[i], succ_start[i + 1]):
            if succ[e] == node:
                if count < len(out):
                    out[count] = i
                count += 1
                break
    return count

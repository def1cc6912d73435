"""Compiled sweeps over the events of threads: who calls whom, and what each thread does when."""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel


@kernel
def nest(first, start, end, slack, parent, apart):
    """The innermost event that holds each event, -1 at the top; `apart` where an event ends on its own behind the one
    that it began in, and so is nobody's child or caller. Events lie by thread, start and, longest first, end; an
    overlap up to `slack` is rounding, and the event is cut to fit."""
    stack = np.empty(len(start) + 1, np.int64)
    for thread in range(len(first) - 1):
        depth = 0
        for i in range(first[thread], first[thread + 1]):
            while depth and end[stack[depth - 1]] <= start[i]:
                depth -= 1
            parent[i] = stack[depth - 1] if depth else -1
            if depth and end[i] > end[stack[depth - 1]]:
                if end[i] - end[stack[depth - 1]] > slack:
                    apart[i] = True
                    continue
                end[i] = end[stack[depth - 1]]
            stack[depth] = i
            depth += 1


@kernel
def pieces(first, start, end, apart, begin, pause_first, pause_from, pause_to, owner, out_start, out_end, whole):
    """What each thread does, piece after piece: returns how many.

    A piece is an event without calls (`whole`), or time of an event between its calls, or (owner -1) between events.
    No piece lies in a pause of its thread, and each pause, also one of no length, ends a piece. Pauses lie by thread
    and start. A thread's pieces begin at begin[thread], with one of no length where its first event does.
    """
    stack = np.empty(len(start) + 1, np.int64)
    calls = np.zeros(len(start) + 1, np.bool_)
    n = 0
    for thread in range(len(first) - 1):
        depth = 0
        at = begin[thread]
        pause = pause_first[thread]
        last_pause = pause_first[thread + 1]
        if first[thread] < first[thread + 1] and start[first[thread]] == at:
            owner[n], out_start[n], out_end[n], whole[n] = -1, at, at, False
            n += 1
        for i in range(first[thread], first[thread + 1] + 1):
            stop = i == first[thread + 1]
            if not stop and apart[i]:
                continue
            # what ends before the next event starts
            while depth and (stop or end[stack[depth - 1]] <= start[i]):
                depth -= 1
                top = stack[depth]
                n, pause = _cut(top, at, end[top], not calls[top], pause, last_pause, pause_from, pause_to, n,
                                owner, out_start, out_end, whole)  # fmt: skip
                at = max(at, end[top])
            if stop:
                break
            n, pause = _cut(stack[depth - 1] if depth else -1, at, start[i], False, pause, last_pause, pause_from,
                            pause_to, n, owner, out_start, out_end, whole)  # fmt: skip
            at = max(at, start[i])
            if depth:
                calls[stack[depth - 1]] = True
            calls[i] = False
            stack[depth] = i
            depth += 1
    return n


@kernel(allocates=False)  # counting references to its arrays would take longer than the rest
def _cut(event, a, b, leaf, pause, last_pause, pause_from, pause_to, n, owner, out_start, out_end, whole):
    """The pieces of one stretch; of an event without calls there is always at least one."""
    p = a
    cut = False
    while pause < last_pause and pause_from[pause] < b:
        if pause_from[pause] > p:
            owner[n], out_start[n], out_end[n], whole[n] = event, p, pause_from[pause], False
            n += 1
        cut = cut or pause_from[pause] > a or pause_to[pause] > a
        p = max(p, min(pause_to[pause], b))
        if pause_to[pause] > b:
            break  # goes on in the next stretch
        pause += 1
    if p < b or leaf:
        owner[n], out_start[n], out_end[n], whole[n] = event, p, b, leaf and not cut
        n += 1
    return n, pause


@kernel
def holder(parent, wanted):
    """Of each event itself or the nearest event around it that is wanted; -1: none. Parents come before children."""
    found = np.empty(len(parent), np.int64)
    for i in range(len(parent)):
        found[i] = i if wanted[i] else (found[parent[i]] if parent[i] >= 0 else -1)
    return found


@kernel
def merge_edges(start, source, why, n):
    """CSR edges by node with equal sources merged in place (the first reason stays); sources ascend in each node.
    Returns the new index."""
    out = np.zeros(n + 1, np.int64)
    m = 0
    for i in range(n):
        last = -1
        for k in range(start[i], start[i + 1]):
            if source[k] != last:
                last = source[k]
                source[m], why[m] = source[k], why[k]
                m += 1
        out[i + 1] = m
    return out

"""Compiled sweeps over the events of threads: what each thread does when."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from etude.kernels.arrays import I64, Bool
from etude.kernels.compile import kernel


class ThreadEvents(NamedTuple):
    """Events first[t]:first[t+1] are of thread t, by start and, longest first, end."""

    first: I64
    start: I64
    end: I64
    apart: Bool


class ThreadPauses(NamedTuple):
    """Pauses first[t]:first[t+1] are of thread t, by start."""

    first: I64
    start: I64
    end: I64


class Pieces(NamedTuple):
    """What a thread does, piece after piece."""

    owner: I64  # the event whose time it is; -1: none
    start: I64
    end: I64
    whole: Bool  # all of an event without calls
    used: I64  # one number: pieces so far


@kernel
def cut_pieces(events, begin, pauses, pieces):
    """Fills `pieces`, thread after thread.

    A piece is an event without calls (`whole`), or time of an event between its calls, or (owner -1) between events.
    No piece lies in a pause of its thread, and each pause, also one of no length, ends a piece. A thread's pieces begin
    at begin[thread], with one of no length where its first event does.
    """
    first, start, end = events.first, events.start, events.end
    stack = np.empty(len(start) + 1, np.int64)
    calls = np.zeros(len(start) + 1, np.bool_)
    for thread in range(len(first) - 1):
        depth, at = 0, begin[thread]
        pause, last_pause = pauses.first[thread], pauses.first[thread + 1]
        if first[thread] < first[thread + 1] and start[first[thread]] == at:
            _put(pieces, -1, at, at, False)
        for i in range(first[thread], first[thread + 1] + 1):
            stop = i == first[thread + 1]
            if not stop and events.apart[i]:
                continue
            # what ends before the next event starts
            while depth and (stop or end[stack[depth - 1]] <= start[i]):
                depth -= 1
                top = stack[depth]
                pause = _cut(top, at, end[top], not calls[top], pauses, pause, last_pause, pieces)
                at = max(at, end[top])
            if stop:
                break
            pause = _cut(stack[depth - 1] if depth else -1, at, start[i], False, pauses, pause, last_pause, pieces)
            at = max(at, start[i])
            if depth:
                calls[stack[depth - 1]] = True
            calls[i] = False
            stack[depth] = i
            depth += 1


@kernel(allocates=False)
def _put(pieces, owner, start, end, whole):
    n = pieces.used[0]
    pieces.owner[n], pieces.start[n], pieces.end[n], pieces.whole[n] = owner, start, end, whole
    pieces.used[0] = n + 1


@kernel(allocates=False)
def _cut(event, a, b, leaf, pauses, pause, last_pause, pieces):
    """The pieces of one stretch; of an event without calls there is always at least one. Returns the next pause."""
    p = a
    cut = False
    while pause < last_pause and pauses.start[pause] < b:
        if pauses.start[pause] > p:
            _put(pieces, event, p, pauses.start[pause], False)
        cut = cut or pauses.start[pause] > a or pauses.end[pause] > a
        p = max(p, min(pauses.end[pause], b))
        if pauses.end[pause] > b:
            break  # goes on in the next stretch
        pause += 1
    if p < b or leaf:
        _put(pieces, event, p, b, leaf and not cut)
    return pause


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

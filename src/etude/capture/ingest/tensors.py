"""Data dependencies: which activity wrote the tensors that another reads.

A tensor is identified by its id, storage, offset, elements and their width together: PyTorch reuses the ids of freed
tensors. A view has the data of its storage.
"""

from __future__ import annotations

import numpy as np

from etude.capture.ingest.events import DeviceEvents, HostEvents
from etude.capture.link import tensor_kernels as k
from etude.capture.link.host import HostTrace
from etude.kernels.arrays import I64

_MIX = np.uint64(0x9E3779B97F4A7C15)


def tensor_flows(host: HostTrace, host_row: I64, events: HostEvents, device: DeviceEvents) -> tuple[I64, I64]:
    """(writer, reader): activities; if nothing ran on a device, host events without calls."""
    known = np.flatnonzero(host_row >= 0)
    rows = host_row[known]
    has_child = np.zeros(len(events) + 1, np.bool_)
    has_child[events.parent[~events.is_call]] = True
    has_child[len(events)] = False
    is_leaf = ~has_child[known]
    first, last = _activities(len(events), device)
    needed = is_leaf | (first[known] >= 0)
    sides = [_tensors(host, f"{side}_values", np.where(needed, rows, -1)) for side in ("in", "out")]
    codes, counts = _codes(sides)
    order = np.argsort(events.start_ns[known], kind="stable")
    pairs, made = np.empty((2, max(len(codes[0]), 1)), np.int64), np.full(counts, -1, np.int64)
    inputs, outputs = (
        k.TensorUses(np.searchsorted(table[0], np.arange(len(known) + 1)), code, table[2])
        for table, code in zip(sides, codes, strict=True)
    )
    activities = k.Activities(first[known], last[known], is_leaf)
    source, target = pairs[:, : k.flows(order, inputs, outputs, activities, len(device) == 0, made, pairs)]
    return (source, target) if len(device) else (known[source], known[target])


def _activities(events: int, device: DeviceEvents) -> tuple[I64, I64]:
    """First and last activity of each event by start; -1: none. Operators of several streams keep the outer two."""
    first, last = np.full(events, -1, np.int64), np.full(events, -1, np.int64)
    rows = np.flatnonzero(device.operator >= 0)
    rows = rows[np.argsort(device.start_ns[rows], kind="stable")]
    last[device.operator[rows]] = rows
    first[device.operator[rows[::-1]]] = rows[::-1]
    return first, last


def _tensors(host: HostTrace, column: str, rows: I64) -> I64:
    """(position in `rows`, id, storage, offset, elements, element bytes) of all tensors of a column, by position."""
    places = np.where(rows >= 0, host.places[column][np.maximum(rows, 0)], -1)
    out = np.empty((6, 4 * len(rows) + 1024), np.int64)
    five = np.empty(5, np.int64)
    row = used = 0
    while row < len(rows):
        row, used = k.read_tensors(host.json.heap, host.json.word, places, row, out, used, five)
        if row < len(rows):
            out = np.concatenate([out, np.empty_like(out)], axis=1)
    out = out[:, :used]
    return out[:, out[4] > 0]  # an empty or undefined tensor carries no data


def _codes(sides: list[I64]) -> tuple[list[I64], int]:
    """One number for each distinct tensor."""
    both = np.concatenate(sides, axis=1)[1:].astype(np.uint64)
    key = np.zeros(both.shape[1], np.uint64)
    for part in both:
        key = (key ^ part) * _MIX
        key ^= key >> np.uint64(29)
    unique, code = np.unique(key, return_inverse=True)
    code = code.reshape(-1).astype(np.int64)
    cut = sides[0].shape[1]
    return [code[:cut], code[cut:]], len(unique)

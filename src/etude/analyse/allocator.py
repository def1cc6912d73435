"""What a snapshot of an allocator says: how much is in use and how fragmented the rest is, its peak, and who owned what
was alive then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from etude.analyse.grouping import table
from etude.kernels.arrays import I64, Bool

__all__ = ["AllocatorHistory", "allocator_levels", "allocator_owners", "allocator_peaks"]


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorHistory:
    """The tables of a snapshot (`capture/ingest/snapshots.py`)."""

    segments: pa.Table
    blocks: pa.Table
    events: pa.Table

    def devices(self) -> list[int]:
        found = {*self.segments["device"].to_pylist(), *self.events["device"].to_pylist()}
        return sorted(found)

    def of(self, device: int) -> tuple[pa.Table, pa.Table, pa.Table]:
        parts = (self.segments, self.blocks, self.events)
        segments, blocks, events = (part.filter(pa.array(part["device"].to_numpy() == device)) for part in parts)
        return segments, blocks, events


def allocator_peaks(history: AllocatorHistory) -> pa.Table:
    """One row per device: segments, reserved_bytes, allocated_bytes at the end, what rounding up to blocks adds
    (rounded_bytes), free_bytes of which the largest piece is largest_free_bytes, fragmentation (1 less the largest
    piece over all that is free), events, most_allocated_bytes and when, since the first event that is kept."""
    rows: list[dict[str, Any]] = []
    for device in history.devices():
        segments, blocks, events = history.of(device)
        size, live = blocks["size_bytes"].to_numpy(), blocks["live"].to_numpy(zero_copy_only=False)
        held = int(size[live].sum())
        free = int(size[~live].sum())
        largest = int(size[~live].max(initial=0))
        level = _level(events, held)
        top = int(level.argmax()) if len(level) else -1
        rows.append(
            {
                "device": device,
                "segments": len(segments),
                "reserved_bytes": int(segments["size_bytes"].to_numpy().sum()),
                "allocated_bytes": held,
                "rounded_bytes": held - int(blocks["requested_bytes"].to_numpy()[live].sum()),
                "free_bytes": free,
                "largest_free_bytes": largest,
                "fragmentation": 1 - largest / free if free else 0.0,
                "events": len(events),
                "most_allocated_bytes": int(level[top]) if len(level) else held,
                "at_ns": events["time_ns"][top].as_py() if len(level) else None,
            }
        )
    names = ("device", "segments", "reserved_bytes", "allocated_bytes", "rounded_bytes", "free_bytes")
    kinds = dict.fromkeys((*names, "largest_free_bytes"), pa.int64()) | {"fragmentation": pa.float64()}
    return table(rows, kinds | dict.fromkeys(("events", "most_allocated_bytes", "at_ns"), pa.int64()))


def allocator_levels(history: AllocatorHistory) -> pa.Table:
    """Allocated bytes after each event that is kept: device, time_ns, size_bytes (negative: released),
    allocated_bytes."""
    parts = []
    for device in history.devices():
        _, blocks, events = history.of(device)
        held = int(blocks["size_bytes"].to_numpy()[blocks["live"].to_numpy(zero_copy_only=False)].sum())
        columns = {
            "device": events["device"],
            "time_ns": events["time_ns"],
            "size_bytes": _change(events),
            "allocated_bytes": _level(events, held),
        }
        parts.append(pa.table(columns))
    empty = {name: pa.array([], pa.int64()) for name in ("device", "time_ns", "size_bytes", "allocated_bytes")}
    return pa.concat_tables(parts) if parts else pa.table(empty)


def allocator_owners(history: AllocatorHistory) -> pa.Table:
    """What was alive at the peak of each device and what is at the end, by owner and line: device, owner, where, count,
    size_bytes at the peak, last_bytes at the end; the most first. What was allocated before the first event that is
    kept and released since has no owner."""
    rows: list[dict[str, Any]] = []
    for device in history.devices():
        _, blocks, events = history.of(device)
        live = blocks.filter(blocks["live"])
        held = int(live["size_bytes"].to_numpy().sum())
        at_end: dict[tuple[str, str], list[int]] = {}
        for owner, where, size in _rows(live, np.ones(len(live), bool)):
            entry = at_end.setdefault((owner, where), [0, 0])
            entry[0], entry[1] = entry[0] + 1, entry[1] + size
        at_peak = at_end
        level = _level(events, held)
        if len(level):
            at_peak = _alive(events, live, int(level.argmax()))
        for owner, where in {**at_peak, **at_end}:
            count, size = at_peak.get((owner, where), [0, 0])
            last = at_end.get((owner, where), [0, 0])[1]
            key = {"device": device, "owner": owner, "where": where}
            rows.append(key | {"count": count, "size_bytes": size, "last_bytes": last})
    rows.sort(key=lambda row: (row["device"], -row["size_bytes"], -row["last_bytes"], row["owner"], row["where"]))
    kinds = {"device": pa.int64(), "owner": pa.string(), "where": pa.string()}
    return table(rows, kinds | dict.fromkeys(("count", "size_bytes", "last_bytes"), pa.int64()))


def _change(events: pa.Table) -> I64:
    added = events["action"].to_numpy(zero_copy_only=False) == "alloc"
    size: I64 = events["size_bytes"].to_numpy()
    return np.where(added, size, -size)


def _level(events: pa.Table, held: int) -> I64:
    """Allocated bytes after each event, counted back from the end."""
    change = _change(events)
    after: I64 = held - (change.sum() - np.cumsum(change))
    return after


def _alive(events: pa.Table, live: pa.Table, top: int) -> dict[tuple[str, str], list[int]]:
    """(count, bytes) of what is alive after event `top`, by owner and line."""
    added = events["action"].to_numpy(zero_copy_only=False) == "alloc"
    address = events["address"].to_numpy()
    number = np.arange(len(events))
    order = np.lexsort((number, address))
    same = np.append(address[order][1:] == address[order][:-1], False)
    follows, comes_after = np.full(len(events), -1), np.full(len(events), False)
    follows[order[:-1]] = np.where(same[:-1], order[1:], -1)
    comes_after[order[1:]] = same[:-1]
    stays = (follows < 0) | (follows > top)
    from_here = added & (number <= top) & stays
    before = ~added & ~comes_after & (number > top)  # released later, allocated before the first event
    never = ~np.isin(live["address"].to_numpy(), address)  # no event has it: there all the time
    found: dict[tuple[str, str], list[int]] = {}
    for part, chosen in ((events, from_here), (events, before), (live, never)):
        for owner, where, size in _rows(part, chosen):
            entry = found.setdefault((owner, where), [0, 0])
            entry[0], entry[1] = entry[0] + 1, entry[1] + size
    return found


def _rows(part: pa.Table, chosen: Bool) -> list[tuple[str, str, int]]:
    some = part.filter(pa.array(chosen))
    return list(zip(*(some[name].to_pylist() for name in ("owner", "where", "size_bytes")), strict=True))

"""Builds the index of a timeline: the slices of each set of times as rows of columns on disk, one set in memory at a
time, however large the run is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64, U8
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN
from etude.model.trace import Trace
from etude.tell.studio.kernels import SORTS, RowSlices, add_to_bins
from etude.tell.view.slices import SliceProgram, tracks_of

BINS: Final = 1024
"""Bins of each row over the whole run, for windows with too many slices to look at each."""
COLUMNS: Final = {"start": np.int64, "end": np.int64, "node": np.int32}
ROW_COLUMNS: Final = ("part", "lane_kind", "lane_id", "track", "depth", "first", "count")


Slices: TypeAlias = tuple[I64, I64, I32]


class NodeProgram(Protocol):
    """Sort and name of each node, by number."""

    sort: U8
    name: I32


@dataclass
class Builder:
    """An index while it is written."""

    folder: Path
    width_ns: int
    names: dict[str, int] = field(default_factory=dict)
    programs: dict[int, NodeProgram] = field(default_factory=dict)
    rows: list[NDArray[np.int64]] = field(default_factory=list)
    bins: list[NDArray[np.uint16]] = field(default_factory=list)
    part_trace: list[int] = field(default_factory=list)
    used: int = 0
    untimed: int = 0

    def add(self, run: Run, part: RunPart, bins_first_ns: int, files: dict[str, BinaryIO]) -> None:
        """The slices of one set of times."""
        trace = int(run.job.trace_of[part.at[0]])
        program = self._program(trace, run.job.traces[trace])
        found, missing = program.rows(part.start_ns, part.end_ns, run.timing.origin)
        self.untimed += missing * len(part.at)
        lanes, table = program.lanes_of(found)
        times = part.start_ns[found], part.end_ns[found]
        self.add_slices(trace, lanes.astype(np.int32), table, (*times, found.astype(np.int32)), bins_first_ns, files)

    def add_slices(
        self, trace: int, lane: I32, table: list[Any], slices: Slices, bins_first_ns: int, files: dict[str, BinaryIO]
    ) -> None:
        """Slices (start, end, node) of one set of times, whose nodes `programs[trace]` describes; `table` has the kind
        and the number of each lane."""
        start, end, node = slices
        program = self.programs[trace]
        order = np.lexsort((-end, start, lane))
        lane, start, end, node = lane[order], start[order], end[order], node[order]
        track, depth = tracks_of(lane, start, end)
        key = (lane.astype(np.int64) << 40) | (track.astype(np.int64) << 20) | depth
        order = np.argsort(key, kind="stable")
        key, start, end, node = key[order], start[order], end[order], node[order]
        for name, column in (("start", start), ("end", end), ("node", node)):
            np.ascontiguousarray(column, COLUMNS[name]).tofile(files[name])
        self._add_rows(key, table, RowSlices(start, end, node, program.sort, program.name), bins_first_ns)
        self.part_trace.append(trace)
        self.used += len(start)

    def _program(self, number: int, trace: Trace) -> SliceProgram:
        if number not in self.programs:
            self.programs[number] = SliceProgram(trace, self.names)
        found = self.programs[number]
        assert isinstance(found, SliceProgram)
        return found

    def _add_rows(self, key: I64, table: list[Any], all_of: RowSlices, bins_first_ns: int) -> None:
        first = np.flatnonzero(np.append(True, np.diff(key) != 0)[: len(key)])
        bounds, part = np.append(first, len(key)), len(self.part_trace)
        for value, low, high in zip(key[first].tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            kind, number = table[value >> 40]
            place = [part, int(kind), number, value >> 20 & 0xFFFFF, value & 0xFFFFF, self.used + low, high - low]
            self.rows.append(np.array(place, np.int64))
            one = all_of._replace(start=all_of.start[low:high], end=all_of.end[low:high], node=all_of.node[low:high])
            total = np.zeros((BINS, SORTS), np.int64)
            add_to_bins(one, bins_first_ns, self.width_ns, total)
            self.bins.append((total * 65535 // self.width_ns).clip(0, 65535).astype(np.uint16))

    def write(self, head: dict[str, Any]) -> None:
        """The small files, once all parts are added."""
        rows = np.stack(self.rows) if self.rows else np.zeros((0, len(ROW_COLUMNS)), np.int64)
        np.save(self.folder / "rows.npy", rows)
        np.save(self.folder / "bins.npy", np.stack(self.bins) if self.bins else np.zeros((0, BINS, SORTS), np.uint16))
        numbers = sorted(self.programs)
        sizes = [len(self.programs[n].name) for n in numbers]
        none = np.zeros(0, np.int32)
        np.save(self.folder / "name_of.npy", np.concatenate([none, *(self.programs[n].name for n in numbers)]))
        np.save(
            self.folder / "sort_of.npy",
            np.concatenate([none.astype(np.uint8), *(self.programs[n].sort for n in numbers)]),
        )
        bounds = dict(zip(numbers, np.cumsum([0, *sizes])[:-1].tolist(), strict=True))
        head |= {
            "names": list(self.names),
            "part_trace": self.part_trace,
            "trace_first": {str(n): bounds[n] for n in numbers},
            "trace_nodes": {str(n): s for n, s in zip(numbers, sizes, strict=True)},
            "slices": self.used,
            "untimed": self.untimed,
        }
        (self.folder / "head.json").write_bytes(msgspec.json.encode(head))


def build(run: Run, folder: Path, shift_ns: I64, about: dict[str, Any], advance: Callable[..., None]) -> None:
    """Writes the index of a run into a folder. `shift_ns` brings each rank's times onto one clock."""
    firsts, lasts = zip(
        *(_extent(*block) for block in zip(run.timing.start_ns, run.timing.end_ns, strict=True)), strict=True
    )
    longest = max(last - first for first, last in zip(firsts, lasts, strict=True))
    builder = Builder(folder, -(-(longest + 1) // BINS))
    part_of, bins_first = np.zeros(len(run.job.ranks), np.int64), []
    files: dict[str, BinaryIO] = {name: (folder / f"{name}.raw").open("wb") for name in COLUMNS}
    try:
        for number, part in enumerate(run.parts()):
            part_of[part.at] = number
            bins_first.append(firsts[int(run.timing.block_of[part.at[0]])])
            builder.add(run, part, bins_first[-1], files)
            advance(len(part.at))
    finally:
        for file in files.values():
            file.close()
    builder.write(
        about
        | {
            "ranks": run.job.ranks.tolist(),
            "part_of": part_of.tolist(),
            "trace_of": run.job.trace_of.tolist(),
            "shift_ns": shift_ns.tolist(),
            "bins_first_ns": bins_first,
            "bins_width_ns": builder.width_ns,
        }
    )


def _extent(start: I64, end: I64) -> tuple[int, int]:
    """First start and last end of a set of times."""
    known = start[start != UNKNOWN]
    first = int(known.min()) if len(known) else 0
    return first, max(first, int(end.max(initial=first)))

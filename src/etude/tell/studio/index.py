"""The index of a timeline: where it is kept, when it is still valid, and its columns, mapped from disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from etude.base.files import writing
from etude.base.talk import say
from etude.kernels.arrays import I64
from etude.model.schema import LaneKind
from etude.tell.studio.building import COLUMNS, ROW_COLUMNS
from etude.tell.studio.kernels import RowSlices
from etude.tell.view.slices import Lane

VERSION: Final = "2"
MOST_FILES: Final = 20_000
"""Files of an input whose names, sizes and times are looked at to see whether an index is still valid."""


@dataclass(frozen=True)
class TimelineIndex:
    """An index that is open. Rows are those of all parts; a rank has the rows of its part."""

    folder: Path
    head: dict[str, Any]
    rows: NDArray[np.int64]
    bins: NDArray[np.uint16]
    _columns: dict[str, NDArray[Any]] = field(repr=False)

    @cached_property
    def ranks(self) -> I64:
        return np.array(self.head["ranks"], np.int64)

    @cached_property
    def shift_ns(self) -> I64:
        """From a rank's own times to those that are shown, which begin at 0."""
        return np.array(self.head["shift_ns"], np.int64) - self.origin_ns

    @cached_property
    def _own_shift(self) -> I64:
        return np.array(self.head["shift_ns"], np.int64)

    @cached_property
    def part_of(self) -> I64:
        return np.array(self.head["part_of"], np.int64)

    @cached_property
    def names(self) -> list[str]:
        return list(self.head["names"])

    @cached_property
    def part_start(self) -> I64:
        """First row of each part, and one more entry."""
        parts = len(self.head["part_trace"])
        return np.searchsorted(self.rows[:, 0], np.arange(parts + 1))

    @cached_property
    def _bounds(self) -> tuple[I64, I64]:
        """First start and last end of each part, on its own clock."""
        parts = len(self.head["part_trace"])
        first, last = np.zeros(parts, np.int64), np.zeros(parts, np.int64)
        for part in range(parts):
            mine = self.rows[self.part_start[part] : self.part_start[part + 1]]
            if len(mine):
                first[part] = self._columns["start"][mine[:, 5]].min()
                last[part] = self._columns["end"][mine[:, 5] + mine[:, 6] - 1].max()
        return first, last

    @cached_property
    def origin_ns(self) -> int:
        """What the first slice begins at, on the clock of all ranks."""
        first = self._bounds[0]
        return int((first[self.part_of] + self._own_shift).min()) if len(first) else 0

    @cached_property
    def span_ns(self) -> int:
        last = self._bounds[1]
        return int((last[self.part_of] + self._own_shift).max()) - self.origin_ns if len(last) else 0

    def rows_of(self, at: int) -> range:
        """Rows of the rank at a position."""
        part = int(self.part_of[at])
        return range(int(self.part_start[part]), int(self.part_start[part + 1]))

    def row(self, number: int) -> RowSlices:
        """The slices of a row, on the clock of its rank."""
        part, *_, first, count = self.rows[number].tolist()
        low = self.head["trace_first"][(trace := str(self.head["part_trace"][part]))]
        high = low + self.head["trace_nodes"][trace]
        start, end, node = (self._columns[name][first : first + count] for name in COLUMNS)
        return RowSlices(start, end, node, self._columns["sort_of"][low:high], self._columns["name_of"][low:high])

    @property
    def of_tables(self) -> bool:
        """Slices are rows of tables; their sorts are colours and nothing else."""
        return "labels" in self.head

    def lane_label(self, rank: int, kind: int, number: int) -> str:
        """What a row is called."""
        labels = self.head.get("labels")
        return str(labels[number]) if labels else Lane(rank, LaneKind(kind), number).label

    def role_of(self, at: int) -> int:
        """The program of the rank at a position: ranks of one role run the same."""
        return int(self.head["trace_of"][at])


def read_index(folder: Path) -> TimelineIndex:
    """Maps an index; nothing but the small tables is read."""
    head = msgspec.json.decode((folder / "head.json").read_bytes())
    columns: dict[str, NDArray[Any]] = {
        name: _mapped(folder / f"{name}.raw", kind, head["slices"]) for name, kind in COLUMNS.items()
    }
    columns |= {name: np.load(folder / f"{name}.npy") for name in ("sort_of", "name_of")}
    rows, bins = np.load(folder / "rows.npy"), np.load(folder / "bins.npy", mmap_mode="r")
    return TimelineIndex(folder, head, rows.reshape(-1, len(ROW_COLUMNS)), bins, columns)


def _mapped(path: Path, kind: Any, count: int) -> NDArray[Any]:
    return np.asarray(np.memmap(path, kind, "r", shape=(count,))) if count else np.zeros(0, kind)


def index_of(source: Path, asked: str, make: Callable[[Path, dict[str, Any]], None]) -> TimelineIndex:
    """The index of an input: the one that is kept, or a new one, which `make` writes into a folder. `asked` says what
    else than its files it depends on."""
    key = hashlib.sha256("\n".join([VERSION, asked, *_state(source)]).encode()).hexdigest()[:20]
    for place in places(source):
        if (found := _valid(place / key)) is not None:
            return found
    place = next(one for one in places(source) if _is_writable(one))
    say(f"note: the index of the timeline is kept in {place}")
    with writing(place / key, own=True) as folder:
        folder.mkdir()
        make(folder, {"key": key})
    return read_index(place / key)


def places(source: Path) -> list[Path]:
    """Where an index may be: beside the input, or in the user's cache."""
    whole = source.resolve()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(str(whole).encode()).hexdigest()[:20]
    return [whole.parent / f".{whole.name[:100]}.studio", Path(base) / "etude" / "studio" / name]


def _is_writable(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(place, os.W_OK)


def _valid(folder: Path) -> TimelineIndex | None:
    if not (folder / "head.json").is_file():
        return None
    try:
        return read_index(folder)
    except (OSError, ValueError, KeyError, msgspec.DecodeError):
        return None


def _state(source: Path) -> list[str]:
    """Names, sizes and times of the files of an input."""
    if not source.is_dir():
        files = [source] if source.exists() else sorted(source.parent.glob(f"{source.name}*"))
    else:
        files = sorted(path for path in source.rglob("*") if path.is_file())
    found = []
    for path in files[:MOST_FILES]:
        state = path.stat()
        found.append(f"{path}\t{state.st_size}\t{state.st_mtime_ns}")
    return [*found, str(len(files))]

"""A feeder over `.et` files that holds none of them: the graph in memory, the nodes on disk until they are needed.

Each file is read once for its skeleton: the dependencies, and where each message is. A node is decoded when a view
needs it, together with its neighbours; decoded ranges are kept up to `max_bytes`, evicting the least recently used.
Memory: 20 B per node and 4 B per edge for each file (12 B and the edges once for ranks whose graphs are equal), 4 1/8 B
per node for each rank in progress, and `max_bytes`. While a file is scanned: 45 B per node and 8 B per edge.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from io import FileIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError, UsageError
from etude.kernels.arrays import I32, I64
from etude.kernels.varint import decode_varint
from etude.model.feeder.feed import Feeder
from etude.model.feeder.node_view import Bound, NodeView
from etude.model.feeder.source import FeederGraph, Missing, check_missing, raise_cycle, raise_dangling
from etude.model.fingerprint import Fingerprint
from etude.model.job import Groups
from etude.model.schema import COLUMN, Kind
from etude.model.text import PAD
from etude.store import chakra, compressed, worlds
from etude.store import et_stream_kernels as k
from etude.store.et_decode import check_metadata, decode_files
from etude.store.et_wire import PROBLEM

_WINDOW = 4 << 20
_MAX_ROWS = 1024
"""Nodes in a range that is decoded at once: enough to amortise a call, few enough to be close to what is used."""
_DECODED_ROW_BYTES = 500
"""Approximate bytes of a decoded node besides its message."""


def open_feeder(
    path: str | Path,
    *,
    data: bool = True,
    ctrl: bool = True,
    missing: Literal["error", "drop"] = "error",
    groups: str | Path | None = None,
    max_bytes: int = 64 << 20,
    max_open: int = 64,
    advance: Callable[[int], None] = lambda amount: None,
) -> Feeder:
    """Feeds the ranks found at `path` (see chakra.find_ranks) without holding their traces.

    `data`, `ctrl` and `missing` are those of `feeder`; `groups` names the group file, by default `name.json` beside the
    ranks. Decoded nodes are kept up to `max_bytes`, files open up to `max_open`. `advance` hears of each rank scanned.

    etude.extend.open_feeder("et/w.0.et")
    """
    check_missing(missing)
    if max_bytes < 1 or max_open < 1:
        raise UsageError(f"max_bytes={max_bytes} and max_open={max_open} must be at least 1")
    name, files = chakra.find_ranks(Path(path))
    table = chakra.group_file(name, files, groups)
    source = FileSource(files, table, max_bytes=max_bytes, max_open=max_open)
    try:
        source.scan(data=data, ctrl=ctrl, missing=missing, advance=advance)
    except BaseException:
        source.close()
        raise
    return Feeder(source)


# -- the skeleton of one file ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Skeleton:
    """What is kept of a file. Message i, with its length prefix, is the bytes places[i]:places[i+1]."""

    path: Path
    stamp: tuple[int, int]
    """Size and modification time when it was read."""
    places: I64
    graph: FeederGraph
    stretch: int
    """Nodes that are decoded together."""


class _Scan:
    """Arrays that grow while a file is read."""

    def __init__(self, size: int) -> None:
        room = max(64, size // 512)
        self.size = size
        self.places, self.ids = np.empty(room + 1, np.int64), np.empty(room, np.uint64)
        self.kinds, self.dep_start = np.empty(room, np.uint8), np.zeros(room + 1, np.int64)
        self.dep = np.empty(max(1024, size // 256), np.uint64)
        self.cursor = np.zeros(5, np.int64)

    def grow(self, done_bytes: int, message: int) -> None:
        """Makes room for the rest of the file at the density seen so far, but never much ahead, since the beginning of
        a file says little about its end; and for the current message."""
        share = min(max(done_bytes / self.size, 1e-9), 1.0)
        row, edge = self.cursor[:2].tolist()
        if row + 1 >= len(self.places):
            self._resize(max(int(row * 1.05) + 64, min(int(row / share * 1.02), int(row * 1.25)) + 64))
        if edge + message > len(self.dep):
            wanted = max(int(edge * 1.05), min(int(edge / share * 1.02), int(edge * 1.25))) + message + 1024
            self.dep.resize(wanted, refcheck=False)

    def _resize(self, rows: int) -> None:
        self.places.resize(rows + 1, refcheck=False)
        self.dep_start.resize(rows + 1, refcheck=False)
        self.ids.resize(rows, refcheck=False)
        self.kinds.resize(rows, refcheck=False)

    def finish(self) -> None:
        rows, edges = self.cursor[:2].tolist()
        self._resize(rows)
        self.dep.resize(edges, refcheck=False)
        self.places[rows] = self.size


def _read_into(file: FileIO, offset: int, out: NDArray[np.uint8]) -> int:
    """Fills `out` from this byte of the file on; returns the number of bytes read."""
    file.seek(offset)
    done = 0
    while done < len(out) and (got := file.readinto(out[done:].data)):
        done += got
    return done


def _read(file: FileIO, offset: int, size: int) -> bytes:
    out = np.empty(size, np.uint8)
    return out[: _read_into(file, offset, out)].tobytes()


def _world(file: FileIO, first_node: int) -> int:
    """The world size in the metadata, which comes before the first node."""
    raw = _read(file, 0, first_node)
    return worlds.said(raw[decode_varint(raw, 0)[1] :]) if raw else 0


def _metadata(file: FileIO, size: int, path: Path) -> int:
    """Where the messages after the first, which is the file's metadata, begin."""
    head = _read(file, 0, 10)
    if not head:
        raise FormatError("the file is empty", path=path, offset=0, hint="an `.et` file begins with its metadata")
    if head[:2] == compressed.GZIP or head[:4] == compressed.ZSTD:
        problem = "the file is compressed, so nodes cannot be read from the middle of it"
        hint = "decompress it first (`gunzip -k`, `zstd -d`), or read it whole and feed from memory"
        raise UsageError(problem, where=str(path), hint=hint)
    try:
        length, at = decode_varint(head, 0)
    except IndexError:
        length, at = size, 0
    if at + length > size:
        raise FormatError("message 0 claims to run past the end of the file", path=path, offset=0)
    check_metadata(_read(file, at, length), str(path), at)
    return at + length


def _scan_file(file: FileIO, path: Path, data: bool, ctrl: bool) -> _Scan:
    size = os.fstat(file.fileno()).st_size
    base = _metadata(file, size, path)
    found = _Scan(size)
    buffer = np.empty(min(_WINDOW, size) + PAD, np.uint8)
    held = 0
    while base + held < size or held:
        got = _read_into(file, base + held, buffer[held : len(buffer) - PAD])
        held += got
        if not got and held < min(len(buffer) - PAD, size - base):
            raise FormatError("the file has become shorter while it was read", path=path, offset=base + held)
        taken = _scan_window(found, buffer, held, base, data, ctrl, path)
        if not taken:  # one message is longer than the window
            buffer = np.concatenate([buffer[:held], np.empty(min(held, size - base - held) + _WINDOW + PAD, np.uint8)])
            continue
        buffer[: held - taken] = buffer[taken:held].copy()
        base, held = base + taken, held - taken
    found.finish()
    return found


def _scan_window(
    found: _Scan, buffer: NDArray[np.uint8], held: int, base: int, data: bool, ctrl: bool, path: Path
) -> int:
    """Takes in the messages that are complete in the buffer; returns their total bytes."""
    cur = found.cursor
    cur[k.AT] = 0
    while True:
        window = k.FileWindow(buffer, held, found.size - base - held, base)
        rows = k.SkeletonRows(found.places, found.ids, found.kinds, found.dep_start, found.dep)
        k.scan(window, rows, data, ctrl, cur)
        status, at = int(cur[k.STATUS]), int(cur[k.AT])
        if status == k.GROW:
            found.grow(base + at, int(cur[k.NEED]))
        elif status in (k.DONE, k.MORE):
            return at
        else:
            problem = PROBLEM.get(status, "malformed message")
            raise FormatError(f"message {int(cur[k.ROW]) + 1}: {problem}", path=path, offset=base + at)


def _edges(found: _Scan) -> tuple[tuple[I64, I32], tuple[int, int, int]]:
    """Dependencies as rows, in the memory that held them as ids; and (dangling ones, the node of the first, its id)."""
    n, count = len(found.ids), len(found.dep)
    size = 0
    if not k.is_dense(found.ids):
        size = 16
        while size < 2 * n:
            size *= 2
    table = np.full(size, -1, np.int32)
    lost, first, lost_id = k.resolve(found.ids, found.dep, found.dep.view(np.int32)[:count], table)
    node = int(np.searchsorted(found.dep_start, first, "right")) - 1 if lost else -1
    del table
    found.ids = np.empty(0, np.uint64)
    found.dep.resize((count + 1) // 2, refcheck=False)
    rows = found.dep.view(np.int32)[:count]
    rows.flags.writeable = found.dep_start.flags.writeable = False  # as those of a trace: one compiled version
    return (found.dep_start, rows), (int(lost), node, int(lost_id))


# -- many files --------------------------------------------------------------------------------------------------------


class FileSource:
    """Graphs in memory, nodes in files."""

    def __init__(self, files: dict[int, Path], table: dict[str, list[int]], *, max_bytes: int, max_open: int) -> None:
        self._files = files
        self._table = table
        self._max_bytes, self._max_open = max_bytes, max_open
        self._ranks = np.array(list(files), np.int32)
        self._skeletons: dict[int, Skeleton] = {}
        self._shared: dict[bytes, FeederGraph] = {}
        self._open: OrderedDict[int, FileIO] = OrderedDict()
        self._blocks: OrderedDict[tuple[int, int], tuple[Bound, int]] = OrderedDict()
        """(rank, first row, or ~row of a single node) -> (decoded stretch, bytes), the least recently used first."""
        self._block_bytes = 0
        self._recorded: dict[int, dict[str, list[int]]] = {}
        self._everyone: tuple[int, ...] = tuple(range(max(files, default=-1) + 1))
        self._group_number: dict[tuple[str, tuple[int, ...] | None], int] = {}
        self._groups = Groups.of([])
        self._share_bytes = max_bytes // (4 * max(len(files), 1))

    # -- construction ------------------------------------------------------------------------------------------------

    def scan(self, *, data: bool, ctrl: bool, missing: Missing, advance: Callable[[int], None]) -> None:
        world = 0
        for rank in self._files:
            world = max(world, self._scan_rank(rank, data, ctrl, missing))
            advance(1)
        self._everyone = chakra.all_ranks(world, list(self._files), self._table)
        self._forget()  # decoded before all ranks were known

    def _scan_rank(self, rank: int, data: bool, ctrl: bool, missing: Missing) -> int:
        """Makes the skeleton of a rank; returns the world size if its file names it."""
        path = self._files[rank]
        file = self._file(rank, None)
        found = _scan_file(file, path, data, ctrl)
        status = os.fstat(file.fileno())
        metadata_rows = np.flatnonzero(found.kinds == Kind.METADATA)
        found.kinds = np.empty(0, np.uint8)
        edges, (lost, node, lost_id) = _edges(found)
        graph, _, ahead = FeederGraph.of(len(found.places) - 1, [edges])
        places = found.places
        del edges, found
        stamp = (status.st_size, status.st_mtime_ns)
        self._skeletons[rank] = Skeleton(path, stamp, places, self._same(graph), self._stretch(places))
        if lost and missing == "error":
            raise_dangling(NodeView(self, rank, node), lost_id, lost)
        if ahead and (circle := graph.cycle()):
            raise_cycle(rank, [NodeView(self, rank, n).source_id for n in circle])
        return max(self._record_groups(rank, metadata_rows), _world(self._file(rank, None), int(places[0])))

    def _same(self, graph: FeederGraph) -> FeederGraph:
        """The graph, or an equal one of another rank."""
        if len(self._files) == 1:
            return graph
        same = Fingerprint(graph.succ_start, graph.succ, graph.indegree)
        return self._shared.setdefault(same.digest(), graph)

    def _record_groups(self, rank: int, rows: I64) -> int:
        recorded: dict[str, list[int]] = {}
        world = 0
        done = -1
        for row in rows.tolist():
            if row < done:
                continue
            bound, at = self.locate(rank, row)
            done = row - at + len(bound.trace)
            groups, size = chakra.process_groups(bound.trace)
            recorded |= groups
            world = max(world, size)
        if recorded:
            self._recorded[rank] = recorded
        return world

    # -- what a feeder asks ------------------------------------------------------------------------------------------

    @property
    def ranks(self) -> I32:
        return self._ranks

    @property
    def nbytes(self) -> int:
        """Skeletons and decoded nodes."""
        graphs = {id(s.graph): s.graph.nbytes for s in self._skeletons.values()}
        return sum(graphs.values()) + sum(s.places.nbytes for s in self._skeletons.values()) + self._block_bytes

    @property
    def decoded_nbytes(self) -> int:
        """Bytes of the decoded stretches that are kept."""
        return self._block_bytes

    @property
    def open_files(self) -> int:
        return len(self._open)

    def graph(self, rank: int) -> FeederGraph:
        return self._skeletons[rank].graph

    def locate(self, rank: int, node: int) -> tuple[Bound, int]:
        first = node - node % self._skeletons[rank].stretch
        found = self._blocks.get((rank, first))
        if found is not None:
            self._blocks.move_to_end((rank, first))
            return found[0], node - first
        return self._locate_on_disk(rank, node, first)

    def _locate_on_disk(self, rank: int, node: int, first: int) -> tuple[Bound, int]:
        skeleton = self._skeletons[rank]
        key, stop = (rank, first), min(first + skeleton.stretch, len(skeleton.places) - 1)
        if int(skeleton.places[stop] - skeleton.places[first]) > self._max_bytes // 2 and stop - first > 1:
            key, first, stop = (rank, ~node), node, node + 1  # giants among its neighbours
        found = self._blocks.get(key)
        if found is None:
            found = self._decode(rank, first, stop)
            self._blocks[key] = found
            self._block_bytes += found[1]
            while self._block_bytes > self._max_bytes and len(self._blocks) > 1:
                self._block_bytes -= self._blocks.popitem(last=False)[1][1]
        else:
            self._blocks.move_to_end(key)
        return found[0], node - first

    def values(self, rank: int, column: str, nodes: I32) -> NDArray[Any]:
        out = np.empty(len(nodes), COLUMN[column].dtype)
        order = np.argsort(nodes, kind="stable")
        at = 0
        while at < len(order):
            bound, row = self.locate(rank, int(nodes[order[at]]))
            first = int(nodes[order[at]]) - row
            stop = int(np.searchsorted(nodes[order], first + len(bound.trace)))
            chosen = order[at:stop]
            out[chosen] = bound.values(column, nodes[chosen] - np.int32(first))
            at = stop
        return out

    def close(self) -> None:
        """Closes the files and drops decoded nodes; files are opened again if a node is needed."""
        while self._open:
            self._open.popitem()[1].close()
        self._forget()

    # -- stretches ---------------------------------------------------------------------------------------------------

    def _stretch(self, places: I64) -> int:
        """Nodes in a range: as many as let each rank keep four of them."""
        row_bytes = int(places[-1] - places[0]) // max(len(places) - 1, 1) + _DECODED_ROW_BYTES
        return max(1, min(_MAX_ROWS, self._share_bytes // row_bytes))

    def _decode(self, rank: int, first: int, stop: int) -> tuple[Bound, int]:
        skeleton = self._skeletons[rank]
        begin, end = int(skeleton.places[first]), int(skeleton.places[stop])
        file = self._file(rank, skeleton)
        heap = np.zeros(1 + end - begin + PAD, np.uint8)  # an empty metadata message, then the nodes
        got = _read_into(file, begin, heap[1 : 1 + end - begin])
        if got != end - begin:
            raise FormatError("the file has become shorter since its feeder was made", path=skeleton.path, offset=begin)
        try:
            decoded = decode_files(heap, [(0, 1 + got, str(skeleton.path))])[0]
        except FormatError as problem:
            offset = None if problem.offset is None else problem.offset - 1 + begin
            raise FormatError(problem.problem, path=skeleton.path, offset=offset, hint=problem.hint) from None
        numbers = [self._group(rank, name) for name in decoded.group_names]
        bound = Bound(
            trace=decoded.trace,
            groups=self._groups,
            group_of=np.array(numbers, np.int32),
            peer_of=decoded.peers,
            start_ns=decoded.start_ns,
        )
        return bound, _held_bytes(bound)

    def _group(self, rank: int, name: str) -> int:
        members = chakra.group_members(name, self._table, self._recorded.get(rank, {}), self._everyone)
        key = (name, None if members is None else tuple(members))
        if key not in self._group_number:
            self._group_number[key] = len(self._group_number)
            self._groups = Groups.of(list(self._group_number))
        return self._group_number[key]

    def _forget(self) -> None:
        self._blocks.clear()
        self._block_bytes = 0

    def _file(self, rank: int, skeleton: Skeleton | None) -> FileIO:
        """The open file of a rank; a file that is opened again must be unchanged."""
        file = self._open.get(rank)
        if file is not None:
            self._open.move_to_end(rank)
            return file
        path = self._files[rank]
        while len(self._open) >= self._max_open:
            self._open.popitem(last=False)[1].close()
        try:
            file = FileIO(path)
        except OSError as problem:
            raise FormatError(f"cannot be read: {problem.strerror or problem}", path=path) from None
        status = os.fstat(file.fileno())
        if skeleton and skeleton.stamp != (status.st_size, status.st_mtime_ns):
            file.close()
            raise FormatError("the file has changed since its feeder was made", path=path, hint="make a new feeder")
        self._open[rank] = file
        return file


def _held_bytes(bound: Bound) -> int:
    """Bytes that a decoded range keeps alive."""
    roots: dict[int, int] = {}
    arrays = [getattr(bound.trace, f.name) for f in fields(bound.trace)]
    for array in (*arrays, bound.start_ns, bound.peer_of, bound.group_of):
        if isinstance(array, np.ndarray):
            while isinstance(array.base, np.ndarray):
                array = array.base
            roots[id(array)] = array.nbytes
    return sum(roots.values()) + 8 * (len(bound.trace) + 1)  # and the index of cells, in case an attribute is read

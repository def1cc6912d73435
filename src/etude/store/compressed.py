"""Reads whole files into padded heaps, decompressing gzip and zstandard, recognised by their first bytes."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import numpy as np

from etude.base.errors import FormatError, UsageError
from etude.kernels.arrays import U8
from etude.model.text import PAD, pad

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20
_LARGE = 1 << 20  # bytes of a gzip file that is unpacked in one piece
_BOMB_BYTES, _BOMB_RATIO = 16 << 20, 200
"""A file that expands beyond both is refused unless a limit was given: recorded traces compress 10 to 40 times,
generated ones with one repeated operation 65 times."""


@contextmanager
def _opened(path: str | Path, max_bytes: int | None) -> Iterator[tuple[BufferedReader, int, bytes | None]]:
    """(file, size on disk, all of it if it is compressed)."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as f:
            head = f.read(4)
            size = os.fstat(f.fileno()).st_size
            f.seek(0)
            if head[:2] == GZIP or head == ZSTD:
                yield f, size, f.read()
            else:
                _check_size(size, max_bytes, name)
                yield f, size, None
    except OSError as problem:
        raise FormatError(f"cannot be read: {problem.strerror or problem}", path=name) from None


def load(path: str | Path, max_bytes: int | None = None) -> tuple[U8, int]:
    """(heap, size): a file's decompressed content, followed by PAD zero bytes. `max_bytes` limits the decompressed
    size."""
    with _opened(path, max_bytes) as (f, size, zipped):
        if zipped is not None:
            return _at_once(zipped, max_bytes) or _join(unpacked(zipped, os.fspath(path), max_bytes), 16 * size)
        heap = np.empty(size + PAD, np.uint8)
        got = f.readinto(heap[:size].data)
    heap[got:] = 0
    return heap[: got + PAD], got


def pieces(path: str | Path, max_bytes: int | None = None) -> Iterator[bytes]:
    """A file's decompressed content, piece by piece."""
    with _opened(path, max_bytes) as (f, _, zipped):
        if zipped is None:
            yield from iter(lambda: f.read(_CHUNK), b"")
        else:
            yield from unpacked(zipped, os.fspath(path), max_bytes)


def load_all(paths: Sequence[str | Path], max_bytes: int | None = None) -> tuple[U8, list[int]]:
    """(heap, ends): files one after another, decompressed, followed by PAD zero bytes, and where each one ends."""
    try:
        sizes = [os.stat(path).st_size for path in paths]
    except OSError as problem:
        raise FormatError(f"cannot be read: {problem.strerror or problem}", path=problem.filename) from None
    heap = np.empty(sum(sizes) + PAD, np.uint8)
    ends: list[int] = []
    at = 0
    for path, size in zip(paths, sizes, strict=True):
        _check_size(size, max_bytes, os.fspath(path))
        try:
            with open(path, "rb") as f:
                got = f.readinto(heap[at : at + size].data)
        except OSError as problem:
            raise FormatError(f"cannot be read: {problem.strerror or problem}", path=os.fspath(path)) from None
        first = heap[at : at + min(got, 4)].tobytes()
        if first[:2] == GZIP or first == ZSTD:
            return _load_each(paths, max_bytes)
        at += got
        ends.append(at)
    heap[at:] = 0
    return heap[: at + PAD], ends


def _load_each(paths: Sequence[str | Path], max_bytes: int | None) -> tuple[U8, list[int]]:
    """The same if some are compressed: their lengths are unknown in advance."""
    loaded = [load(path, max_bytes) for path in paths]
    if len(loaded) == 1:
        return loaded[0][0], [loaded[0][1]]
    ends = np.cumsum([size for _, size in loaded]).tolist()
    parts = [content[:size] for content, size in loaded]
    return np.concatenate([*parts, np.zeros(PAD, np.uint8)]), ends


def head(path: str | Path, size: int) -> bytes:
    """The first bytes of a file's content, decompressed as far as needed; as much as possible of a damaged file."""
    try:
        with open(path, "rb") as f:
            raw = f.read(size)
    except OSError as problem:
        raise FormatError(f"cannot be read: {problem.strerror or problem}", path=os.fspath(path)) from None
    if raw[:2] != GZIP and raw[:4] != ZSTD:
        return raw
    found = b""
    try:
        for piece in unpacked(raw, os.fspath(path), None):
            found += piece
            if len(found) >= size:
                break
    except FormatError:
        pass  # cut short, as it was
    return found[:size]


def unpack(data: bytes | bytearray | memoryview | U8, where: str, max_bytes: int | None = None) -> tuple[U8, int]:
    """The same for bytes in memory."""
    source = np.frombuffer(data, np.uint8)
    head = source[:4].tobytes()
    if head[:2] == GZIP or head == ZSTD:
        zipped = source.tobytes()
        return _at_once(zipped, max_bytes) or _join(unpacked(zipped, where, max_bytes), 16 * len(source))
    _check_size(len(source), max_bytes, where)
    return pad(source), len(source)


def _check_size(size: int, max_bytes: int | None, where: str) -> None:
    if max_bytes is not None and size > max_bytes:
        raise UsageError(f"{size} bytes, more than the limit of {max_bytes}", where=where, hint="raise --max-bytes")


def _join(parts: Iterator[bytes], room: int) -> tuple[U8, int]:
    """Concatenates parts; `room` is their largest total size; unused memory is not allocated."""
    heap = np.empty(room + PAD, np.uint8)
    size = 0
    for part in parts:
        if size + len(part) + PAD > len(heap):
            heap.resize(len(heap) * 3 // 2 + len(part), refcheck=False)
        heap[size : size + len(part)] = np.frombuffer(part, np.uint8)
        size += len(part)
    heap[size : size + PAD] = 0
    return heap[: size + PAD], size


def _at_once(data: bytes, max_bytes: int | None) -> tuple[U8, int] | None:
    """A gzip file of one member by Arrow, in half the time; None for all others, and where anything is not as it
    should be: they are read piece by piece, which says what is wrong."""
    if len(data) < _LARGE or data[:2] != GZIP or _another_member(data):
        return None
    size = int.from_bytes(data[-4:], "little")
    if size > (_BOMB_RATIO * len(data) if max_bytes is None else max_bytes):
        return None
    import pyarrow as pa

    heap = np.empty(size + PAD, np.uint8)
    got = 0
    try:
        with pa.CompressedInputStream(pa.py_buffer(data), "gzip") as stream:  # it compares the sum and the size
            while got <= size and (more := stream.readinto(heap[got : min(got + _CHUNK, size + 1)].data)):
                got += more
    except (OSError, pa.ArrowException):
        return None
    heap[size:] = 0
    return (heap, size) if got == size else None


def _another_member(data: bytes) -> bool:
    """Whether a second member may begin somewhere: its four first bytes are there."""
    at = data.find(GZIP + b"\x08", 1)
    while at >= 0 and at + 3 < len(data):
        if data[at + 3] < 0x20:  # flags: the upper three bits are zero
            return True
        at = data.find(GZIP + b"\x08", at + 1)
    return False


def unpacked(data: bytes, where: str, max_bytes: int | None) -> Iterator[bytes]:
    """The decompressed bytes of a gzip or zstandard file, piece by piece, never far beyond the limit."""
    total = 0
    pieces = _gunzip(data, where) if data[:2] == GZIP else _unzstd(data, where)
    for piece in pieces:
        total += len(piece)
        _check_size(total, max_bytes, where)
        if max_bytes is None and total > _BOMB_BYTES and total > _BOMB_RATIO * len(data):
            problem = f"unpacks to more than {_BOMB_RATIO} times its size, which is not plausible for a trace"
            hint = "if it is a trace, give its largest size with --max-bytes"
            raise FormatError(problem, path=where, offset=0, hint=hint)
        yield piece


def _gunzip(data: bytes, where: str) -> Iterator[bytes]:
    view = memoryview(data)
    at = 0
    while at < len(view):
        stream = zlib.decompressobj(wbits=31)
        rest: bytes | memoryview = view[at:]
        try:
            while not stream.eof:
                piece = stream.decompress(rest, _CHUNK)
                rest = stream.unconsumed_tail
                if not piece and not rest and not stream.eof:
                    hint = "it was cut while it was written or copied"
                    raise FormatError("the gzip file is cut short", path=where, offset=len(data), hint=hint)
                yield piece
        except zlib.error as problem:
            raise FormatError(f"damaged gzip: {problem}", path=where, offset=at) from None
        at = len(view) - len(stream.unused_data)


def _unzstd(data: bytes, where: str) -> Iterator[bytes]:
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.py_buffer(data), "zstd") as stream:
            while piece := stream.read(_CHUNK):
                yield piece
    except (OSError, pa.ArrowException) as problem:
        raise FormatError(f"damaged zstandard: {problem}", path=where, offset=0) from None


def packed(parts: Iterator[U8], suffix: str) -> Iterator[bytes | memoryview]:
    """Pieces of a file as they go to disk: `.gz` and `.zst` are packed, the rest is left as it is."""
    if suffix == ".gz":
        stream = zlib.compressobj(6, wbits=31)  # no time stamp: the same trace gives the same bytes
        for part in parts:
            yield stream.compress(part.data)
        yield stream.flush()
    elif suffix == ".zst":
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as out:
            for part in parts:
                out.write(part)
        yield memoryview(sink.getvalue())
    else:
        for part in parts:
            yield part.data

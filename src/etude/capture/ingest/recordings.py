"""Which rank of which recording a file of the profiler is, from what is in it; and lists of files that are one job.

`tensorboard_trace_handler` calls files `{host}_{pid}.{time}.pt.trace.json.gz`, vLLM and SGLang do alike: no name says
the rank. The file does, as `distributedInfo`. A rank that has several files was recorded several times.

    a.json,b.json      files, with commas between them
    run/*.json.gz      those that match
    @files.txt         those that a file names, one a line
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from etude.base.errors import UsageError
from etude.store import compressed

_PATTERN: Final = re.compile(r"[*?\[]")
_INFO: Final = re.compile(rb'"distributedInfo"\s*:\s*\{')
_RANK: Final = re.compile(rb'"rank"\s*:\s*(\d{1,9})\b')
_WORLD: Final = re.compile(rb'"world_size"\s*:\s*(\d{1,9})\b')
_STAMP: Final = re.compile(r"\.(\d{10,})\.pt\.trace\.json")
_SIDE: Final = 1 << 20
"""Bytes at the beginning and the end of a file that may contain its rank."""
_LARGEST: Final = 64 << 20
"""A larger compressed file is not decompressed to look for a rank at its end."""


@dataclass(frozen=True, slots=True)
class RecordedRank:
    """Rank and world size in a file; -1 and 0 if missing."""

    rank: int = -1
    world_size: int = 0


def said(file: Path) -> RecordedRank:
    """Rank and world size. Kineto writes them before the events, older versions after them."""
    return _said(compressed.head(file, _SIDE)) or _said(_tail(file)) or RecordedRank()


def _tail(file: Path) -> bytes:
    """The last bytes of a file's content; empty for a compressed file that is too large."""
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(0)
        first = opened.read(4)
        if first[:2] != compressed.GZIP and first != compressed.ZSTD:
            opened.seek(max(size - _SIDE, 0))
            return opened.read()
    if size > _LARGEST:
        return b""
    heap, size = compressed.load(file)
    return heap[max(size - _SIDE, 0) : size].tobytes()


def _said(text: bytes) -> RecordedRank | None:
    at = _INFO.search(text)
    if at is None:
        return None
    rank, world = _RANK.search(text, at.end()), _WORLD.search(text, at.end())
    return RecordedRank(int(rank[1]) if rank else -1, int(world[1]) if world else 0)


def stamp(file: Path) -> tuple[int, str]:
    """Sort key of the recordings of one rank: the time in the name, then the name."""
    found = _STAMP.search(file.name)
    return int(found[1]) if found else 0, file.name


def by_rank(files: Sequence[Path]) -> list[dict[int, Path]]:
    """Rank -> file of each recording in which all of these were made, the earliest first; files of one process, or that
    do not say their rank, are in none. All ranks must have been recorded equally often: otherwise it is unknown which
    files belong together."""
    of_rank: dict[int, list[Path]] = {}
    for file in files:
        one = said(file)
        if one.rank >= 0 and one.world_size > 1:
            of_rank.setdefault(one.rank, []).append(file)
    counts = {rank: len(found) for rank, found in of_rank.items()}
    if not counts:
        return []
    if len(set(counts.values())) > 1:
        most, least = max(counts, key=lambda r: counts[r]), min(counts, key=lambda r: counts[r])
        names = ", ".join(file.name for file in of_rank[most][:4])
        problem = f"rank {most} was recorded {counts[most]} times ({names}) and rank {least} {counts[least]} times"
        hint = "name the files of one recording: etude breakdown FILE FILE ..."
        raise UsageError(problem, where=str(files[0].parent), hint=hint)
    inside = {rank: sorted(found, key=stamp) for rank, found in sorted(of_rank.items())}
    return [{rank: found[k] for rank, found in inside.items()} for k in range(min(counts.values()))]


# -- lists of files ----------------------------------------------------------------------------------------------------


def is_list(path: Path) -> bool:
    """Whether the argument is several files."""
    text = str(path)
    return text.startswith("@") or (bool(_PATTERN.search(text) or "," in text) and not path.exists())


def listed(path: Path) -> list[Path]:
    """The files in a list."""
    text = str(path)
    if text.startswith("@"):
        files = _lines(Path(text[1:]))
    elif _PATTERN.search(text):
        files = [Path(found) for found in sorted(glob.glob(text, recursive=True))]
        if not files:
            raise UsageError("no file matches", where=text)
    else:
        files = [Path(part.strip()) for part in text.split(",") if part.strip()]
    for file in files:
        if not file.is_file():
            raise UsageError("no such file", where=str(file), hint=f"it is in the list `{text[:80]}`")
    return list(dict.fromkeys(files))


def _lines(path: Path) -> list[Path]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"cannot be read: {problem}", where=str(path)) from None
    # names in a list are relative to it, as in a makefile or a playlist
    found = [path.parent / line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not found:
        raise UsageError("does not name a file", where=str(path))
    return found

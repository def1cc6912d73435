"""Which files of an archive hold which runs.

    lake/runs/3f0c….parquet              one run, as it was added
    lake/runs/pack-000007-9a1b.parquet   many runs: what `etude archive compact` made of such files and of older packs

A run may be in several files for a while: `--force` has written it again, or a compaction was cut off before it removed
what it had packed. Then its own files count before packs, and a newer pack before an older one. A file of `runs` is the
last of its set to come and the first to go, so what it lists is there in full.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import parquet

from etude.base.errors import FormatError, UsageError
from etude.base.files import note_open

WRITING: Final = ".writing"
LOCK: Final = "lock"
EMPTY: Final = "0"
_SINGLE: Final = re.compile(r"[0-9a-f]{32}")
_PACK: Final = re.compile(r"pack-(\d{6,})-[0-9a-f]+")
TRIES: Final = 20
"""Times that files are listed again because a compaction moved them meanwhile."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files that count, by name without ending."""

    singles: frozenset[str]
    """Runs that have files of their own."""
    packs: tuple[str, ...]
    """Oldest first."""
    packed: tuple[frozenset[str], ...]
    """The runs in each pack."""

    @property
    def runs(self) -> frozenset[str]:
        return self.singles.union(*self.packed)

    def replaced(self) -> list[frozenset[str]]:
        """Of each pack the runs that a newer file has."""
        newer, found = self.singles, []
        for runs in reversed(self.packed):
            found.append(runs & newer)
            newer |= runs
        return found[::-1]


def names(folder: Path) -> set[str]:
    """The Parquet files of a folder, without ending."""
    return {entry.name.removesuffix(".parquet") for entry in os.scandir(folder) if entry.name.endswith(".parquet")}


def is_pack(name: str) -> bool:
    return _PACK.fullmatch(name) is not None


def is_single(name: str) -> bool:
    return _SINGLE.fullmatch(name) is not None


def number(pack: str) -> int:
    found = _PACK.fullmatch(pack)
    return int(found[1]) if found else 0


def listing(folder: Path) -> Listing:
    """What there is of an archive. A pack is complete before the first file that it replaces goes, so files that were
    listed between two listings of the same packs are all there are."""
    runs = folder / "runs"
    for _ in range(TRIES):
        packs = _packs(runs)
        singles = frozenset(filter(is_single, names(runs)))
        if packs == _packs(runs):
            with suppress(FileNotFoundError):
                return Listing(singles, packs, _held(runs, packs))
    raise UsageError("its files keep changing", where=str(folder), hint="is `etude archive compact` in a loop?")


def packed(runs: Path) -> tuple[frozenset[str], ...]:
    """The runs in each pack of the folder `runs`."""
    for _ in range(TRIES):
        with suppress(FileNotFoundError):
            return _held(runs, _packs(runs))
    return ()


def _held(runs: Path, packs: tuple[str, ...]) -> tuple[frozenset[str], ...]:
    return tuple(_runs_in(runs / f"{pack}.parquet") for pack in packs)


def _packs(runs: Path) -> tuple[str, ...]:
    return tuple(sorted(filter(is_pack, names(runs)), key=lambda name: (number(name), name)))


@lru_cache(maxsize=64)
def _runs_in(pack: Path) -> frozenset[str]:
    """A pack never changes, and no two have one name."""
    note_open(pack)
    try:
        return frozenset(parquet.read_table(pack, columns=["run"])["run"].to_pylist())
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, KeyError) as problem:
        raise FormatError(f"is not a pack of runs: {str(problem).splitlines()[0]}", path=pack) from None


@contextmanager
def locked(folder: Path, *, alone: bool) -> Iterator[None]:
    """Several may add at a time; who removes files is alone. The lock ends with the process, however that ends."""
    place = folder / WRITING / LOCK
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # not on every system
        fcntl = None  # type: ignore[assignment]
    with place.open("a+b") as file:
        try:
            if fcntl is None:
                raise OSError("no locks")
            fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        except OSError:
            if alone:
                problem = "files cannot be locked here, and other processes may be adding runs"
                hint = "compact it on the machine with the local disk"
                raise UsageError(problem, where=str(folder), hint=hint) from None
        yield

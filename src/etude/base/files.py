"""Output that is there in full or not at all.

with writing("run.et") as path:     # a name next to run.et; nothing is there yet
    path.write_bytes(...)           # or path.mkdir() and files in it
                                    # leaving renames it to run.et; an exception removes it
"""

import csv
import ctypes
import errno
import hashlib
import mmap
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

from etude.base.errors import UsageError
from etude.base.trust import check_write

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_THERE = (errno.EEXIST, errno.ENOTEMPTY)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""Of disks whose files have one name each."""
_TRIES = 5
_HERE, _EXCHANGE = -100, 2
"""Linux: names are those of the current folder; both stay, with each other's content."""
_MACHINE = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
OPENED = "etude.opened"
"""Audit event of a file that is opened by other means than Python's `open`."""
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def note_open(path: str | os.PathLike[str]) -> None:
    """Says that a file is opened by Arrow or DuckDB, which Python's own audit events do not show."""
    sys.audit(OPENED, os.fspath(path))


@contextmanager
def writing(path: str | os.PathLike[str], *, force: bool = False, own: bool = False) -> Iterator[Path]:
    """Yields a temporary path next to `path` (its name ends as that of `path` does), to be made a file or a folder.

    When the block ends it takes the place of `path`; on any exception, Ctrl-C included, it is removed. What is
    there already stays unless `force`; an empty folder does not count. Pipes and devices are written straight.
    `own`: a cache of Etude, which the limits of `base/trust.py` do not cover.
    """
    shown = Path(path)
    target = Path(os.path.realpath(shown))  # through a link, so that the link stays one
    if not own:
        check_write(target, shown)
    if target.exists() and not (target.is_file() or target.is_dir()):
        yield target
        return
    _check(target, shown, force)
    _clear_stale(target)
    temporary = _beside(target, "partial")
    try:
        yield temporary
        with _undisturbed():
            _check(target, shown, force)  # again: someone may have been faster
            _settle(temporary)
            _put(temporary, target, shown, force)
    except BaseException as problem:
        with _undisturbed():
            _remove(temporary)
        if isinstance(problem, OSError) and problem.errno in _FULL:
            raise UsageError(
                f"cannot be written: {os.strerror(problem.errno)}", where=str(shown), hint="nothing was kept"
            ) from problem
        if isinstance(problem, OSError) and problem.filename == str(temporary):  # not the name that was given
            raise UsageError(f"cannot be written: {problem.strerror}", where=str(shown)) from problem
        raise


def new_place(folder: Path, name: str) -> Path:
    """A place right below a folder, for a name that somebody else chose; what is there is not replaced."""
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", name):
        raise UsageError(f"{name[:100]!r} is not the name of a copy", hint="letters, digits, `-`, `_` and `.`")
    place = folder / name
    if place.exists() or place.is_symlink():
        raise UsageError("exists already", where=name, hint="give another name; nothing is overwritten")
    return place


def write_pieces(path: str | os.PathLike[str], pieces: Iterable[bytes | memoryview]) -> None:
    """A file of these pieces, one after another; what is there is replaced."""
    with writing(path, force=True) as temporary, temporary.open("wb") as file:
        for piece in pieces:
            file.write(piece)


def logged(told: str, log: Path | None) -> str:
    """A line that is said, and is the content of the log where there is one."""
    if log is not None:
        write_pieces(log, [f"{told}\n".encode()])
    return told


def _check(target: Path, shown: Path, force: bool) -> None:
    if not target.parent.is_dir():
        raise UsageError("its folder does not exist", where=str(shown), hint=f"mkdir -p {target.parent}")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not force:
        raise UsageError("exists already", where=str(shown), hint="give another name, or --force to replace it")
    if target.is_dir() and Path.cwd().is_relative_to(target):
        raise UsageError("is the current folder, which is not replaced", where=str(shown))


def _put(temporary: Path, target: Path, shown: Path, force: bool) -> None:
    if target.is_dir() and not temporary.is_dir():
        raise UsageError("is a folder, but the output is a file", where=str(shown), hint="give a name inside it")
    if target.is_file() and temporary.is_dir():
        raise UsageError("is a file, but the output is a folder", where=str(shown), hint="give another name")
    if not force:
        _put_new(temporary, target, shown)
    elif temporary.is_dir():
        _put_folder(temporary, target)
    else:
        os.replace(temporary, target)


def _put_new(temporary: Path, target: Path, shown: Path) -> None:
    """In one step that fails if somebody was faster: of two writers of the same place one is refused."""
    try:
        if temporary.is_dir():
            os.rename(temporary, target)  # takes the place of an empty folder and of no other
            return
        os.link(temporary, target)
    except OSError as problem:
        if problem.errno in _THERE:
            raise UsageError(
                "exists already: somebody else has just written it",
                where=str(shown),
                hint="give another name, or --force to replace it",
            ) from None
        if temporary.is_dir() or problem.errno not in _NO_LINKS:
            raise
        os.replace(temporary, target)
    else:
        temporary.unlink()


def _put_folder(temporary: Path, target: Path) -> None:
    """The old one goes when the new one has its name. Where others replace it meanwhile, the last stays."""
    for left in reversed(range(_TRIES)):
        try:
            if _exchanged(temporary, target):
                _remove(temporary)
            else:
                _put_beside(temporary, target)
            return
        except OSError as problem:
            if not left or problem.errno not in (*_THERE, errno.ENOENT):
                raise


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the two names were swapped, in one step; False where the system or the disk cannot, or one is missing."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    return swap is not None and swap(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0


def _put_beside(temporary: Path, target: Path) -> None:
    """In two steps: the old one is moved aside, and back if that fails."""
    aside = _beside(target, "old")
    if target.exists():
        os.replace(target, aside)
    try:
        os.replace(temporary, target)
    except BaseException:
        if aside.exists() and not target.exists():
            os.replace(aside, target)
        raise
    finally:
        if aside.exists() and target.exists():
            _remove(aside)


def _beside(target: Path, why: str) -> Path:
    # The whole name comes last: writers look at suffixes. A hidden start, so that `w.*.et` does not find it. Machine
    # and process tell later ones whether the writer still lives.
    return target.with_name(f".{why}-{_MACHINE}-{os.getpid()}-{secrets.token_hex(4)}.{target.name[-200:]}")


def _clear_stale(target: Path) -> None:
    """Removes what writers of `target` that were killed outright, on this machine, have left."""
    left = re.compile(rf"\.partial-{_MACHINE}-(\d+)-[0-9a-f]{{8}}\.{re.escape(target.name[-200:])}")
    for path in target.parent.iterdir():
        match = left.fullmatch(path.name)
        if match and int(match[1]) != os.getpid() and not _lives(int(match[1])):
            with suppress(OSError):  # another writer is clearing up too
                _remove(path)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _settle(path: Path) -> None:
    """On disk before it takes its name: a machine that loses power has the old one or the new one."""
    files = [path] if path.is_file() else [entry for entry in path.rglob("*") if entry.is_file()]
    for file in files:
        with open(file, "rb") as opened:
            try:
                os.fsync(opened.fileno())
            except OSError as problem:
                if problem.errno in _FULL:  # a network disk notices only now
                    raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals wait until the block is over: a second Ctrl-C must not leave half a clean-up behind."""
    if threading.current_thread() is not threading.main_thread():  # Python handles no signals in the others
        yield
        return
    # Not a signal mask: another thread would take the signal, and the main one would still handle it.
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    before = {number: handler for number, handler in before.items() if handler is not None}
    for number in before:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


# -- tables in text ----------------------------------------------------------------------------------------------------


def csv_rows(path: str | os.PathLike[str]) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and rows of a CSV file; a cell that a row lacks is empty."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restval="", skipinitialspace=True)
            columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise UsageError(f"cannot be read: {problem}", where=str(path)) from None
    if twice := [name for name in dict.fromkeys(columns) if name and columns.count(name) > 1]:
        raise UsageError(f"has two columns `{twice[0]}`", where=str(path))
    for number, row in enumerate(rows):
        if None in row:
            raise UsageError(f"has more cells than there are columns ({len(columns)})", where=f"{path}: row {number}")
    return columns, rows


# -- files that are read as memory -------------------------------------------------------------------------------------

_MAPPED: WeakSet[mmap.mmap] = WeakSet()


def mapped(path: str | os.PathLike[str]) -> memoryview:
    """The content of a file, read as it is looked at. It stays when the file's name goes."""
    with open(path, "rb") as f:
        content = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    _MAPPED.add(content)
    return memoryview(content)


def let_go() -> None:
    """What was looked at of mapped files need not stay in memory; it is read again when it is looked at again."""
    for content in _MAPPED:
        if hasattr(mmap, "MADV_DONTNEED"):
            content.madvise(mmap.MADV_DONTNEED)


def python_path() -> str:
    """Where processes look for modules: first where this Etude comes from."""
    own = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH", ""))))

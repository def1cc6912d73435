"""What a command read outside its folder: every file that Python opened and every folder that it listed, with a hash.

An answer is known only while all of that is as it was. Readers that do not open files through Python (Arrow, DuckDB)
name them in an audit event of their own, `OPENED`; words of commands that name something that exists count as well.
"""

import hashlib
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from etude.base.files import OPENED

LISTED: Final = ("os.listdir", "os.scandir")
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CODE: Final = (".pyc", ".nbi", ".nbc", ".etk", ".so")

_SCRATCH: Final = re.compile(rf"{re.escape(tempfile.gettempdir())}/etude-([a-z]+-)*[a-z0-9_]{{8}}(/|$)")
"""Folders that Etude makes for a while."""

_recorders: list["OpensRecorder"] = []


class OpensRecorder:
    """Paths outside a folder that this process reads and writes."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.named: set[str] = set()
        """By words of the command: of a folder all that is in it counts, because other processes may read it."""

    def note(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = given
            writes = (isinstance(mode, str) and any(c in mode for c in "wax+")) or bool((flags or 0) & _WRITES)
            self.put(path, self.written if writes else self.read)
        elif event == OPENED or given[0] not in sys.path_importer_cache:  # where Python looks for modules
            self.put(given[0] if given[0] is not None else ".", self.read)

    def put(self, path: Any, where: set[str]) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            whole = os.path.abspath(os.fsdecode(path))
            if not whole.startswith(self.place + os.sep) and whole != self.place:
                where.add(whole)

    def opened(self) -> dict[str, str]:
        """Path -> hash of what is there, of everything read and not written."""
        found = {}
        for path in sorted(self.read - self.written):
            if not _is_own(path) and (seal := seal_of(path)):
                found[path] = seal
        for path in sorted(self.named - self.written):
            whole = f"{path}{os.sep}" if os.path.isdir(path) else path
            is_made = any(other.startswith(f"{path}{os.sep}") for other in self.written)
            if not _is_own(whole) and not is_made and (seal := seal_of(whole)):
                found[whole] = seal
        return found


@contextmanager
def recording(place: Path, words: Sequence[str]) -> Iterator[OpensRecorder]:
    """Everything that this process reads outside `place` meanwhile, and what words of its command name."""
    recorder = OpensRecorder(str(place))
    for word in words[1:]:
        for part in {word, word.partition("=")[2], word.partition("@")[2]}:
            if os.sep in part and os.path.exists(part):
                recorder.put(part, recorder.named)
    _install()
    _recorders.append(recorder)
    try:
        yield recorder
    finally:
        _recorders.remove(recorder)


def is_as_it_was(opened: Mapping[str, str]) -> bool:
    """Whether everything that was read then is the same now."""
    return all(seal_of(path) == seal for path, seal in opened.items())


def seal_of(path: str) -> str:
    """A hash of a file, of the names in a folder, or, if it ends with a slash, of all that is in it; empty if there is
    nothing."""
    with suppress(OSError):
        if path.endswith(os.sep) and os.path.isdir(path):
            return content(path)
        if os.path.isdir(path):
            return _hashed("\0".join(sorted(os.listdir(path))).encode("utf-8", "surrogateescape"))
        if os.path.isfile(path):
            return content(path)
    return ""


def content(path: str) -> str:
    """A hash of what a file or folder holds."""
    root, digest = Path(path), hashlib.sha256()
    for file in [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file()):
        state = file.stat()
        at = str(file.relative_to(root)).encode() + b"\0"
        digest.update(at + _of_file(str(file), state.st_size, state.st_mtime_ns, state.st_ino).encode())
    return digest.hexdigest()


@lru_cache(65536)
def _of_file(path: str, size: int, time_ns: int, inode: int) -> str:
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _hashed(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _is_own(path: str) -> bool:
    """Etude's code, which keys have already, its caches, Python, and what belongs to the machine."""
    return path.endswith(_CODE) or path.startswith(_own_places()) or _SCRATCH.match(path) is not None


@cache
def _own_places() -> tuple[str, ...]:
    package = str(Path(__file__).resolve().parent.parent.parent)
    python = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    machine = ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib", "/run")
    home = os.path.expanduser("~")
    kept = (
        os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "etude"),
        os.path.join(home, "Library", "Caches", "etude"),
        os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.join(home, ".local", "state"), "etude"),
    )
    places = {package, *python, *machine, *kept} - {"", "/", "/usr/local"}
    return tuple(f"{place}{os.sep}" for place in sorted(places))


@cache
def _install() -> None:
    """Python's audit hooks cannot be taken away again: one for the process, which does nothing while none records."""

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if _recorders and (event == "open" or event == OPENED or event in LISTED):
            for recorder in _recorders:
                recorder.note(event, given)

    sys.addaudithook(hook)

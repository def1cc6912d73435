"""Compiled kernels on disk, to be found and run without Numba.

An entry is a file of its own. Its name holds a digest of all that the code depends on: what the kernel takes
(`digest.taken`), its file and options, the kinds of its arguments, the versions of Python, NumPy, Numba and llvmlite,
the processor, and the settings of Numba. So an entry that is there fits, and one that does not is never opened.

Code that is run must be the user's own: an entry carries the user's seal of its content and of its name
(`etude.base.seals`). One that is damaged, renamed or another's is as one that is not there, and is made again. Where no
key for seals can be kept, nothing is kept.

Entries are where Numba's own are: in the folder NUMBA_CACHE_DIR; else next to the source, or in the user's folder for
caches where that cannot be written. They are written under another name first, so that no process sees an incomplete
one.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import sys
import threading
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from etude.base import seals
from etude.base.errors import UsageError
from etude.kernels import digest, guard, kinds

NUMBA: Final = "0.68."
"""The versions whose inside is known here. With any other, kernels are kept and called by Numba itself."""
SUFFIX: Final = ".etk"
SWITCH: Final = "ETUDE_KERNELS"
"""The environment variable that says what of this folder is used: `numba` nothing, so that Numba compiles and runs
kernels as it does; or names of `PIECES`. Not set: all."""
PIECES: Final = ("inner", "run")
"""Kernels that only kernels call as LLVM's code (`inner.py`), and kernels run without Numba (`native.py`)."""
_OWN: Final = ("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS")
"""Settings that change no code."""

_MAKERS: Final = ("dispatch.py", "elf.py", "guard.py", "inner.py", "kept.py", "kinds.py", "records.py")
"""Files of this folder that decide what code is made of a kernel, and how it is kept."""


class CompiledEntry(NamedTuple):
    """Compiled code of a kernel for some kinds of arguments."""

    name: str  # the symbol that Python calls
    code: bytes  # an object file
    expected: tuple[str, ...]  # symbols that it does not define
    environments: tuple[tuple[str, tuple[Any, ...]], ...]  # (symbol, Python's objects that the code uses)
    guard: bytes  # an object file of `guard.SOURCE`


@cache
def numba_folder() -> Path | None:
    """Where Numba is; it is not imported."""
    found = find_spec("numba")
    return Path(found.origin).parent if found is not None and found.origin else None


@cache
def numba_version() -> str:
    """From the file that Numba has it from; empty if it is not there."""
    folder = numba_folder()
    try:
        told = (folder / "_version.py").read_text("utf-8") if folder else ""
    except OSError:
        return ""
    found = re.search(r'"version": "([^"]+)"', told)
    return found[1] if found else ""


def has_piece(piece: str) -> bool:
    """Whether a piece is not turned off, and was tested with the Numba that is here."""
    told = os.environ.get(SWITCH, "")
    pieces = [] if told == "numba" else told.split(",") if told else PIECES
    if wrong := sorted(set(pieces) - set(PIECES)):
        raise UsageError(
            f"{SWITCH}={told}: there is no {wrong[0] or 'empty name'}", hint=f"numba, or some of {','.join(PIECES)}"
        )
    return piece in pieces and numba_version().startswith(NUMBA)


@cache
def usable() -> bool:
    """Only where this was tested, and only while all settings of Numba are in the environment."""
    return (
        has_piece("run")
        and sys.platform == "linux"
        and sys.implementation.name == "cpython"
        and sys.maxsize > 2**32
        and not os.path.exists(".numba_config.yaml")
        and guard.as_expected()
    )


def _level() -> str:
    """Optimization level: Numba's if it is loaded, since a program may have set it."""
    config = sys.modules.get("numba.core.config")
    return str(int(config.OPT)) if config else os.environ.get("NUMBA_OPT", "3")


@cache
def _ground(level: str, settings: tuple[tuple[str, str], ...]) -> str:
    """A digest of all that every kernel's code depends on."""
    import llvmlite
    from llvmlite import binding

    parts = [
        level,
        repr(settings),
        sys.version,
        np.__version__,
        numba_version(),
        seals.user_digest(),
        llvmlite.__version__,
        binding.get_process_triple(),
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
        *(source_digest(str(Path(__file__).with_name(name))) for name in _MAKERS),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def ground() -> str:
    settings = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith("NUMBA_") and k not in _OWN))
    return _ground(_level(), settings)


@cache
def source_digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class KernelFolder:
    """Where the entries of a kernel are."""

    def __init__(self, function: Any, options: dict[str, Any]) -> None:
        path = os.path.abspath(function.__code__.co_filename)
        source = source_digest(path)  # OSError: a function without a file cannot be cached
        what = (digest.taken(function), source, repr(sorted(options.items())), function.__module__)
        self._taken = hashlib.sha256("\n".join(what).encode()).hexdigest()
        self._stem = re.sub(r"[^\w.]", "", f"{Path(path).stem}.{function.__qualname__}")[:80]
        self._folders = _folders(path)

    def _name(self, kind: tuple[Any, ...]) -> str:
        told = hashlib.sha256("\n".join(kinds.text(one) for one in kind).encode()).hexdigest()
        return f"{self._stem}-{ground()[:16]}-{self._taken[:32]}-{told[:32]}{SUFFIX}"

    def read(self, kind: tuple[Any, ...]) -> CompiledEntry | None:
        name = self._name(kind)
        for folder in self._folders:
            body = read_sealed(os.path.join(folder, name))
            if body is not None:
                return CompiledEntry(*pickle.loads(body))
        return None

    def write(self, kind: tuple[Any, ...], entry: CompiledEntry) -> bool:
        """False if there is nowhere to write to. Entries of the same kernel before it changed are removed."""
        body = pickle.dumps(tuple(entry), protocol=4)
        for folder in self._folders:
            try:
                os.makedirs(folder, exist_ok=True)
                if not write_sealed(os.path.join(folder, self._name(kind)), body):
                    return False
                self._remove_old(folder)
                return True
            except OSError:
                continue
        return False

    def _remove_old(self, folder: str) -> None:
        start = f"{self._stem}-{ground()[:16]}-"
        for name in os.listdir(folder):
            if name.startswith(start) and name.endswith(SUFFIX) and not name.startswith(start + self._taken[:32]):
                os.unlink(os.path.join(folder, name))


def read_sealed(path: str) -> bytes | None:
    """What this user wrote there; None if there is nothing, or it is damaged, renamed or another's."""
    try:
        with open(path, "rb") as file:
            written = file.read()
    except OSError:
        return None
    return seals.content_of(os.path.basename(path), written)


def write_sealed(path: str, body: bytes) -> bool:
    """False where no key can be kept, and so nothing that would be run."""
    written = seals.sealed_file(os.path.basename(path), body)
    if written is None:
        return False
    own = f"{path}.{os.getpid()}.{threading.get_ident()}.tmp"
    try:
        with open(own, "xb") as file:
            file.write(written)
        os.replace(own, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(own)
        raise
    return True


def _folders(path: str) -> list[str]:
    """Those that Numba would take, in its order."""
    folder = os.path.dirname(path)
    below = f"{os.path.basename(folder)}_{hashlib.sha1(folder.encode()).hexdigest()}"
    given = os.environ.get("NUMBA_CACHE_DIR", "")
    if given:
        return [os.path.join(given, below)]
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return [os.path.join(folder, "__pycache__"), os.path.join(user, "numba", below)]

"""Seals of this user on this machine: whether something that would be run, such as code in a recording or a compiled
kernel, was made here.

A seal is a keyed hash; the key is in the user's own folder, and without it no valid seal can be made.
"""

from __future__ import annotations

import hmac
import os
from functools import cache
from pathlib import Path
from typing import Final

SIZE: Final = 32
"""Bytes of a key, and of the seal of a file."""


def seal(text: str) -> str:
    """The seal of a text; empty where no key can be kept, and then nothing counts as made here."""
    key = _key(make=True)
    return hmac.digest(key, text.encode(), "sha256").hex() if key else ""


def made_here(text: str, sealed: str) -> bool:
    """Whether this user sealed the text on this machine."""
    key = _key(make=False)
    return bool(key and sealed) and hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), sealed)


def sealed_file(name: str, body: bytes) -> bytes | None:
    """What is written of a file's content under a name: its seal and itself. None where no key can be kept."""
    key = _key(make=True)
    return hmac.digest(key, _named(name, body), "sha256") + body if key else None


def content_of(name: str, written: bytes) -> bytes | None:
    """The content of a file that this user sealed under this name; None if it is another's, damaged or renamed."""
    key = _key(make=False)
    body = written[SIZE:]
    is_own = bool(key) and hmac.compare_digest(hmac.digest(key, _named(name, body), "sha256"), written[:SIZE])
    return body if is_own else None


def user_digest() -> str:
    """Tells users with different keys apart and says nothing of a key; empty where no key can be kept."""
    key = _key(make=True)
    return hmac.digest(key, b"user", "sha256").hex()[:16] if key else ""


def _named(name: str, body: bytes) -> bytes:
    return b"file\0" + name.encode() + b"\0" + body


def _key(*, make: bool) -> bytes:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return _key_at(os.path.join(base, "etude", "seal.key")) or (_made_key(base) if make else b"")


@cache
def _known_key(path: str, changed_ns: int) -> bytes:
    del changed_ns  # a key that was replaced is read again
    with open(path, "rb") as file:
        key = file.read(SIZE + 1)
    return key if len(key) == SIZE else b""


def _key_at(path: str) -> bytes:
    try:
        return _known_key(path, os.stat(path).st_mtime_ns)
    except OSError:
        return b""


def _made_key(base: str) -> bytes:
    path = Path(base) / "etude" / "seal.key"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_once(path, os.urandom(SIZE))
    except OSError:
        return b""
    return _key_at(str(path))


def _write_once(path: Path, key: bytes) -> None:
    """Of several processes that begin at once one writes it, whole, and all read the same."""
    own = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    handle = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key)
        os.link(own, path)
    except FileExistsError:
        pass
    finally:
        own.unlink()

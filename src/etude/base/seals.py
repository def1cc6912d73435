"""Seals of this user on this machine: whether something that would be run, such as code in a recording, was made here.

A seal is a keyed hash; the key is in the user's own folder, and without it no valid seal can be made.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path


def seal(text: str) -> str:
    """The seal of a text; empty where no key can be kept, and then nothing counts as made here."""
    key = _key(make=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest() if key else ""


def made_here(text: str, sealed: str) -> bool:
    """Whether this user sealed the text on this machine."""
    key = _key(make=False)
    return bool(key and sealed) and hmac.compare_digest(
        hmac.new(key, text.encode(), hashlib.sha256).hexdigest(), sealed
    )


def _key(*, make: bool) -> bytes:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    path = Path(base) / "etude" / "seal.key"
    try:
        if make and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_once(path, secrets.token_bytes(32))
        key = path.read_bytes()
    except OSError:
        return b""
    return key if len(key) == 32 else b""


def _write_once(path: Path, key: bytes) -> None:
    """Of several processes that begin at once one writes it, whole, and all read the same."""
    own = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key)
        os.link(own, path)
    except FileExistsError:
        pass
    finally:
        own.unlink()

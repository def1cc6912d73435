"""Files that are elsewhere: `s3://`, `gs://`, `http(s)://`, `memory://` and what else fsspec has a driver for.

    path = local("s3://bucket/run/")        # a copy of the folder, kept between calls; a path of this machine is itself

A copy is kept under the user's cache folder. Before it is used again the place is asked for the tag (or the time of
the last change) and the size of every file, and only what differs is fetched.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError

DRIVERS: Final = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "http": "aiohttp",
    "https": "aiohttp",
    "memory": "",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "hf": "huggingface_hub",
    "ftp": "",
    "sftp": "paramiko",
}
"""Scheme -> the package that fsspec needs for it; empty: none."""
MOST_FILES: Final = 20_000
"""Files of a folder that are fetched; more is a mistake in the address, as a rule."""
_URL: Final = re.compile(rf"({'|'.join(sorted(DRIVERS, key=len, reverse=True))}):/{{1,2}}(?=[^/])(.*)", re.DOTALL)
_TAGS: Final = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "Last-Modified", "mtime", "updated",
                "modified", "created")  # fmt: skip
_PAGES: Final = ("http", "https")
"""Schemes without folders: a page of links is used as one."""

Advance = Callable[..., None]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at the place: its address there, its name below the folder, bytes (-1: not said) and its tag."""

    address: str
    name: str
    size_bytes: int
    tag: str


def url_of(path: str | os.PathLike[str]) -> str:
    """The address that a text or a path means; empty where it is a path of this machine. `Path` makes one slash
    of two, so `s3:/bucket` is one too."""
    found = _URL.fullmatch(os.fspath(path))
    return f"{found[1]}://{found[2]}" if found else ""


def local(path: str | os.PathLike[str], advance: Advance = lambda amount, note="": None) -> Path:
    """`path` itself, or the copy of what is at an address: a file, a folder, or the files `name.*` of a prefix
    `folder/name`. `advance` is called with bytes as they arrive, and the file they belong to."""
    url = url_of(path)
    return fetch(url, advance) if url else Path(path)


def fetch(url: str, advance: Advance = lambda amount, note="": None) -> Path:
    """The copy of a file, a folder or a prefix, made or renewed."""
    with _told(url):
        files, target, entries = _listing(url)
        base = cache_folder()
        base.mkdir(mode=0o700, parents=True, exist_ok=True)  # what may be read there may not be for all who are here
        place = base / hashlib.sha256(url.encode()).hexdigest()[:16]
        place.mkdir(exist_ok=True)
        index = _index(place)
        for gone in set(index) - {entry.name for entry in entries}:
            (place / gone).unlink(missing_ok=True)
        index = {name: tag for name, tag in index.items() if (place / name).is_file()}
        try:
            for entry in entries:
                _renew(files, entry, place, index, advance)
        finally:
            _write_index(place, url, index)
    return place / target


def size_of(url: str) -> int:
    """Bytes that are there, as far as the place says."""
    with _told(url):
        return sum(max(entry.size_bytes, 0) for entry in _listing(url)[2])


def cache_folder() -> Path:
    """Where copies are kept: $ETUDE_CACHE, else the user's cache folder; a temporary one if neither can be written."""
    given = os.environ.get("ETUDE_CACHE")
    if given:
        base = Path(given)
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches" / "etude"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etude"
    try:
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=base):
            return base / "remote"
    except OSError:
        return _temporary() / "remote"


@cache
def _temporary() -> Path:
    """A folder that only this user can read, for as long as the machine keeps it."""
    return Path(tempfile.mkdtemp(prefix="etude-"))


# -- what is there ----------------------------------------------------------------------------------------------------


def _listing(url: str) -> tuple[Any, str, list[RemoteFile]]:
    """(The driver, what to open of the copy, the files); names begin with that of the file or the folder."""
    files, path = _filesystem(url)
    scheme = url.partition("://")[0]
    name = path.rstrip("/").rpartition("/")[2] or "job"
    if scheme in _PAGES and (url.endswith("/") or "." not in name):
        entries = _of_page(files, f"{path.rstrip('/')}/", name)
        return (files, name, entries) if entries else _of_prefix(files, url, path, name)
    try:
        found = files.info(path)
    except FileNotFoundError:
        return _of_prefix(files, url, path, name)
    if found["type"] != "directory":
        return files, name, [_entry(path, name.partition("?")[0], found)]
    listed = files.find(path, detail=True)
    if not listed:
        raise UsageError("this folder is empty", where=url)
    below = len(found["name"].rstrip("/")) + 1
    return files, name, [_entry(at, f"{name}/{at[below:]}", one) for at, one in _few(url, listed).items()]


def _of_page(files: Any, path: str, name: str) -> list[RemoteFile]:
    """Files that a page of links names, in this folder only."""
    try:
        listed = files.ls(path, detail=True)
    except FileNotFoundError:
        return []
    found = []
    for one in listed:
        at = one["name"]
        if at.startswith(path) and one["type"] == "file" and not set("?#/") & set(at[len(path) :]):
            found.append(_entry(at, f"{name}/{at[len(path) :]}", files.info(at)))
    return found


def _of_prefix(files: Any, url: str, path: str, name: str) -> tuple[Any, str, list[RemoteFile]]:
    """The files `name.*` next to where `name` would be."""
    parent = path.rstrip("/").rpartition("/")[0]
    folder = parent.rpartition("/")[2] or "job"
    if url.partition("://")[0] in _PAGES:
        entries = [e for e in _of_page(files, f"{parent}/", folder) if e.name.startswith(f"{folder}/{name}.")]
    else:
        listed = {one["name"]: one for one in files.ls(parent, detail=True) if one["type"] == "file"}
        mine = {at: one for at, one in listed.items() if at.rpartition("/")[2].startswith(f"{name}.")}
        entries = [_entry(at, f"{folder}/{at.rpartition('/')[2]}", one) for at, one in _few(url, mine).items()]
    if not entries:
        raise FileNotFoundError(f"there is no `{name}`, and nothing that begins with `{name}.`")
    return files, f"{folder}/{name}", entries


def _few(url: str, listed: dict[str, Any]) -> dict[str, Any]:
    if len(listed) > MOST_FILES:
        hint = "choose a subfolder, or one file"
        raise UsageError(f"{len(listed):,} files, more than {MOST_FILES:,}", where=url, hint=hint)
    return listed


def _entry(address: str, name: str, found: Mapping[str, Any]) -> RemoteFile:
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise UsageError(f"it has a file `{name}`", hint="names with `..` are refused")
    tag = next((str(found[key]) for key in _TAGS if found.get(key)), "")
    size = found.get("size")
    return RemoteFile(address, name, size if isinstance(size, int) else -1, tag)


def _filesystem(url: str) -> tuple[Any, str]:
    scheme = url.partition("://")[0]
    try:
        import fsspec
    except ImportError:
        driver = DRIVERS[scheme]
        hint = f"pip install 'etude[remote]'{f' {driver}' if driver else ''}"
        raise UsageError("reading from this address needs fsspec", where=url, hint=hint) from None
    try:
        files, path = fsspec.core.url_to_fs(url)
    except ImportError as problem:
        driver = DRIVERS[scheme] or str(problem)
        raise UsageError(f"no driver for `{scheme}://` is installed", where=url, hint=f"pip install {driver}") from None
    files.invalidate_cache()  # listings that this process has seen may be old
    return files, path


# -- copies ------------------------------------------------------------------------------------------------------------


def _renew(files: Any, entry: RemoteFile, place: Path, index: dict[str, str], advance: Advance) -> None:
    """Fetches a file unless the copy has its tag and size. What has no tag is fetched each time."""
    target = place / entry.name
    mark = f"{entry.size_bytes} {entry.tag}"
    kept = entry.tag and index.get(entry.name) == mark and target.is_file()
    if kept and entry.size_bytes in (-1, target.stat().st_size):
        advance(max(entry.size_bytes, 0), entry.name)
        return
    from fsspec.callbacks import Callback

    class Told(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            advance(inc, entry.name)

    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".partial-{os.getpid()}-{target.name[-200:]}")
    try:
        files.get_file(entry.address, str(partial), callback=Told())
        got = partial.stat().st_size
        if entry.size_bytes >= 0 and got != entry.size_bytes:
            raise UsageError(f"{got:,} bytes came of {entry.size_bytes:,}", where=entry.address, hint="try again")
        os.replace(partial, target)
        index[entry.name] = mark
    finally:
        partial.unlink(missing_ok=True)


def _index(place: Path) -> dict[str, str]:
    """Name -> size and tag of the files of a copy."""
    try:
        found = json.loads(place.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    files = found.get("files") if isinstance(found, dict) else None
    return {str(name): str(mark) for name, mark in files.items()} if isinstance(files, dict) else {}


def _write_index(place: Path, url: str, index: dict[str, str]) -> None:
    text = json.dumps({"url": url, "files": index}, indent=1)
    partial = place.with_suffix(f".{os.getpid()}.partial")
    with suppress(OSError):
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, place.with_suffix(".json"))


# -- what can go wrong -------------------------------------------------------------------------------------------------


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Errors of drivers as ours. Each has its own tree of them, so the rest is known by name and status."""
    try:
        yield
    except (UsageError, KeyboardInterrupt):
        raise
    except FileNotFoundError as problem:
        raise UsageError(f"no such file, folder or bucket: {_first_line(problem)}", where=url) from None
    except Exception as problem:
        name, status = type(problem).__name__, getattr(problem, "status", None)
        if isinstance(problem, PermissionError) or "Credentials" in name or status in (401, 403):
            raise UsageError(f"permission denied: {_first_line(problem)}", where=url, hint=_rights(url)) from None
        if isinstance(problem, OSError | TimeoutError) or "Connect" in name or status is not None:
            raise UsageError(f"cannot be read: {_first_line(problem)}", where=url) from None
        raise UsageError(f"cannot be read: {name}: {_first_line(problem)}", where=url) from problem


def _first_line(problem: BaseException) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:300]


def _rights(url: str) -> str:
    scheme = url.partition("://")[0]
    if scheme in ("s3", "s3a"):
        return "AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for a public bucket FSSPEC_S3_ANON=true"
    if scheme in ("gs", "gcs"):
        return "`gcloud auth application-default login`; for a public bucket FSSPEC_GS_TOKEN=anon"
    return "the storage requires credentials, or denies access"

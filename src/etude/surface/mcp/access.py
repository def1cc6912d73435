"""What a server may open and write: files below its root, copies below its writing folder, names of catalogues."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.files import new_place

MOST_ENTRIES: Final = 1_000_000
"""Entries of a folder that are looked at before it is refused."""
_LISTS: Final = frozenset(",*?[")
"""What makes a path mean several files, wherever these are."""
_DESCRIBES: Final = (".yaml", ".yml", ".json", ".py", ".csv")
"""How names of files end that describe a model, a system or a stack."""
_NAMES_A_FILE: Final = re.compile(r"[\\@]|(?<!\d[KMGT][Bb])/|/(?!s\b)|\.[A-Za-z]")
"""What only names of files have; the slash of a rate (`400GB/s`) is none."""


@dataclass(frozen=True, slots=True)
class FolderAccess:
    """The folders of a server, with every link resolved. Without `write` nothing is written."""

    root: Path
    write: Path | None = None

    @classmethod
    def of(cls, root: str | os.PathLike[str], write: str | os.PathLike[str] | None = None) -> FolderAccess:
        """The access of two folders that exist."""
        return cls(_folder(Path(root), "--root"), None if write is None else _folder(Path(write), "--write"))

    def readable(self, path: str) -> Path:
        """The file, folder or prefix at `path`, which is relative to the root. Whatever is not below the root is
        refused, and so is a folder with a link that leads out of it."""
        if not path or "\0" in path:
            raise UsageError("no path is given", hint="a path below the root of this server")
        place = _resolved(self.root / path)
        if set(str(place)) & _LISTS:
            raise UsageError("lists of files and patterns cannot be opened", where=path, hint="name one job")
        if not self._inside(place):
            raise UsageError("is outside the root of this server", where=path, hint="give a path below the root")
        self._check_links(place, path)
        return place

    def writable(self, name: str) -> Path:
        """Where a copy of that name is written: a new folder right below the writing folder."""
        if self.write is None:
            raise UsageError("this server does not write", hint="start it with `--write DIR`, or leave `out` empty")
        return new_place(self.write, name)

    def noun(self, name: str) -> str:
        """A name of a catalogue, or the path of a file below the root that describes the thing. A folder that happens
        to have the name of a model is none."""
        if "\0" in name:
            raise UsageError("is no name", where=repr(name))
        there, here = (place.exists() if "/" in name else place.is_file() for place in (self.root / name, Path(name)))
        if name and there:
            return str(self.readable(name))
        if not re.fullmatch(r"[\w.+-]+(/[\w.+-]+)?", name) or name.lower().endswith(_DESCRIBES) or here:
            hint = "a name of a catalogue: llama3-8b, org/name-8B, dgx-h100; or a file below the root"
            raise UsageError(f"`{name[:100]}` is no name, and no file below the root of this server", hint=hint)
        return name

    def plain(self, key: str, value: Any) -> Any:
        """A value that names no file: what is in one is read through a parameter that is a path."""
        for text in _texts(value):
            if _NAMES_A_FILE.search(text) or (text and Path(text).is_file()):
                raise UsageError("names a file, which this server does not read", where=key, hint="give the value")
        return value

    def _inside(self, place: Path) -> bool:
        return any(place.is_relative_to(folder) for folder in (self.root, self.write) if folder is not None)

    def _check_links(self, place: Path, shown: str) -> None:
        """A reader opens what is in a folder, or next to a file: no link there may lead out of the root."""
        seen = 0
        for folder, folders, names in os.walk(place if place.is_dir() else place.parent):
            if not place.is_dir():
                folders.clear()
            seen += len(folders) + len(names)
            if seen > MOST_ENTRIES:
                raise UsageError(f"more than {MOST_ENTRIES:,} files", where=shown, hint="name one job in it")
            for name in (*folders, *names):
                entry = Path(folder) / name
                if entry.is_symlink() and not self._inside(_resolved(entry)):
                    raise UsageError(f"the link `{name}` points outside the root", where=shown, hint="copy the file")


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, Sequence):
        for one in value:
            yield from _texts(one)


def _resolved(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as problem:
        raise UsageError("cannot be resolved", where=str(path)) from problem


def _folder(path: Path, what: str) -> Path:
    if not path.is_dir():
        raise UsageError("is not a folder", where=f"{what} {path}", hint="give a folder that exists")
    return _resolved(path)

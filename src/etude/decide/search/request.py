"""What is asked of a search: a space as its file has it, and how to search."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar

from etude.base.errors import UsageError
from etude.base.figures import read
from etude.base.files import csv_rows

T = TypeVar("T")
Execute = Callable[[list[str]], tuple[int, str, str]]
"""Words of a command -> its exit code, stdout and stderr."""
PARALLEL: Final = frozenset({"workers", "ray"})
DRAWING: Final = ("greedy", "anneal")
"""Methods over axes that draw at random."""
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceFile:
    """A space: its kind, and the keys that this kind reads. Every key must be read."""

    kind: str
    keys: Mapping[str, Any]
    where: str
    """The file, for messages."""
    folder: Path = field(default_factory=Path)
    """Folder of the files that it names."""

    def only(self, *known: str) -> None:
        """Refuses keys that this kind does not know."""
        for key in self.keys:
            if key not in known:
                problem = f"unknown key `{key}` of a search over {self.kind}"
                raise UsageError(problem, where=self.where, hint=f"known: {', '.join(known)}")

    def read(self, cls: type[T]) -> T:
        """All keys as a frozen dataclass of `etude.base.figures` figures."""
        return read(cls, self.keys, self.where)

    def path(self, name: str) -> Path:
        """A file that the space names, in its folder."""
        found = self.folder / name
        if not found.exists():
            raise UsageError(f"file `{name}` does not exist", where=self.where)
        return found

    def file_or_name(self, name: str) -> str:
        """A file in the folder of the space, or a name of the catalogue."""
        return str(self.folder / name) if (self.folder / name).is_file() else name

    def noun(self, key: str, hint: str) -> str:
        """The file or the name under a key that is needed."""
        name = self.keys.get(key)
        if not isinstance(name, str) or not name:
            raise UsageError(f"`{key}` is needed", where=self.where, hint=hint)
        return self.file_or_name(name)

    def one_of(self, key: str, known: Iterable[str], usual: str) -> str:
        """A word under a key, of those that are known."""
        return known_word(key, self.keys.get(key, usual), known, self.where)

    def number(self, key: str, usual: float, most: float = inf, hint: str = "") -> float:
        """A positive number."""
        found = self.keys.get(key, usual)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 < found <= most:
            raise UsageError(f"`{key}` is {found}", where=self.where, hint=hint or f"{key}: {usual:g}")
        return float(found)

    def count(self, key: str, usual: int = 0, least: int = 0) -> int:
        found = self.keys.get(key, usual)
        if not isinstance(found, int) or isinstance(found, bool) or found < least:
            raise UsageError(f"`{found}` is not a count", where=f"{self.where}: {key}", hint=f"{key}: {usual or 2}")
        return found

    def table(self, key: str, cls: type[T], name: str = "") -> list[T]:
        """Rows of the CSV file given under `key`. Columns are the figures of `cls`; empty cells are left out. Rows that
        have the same value in the column `name` are refused."""
        file = self.keys.get(key)
        if not isinstance(file, str):
            raise UsageError(f"key `{key}` is missing", where=self.where, hint=f"{key}: {key}.csv")
        return read_table(self.path(file), cls, file, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """How to search."""

    method: str = ""
    """all, dp, greedy, anneal, ilp, lp, joint; empty: the default of the space."""
    workers: int = 1
    ray: str = ""
    out: Path | None = None
    """Folder from which an interrupted search continues."""
    fresh: bool = False
    """Whether what the folder has of earlier searches is not taken."""
    seed: int = 0
    again_s: float = 0.0
    """Search again every this many seconds of simulated time, as links change; 0: once."""
    progress: Progress = lambda what, total: nullcontext(lambda n: None)
    trust: bool = False
    """Whether the file may run programs and Python code, and its commands write outside their folder."""
    execute: Execute | None = None
    """Runs a command in this process, if there is one worker; without it each command has its own process."""

    def once(self, what: str) -> None:
        """Refuses to search again in a space that does not change with time."""
        if self.again_s:
            raise UsageError(f"{what} do not change with time", where="--again", hint="leave out --again")

    def carrying(self) -> dict[str, Any]:
        """How points of a study are carried out."""
        return {name: getattr(self, name) for name in ("workers", "ray", "out", "progress")}

    @property
    def alone(self) -> bool:
        """Whether neither processes nor a cluster are requested."""
        return self.workers == 1 and not self.ray

    def in_turn(self, what: str, hint: str) -> None:
        """Refuses several workers if each candidate depends on the one before."""
        if not self.alone:
            where = "--ray" if self.ray else "--workers"
            raise UsageError(f"{what} simulates one candidate after another", where=where, hint=hint)

    def one_of(self, *known: str) -> str:
        """The method; the first known one if none is requested."""
        method = self.method or known[0]
        if method not in known:
            raise UsageError(f"method `{method}` does not fit this space", hint=f"--method {'|'.join(known)}")
        return method


def known_word(key: str, word: Any, known: Iterable[str], where: str) -> str:
    if word not in known:
        raise UsageError(f"unknown {key} `{word}`", where=where, hint=f"known: {', '.join(known)}")
    return str(word)


def read_table(path: Path, cls: type[T], file: str, name: str = "") -> list[T]:
    """Rows of a CSV file as frozen dataclasses of figures."""
    found, seen = [], set()
    for number, row in enumerate(csv_rows(path)[1], 2):
        where = f"{file}: line {number}"
        found.append(read(cls, {column: text.strip() for column, text in row.items() if text.strip()}, where))
        if name:
            one = row.get(name, "").strip()
            if one in seen:
                raise UsageError(f"`{one}` appears twice", where=where)
            seen.add(one)
    if not found:
        raise UsageError("has no row", where=file)
    return found

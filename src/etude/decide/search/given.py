"""A search space as given in its file, and the caller's options."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from etude.base.errors import UsageError
from etude.base.figures import read

T = TypeVar("T")
Execute = Callable[[list[str]], tuple[int, str, str]]
"""Words of a command -> its exit code, stdout and stderr."""
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
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
                raise UsageError(f"unknown key `{key}` of a search over {self.kind}", where=self.where,
                                 hint=f"known: {', '.join(known)}")  # fmt: skip

    def read(self, cls: type[T]) -> T:
        """All keys as a frozen dataclass of `etude.base.figures` figures."""
        return read(cls, self.keys, self.where)

    def path(self, name: str) -> Path:
        """A file that the space names, in its folder."""
        found = self.folder / name
        if not found.exists():
            raise UsageError(f"file `{name}` does not exist", where=self.where)
        return found


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

"""Every error that Etude raises on purpose.

    EtudeError                     something is wrong; exit code 2
    ├── TraceError                 ... with a trace or a job
    │   ├── FormatError            ... with the bytes of a file: knows the path and the offset
    │   ├── DanglingDependency     a node waits for a node that is not in the trace
    │   └── CycleError             nodes wait for one another in a cycle
    ├── MismatchError              two things that must agree do not
    ├── UsageError                 the caller asked for something that cannot be
    ├── ClusterError               ... with the description of a cluster or a device
    └── AnswerNo                   nothing is broken, the answer is no; exit code 1
        └── DeadlockError          ranks wait for one another and never complete

Each has a problem, a place (`where`) and, if there is one, a way out (`hint`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath


class EtudeError(Exception):
    """Base of all. `str(error)` is `where: problem`, and `hint: ...` on a line of its own.

    try:
        etude.open("job/")
    except etude.EtudeError as problem:
        print(problem.hint)
    """

    exit_code = 2  # 1 is kept for an answer of "no"

    problem: str
    where: str
    hint: str

    def __init__(self, problem: str, *, where: str = "", hint: str = "") -> None:
        self.problem = problem
        self.where = where
        self.hint = hint
        text = f"{where}: {problem}" if where else problem
        super().__init__(f"{text}\nhint: {hint}" if hint else text)


class TraceError(EtudeError):
    """Something is wrong with a trace or a job.

    try:
        etude.open("job/")
    except etude.extend.TraceError as problem:
        print(problem.where)
    """


class FormatError(TraceError):
    """The bytes of a file are not what its format says: `run/w.3.et: byte 1042: ...`."""

    path: str
    offset: int | None

    def __init__(
        self,
        problem: str,
        *,
        path: str | PathLike[str] = "",
        offset: int | None = None,
        where: str = "",
        hint: str = "",
    ) -> None:
        self.path = fspath(path)
        self.offset = offset
        at = "" if offset is None else f"byte {offset}"
        super().__init__(problem, where=": ".join(filter(None, (self.path, at, where))), hint=hint)


class DanglingDependency(TraceError):  # noqa: N818 - the noun says it
    """A node waits for a node that is not in the trace."""


class CycleError(TraceError):
    """Nodes wait for one another in a cycle, so none of them can start."""


class MismatchError(EtudeError):
    """Two things that must agree do not: two traces, a job and its timing, the members of a collective."""


class UsageError(EtudeError):
    """The caller asked for something that cannot be: a bad option, a path that exists already."""


class ClusterError(EtudeError):
    """The description of a cluster, a device or a link makes no sense."""


class AnswerNo(EtudeError):  # noqa: N818 - an answer, not a fault
    """Nothing is broken; the question was answered with no."""

    exit_code = 1


class DeadlockError(AnswerNo):
    """Ranks wait for one another and never complete."""

    waiting: tuple[dict[str, object], ...]
    """Who waits: rank, ranks, node, what it waits at, for whom."""
    causes: tuple[str, ...]
    """The mismatch behind it, where one was found."""

    def __init__(
        self,
        problem: str,
        *,
        waiting: tuple[dict[str, object], ...] = (),
        causes: tuple[str, ...] = (),
        where: str = "",
        hint: str = "",
    ) -> None:
        self.waiting = waiting
        self.causes = causes
        super().__init__(problem, where=where, hint=hint)


@contextmanager
def in_file(where: str) -> Iterator[None]:
    """What is wrong inside is wrong in the description in this file: a ClusterError that names it."""
    try:
        yield
    except EtudeError as problem:
        if where in problem.where:
            raise
        place = f"{where}: {problem.where}" if problem.where else where
        raise ClusterError(problem.problem, where=place, hint=problem.hint) from None

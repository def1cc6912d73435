"""A Python function over the points of a space: here, in processes of this machine, or on Ray. Each point once.

The function takes a point as keywords, and what all points share (a job, a table) after them. It returns a number, or
columns as a mapping; what it raises is the error of its point.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from etude.base.cluster import TRIES
from etude.base.errors import EtudeError, UsageError
from etude.decide.study.points import code_fingerprint
from etude.decide.study.tasks import Answer
from etude.decide.study.team import Do, Family, Team, forks

Function: TypeAlias = Callable[..., Any]
RunCalls: TypeAlias = Callable[[Sequence["FunctionCall"]], Iterator[tuple["FunctionCall", Answer]]]
VALUE = "value"
"""Column of a function that returns a number."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """The function at one point."""

    key: str
    at: Mapping[str, Any]
    name: str

    def shown(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.at.items())})"


def calls(function: Function, points: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]) -> list[FunctionCall]:
    """Keys are of the function's code, of Etude's, of what points share and of the point."""
    return calls_at(function, points, seal_of(function, shared))


def seal_of(function: Function, shared: Mapping[str, Any]) -> bytes:
    """What all keys of a function have in common."""
    whole = hashlib.sha256(_code(function) + code_fingerprint().encode() + _pickled(shared, "what points share"))
    return whole.digest()


def calls_at(function: Function, points: Sequence[Mapping[str, Any]], seal: bytes) -> list[FunctionCall]:
    """`seal`: of `seal_of`, which is long where points share much."""
    found = []
    for at in points:
        key = hashlib.sha256(seal + repr(sorted(at.items())).encode()).hexdigest()[:32]
        found.append(FunctionCall(key, at, getattr(function, "__qualname__", repr(function))))
    return found


def _code(function: Function) -> bytes:
    """The code of a function, as far as its source shows it."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        text = f"{code.co_code!r}{code.co_consts!r}{code.co_names!r}" if code else repr(function)
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}\n{text}".encode()


def _pickled(value: Any, what: str) -> bytes:
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as problem:
        raise UsageError(
            f"{what} cannot be sent to other processes: {problem}", hint="use a function of a module, or workers=1"
        ) from None


def called(function: Function, at: Mapping[str, Any], shared: Mapping[str, Any]) -> Answer:
    """What the function says of a point, or why it does not."""
    try:
        found = function(**at, **shared)
        columns = dict(found) if isinstance(found, Mapping) else {VALUE: found}
        out = json.dumps(columns, default=_plain)
    except EtudeError as problem:
        return {"answers": [], "error": str(problem).replace("\n", "; ")}
    except Exception as problem:
        return {"answers": [], "error": f"{type(problem).__name__}: {problem}"}
    return {"answers": [{"code": 0, "out": out}], "error": ""}


def _plain(value: Any) -> Any:
    """Numbers and arrays of NumPy as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise UsageError(
        f"the function returns {type(value).__name__}, which cannot be a column", hint="numbers, texts, lists of them"
    )


def columns_of(found: Answer) -> dict[str, Any]:
    """The columns that a function returned. Raises UsageError if the answer holds none."""
    if found["error"]:
        return {}
    try:
        return dict(json.loads(found["answers"][0]["out"]))
    except (IndexError, TypeError, ValueError, RecursionError):
        raise UsageError("a stored answer holds no columns", hint="--fresh, or another folder") from None


# -- where it runs -----------------------------------------------------------------------------------------------------


def here(function: Function, shared: Mapping[str, Any]) -> RunCalls:
    def run(some: Sequence[FunctionCall]) -> Iterator[tuple[FunctionCall, Answer]]:
        for call in some:
            yield call, called(function, call.at, shared)

    return run


_given: tuple[Function, Mapping[str, Any]] | None = None
"""Of a process: the function and what points share, sent once."""


def _begin(packed: bytes) -> None:
    global _given
    _given = pickle.loads(packed)


def _in_process(at: Mapping[str, Any]) -> Answer:
    assert _given is not None
    return called(_given[0], at, _given[1])


def _opened(packed: bytes) -> Do:
    """What answers at a point, in a process that stays."""
    function, shared = pickle.loads(packed)
    return lambda at: called(function, at, shared)


def in_processes(function: Function, shared: Mapping[str, Any], count: int) -> RunCalls:
    """A pool of processes; a point whose process dies is tried again in a new pool, alone from the second time on."""
    packed = _pickled((function, dict(shared)), "the function")

    def run(some: Sequence[FunctionCall]) -> Iterator[tuple[FunctionCall, Answer]]:
        left = list(some)
        for _ in range(TRIES - 1):
            broken: list[FunctionCall] = []
            yield from _pooled(left, packed, count, broken)
            left = broken
        for call in left:
            lost: list[FunctionCall] = []
            yield from _pooled([call], packed, 1, lost)
            for one in lost:
                yield one, {"answers": [], "error": f"its process died {TRIES} times"}

    return run


@contextmanager
def staying(
    function: Function, shared: Mapping[str, Any], count: int, family: Family | None = None
) -> Iterator[RunCalls]:
    """Processes that stay from one run to the next; what is lost with one of them is run again by `in_processes`.
    Calls of one `family` go to one process."""
    packed = _pickled((function, dict(shared)), "the function")
    team = Team(_opened, packed, count, family)

    def run(some: Sequence[FunctionCall]) -> Iterator[tuple[FunctionCall, Answer]]:
        lost: list[int] = []
        for number, answer in team.run([call.at for call in some], lost):
            yield some[number], answer
        yield from in_processes(function, shared, count)([some[number] for number in lost])

    try:
        yield run
    finally:
        team.close()


def _pool(count: int, packed: bytes) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, multiprocessing.get_context("fork" if forks() else "spawn"), _begin, (packed,))


def _pooled(
    some: Sequence[FunctionCall], packed: bytes, count: int, broken: list[FunctionCall]
) -> Iterator[tuple[FunctionCall, Answer]]:
    if not some:
        return
    pool = _pool(min(count, len(some)), packed)
    try:
        yield from _answers(pool, some, broken)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _answers(
    pool: ProcessPoolExecutor, some: Sequence[FunctionCall], broken: list[FunctionCall]
) -> Iterator[tuple[FunctionCall, Answer]]:
    waiting: dict[Future[Answer], FunctionCall] = {pool.submit(_in_process, dict(call.at)): call for call in some}
    while waiting:
        for future in wait(waiting, return_when=FIRST_COMPLETED)[0]:
            call = waiting.pop(future)
            try:
                yield call, future.result()
            except BrokenProcessPool:
                broken.append(call)


def on_ray(function: Function, shared: Mapping[str, Any], address: str, workers: int) -> RunCalls:
    """The same as `staying_on_ray`, for one run."""

    def run(some: Sequence[FunctionCall]) -> Iterator[tuple[FunctionCall, Answer]]:
        if some:
            with staying_on_ray(function, shared, address, workers) as there:
                yield from there(some)

    return run


@contextmanager
def staying_on_ray(function: Function, shared: Mapping[str, Any], address: str, workers: int) -> Iterator[RunCalls]:
    """A task of Ray for each point. The function and what points share go through its object store, once; the cluster
    stays connected from one run to the next; a task whose machine is lost is tried again."""
    from etude.base.cluster import as_done, connected

    with connected(address, workers) as ray:
        given = ray.put((function, dict(shared)))

        def run(some: Sequence[FunctionCall]) -> Iterator[tuple[FunctionCall, Answer]]:
            for number, reference in as_done(ray, _on_ray, [(given, dict(call.at)) for call in some], workers):
                yield some[number], _answer(ray, reference)

        yield run


def _on_ray(given: tuple[Function, Mapping[str, Any]], at: Mapping[str, Any]) -> Answer:
    return called(given[0], at, given[1])


def _answer(ray: Any, reference: Any) -> Answer:
    try:
        found: Answer = ray.get(reference)
    except ray.exceptions.RayError as problem:
        why = str(problem).strip().splitlines()[-1]
        return {"answers": [], "error": f"its machine was lost {TRIES} times: {why}"}
    return found

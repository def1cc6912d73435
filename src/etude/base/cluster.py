"""A Ray cluster: connected to, or started on this machine; and functions that are called there."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.files import python_path

AUTO: Final = "auto"
LOCAL: Final = "local"
TRIES: Final = 2
"""How often a task is tried whose worker dies under it."""


def spread(address: str, workers: int = 0) -> Callable[..., Iterator[Any]]:
    """What calls a function with each of these arguments on a cluster, and gives the results as they are done."""

    def each(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        with connected(address, workers) as ray:
            for number, reference in as_done(ray, function, arguments, workers):
                try:
                    yield ray.get(reference)
                except ray.exceptions.RayTaskError as problem:
                    raise problem.cause from None
                except ray.exceptions.RayError as problem:
                    why = str(problem).strip().splitlines()[-1]
                    raise UsageError(f"part {number} was lost {TRIES} times: {why}", where=f"--ray {address}") from None

    return each


def as_done(
    ray: Any, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[tuple[int, Any]]:
    """(number of the arguments, reference to what came of them), two for each CPU in progress at a time. A task whose
    machine is lost is tried again."""
    task = ray.remote(num_cpus=1, max_retries=TRIES - 1)(function)
    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    most, left = 2 * min(workers or cpus, cpus), list(range(len(arguments)))[::-1]
    running: dict[Any, int] = {}
    try:
        while left or running:
            while left and len(running) < most:
                number = left.pop()
                running[task.remote(*arguments[number])] = number
            for reference in ray.wait(list(running), num_returns=1)[0]:
                yield running.pop(reference), reference
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


@contextmanager
def connected(address: str, workers: int) -> Iterator[Any]:
    """Ray, connected: the cluster that this process is in already, else `auto`: the one that is there, or a new one on
    this machine; `local`: a new one; or that at an address."""
    ray = _ray()
    own = not ray.is_initialized()
    if own:
        _connect(ray, address, workers)
    try:
        yield ray
    finally:
        if own:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError("Ray is not installed", hint="pip install 'etude[ray]'") from None
    return ray


def _connect(ray: Any, address: str, workers: int) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    new = {"include_dashboard": False, "num_cpus": workers or None, "address": LOCAL}
    if address == LOCAL:
        _start(ray, new | quiet)
        return
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as problem:
        if address != AUTO:
            reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
            raise UsageError(f"cannot be reached: {reason}", where=f"--ray {address}") from None
        _start(ray, new | quiet)


def _start(ray: Any, given: dict[str, Any]) -> None:
    """A cluster on this machine, whose processes find this Etude."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = python_path()
    try:
        ray.init(**given)
    except Exception as problem:  # a node that is too slow to start raises no other class
        raise UsageError(f"Ray did not start: {str(problem).strip().splitlines()[-1]}", where="--ray") from None
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before

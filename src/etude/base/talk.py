"""What is said in addition to a result: notes, and progress of long work. Whoever runs a verb decides where it goes.

The command line says it on stderr; without anybody to listen, notes go to the logger `etude`.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

Say: TypeAlias = Callable[[str], None]
Progress: TypeAlias = Callable[..., AbstractContextManager[Callable[..., None]]]
"""(what, total) -> `advance(amount, note="")`."""


def quiet(what: str, total: int | None = None) -> AbstractContextManager[Callable[..., None]]:
    """Progress that is not shown."""
    return nullcontext(lambda amount, note="": None)


_heard: list[tuple[Say, Progress]] = [(logging.getLogger("etude").warning, quiet)]


def say(text: str) -> None:
    """A line in addition to the result."""
    _heard[-1][0](text)


def progress(what: str, total: int | None = None) -> AbstractContextManager[Callable[..., None]]:
    """Gives `advance(amount, note="")` while work goes on."""
    return _heard[-1][1](what, total)


@contextmanager
def heard(say: Say, progress: Progress) -> Iterator[None]:
    """What is said goes there."""
    _heard.append((say, progress))
    try:
        yield
    finally:
        _heard.pop()

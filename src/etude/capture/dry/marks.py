"""Ends of steps that a driver of a dry run sets itself, where there is no optimizer to tell."""

from collections.abc import Callable

_LISTENERS: list[Callable[[], None]] = []


def on_end_of_step(listener: Callable[[], None]) -> None:
    """Calls `listener` at every end of a step that is marked."""
    _LISTENERS.append(listener)


def end_step() -> None:
    """Ends the step: operators from here on belong to the next one."""
    for listener in _LISTENERS:
        listener()

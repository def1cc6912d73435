"""Records process groups before they are destroyed, since they are unknown afterwards."""

import functools
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

_PLACES = (
    ("torch.distributed", "destroy_process_group"),
    ("torch.distributed.distributed_c10d", "destroy_process_group"),
    # Called inside of it, in case the program imported the function before us.
    ("torch.distributed.distributed_c10d", "_update_default_pg"),
)


class GroupWatch:
    """From `GroupWatch(...)` to `stop()`: `look()` is called before groups are destroyed."""

    def __init__(self, torch: Any, look: Callable[[], None]) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        distributed = getattr(torch, "distributed", None)
        if distributed is None or not distributed.is_available():
            return
        for module_name, name in _PLACES:
            module = import_module(module_name)
            original = getattr(module, name, None)
            if original is None:  # another version of PyTorch
                continue
            new = _looking_first(original, look)
            setattr(module, name, new)
            self._replaced.append((module, name, new, original))

    def stop(self) -> None:
        for module, name, new, original in self._replaced:
            if getattr(module, name) is new:
                setattr(module, name, original)
        self._replaced = []


def _looking_first(original: Callable[..., Any], look: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **named: Any) -> Any:
        with suppress(Exception):  # unknown groups are then missing in the manifest; the program continues
            look()
        return original(*args, **named)

    return wrapper


def with_earlier(earlier: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Includes groups that are gone by now but existed during the recording."""
    known = [(group["pg_name"], group["ranks"]) for group in now]
    return [*(group for group in earlier if (group["pg_name"], group["ranks"]) not in known), *now]

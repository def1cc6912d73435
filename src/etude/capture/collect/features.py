"""Features of the installed PyTorch, queried from PyTorch itself: no table of versions."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from etude.base.errors import UsageError


def torch() -> Any:
    """PyTorch, if it is installed and can record."""
    try:
        module = import_module("torch")
        profiler = import_module("torch.profiler")
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] != "torch":
            raise
        raise UsageError("PyTorch is not installed", where="collect", hint="pip install etude[torch]") from None
    if not hasattr(profiler, "ExecutionTraceObserver"):
        raise UsageError(
            f"PyTorch {module.__version__} has no ExecutionTraceObserver in torch.profiler",
            where="collect",
            hint="pip install --upgrade etude[torch]",
        )
    return module


def activities(torch: Any) -> list[Any]:
    """What the profiler can record here. A CUDA build on a machine without GPU would only warn about it."""
    found = torch.profiler.supported_activities()
    kinds = torch.profiler.ProfilerActivity
    if not torch.cuda.is_available():
        found = {kind for kind in found if kind != kinds.CUDA}
    return sorted(found, key=str)


def experimental(torch: Any, *, sync_events: bool, stacks: bool, memory: bool) -> Any:
    """Profiler settings that older versions do not know, each tried by itself. None if there is nothing to set."""
    settings = {}
    if any_thread_may_stop(torch, memory=memory):
        settings["profile_all_threads"] = True  # as the observer does
    if sync_events and torch.cuda.is_available():
        settings["enable_cuda_sync_events"] = True
    if not stacks:
        settings["trace_only"] = True  # only the file is wanted: build no Python object per event
    config: Any = getattr(getattr(torch._C, "_profiler", None), "_ExperimentalConfig", None)
    if config is None:
        return None
    known = {key: value for key, value in settings.items() if _takes(config, key, value)}
    return config(**known) if known else None


def any_thread_may_stop(torch: Any, *, memory: bool) -> bool:
    """Whether a profiler with `experimental` settings belongs to the process rather than to the thread that started
    it. Allocations are recorded by the latter kind alone."""
    if memory:
        return False
    config: Any = getattr(getattr(torch._C, "_profiler", None), "_ExperimentalConfig", None)
    return config is not None and _takes(config, "profile_all_threads", True)


def _takes(config: Any, key: str, value: object) -> bool:
    try:
        config(**{key: value})
    except TypeError:
        return False
    return True


def accepts(function: Any, argument: str) -> bool:
    return argument in inspect.signature(function).parameters


def compiling(torch: Any) -> Callable[[], bool]:
    """Whether `torch.compile` is tracing the calling code rather than running it."""
    found: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
    return found


def distributed(torch: Any) -> Any:
    """`torch.distributed` if it is built in and initialised, else None."""
    module = getattr(torch, "distributed", None)
    return module if module is not None and module.is_available() and module.is_initialized() else None

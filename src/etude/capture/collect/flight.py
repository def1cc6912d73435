"""Entries of the Flight Recorder, which know the process group of a gloo collective; the profiler does not."""

import os
import pickle
from importlib import import_module
from typing import Any

_BUFFER = "TORCH_FR_BUFFER_SIZE"
_ENTRIES = 20_000
_DUMPS = ("_dump_fr_trace", "_dump_nccl_trace")  # the newer name, which also knows gloo, first


def ask_for_room(environment: Any = os.environ) -> None:
    """Requests a buffer for many steps. Has an effect only before the first use of a process group."""
    environment.setdefault(_BUFFER, str(_ENTRIES))


def entries(rank: int, groups: list[dict[str, Any]], start_ns: int, end_ns: int) -> dict[str, Any] | None:
    """Entries issued from `start_ns` to `end_ns` (Unix time), or None if there are none."""
    recorded = _dump()
    if not recorded:
        return None
    inside = [
        {key: value for key, value in entry.items() if key != "frames"}
        for entry in recorded.get("entries", ())
        if start_ns <= entry.get("time_created_ns", -1) <= end_ns
    ]
    if not inside:
        return None
    return {"version": recorded.get("version", ""), "rank": rank, "pg_config": groups, "entries": inside}


def _dump() -> dict[str, Any]:
    try:
        c10d = import_module("torch._C._distributed_c10d")
    except ImportError:
        return {}
    for name in _DUMPS:
        dump = getattr(c10d, name, None)
        if dump is None:
            continue
        try:
            found = pickle.loads(dump(includeCollectives=True, includeStackTraces=False, onlyActive=False))
        except (TypeError, RuntimeError, ValueError, pickle.UnpicklingError):
            continue
        if isinstance(found, dict):
            return found
    return {}

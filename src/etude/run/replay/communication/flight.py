"""Compares what went over the backend, as PyTorch's own Flight Recorder saw it, with the program, call by call.

On gloo the recorder sees collectives but no messages; messages are checked by the tensors that were passed to the
call.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from importlib import import_module
from math import prod
from typing import Any, Final

from etude.run.replay.program import CommKind, Program

BUFFER: Final = "TORCH_FR_BUFFER_SIZE"
_WIDTH: Final = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
_NAMES: Final = {
    CommKind.ALL_REDUCE: "all_reduce", CommKind.REDUCE: "reduce", CommKind.ALL_GATHER: "all_gather",
    CommKind.GATHER: "gather", CommKind.SCATTER: "scatter", CommKind.BROADCAST: "broadcast",
    CommKind.ALL_TO_ALL: "all_to_all", CommKind.REDUCE_SCATTER: "reduce_scatter",
    CommKind.REDUCE_SCATTER_BLOCK: "reduce_scatter", CommKind.BARRIER: "barrier",
}  # fmt: skip


def ask_for_room(entries: int) -> None:
    """Requests a buffer for this many entries. Must be called before the first process group is created."""
    for name in (BUFFER, "TORCH_NCCL_TRACE_BUFFER_SIZE"):  # the second is for versions that record NCCL only
        os.environ[name] = str(entries)


def recorded() -> list[dict[str, Any]]:
    """The entries of this process, in order of issue; empty if this PyTorch records none."""
    try:
        c10d = import_module("torch._C._distributed_c10d")
    except ImportError:
        return []
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        try:
            found = pickle.loads(getattr(c10d, name)(True, False, False))
        except (AttributeError, TypeError, RuntimeError, ValueError):
            continue
        entries = found.get("entries", []) if isinstance(found, dict) else []
        if entries:
            return sorted(entries, key=lambda entry: int(entry["record_id"]))
    return []


def differences(
    program: Program,
    rows: Sequence[int],
    entries: Sequence[Mapping[str, Any]],
    group_names: Mapping[int, str],
    *,
    gloo: bool,
) -> list[str]:
    """How the entries differ from the calls `rows`, which were issued in this order; empty if they agree.

    Sizes are those of the program; gloo carries a reduce-scatter out as an all-reduce of its input.
    """
    comms, found = program.comms, list[str]()
    if len(rows) != len(entries):
        return [f"{len(rows)} calls were issued but {len(entries)} were recorded"]
    for row, entry in zip(rows, entries, strict=True):
        kind = CommKind(int(comms.kind[row]))
        name = _plain(str(entry["profiling_name"]))
        wanted = _NAMES[kind]
        into, out = int(comms.in_bytes[row]), int(comms.out_bytes[row])
        if gloo and wanted == "reduce_scatter":
            wanted, out = "all_reduce", into
        sizes = _bytes(entry, "input"), _bytes(entry, "output")
        place = f"call {row + 1}, {kind.name.lower()}"
        if name != wanted:
            found.append(f"{place}: recorded as {name}")
        elif kind in (CommKind.GATHER, CommKind.SCATTER):
            if max(sizes) != max(into, out):
                found.append(f"{place}: {max(into, out):,} B planned, {max(sizes):,} B recorded")
        elif kind != CommKind.BARRIER and sizes != (into, out):
            found.append(f"{place}: {into:,} and {out:,} B planned, {sizes[0]:,} and {sizes[1]:,} B recorded")
        if str(entry["process_group"][0]) != group_names[row]:
            found.append(f"{place}: recorded on group {entry['process_group'][0]}, not {group_names[row]}")
    return found


def _plain(name: str) -> str:
    """`nccl:_all_gather_base` -> `all_gather`."""
    return name.partition(":")[2].removeprefix("_").removesuffix("_base").replace("alltoall", "all_to_all")


def _bytes(entry: Mapping[str, Any], side: str) -> int:
    sizes, dtypes = entry.get(f"{side}_sizes", []), entry.get(f"{side}_dtypes", [])
    widths = [_WIDTH.get(str(dtype), 0) for dtype in dtypes]
    if len(widths) < len(sizes):
        widths = widths[:1] * len(sizes)
    return sum(prod(size) * width for size, width in zip(sizes, widths, strict=False))

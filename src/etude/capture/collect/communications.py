"""Every call of `torch.distributed` in a window: group, number, peer, tag, bytes, data type and times.

The calls of Python all pass the methods of `ProcessGroup`: those of `torch.distributed`, of FSDP, of pipelines, of
object collectives. What PyTorch calls in C++ (the reducer of DDP, functional collectives) does not pass there; the
Flight Recorder has it, if the backend keeps one.
"""

import contextlib
import functools
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from etude.capture.collect import features

FORMAT = 1
_TENSORS = {
    "barrier": 0, "monitored_barrier": 0,
    "allreduce": 1, "allreduce_coalesced": 1, "broadcast": 1, "reduce": 1, "send": 1, "recv": 1, "recv_anysource": 1,
    "allgather": 2, "_allgather_base": 2, "all_gather_single": 2, "allgather_coalesced": 2,
    "allgather_into_tensor_coalesced": 2, "all_gather_single_coalesced": 2, "reduce_scatter": 2,
    "_reduce_scatter_base": 2, "reduce_scatter_single": 2, "reduce_scatter_tensor_coalesced": 2,
    "reduce_scatter_single_coalesced": 2, "gather": 2, "scatter": 2, "alltoall": 2, "alltoall_base": 2,
    "all_to_all_single": 2,
}  # fmt: skip
"""Methods, and how many of their first arguments are tensors: what is written, then what is read."""
_LISTS = (list, tuple)
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_DTYPES = {
    "Double": ("float64", 8), "Float": ("float32", 4), "Half": ("float16", 2), "BFloat16": ("bfloat16", 2),
    "Float8_e4m3fn": ("float8_e4m3fn", 1), "Float8_e5m2": ("float8_e5m2", 1), "Long": ("int64", 8),
    "Int": ("int32", 4), "Short": ("int16", 2), "Char": ("int8", 1), "Byte": ("uint8", 1), "Bool": ("bool", 1),
    "ComplexFloat": ("complex64", 8), "ComplexDouble": ("complex128", 16),
}  # fmt: skip
"""Data types and their bytes, as the Flight Recorder names them."""


class CallRecorder:
    """From `CallRecorder(...)` to `stop()`: `calls` holds a row for each call, in the order in which they were made."""

    def __init__(self, torch: Any) -> None:
        self.calls: list[dict[str, Any]] = []
        self._dist: Any = getattr(torch, "distributed", None)
        self._compiling = features.compiling(torch)
        self._members: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        self._pending: weakref.WeakKeyDictionary[Any, tuple[Any, dict[str, Any]]] = weakref.WeakKeyDictionary()
        """Group and row of each work that is not known to be over. Weak: a work holds its tensors."""
        self._inside = threading.local()
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        if self._dist is None or not self._dist.is_available():
            return
        for name in _TENSORS:
            self._replace(self._dist.ProcessGroup, name, self._calling)
        self._replace(self._dist.Work, "wait", self._waiting)
        self._replace(self._dist.Work, "is_completed", self._asking)

    def stop(self) -> None:
        for owner, name, new, original in self._replaced:
            if vars(owner).get(name) is new:
                setattr(owner, name, original)
        self._replaced = []

    def _replace(self, owner: Any, name: str, wrap: Callable[[str, Any], Any]) -> None:
        original = vars(owner).get(name)
        if original is None:  # another version of PyTorch
            return
        # The original is a function of C++ and is called as a method: `owner.name` would be bound to the class.
        new = functools.wraps(getattr(owner, name))(wrap(name, getattr(owner, name)))
        setattr(owner, name, new)
        self._replaced.append((owner, name, new, original))

    def _calling(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, *args: Any, **named: Any) -> Any:
            if self._compiling() or getattr(self._inside, "call", False):
                return original(group, *args, **named)
            self._inside.call = True  # a class in Python may make its calls of others
            try:
                before = _number(group)
                issued_ns = time.time_ns()
                work = original(group, *args, **named)
                returned_ns = time.time_ns()
            finally:
                self._inside.call = False
            with contextlib.suppress(Exception):  # the row is missing then; the program continues
                after = _number(group)
                # another thread may have called in between: then it is unknown which number was whose
                number = after if before is not None and after == before + 1 else None
                row = self._row(name, group, [*args, *named.values()], number)
                row |= {"issued_ns": issued_ns, "returned_ns": returned_ns, "waited_ns": None, "completed_ns": None}
                self.calls.append(row)
                if work is not None:
                    self._pending[work] = group, row
            return work

        return call

    def _waiting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(work: Any, *args: Any, **named: Any) -> Any:
            waited_ns = time.time_ns()
            result = original(work, *args, **named)
            self._over(work, waited_ns)
            return result

        return wait

    def _asking(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def is_completed(work: Any) -> Any:
            found = original(work)
            if found:
                self._over(work, None)
            return found

        return is_completed

    def _over(self, work: Any, waited_ns: int | None) -> None:
        with contextlib.suppress(Exception):
            group, row = self._pending.pop(work, (None, None))
            if row is None:
                return
            row["waited_ns"] = waited_ns
            if row["device"] == "cpu":  # a wait on a GPU lets its stream wait and returns at once
                row["completed_ns"] = time.time_ns()
            if row["name"] == "recv_anysource":
                row["peer"] = self._global(group, work._source_rank())

    def _row(self, name: str, group: Any, values: list[Any], number: int | None) -> dict[str, Any]:
        count = _TENSORS[name]
        tensors, rest = [_flat(value) for value in values[:count]], values[count:]
        first = next((side[0] for side in reversed(tensors) if side), None)
        sides = [sum([one.numel() * one.element_size() for one in side]) for side in tensors] or [0]
        peer = rest[0] if name in ("send", "recv") else None
        root = getattr(rest[0], "rootRank", rest[0]) if name in _ROOTED and rest else None
        tag = rest[-1] if name in ("send", "recv", "recv_anysource") else None
        return {
            "name": name,
            "group": str(group.group_name),
            "sequence": None,
            "operation": number,
            "peer": self._global(group, peer),
            "root": self._global(group, root),
            "tag": tag,
            "in_bytes": sides[-1],
            "out_bytes": sides[0],
            "dtype": str(first.dtype).removeprefix("torch.") if first is not None else "",
            "device": "cpu" if first is None or first.is_cpu else str(first.device.type),
            "thread": threading.get_native_id(),
        }

    def _global(self, group: Any, group_rank: Any) -> int | None:
        if not isinstance(group_rank, int):
            return None
        members = self._members.get(group)
        if members is None:
            members = self._members[group] = [int(rank) for rank in self._dist.get_process_group_ranks(group)]
        return members[group_rank] if 0 <= group_rank < len(members) else None


def _number(group: Any) -> int | None:
    """How many calls a group has had, those of C++ included; None if the backend does not count. Gloo counts messages
    too, NCCL only collectives."""
    try:
        return int(group._get_sequence_number_for_group())
    except Exception:
        return None


def _flat(value: Any) -> list[Any]:
    """The tensors of an argument: one, a list, or a list of lists."""
    if not isinstance(value, _LISTS):
        return [value]
    return [one for inner in value for one in inner] if value and isinstance(value[0], _LISTS) else list(value)


# -- what Python did not call ------------------------------------------------------------------------------------------


def all_calls(calls: list[dict[str, Any]], entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The calls with those that only the Flight Recorder has seen, by time. Its entries are made inside a call."""
    rows = deque(sorted(calls, key=lambda row: row["issued_ns"]))
    last: dict[tuple[str, int], dict[str, Any]] = {}  # by group and thread, which makes one call at a time
    found = list(rows)
    for entry in sorted(entries, key=lambda entry: int(entry["time_created_ns"])):
        group, made_ns = str(entry["process_group"][0]), int(entry["time_created_ns"])
        while rows and rows[0]["issued_ns"] <= made_ns:
            row = rows.popleft()
            last[row["group"], row["thread"]] = row
        inside = [row for (of, _), row in last.items() if of == group and made_ns <= row["returned_ns"]]
        if len(inside) == 1:
            inside[0].update(_numbers(entry))
        elif not inside:
            found.append(_of_entry(entry, group, made_ns))
    return sorted(found, key=lambda row: row["issued_ns"])


def _numbers(entry: Mapping[str, Any]) -> dict[str, int | None]:
    number = entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id")
    return {"sequence": number, "operation": entry.get("op_id")}


def _of_entry(entry: Mapping[str, Any], group: str, made_ns: int) -> dict[str, Any]:
    types = entry.get("input_dtypes") or entry.get("output_dtypes") or ()
    return {
        "name": str(entry.get("profiling_name", "")),
        "group": group,
        **_numbers(entry),
        "peer": None,
        "root": None,
        "tag": None,
        "in_bytes": _bytes(entry.get("input_sizes"), entry.get("input_dtypes")),
        "out_bytes": _bytes(entry.get("output_sizes"), entry.get("output_dtypes")),
        "dtype": _DTYPES.get(types[0], ("", 0))[0] if types else "",
        "device": None,
        "thread": None,
        "issued_ns": made_ns,
        "returned_ns": None,
        "waited_ns": None,
        "completed_ns": entry.get("time_discovered_completed_ns"),
    }


def _bytes(sizes: list[list[int]] | None, types: list[str] | None) -> int | None:
    if sizes is None or types is None or len(types) not in (1, len(sizes)) or any(t not in _DTYPES for t in types):
        return None
    widths = [_DTYPES[one][1] for one in types] * (len(sizes) if len(types) == 1 else 1)
    return sum(math.prod(shape) * width for shape, width in zip(sizes, widths, strict=True))

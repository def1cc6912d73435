"""Snapshots of PyTorch's caching allocator (`torch.cuda.memory._dump_snapshot`): segments, blocks, and the last events.

The file is a pickle; only plain values of it are read, anything else is refused, so none of its code runs. What owns a
block follows from the stack of its allocation, where one was recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from etude.base.errors import FormatError
from etude.capture.ingest import plain_pickle

__all__ = ["AllocatorSnapshot", "is_snapshot", "read_snapshot"]

PICKLE: Final = b"\x80"
LIVE: Final = ("active_allocated", "active_pending_free", "active_awaiting_free")
"""States of a block that cannot be given to another tensor; the last two wait for a stream."""
ADDED, REMOVED = "alloc", "free_completed"
OWNERS: Final = (
    ("optimizer", ("torch/optim/",), ()),
    ("workspaces", (), ("getChosenWorkspace", "CUDABlasHandle", "cublas", "cudnn", "Workspace")),
    ("gradients", ("torch/autograd/",), ("torch::autograd::Engine", "backward", "AccumulateGrad")),
    (
        "weights",
        ("torch/nn/init.py", "safetensors/"),
        ("_apply", "load_state_dict", "reset_parameters", "from_pretrained"),
    ),
    ("activations", ("torch/nn/", "torch/_functorch/"), ("forward", "_call_impl")),
)
"""Owner, parts of file names, parts of function names: the first that a stack has is meant."""
UNKNOWN_OWNER: Final = "not recorded"


class AllocatorSnapshot(NamedTuple):
    segments: pa.Table
    """device, address, stream, size_bytes."""
    blocks: pa.Table
    """device, address, size_bytes, requested_bytes, live, owner, where."""
    events: pa.Table
    """device, time_ns (None in files of old versions), action (`alloc`, `free_completed`), address, size_bytes, owner,
    where; in the order of the file, the last ones only where its history was full."""


def is_snapshot(path: Path) -> bool:
    """Whether a file is a pickle; of one that is not there, by its name."""
    if not path.is_file():
        return path.suffix in (".pickle", ".pkl")
    with path.open("rb") as file:
        return file.read(1) == PICKLE


def read_snapshot(path: Path) -> AllocatorSnapshot:
    """The tables of a snapshot."""
    found = plain_pickle.loads(path.read_bytes(), path)
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        raise FormatError("the pickle has no `segments`: it is no snapshot of an allocator", path=path)
    stacks = _Stacks()
    try:
        segments, blocks = _segments(found["segments"], stacks)
        events = _events(found.get("device_traces") or [], stacks)
    except (KeyError, TypeError, AttributeError, ValueError, pa.ArrowException) as problem:
        raise FormatError(f"damaged snapshot: {type(problem).__name__}: {problem}", path=path) from None
    return AllocatorSnapshot(segments, blocks, events)


class _Stacks:
    """(owner, where) of the frames of an allocation; equal stacks are looked at once."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[str, str]] = {}
        self.kept: list[Any] = []

    def of(self, frames: Any) -> tuple[str, str]:
        if not frames:
            return UNKNOWN_OWNER, ""
        if id(frames) not in self.known:
            self.kept.append(frames)  # so that its id stays its own
            stack = [(str(one["filename"]), int(one["line"]), str(one["name"])) for one in frames]
            self.known[id(frames)] = _owner(stack), _where(stack)
        return self.known[id(frames)]


def _owner(stack: list[tuple[str, int, str]]) -> str:
    for owner, files, functions in OWNERS:
        for file, _, name in stack:
            if any(part in file for part in files) or any(part in name for part in functions):
                return owner
    return "other"


def _where(stack: list[tuple[str, int, str]]) -> str:
    """The innermost line that is not PyTorch's own."""
    for file, line, name in stack:
        if file.endswith(".py") and "/torch/" not in file:
            return f"{file.rpartition('/')[2]}:{line} {name}"
    return ""


def _segments(given: list[dict[str, Any]], stacks: _Stacks) -> tuple[pa.Table, pa.Table]:
    segments: dict[str, list[Any]] = {name: [] for name in ("device", "address", "stream", "size_bytes")}
    blocks: dict[str, list[Any]] = {
        name: [] for name in ("device", "address", "size_bytes", "requested_bytes", "live", "owner", "where")
    }
    for segment in given:
        device, address = int(segment.get("device", 0)), int(segment["address"])
        sizes = (device, address, int(segment.get("stream", 0)), int(segment["total_size"]))
        for name, number in zip(segments, sizes, strict=True):
            segments[name].append(number)
        for block in segment["blocks"]:
            size = int(block["size"])
            live = block["state"] in LIVE
            owner, where = stacks.of(block.get("frames")) if live else ("", "")
            requested = int(block.get("requested_size", size)) if live else 0
            row = (device, int(block.get("address", address)), size, requested, live, owner, where)
            for name, value in zip(blocks, row, strict=True):
                blocks[name].append(value)
            address += size
    texts = dict.fromkeys(("owner", "where"), pa.string()) | {"live": pa.bool_()}
    return (
        pa.table({name: pa.array(values, pa.int64()) for name, values in segments.items()}),
        pa.table({name: pa.array(values, texts.get(name, pa.int64())) for name, values in blocks.items()}),
    )


def _events(given: list[list[dict[str, Any]]], stacks: _Stacks) -> pa.Table:
    rows: list[tuple[Any, ...]] = []
    for device, events in enumerate(given):
        for event in events:
            if event["action"] in (ADDED, REMOVED):
                time = event.get("time_us")
                at = None if time is None else int(time) * 1000
                frames = event.get("frames") if event["action"] == ADDED else None
                owner, where = stacks.of(frames)
                rows.append((device, at, event["action"], int(event["addr"]), int(event["size"]), owner, where))
    kinds = {"device": pa.int64(), "time_ns": pa.int64(), "action": pa.string(), "address": pa.int64()}
    kinds |= {"size_bytes": pa.int64(), "owner": pa.string(), "where": pa.string()}
    columns = zip(*rows, strict=True) if rows else ([] for _ in kinds)
    return pa.table({n: pa.array(list(c), k) for (n, k), c in zip(kinds.items(), columns, strict=True)})

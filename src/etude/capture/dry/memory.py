"""Memory of a rank of a dry run: its tensors over time, through a model of PyTorch's caching allocator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from etude.base.units import format_bytes
from etude.capture.dry.recorded_rank import DryRank
from etude.cost.allocator import AllocatorAction, AllocatorEvents, cublas_workspace_bytes, simulate_allocator
from etude.cost.allocator.workspaces import (
    CONTEXT_BYTES,
    NCCL_CHANNELS,
    NCCL_CONNECTIONS,
    TRAINING_THREADS,
    nccl_buffer_bytes,
)
from etude.kernels.arrays import I64

CLASSES: Final = ("weights", "gradients", "optimizer", "activations", "communication", "temporaries", "workspaces")
PRODUCTS: Final = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm", "aten::_grouped_mm")


@dataclass(frozen=True, slots=True)
class DryMemory:
    """Most bytes at once on the device of a rank (on the host where a program has none)."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    by_class: dict[str, int]
    """When most was allocated."""
    outside: dict[str, int] = field(default_factory=dict)
    """What libraries take of the device beside PyTorch's allocator, by assumption: `context`, `nccl`."""
    assumptions: tuple[str, ...] = ()

    @property
    def device_bytes(self) -> int:
        """All that is taken of the device at most."""
        return self.peak_reserved_bytes + sum(self.outside.values())

    def to_dict(self) -> dict[str, object]:
        return {
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "by_class": dict(self.by_class),
            "outside": dict(self.outside),
            "device_bytes": self.device_bytes,
        }


def dry_memory(rank: DryRank, device: str | None) -> DryMemory:
    """The memory of a rank from its start to the end of its last step. `device`: the name of its device, if it has
    one: then matrix products have workspaces."""
    place = np.array(rank.storages.places, np.int64)
    events = np.array(rank.storages.events, np.int64).reshape(-1, 2)
    here = events[place[events[:, 0]] == int(device is not None)] if len(events) else events
    block, size = here[:, 0], here[:, 1]
    kind = _classes(rank)
    action = np.where(size > 0, AllocatorAction.ALLOC, AllocatorAction.FREE).astype(np.uint8)
    stream = np.array(rank.storages.streams, np.int64)[block] if len(block) else block
    found: list[Any] = [action, block, np.abs(size), stream, kind[block] if len(block) else block]
    if device is not None:
        found = _with_workspaces(rank, device, found)
    timeline = simulate_allocator(AllocatorEvents.of(*found))
    by_class = {name: int(timeline.class_bytes[i]) for i, name in enumerate(CLASSES) if i < len(timeline.class_bytes)}
    found_classes = {name: size for name, size in by_class.items() if size}
    outside, assumed = _outside(rank) if device is not None else ({}, ())
    return DryMemory(timeline.peak_allocated_bytes, timeline.peak_reserved_bytes, found_classes, outside, assumed)


def _outside(rank: DryRank) -> tuple[dict[str, int], tuple[str, ...]]:
    """(What libraries take beside the allocator, what is assumed of that.) Groups that only exchange tensors of the
    host have no buffers on the device, nor have those that never communicate."""
    columns = rank.columns
    calls = zip(columns.communication, columns.place, strict=True)
    groups = [len(rank.groups[name]) for name in sorted({call.group for call, place in calls if call and place})]
    buffers = [size for size in map(nccl_buffer_bytes, groups) if size]
    outside, assumed = {"context": CONTEXT_BYTES}, [f"CUDA's context takes {format_bytes(CONTEXT_BYTES)} of the device"]
    if buffers:
        outside["nccl"] = sum(buffers)
        each = f"{NCCL_CHANNELS} channels and {NCCL_CONNECTIONS} connections in each of {len(buffers)}"
        assumed.append(
            f"NCCL has buffers of {format_bytes(sum(buffers))}: {each} group{'s' if len(buffers) > 1 else ''}"
        )
    if any("convolution" in rank.words[name] for name in set(columns.name)):
        assumed.append("workspaces of convolutions, which cuDNN chooses, are not counted")
    return outside, tuple(assumed)


def _with_workspaces(rank: DryRank, device: str, found: list[Any]) -> list[Any]:
    """The same with workspaces of matrix products before everything else: they are made once and stay."""
    names = {rank.words[i] for i in set(rank.columns.name)}
    if not names & set(PRODUCTS):
        return found
    each = cublas_workspace_bytes(device)
    first = int(found[1].max(initial=0)) + 1
    backward = "backward" in {rank.words[i] for i in set(rank.columns.phase)}
    blocks = np.arange(first, first + (TRAINING_THREADS if backward else 1))
    added = [
        np.full(len(blocks), AllocatorAction.ALLOC, np.uint8),
        blocks,
        np.full(len(blocks), each),
        np.zeros(len(blocks), np.int64),
        np.full(len(blocks), CLASSES.index("workspaces")),
    ]
    return [np.concatenate([a, b]) for a, b in zip(added, found, strict=True)]


def _classes(rank: DryRank) -> I64:
    """The class of each storage: what the program says it is; else what a communication writes; else by the phase in
    which it was made, where it lives on into another."""
    storages, columns = rank.storages, rank.columns
    found = np.full(len(storages.places), CLASSES.index("temporaries"), np.int64)
    made = np.array(storages.made_at, np.int64)
    phases = np.array(columns.phase, np.int64)
    if len(phases) and len(made):
        forward = np.array([word == "forward" for word in rank.words])
        found[forward[phases[np.minimum(made, len(phases) - 1)]]] = CLASSES.index("activations")
    for call, writes in zip(columns.communication, columns.writes, strict=True):
        if call is not None:
            found[writes] = CLASSES.index("communication")
    for number, role in storages.roles.items():
        found[int(number)] = CLASSES.index(role)
    return found

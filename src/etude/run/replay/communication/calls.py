"""Issues collectives and messages through `torch.distributed`: gloo on CPUs, NCCL on NVIDIA GPUs.

What a backend does not support is expressed by calls that it supports, with the same bytes if possible; `notes` counts
these cases, each with a description.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist

from etude.base.errors import UsageError
from etude.run.replay.buffers import IN_PLACE, Buffers, own_rows
from etude.run.replay.program import CommKind, Program

Tensor: TypeAlias = torch.Tensor
Issue = Callable[[], list[Any]]
"""Issues one call and returns the works to wait for."""

_GLOO: Final = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool")
_NCCL: Final = (*_GLOO, "float8_e4m3fn", "float8_e5m2")
"""Data types that each backend supports."""
_OPS: Final = {"sum": "SUM", "avg": "AVG", "max": "MAX", "min": "MIN", "product": "PRODUCT"}

# Newer versions of PyTorch have other names for these.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def check_backend(backend: str, processes: int) -> None:
    """Raises UsageError if this machine cannot run this many processes with this backend."""
    if not dist.is_available():
        raise UsageError("this PyTorch was built without torch.distributed", hint="install another build of it")
    if backend not in ("gloo", "nccl"):
        raise UsageError(f"unknown backend `{backend}`", where="--backend", hint="gloo, nccl")
    if backend == "gloo" and not dist.is_gloo_available():
        raise UsageError("this PyTorch has no gloo", where="--backend", hint="install a build of PyTorch that has it")
    if backend == "nccl":
        if not dist.is_nccl_available() or not torch.cuda.is_available():
            raise UsageError("this machine has no NCCL or no GPU", where="--backend", hint="--backend gloo")
        if (here := torch.cuda.device_count()) < processes:
            problem = f"NCCL needs {processes} GPUs, one for each process; there are {here}"
            raise UsageError(problem, where="--backend", hint="use fewer ranks with --ranks, or --backend gloo")


def join(backend: str, process: int, processes: int, store: str = "", timeout_s: float = 120.0) -> None:
    """Joins the process group: through a file that all processes can read, or, if `store` is empty, as set up by
    `torchrun`."""
    check_backend(backend, processes if store else 1)
    limit = timedelta(seconds=timeout_s)
    if store:
        dist.init_process_group(
            backend, store=dist.FileStore(store, processes), rank=process, world_size=processes, timeout=limit
        )
    else:
        dist.init_process_group(backend, timeout=limit)


class Communicator:
    """The process groups of a program, and its calls."""

    def __init__(self, program: Program, ranks: Sequence[int], device: torch.device) -> None:
        """`ranks`: the rank of each process, in order. All processes must create their Communicator at the same
        time."""
        self.program, self.device = program, device
        self.process_of = {rank: process for process, rank in enumerate(ranks)}
        self.rank = int(program.about["rank"])
        self.backend = str(dist.get_backend())
        self.notes: Counter[str] = Counter()
        self.expressed: dict[int, int] = {}
        """Calls that are expressed by other calls -> how many those are."""
        self.groups: dict[int, Any] = {-1: None}
        self.members: dict[int, list[int]] = {-1: list(range(len(ranks)))}
        self.all_light = False
        """Whether all processes know the time between operators from light steps."""
        self._make_groups()
        self.works: dict[int, list[Any]] = {}
        self.own_rows = own_rows(program)
        self.own: dict[int, Issue] = {}
        self._memory: tuple[Buffers, list[Tensor]] | None = None

    def _make_groups(self) -> None:
        """Creates the process groups. All processes must call `new_group` for every group in the same order, members or
        not."""
        mine = list(zip(self.program.group_names, self.program.groups, strict=True))
        told: list[Any] = [None] * len(self.process_of)
        dist.all_gather_object(told, (mine, bool(self.program.about.get("host", {}).get("light_steps"))))
        self.all_light = all(light for _, light in told)
        everywhere = sorted({(tuple(members), name) for groups, _ in told for name, members in groups})
        made = {}
        for members, name in everywhere:
            processes = [self.process_of[rank] for rank in members if rank in self.process_of]
            if len(processes) > 1:
                made[name, members] = dist.new_group(processes, backend=self.backend)
        for number, (name, members) in enumerate(mine):
            self.groups[number] = made.get((name, tuple(members)))
            self.members[number] = [self.process_of[rank] for rank in members if rank in self.process_of]

    def least(self, number: int) -> int:
        """The smallest `number` of all processes."""
        told: list[Any] = [None] * len(self.process_of)
        dist.all_gather_object(told, number)
        return int(min(told))

    def group_name(self, row: int) -> str:
        """The name by which PyTorch knows the group of a call."""
        group = self.groups[int(self.program.comms.group[row])]
        return str((group or dist.group.WORLD).group_name)

    # -- sizes alone ---------------------------------------------------------------------------------------------------

    def carried_as(self, row: int) -> str:
        """The data type in which the backend sends a call of the program: its own, or plain bytes."""
        name = self.program.dtypes[int(self.program.comms.dtype[row])]
        if name in (_GLOO if self.backend == "gloo" else _NCCL):
            return name
        self.notes[f"{name}: {self.backend} does not support it; sent as bytes"] += 1
        return "uint8"

    def bound(self, row: int, give: Tensor, take: Tensor) -> Issue:
        """Binds a call to flat buffers: `give` has in_bytes, `take` has out_bytes; for in-place calls they are the same
        buffer."""
        comms, kind = self.program.comms, CommKind(int(self.program.comms.kind[row]))
        number = int(comms.group[row])
        group, members = self.groups[number], self.members[number]
        n, peer = len(members), self.process_of.get(int(comms.peer[row]), -1)
        ins, outs = _elements(comms.in_splits[row], give), _elements(comms.out_splits[row], take)
        here = {"group": group, "async_op": True}
        if kind == CommKind.BARRIER:
            return _one(partial(dist.barrier, **here))
        if kind == CommKind.SEND:
            return _one(partial(dist.isend, give, peer, tag=int(comms.tag[row])))
        if kind == CommKind.RECV:
            return _one(partial(dist.irecv, take, peer, tag=int(comms.tag[row])))
        if kind == CommKind.ALL_REDUCE:
            return _one(partial(dist.all_reduce, give, op=self._op(row), **here))
        if kind == CommKind.REDUCE:
            return _one(partial(dist.reduce, give, peer, op=self._op(row), **here))
        if kind == CommKind.BROADCAST:
            return _one(partial(dist.broadcast, give, peer, **here))
        if kind == CommKind.ALL_TO_ALL:
            ins, outs = ins or _even(give, n), outs or _even(take, n)
            return _one(partial(dist.all_to_all_single, take, give, outs, ins, **here))
        if kind == CommKind.ALL_GATHER:
            return self._all_gather(row, give, take, outs, members, here)
        if kind in (CommKind.REDUCE_SCATTER, CommKind.REDUCE_SCATTER_BLOCK):
            return self._reduce_scatter(row, give, take, ins, here)
        return _rooted(kind, give, take, n, peer, here)

    def _op(self, row: int) -> Any:
        name = self.program.reduce_ops[int(self.program.comms.reduce_op[row])].lower()
        found = _OPS.get(name, "SUM")
        if found == "AVG" and self.backend == "gloo":
            self.notes["avg: gloo has no average; summed"] += 1
            found = "SUM"
        return getattr(dist.ReduceOp, found)

    def _all_gather(
        self, row: int, give: Tensor, take: Tensor, outs: list[int], members: list[int], here: Any
    ) -> Issue:
        if not outs or len(set(outs)) == 1:
            return _one(partial(_all_gather, take, give, **here))
        self.notes["all_gather of unequal shares: as a broadcast from each member"] += 1
        self.expressed[row] = len(members)
        parts = list(take.split(outs))
        mine = members.index(dist.get_rank())
        parts[mine] = give
        calls = [partial(dist.broadcast, part, src, **here) for part, src in zip(parts, members, strict=True)]
        return lambda: [call() for call in calls]

    def _reduce_scatter(self, row: int, give: Tensor, take: Tensor, ins: list[int], here: Any) -> Issue:
        if self.backend == "gloo":
            self.notes["reduce_scatter: gloo runs it as an all-reduce of the whole input"] += 1
        if not ins or len(set(ins)) == 1:
            return _one(partial(_reduce_scatter, take, give, op=self._op(row), **here))
        return _one(partial(dist.reduce_scatter, take, list(give.split(ins)), op=self._op(row), **here))

    # -- tensors of a program ------------------------------------------------------------------------------------------

    def issue(self, row: int, values: Sequence[Tensor]) -> None:
        """Issues a call of a program on its tensors, which may have any shape; `values` has the tensor of each slot. A
        call whose group has lost members, or of which only sizes are known, uses its own buffers."""
        comms = self.program.comms
        inputs = [values[slot] for slot in comms.inputs[row] if slot >= 0]
        outputs = [values[slot] for slot in comms.outputs[row] if slot >= 0]
        own = self.own.get(row)
        if own is None and row in self.own_rows:
            own = self.own[row] = self._own_buffers(row)
        self.works[row] = own() if own is not None else self._on_tensors(row, inputs, outputs)
        if not comms.is_async[row]:
            self.wait(row)

    def wait(self, row: int) -> None:
        """Waits until a call is complete: the host waits on gloo, the current stream on NCCL."""
        wait(self.works.pop(row, ()))

    def _own_buffers(self, row: int) -> Issue:
        """Binds a call to buffers, which it shares with calls that are complete before it begins."""
        if self._memory is None:
            made = Buffers(self.program, self.carried_as, self.own_rows)
            self._memory = made, allocated(made, self.device)
        plan, memory = self._memory
        (first, second), (into, out) = plan.used[row], plan.sizes[row]
        return self.bound(row, memory[first][:into], memory[second][:out])

    def _on_tensors(self, row: int, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        """Issues a call as recorded; coalesced tensors are sent one by one."""
        comms, kind = self.program.comms, CommKind(int(self.program.comms.kind[row]))
        n = len(self.members[int(comms.group[row])])
        here = {"group": self.groups[int(comms.group[row])], "async_op": True}
        if kind == CommKind.ALL_GATHER and len(inputs) == 1 and len(outputs) == n > 1:
            return [dist.all_gather(outputs, _whole(inputs[0]), **here)]
        if kind == CommKind.ALL_TO_ALL and len(inputs) == len(outputs) == 1:
            ins, outs = comms.in_splits[row] or None, comms.out_splits[row] or None
            return [dist.all_to_all_single(outputs[0], _whole(inputs[0]), outs, ins, **here)]
        works: list[Any] = []
        for give, take in _pairs(kind, inputs, outputs):
            works += self.bound(row, give, take)()
        return works


def allocated(plan: Buffers, device: torch.device) -> list[Tensor]:
    """Allocates the buffers."""
    return [
        torch.zeros(count, dtype=getattr(torch, kind), device=device)
        for count, kind in zip(plan.elements, plan.kind, strict=True)
    ]


def wait(works: Sequence[Any]) -> None:
    """Waits until all of these are complete: the host waits on gloo, the current stream on NCCL."""
    for work in works:
        if work is not None:
            work.wait()


def _rooted(kind: CommKind, give: Tensor, take: Tensor, n: int, root: int, here: Any) -> Issue:
    """A gather to the root, or a scatter from it, in equal shares."""
    whole = take if kind == CommKind.GATHER else give
    parts = list(whole.split(_even(whole, n))) if dist.get_rank() == root else None
    if kind == CommKind.GATHER:
        return _one(partial(dist.gather, give, parts, dst=root, **here))
    return _one(partial(dist.scatter, take, parts, src=root, **here))


def _pairs(kind: CommKind, inputs: list[Tensor], outputs: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Flat tensors to send and to receive, one pair for each call."""
    if kind == CommKind.BARRIER:
        return [(torch.empty(0), torch.empty(0))]
    if kind in IN_PLACE or kind in (CommKind.SEND, CommKind.RECV):
        return [(_flat(one), _flat(one)) for one in inputs or outputs]
    if len(inputs) == len(outputs):
        return [(_flat(give), _flat(take)) for give, take in zip(inputs, outputs, strict=True)]
    # A list of n tensors on one side, as in `gather` and `reduce_scatter`; other ranks have an empty list.
    give = torch.cat([_flat(one) for one in inputs]) if inputs else torch.empty(0)
    return [(give, torch.cat([_flat(one) for one in outputs]) if outputs else give[:0])]


def _flat(tensor: Tensor) -> Tensor:
    return _whole(tensor).view(-1)


def _whole(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _one(call: Callable[[], Any]) -> Issue:
    return lambda: [call()]


def _even(tensor: Tensor, n: int) -> list[int]:
    return [tensor.numel() // n] * n


def _elements(splits: list[int], tensor: Tensor) -> list[int]:
    """Converts splits, recorded in rows of the first dimension, to elements of a flat tensor."""
    total = sum(splits)
    return [part * (tensor.numel() // total) for part in splits] if total else splits

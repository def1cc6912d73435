"""Execution plans of MSCCL++ (JSON) as schedules.

Thread blocks run their operations in order. What is put, and what is read from another, is a transfer; the k-th signal
on a channel meets the k-th wait on it, and comes with what was put there before it. Packets carry their flags: who
reads them waits for all that are put there. Copies and reductions inside a GPU take no time of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from etude.base.errors import ClusterError, MismatchError
from etude.cost.schedule import Put, Schedule
from etude.cost.schedule_points import TransferPoints
from etude.model.schema import Collective

COLLECTIVES: Final = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
}
SENDS: Final = ("put", "pws", "pwsf", "ppkt", "rppkt", "res", "rres", "respkt", "recspkt")
READS: Final = ("get", "rre", "rres")
REDUCES: Final = ("rre", "rres")
"""What is read is added to what the reader has."""
SIGNALS: Final = ("signal", "rlxsignal", "pws", "pwsf")
WAITS: Final = ("wait", "rlxwait")
PACKETS: Final = ("ppkt", "respkt", "recspkt", "rppkt")
UNPACKS: Final = ("upkt", "cpkt", "repkt", "recpkt", "respkt", "recspkt", "rppkt")
LOCAL: Final = ("nop", "copy", "re", "tpkt", "flush")
IN_SWITCH: Final = ("gstore", "glre", "glres")


class PlanBuffer(msgspec.Struct):
    index: int = 0
    size: int = 1
    type: str = ""
    buffer_id: int = -1
    """Of the remote buffers that the block refers to; -1: of this GPU."""


class PlanOp(msgspec.Struct):
    name: str
    src_buff: list[PlanBuffer] = []
    dst_buff: list[PlanBuffer] = []
    channel_ids: list[int] = []
    channel_type: str = ""
    barrier_id: int = 0
    semaphore_ids: list[int] = []
    ops: list[PlanOp] = []


class PlanChannels(msgspec.Struct):
    channel_type: str
    channel_ids: list[int]


class PlanBufferRefs(msgspec.Struct):
    access_channel_type: str
    remote_buffer_ids: list[int]


class PlanBlock(msgspec.Struct):
    id: int
    ops: list[PlanOp]
    channels: list[PlanChannels] = []
    remote_buffer_refs: list[PlanBufferRefs] = []


class PlanConnections(msgspec.Struct):
    connected_to: list[int] = []
    type: str = ""
    channel_type: str = ""


class PlanRemoteBuffer(msgspec.Struct):
    rank: int
    type: str


class PlanGpu(msgspec.Struct):
    id: int
    input_chunks: int
    output_chunks: int
    threadblocks: list[PlanBlock]
    channels: list[PlanConnections] = []
    remote_buffers: list[PlanRemoteBuffer] = []


class ExecutionPlan(msgspec.Struct):
    name: str
    collective: str
    gpus: list[PlanGpu]
    protocol: str = "Simple"


def is_execution_plan(text: bytes) -> bool:
    """Whether a JSON file is one object with `gpus` and a `collective`."""
    try:
        top = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return False
    return "gpus" in top and ("collective" in top or "colletive" in top)


def from_execution_plan(text: bytes) -> Schedule:
    """The schedule of a plan, of as many members as it has GPUs."""
    try:
        plan = msgspec.json.decode(text, type=ExecutionPlan)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise ClusterError(
            f"not an execution plan of MSCCL++: {problem}",
            hint="plans of the language of MSCCL++ 0.8 (`input_chunks`, `channel_ids`) are read, older ones are not",
        ) from None
    return _PlanReader(plan).schedule()


class _PlanReader:
    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan, self.where = plan, f"plan `{plan.name}`"
        self.members = len(plan.gpus)
        self.points = TransferPoints()
        self.number: dict[Any, int] = {}
        self.counts: dict[Any, int] = {}
        self.written: dict[int, list[tuple[int, int, Any]]] = {}
        """Packets that come to each member: first and last chunk of its scratch, and their transfer."""
        self.unpacks: list[tuple[int, list[tuple[int, int]], int]] = []
        self.barriers: dict[tuple[int, int], list[int]] = defaultdict(list)
        """Blocks of a GPU that have a barrier."""
        for gpu in plan.gpus:
            for block in gpu.threadblocks:
                for barrier in dict.fromkeys(_barriers(block.ops)):
                    self.barriers[gpu.id, barrier].append(block.id)
        if sorted(gpu.id for gpu in plan.gpus) != list(range(self.members)):
            raise ClusterError(f"its GPUs are not 0 to {self.members - 1}", where=self.where)
        self.chunks = plan.gpus[0].input_chunks
        if self.chunks < 1 or any(gpu.input_chunks != self.chunks for gpu in plan.gpus):
            raise ClusterError("its GPUs differ in `input_chunks`, or have none", where=self.where)

    def schedule(self) -> Schedule:
        collective = COLLECTIVES.get(self.plan.collective.replace("_", "").lower())
        if collective is None:
            known = ", ".join(COLLECTIVES)
            problem = f"unknown collective `{self.plan.collective}`"
            raise ClusterError(problem, where=self.where, hint=f"known: {known}")
        owners = self.members if collective in (Collective.ALL_GATHER, Collective.ALL_TO_ALL) else 1
        self.blocks = self.chunks * owners
        for gpu in self.plan.gpus:
            for block in gpu.threadblocks:
                _BlockReader(self, gpu, block).read(block.ops)
        for point, ranges, member in self.unpacks:
            for low, high in ranges:
                came = [key for a, b, key in self.written.get(member, []) if a < high and low < b]
                self.points.waits[point] += came
        self._check_partners()
        return self.points.schedule(
            self.number, self.where, collective=collective, algorithm=self.plan.name or "plan", members=self.members,
            owners=owners, blocks=self.blocks, protocol=self.plan.protocol.lower(),
        )  # fmt: skip

    def add(self, src: int, dst: int, chunk: PlanBuffer | None, put: Put, waits: list[Any], *names: Any) -> int:
        """A transfer of a chunk, a signal (None), or, within a member, a point in its order."""
        first = chunk.index if chunk and 0 <= chunk.index <= self.blocks - chunk.size else 0
        point = self.points.add(src, dst, first, chunk.size if chunk else 0, put, list(waits))
        for name in (point, *names):
            self.number[name] = point
        return point

    def nth(self, what: Any) -> tuple[Any, int]:
        """A name for the next of its kind."""
        at = self.counts.get(what, 0)
        self.counts[what] = at + 1
        return what, at

    def _check_partners(self) -> None:
        for waits in self.points.waits:
            for name in waits:
                if name not in self.number:
                    (kind, *ends), at = name
                    text = f"{kind} {at} {ends} has no partner: it would wait without end"
                    raise MismatchError(text, where=self.where)


class _BlockReader:
    """One thread block: the operations that have to end before its next one, and what it has put since a signal."""

    def __init__(self, plan: _PlanReader, gpu: PlanGpu, block: PlanBlock) -> None:
        self.plan, self.gpu, self.block = plan, gpu, block
        self.where = f"{plan.where}: gpu {gpu.id}: block {block.id}"
        self.order: list[Any] = []
        self.put: dict[int, list[Any]] = {}

    def read(self, ops: list[PlanOp]) -> None:
        for op in ops:
            if op.name == "pipeline":
                self.read(op.ops)  # once, for all of the data
            elif op.name in ("sem_acquire", "sem_release"):
                self._semaphores(op)
            elif op.name == "barrier":
                self._barrier(op)
            elif op.name in IN_SWITCH:
                problem = f"`{op.name}` reduces or stores in a switch, which is not read from plans"
                raise ClusterError(problem, where=self.where, hint="--collective all_reduce=in_switch")
            elif op.name in (*SENDS, *READS, *SIGNALS, *WAITS, *UNPACKS, *LOCAL):
                self._move(op)
            else:
                known = ", ".join(dict.fromkeys((*SENDS, *READS, *SIGNALS, *WAITS, *UNPACKS, *LOCAL)))
                raise ClusterError(f"unknown operation `{op.name}`", where=self.where, hint=f"known: {known}")

    def _move(self, op: PlanOp) -> None:
        plan, me = self.plan, self.gpu.id
        if op.name in WAITS:
            waited = [plan.nth(("wait", peer, me, op.channel_type, at)) for peer, at in self._channels(op)]
            names = [(("signal", *what[1:]), at) for what, at in waited]
            self.order = [plan.add(me, me, None, Put.COPY, [*self.order, *names])]
        if op.name in READS:
            put = Put.REDUCE if op.name in REDUCES else Put.COPY
            came = [plan.add(peer, me, chunk, put, self.order) for peer, chunk in self._remote(op, op.src_buff)]
            self.order = [plan.add(me, me, None, Put.COPY, [*self.order, *came])]
        if op.name in UNPACKS:
            ranges = [(chunk.index, chunk.index + chunk.size) for chunk in op.src_buff if chunk.type == "s"]
            point = plan.add(me, me, None, Put.COPY, self.order)
            plan.unpacks.append((point, ranges, me))
            self.order = [point]
        if op.name in SENDS:
            for peer, chunk in self._remote(op, op.dst_buff):
                sent = plan.add(me, peer, chunk, Put.COPY, self.order)
                self.put.setdefault(peer, []).append(sent)
                if op.name in PACKETS:
                    plan.written.setdefault(peer, []).append((chunk.index, chunk.index + chunk.size, sent))
        if op.name in SIGNALS:
            for peer, at in self._channels(op):
                name = plan.nth(("signal", me, peer, op.channel_type, at))
                brought = self.put.pop(peer, [])
                if brought:  # it comes right behind what was put
                    plan.add(peer, peer, None, Put.COPY, brought, name)
                else:
                    plan.add(me, peer, None, Put.COPY, self.order, name)
        if op.name == "flush":
            self.order = [*self.order, *(sent for sends in self.put.values() for sent in sends)]

    def _semaphores(self, op: PlanOp) -> None:
        me = self.gpu.id
        names = [self.plan.nth((op.name, me, at)) for at in op.semaphore_ids]
        if op.name == "sem_release":
            sent = [one for sends in self.put.values() for one in sends]
            self.plan.add(me, me, None, Put.COPY, [*self.order, *sent], *names)
        else:
            released = [(("sem_release", *what[1:]), at) for what, at in names]
            self.order = [self.plan.add(me, me, None, Put.COPY, [*self.order, *released])]

    def _barrier(self, op: PlanOp) -> None:
        """All blocks of the GPU that have the barrier, the k-th time together."""
        plan, me = self.plan, self.gpu.id
        key = ("barrier", me, op.barrier_id)
        (_, at) = plan.nth((*key, self.block.id))
        blocks = plan.barriers[me, op.barrier_id]
        plan.add(me, me, None, Put.COPY, self.order, ((*key, self.block.id, "here"), at))
        self.order = [plan.add(me, me, None, Put.COPY, [((*key, block, "here"), at) for block in blocks])]

    def _channels(self, op: PlanOp) -> Iterator[tuple[int, int]]:
        """(peer, which of the channels to it) of every channel of an operation."""
        own = [c for one in self.block.channels if one.channel_type == op.channel_type for c in one.channel_ids]
        to = [
            peer
            for one in self.gpu.channels
            if (one.type or one.channel_type) == op.channel_type
            for peer in one.connected_to
        ]
        for index in op.channel_ids:
            channel = self._of(own, index, "channel_ids")
            peer = self._of(to, channel, "channels")
            yield self._member(peer), to[:channel].count(peer)

    def _remote(self, op: PlanOp, buffers: list[PlanBuffer]) -> Iterator[tuple[int, PlanBuffer]]:
        """(owner, chunks) of every buffer of an operation that is another GPU's."""
        refs = self.block.remote_buffer_refs
        own = [b for one in refs if one.access_channel_type == op.channel_type for b in one.remote_buffer_ids]
        for chunk in buffers:
            if chunk.buffer_id >= 0:
                remote = self._of(
                    self.gpu.remote_buffers, self._of(own, chunk.buffer_id, "buffer_id"), "remote_buffers"
                )
                if not chunk.size >= 1 or chunk.index < 0:
                    raise ClusterError(f"`{op.name}` of {chunk.size} chunks from {chunk.index}", where=self.where)
                yield self._member(remote.rank), chunk

    def _member(self, rank: int) -> int:
        if not 0 <= rank < self.plan.members or rank == self.gpu.id:
            raise ClusterError(f"is connected to GPU {rank}, of {self.plan.members}", where=self.where)
        return rank

    def _of(self, given: list[Any], at: int, name: str) -> Any:
        if not 0 <= at < len(given):
            raise ClusterError(f"`{name}` {at} of {len(given)} that there are", where=self.where)
        return given[at]


def _barriers(ops: list[PlanOp]) -> Iterator[int]:
    for op in ops:
        if op.name == "barrier":
            yield op.barrier_id
        yield from _barriers(op.ops)

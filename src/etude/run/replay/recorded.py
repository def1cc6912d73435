"""Plans the program of a rank whose operators were recorded with their arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from etude.cost.ops import OpTable
from etude.cost.traces import ops_of
from etude.kernels.arrays import I64, distinct_values
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.run.replay.arguments import results
from etude.run.replay.builder import ProgramBuilder
from etude.run.replay.call_tree import owners
from etude.run.replay.comm_ops import COMM_OPS, WAITS, number_at, numbers_at, tensors_at
from etude.run.replay.indices import made_of, tell
from etude.run.replay.kinds import dtype_of_class, stand_in_kind
from etude.run.replay.levels import RecordedOp, chosen
from etude.run.replay.light import LightEvents
from etude.run.replay.memory import AddressMap
from etude.run.replay.program import COMPILED_SPACE, NOTHING, CommKind, Program, StandInKind, StepKind
from etude.run.replay.recorded_comms import RecordedComms
from etude.run.replay.recorded_host import RecordedHost
from etude.run.replay.recording import ReplayRecording
from etude.run.replay.regions import own_ns
from etude.run.replay.streams import StreamOrder, stream_order
from etude.run.replay.unprofiled import unprofiled_step_ns

_CALL, _WAIT, _KERNEL, _REGION, _MARK = 1, 0, 2, 3, -1


def plan_recorded(
    job: Job,
    rank: int,
    schema: I64,
    schemas: list[str],
    sources: Mapping[str, Mapping[str, str]],
    light: LightEvents | None = None,
) -> Program:
    """See `etude.run.replay.planning.plan`."""
    return _Plan(ReplayRecording(job, rank, schema, schemas, sources), sources, light).program()


class _Plan:
    def __init__(
        self, of: ReplayRecording, sources: Mapping[str, Mapping[str, str]], light: LightEvents | None
    ) -> None:
        self.of, self.sources, self.light = of, sources, light
        self.comms = RecordedComms(of)
        self.b = ProgramBuilder(rank=of.rank, world_size=of.job.world_size, job=of.job.name)
        self.memory = AddressMap(self.b)
        self.row_of: dict[int, int] = {}
        """Node of a communication -> its row of `comms`."""
        self.pending: dict[int, set[int]] = {}
        """Communications that nothing has waited for yet -> the storages that they write."""
        self.recorded: set[int] = set()
        """Work after which the event has been recorded already."""

    # -- the steps -----------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        launches = set(self.of.trace.parent[self.of.inside & (self.of.trace.cpu == 0)].tolist())
        calls = chosen(self.of.ops, lambda op: op.name in WAITS, lambda op: op.name in COMM_OPS, launches)
        comm_of = self.comms.nodes()
        work_ns, total_ns, orphans, region_ns = self._work(calls)
        streams = stream_order(self.of.trace, self.of.inside, self.work_of, self.of.start)
        order: list[tuple[int, int, int]] = [(op.start_ns, _CALL, at) for at, op in enumerate(calls)]
        order += [(int(self.of.start[node]), _KERNEL, node) for node in orphans]
        order += [(int(self.of.start[node]), _REGION, node) for node in self.of.regions.all]
        waits = ((node, self.comms.waited_at(node)) for node in comm_of.values())
        order += [(moment, _WAIT, node) for node, moment in waits if moment is not None]
        order += list(self._marks(calls))
        row_of = self.row_of
        for moment, what, at in sorted(order):
            when: dict[str, Any] = {"start_ns": moment - self.of.begin, "node": at}
            if what == _CALL:
                op = calls[at]
                when |= {"node": op.node, "work_ns": int(work_ns[at]), "stream": streams.of(op.node)}
                if op.name in COMM_OPS:
                    node = comm_of.get(op.node, -1)
                    row_of[node] = self._comm(op, node, when | {"stream": streams.issues.get(node, NOTHING)})
                else:
                    self._await(op.node, streams)
                    self._call(op, when)
                    self._record(op.node, streams)
            elif what == _WAIT and at in row_of:
                self._wait(row_of[at], when | {"stream": streams.waits.get(at, NOTHING)})
            elif what == _KERNEL:
                self._await(at, streams)
                self._orphan(at, when | {"stream": streams.of(at)})
                self._record(at, streams)
            elif what == _REGION:
                own = self._region(at, when, region_ns)
                total_ns += own
            elif what == _MARK:
                if at:
                    self.b.step(StepKind.END, at - 1, start_ns=moment - self.of.begin)
                self.b.mark(at, start_ns=moment - self.of.begin)
        for row in list(self.pending):
            self._wait(row, {})
        RecordedHost(self.of, self.b, self.row_of, self.light).tell()
        self.memory.fill()
        steps = len(distinct_values(self.of.trace.step[self.of.inside & (self.of.trace.step != UNKNOWN)])) or 1
        span = int(self.of.end[self.of.inside].max() - self.of.begin) if self.of.inside.any() else 0
        self.b.about |= {
            "steps": steps,
            "recorded_step_ns": span // steps,
            "unprofiled_step_ns": unprofiled_step_ns(self.of.job),
            "threads": _number(self.of.job.provenance.get("threads", "")),
            "work_ns": int(total_ns),
            "source": "recorded",
        }
        return self.b.build()

    def _marks(self, calls: list[RecordedOp]) -> Iterator[tuple[int, int, int]]:
        """Yields the start of each training step."""
        step = self.of.trace.step
        known = self.of.inside & (step != UNKNOWN)
        for number, value in enumerate(distinct_values(step[known]).tolist() or [None]):
            rows = self.of.inside if value is None else known & (step == value)
            yield int(self.of.start[rows].min()) if rows.any() else 0, _MARK, number

    def _wait(self, row: int, when: dict[str, Any]) -> None:
        if self.pending.pop(row, None) is not None:
            self.b.wait(row, **when)

    def _wait_for(self, storages: set[int], when: dict[str, Any]) -> None:
        """Waits for the communications that write these storages, even if no wait was recorded."""
        for row in [row for row, written in self.pending.items() if written & storages]:
            self._wait(row, {"start_ns": when["start_ns"]})

    def _call(self, op: RecordedOp, when: dict[str, Any]) -> None:
        given, gave = op.given, op.gave
        if when["work_ns"] or not self.of.on_device:  # on a device, a call without kernels only makes views
            self._wait_for({t.storage for t in given.tensors}, when)
        tell(self.memory, op.name, given)
        places = {t.place for t in given.tensors}
        if not given.whole:
            for tensor in gave.tensors:
                if tensor.place not in places:
                    self.memory.outside(tensor)
            self._stand_in(op.node, op.name, when)
            return
        inputs = [self.memory.read(t) for t in given.tensors]
        bound = {k: self.memory.made(t, places) for k, t in enumerate(gave.tensors)}
        outputs = [
            bound.get(v["t"], NOTHING) if isinstance(v, dict) and "t" in v else NOTHING for v in results(gave.form)
        ]
        while outputs and outputs[-1] == NOTHING:
            outputs.pop()
        made_of(self.memory, op.name, given, gave)
        if self.of.regions.kernels[op.node]:
            self._keep(self.of.regions.file(op.node))
        self.b.call(_overload(op.name, op.schema), given.form, inputs, outputs, schema=op.schema, **when)

    def _stand_in(self, node: int, label: str, when: dict[str, Any]) -> None:
        table = self._works()
        flops, size = int(table.flops[node]), int(table.size_bytes[node])
        if flops <= 0 and size <= 0:
            size = self._given_bytes(int(self.of.trace.parent[node]))
        self.b.stand_in(
            stand_in_kind(int(table.op_class[node])),
            label,
            flops=max(flops, 0),
            size_bytes=max(size, 0),
            dtype=dtype_of_class(int(table.dtype[node])),
            dims=[int(c[node]) for c in (table.m, table.n, table.k, table.batch)] if table.m[node] > 0 else (),
            **when,
        )

    def _given_bytes(self, node: int) -> int:
        """Bytes of the tensors given to a kernel without a schema (Triton), if its launch was recorded with them; each
        tensor counts once. Otherwise 0."""
        if node < 0 or self.of.trace.in_types[node] < 0:
            return 0
        return sum(tensor.numel * tensor.itemsize for tensor in self.of.arguments("in", node).tensors)

    _table: OpTable | None = None

    def _works(self) -> OpTable:
        if self._table is None:
            self._table = ops_of(self.of.trace)
        return self._table

    def _orphan(self, node: int, when: dict[str, Any]) -> None:
        """Adds a stand-in for a kernel that was not launched by an operator with a schema."""
        when = when | {"work_ns": int(self.of.end[node] - self.of.start[node])}
        self._stand_in(node, self.of.names[int(self.of.codes[node])], when)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _work(self, calls: list[RecordedOp]) -> tuple[I64, int, list[int], dict[int, int]]:
        """Recorded time of the work of each call; the total; kernels that belong to no call; the kernel time of each
        region that is played whole. Sets `work_of`: for each kernel, the node of its call or region, or the kernel
        itself."""
        trace = self.of.trace
        self.work_of = np.full(len(trace), -1, np.int64)
        kernels = np.flatnonzero(self.of.inside & (trace.cpu == 0))
        took = np.maximum(self.of.end - self.of.start, 0)
        if not len(kernels):
            work = np.array([op.end_ns - op.start_ns for op in calls], np.int64)
            return work, int(work.sum()), [], {}
        call_at = np.full(len(trace), -1, np.int64)
        call_at[[op.node for op in calls]] = np.arange(len(calls))
        parent = trace.parent[kernels]
        owner = np.where(parent >= 0, owners(trace.parent, call_at)[np.maximum(parent, 0)], -1)
        mine = owner >= 0
        work = np.bincount(owner[mine], took[kernels[mine]].astype(np.float64), len(calls)).astype(np.int64)
        comms = np.isin(trace.kind[kernels], (int(Kind.COLL), int(Kind.SEND), int(Kind.RECV)))
        region = self.of.regions.inside_whole[kernels]
        lost = kernels[~mine & ~comms & (region < 0)]
        region_ns = {node: int(took[kernels[region == at]].sum()) for at, node in enumerate(self.of.regions.whole)}
        self.work_of[lost] = lost
        self.work_of[kernels[mine]] = np.array([op.node for op in calls], np.int64)[owner[mine]]
        self.work_of[kernels[region >= 0]] = np.array(self.of.regions.whole, np.int64)[region[region >= 0]]
        return work, int(took[kernels].sum()) - sum(region_ns.values()), lost.tolist(), region_ns

    def _region(self, node: int, when: dict[str, Any], kernels_ns: dict[int, int]) -> int:
        """Adds a call of a compiled region, or a stand-in if its code is not available. Returns its time."""
        key, start, end = self.of.regions.key(node), int(self.of.start[node]), int(self.of.end[node])
        if key not in self.sources:
            own = own_ns(self.of.ops, start, end)
            self.b.stand_in(StandInKind.HOST, "compiled region", **when | {"work_ns": own})
            return own
        own = kernels_ns.get(node, end - start)
        self._keep(key)
        self.b.call(f"{COMPILED_SPACE}{key}", [], [], [], **when | {"work_ns": own})
        return own

    def _keep(self, key: str) -> None:
        """Includes code that the program calls in the program."""
        self.b.about.setdefault("compiled", {})[key] = dict(self.sources[key])

    # -- streams -------------------------------------------------------------------------------------------------------

    def _await(self, node: int, streams: StreamOrder) -> None:
        for source in streams.awaits.get(node, ()):
            if source in self.recorded:
                self.b.step(StepKind.AWAIT, streams.records[source], stream=streams.of(node))

    def _record(self, node: int, streams: StreamOrder) -> None:
        if node in streams.records:
            self.recorded.add(node)
            self.b.step(StepKind.EVENT, streams.records[node], stream=streams.of(node))

    # -- communication -------------------------------------------------------------------------------------------------

    def _comm(self, op: RecordedOp, node: int, when: dict[str, Any]) -> int:
        about, given = COMM_OPS[op.name], op.given
        outs, ins = tensors_at(given, about.output), tensors_at(given, about.input)
        group, ranks = self._group(node)
        peer = number_at(given, about.peer)
        if about.kind in (CommKind.SEND, CommKind.RECV) and node >= 0:
            peer = self._peer(node, peer, ranks)
        elif 0 <= peer < len(ranks):
            peer = ranks[peer]
        if node >= 0:
            when = when | {"work_ns": int(self.of.end[node] - self.of.start[node])}
        inputs, outputs = [self.memory.read(t) for t in ins], [self.memory.read(t) for t in outs]
        size = [sum(t.numel * t.itemsize for t in side) for side in (ins, outs)]
        self._wait_for({t.storage for t in ins}, when)
        row = self.b.comm(
            about.kind,
            in_bytes=size[0],
            out_bytes=size[1],
            dtype=(ins + outs)[0].dtype if ins + outs else "uint8",
            group=group,
            peer=peer,
            tag=max(number_at(given, about.tag), 0),
            is_async=True,
            inputs=inputs,
            outputs=outputs,
            in_splits=numbers_at(given, about.in_splits),
            out_splits=numbers_at(given, about.out_splits),
            label=op.name,
            **when,
        )
        self.pending[row] = {t.storage for t in outs}
        return row

    def _group(self, node: int) -> tuple[int, list[int]]:
        world = list(range(self.of.job.world_size))
        slot = int(self.of.trace.group[node]) if node >= 0 else -1
        number = int(self.of.job.group_slots(self.of.rank)[slot]) if slot >= 0 else -1
        if number < 0:  # take the name of a group of all ranks, if there is one
            groups = self.of.job.groups
            known = (
                g for g in range(len(groups)) if (listed := groups.ranks(g)) is not None and listed.tolist() == world
            )
            number = next(known, -1)
        members = self.of.job.groups.ranks(number) if number >= 0 else None
        ranks = members.tolist() if members is not None else world
        name = self.of.job.groups.names[number] if number >= 0 else ""
        return self.b.group(ranks, name), ranks

    def _peer(self, node: int, peer: int, ranks: list[int]) -> int:
        slot = int(self.of.trace.dst[node] if self.of.trace.kind[node] == int(Kind.SEND) else self.of.trace.src[node])
        if slot >= 0:
            return int(self.of.job.peer_slots(self.of.rank)[slot])
        return ranks[peer] if 0 <= peer < len(ranks) else NOTHING


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 19 else None


def _overload(name: str, schema: str) -> str:
    """The name with its overload, such as `aten::add.Tensor`, from the schema."""
    full = schema.partition("(")[0].strip()
    return full if full.partition(".")[0] == name else name

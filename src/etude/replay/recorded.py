"""The program of a rank whose operators were recorded with their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.cost.ops import OpTable
from etude.cost.traces import ops_of
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace
from etude.replay.arguments import Arguments, arguments, results, without_stream
from etude.replay.between import Busy, pauses_ns, python_ns, unit_ns, waited, without_waits
from etude.replay.builder import ProgramBuilder
from etude.replay.call_tree import owners
from etude.replay.comm_ops import COMM_OPS, WAITS, number_at, numbers_at, tensors_at
from etude.replay.host_time import TIMED, HostClock, counted, host_intervals, plain_ns
from etude.replay.indices import made_of, tell
from etude.replay.kinds import dtype_of_class, stand_in_kind
from etude.replay.levels import Op, chosen
from etude.replay.light import LightClock, LightEvents, light_clocks
from etude.replay.memory import Memory
from etude.replay.program import COMPILED_SPACE, NOTHING, CommKind, Program, StandInKind, StepKind
from etude.replay.regions import Regions, own_ns
from etude.replay.streams import StreamOrder, stream_order
from etude.replay.unprofiled import unprofiled_step_ns

I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

_CALL, _WAIT, _KERNEL, _REGION, _MARK = 1, 0, 2, 3, -1
_NODE, _GRADIENT = "autograd::engine::evaluate_function: ", "AccumulateGrad"
"""Nodes of autograd as the profiler names them; those that keep gradients are made once."""


def plan_recorded(
    job: Job,
    rank: int,
    schema: I64,
    schemas: list[str],
    sources: Mapping[str, Mapping[str, str]],
    light: LightEvents | None = None,
) -> Program:
    """See `etude.replay.planning.plan`."""
    plan = _Plan(job, rank, schema, schemas, sources)
    plan.light = light
    return plan.program()


class _Plan:
    def __init__(
        self, job: Job, rank: int, schema: I64, schemas: list[str], sources: Mapping[str, Mapping[str, str]]
    ) -> None:
        self.job, self.rank, self.trace = job, rank, job.trace(rank)
        assert job.timing is not None
        self.start, self.end = job.timing.block(job.index(rank))
        self.schema, self.schemas = schema, schemas
        self.inside = _in_steps(self.trace, self.start, self.end)
        self.codes, self.names = self.trace.coded("name")
        self.sources = sources
        self.regions = Regions(self.trace, self.inside, self.names, self.codes, sources)
        self.ops = self._ops()
        self.op_at = np.full(len(self.trace), -1, np.int64)
        self.op_at[[op.node for op in self.ops]] = np.arange(len(self.ops))
        self.owner = owners(self.trace.parent, self.op_at)
        self.b = ProgramBuilder(rank=rank, world_size=job.world_size, job=job.name)
        self.memory = Memory(self.b)
        self.row_of: dict[int, int] = {}
        """Node of a communication -> its row of `comms`."""
        self.pending: dict[int, set[int]] = {}
        """Communications that nothing waited for yet, and the storages that they write."""
        self.on_device = bool((self.inside & (self.trace.cpu == 0)).any())
        self.recorded: set[int] = set()
        """Work whose event has been recorded."""
        self.begin = int(self.start[self.inside].min()) if self.inside.any() else 0
        self.light: LightEvents | None = None

    # -- what there is -------------------------------------------------------------------------------------------------

    def _ops(self) -> list[Op]:
        """Operators of the host with their arguments, in order of time, callers before what they call."""
        trace = self.trace
        kernels = self.regions.kernels
        within = self.inside & (trace.cpu == 1) & (self.regions.inside_whole < 0)
        rows = np.flatnonzero(within & ((self.schema >= 0) | kernels))
        rows = rows[np.lexsort((-self.end[rows], self.start[rows]))]
        position = np.full(len(trace), -1, np.int64)
        position[rows] = np.arange(len(rows))
        above = owners(trace.parent, position)
        ops: list[Op] = []
        for node in rows.tolist():
            parent = int(trace.parent[node])
            outer = int(above[parent]) if parent >= 0 else -1
            op = Op(
                node=node,
                name=self.regions.kernel_name(node) if kernels[node] else self.names[int(self.codes[node])],
                schema="" if kernels[node] else self.schemas[int(self.schema[node])],
                given=without_stream(self._arguments("in", node)) if kernels[node] else self._arguments("in", node),
                gave=self._arguments("out", node),
                start_ns=int(self.start[node]),
                end_ns=int(self.end[node]),
                calls=[],
                outer=outer,
            )
            if outer >= 0:
                ops[outer].calls.append(len(ops))
            ops.append(op)
        return ops

    def _arguments(self, side: str, node: int) -> Arguments:
        return arguments(
            *(self.trace.text(f"{side}_{part}", node) for part in ("values", "types", "shapes", "strides"))
        )

    # -- the steps -----------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        launches = set(self.trace.parent[self.inside & (self.trace.cpu == 0)].tolist())
        calls = chosen(self.ops, lambda op: op.name in WAITS, lambda op: op.name in COMM_OPS, launches)
        comm_of = self._comm_nodes()
        work_ns, total_ns, orphans, region_ns = self._work(calls)
        streams = stream_order(self.trace, self.inside, self.work_of, self.start)
        order: list[tuple[int, int, int]] = [(op.start_ns, _CALL, at) for at, op in enumerate(calls)]
        order += [(int(self.start[node]), _KERNEL, node) for node in orphans]
        order += [(int(self.start[node]), _REGION, node) for node in self.regions.all]
        waits = ((node, self._waited_at(node)) for node in comm_of.values())
        order += [(moment, _WAIT, node) for node, moment in waits if moment is not None]
        order += list(self._marks(calls))
        row_of = self.row_of
        for moment, what, at in sorted(order):
            when: dict[str, Any] = {"start_ns": moment - self.begin, "node": at}
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
                    self.b.step(StepKind.END, at - 1, start_ns=moment - self.begin)
                self.b.mark(at, start_ns=moment - self.begin)
        for row in list(self.pending):
            self._wait(row, {})
        self._host_time()
        self.memory.fill()
        steps = len(np.unique(self.trace.step[self.inside & (self.trace.step != UNKNOWN)])) or 1
        span = int(self.end[self.inside].max() - self.begin) if self.inside.any() else 0
        self.b.about |= {
            "steps": steps,
            "recorded_step_ns": span // steps,
            "unprofiled_step_ns": unprofiled_step_ns(self.job),
            "threads": _number(self.job.provenance.get("threads", "")),
            "work_ns": int(total_ns),
            "source": "recorded",
        }
        return self.b.build()

    def _marks(self, calls: list[Op]) -> Iterator[tuple[int, int, int]]:
        """Where each training step begins."""
        step = self.trace.step
        known = self.inside & (step != UNKNOWN)
        for number, value in enumerate(np.unique(step[known]).tolist() or [None]):
            rows = self.inside if value is None else known & (step == value)
            yield int(self.start[rows].min()) if rows.any() else 0, _MARK, number

    def _wait(self, row: int, when: dict[str, Any]) -> None:
        if self.pending.pop(row, None) is not None:
            self.b.wait(row, **when)

    def _wait_for(self, storages: set[int], when: dict[str, Any]) -> None:
        """What reads the result of a communication waits for it, even where no wait was recorded."""
        for row in [row for row, written in self.pending.items() if written & storages]:
            self._wait(row, {"start_ns": when["start_ns"]})

    def _call(self, op: Op, when: dict[str, Any]) -> None:
        given, gave = op.given, op.gave
        if when["work_ns"] or not self.on_device:  # what launches no kernel only looks at memory of a device
            self._wait_for({t.storage for t in given.tensors}, when)
        tell(self.memory, op.name, given)
        storages = {t.storage for t in given.tensors}
        if not given.whole:
            made = [self.memory.outside(t) for t in gave.tensors if t.storage not in storages]
            self._stand_in(op.node, op.name, when, [slot for slot in made if slot != NOTHING])
            return
        inputs = [self.memory.read(t) for t in given.tensors]
        bound = {k: self.memory.made(t, storages) for k, t in enumerate(gave.tensors)}
        outputs = [
            bound.get(v["t"], NOTHING) if isinstance(v, dict) and "t" in v else NOTHING for v in results(gave.form)
        ]
        while outputs and outputs[-1] == NOTHING:
            outputs.pop()
        made_of(self.memory, op.name, given, gave)
        if self.regions.kernels[op.node]:
            self._keep(self.regions.file(op.node))
        self.b.call(_overload(op.name, op.schema), given.form, inputs, outputs, schema=op.schema, **when)

    def _stand_in(self, node: int, label: str, when: dict[str, Any], outputs: list[int] | tuple[int, ...] = ()) -> None:
        table = self._works()
        flops, size = int(table.flops[node]), int(table.size_bytes[node])
        if flops <= 0 and size <= 0:
            size = self._given_bytes(int(self.trace.parent[node]))
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
        """What a kernel without a schema (Triton) was given, where its launch tells: each tensor counts once."""
        if node < 0 or self.trace.in_types[node] < 0:
            return 0
        return sum(tensor.numel * tensor.itemsize for tensor in self._arguments("in", node).tensors)

    _table: OpTable | None = None

    def _works(self) -> OpTable:
        if self._table is None:
            self._table = ops_of(self.trace)
        return self._table

    def _orphan(self, node: int, when: dict[str, Any]) -> None:
        """A kernel that no operator of a schema launched."""
        when = when | {"work_ns": int(self.end[node] - self.start[node])}
        self._stand_in(node, self.names[int(self.codes[node])], when)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _work(self, calls: list[Op]) -> tuple[I64, int, list[int], dict[int, int]]:
        """Recorded time of the work of each call and of all; kernels that belong to none; time of the kernels of each
        region that is played whole. `work_of`: of a kernel the node of its call or region, or the kernel itself."""
        trace = self.trace
        self.work_of = np.full(len(trace), -1, np.int64)
        kernels = np.flatnonzero(self.inside & (trace.cpu == 0))
        took = np.maximum(self.end - self.start, 0)
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
        region = self.regions.inside_whole[kernels]
        lost = kernels[~mine & ~comms & (region < 0)]
        region_ns = {node: int(took[kernels[region == at]].sum()) for at, node in enumerate(self.regions.whole)}
        self.work_of[lost] = lost
        self.work_of[kernels[mine]] = np.array([op.node for op in calls], np.int64)[owner[mine]]
        self.work_of[kernels[region >= 0]] = np.array(self.regions.whole, np.int64)[region[region >= 0]]
        return work, int(took[kernels].sum()) - sum(region_ns.values()), lost.tolist(), region_ns

    def _host_time(self) -> None:
        """What the host takes from step to step without the profiler, up to the end of the last one."""
        trace = self.trace
        events = self.inside & (trace.cpu == 1) & (trace.in_types >= 0)
        if not events.any():
            return
        self.b.step(StepKind.END, sum(step[0] == StepKind.END for step in self.b.steps), start_ns=self._host_end())
        steps = np.array(self.b.steps, np.int64)
        if not self.on_device:
            self._between(steps, events)
            return
        clock = HostClock(trace, self.inside, self.start, self.end)
        moment = np.where(steps[:, 3] == NOTHING, NOTHING, clock(steps[:, 3] + self.begin) - self.begin)
        is_call = steps[:, 0] == StepKind.CALL
        row = np.where(is_call, steps[:, 1], 0)
        recorded = host_intervals(steps[:, 0], self._called(steps), moment)
        tensors = np.where(is_call, np.array([len(call[2]) for call in self.b.calls] or [0], np.int64)[row], 0)
        calls = self.inside & (trace.cpu == 1) & (trace.correlation != UNKNOWN)
        moments = np.where(steps[:, 3] == NOTHING, -1, steps[:, 3]) + self.begin
        of_events, of_calls = (counted(moments, self.start[rows]) for rows in (events, calls))
        self.b.host_ns = plain_ns(recorded, of_events, of_calls, tensors).tolist()
        self.b.about["host"] = {"events": int(of_events.sum()), "calls": int(of_calls.sum()),
                                "recorded_ns": int(recorded.sum())}  # fmt: skip

    def _between(self, steps: I64, events: Bool) -> None:
        """What a CPU takes between its operators without the profiler."""
        free, count = self._gaps(steps, events, None)
        clocks = light_clocks(self.trace, events, self.start, self.end, self.light)
        about: dict[str, Any] = {"free_ns": int(free.sum()), "events": int(count.sum()), "light_steps": len(clocks)}
        if clocks and self.light is not None:
            each = self._without_waits([self._gaps(steps, events, clock) for clock in clocks], steps, clocks)
            used = [clock.step for clock in clocks]
            event_ns, pass_ns = self.light.event_ns[used], self.light.pass_ns[used]
            python = python_ns(free, each, steps[:, 0] == StepKind.CALL, event_ns, pass_ns)
            self.b.host_ns = (python + self._graph_ns(steps)).tolist()
            about |= {"event_ns": float(np.median(event_ns)), "pass_ns": float(np.median(pass_ns)),
                      "node_ns": self.light.node_ns, "page_faults": self.light.page_faults}  # fmt: skip
        else:
            about["unit_ns"] = unit_ns(self.trace.parent, self.start, events)
            self.b.host_ns = pauses_ns(free, count, about["unit_ns"]).tolist()
        self.b.about["host"] = about

    def _gaps(self, steps: I64, events: Bool, clock: LightClock | None) -> tuple[I64, I64]:
        """Of each step the time since the one before in which the host was in no operator and did not wait, and the
        events in it; as recorded, or by the clock of a light step."""
        on: Callable[[I64], I64] = clock or (lambda moments: moments)
        kind, moment, node = steps[:, 0], on(steps[:, 3] + self.begin), steps[:, 5]
        at = node[np.isin(kind, (StepKind.CALL, StepKind.COMM, StepKind.STAND_IN)) & (node != NOTHING)]
        wait_ops = np.array([op.node for op in self.ops if op.name in WAITS], np.int64)
        at = np.append(at, wait_ops)
        waits = np.flatnonzero((kind == StepKind.WAIT) & (steps[:, 3] != NOTHING))
        waits = waits[~np.isin(moment[waits], on(self.start[wait_ops]))]
        comm_of = {row: comm for comm, row in self.row_of.items()}
        comms = np.array([comm_of[row] for row in steps[waits, 1]], np.int64)
        ends = np.where(comms >= 0, on(self.end[comms]), 0)
        if clock is not None:
            ends = np.array([clock.comm_end_ns.get(comm, end) for comm, end in zip(comms, ends, strict=True)], np.int64)
        busy, moment[waits] = waited(Busy(on(self.start[at]), on(self.end[at])), ends, moment[waits])
        timed = (*TIMED, StepKind.WAIT)
        known = np.flatnonzero(np.isin(kind, timed) & (steps[:, 3] != NOTHING))
        moments = np.maximum.accumulate(moment[known])
        free, count = np.full(len(steps), NOTHING), np.zeros(len(steps), np.int64)
        free[known] = busy.free_ns(moments) - self.begin
        starts = on(self.start[events])
        count[known] = counted(moments, starts[~busy.has(starts)])
        return host_intervals(kind, self._called(steps), free, timed), count

    def _without_waits(
        self, each: list[tuple[I64, I64]], steps: I64, clocks: list[LightClock]
    ) -> list[tuple[I64, I64]]:
        """Gaps less what the thread did not work: where a program communicates it waits for others. Operators worked as
        long as they took, the shortest of each."""
        if not self.row_of:
            return each
        at = steps[np.isin(steps[:, 0], (StepKind.CALL, StepKind.COMM)) & (steps[:, 5] != NOTHING), 5]
        inside = float(np.min([clock(self.end[at]) - clock(self.start[at]) for clock in clocks], axis=0).sum())
        waits = np.append(False, steps[:-1, 0] == StepKind.WAIT) | (steps[:, 0] == StepKind.WAIT)
        return [(without_waits(free, waits, clock.worked_ns - inside), count)
                for (free, count), clock in zip(each, clocks, strict=True)]  # fmt: skip

    def _graph_ns(self, steps: I64) -> I64:
        """What autograd took to make the nodes that run before each step, inside operators that are played without."""
        assert self.light is not None
        nodes = np.array([name.startswith(_NODE) and not name.endswith(_GRADIENT) for name in self.names])[self.codes]
        known = np.flatnonzero(steps[:, 3] != NOTHING)
        found = np.zeros(len(steps))
        starts = self.start[self.inside & nodes]
        found[known] = self.light.node_ns * counted(steps[known, 3] + self.begin, starts)
        return np.rint(found).astype(np.int64)

    def _called(self, steps: I64) -> I64:
        """The operator of each step that is a call."""
        op, is_call = np.array([row[0] for row in self.b.calls] or [0], np.int64), steps[:, 0] == StepKind.CALL
        called: I64 = np.where(is_call, op[np.where(is_call, steps[:, 1], 0)], NOTHING)
        return called

    def _host_end(self) -> int:
        """When the host was done, from the program's begin."""
        ends = int(self.end[self.inside & (self.trace.cpu == 1)].max()) - self.begin
        return max(ends, *(step[3] for step in self.b.steps)) if self.b.steps else ends

    def _region(self, node: int, when: dict[str, Any], kernels_ns: dict[int, int]) -> int:
        """A call of compiled code: its code, where that is known. Gives its time."""
        key, start, end = self.regions.key(node), int(self.start[node]), int(self.end[node])
        if key not in self.sources:
            own = own_ns(self.ops, start, end)
            self.b.stand_in(StandInKind.HOST, "compiled region", **when | {"work_ns": own})
            return own
        own = kernels_ns.get(node, end - start)
        self._keep(key)
        self.b.call(f"{COMPILED_SPACE}{key}", [], [], [], **when | {"work_ns": own})
        return own

    def _keep(self, key: str) -> None:
        """Code that the program calls goes with it."""
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

    def _comm_nodes(self) -> dict[int, int]:
        """Node of a communication operator -> node of what it sent."""
        trace, found = self.trace, {}
        is_comm = np.isin(trace.kind, (int(Kind.COLL), int(Kind.SEND), int(Kind.RECV))) & self.inside
        rows = np.flatnonzero(is_comm)
        for node in rows[np.argsort(self.start[rows], kind="stable")].tolist():
            near = [node, *trace.data[trace.data_start[node] : trace.data_start[node + 1]][::-1].tolist()]
            near += trace.ctrl[trace.ctrl_start[node] : trace.ctrl_start[node + 1]][::-1].tolist()
            for other in near:
                op = self._comm_above(int(other))
                if op is not None and op.node not in found:
                    found[op.node] = node
                    break
        self._pair_rest(found, rows)
        return found

    def _pair_rest(self, found: dict[int, int], rows: I64) -> None:
        """What no edge ties together: the k-th operator of a kind with the k-th communication of that kind."""
        taken = set(found.values())
        left = [n for n in rows[np.argsort(self.start[rows], kind="stable")].tolist() if n not in taken]
        for op in self.ops:
            about = COMM_OPS.get(op.name)
            if about is None or op.node in found:
                continue
            for node in left:
                if self._is(node, about.kind) and self.start[node] >= op.start_ns:
                    found[op.node] = node
                    left.remove(node)
                    break

    def _is(self, node: int, kind: CommKind) -> bool:
        if self.trace.kind[node] == int(Kind.COLL):
            return int(self.trace.collective[node]) == int(kind)
        return kind == (CommKind.SEND if self.trace.kind[node] == int(Kind.SEND) else CommKind.RECV)

    def _comm_above(self, node: int) -> Op | None:
        at = int(self.owner[node]) if node >= 0 else -1
        while at >= 0:
            if self.ops[at].name in COMM_OPS:
                return self.ops[at]
            at = self.ops[at].outer
        return None

    def _waited_at(self, node: int) -> int | None:
        """When the host, or the operator of the first kernel that waits for a communication, goes on after it."""
        trace = self.trace
        moments = []
        for start, edges in ((trace.data_start, trace.data), (trace.ctrl_start, trace.ctrl)):
            at = np.flatnonzero(edges == node)
            for row in (np.searchsorted(start, at, "right") - 1).tolist():
                if trace.kind[row] in (int(Kind.COLL), int(Kind.SEND), int(Kind.RECV)) or not self.inside[row]:
                    continue
                above = int(self.owner[row])
                moments.append(self.ops[above].start_ns if trace.cpu[row] == 0 and above >= 0 else int(self.start[row]))
        return min(moments, default=None)

    def _comm(self, op: Op, node: int, when: dict[str, Any]) -> int:
        about, given = COMM_OPS[op.name], op.given
        outs, ins = tensors_at(given, about.output), tensors_at(given, about.input)
        group, ranks = self._group(node)
        peer = number_at(given, about.peer)
        if about.kind in (CommKind.SEND, CommKind.RECV) and node >= 0:
            peer = self._peer(node, peer, ranks)
        elif 0 <= peer < len(ranks):
            peer = ranks[peer]
        if node >= 0:
            when = when | {"work_ns": int(self.end[node] - self.start[node])}
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
        world = list(range(self.job.world_size))
        slot = int(self.trace.group[node]) if node >= 0 else -1
        number = int(self.job.group_slots(self.rank)[slot]) if slot >= 0 else -1
        if number < 0:  # the group of all ranks has a name, if any of them said it
            groups = self.job.groups
            known = (
                g for g in range(len(groups)) if (listed := groups.ranks(g)) is not None and listed.tolist() == world
            )
            number = next(known, -1)
        members = self.job.groups.ranks(number) if number >= 0 else None
        ranks = members.tolist() if members is not None else world
        name = self.job.groups.names[number] if number >= 0 else ""
        return self.b.group(ranks, name), ranks

    def _peer(self, node: int, peer: int, ranks: list[int]) -> int:
        slot = int(self.trace.dst[node] if self.trace.kind[node] == int(Kind.SEND) else self.trace.src[node])
        if slot >= 0:
            return int(self.job.peer_slots(self.rank)[slot])
        return ranks[peer] if 0 <= peer < len(ranks) else NOTHING


def _in_steps(trace: Trace, start: I64, end: I64) -> Bool:
    """Nodes of the recorded steps; all that have times where no step was recorded."""
    timed = (start != UNKNOWN) & (end != UNKNOWN)
    known = timed & (trace.step != UNKNOWN)
    if not known.any():
        return timed
    return timed & (start >= start[known].min()) & (start <= end[known].max())


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 19 else None


def _overload(name: str, schema: str) -> str:
    """`aten::add.Tensor` from its schema."""
    full = schema.partition("(")[0].strip()
    return full if full.partition(".")[0] == name else name

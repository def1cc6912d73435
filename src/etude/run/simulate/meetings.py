"""Overlap on a device: kinds of nodes and operations by how they are launched, and what each costs the other.

Compute nodes are kernels: blocks on cores by their shapes, bytes through the memory. Collectives and messages hold
cores and draw two bytes of memory for each that they send, and one more for each that is reduced. Memory nodes are
copies to or from the host, or streams through the device's own memory. Nodes of the host overlap with none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from etude.cost.contention import Launch, excess, filling, launch_of, transfer_of, work_of
from etude.cost.groups import GroupShape
from etude.cost.ops import DTYPE_NUMBER, OpClass, Work
from etude.kernels.arrays import I64
from etude.machine.system import Device, System
from etude.model.memory import LOCAL, REMOTE, locations
from etude.model.schema import Collective, Kind
from etude.model.trace import Trace
from etude.model.use import Use, uses
from etude.run.simulate.costs import ops_of_rows, trace_kinds
from etude.run.simulate.lower import Lowered
from etude.run.simulate.networks.meeting import UNPRICED, Kinds
from etude.run.simulate.operations import Operations
from etude.run.simulate.options import Options

KERNEL, STREAM, TO_DEVICE, TO_HOST, TRANSFER = range(5)
"""First column of `Launches`: what a row is."""
COLUMNS: Final = ("what", "device", "alone_ns", "size_bytes", "flops", "op_class", "dtype", "m", "n", "k", "batch")
"""For a transfer, `m` is the bytes over the link to the host."""
MOST: Final = 1024
"""Kinds that are distinguished; beyond this number, kinds with similar times are merged."""
NEAR: Final = 1.05
_WAYS: Final = ((re.compile(r"HtoD|HostToDevice", re.I), TO_DEVICE), (re.compile(r"DtoH|DeviceToHost", re.I), TO_HOST))
_DTYPES: Final = {number: name for name, number in DTYPE_NUMBER.items()}
_GATHERS: Final = (Collective.ALL_GATHER, Collective.GATHER)
_REDUCES: Final = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK, Collective.REDUCE)
_SPLIT: Final = (Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK, Collective.ALL_TO_ALL)


@dataclass(slots=True)
class RunningPairs:
    """Kinds of everything that runs; pairs are priced on request."""

    devices: tuple[Device, ...]
    rows: I64
    kinds: Kinds
    near: float
    unknown: int
    cores: int
    """Cores that a collective holds; 0: as its device says."""
    launches: dict[int, Launch] = field(default_factory=dict)

    def price(self, a: int, b: int) -> float:
        """How much longer one of kind a takes next to one of kind b, as a fraction."""
        return max(excess(self.devices[int(self.rows[a, 1])], self._launch(a), self._launch(b)), 0.0)

    def _launch(self, kind: int) -> Launch:
        if kind not in self.launches:
            row = dict(zip(COLUMNS, self.rows[kind].tolist(), strict=True))
            self.launches[kind] = _launch(self.devices[row["device"]], row, self.cores)
        return self.launches[kind]

    def notes(self) -> list[str]:
        said = []
        if self.unknown:
            said.append(
                f"{self.unknown:,} compute nodes have no operations, bytes or shapes: next to others they "
                "are assumed to fill all cores and to use no memory bandwidth"
            )
        if self.near > 1:
            said.append(f"kernels that differ only in times within {self.near - 1:.0%} are treated as one kind")
        return said


def meetings(lowered: Lowered, ops: Operations) -> RunningPairs | None:
    """None unless overlaps have a cost."""
    if not lowered.options.contention:
        return None
    devices, programs = lowered.system.all_kinds, lowered.programs
    parts, at = [], []
    kind_of = trace_kinds(lowered.job, lowered.system)
    for program, first in zip(*np.unique(programs.of, return_index=True), strict=True):
        here = slice(int(programs.start[program]), int(programs.start[program + 1]))
        number = int(lowered.job.trace_of[first])
        rows, found = node_rows(lowered.job.traces[number], programs.cost_ns[here], kind_of[number], lowered.options)
        at.append(rows + here.start)
        parts.append(found)
    transfers = [_transfers(lowered, ops, number, device) for number, device in enumerate(devices)]
    unique, which, near = _distinct(np.concatenate([*parts, *transfers]))
    count = sum(map(len, parts))
    of_row = np.full(len(programs.cost_ns), -1, np.int32)
    of_row[np.concatenate(at)] = which[:count]
    instance_kind = lowered.system.kind_of(lowered.job.ranks[lowered.classes.first]).astype(np.int32)
    kinds = Kinds(
        of_row,
        which[count:].reshape(len(devices), len(ops)).astype(np.int32),
        instance_kind,
        np.full((len(unique), len(unique)), UNPRICED, np.float32),
        np.zeros(2, np.int64),
    )
    silent = (unique[:, 0] == KERNEL) & (unique[:, 3] <= 0) & (unique[:, 4] <= 0)
    grain = lowered.options.grain
    return RunningPairs(devices, unique, kinds, near, int(silent[which[:count]].sum()), grain.ctas if grain else 0)


def node_rows(trace: Trace, cost_ns: I64, device: int, options: Options) -> tuple[I64, I64]:
    """Nodes of a trace that overlap with others on its device, and a row of COLUMNS for each."""
    use = uses(trace)
    mine = np.flatnonzero((trace.cpu != 1) & (cost_ns > 0) & ((use == Use.COMPUTE) | (use == Use.MEMORY)))
    ops = ops_of_rows(trace, mine)
    found = np.zeros((len(mine), len(COLUMNS)), np.int64)
    memory = use[mine] == Use.MEMORY
    found[:, 0], found[:, 1], found[:, 2] = KERNEL, device, cost_ns[mine]
    names = ("size_bytes", "flops", "op_class", "dtype", "m", "n", "k", "batch")
    for column, name in enumerate(names, 3):
        found[:, column] = getattr(ops, name)
    found[:, 3:5] = np.maximum(found[:, 3:5], 0)
    found[memory, 3:] = 0
    found[memory, 3] = np.maximum(trace.tensor_bytes[mine[memory]], 0)
    found[memory, 0] = _ways(trace, mine[memory], options)
    return mine, found


def _ways(trace: Trace, rows: I64, options: Options) -> I64:
    """Type of each memory node: a copy in either direction, or a stream through the device's own memory."""
    place, kind = locations(trace)[rows], trace.kind[rows]
    far = (place == REMOTE) | ((place != LOCAL) & (options.remote_memory is not None))
    found = np.full(len(rows), STREAM, np.int64)
    found[far & (kind == Kind.MEM_LOAD)], found[far & (kind == Kind.MEM_STORE)] = TO_DEVICE, TO_HOST
    codes, words = trace.coded("name", rows)
    for number, word in enumerate(words):
        for spelled, way in _WAYS:
            if spelled.search(word):
                found[codes == number] = way
    return found


def _transfers(lowered: Lowered, ops: Operations, number: int, device: Device) -> I64:
    """A row of COLUMNS for each operation, as a member on such a device has it."""
    groups = lowered.groups
    found = np.zeros((len(ops), len(COLUMNS)), np.int64)
    found[:, 0], found[:, 1] = TRANSFER, number
    found[:, 2] = np.maximum(ops.time_ns, 1)
    collectives = ops.messages_from
    calls = np.stack(
        [groups.shape[ops.place[:collectives]], ops.collective[:collectives], ops.size_bytes[:collectives]], 1
    )
    unique, which = np.unique(calls, axis=0, return_inverse=True)
    drawn = np.zeros((len(unique), 2), np.int64)
    for row, (number_of_shape, kind, size) in enumerate(unique.tolist()):
        drawn[row] = _drawn(lowered.system, groups.shapes[number_of_shape], Collective(kind), float(size))
    found[:collectives, 3], found[:collectives, 7] = drawn[which.reshape(-1)].T
    found[collectives:, 3] = 2 * ops.size_bytes[collectives:]
    found[collectives:, 7] = _message_link_bytes(lowered, ops)
    found[:, 3] *= ops.size_bytes > device.cache_bytes
    return found


def _drawn(system: System, shape: GroupShape, what: Collective, size: float) -> tuple[int, int]:
    """Bytes of a member's memory traffic, and bytes over its link to the host."""
    over, inner = 0.0, 1
    for span in shape.spans:
        if system.levels[span.level].on_host_link:
            over += _sent(what, size if what in _GATHERS else size / inner, span.units)
        inner *= span.units
    reduced = size * (shape.size - 1) / shape.size if what in _REDUCES else 0.0
    return round(2 * _sent(what, size, shape.size) + reduced), round(over)


def _sent(what: Collective, size: float, members: int) -> float:
    """Bytes that a member of a collective sends, as nccl-tests count them for the bus."""
    if what == Collective.BARRIER or members < 2:
        return 0.0
    if what in _GATHERS:
        return size * (members - 1)
    part = size * (members - 1) / members
    return 2 * part if what == Collective.ALL_REDUCE else part if what in _SPLIT else size


def _message_link_bytes(lowered: Lowered, ops: Operations) -> I64:
    links, system = lowered.matching.links, lowered.system
    place = ops.place[ops.messages_from :]
    if not any(level.on_host_link for level in system.levels) or not len(place):
        return np.zeros(len(place), np.int64)
    a, b = system.device_of(links.src[place]), system.device_of(links.dst[place])
    over = np.zeros(len(place), bool)
    for level in system.levels:
        over |= (a // level.size == b // level.size) & (a != b) & level.on_host_link
        a, b = a // level.size, b // level.size
    return np.where(over, ops.size_bytes[ops.messages_from :], 0)


def _distinct(rows: I64) -> tuple[I64, I64, float]:
    """Distinct rows, the index of each row among them, and the factor within which times count as equal."""
    near = 1.0
    while True:
        unique, which = np.unique(rows, axis=0, return_inverse=True)
        if len(unique) <= MOST or near > 4:
            return unique, which.reshape(-1), near
        near = NEAR if near == 1 else near * near
        rows = rows.copy()
        rows[:, 2] = np.rint(near ** np.rint(np.log(rows[:, 2]) / np.log(near)))


def _launch(device: Device, row: dict[str, int], cores: int) -> Launch:
    what, alone_ns, size = row["what"], float(row["alone_ns"]), row["size_bytes"]
    if what == TRANSFER:
        return transfer_of(device, alone_ns, size, row["m"], cores)
    if what in (TO_DEVICE, TO_HOST):
        return launch_of(device, Work(size_bytes=size), alone_ns, "h2d" if what == TO_DEVICE else "d2h")
    if what == STREAM:
        return launch_of(device, Work(op_class=OpClass.COPY, size_bytes=size), alone_ns)
    op_class = OpClass(row["op_class"])
    shaped = row["m"] > 0 and op_class not in (OpClass.NONE, OpClass.OTHER)
    if not size and not row["flops"] and not shaped:
        return filling(device, alone_ns)
    if not shaped and op_class in (OpClass.NONE, OpClass.OTHER):
        return launch_of(device, replace(work_of("", row["flops"], size), dtype=_DTYPES[row["dtype"]]), alone_ns)
    op_class = OpClass.GROUPED_GEMM if op_class == OpClass.RAGGED_GEMM else op_class
    given = {name: row[name] for name in ("flops", "size_bytes", "m", "n", "k", "batch")}
    return launch_of(device, Work(op_class=op_class, dtype=_DTYPES[row["dtype"]], **given), alone_ns)

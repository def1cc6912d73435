"""Plays programs with only communication: it has its own buffers and timestamps, and issues and waits for each call in
order."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.run.replay.buffers import Buffers
from etude.run.replay.communication.calls import Communicator, Issue, allocated, wait
from etude.run.replay.communication.stopping import Stopping
from etude.run.replay.program import CommKind, Program, StepKind

_ISSUE, _WAIT, _HOST = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class PlayedRank:
    """What one process measured, in ns of this machine's monotonic clock."""

    wall_ns: I64
    """For each iteration, the time from the barrier before it to the last wait."""
    start_ns: I64
    """[iteration, call]: when it was issued."""
    end_ns: I64
    """[iteration, call]: when it was complete; for messages on gloo, when its wait returned."""
    order: I64
    """Calls of the last iteration, in order of issue."""
    in_bytes: I64
    """For each call, the bytes of the tensors that were passed to the backend."""
    out_bytes: I64
    stopped: bool
    """Whether there are fewer iterations than requested because of Ctrl-C."""


class CommunicationPlayer:
    """Holds everything that an iteration needs; all of it is created before the first one."""

    def __init__(self, program: Program, communicator: Communicator) -> None:
        self.program, self.communicator = program, communicator
        self.cuda = communicator.device.type == "cuda"
        calls = len(program.comms.kind)
        self.in_bytes, self.out_bytes = np.zeros(calls, np.int64), np.zeros(calls, np.int64)
        self.issues: list[Issue | None] = [None] * calls
        self._bind()
        self.steps = self._steps()

    def _bind(self) -> None:
        comms, pools = self.program.comms, _Memory(self.program, self.communicator)
        for row in pools.plan.used:
            kind = CommKind(int(comms.kind[row]))
            give, take = pools.tensors(row)
            self.issues[row] = self.communicator.bound(row, give, take)
            self.in_bytes[row] = 0 if kind == CommKind.RECV else give.numel() * give.element_size()
            self.out_bytes[row] = 0 if kind == CommKind.SEND else take.numel() * take.element_size()

    def _steps(self) -> list[tuple[int, int]]:
        found, steps = list[tuple[int, int]](), self.program.steps
        later = self.program.comms.is_async.tolist()
        for kind, row in zip(steps.kind.tolist(), steps.row.tolist(), strict=True):
            if kind == StepKind.COMM:
                found.append((_ISSUE, row))
                if not later[row]:
                    found.append((_WAIT, row))
            elif kind == StepKind.WAIT:
                found.append((_WAIT, row))
            elif kind == StepKind.HOST:
                found.append((_HOST, row))
        return found

    def play(
        self, iterations: int, warmup: int = 1, *, host: bool = False, stopping: Stopping | None = None
    ) -> PlayedRank:
        """Plays the iterations. With `host` the time between calls is as recorded. If one process is asked to stop, all
        of them stop after the iterations done so far."""
        calls = len(self.issues)
        wall: list[int] = []
        starts: list[list[int]] = []
        ends: list[list[int]] = []
        order: list[int] = []
        stop = stopping or Stopping(self.communicator.device)
        for iteration in range(-warmup, iterations):
            if stop.agreed(bool(wall)):
                break
            start, end, order = [0] * calls, [0] * calls, []
            before = time.perf_counter_ns()
            self._once(start, end, order, host)
            now = time.perf_counter_ns()
            if iteration >= 0:
                wall.append(now - before)
                starts.append(start)
                ends.append(end)
        table = np.array(starts, np.int64).reshape(len(wall), calls)
        return PlayedRank(
            np.array(wall, np.int64),
            table,
            np.array(ends, np.int64).reshape(len(wall), calls),
            np.array(order, np.int64),
            self.in_bytes,
            self.out_bytes,
            len(wall) < iterations,
        )

    def _once(self, start: list[int], end: list[int], order: list[int], host: bool) -> None:
        works: dict[int, list[Any]] = {}
        clock, issues = time.perf_counter_ns, self.issues
        batches = self._batches() if self.cuda else {}
        for what, row in self.steps:
            if what == _ISSUE:
                if row in works:  # already issued with its batch
                    continue
                order.append(row)
                start[row] = clock()
                if row in batches:
                    self._batch(batches[row], works, start, order)
                    continue
                issue = issues[row]
                assert issue is not None
                works[row] = issue()
                if not self.cuda:
                    _stamp(works[row], end, row)
            elif what == _WAIT:
                wait(works[row])
                end[row] = end[row] or clock()
            elif host:
                time.sleep(row / 1e9)
        if self.cuda:
            torch.cuda.synchronize()

    def _batches(self) -> dict[int, list[int]]:
        """First call of each batch of messages -> all calls of the batch. Not needed for gloo: its messages do not
        queue."""
        found: dict[int, list[int]] = {}
        for row, batch in enumerate(self.program.comms.batch.tolist()):
            if batch >= 0 and self.issues[row] is not None:
                found.setdefault(batch, []).append(row)
        return {rows[0]: rows for rows in found.values()}

    def _batch(self, rows: list[int], works: dict[int, list[Any]], start: list[int], order: list[int]) -> None:
        """Issues messages as one batch: otherwise NCCL would run them in order, and a send could wait for a later
        receive."""
        with dist._coalescing_manager(device=self.communicator.device, async_ops=True) as manager:
            for row in rows:
                issue = self.issues[row]
                assert issue is not None
                start[row] = start[rows[0]]
                issue()
        order += rows[1:]
        works.update({row: [manager] if row == rows[-1] else [] for row in rows})
        works[rows[0]] = [manager]


def _stamp(works: list[Any], end: list[int], row: int) -> None:
    """Records when a call is complete, if the backend reports it: gloo does, except for messages."""
    try:
        futures = [work.get_future() for work in works]
    except (RuntimeError, AttributeError):
        return
    for future in futures:
        future.add_done_callback(lambda _: end.__setitem__(row, time.perf_counter_ns()))


class _Memory:
    """The buffers of all calls."""

    def __init__(self, program: Program, communicator: Communicator) -> None:
        self.plan = Buffers(program, communicator.carried_as)
        try:
            self.memory = allocated(self.plan, communicator.device)
        except RuntimeError as problem:
            raise UsageError(
                f"the buffers of its calls need {self.plan.size_bytes:,} B, but there is not enough memory",
                where=str(communicator.device),
                hint="--sizes scaled with fewer ranks makes them smaller",
            ) from problem

    def tensors(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        (first, second), (into, out) = self.plan.used[row], self.plan.sizes[row]
        return self.memory[first][:into], self.memory[second][:out]

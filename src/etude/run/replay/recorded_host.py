"""Host time from step to step of a recorded program, without the profiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.kernels.arrays import I64, Bool
from etude.model.schema import UNKNOWN
from etude.run.replay.between import Busy, mostly_inside, pauses_ns, python_ns, unit_ns, waited, without_waits
from etude.run.replay.builder import ProgramBuilder
from etude.run.replay.comm_ops import WAITS
from etude.run.replay.host_time import TIMED, HostClock, counted, graph_ns, host_intervals, plain_ns
from etude.run.replay.launches import host_between_launches, launch_clocks
from etude.run.replay.light import LightClock, LightEvents, light_clocks
from etude.run.replay.program import NOTHING, StepKind
from etude.run.replay.recording import ReplayRecording
from etude.run.replay.regions import COMPILED

_NODE, _GRADIENT = "autograd::engine::evaluate_function: ", "AccumulateGrad"
"""Autograd nodes, as the profiler names them; those that accumulate gradients are created only once."""


@dataclass(frozen=True, slots=True)
class RecordedHost:
    """The host of a recording, for a program whose steps have all been added."""

    of: ReplayRecording
    b: ProgramBuilder
    row_of: dict[int, int]
    """Node of a communication -> its row of `comms`."""
    light: LightEvents | None

    def tell(self) -> None:
        """Adds the host time from step to step without the profiler, up to the end of the last step, to the program."""
        trace = self.of.trace
        events = self.of.inside & (trace.cpu == 1) & (trace.in_types >= 0)
        if not events.any():
            return
        self.b.step(StepKind.END, sum(step[0] == StepKind.END for step in self.b.steps), start_ns=self._host_end())
        steps = np.array(self.b.steps, np.int64)
        if not self.of.on_device:
            self._between(steps, events)
            return
        self._launched(steps, events)

    def _launched(self, steps: I64, events: Bool) -> None:
        """Sets the host time of a program on a device, from step to step."""
        trace = self.of.trace
        waiting = HostClock(trace, self.of.inside, self.of.start, self.of.end)
        known = steps[:, 3] != NOTHING
        moments = np.where(known, steps[:, 3], -1) + self.of.begin
        moment = np.where(known, waiting(moments) - self.of.begin, NOTHING)
        recorded = host_intervals(steps[:, 0], self._called(steps), moment)
        calls = self.of.inside & (trace.cpu == 1) & (trace.correlation != UNKNOWN)
        of_events, of_calls = (counted(moments, self.of.start[rows]) for rows in (events, calls))
        about: dict[str, Any] = {
            "events": int(of_events.sum()),
            "calls": int(of_calls.sum()),
            "recorded_ns": int(recorded.sum()),
        }
        clocks, why = list[LightClock](), ""
        if self.light is not None:
            clocks, why = launch_clocks(trace, self.of.inside, self.of.start, self.of.end, self.light)
            about["light_steps"] = len(clocks)
            self._unused(about, why)
        estimated = plain_ns(recorded, of_events, of_calls, self._tensors(steps))
        timed = np.flatnonzero(np.isin(steps[:, 0], TIMED) & known)
        graphs = self._graphs()
        if len(graphs.begins):
            unit = about["unit_ns"] = unit_ns(trace.parent, self.of.start, events)
            inside = mostly_inside(graphs, moments[timed])
            of_graph = graph_ns(recorded[timed], counted(moments[timed], self.of.start[events]), unit)
            estimated[timed] = np.where(inside, of_graph, estimated[timed])
            untimed = ~np.isin(np.arange(len(steps)), timed)
            estimated[untimed & graphs.has(moments)] = 0  # the next timed step has it
        if self.of.in_program_time:
            estimated, clocks = recorded, []
        told = host_between_launches(
            steps[:, 0], self._called(steps), np.where(known, moments, NOTHING), clocks, estimated
        )
        self.b.host_ns = told.tolist()
        self.b.about["host"] = about

    def _tensors(self, steps: I64) -> I64:
        """The number of tensor arguments of each step that is a call."""
        is_call = steps[:, 0] == StepKind.CALL
        given = np.array([len(call[2]) for call in self.b.calls] or [0], np.int64)
        found: I64 = np.where(is_call, given[np.where(is_call, steps[:, 1], 0)], 0)
        return found

    def _graphs(self) -> Busy:
        """When the host was in compiled graphs."""
        wanted = np.array([name.startswith(COMPILED) for name in self.of.names] + [False])
        rows = np.flatnonzero(wanted[self.of.codes] & self.of.inside)
        return Busy(self.of.start[rows], self.of.end[rows])

    def _between(self, steps: I64, events: Bool) -> None:
        """Sets the time of a CPU between its operators without the profiler."""
        free, count = self._gaps(steps, events, None)
        clocks, why = list[LightClock](), ""
        if self.light is not None:
            clocks, why = light_clocks(self.of.trace, events, self.of.start, self.of.end, self.light)
        about: dict[str, Any] = {"free_ns": int(free.sum()), "events": int(count.sum()), "light_steps": len(clocks)}
        if clocks and self.light is not None:
            each = self._without_waits([self._gaps(steps, events, clock) for clock in clocks], steps, clocks)
            used = [clock.step for clock in clocks]
            event_ns, pass_ns = self.light.event_ns[used], self.light.pass_ns[used]
            python = python_ns(free, each, steps[:, 0] == StepKind.CALL, event_ns, pass_ns)
            self.b.host_ns = (python + self._graph_ns(steps)).tolist()
            about |= {
                "event_ns": float(np.median(event_ns)),
                "pass_ns": float(np.median(pass_ns)),
                "node_ns": self.light.node_ns,
                "page_faults": self.light.page_faults,
            }
            self.b.about["light_share"] = self._light_share(steps, clocks)
        else:
            self._unused(about, why)
            about["unit_ns"] = unit_ns(self.of.trace.parent, self.of.start, events)
            pauses = free if self.of.in_program_time else pauses_ns(free, count, about["unit_ns"])
            self.b.host_ns = pauses.tolist()
        self.b.about["host"] = about

    def _unused(self, about: dict[str, Any], why: str) -> None:
        """Says why light steps, which the recording has, are not used."""
        if why:
            about["light_why"] = why
            self.b.about["notes"] = [f"light steps of the recording are not used: {why}"]

    def _light_share(self, steps: I64, clocks: list[LightClock]) -> dict[str, float]:
        """For each operator, its time in light steps as a part of its time in the window, where an event costs more."""
        calls = np.flatnonzero((steps[:, 0] == StepKind.CALL) & (steps[:, 5] != NOTHING))
        node, op = steps[calls, 5], self._called(steps)[calls]
        start, end = self.of.start[node], self.of.end[node]
        light = np.median([clock(end) - clock(start) for clock in clocks], axis=0)
        names = [name for name, _ in self.b.ops.rows]
        window, short = (np.bincount(op, took.astype(np.float64), len(names)) for took in (end - start, light))
        return {name: round(float(b / a), 4) for name, a, b in zip(names, window, short, strict=True) if a > 0}

    def _gaps(self, steps: I64, events: Bool, clock: LightClock | None) -> tuple[I64, I64]:
        """For each step, the time since the previous step in which the host was in no operator and did not wait, and
        the number of profiler events in it; as recorded, or by the clock of a light step."""
        on: Callable[[I64], I64] = clock or (lambda moments: moments)
        kind, moment, node = steps[:, 0], on(steps[:, 3] + self.of.begin), steps[:, 5]
        at = node[np.isin(kind, (StepKind.CALL, StepKind.COMM, StepKind.STAND_IN)) & (node != NOTHING)]
        wait_ops = np.array([op.node for op in self.of.ops if op.name in WAITS], np.int64)
        at = np.append(at, wait_ops)
        waits = np.flatnonzero((kind == StepKind.WAIT) & (steps[:, 3] != NOTHING))
        waits = waits[~np.isin(moment[waits], on(self.of.start[wait_ops]))]
        comm_of = {row: comm for comm, row in self.row_of.items()}
        comms = np.array([comm_of[row] for row in steps[waits, 1]], np.int64)
        ends = np.where(comms >= 0, on(self.of.end[comms]), 0)
        if clock is not None:
            ends = np.array([clock.comm_end_ns.get(comm, end) for comm, end in zip(comms, ends, strict=True)], np.int64)
        busy, moment[waits] = waited(Busy(on(self.of.start[at]), on(self.of.end[at])), ends, moment[waits])
        timed = (*TIMED, StepKind.WAIT)
        known = np.flatnonzero(np.isin(kind, timed) & (steps[:, 3] != NOTHING))
        moments = np.maximum.accumulate(moment[known])
        free, count = np.full(len(steps), NOTHING), np.zeros(len(steps), np.int64)
        free[known] = busy.free_ns(moments) - self.of.begin
        starts = on(self.of.start[events])
        count[known] = counted(moments, starts[~busy.has(starts)])
        return host_intervals(kind, self._called(steps), free, timed), count

    def _without_waits(
        self, each: list[tuple[I64, I64]], steps: I64, clocks: list[LightClock]
    ) -> list[tuple[I64, I64]]:
        """Shortens gaps by the time in which the thread did not work: a program that communicates waits for other
        ranks. Operators are taken to have worked for their whole duration, the shortest over the light steps."""
        if not self.row_of:
            return each
        at = steps[np.isin(steps[:, 0], (StepKind.CALL, StepKind.COMM)) & (steps[:, 5] != NOTHING), 5]
        inside = float(np.min([clock(self.of.end[at]) - clock(self.of.start[at]) for clock in clocks], axis=0).sum())
        waits = np.append(False, steps[:-1, 0] == StepKind.WAIT) | (steps[:, 0] == StepKind.WAIT)
        return [
            (without_waits(free, waits, clock.worked_ns - inside), count)
            for (free, count), clock in zip(each, clocks, strict=True)
        ]

    def _graph_ns(self, steps: I64) -> I64:
        """Time that autograd took to create the nodes that run before each step. It was part of operators, which are
        played without autograd."""
        assert self.light is not None
        made = np.array([name.startswith(_NODE) and not name.endswith(_GRADIENT) for name in self.of.names])
        nodes = made[self.of.codes]
        known = np.flatnonzero(steps[:, 3] != NOTHING)
        found = np.zeros(len(steps))
        starts = self.of.start[self.of.inside & nodes]
        found[known] = self.light.node_ns * counted(steps[known, 3] + self.of.begin, starts)
        return np.rint(found).astype(np.int64)

    def _called(self, steps: I64) -> I64:
        """The operator of each step that is a call."""
        op, is_call = np.array([row[0] for row in self.b.calls] or [0], np.int64), steps[:, 0] == StepKind.CALL
        called: I64 = np.where(is_call, op[np.where(is_call, steps[:, 1], 0)], NOTHING)
        return called

    def _host_end(self) -> int:
        """When the host finished, in ns from the start of the program."""
        ends = int(self.of.end[self.of.inside & (self.of.trace.cpu == 1)].max()) - self.of.begin
        return max(ends, *(step[3] for step in self.b.steps)) if self.b.steps else ends

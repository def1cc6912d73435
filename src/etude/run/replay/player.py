"""Plays a program with PyTorch. Imports only the standard library, NumPy and PyTorch.

    play = Player(load("rank0.program"), device="cuda")
    play.prepare()                       # memory, operators; plays once to see what works
    times = play.run(iterations=10)

Steps become functions of plain Python, line by line, with operators bound to local names: all that remains of Python is
one call for each operator. Tensors are passed from call to call as in the recorded program, and the framework allocates
and frees memory as it did there.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.pages import page_faults
from etude.base.rounds import pause_rounds, work
from etude.run.replay.between import SHORTEST_NS, pauses_before
from etude.run.replay.calling import OperatorCalls
from etude.run.replay.cuda_graph import captured, captured_parts
from etude.run.replay.device_failures import is_broken, reported
from etude.run.replay.heap import FEWEST, keep_heap
from etude.run.replay.lanes import Lanes
from etude.run.replay.own_cost import own, own_passes, session, times_for, took
from etude.run.replay.program import NOTHING, Program, StepKind
from etude.run.replay.stage import Stage
from etude.run.replay.stand_ins import StandInWork, spin
from etude.run.replay.wording import failed_line
from etude.run.replay.writing import CodeWriter

OWN_CHUNKS: Final = 20
"""Number of functions on which the player measures its own time between operators, if it plays no communication."""
PAUSE_S: Final = 2.0
"""Pause before an iteration is recorded: a device that was busy has a lower clock than when the program was
recorded."""
_REPLACED: Final = (StepKind.CALL, StepKind.VIEW, StepKind.STAND_IN)
UNMATCHED: Final = (
    "gaps between operators are not replayed: the profiler's events of the player are not those of the program"
)


@dataclass(slots=True)
class PlayedTimes:
    """The times of the iterations."""

    step_ns: list[list[int]] = field(default_factory=list)
    """For each iteration, the time of each of its steps."""
    moments: list[list[Any]] = field(default_factory=list)
    cpu_s: float = 0.0
    """CPU time of the process, all its threads, in these iterations."""


class Player:
    """Plays one rank. `comms` issues communication; if it is None, communication is left out."""

    def __init__(
        self,
        program: Program,
        device: str = "",
        *,
        comms: Any = None,
        compute: bool = True,
        seed: int = 0,
        paced: bool = False,
        host: str = "",
        cuda_graph: bool = False,
        without: Mapping[str, str] | None = None,
    ) -> None:
        self.program = program
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.comms, self.paced = comms, paced
        self.with_graph = cuda_graph
        self._graph: Any = None
        self._capturing = False
        self.on_device = self.device.type != "cpu"
        self._stage = Stage(program, self.device, seed)
        self._calls = OperatorCalls(self._stage, compute, without)
        self._values, self.pinned, self.failures = self._stage.values, self._stage.pinned, self._calls.failures
        self.notes: list[str] = []
        """Sentences about what is not played as recorded."""
        self._gaps = "free_ns" in program.about.get("host", {})
        """Whether the plan has the host time between operators of a CPU; otherwise it has the time since the previous
        step."""
        timed = self.on_device and self._stage.with_host_memory and "host" in program.about
        timed |= self._gaps and not self.on_device
        self.host = host or ("recorded" if timed and not cuda_graph else "fast")
        """`recorded`: calls are made when the recorded host would have made them without a profiler; `fast`: at
        once."""
        self.own_rounds, self.round_ns = 0, 0.0
        """The player's own time between the operators of an iteration, in rounds of Python (0 if not measured), and the
        time of a round."""
        self._light = self._gaps and not self.on_device and bool(program.about["host"].get("light_steps"))
        """Whether the plan has the program's time between operators, from light steps."""
        self._together = comms is None or comms.all_light
        """Whether this is so in all processes."""
        self.new_pages = 0
        """Pages that a step touches in addition to those of its operators."""
        self._due: list[int] = []
        self.parts: list[tuple[Any, int]] = []
        """Graphs, and when each is due, if the host is as recorded and the calls can be graphs."""
        self._ends: list[int] = []
        """Last step of each chunk."""
        self._chunks: list[Callable[[], None]] = []
        self._writer: CodeWriter | None = None
        self._stale = False
        """Whether a step became a stand-in since the functions were written."""
        self._marks: list[Any] = []
        self._work = StandInWork(self.device, program)
        self._lanes = Lanes(program, self.device)

    # -- getting ready -------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Allocates what exists before the first step and plays every step once, one by one. Raises
        OutOfMemoryError."""
        if self._light:
            keep_heap()
        with reported(self.device, self.program):
            self._stage.fill()
            with torch.no_grad():
                self._calls.rehearse()
                self._synchronise()
            self._write()
            once_ns = self._once() if self._light and self._together else 0
            if self.host == "recorded" and not self.paced and "host" in self.program.about:
                self._keep_pace(once_ns)
            elif self.new_pages:
                self._write()
            if self.with_graph:
                self._capture()

    def _once(self) -> int:
        """Returns the time of an iteration without pauses, and counts the pages that it lacks. All processes do this
        together."""
        with torch.no_grad():
            self._stage.moments(self.iteration)
            self.iteration()  # now its memory is allocated
            before = page_faults()
            once_ns = took(self.iteration)
        steps = max(int((self.program.steps.kind == StepKind.MARK).sum()), 1)
        lacking = int(self.program.about["host"]["page_faults"]) - (page_faults() - before) // steps
        self.new_pages = lacking if lacking >= FEWEST else 0
        return once_ns

    def _keep_pace(self, once_ns: int) -> None:
        """Prepares calls to be made when they are due. The calls of a chunk become one graph if possible: then the
        speed of this host does not matter. On a CPU, there is a pause before each call instead."""
        if self._gaps:
            self._due = self._pauses(once_ns).tolist()
            self._write()
            return
        self._due = np.cumsum(self.program.steps.host_ns).tolist()
        if not self._lanes:
            self._capturing = True
            with torch.no_grad():
                graphs = captured_parts(self.program, self.device, self._chunks, self.comms is not None)
            self._capturing = False
            self.parts = [(graph, self._due[end]) for graph, end in zip(graphs, self._ends, strict=False)]
        self._write()

    def _pauses(self, once_ns: int) -> NDArray[np.int64]:
        """Length of the pause before each step. If the plan has the time of Python itself: the program's time there,
        less the player's own time, in rounds of Python. Otherwise the host time of the plan, in ns."""
        steps = self.program.steps
        if not self._light:
            return steps.host_ns
        comms = self.comms
        if not self._together:  # then no rank waits for another
            self.comms = None
            self._write()
        chunks = self._chunks if self.comms is not None else self._chunks[:OWN_CHUNKS]
        expected = list(self._calls.expected(self._ends[len(chunks) - 1] + 1, self.comms is not None))
        times = times_for(once_ns) if self.comms is None else self.comms.least(times_for(once_ns))
        self.comms = comms
        with torch.no_grad():
            told = session(lambda: self._play(len(chunks)), times)
        found = own(told.events, expected, times, len(steps.kind))
        if found is None:
            self.notes.append(UNMATCHED)
            return np.zeros_like(steps.host_ns)
        about, rounds = self.program.about["host"], float(np.median(told.rounds))
        mine = own_passes(found, told, about["event_ns"] / about["pass_ns"]) * rounds
        self.own_rounds, self.round_ns = round(mine.sum()), float(np.median(told.pass_ns)) / rounds
        python = steps.host_ns / about["pass_ns"] * rounds
        return pauses_before(python, mine, SHORTEST_NS / self.round_ns, pause_rounds())

    def _capture(self) -> None:
        self._capturing = True
        with torch.no_grad():
            self._graph = captured(self.program, self.device, self.iteration, self.comms is not None)
        self._capturing = False

    def _write(self) -> None:
        """Writes the steps as functions, as they are to be played from now on."""
        self._stage.restore()
        self._writer = CodeWriter(
            self.program, self._stage, self._calls, self._lanes, self._work,
            comms=self.comms, new_pages=self.new_pages, before=self._before, mark=self._mark,
        )  # fmt: skip
        self._chunks, self._stale = list(self._writer.functions()), False
        self._ends = self._writer.ends

    def _before(self, kind: int, at: int, names: dict[str, Any]) -> list[str]:
        """The lines before a step, which wait until it is due, or pause."""
        p = self.program
        before = []
        if self.paced and int(p.steps.start_ns[at]) >= 0:
            names["until"], before = self._until, [f"until({int(p.steps.start_ns[at])})"]
        elif self._due and self._gaps:
            if self._due[at]:
                names["pause"], before = work if self._light else spin, [f"pause({self._due[at]})"]
        elif self._due and (kind in (StepKind.COMM, StepKind.END) or (kind == StepKind.CALL and p.steps.work_ns[at])):
            names["until"], before = self._until, [f"until({self._due[at]})"]
        return before

    # -- time ----------------------------------------------------------------------------------------------------------

    _began = 0
    _annotated: ExitStack | None = None
    """Open while the profiler records: the annotation of the current step."""

    def _until(self, moment_ns: int) -> None:
        """Waits until this time after the start of the iteration."""
        while time.perf_counter_ns() - self._began < moment_ns:
            pass

    def _mark(self) -> None:
        if self._capturing:
            return
        if self._annotated is not None:
            self._annotated.close()
            number = sum(isinstance(m, str) for m in self._marks) + 1
            self._annotated.enter_context(torch.profiler.record_function(f"ProfilerStep#{number}"))
            self._marks.append("step")
            return
        self._marks.append(self._moment())

    def _synchronise(self) -> None:
        if self.on_device:
            torch.cuda.synchronize(self.device)

    def iteration(self) -> None:
        """Plays all steps once."""
        if self._graph is not None:
            self._graph.replay()
            return
        self._began = time.perf_counter_ns()
        if self.parts:
            for graph, due in self.parts:
                self._until(due)
                graph.replay()
            return
        with self._lanes.open():
            self._play(len(self._chunks))

    # -- what fails ----------------------------------------------------------------------------------------------------

    def _play(self, count: int) -> None:
        """Calls the first `count` functions. A step that fails becomes a stand-in, and the steps after it follow."""
        for number in range(min(count, len(self._chunks))):
            try:
                self._chunks[number]()
            except Exception as problem:
                self._go_on(number, problem)
        if self._stale:
            self._write()

    def _go_on(self, number: int, problem: Exception) -> None:
        """Plays the rest of a function in which a step failed."""
        assert self._writer is not None
        of, end = self._writer.steps_of[number], self._writer.ends[number]
        failed: Exception | None = problem
        while failed is not None:
            line = failed_line(failed)
            if line is None or self._capturing:
                raise failed
            self._lose(of[line], failed)
            rest, of = self._writer.part(of[line] + 1, end)
            try:
                rest()
                failed = None
            except Exception as another:
                failed = another

    def _lose(self, at: int, problem: Exception) -> None:
        """Makes a step that failed a stand-in; communication cannot be one."""
        kind, row, p = int(self.program.steps.kind[at]), int(self.program.steps.row[at]), self.program
        if isinstance(problem, torch.OutOfMemoryError) or kind not in _REPLACED or is_broken(self.device):
            raise problem
        self._stale = True
        if kind == StepKind.CALL:
            self._calls.lose(row, problem)
            for slot in p.calls.outputs[row]:
                if slot != NOTHING:
                    self._stage.pin(slot)
        elif kind == StepKind.VIEW:
            self._stage.pin(int(p.views.slot[row]))
        else:
            self._work.lost.add(row)

    def run(
        self,
        iterations: int = 10,
        warmup: int = 3,
        done: Callable[[int], None] = lambda number: None,
        barrier: Callable[[bool], object] = lambda some: None,
    ) -> PlayedTimes:
        """Plays the iterations and returns the times of their steps; after an interrupt, those played so far. `barrier`
        synchronises with the other processes: it is passed whether there are results to keep, and returns whether to
        stop. On a device, iterations follow one another without waiting, like the steps of a training loop, and times
        are device times."""
        if iterations < 1:
            raise UsageError(f"{iterations} iterations", hint="at least 1")
        played = PlayedTimes()
        collecting, began_s = gc.isenabled(), time.process_time()
        gc.disable()
        try:
            with torch.no_grad(), reported(self.device, self.program):
                for number in range(-warmup, iterations):
                    if number == 0:
                        self._synchronise()
                        began_s = time.process_time()
                    if barrier(bool(played.moments)):
                        break
                    self._marks = []
                    begin = self._moment()
                    self.iteration()
                    played.moments.append([begin, *self._marks[1:], self._moment()])
                    if number < 0:
                        played.moments.clear()
                    else:
                        done(number + 1)
        except KeyboardInterrupt:
            if not played.moments:
                raise
        finally:
            if collecting:
                gc.enable()
        with reported(self.device, self.program):
            self._synchronise()
        played.cpu_s = time.process_time() - began_s
        for row in played.moments:
            played.step_ns.append([self._between(a, b) for a, b in pairwise(row)])
        if self._graph is not None or self.parts:  # steps within a graph have no times of their own
            steps = max(int((self.program.steps.kind == StepKind.MARK).sum()), 1)
            played.step_ns = [[took // steps] * steps for (took,) in played.step_ns]
        return played

    def _moment(self) -> Any:
        """The current time: on the host, or as an event in the device's work."""
        if not self.on_device:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, a: Any, b: Any) -> int:
        return round(a.elapsed_time(b) * 1e6) if self.on_device else b - a

    def profile(self, path: Path, barrier: Callable[[bool], object] = lambda some: None) -> None:
        """Records one iteration with PyTorch's profiler, in a file that `etude` can open."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.on_device:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._marks = []
        self._synchronise()
        if self.on_device:
            self.parts = []  # so that operators are recorded; graphs also hold their own memory
            torch.cuda.empty_cache()
            time.sleep(PAUSE_S)
        barrier(True)
        with (
            torch.no_grad(),
            reported(self.device, self.program),
            torch.profiler.profile(activities=activities, record_shapes=True) as profiler,
        ):
            with ExitStack() as self._annotated:
                self.iteration()
                self._synchronise()
            self._annotated = None
        profiler.export_chrome_trace(str(path))

"""Plays a program with PyTorch. Imports the standard library, NumPy and PyTorch alone.

    play = Player(load("rank0.program"), device="cuda")
    play.prepare()                       # memory, operators; plays once to see what works
    times = play.run(iterations=10)

Steps become one function of plain Python, line by line, with operators bound to local names: what is left of Python is
one call for each operator. Tensors flow from call to call as in the program that was recorded, memory is allocated and
let go by the framework as there.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from numpy.typing import NDArray

from etude.errors import UsageError
from etude.pages import page_faults
from etude.replay.between import SHORTEST_NS, pauses_before
from etude.replay.compiled import compiled_call, triton_call
from etude.replay.cuda_graph import captured, captured_parts
from etude.replay.heap import FEWEST, keep_heap, touch_new_pages
from etude.replay.lanes import Lanes
from etude.replay.needs import OutOfMemoryError
from etude.replay.operators import UnknownOperatorError, operator, remapped
from etude.replay.own_cost import COMM, UNCLEAR, Expected, own, own_passes, session, times_for, took
from etude.replay.program import COMPILED_SPACE, NOTHING, TRITON_SPACE, Fill, Origin, Program, StepKind
from etude.replay.stand_ins import StandInWork, spin
from etude.rounds import pause_rounds, work

CHUNK: Final = 400
"""Steps in one function: short enough to be compiled at once, long enough to cost nothing."""


OWN_CHUNKS: Final = 20
"""Functions on which the player measures what it takes between operators, where it need not meet others."""
_RANDOM: Final = (Fill.NORMAL, Fill.POSITIVE, Fill.UNIT, Fill.AVERAGES, Fill.SQUARES)
PAUSE_S: Final = 2.0
"""Before an iteration is recorded: a device that was busy has a lower clock than when the program was recorded."""


@dataclass(slots=True)
class Played:
    """What an iteration gave."""

    step_ns: list[list[int]] = field(default_factory=list)
    """Of each iteration the time of each of its steps."""
    moments: list[list[Any]] = field(default_factory=list)


@dataclass(slots=True)
class Failure:
    """A call that cannot be made here, and what was done instead."""

    op: str
    why: str


class Player:
    """One rank. `comms` issues communication, or is None: then it is left out."""

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
    ) -> None:
        self.program = program
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.comms, self.compute, self.paced = comms, compute, paced
        self.with_graph = cuda_graph
        self._graph: Any = None
        self._capturing = False
        self.on_device = self.device.type != "cpu"
        self._with_host_memory = any(not name.startswith("cpu") for name in program.devices)
        self._gaps = "free_ns" in program.about.get("host", {})
        """Time of the host is that between operators of a CPU, else from the begin of an iteration to each call."""
        timed = self.on_device and self._with_host_memory and "host" in program.about
        timed |= self._gaps and not self.on_device
        self.host = host or ("recorded" if timed and not cuda_graph else "fast")
        """`recorded`: calls are made when the recorded host made them, had no profiler held it up; `fast`: at once."""
        self.own_rounds, self.round_ns = 0, 0.0
        """What this player takes between the operators of an iteration, where that was measured, in rounds of Python,
        and the time of a round."""
        self._light = self._gaps and not self.on_device and bool(program.about["host"].get("light_steps"))
        """The plan has what the program took between operators."""
        self._together = comms is None or comms.all_light
        """So have all processes."""
        self.new_pages = 0
        """That a step touches beside those that its operators do."""
        self._due: list[int] = []
        self.parts: list[tuple[Any, int]] = []
        """Where the host is as recorded and the calls can be graphs: graphs, and when each is due."""
        self._ends: list[int] = []
        """Of each chunk its last step."""
        self._values: list[Any] = [None] * len(program.slots.storage)
        self._generator = torch.Generator().manual_seed(seed)
        self._forms: dict[tuple[int, int], list[Any]] = {}
        self.failures: dict[int, Failure] = {}
        """Rows of `calls` that are played as stand-ins."""
        self.pinned: set[int] = set()
        """Slots whose shape depends on values: prepared as recorded, whatever the call gives."""
        self._chunks: list[Callable[[], None]] = []
        self._marks: list[Any] = []
        self._work = StandInWork(self.device, program)
        self._dtypes = [getattr(torch, name) for name in program.dtypes]
        self._held: dict[int, torch.Tensor] = {}
        """Storage -> its memory, where it is there before the first step."""
        self._code: dict[str, Callable[..., Any]] = {}
        self._not_quick: set[tuple[int, int]] = set()
        """Operators with arguments that PyTorch's functions of Python do not take."""
        self._lanes = Lanes(program, self.device)

    # -- getting ready -------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Allocates what is there before the first step and plays every step once, one by one."""
        if self._light:
            keep_heap()
        try:
            self._fill()
            with torch.no_grad():
                self._rehearse()
        except torch.OutOfMemoryError as problem:
            need = int(self.program.storages.size_bytes[self.program.storages.origin == Origin.OUTSIDE].sum())
            raise OutOfMemoryError(
                f"out of memory on {self.device}: {str(problem).splitlines()[0][:160]}",
                where=f"rank {self.program.about['rank']}",
                hint=f"inputs and states alone take {need / 1e9:.1f} GB; replay fewer ranks on a device, or on the CPU",
            ) from None
        self._chunks = list(self._compiled())
        once_ns = self._once() if self._light and self._together else 0
        if self.host == "recorded" and not self.paced and "host" in self.program.about:
            self._keep_pace(once_ns)
        elif self.new_pages:
            self._chunks = list(self._compiled())
        if self.with_graph:
            self._capture()

    def _once(self) -> int:
        """How long an iteration takes by itself; counts the pages that it lacks. All processes do it together."""
        with torch.no_grad():
            self._moments()
            self.iteration()  # now its memory is there
            before = page_faults()
            once_ns = took(self.iteration)
        steps = max(int((self.program.steps.kind == StepKind.MARK).sum()), 1)
        lacking = int(self.program.about["host"]["page_faults"]) - (page_faults() - before) // steps
        self.new_pages = lacking if lacking >= FEWEST else 0
        return once_ns

    def _moments(self) -> None:
        """Moments of an optimizer are 0 where gradients are, as those of rows that no index picks: a root of 0 takes
        some CPUs 15 times as long. Elsewhere second moments are as large as before, so that weights stay what they are.
        """
        fill = self.program.storages.fill
        of = {which: [self._typed(row) for row in np.flatnonzero(fill == which).tolist() if row in self._held]
              for which in (Fill.AVERAGES, Fill.SQUARES)}  # fmt: skip
        if not of[Fill.SQUARES]:
            return
        for moment in (*of[Fill.AVERAGES], *of[Fill.SQUARES]):
            moment.zero_()
        self.iteration()
        for moment in of[Fill.SQUARES]:
            moment.copy_(
                torch.where(moment != 0, torch.randn(moment.shape, generator=self._generator).abs() * 0.02, 0.0)
            )

    def _typed(self, row: int) -> torch.Tensor:
        """The memory of a storage as numbers of its first use."""
        slot = int(np.flatnonzero(self.program.slots.storage == row)[0])
        return self._held[row].view(self._dtypes[int(self.program.layouts.dtype[self.program.slots.layout[slot]])])

    def _keep_pace(self, once_ns: int) -> None:
        """Calls are made when they are due. Those of a chunk are one graph where they can be: then it does not matter
        how fast this host makes them. On a CPU each call is made so much after the one before."""
        if self._gaps:
            self._due = self._pauses(once_ns).tolist()
            self._chunks = list(self._compiled())
            return
        self._due = np.cumsum(self.program.steps.host_ns).tolist()
        if not self._lanes:
            self._capturing = True
            with torch.no_grad():
                graphs = captured_parts(self.program, self.device, self._chunks, self.comms is not None)
            self._capturing = False
            self.parts = [(graph, self._due[end]) for graph, end in zip(graphs, self._ends, strict=False)]
        self._chunks = list(self._compiled())

    def _pauses(self, once_ns: int) -> NDArray[np.int64]:
        """How long to pause before each step: rounds of Python where the plan has the time of Python itself, as much as
        the program needed there, less what the player takes; else ns."""
        steps = self.program.steps
        if not self._light:
            return steps.host_ns
        comms = self.comms
        if not self._together:  # nobody is to wait for another
            self.comms, self._chunks = None, list(self._compiled())
        chunks = self._chunks if self.comms is not None else self._chunks[:OWN_CHUNKS]
        expected = list(self._expected(self._ends[len(chunks) - 1] + 1))
        times = times_for(once_ns) if self.comms is None else self.comms.least(times_for(once_ns))
        self.comms = comms
        with torch.no_grad():
            told = session(lambda: [chunk() for chunk in chunks], times)
        found = own(told.events, expected, times, len(steps.kind))
        if found is None:
            return np.zeros_like(steps.host_ns)
        about, rounds = self.program.about["host"], float(np.median(told.rounds))
        mine = own_passes(found, told, about["event_ns"] / about["pass_ns"]) * rounds
        self.own_rounds, self.round_ns = round(mine.sum()), float(np.median(told.pass_ns)) / rounds
        python = steps.host_ns / about["pass_ns"] * rounds
        return pauses_before(python, mine, SHORTEST_NS / self.round_ns, pause_rounds())

    def _expected(self, upto: int) -> Iterator[Expected]:
        """Steps by which a profiler's events can be told apart."""
        p = self.program
        for at, (kind, row) in enumerate(zip(p.steps.kind[:upto].tolist(), p.steps.row[:upto].tolist(), strict=True)):
            if kind == StepKind.CALL and self.compute:
                op = p.ops[int(p.calls.op[row])]
                plain = row not in self.failures and not self._is_code(int(p.calls.op[row]))
                yield Expected(at, kind, op.partition(".")[0] if plain else UNCLEAR, row)
            elif kind == StepKind.STAND_IN and self.compute:
                yield Expected(at, kind, UNCLEAR, row)
            elif kind in (StepKind.COMM, StepKind.WAIT) and self.comms is not None:
                yield Expected(at, kind, COMM, row)

    def _capture(self) -> None:
        self._capturing = True
        with torch.no_grad():
            self._graph = captured(self.program, self.device, self.iteration, self.comms is not None)
        self._capturing = False

    def _place(self, recorded: str) -> torch.device:
        """Where something goes: host memory of a recording that has device memory too stays with the host."""
        return torch.device("cpu") if recorded.startswith("cpu") and self._with_host_memory else self.device

    def _fill(self) -> None:
        p = self.program
        outside = np.flatnonzero(p.storages.origin == Origin.OUTSIDE).tolist()
        memory = {row: self._filled(row) for row in outside}
        for slot, storage in enumerate(p.slots.storage.tolist()):
            if storage in memory:
                self._values[slot] = self._look(memory[storage], int(p.slots.layout[slot]))
        self._held = memory

    def _filled(self, row: int) -> torch.Tensor:
        """The memory of a storage, as bytes."""
        p = self.program
        size, place = int(p.storages.size_bytes[row]), self._place(p.devices[int(p.storages.device[row])])
        fill, low, high = Fill(int(p.storages.fill[row])), int(p.storages.low[row]), int(p.storages.high[row])
        slot = int(np.flatnonzero(p.slots.storage == row)[0]) if (p.slots.storage == row).any() else NOTHING
        dtype = self._dtypes[int(p.layouts.dtype[p.slots.layout[slot]])] if slot != NOTHING else torch.uint8
        count = -(-max(size, 1) // dtype.itemsize)
        if fill == Fill.INTEGERS:
            high = min(high, torch.iinfo(dtype).max)
            made = torch.randint(low, max(high, low + 1), (count,), generator=self._generator, dtype=dtype)
            return made.to(place).view(torch.uint8)
        made = torch.zeros(count, dtype=dtype, device=place)
        if fill in _RANDOM and (dtype.is_floating_point or dtype.is_complex):
            spread = 1.0 if fill == Fill.UNIT else 0.02
            if dtype.itemsize == 1:
                made.copy_(torch.randn(count, generator=self._generator).mul_(spread))
            else:
                seeded = torch.Generator(place).manual_seed(row)
                made.normal_(0.0, spread, generator=seeded)
            if fill in (Fill.POSITIVE, Fill.SQUARES):
                made.abs_()
        elif fill == Fill.ONES:
            made.fill_(1)
        return made.view(torch.uint8)

    def _look(self, memory: torch.Tensor, layout: int) -> torch.Tensor:
        p = self.program
        shape, stride = p.layouts.shape[layout], p.layouts.stride[layout]
        dtype, offset = self._dtypes[int(p.layouts.dtype[layout])], int(p.layouts.offset[layout])
        found = torch.empty(0, dtype=dtype, device=memory.device)
        found.set_(memory.untyped_storage(), offset, shape, stride or _contiguous(shape))
        return found

    def _fresh(self, slot: int) -> torch.Tensor:
        """A tensor as a slot has it, with zeros in it."""
        p = self.program
        storage, layout = int(p.slots.storage[slot]), int(p.slots.layout[slot])
        place = self._place(p.devices[int(p.storages.device[storage])])
        size = max(int(p.storages.size_bytes[storage]), 1)
        return self._look(torch.zeros(size, dtype=torch.uint8, device=place), layout)

    def arguments(self, form: Any, inputs: list[int]) -> Any:
        """Arguments with names of slots still in them: `_Slot(k)`."""
        if isinstance(form, list):
            return [self.arguments(each, inputs) for each in form]
        if isinstance(form, dict):
            if "t" in form:
                return _Slot(inputs[form["t"]])
            if "device" in form:
                return self._place(form["device"])
            return float(form["f"])
        return form

    # -- once, step by step --------------------------------------------------------------------------------------------

    def _rehearse(self) -> None:
        """Plays every step once; what fails becomes a stand-in, what gives other shapes than recorded is pinned."""
        p = self.program
        values = list(self._values)
        last = self._last_uses()
        for at, (kind, row) in enumerate(zip(p.steps.kind.tolist(), p.steps.row.tolist(), strict=True)):
            if kind == StepKind.CALL and self.compute:
                self._rehearse_call(row, values)
            elif kind == StepKind.VIEW and self.compute:
                base, slot = int(p.views.base[row]), int(p.views.slot[row])
                values[slot] = self._viewed(values[base], slot)
            elif kind == StepKind.COMM:
                for slot in self._whole_numbers(row):
                    values[slot].zero_()
            for slot in last.get(at, ()):
                if values[slot] is not self._values[slot]:
                    values[slot] = None
        self._synchronise()

    def _whole_numbers(self, row: int) -> list[int]:
        """Whole numbers that a communication would bring: indices and counts must not be what lies in new memory."""
        p = self.program
        outputs = [slot for slot in p.comms.outputs[row] if slot != NOTHING]
        return [slot for slot in outputs if "int" in p.dtypes[int(p.layouts.dtype[p.slots.layout[slot]])]]

    def _rehearse_call(self, row: int, values: list[Any]) -> None:
        p = self.program
        name, form = p.ops[int(p.calls.op[row])], json.loads(p.forms[int(p.calls.form[row])])
        inputs, outputs = p.calls.inputs[row], p.calls.outputs[row]
        args = _filled_in(self.arguments(form, inputs), values)
        try:
            got = list(_opened(self._called(row, name, args)))
        except torch.OutOfMemoryError:
            raise
        except Exception as problem:
            self.failures[row] = Failure(name, f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}")
            got = []
        for k, slot in enumerate(outputs):
            if slot == NOTHING:
                continue
            made = got[k] if k < len(got) else None
            if not isinstance(made, torch.Tensor) or list(made.shape) != p.layouts.shape[int(p.slots.layout[slot])]:
                self.pinned.add(slot)
                made = self._values[slot] = self._fresh(slot)
            values[slot] = made

    def _called(self, row: int, name: str, args: list[Any]) -> Any:
        """What a call gives; finds out whether PyTorch's function of Python takes these arguments."""
        call = self._operator(name)
        key = int(self.program.calls.op[row]), int(self.program.calls.form[row])
        if not self._is_code(key[0]) and key not in self._not_quick:
            bound = remapped(name, self.device.type)
            if bound.quick is not None:
                named = dict(zip(bound.named, args[bound.positional :], strict=False))
                with suppress(TypeError, ValueError, Warning), catch_warnings():  # before anything is done
                    simplefilter("error")  # an old order of arguments
                    return bound.quick(*args[: bound.positional], **named)
            self._not_quick.add(key)
        return call(*args)

    def _operator(self, name: str) -> Callable[..., Any]:
        """What to call: an operator of PyTorch, or code that was compiled from some."""
        if not name.startswith((COMPILED_SPACE, TRITON_SPACE)):
            return operator(name, self.device.type)
        if name not in self._code:
            if self.on_device != self._with_host_memory:
                raise UnknownOperatorError("the code was compiled for another kind of device")
            files = self.program.about["compiled"]
            if name.startswith(COMPILED_SPACE):
                self._code[name] = compiled_call(files[name.removeprefix(COMPILED_SPACE)]["code"])
            else:
                kernel, _, file = name.removeprefix(TRITON_SPACE).partition("@")
                self._code[name] = triton_call(files[file]["code"], kernel)
        return self._code[name]

    def _is_code(self, op: int) -> bool:
        """It is no operator, but code that was compiled."""
        return self.program.ops[op].startswith((COMPILED_SPACE, TRITON_SPACE))

    def _viewed(self, base: torch.Tensor, slot: int) -> torch.Tensor:
        p = self.program
        layout = int(p.slots.layout[slot])
        shape, stride = p.layouts.shape[layout], p.layouts.stride[layout]
        dtype, offset = self._dtypes[int(p.layouts.dtype[layout])], int(p.layouts.offset[layout])
        stride = stride or _contiguous(shape)
        reach = (offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1) * dtype.itemsize
        if dtype == base.dtype and (0 in shape or reach <= base.untyped_storage().nbytes()):
            return base.as_strided(shape, stride, offset)
        self.pinned.add(slot)
        self._values[slot] = self._fresh(slot)
        return self._values[slot]

    def _last_uses(self) -> dict[int, list[int]]:
        """Step -> slots that no later step names."""
        p, last = self.program, {}
        for at, (kind, row) in enumerate(zip(p.steps.kind.tolist(), p.steps.row.tolist(), strict=True)):
            for slot in self._named(kind, row):
                last[slot] = at
        found: dict[int, list[int]] = {}
        for slot, at in last.items():
            if p.storages.origin[p.slots.storage[slot]] != Origin.OUTSIDE:
                found.setdefault(at, []).append(slot)
        return found

    def _named(self, kind: int, row: int) -> Iterable[int]:
        p = self.program
        if kind == StepKind.CALL:
            return [s for s in (*p.calls.inputs[row], *p.calls.outputs[row]) if s != NOTHING]
        if kind == StepKind.VIEW:
            return [int(p.views.base[row]), int(p.views.slot[row])]
        if kind in (StepKind.COMM, StepKind.WAIT):
            return [s for s in (*p.comms.inputs[row], *p.comms.outputs[row]) if s != NOTHING]
        return []

    # -- the function --------------------------------------------------------------------------------------------------

    def _compiled(self) -> Iterator[Callable[[], None]]:
        """The steps as functions of at most CHUNK lines each."""
        p, last = self.program, self._last_uses()
        self._lanes.begin()
        self._ends = []
        lines: list[str] = []
        names: dict[str, Any] = {"v": self._values}
        for at, (kind, row) in enumerate(zip(p.steps.kind.tolist(), p.steps.row.tolist(), strict=True)):
            made = self._lines(kind, row, at, names)
            lines += self._lanes.around(at, made, names) if self._lanes else made
            gone = [s for s in last.get(at, ()) if s not in self.pinned]
            if gone and self.compute:
                lines.append("=".join(f"v[{slot}]" for slot in gone) + "=None")
            if len(lines) >= CHUNK:
                self._ends.append(at)
                yield _function(lines, names)
                lines, names = [], {"v": self._values}
        if lines:
            self._ends.append(len(p) - 1)
            yield _function(lines, names)
        elif self._ends:
            self._ends[-1] = len(p) - 1

    def _lines(self, kind: int, row: int, at: int, names: dict[str, Any]) -> list[str]:
        p = self.program
        before = []
        if self.paced and int(p.steps.start_ns[at]) >= 0:
            names["until"], before = self._until, [f"until({int(p.steps.start_ns[at])})"]
        elif self._due and self._gaps:
            if self._due[at]:
                names["pause"], before = work if self._light else spin, [f"pause({self._due[at]})"]
        elif self._due and (kind in (StepKind.COMM, StepKind.END) or (kind == StepKind.CALL and p.steps.work_ns[at])):
            names["until"], before = self._until, [f"until({self._due[at]})"]
        if kind == StepKind.CALL and self.compute:
            return before + self._call_lines(row, names)
        if kind == StepKind.VIEW and self.compute:
            base, slot = int(p.views.base[row]), int(p.views.slot[row])
            if slot in self.pinned:
                return []
            layout = int(p.slots.layout[slot])
            shape = p.layouts.shape[layout]
            stride = p.layouts.stride[layout] or _contiguous(shape)
            names["view"] = torch.as_strided
            return [f"v[{slot}]=view(v[{base}],{shape},{list(stride)},{int(p.layouts.offset[layout])})"]
        if kind == StepKind.STAND_IN and self.compute:
            names[f"w{at}"] = self._work.of(p, row, int(p.steps.work_ns[at]))
            return [*before, f"w{at}()"]
        if kind in (StepKind.EVENT, StepKind.AWAIT) and self.compute:
            return self._lanes.event(kind, row, at, names)
        if kind == StepKind.END:
            return before
        if kind == StepKind.MARK:
            names["mark"] = self._mark
            names["pages"] = touch_new_pages
            return [*before, "mark()", *([f"pages({self.new_pages})"] if self.new_pages else [])]
        if kind == StepKind.COMM and self.comms is not None:
            names["comms"] = self.comms
            return [*before, f"comms.issue({row}, v)"]
        if kind == StepKind.COMM and self.compute:
            return [f"v[{slot}].zero_()" for slot in self._whole_numbers(row)]
        if kind == StepKind.WAIT and self.comms is not None:
            names["comms"] = self.comms
            return [*before, f"comms.wait({row})"]
        return []

    def _call_lines(self, row: int, names: dict[str, Any]) -> list[str]:
        if row in self.failures:
            return []
        p = self.program
        op, form = int(p.calls.op[row]), int(p.calls.form[row])
        args = self.arguments(json.loads(p.forms[form]), p.calls.inputs[row])
        schema = None if self._is_code(op) else remapped(p.ops[op], self.device.type)
        if schema is not None and schema.quick is not None and (op, form) not in self._not_quick:
            names[f"q{op}"] = schema.quick
            given = [_text(each, names, False) for each in args]
            named = (f"{name}={each}" for name, each in zip(schema.named, given[schema.positional :], strict=False))
            call = f"q{op}({','.join((*given[: schema.positional], *named))})"
        else:
            names[f"f{op}"] = self._operator(p.ops[op])
            call = f"f{op}({_text(args, names)})"
        outputs = p.calls.outputs[row]
        kept = [slot if slot not in self.pinned else NOTHING for slot in outputs]
        if all(slot == NOTHING for slot in kept):
            return [call]
        schema = schema or remapped(p.ops[op], self.device.type)
        if schema.single:
            return [f"v[{kept[0]}]={call}"]
        if schema.flat:
            return [f"r={call}", *(f"v[{slot}]=r[{k}]" for k, slot in enumerate(kept) if slot != NOTHING), "r=None"]
        names["opened"] = _opened
        return [f"r=list(opened({call}))", *(f"v[{s}]=r[{k}]" for k, s in enumerate(kept) if s != NOTHING), "r=None"]

    # -- time ----------------------------------------------------------------------------------------------------------

    _began = 0
    _annotated: ExitStack | None = None
    """Open while the profiler records: the step that is being played."""

    def _until(self, moment_ns: int) -> None:
        """Waits for the recorded moment of a step."""
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
            for chunk in self._chunks:
                chunk()

    def run(
        self,
        iterations: int = 10,
        warmup: int = 3,
        done: Callable[[int], None] = lambda number: None,
        barrier: Callable[[bool], object] = lambda some: None,
    ) -> Played:
        """Times of the steps of each iteration; what was played before an interrupt is kept. `barrier` meets the other
        processes, is told whether there is anything to keep, and says whether to stop. On a device one iteration
        follows the other without waiting, as steps of a training loop do, and times are those of the device."""
        if iterations < 1:
            raise UsageError(f"{iterations} iterations", hint="at least 1")
        played = Played()
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.no_grad():
                for number in range(-warmup, iterations):
                    if number == 0:
                        self._synchronise()
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
        self._synchronise()
        for row in played.moments:
            played.step_ns.append([self._between(a, b) for a, b in pairwise(row)])
        if self._graph is not None or self.parts:  # steps of an iteration are not told apart
            steps = max(int((self.program.steps.kind == StepKind.MARK).sum()), 1)
            played.step_ns = [[took // steps] * steps for (took,) in played.step_ns]
        return played

    def _moment(self) -> Any:
        """Now: on the host, or in the work of the device."""
        if not self.on_device:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, a: Any, b: Any) -> int:
        return round(a.elapsed_time(b) * 1e6) if self.on_device else b - a

    def profile(self, path: Path, barrier: Callable[[bool], object] = lambda some: None) -> None:
        """Records one iteration with PyTorch's profiler, as `etude` opens it."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.on_device:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._marks = []
        self._synchronise()
        if self.on_device:
            self.parts = []  # the operators are to be seen; graphs hold memory of their own
            torch.cuda.empty_cache()
            time.sleep(PAUSE_S)
        barrier(True)
        with torch.no_grad(), torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            with ExitStack() as self._annotated:
                self.iteration()
                self._synchronise()
            self._annotated = None
        profiler.export_chrome_trace(str(path))


@dataclass(frozen=True, slots=True)
class _Slot:
    number: int


def _function(lines: list[str], names: dict[str, Any]) -> Callable[[], None]:
    """A function of these lines; its names are arguments with defaults, which are the fastest to look up. The lines
    hold numbers and names made here, nothing of what was recorded."""
    head = ",".join(f"{name}={name}" for name in names)
    space = dict(names)
    exec(compile(f"def play({head}):\n " + "\n ".join(lines), "<program>", "exec"), space)
    play: Callable[[], None] = space["play"]
    return play


def _text(value: Any, names: dict[str, Any], top: bool = True) -> str:
    """An argument as Python; what is no number, slot or list of those gets a name."""
    if isinstance(value, list):
        inner = ",".join(_text(each, names, False) for each in value)
        return inner if top else f"[{inner}]"
    if isinstance(value, _Slot):
        return f"v[{value.number}]"
    if value is None or type(value) in (bool, int) or (type(value) is float and value - value == 0):
        return repr(value)
    name = f"c{len(names)}"
    names[name] = value
    return name


def _filled_in(value: Any, values: list[Any]) -> Any:
    if isinstance(value, list):
        return [_filled_in(each, values) for each in value]
    return values[value.number] if isinstance(value, _Slot) else value


def _opened(result: Any) -> Iterator[Any]:
    """Results one after the other, lists and tuples opened."""
    if isinstance(result, (list, tuple)):
        for each in result:
            yield from _opened(each)
    else:
        yield result


def _contiguous(shape: list[int]) -> list[int]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return stride[::-1]

"""Events of an XLA profiler, from `.xplane.pb` or from Chrome's JSON, as recordings: one for each device.

plane `/host:CPU`                  threads: operators; `$file.py:7 f` is a frame of Python, `step_num` marks a step
plane `/host:CUPTI`, `ROCTRACER`   calls of the driver, tied to kernels by `correlation_id`
plane `/device:GPU:0`              `Stream #7`: kernels and copies; other lines are made of these and not read again
plane `/device:TPU:0`              `XLA Ops`, `Async XLA Ops`: instructions; `Steps`
no device plane (CPU)              events with `hlo_op` are instructions of device `device_ordinal`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from etude.base.errors import FormatError
from etude.capture.link import recording as r
from etude.capture.link.hlo import Module
from etude.capture.link.kernel_names import talk_of_kernel, xla_collective
from etude.capture.link.recording import DeviceRecording, Talk
from etude.kernels.arrays import I32, I64, Bool
from etude.model.schema import UNKNOWN

NUMBERS: Final = ("correlation_id", "run_id", "device_ordinal", "step_num", "_r")
WORDS: Final = ("hlo_op", "hlo_module", "memcpy_details", "Memset_details")
"""Stats of events that are read."""
_DEVICE: Final = re.compile(r"/device:(?P<kind>[A-Z]+):(?P<number>\d+)(?P<part> .*)?")
_STREAM: Final = re.compile(r"Stream #(?P<number>\d+)")
_SIZE: Final = re.compile(r"\b(?:size|num_bytes):(\d+)")
_FRAME: Final = re.compile(r"\$(?P<file>[^:]*):(?P<line>\d+) (?P<name>.*)")
HOST, CALLS, OPS, ASYNC, STEPS, LEFT = range(6)
"""Contents of a line: threads, calls of the driver, work of a device, concurrent work, steps, not read."""
_CALL_PLANES: Final = ("/host:CUPTI", "/host:ROCTRACER")
_OPS: Final = {"XLA Ops": OPS, "Async XLA Ops": ASYNC, "Steps": STEPS}
_DERIVED: Final = ("XLA Modules", "Framework Name Scope", "Framework Ops", "Source code", "XLA TraceMe", "Launch Stats")
"""Lines that repeat the contents of others."""
_BOOKKEEPING: Final = ("ThreadpoolListener::", "end: ")
_BOTH: Final = re.compile(r"-(start|done)(?=[.\d]*$)")
FIRST_NAMED: Final = 1 << 20
"""First number for threads whose own number does not fit."""


class Line(NamedTuple):
    """A row of the timeline: its plane, its name, its number."""

    plane: str
    name: str
    number: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Events:
    """One row per event; numbers are UNKNOWN and codes -1 if not recorded."""

    lines: tuple[Line, ...]
    line: I32
    name: I32
    names: tuple[str, ...]
    start_ns: I64
    duration_ns: I64
    numbers: dict[str, I64]
    words: dict[str, tuple[I32, tuple[str, ...]]]
    whole: Bool
    """False for a row that represents several events, and has no time of its own."""
    path: str = ""
    modules: Mapping[str, Module] = field(default_factory=dict)
    said: Sequence[str] = ()
    """Errors and warnings of the profiler."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Plane -> name of its device."""
    base_ns: int = 0
    """When the profile began, in Unix time, if times are relative to it."""

    def __len__(self) -> int:
        return len(self.line)


def join(parts: Sequence[Events]) -> Events:
    """One table of lines that were read one by one."""
    names: dict[str, int] = {}
    words: dict[str, dict[str, int]] = {key: {} for key in WORDS}

    def recode(codes: I32, texts: Sequence[str], known: dict[str, int]) -> I32:
        to = np.array([*(known.setdefault(text, len(known)) for text in texts), -1], np.int32)
        return to[codes]

    first = np.cumsum([0, *(len(part.lines) for part in parts)])
    name = [recode(part.name, part.names, names) for part in parts]
    coded = {key: [recode(*part.words[key], known) for part in parts] for key, known in words.items()}
    return Events(
        lines=tuple(line for part in parts for line in part.lines),
        line=np.concatenate([part.line + at for part, at in zip(parts, first.tolist(), strict=False)]).astype(np.int32),
        name=np.concatenate(name),
        names=tuple(names),
        start_ns=np.concatenate([part.start_ns for part in parts]),
        duration_ns=np.concatenate([part.duration_ns for part in parts]),
        numbers={key: np.concatenate([part.numbers[key] for part in parts]) for key in NUMBERS},
        words={key: (np.concatenate(coded[key]), tuple(known)) for key, known in words.items()},
        whole=np.concatenate([part.whole for part in parts]),
    )


def recordings(events: Events) -> list[DeviceRecording]:
    """One recording for each device, in order; one of the host if nothing ran on a device."""
    return _Reader(events).recordings()


class _Reader:
    """The type and owner of each event."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.told: dict[str, int] = {}
        self.threads = _thread_numbers(events.lines)
        of_line, device_of_line = self._lines()
        named = [at for at, line in enumerate(events.lines) if line.name == "XLA Ops"]
        self.instruction_lines = np.array(named, np.int64)
        role, device = of_line[events.line], device_of_line[events.line]
        op = events.words["hlo_op"][0] >= 0
        if not (role == OPS).any():  # the CPU is the device
            on_cpu = (role == HOST) & op
            device = np.where(on_cpu, np.maximum(events.numbers["device_ordinal"], 0), device)
            role = np.where(on_cpu, OPS, role)
            self._leave_executors(role)
        role[~events.whole] = LEFT
        role[(role == HOST) & (events.numbers["correlation_id"] > 0)] = CALLS
        bookkeeping = _named(events, _BOOKKEEPING)
        role[(role == HOST) & bookkeeping] = LEFT
        role[_holds_others(events, role == OPS)] = LEFT
        self.row_role, self.row_device = role, device
        ids = events.numbers["correlation_id"]
        self.correlation = ids if (ids > 0).any() else events.numbers["run_id"]
        """Id that connects launches and work: CUPTI's; without those, the number of the program's run."""

    def _leave_executors(self, role: I64) -> None:
        """Threads that execute instructions are streams of the device: what XLA does around them is not work."""
        events = self.events
        executes = np.zeros(len(events.lines), bool)
        executes[events.line[role == OPS]] = True
        role[executes[events.line] & (role == HOST)] = LEFT

    def _lines(self) -> tuple[I64, I64]:
        """(Contents of each line, number of its device or -1.)"""
        lines = self.events.lines
        role, device = np.full(len(lines), LEFT, np.int64), np.full(len(lines), -1, np.int64)
        streams = {line.plane for line in lines if _STREAM.match(line.name)}
        used = np.bincount(self.events.line, minlength=len(lines))
        for at, line in enumerate(lines):
            found = _DEVICE.fullmatch(line.plane)
            if line.plane == "/host:CPU":
                role[at] = HOST
            elif line.plane in _CALL_PLANES:
                role[at] = CALLS
            elif found is not None and not found["part"]:
                device[at] = int(found["number"])
                on_stream = OPS if _STREAM.match(line.name) else STEPS if line.name == "Steps" else LEFT
                role[at] = on_stream if line.plane in streams else _OPS.get(line.name, LEFT)
            if role[at] == LEFT and used[at] and not (found and (line.plane in streams or line.name in _DERIVED)):
                self.told[f"events of line `{line.name}` of plane `{line.plane}` are not read"] = int(used[at])
        return role, device

    def recordings(self) -> list[DeviceRecording]:
        work = np.isin(self.row_role, (OPS, ASYNC))
        devices = np.unique(self.row_device[work]).tolist()
        if not devices and not (self.row_role == HOST).any():
            raise FormatError("it has neither threads nor devices", path=self.events.path)
        world = len(devices)
        return [self._recording(device, devices, world) for device in devices or [-1]]

    def _recording(self, device: int, devices: list[int], world: int) -> DeviceRecording:
        role = self.row_role
        mine = (self.row_device == device) & np.isin(role, (OPS, ASYNC, STEPS))
        host = np.isin(role, (HOST, CALLS))
        if len(devices) > 1:
            host &= self._of_host(mine, is_first=device == devices[0])
        rows = np.flatnonzero(mine | host)
        return _Rank(self, rows, device, world, not devices or device == devices[0]).recording()

    def _of_host(self, mine: Bool, *, is_first: bool) -> Bool:
        """Rows of the threads that launch work of this device, without calls that launch work of others. The first
        device has the threads that launch nothing as well."""
        others = np.isin(self.row_role, (OPS, ASYNC)) & ~mine
        thread = self.threads[self.events.line]
        here = self._launching(mine)[thread]
        if is_first:
            here |= ~self._launching(others)[thread]
        ids = self.correlation
        elsewhere = (self.row_role == CALLS) & (ids > 0) & np.isin(ids, ids[others]) & ~np.isin(ids, ids[mine])
        return here & ~elsewhere

    def _launching(self, mine: Bool) -> Bool:
        """By number of a thread: whether it launches any of these."""
        correlation, threads = self.correlation, self.threads
        known = correlation[mine]
        host = np.isin(self.row_role, (HOST, CALLS)) & (correlation > 0)
        host[host] = np.isin(correlation[host], known[known > 0])
        found = np.zeros(int(threads.max(initial=0)) + 1, bool)
        found[threads[self.events.line[host]]] = True
        return found


def _thread_numbers(lines: Sequence[Line]) -> I64:
    """A number for each line: that of its thread, which several planes may show; one of ours if it does not fit."""
    numbers: dict[int, int] = {}
    for line in lines:
        fits = 0 < line.number < FIRST_NAMED
        numbers.setdefault(line.number, line.number if fits else FIRST_NAMED + len(numbers))
    return np.array([numbers[line.number] for line in lines], np.int64)


def _named(events: Events, beginnings: tuple[str, ...]) -> Bool:
    return np.array([name.startswith(beginnings) for name in events.names] + [False])[events.name]


def _holds_others(events: Events, among: Bool) -> Bool:
    """Rows that contain all of another row of their line: loops and calls, whose time is that of what they run."""
    rows = np.flatnonzero(among)
    start = events.start_ns[rows]
    end = start + events.duration_ns[rows]
    order = np.lexsort((-end, start, events.line[rows]))
    rows, start, end = rows[order], start[order], end[order]
    found = np.zeros(len(events), bool)
    inside = (events.line[rows][1:] == events.line[rows][:-1]) & (start[1:] < end[:-1]) & (end[1:] <= end[:-1])
    found[rows[:-1][inside]] = True
    return found


class _Rank:
    """One device's rows as a recording."""

    def __init__(self, reader: _Reader, rows: I64, device: int, world: int, is_first: bool) -> None:
        self.is_first = is_first
        self.events, self.rows, self.device, self.world = reader.events, rows, device, world
        self.reader = reader
        self.role = reader.row_role[rows]
        self.line = self.events.line[rows]
        self.name = self.events.name[rows]

    def recording(self) -> DeviceRecording:
        events, rows, role = self.events, self.rows, self.role
        on_device = np.isin(role, (OPS, ASYNC))
        correlation = self.reader.correlation[rows]
        is_step = (events.numbers["step_num"][rows] != UNKNOWN) & (role == HOST) | (role == STEPS)
        category = np.full(len(rows), r.CPU_OP, np.uint8)
        category[on_device] = r.KERNEL
        copies, copied = self._copies(on_device)
        category[copies == r.COPY], category[copies == r.FILL] = r.COPY, r.FILL
        category[role == CALLS] = r.CUDA_CALL
        category[(role == HOST) & (correlation > 0) & self._launches(correlation, on_device)] = r.XLA_CALL
        frame = np.array([bool(_FRAME.match(n)) for n in events.names] + [False])[self.name]
        category[(role == HOST) & frame] = r.PYTHON
        category[is_step] = r.ANNOTATION
        name, names = self._names(is_step, frame & (role == HOST))
        talk, talks = self._talks(on_device & (category == r.KERNEL))
        stream, end, keep = self._streams(on_device), events.start_ns[rows] + events.duration_ns[rows], self._halves()
        start, stop, late = self._asynchronous(keep)
        end[start] = np.maximum(end[stop], end[start])
        stream[start] = late
        keep[stop] = False
        return DeviceRecording(
            path=events.path,
            rank=max(self.device, 0),
            category=category[keep],
            name=name[keep],
            names=names,
            start_ns=events.start_ns[rows][keep],
            duration_ns=(end - events.start_ns[rows])[keep],
            thread=np.where(np.isin(role, (HOST, CALLS)), self.reader.threads[self.line], UNKNOWN)[keep],
            stream=stream[keep],
            device=np.where(on_device, max(self.device, 0), UNKNOWN)[keep],
            correlation=np.where(correlation > 0, correlation, UNKNOWN)[keep],
            talk=talk[keep],
            talks=talks,
            copied_bytes=copied[keep],
            device_name=next(iter(self.events.devices.values()), ""),
            base_ns=events.base_ns,
            world_size=self.world,
            told=self._told(),
        )

    def _told(self) -> tuple[str, ...]:
        """Notes on the file, on the first rank."""
        said = tuple(f"the profiler said: {text[:200]}" for text in self.events.said)
        return (*r.merged_told(self.reader.told), *said) if self.is_first else ()

    def _launches(self, correlation: I64, on_device: Bool) -> Bool:
        """The first host event with the number of a run, on the thread that requested it."""
        known = correlation[on_device]
        asks = (self.role == HOST) & (correlation > 0)
        asks[asks] = np.isin(correlation[asks], known[known > 0])
        rows = np.flatnonzero(asks)
        start = self.events.start_ns[self.rows[rows]]
        rows = rows[np.lexsort((start, correlation[rows]))]
        first = rows[np.unique(correlation[rows], return_index=True)[1]]
        found = np.zeros(len(correlation), bool)
        found[first] = True
        return found

    def _copies(self, on_device: Bool) -> tuple[I64, I64]:
        """(COPY, FILL or -1, bytes) of each row."""
        kind, copied = np.full(len(self.rows), -1, np.int64), np.full(len(self.rows), UNKNOWN, np.int64)
        for stat, what in (("memcpy_details", r.COPY), ("Memset_details", r.FILL)):
            codes, words = self.events.words[stat]
            here = np.where(on_device, codes[self.rows], -1)
            sizes = [int(found[1]) if (found := _SIZE.search(word)) else UNKNOWN for word in words]
            kind[here >= 0] = what
            copied = np.where(here >= 0, np.array([*sizes, UNKNOWN], np.int64)[here], copied)
        return kind, copied

    def _streams(self, on_device: Bool) -> I64:
        lines = self.events.lines
        numbers = [int(found["number"]) if (found := _STREAM.match(line.name)) else -1 for line in lines]
        threads = self.reader.threads
        stream = np.where(np.array(numbers, np.int64) >= 0, numbers, threads)
        return np.where(on_device, stream[self.line], UNKNOWN)

    def _names(self, is_step: Bool, is_frame: Bool) -> tuple[I32, tuple[str, ...]]:
        """Names; steps and Python frames as in all recordings; instructions by their own."""
        known = {text: i for i, text in enumerate(self.events.names)}
        name = self.name.copy()
        number = self.events.numbers["step_num"][self.rows]
        for row in np.flatnonzero(is_step).tolist():
            own = self.events.names[self.name[row]]
            said = str(number[row]) if number[row] != UNKNOWN else own
            name[row] = known.setdefault(r.step_name(said) if said.isdigit() else own, len(known))
        for code in np.unique(self.name[is_frame]).tolist():
            found = _FRAME.match(self.events.names[code])
            if found is not None:
                text = f"{found['file']}({found['line']}): {found['name']}"
                name[is_frame & (self.name == code)] = known.setdefault(text, len(known))
        return name, tuple(known)

    def _talks(self, kernels: Bool) -> tuple[I32, list[Talk]]:
        """The communication of each event, each distinct (name, instruction, program) examined once."""
        op, ops = self.events.words["hlo_op"]
        module, modules = self.events.words["hlo_module"]
        talk = np.full(len(self.rows), -1, np.int32)
        rows = np.flatnonzero(kernels)
        keys = np.stack([self.name[rows], op[self.rows[rows]], module[self.rows[rows]]])
        distinct, which = np.unique(keys, axis=1, return_inverse=True)
        talks: list[Talk] = []
        codes = np.full(distinct.shape[1], -1, np.int32)
        for at, (name, one, of) in enumerate(distinct.T.tolist()):
            program = self.events.modules.get(modules[of]) if of >= 0 else self._only_module()
            found = self._talk(self.events.names[name], ops[one] if one >= 0 else "", program)
            if found is not None:
                codes[at] = len(talks)
                talks.append(found)
        talk[rows] = codes[which.reshape(-1)] if len(rows) else codes
        return talk, talks

    def _only_module(self) -> Module | None:
        found = {id(module): module for module in self.events.modules.values() if module.collectives}
        return next(iter(found.values())) if len(found) == 1 else None

    def _talk(self, name: str, op: str, module: Module | None) -> Talk | None:
        instruction = op or name.removeprefix("%").partition(" ")[0]
        known = module.collectives.get(instruction) if module is not None else None
        if known is not None:
            return known.talk(max(self.device, 0), self.world)
        what, half = xla_collective(instruction)
        if what:
            return Talk(collective=what) if half != "done" else None
        return talk_of_kernel(name)

    def _half(self) -> tuple[I64, I64]:
        """(1: starts a communication, 2: waits for its end, 0: neither; the communication) of each row."""
        said = [xla_collective(name.partition(" ")[0]) for name in self.events.names]
        half = np.array([("", "start", "done").index(half) for _, half in said] + [0], np.int64)
        pairs: dict[str, int] = {}
        about = [pairs.setdefault(_BOTH.sub("", name.partition(" ")[0]), len(pairs)) for name in self.events.names]
        on_line = np.isin(self.line, self.reader.instruction_lines) & (self.role == OPS)
        return np.where(on_line, half[self.name], 0), np.array([*about, -1], np.int64)[self.name]

    def _halves(self) -> Bool:
        """Rows to keep. If another line shows concurrent work, `-start` and `-done` on the line of instructions are not
        work: they begin what the other line shows, and wait for it."""
        return (self._half()[0] == 0) | ~(self.role == ASYNC).any()

    def _asynchronous(self, keep: Bool) -> tuple[I64, I64, I64]:
        """(starts, the end of each, an extra stream) if no other line shows what runs in between."""
        half, about = self._half()
        order = np.lexsort((self.events.start_ns[self.rows], about))
        first, second = order[:-1], order[1:]
        pair = (half[first] == 1) & (half[second] == 2) & (about[first] == about[second]) & keep[first] & keep[second]
        beside = self.reader.threads.max(initial=0) + 1 + self.line[first[pair]]
        return first[pair], second[pair], beside.astype(np.int64)

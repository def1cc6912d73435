"""Steps with the activities of the device alone: kernels, copies and sets, without the driver's calls.

What makes a light window slow are the calls: to record one takes several microseconds of the host. A kernel alone is
timed by the device and adds next to nothing, but PyTorch's profiler always records both. So CUPTI, which is in the
process by then, is asked directly. `link` takes the times of the device from here.
"""

import contextlib
import ctypes
import time
from typing import Any, Final

from etude.capture.collect import detach
from etude.capture.collect.capture import settle

STEPS: Final = 20
"""Steps that are recorded so, after a first one in which it starts."""
COPY, SET, KERNEL = 1, 2, 10
"""Kinds of activities, as CUPTI numbers them. Kernels that may run beside others are asked for as 10, and come as 3 or
as 10."""
KERNELS: Final = (3, KERNEL)
NAMES: Final = {COPY: "Memcpy", SET: "Memset"}
BUFFER_BYTES: Final = 16 << 20
NO_MORE: Final = 12
"""Code of CUPTI for the end of a buffer."""
KERNEL_AT: Final = {"start_ns": 16, "end_ns": 24, "stream": 48, "name": 104}
COPY_AT: Final = {"start_ns": 16, "end_ns": 24, "stream": 40}
"""Where the fields of a record are, in bytes; of sets as of copies. They have been there since CUDA 11."""
_ASKS = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_GIVES = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class _Buffers:
    """Memory that CUPTI fills. Its callbacks live as long as the process: CUPTI may call them at any later time."""

    def __init__(self) -> None:
        self.free = [ctypes.create_string_buffer(BUFFER_BYTES + 64)]
        self.lent: dict[int, Any] = {}
        self.full: list[tuple[int, int]] = []
        self.asks, self.gives = _ASKS(self._lend), _GIVES(self._take_back)

    def _lend(self, place: Any, size: Any, records: Any) -> None:
        buffer = self.free.pop() if self.free else ctypes.create_string_buffer(BUFFER_BYTES + 64)
        at = (ctypes.addressof(buffer) + 63) & ~63
        self.lent[at] = buffer
        place[0], size[0], records[0] = at, BUFFER_BYTES, 0

    def _take_back(self, context: Any, stream: int, at: int, size: int, used: int) -> None:
        del context, stream, size
        if at:
            self.full.append((at, used))


_buffers: list[_Buffers] = []


class DeviceCapture:
    """Recording from `DeviceCapture(...)` to `stop()`. Nothing is recorded, and nothing breaks, where CUPTI cannot be
    asked: `works` is false then."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.running = self.works = False
        self.behind_ns = 0
        """How long the device still worked when the last step was over for the host."""
        self.marks_ns: list[list[int]] = []
        """Begin and end of each step, by CUPTI's clock."""
        self._records: list[tuple[str, int, int, int]] = []
        library = detach.library()
        if not library:
            return
        with contextlib.suppress(OSError, AttributeError):
            self._cupti = ctypes.CDLL(library)
            if not _buffers:
                _buffers.append(_Buffers())
            self._buffers = _buffers[0]
            settle(torch)
            done = [self._cupti.cuptiActivityRegisterCallbacks(self._buffers.asks, self._buffers.gives)]
            done += [self._cupti.cuptiActivityEnable(kind) for kind in (KERNEL, COPY, SET)]
            self.running = True
            self.works = not any(done)

    @property
    def steps(self) -> int:
        """Steps that are over and count: not the first one."""
        return sum(len(one) == 2 for one in self.marks_ns[1:])

    @property
    def took_ns(self) -> list[int]:
        """Times of the steps that count, from mark to mark, for the host."""
        took = [one[1] - one[0] for one in self.marks_ns[1:] if len(one) == 2]
        return [*took[:-1], took[-1] - self.behind_ns] if took else []

    def mark(self) -> None:
        self.unmark()
        self.marks_ns.append([self._now_ns()])

    def unmark(self) -> None:
        if self.marks_ns and len(self.marks_ns[-1]) == 1:
            self.marks_ns[-1].append(self._now_ns())

    def stop(self, *, within_step: bool = False) -> None:
        """`within_step`: the program ends, or records itself, before its step is over. That step does not count."""
        if not self.running:
            return
        self.running = False
        settle(self._torch)
        if within_step and self.marks_ns:
            self.marks_ns[-1] = self.marks_ns[-1][:1]
        elif self.marks_ns:
            begin, end = (*self.marks_ns[-1], self._now_ns())[:2]
            done = self._now_ns()
            self.marks_ns[-1], self.behind_ns = [begin, done], done - end
        for kind in (KERNEL, COPY, SET):
            self._cupti.cuptiActivityDisable(kind)
        self._cupti.cuptiActivityFlushAll(1)
        full, self._buffers.full = self._buffers.full, []
        for at, used in full:
            with contextlib.suppress(ValueError):
                self._read(at, used)
            buffer = self._buffers.lent.pop(at, None)
            if buffer is not None:
                self._buffers.free.append(buffer)
        detach.detach(self._torch)

    def _now_ns(self) -> int:
        found = ctypes.c_uint64(0)
        if self._cupti.cuptiGetTimestamp(ctypes.byref(found)) or not found.value:
            self.works = False
            return time.time_ns()
        return int(found.value)

    def _read(self, at: int, used: int) -> None:
        record, names = ctypes.c_void_p(0), dict[int, str]()
        buffer = ctypes.c_void_p(at), ctypes.c_size_t(used), ctypes.byref(record)
        while not (code := self._cupti.cuptiActivityGetNextRecord(*buffer)):
            place = record.value or 0
            kind = ctypes.c_uint32.from_address(place).value
            if kind in KERNELS:
                where = _word(place + KERNEL_AT["name"])
                if where not in names:
                    names[where] = _plain_name(ctypes.string_at(where)) if where else ""
                self._records.append((names[where], *_times(place, KERNEL_AT)))
            elif kind in NAMES:
                self._records.append((NAMES[kind], *_times(place, COPY_AT)))
        self.works &= code == NO_MORE

    def events(self) -> dict[str, Any]:
        """Columns: the `names`, and of each activity its `name` as a number, its `stream`, `start_ns` and `end_ns`
        since `base_ns`, by start; `marks_ns`: begin and end of each whole step, the first one too. Empty where records
        cannot be those of the steps."""
        marks = [one for one in self.marks_ns if len(one) == 2]
        if len(marks) < len(self.marks_ns):  # what the last one launched cannot be parted from what others did
            return {}
        rows = sorted(self._records, key=lambda one: one[2])
        if not self.works or len(marks) < 2 or not rows:
            return {}
        if not all(marks[0][0] <= start <= end and stream < 1 << 24 for _, stream, start, end in rows):
            return {}
        names: dict[str, int] = {}
        base_ns = marks[0][0]
        return {
            "name": [names.setdefault(name, len(names)) for name, *_ in rows],
            "stream": [stream for _, stream, _, _ in rows],
            "start_ns": [start - base_ns for _, _, start, _ in rows],
            "end_ns": [end - base_ns for *_, end in rows],
            "names": list(names),
            "base_ns": base_ns,
            "marks_ns": marks,
        }


def _word(place: int) -> int:
    return int(ctypes.c_uint64.from_address(place).value)


def _times(place: int, at: dict[str, int]) -> tuple[int, int, int]:
    """Stream, start and end of a record."""
    stream = int(ctypes.c_uint32.from_address(place + at["stream"]).value)
    return stream, _word(place + at["start_ns"]), _word(place + at["end_ns"])


def _plain_name(symbol: bytes) -> str:
    """The name of a C++ function as people write it; as it is where it is none."""
    if symbol.startswith(b"_Z"):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL("libstdc++.so.6")
            library.__cxa_demangle.restype = ctypes.c_void_p
            status = ctypes.c_int(0)
            found = library.__cxa_demangle(symbol, None, None, ctypes.byref(status))
            if found and not status.value:
                text = ctypes.string_at(found)
                ctypes.CDLL(None).free(ctypes.c_void_p(found))
                return text.decode("utf-8", "replace")
    return symbol.decode("utf-8", "replace")

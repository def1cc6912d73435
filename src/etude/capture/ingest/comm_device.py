"""Communications in a device trace, and the kernels that ran them."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from etude.capture.ingest.comm_calls import LARGEST, Call, Sizes, dtype_of, numbers, small, type_of
from etude.capture.ingest.comm_host import RECORD, strided
from etude.capture.link.device import DeviceTrace
from etude.capture.link.recording import PERMUTE
from etude.kernels.arrays import I64
from etude.model.schema import UNKNOWN, Collective, Kind

_NONE: Final = (np.empty(0, np.int64), np.empty(0, np.int64))
_ROOTED: Final = (Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER)
_CALLS: Final = ("cpu_op", "user_annotation")


class _Args:
    """Arguments that few events have, by row."""

    def __init__(self, device: DeviceTrace) -> None:
        self._device = device
        self._text: dict[str, tuple[I64, Any, tuple[str, ...]]] = {}

    def number(self, column: str, row: int) -> int:
        rows, values = self._device.rare.get(column, _NONE)
        at = int(np.searchsorted(rows, row))
        found = at < len(rows) and rows[at] == row and abs(int(values[at])) < LARGEST
        return int(values[at]) if found else UNKNOWN

    def small(self, column: str, row: int) -> int:
        """A rank or a group size; -1: none."""
        return small(self.number(column, row))

    def text(self, column: str, row: int) -> str:
        if column not in self._text:
            self._text[column] = self._device.texts(column)
        rows, codes, words = self._text[column]
        at = int(np.searchsorted(rows, row))
        return words[codes[at]] if at < len(rows) and rows[at] == row and codes[at] >= 0 else ""

    def numbers(self, column: str, row: int) -> list[int] | None:
        """A list in a text; None if there is none, or it was cut short (`[0, 1, ...]`)."""
        return _decoded(self.text(column, row))

    def listed(self, column: str, row: int) -> list[Any]:
        place = int(self._device.places[column][row])
        found = self._device.json.value(place) if place >= 0 else None
        return found if isinstance(found, list) else []


def device_calls(device: DeviceTrace) -> list[Call]:
    """Every communication of a device trace, in order of its start, with the kernels that belong to it."""
    args = _Args(device)
    calls = _host_side(device, args)
    _bind_gloo(device, calls, args)
    _bind_kernels(device, calls, args)
    return sorted(calls, key=lambda call: call.order)


def is_call_name(device: DeviceTrace) -> NDArray[np.bool_]:
    wanted = [name == RECORD or name.startswith(("c10d::", "nccl:")) for name in device.names]
    return np.array([*wanted, False])[device.name]


# -- calls -------------------------------------------------------------------------------------------------------------


def _host_side(device: DeviceTrace, args: _Args) -> list[Call]:
    """Calls from the CPU's events; nested ones, such as `record_param_comms` inside `c10d::`, are one."""
    rows = np.flatnonzero(is_call_name(device) & device.is_category(*_CALLS))
    start, end = device.start_ns, device.start_ns + np.maximum(device.duration_ns, 0)
    rows = rows[np.lexsort((-device.duration_ns[rows], start[rows], device.tid[rows]))]
    calls: list[Call] = []
    around: list[tuple[int, Call | None]] = []
    for row in rows.tolist():
        while around and (device.tid[around[-1][0]] != device.tid[row] or end[around[-1][0]] <= start[row]):
            around.pop()
        outer = next((call for _, call in reversed(around) if call is not None), None)
        call = _call(device, row, args)
        if call is not None and outer is not None:
            if (outer.kind, outer.collective) == (call.kind, call.collective):
                _join(outer, call)
            call = outer  # the parts of a barrier belong to the barrier
        elif call is not None:
            calls.append(call)
        around.append((row, call))
    return calls


def _join(outer: Call, inner: Call) -> None:
    """Merges a nested event of the same kind, which has more about the same call; the record has the most."""
    if inner.recorded:
        inner.fill(outer)
        for name in Call.__slots__:
            if name not in ("order", "rf_ids", "work"):
                setattr(outer, name, getattr(inner, name))
    else:
        event = outer.event
        outer.fill(inner)
        outer.event = event
        if not any(isinstance(size, int) and size for size in outer.inputs or ()):
            outer.inputs = inner.inputs or outer.inputs
    outer.rf_ids += inner.rf_ids


def _call(device: DeviceTrace, row: int, args: _Args) -> Call | None:
    name = device.names[device.name[row]]
    recorded = args.text("collective_name", row)
    if name == RECORD and not recorded:
        return None  # before torch 2.2 it had no arguments; the annotation inside it does
    found = type_of(recorded if name == RECORD else name)
    if found is None:
        return None
    call = Call(recorded or name, *found, int(device.start_ns[row]), int(device.tid[row]), event=row)
    if device.rf_id[row] > 0:
        call.rf_ids = [int(device.rf_id[row])]
    if name == RECORD:
        describe(call, args, row)
        _coalesced_tensors(call, args, row)
    elif name.startswith("nccl:"):
        call.inputs, call.dtype = _tensors(args, row)
    else:
        _operator(call, args, row)
    return call


def _coalesced_tensors(call: Call, args: _Args, row: int) -> None:
    """The tensors of a coalesced call one by one, if their shapes were recorded."""
    dims, width = args.listed("input_dims", row), dtype_of(args.text("dtype", row))[1]
    if call.is_coalesced and width and dims and isinstance(dims[0], list) and len(dims[0]) > 1:
        call.inputs, call.outputs = [_elements(shape) * width for shape in dims[0]], None


def describe(call: Call, args: _Args, row: int) -> None:
    """Fills in the arguments of a record or of a kernel."""
    call.recorded = True
    call.dtype, width = dtype_of(args.text("dtype", row))
    for side in ("in", "out"):
        elements = args.number(f"{side}_msg_nelems", row)
        size = args.number(f"{side}_bytes", row)  # recordings other than Kineto's
        if size >= 0 or (width and elements >= 0):
            setattr(call, f"{side}puts", [size if size >= 0 else elements * width])
        setattr(call, f"{side}_split", args.numbers(f"{side}_split_size", row))
    call.group = args.text("group_name", row) or None
    call.size = max(args.small("group_size", row), 0)
    members = args.numbers("group_ranks", row)
    spaced = strided(args.small("global_rank_start", row), args.small("global_rank_stride", row), call.size)
    call.members = tuple(members) if members else spaced
    call.sequence = args.number("sequence", row)
    rank = args.small("rank", row)
    if call.kind == Kind.SEND:
        call.peer, call.dst = rank, args.small("dst_rank", row)
    elif call.kind == Kind.RECV:
        call.peer, call.src = rank, args.small("src_rank", row)
    elif call.collective in _ROOTED:
        call.root = rank


def _tensors(args: _Args, row: int) -> tuple[Sizes | None, str]:
    """Bytes of the tensors that an annotation was given, and their type."""
    dims, types = args.listed("input_dims", row), args.listed("input_types", row)
    if not dims or not types:
        return None, ""
    named = [dtype_of(text) for text in types]
    if not all(width for _, width in named):
        return None, ""
    sizes: Sizes = [_elements(shape) * width for shape, (_, width) in zip(dims, named, strict=False)]
    return sizes, named[0][0]


def _elements(shape: Any) -> int:
    count = 1
    for number in shape if isinstance(shape, list) else ():
        count *= number if isinstance(number, int) and 0 <= number < LARGEST else 0
    return count if count < LARGEST else 0


def _operator(call: Call, args: _Args, row: int) -> None:
    """A `c10d::` operator: output tensors come before input tensors; a list of tensors does not say its type."""
    dims, types = args.listed("input_dims", row), args.listed("input_types", row)
    given = args.listed("concrete_inputs", row)
    sides: list[Sizes | None] = []
    before = 0
    for shape, text in zip(dims, types, strict=False):
        dtype, width = dtype_of(text)
        if not width and text not in ("TensorList", "GenericList"):
            break
        before += 1
        sides.append([_elements(shape) * width] if width else None)
        call.dtype = call.dtype or dtype
    if sides and call.collective != Collective.BARRIER:
        call.outputs, call.inputs = sides[0], sides[1] if len(sides) > 1 else sides[0]
    if len(sides) < 2 and call.collective not in (Collective.NONE, Collective.ALL_REDUCE, Collective.REDUCE,
                                                  Collective.BROADCAST):  # fmt: skip
        call.inputs = call.outputs = None  # a list of lists is not shown, so it is unknown which side this is
    said = [small(int(text)) for text in given[before:] if isinstance(text, str) and re.fullmatch(r"-?\d{1,18}", text)]
    if call.kind != Kind.COLL and said:
        any_source = "any_source" in call.name
        call.peer, call.tag = (-1, said[0]) if any_source else (said[0], (said[1:] or [-1])[0])
    elif call.collective in _ROOTED and said:
        call.root = said[0]
    elif call.collective == Collective.ALL_TO_ALL:
        lists = [text for text in given[before:] if isinstance(text, str) and text.startswith("[")]
        if len(lists) > 1:
            call.out_split, call.in_split = (_decoded(text) for text in lists[:2])


def _decoded(text: str) -> list[int] | None:
    try:
        return numbers(msgspec.json.decode(text))
    except msgspec.MsgspecError:
        return None


# -- what did them -----------------------------------------------------------------------------------------------------


def _bind_gloo(device: DeviceTrace, calls: list[Call], args: _Args) -> None:
    """Assigns events of gloo's own threads: by record-function id, if given; else in order of starts."""
    rows = np.flatnonzero(device.name_has("gloo:") & device.is_category(*_CALLS))
    rows = rows[np.argsort(device.start_ns[rows], kind="stable")]
    find = _asked_by_id(calls) if (device.rf_id[rows] > 0).all() else _asked_in_turn(calls)
    for row in rows.tolist():
        found = type_of(device.names[device.name[row]])
        call = find(int(device.rf_id[row]), int(device.start_ns[row]), found)
        if call is None:
            continue
        call.work.append(row)
        sizes, dtype = _tensors(args, row)
        call.dtype = call.dtype or dtype
        if call.inputs is None and found == (call.kind, call.collective):
            call.inputs = [] if sizes is None and call.collective == Collective.SCATTER else sizes


Finder = Callable[[int, int, tuple[Kind, Collective] | None], Call | None]
"""(record-function id, start, type) -> the call that asked for it."""


def _asked_by_id(calls: list[Call]) -> Finder:
    """Finds the last requested call."""
    with_id = sorted((call for call in calls if call.rf_ids), key=lambda call: call.rf_ids[0])
    ids = [call.rf_ids[0] for call in with_id]
    return lambda rf_id, start, found: with_id[at - 1] if (at := bisect_right(ids, rf_id)) else None


def _asked_in_turn(calls: list[Call]) -> Finder:
    """Finds the first call of this type without work."""
    waiting: dict[tuple[Kind, Collective] | None, deque[Call]] = {}
    for call in sorted(calls, key=lambda call: call.order):
        as_gloo = Collective.ALL_REDUCE if call.collective == Collective.REDUCE_SCATTER else call.collective
        waiting.setdefault((call.kind, as_gloo), deque()).append(call)

    def find(rf_id: int, start: int, found: tuple[Kind, Collective] | None) -> Call | None:
        queue = waiting.get(found)
        return queue.popleft() if queue and queue[0].order <= start else None

    return find


def _bind_kernels(device: DeviceTrace, calls: list[Call], args: _Args) -> None:
    """Assigns kernels to calls: by the call or `nccl:coalesced` around the launch, else by external id, else by
    themselves."""
    with_name = np.zeros(len(device), bool)
    with_name[device.rare["collective_name"][0]] = True
    is_nccl = np.array([("nccl" in n.lower()) for n in device.names] + [False])[device.name]
    kernels = np.flatnonzero(device.is_category("kernel") & (with_name | is_nccl))
    if not len(kernels):
        return
    launches = _Launches(device, calls)
    alone: list[Call] = []
    for row in kernels[np.argsort(device.start_ns[kernels], kind="stable")].tolist():
        owners = launches.owners(row)
        for call in owners:
            call.work.append(row)
        if owners and (len(owners) > 1 or owners[0].recorded):
            continue
        if not owners:
            alone += _permuted(device, row, args)
        own = _from_kernel(device, row, args)
        if own and not owners:
            alone.append(own)
        elif own and (own.kind, own.collective) == (owners[0].kind, owners[0].collective):
            owners[0].fill(own)  # a call without a record: its kernel knows group and sizes
    calls += alone


class _Launches:
    """The calls of a kernel: what its thread was doing when it was launched."""

    def __init__(self, device: DeviceTrace, calls: list[Call]) -> None:
        self._device = device
        self._end = device.start_ns + np.maximum(device.duration_ns, 0)
        self._calls: dict[int, list[Call]] = {}
        for call in sorted(calls, key=lambda call: call.order):
            self._calls.setdefault(call.thread, []).append(call)
        self._starts = {thread: [call.order for call in of] for thread, of in self._calls.items()}
        self._coalesced: dict[int, list[int]] = {}
        rows = np.flatnonzero(device.name_has("nccl:coalesced") & device.is_category(*_CALLS))
        for row in rows[np.argsort(device.start_ns[rows], kind="stable")].tolist():
            self._coalesced.setdefault(int(device.tid[row]), []).append(row)
        launches = np.flatnonzero(device.is_category("cuda_runtime", "cuda_driver"))
        self._launches = launches[np.argsort(device.correlation[launches], kind="stable")]
        self._correlations = device.correlation[self._launches]
        self._external = {
            int(device.external_id[row]): around
            for row in np.flatnonzero(is_call_name(device) & device.is_category(*_CALLS)).tolist()
            if (around := self._call_at(int(device.tid[row]), int(device.start_ns[row])))
        }

    def owners(self, kernel: int) -> list[Call]:
        device = self._device
        at = int(np.searchsorted(self._correlations, device.correlation[kernel]))
        if at < len(self._launches) and self._correlations[at] == device.correlation[kernel]:
            launch = int(self._launches[at])
            thread, start = int(device.tid[launch]), int(device.start_ns[launch])
            if batch := self._batch_at(thread, start):
                return batch
            call = self._call_at(thread, start)
            return [call] if call else []
        external = int(device.external_id[kernel])
        if external <= 0 or external == device.correlation[kernel]:  # old traces repeat the correlation there
            return []
        found = self._external.get(external)
        return [found] if found else []

    def _call_at(self, thread: int, time: int) -> Call | None:
        at = bisect_right(self._starts.get(thread, []), time) - 1
        call = self._calls[thread][at] if at >= 0 else None
        return call if call is not None and time <= self._end[call.event] else None

    def _batch_at(self, thread: int, time: int) -> list[Call]:
        """Calls since the last `nccl:coalesced` of the thread, if one is in progress."""
        rows = self._coalesced.get(thread, [])
        at = bisect_right(rows, time, key=lambda row: int(self._device.start_ns[row])) - 1
        if at < 0 or time > self._end[rows[at]]:
            return []
        since = int(self._end[rows[at - 1]]) if at else UNKNOWN
        starts = self._starts.get(thread, [])
        first, last = bisect_left(starts, since), bisect_left(starts, int(self._device.start_ns[rows[at]]))
        return [call for call in self._calls.get(thread, [])[first:last] if self._launched_nothing(call, rows[at])]

    def _launched_nothing(self, call: Call, coalesced: int) -> bool:
        start, end = self._device.start_ns[coalesced], self._end[coalesced]
        return all(start <= self._launch_time(kernel) <= end for kernel in call.work)

    def _launch_time(self, kernel: int) -> int:
        at = int(np.searchsorted(self._correlations, self._device.correlation[kernel]))
        return int(self._device.start_ns[self._launches[at]])


def _permuted(device: DeviceTrace, row: int, args: _Args) -> list[Call]:
    """The send and the receive of a rank in a permutation, which run at the same time."""
    if args.text("collective_name", row) != PERMUTE:
        return []
    calls = []
    for kind in (Kind.SEND, Kind.RECV):
        call = Call(PERMUTE, kind, Collective.NONE, int(device.start_ns[row]), int(device.tid[row]), work=[row])
        describe(call, args, row)
        calls += [call] if (call.dst if kind == Kind.SEND else call.src) >= 0 else []
    return calls


def _from_kernel(device: DeviceTrace, row: int, args: _Args) -> Call | None:
    """A call from a kernel that no call of the trace accounts for, if it has the arguments of a collective."""
    name = args.text("collective_name", row)
    found = type_of(name)
    if found is None:
        return None
    call = Call(name, *found, int(device.start_ns[row]), int(device.tid[row]), work=[row])
    describe(call, args, row)
    return call

"""Communications in a host trace: from `record_param_comms` if there is one, else from the `c10d::` operator."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from etude.capture.ingest.comm_calls import LARGEST, Call, Sizes, dtype_of, numbers, small, tensor_sizes, type_of
from etude.capture.link.host import HostTrace
from etude.model.job import MAX_WORLD
from etude.model.schema import UNKNOWN, Collective, Kind

RECORD: Final = "record_param_comms"
_TENSOR: Final = re.compile(r"Tensor\(([^()]*)\)")
_FUNCTIONAL: Final = re.compile(r"_?c10d_functional(_autograd)?::(?!wait_tensor|_wrap)")
_ROOTED: Final = (Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER)


def host_calls(host: HostTrace, around: Mapping[int, int] | None = None) -> list[Call]:
    """Every communication of a host trace, in order of the nodes' ids. `around`: the parent of each row whose event is
    known, -1: none; otherwise from the observer's own tree, as far as it is reliable."""
    rows = call_rows(host)
    row_of = {int(host.id[row]): row for row in rows}
    around = around or {}
    attrs = {int(row): i for i, row in enumerate(host.comms.row.tolist())}
    at: dict[int, Call] = {}
    calls: list[Call] = []
    functional: dict[int, str] = {}
    of_thread: defaultdict[int, list[Call]] = defaultdict(list)
    begun: set[int] = set()
    for row in rows:
        name, thread = host.names[host.name[row]], int(host.tid[row])
        outer = at.get(around[row] if row in around else row_of.get(int(host.caller[row]), -1))
        if row not in around and name != RECORD and id(outer) in begun:
            outer = None  # gloo had begun its work: the observer has closed the wrong entry of its stack
        if name.startswith("gloo:"):
            begun |= {id(call) for call in of_thread[thread][-1:]}
            _gloo(host, row, of_thread[thread])
            continue
        if _FUNCTIONAL.match(name):
            functional[thread] = _group_of(_list(host, "in_values", row))
            continue
        call = _record(host, row, attrs.get(row, -1)) if name == RECORD else _operator(host, row)
        if call is None:
            continue
        call.host, call.order, call.thread = row, int(host.id[row]), thread
        call.rf_ids = [int(host.rf_id[row])]
        if outer is not None and (outer.kind, outer.collective) == (call.kind, call.collective) and not outer.recorded:
            outer.rf_ids += call.rf_ids
            call.fill(outer)
            _replace(outer, call)
            at[row] = outer
        elif outer is not None and outer.collective == Collective.BARRIER:
            at[row] = outer  # the parts of a barrier
        else:
            given = functional.pop(thread, "")
            call.group = given or None if call.group is None else call.group
            at[row] = call
            calls.append(call)
            of_thread[thread].append(call)
    return calls


def call_rows(host: HostTrace) -> list[int]:
    """Relevant rows, by id."""
    wanted = [n == RECORD or n.startswith(("c10d::", "gloo:")) or bool(_FUNCTIONAL.match(n)) for n in host.names]
    rows = np.flatnonzero(np.array([*wanted, False])[host.name])
    return [int(row) for row in rows[np.argsort(host.id[rows], kind="stable")]]


def _replace(outer: Call, inner: Call) -> None:
    """Replaces the operator's call by that of its record, which has more."""
    for name in Call.__slots__:
        if name not in ("order", "rf_ids", "work", "work_host"):
            setattr(outer, name, getattr(inner, name))


def _gloo(host: HostTrace, row: int, own: list[Call]) -> None:
    """Work of gloo gets its record-function id inside the operator that requested it, so it belongs to the last of
    the thread's calls before that id, however late it begins."""
    rf_id = int(host.rf_id[row])
    call = next((call for call in reversed(own) if rf_id <= 0 or call.rf_ids[0] < rf_id), own[-1] if own else None)
    if call is not None:
        call.work_host.append(row)
        call.rf_ids.append(rf_id)
        if not call.dtype:
            call.dtype = _dtype(_list(host, "in_types", row))


def _list(host: HostTrace, column: str, row: int) -> list[Any]:
    found = host.value(column, row)
    return found if isinstance(found, list) else []


def _group_of(values: list[Any]) -> str:
    """The group of a functional collective: the last text among its inputs."""
    texts = [v for v in values if isinstance(v, str) and not v.startswith("<")]
    return texts[-1] if texts else ""


def _dtype(types: list[Any]) -> str:
    for text in types:
        if (found := _TENSOR.search(str(text))) and (name := dtype_of(found[1])[0]):
            return name
    return ""


def _operator(host: HostTrace, row: int) -> Call | None:
    """A `c10d::` operator: output tensors come before input tensors, then the group, then roots, peers, splits."""
    name = host.names[host.name[row]]
    found = type_of(name)
    if found is None:
        return None
    values, types = _list(host, "in_values", row), _list(host, "in_types", row)
    kind, collective = found
    call = Call(name, kind, collective, 0, 0, dtype=_dtype(types))
    before = next((i for i, text in enumerate(types) if text == "Object"), len(types))
    sides: list[Sizes] = [tensor_sizes(value) for value in values[:before]]
    if sides and collective != Collective.BARRIER:
        call.outputs, call.inputs = sides[0], sides[1] if len(sides) > 1 else sides[0]
    after = list(zip(values[before:], types[before:], strict=False))
    given = [small(v) for v, text in after if text == "Int"]
    if kind != Kind.COLL:
        _set_peer(call, given, any_source="any_source" in name)
    elif collective in _ROOTED and given:
        call.root = given[0]
    elif collective == Collective.ALL_TO_ALL:
        lists = [v for v, _ in after if isinstance(v, list)]
        if len(lists) > 1:
            call.out_split, call.in_split = numbers(lists[0]), numbers(lists[1])
    return call


def _set_peer(call: Call, given: list[int], *, any_source: bool) -> None:
    if any_source:
        call.tag = given[0] if given else -1
    elif given:
        call.peer = given[0]
        call.tag = given[1] if len(given) > 1 else -1


def _record(host: HostTrace, row: int, at: int) -> Call | None:
    """`record_param_comms`: tensors, sequence number, group, rank, name, splits, and since 1.0.3 how ranks are spaced.

    Which of these there are differs between versions and collectives; the name is the one text, and the others lie
    around it.
    """
    values, types = _list(host, "in_values", row), _list(host, "in_types", row)
    place = next((i for i, text in enumerate(types) if text == "String"), -1)
    found = type_of(values[place]) if 3 <= place < len(values) else None
    if found is None:
        return None
    kind, collective = found
    call = Call(values[place], kind, collective, 0, 0, dtype=_dtype(types), recorded=True)
    sequence, group, rank = values[place - 3 : place]
    sequence = sequence[0] if isinstance(sequence, list) and sequence else sequence
    call.sequence = sequence if isinstance(sequence, int) and abs(sequence) < LARGEST else UNKNOWN
    call.group = str(group[0] if isinstance(group, list) and group else group)
    if kind != Kind.COLL:
        call.peer = small(rank)
    elif collective in _ROOTED:
        call.root = small(rank)
    if place > 3:
        call.inputs = tensor_sizes(values[0])
        call.outputs = [size for value in _list(host, "out_values", row) for size in tensor_sizes(value)]
    if place + 2 < len(values):
        call.in_split, call.out_split = numbers(values[place + 1]), numbers(values[place + 2])
    call.size = max(small(values[-1]), 0)
    if place + 5 < len(values):
        call.members = strided(small(values[place + 3]), small(values[place + 4]), call.size)
    if at >= 0:
        _attributes(host, at, call)
    return call


def _attributes(host: HostTrace, at: int, call: Call) -> None:
    """Fills in attributes of the node, if the tensors do not determine them."""
    codes, words = host.comms.text["dtype"]
    named, width = dtype_of(words[codes[at]]) if codes[at] >= 0 else ("", 0)
    call.dtype = call.dtype or named
    for side in ("in", "out"):
        elements = int(host.comms.number[f"{side}_msg_nelems"][at])
        if getattr(call, f"{side}puts") is None and width and 0 <= elements < LARGEST:
            setattr(call, f"{side}puts", [elements * width])


def strided(start: int, stride: int, size: int) -> tuple[int, ...] | None:
    """Members of an evenly spaced group; None if they are not, or it was not recorded."""
    return (
        tuple(range(start, start + stride * size, stride))
        if start >= 0 and stride > 0 and 0 < size < MAX_WORLD
        else None
    )

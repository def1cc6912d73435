"""Problems of one program: its graph, its nodes, its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.units import counted
from etude.kernels.arrays import I32, I64
from etude.kernels.compile import kernel
from etude.model import graph
from etude.model.check.findings import FindingList, ProgramClasses, split_by
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.trace import Trace

_DANGLING_HINT: Final = (
    "the file was cut, or the tool that wrote it dropped a node; simulators reject such a file or hang on it"
)
_NEVER_HINT: Final = "repair the dependencies named above; then these nodes can start"


def check_programs(report: FindingList, programs: ProgramClasses) -> None:
    """Checks the structure, once for each program."""
    job = report.job
    for at in programs.at:
        trace = job.traces[int(job.trace_of[at[0]])]
        if not len(trace):
            report.ranks("empty_trace", job.ranks[at], "the trace has no nodes")
            continue
        _check_ids(report, at, trace)
        _check_graph(report, at, trace)
        _check_kinds(report, at, trace)


# -- graph -------------------------------------------------------------------------------------------------------------


def _check_ids(report: FindingList, at: I32, trace: Trace) -> None:
    ids = trace.source_id
    if (ids[1:] > ids[:-1]).all():
        return
    order = np.argsort(ids, kind="stable")
    again = np.flatnonzero(ids[order][1:] == ids[order][:-1]) + 1
    if not len(again):
        return
    rows = np.sort(order[again])
    first = report.id_of(int(at[0]), int(rows[0]))
    hint = "a node that waits for this id waits for only one of them"
    report.nodes("duplicate_id", at, rows, f"id {first} belongs to more than one node", hint)


def _check_graph(report: FindingList, at: I32, trace: Trace) -> None:
    data, ctrl = graph.dependencies(trace, "data"), graph.dependencies(trace, "ctrl")
    marks = np.full(len(trace) + len(trace.missing), -1, np.int64)
    odd_data, forward_data = _scan(data.start, data.rows, marks)
    marks[:] = -1
    odd_ctrl, forward_ctrl = _scan(ctrl.start, ctrl.rows, marks)
    if odd_data or odd_ctrl:
        _check_edges(report, at, trace, "data", data)
        _check_edges(report, at, trace, "ctrl", ctrl)
    if not (odd_data or odd_ctrl or forward_data or forward_ctrl):
        return  # every node waits for earlier ones only, so there is no cycle and all of them start
    cycle = graph.find_cycle(trace, but_self=True)
    if len(cycle):
        ids = [report.id_of(int(at[0]), int(r)) for r in cycle]
        what = f"nodes wait for one another in a cycle: {graph.cycle_text(ids)}"
        report.nodes("cycle", at, cycle[:1], what, "no node of a cycle can ever start")
    _check_never(report, at, trace, cycle)


def _check_edges(report: FindingList, at: I32, trace: Trace, which: str, dep: graph.Csr) -> None:
    """Dependencies that are dangling, on the node itself, or repeated."""
    first = int(at[0])
    owner = np.repeat(np.arange(len(dep), dtype=np.int32), np.diff(dep.start))
    aside = "" if which == "data" else " (control)"
    dangling = np.flatnonzero(dep.rows < 0)
    if len(dangling):
        lost = int(trace.missing[~dep.rows[dangling[0]]]) + int(report.job.id_base[first])
        node = report.id_of(first, int(owner[dangling[0]]))
        what = f"node {node} waits{aside} for node {lost % 2**64}, which is not in the trace"
        report.nodes(f"dangling_{which}", at, owner[dangling], what, _DANGLING_HINT)
    selfish = owner[dep.rows == owner]
    if len(selfish):
        what = f"node {report.id_of(first, int(selfish[0]))} waits{aside} for itself"
        report.nodes("self_dependency", at, selfish, what, "it can never start")
    again = _repeats(dep.start, dep.rows, np.full(len(trace) + len(trace.missing), -1, np.int64))
    if again.any():
        k = int(np.flatnonzero(again)[0])
        on = int(dep.rows[k])
        target = report.id_of(first, on) if on >= 0 else int(trace.missing[~on]) + int(report.job.id_base[first])
        what = f"node {report.id_of(first, int(owner[k]))} waits{aside} for node {target % 2**64} more than once"
        report.nodes("duplicate_dependency", at, owner[again], what)


def _check_never(report: FindingList, at: I32, trace: Trace, cycle: I32) -> None:
    """Nodes that can never start because of problems found before."""
    never = np.ones(len(trace), bool)
    never[graph.topological_order(trace, block_missing=True)] = False
    dep = graph.dependencies(trace)
    owner = np.repeat(np.arange(len(dep)), np.diff(dep.start))
    never[owner[(dep.rows < 0) | (dep.rows == owner)]] = False
    never[cycle] = False
    stuck = len(cycle) > 0 or bool((dep.rows == owner).any())
    rows = np.flatnonzero(never)
    if len(rows):
        node = report.id_of(int(at[0]), int(rows[0]))
        causes = [*(["a missing node"] if (dep.rows < 0).any() else []), *(["a cycle"] if stuck else [])]
        what = f"node {node} can never start: it depends on {' or '.join(causes)}"
        report.nodes("never_starts", at, rows, what, _NEVER_HINT)


@kernel(allocates=False)
def _scan(start, rows, marks):  # type: ignore[no-untyped-def]
    """(dependencies that are missing, on the node itself or repeated; dependencies on a later node)."""
    odd = forward = 0
    for i in range(len(start) - 1):
        for k in range(start[i], start[i + 1]):
            d = rows[k]
            if d < 0 or d == i or marks[d] == i:
                odd += 1
            else:
                marks[d] = i
                if d > i:
                    forward += 1
    return odd, forward


@kernel
def _repeats(start, rows, marks):  # type: ignore[no-untyped-def]
    """Mask of dependencies that the node has already."""
    nodes = len(start) - 1
    again = np.zeros(len(rows), np.bool_)
    for i in range(nodes):
        for k in range(start[i], start[i + 1]):
            d = rows[k] if rows[k] >= 0 else nodes + ~rows[k]
            again[k] = marks[d] == i
            marks[d] = i
    return again


# -- nodes -------------------------------------------------------------------------------------------------------------


def _check_kinds(report: FindingList, at: I32, trace: Trace) -> None:
    kind = trace.kind
    coll = kind == Kind.COLL
    looks = (
        ("invalid_node", kind == Kind.INVALID, "is an INVALID_NODE", "no tool can run it; ASTRA-sim hangs on it"),
        (
            "unknown_kind",
            (kind == Kind.NONE) | (kind >= Kind.OTHER),
            "is of a type that Chakra's schema does not have",
            "the file is newer than this Etude, or damaged",
        ),
        (
            "unknown_collective",
            coll & (trace.collective == Collective.NONE),
            "is a collective, but its `comm_type` was not recorded",
            "it may be an all-reduce, an all-gather, ...",
        ),
        (
            "unknown_collective",
            coll & (trace.collective >= Collective.OTHER),
            "is a collective of a `comm_type` that Chakra's schema does not have",
            "the file is newer than this Etude, or damaged",
        ),
        (
            "no_peer",
            (kind == Kind.SEND) & (trace.dst < 0),
            "sends, but to whom (`comm_dst`) was not recorded",
            "it cannot be matched with its receive; `etude collect` records the peer of every message",
        ),
        (
            "no_peer",
            (kind == Kind.RECV) & (trace.src < 0),
            "receives, but from whom (`comm_src`) was not recorded",
            "it cannot be matched with its send; `etude collect` records the peer of every message",
        ),
    )
    for name, mask, what, hint in looks:
        rows = np.flatnonzero(mask)
        if len(rows):
            report.nodes(name, at, rows, f"node {report.id_of(int(at[0]), int(rows[0]))} {what}", hint)


# -- values ------------------------------------------------------------------------------------------------------------

LONGEST_NS: Final = 30 * 86_400 * 10**9
"""Longest plausible node or recording."""
_LONGEST: Final = "30 days"
_BAD_TIME_HINT: Final = "the tool that wrote it recorded a wrong time; spans and sums that include it are meaningless"
_UNITS: Final = {"duration_ns": "ns", "in_bytes": "B", "out_bytes": "B", "tensor_bytes": "B", "flops": "operations"}


class _Bad:
    """Bad values by (program, kind, column, first row). Values differ from rank to rank, so ranks with the same first
    bad node share a finding, which counts the nodes of the first rank."""

    def __init__(self) -> None:
        self.at: dict[tuple[int, str, str, int], list[int]] = {}
        self.rows: dict[tuple[int, str, str, int], tuple[int, NDArray[Any]]] = {}

    def add(self, program: int, kind: str, column: str, rows: NDArray[Any], at: NDArray[Any]) -> None:
        key = (program, kind, column, int(rows[0]))
        self.at.setdefault(key, []).extend(at.tolist())
        first = int(at.min())
        if key not in self.rows or first < self.rows[key][0]:
            self.rows[key] = first, rows


def check_values(report: FindingList, programs: ProgramClasses) -> None:
    """Checks values, once for each trace and each rank with values of its own."""
    job = report.job
    bad = _Bad()
    own = {job.index(rank): columns for rank, columns in job.values.items()}
    plain = np.ones(len(job.ranks), bool)
    plain[list(own)] = False
    looked: list[tuple[NDArray[Any], Mapping[str, NDArray[Any]]]]
    looked = [(at, {}) for at in split_by(job.trace_of, np.flatnonzero(plain))]
    looked += [(np.array([i]), columns) for i, columns in own.items()]
    for at, columns in looked:
        for kind, column, rows in _value_problems(job.traces[int(job.trace_of[at[0]])], columns):
            bad.add(int(programs.of[at[0]]), kind, column, rows, at)
    _check_timing(report, programs, bad)
    for key, ranks in bad.at.items():
        _report_values(report, key[1], key[2], bad.rows[key][1], np.array(sorted(ranks), np.int32))


def _value_problems(trace: Trace, own: Mapping[str, NDArray[Any]]) -> list[tuple[str, str, NDArray[Any]]]:
    column = {name: own.get(name, getattr(trace, name)) for name in _UNITS}
    known = {name: values != UNKNOWN for name, values in column.items()}
    kind = trace.kind
    found = [("negative_value", name, known[name] & (column[name] < 0)) for name in _UNITS]
    comm = (kind == Kind.SEND) | (kind == Kind.RECV) | ((kind == Kind.COLL) & (trace.collective != Collective.BARRIER))
    found.append(("no_size", "in_bytes", comm & ~known["in_bytes"] & ~known["out_bytes"]))
    untimed = ~known["duration_ns"]
    found.append(("no_cost", "duration_ns", (kind == Kind.COMP) & untimed & ~(known["flops"] & known["tensor_bytes"])))
    found.append(("bad_time", "duration_ns", known["duration_ns"] & (column["duration_ns"] > LONGEST_NS)))
    memory = (kind == Kind.MEM_LOAD) | (kind == Kind.MEM_STORE)
    found.append(("no_cost", "tensor_bytes", memory & untimed & ~known["tensor_bytes"]))
    return [(name, col, np.flatnonzero(mask)) for name, col, mask in found if mask.any()]


def _check_timing(report: FindingList, programs: ProgramClasses, bad: _Bad) -> None:
    job = report.job
    timing = job.timing
    if timing is None:
        return
    if len(timing.block_of) != len(job.ranks):
        what = f"the timing is of {counted(len(timing.block_of), 'rank')}, the job of {len(job.ranks):,}"
        report.ranks("timing_length", job.ranks[:1], what)
        return
    same = timing.block_of.astype(np.int64) << 32 | job.trace_of
    for at in split_by(same, np.arange(len(job.ranks))):
        start, end = (times[int(timing.block_of[at[0]])] for times in (timing.start_ns, timing.end_ns))
        nodes = len(job.traces[int(job.trace_of[at[0]])])
        if len(start) != nodes:
            what = f"the timing has {counted(len(start), 'node')}, the trace {nodes:,}"
            report.ranks("timing_length", job.ranks[at], what)
            continue
        program = int(programs.of[at[0]])
        back = np.flatnonzero((end < start) & (end != UNKNOWN))
        if len(back):
            bad.add(program, "negative_time", "end_ns", back, at)
        far = _far_off(start)
        if len(far):
            bad.add(program, "bad_time", "start_ns", far, at)


def _far_off(start: I64) -> NDArray[Any]:
    """Rows whose start is further from the median than any recording is long."""
    known = np.flatnonzero(start != UNKNOWN)
    if not len(known) or int(start[known].max()) - int(start[known].min()) <= LONGEST_NS:
        return known[:0]
    middle = int(np.sort(start[known])[len(known) // 2])
    low, high = max(middle - LONGEST_NS, -(2**63)), min(middle + LONGEST_NS, 2**63 - 1)
    return known[(start[known] < low) | (start[known] > high)]


def _report_values(report: FindingList, kind: str, column: str, rows: NDArray[Any], at: I32) -> None:
    job, first, row = report.job, int(at[0]), int(rows[0])
    node = f"node {report.id_of(first, row)}"
    trace = job.traces[int(job.trace_of[first])]
    hint = ""
    if kind == "negative_value":
        values = job.values.get(int(job.ranks[first]), {}).get(column, getattr(trace, column))
        what = f"{node} has a negative {column}: {int(values[row]):,} {_UNITS[column]}"
    elif kind == "negative_time":
        what = f"{node} ends before it starts"
    elif kind == "bad_time" and column == "duration_ns":
        what, hint = f"{node} lasts longer than {_LONGEST}", _BAD_TIME_HINT
    elif kind == "bad_time":
        what, hint = f"{node} starts more than {_LONGEST} before or after most others", _BAD_TIME_HINT
    elif kind == "no_size":
        what = f"{node} communicates, but how much (`comm_size`) was not recorded"
    elif column == "tensor_bytes":
        what = f"{node} moves memory, but how much (`tensor_size`) was not recorded, nor how long it takes"
    else:
        what = f"{node} computes, but neither its duration nor both `num_ops` and `tensor_size` were recorded"
        hint = "a simulation gives such nodes zero time"
    report.nodes(kind, at, rows, what, hint, column=column)

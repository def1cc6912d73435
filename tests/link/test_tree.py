"""Call trees from intervals, against a slow twin, hand-made cases, and the observer's own tree where it is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.capture.ingest.reading import load_device, load_host
from etude.capture.link.tree import call_tree, innermost
from recorded import device_json, op, read_device_json

Interval = tuple[int, int, int, bool]


def naive(intervals: list[Interval], slack: int) -> list[int]:
    """(thread, start, end, is outer): the last before it, in order, that holds it, and itself ends inside its own. An
    end that is late by no more than the slack is the end of what is around it."""
    order = sorted(range(len(intervals)), key=lambda i: (intervals[i][0], intervals[i][1], -intervals[i][2], i))
    found, frames = [-1] * len(intervals), {}
    for i in order:
        thread, start, end, is_outer = intervals[i]
        around = [j for j, until in frames.items() if intervals[j][0] == thread and until > start]
        holding = [j for j in around if end <= frames[j] + slack]
        found[i] = holding[-1] if holding else -1
        if is_outer and (not around or found[i] == around[-1]):
            frames[i] = min([end, *(frames[j] for j in around[-1:])])
    return found


times = st.integers(0, 30)


@given(st.lists(st.tuples(st.integers(0, 1), times, times, st.booleans()), max_size=12), st.integers(0, 2))
def test_kernel_agrees_with_naive(drawn: list[Interval], slack: int) -> None:
    intervals = [(thread, min(a, b), max(a, b), outer) for thread, a, b, outer in drawn]
    columns = [np.array([i[c] for i in intervals], np.int64) for c in range(3)]
    outer = np.array([i[3] for i in intervals], bool)
    assert innermost(*columns, outer, slack_ns=slack).tolist() == naive(intervals, slack)


def test_what_ends_after_its_caller_calls_nothing() -> None:
    """A send begins in its operator, and is still under way when the next one runs."""
    trace = read_device_json(
        device_json(
            op("step", 0, 100, 1), op("c10d::send", 10, 5, 2), op("gloo:send", 12, 60, 3, cat="user_annotation"),
            op("c10d::recv_", 20, 5, 4), op("other", 21, 2, 5, tid=8),
        )
    )  # fmt: skip
    tree = call_tree(trace, trace.is_category("cpu_op", "user_annotation"))
    parent = {int(row): int(tree.row[p]) if p >= 0 else -1 for row, p in zip(tree.row, tree.parent, strict=True)}
    assert parent == {0: -1, 1: 0, 2: 0, 3: 0, 4: -1}


def observed(shared: Path, run: str) -> tuple[int, int, int]:
    """(nodes, callers that differ from the observer's, callers of the tree that do not hold their node)."""
    folder = shared / "traces/torch_cpu"
    host, device = load_host(folder / f"{run}.et.json.gz"), load_device(folder / f"{run}.kineto.json.gz")
    tree = call_tree(device, device.is_category("cpu_op", "user_annotation") & (device.rf_id > 0))
    rf_id = device.rf_id[tree.row]
    caller_of = dict(zip(host.rf_id.tolist(), host.caller.tolist(), strict=True))
    rf_of = dict(zip(host.id.tolist(), host.rf_id.tolist(), strict=True))
    roots = set(host.rf_id[host.is_thread_root | host.is_process_root].tolist())
    differ = outside = 0
    end = device.start_ns + device.duration_ns
    for row, parent, rf in zip(tree.row.tolist(), tree.parent.tolist(), rf_id.tolist(), strict=True):
        theirs = rf_of.get(caller_of.get(rf, -1), -1)
        ours = int(rf_id[parent]) if parent >= 0 else -1
        differ += ours != (-1 if theirs in roots else theirs)
        holder = int(tree.row[parent]) if parent >= 0 else row
        outside += not device.start_ns[holder] <= device.start_ns[row] <= end[row] <= end[holder]
    return len(tree.row), differ, outside


@pytest.mark.parametrize("run", ["train_1p.rank0", "infer_1p.rank0"])
def test_without_gloo_it_is_the_observers_tree(shared: Path, run: str) -> None:
    nodes, differ, outside = observed(shared, run)
    assert nodes > 200
    assert (differ, outside) == (0, 0)


@pytest.mark.parametrize("run", ["ddp_2p.rank0", "pp_1f1b_2p.rank0", "tp_sp_2p.rank0"])
def test_with_gloo_every_caller_holds_what_it_called(shared: Path, run: str) -> None:
    _, differ, outside = observed(shared, run)
    assert differ > 0
    assert outside == 0

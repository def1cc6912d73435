"""Peak memory from tensors that nodes name, and memory nodes that say where they work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.base.errors import ClusterError, TraceError
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.memory import memory_peaks, tensors_of
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Collective, Kind, ValueKind
from etude.run.simulate.options import RemoteMemory
from etude.run.simulate.run import simulate
from toy_systems import one_level


def peaks(run: Run) -> list[int]:
    return memory_peaks(run).held_bytes.tolist()


TOY = one_level("switch", 4)
FAR = RemoteMemory(bytes_per_s=2e9, latency_ns=7)


def named(**lists: list[str]) -> dict[str, Any]:
    return {"attrs": {name: (ValueKind.STRING_LIST, texts) for name, texts in lists.items()}}


def chain(*nodes: tuple[int, dict[str, Any]]) -> Job:
    b = TraceBuilder()
    for k, (duration_ns, more) in enumerate(nodes):
        b.add(Kind.COMP, source_id=k, duration_ns=duration_ns, data=[k - 1] if k else [], **more)
    return job_of("w", [b])


def test_a_tensor_lives_from_who_makes_it_to_who_takes_it_last():
    job = chain(
        (10, named(inputs=["w", "1000", "x", "50.0"], outputs=["a", "200"])),  # w, x are there: 1050 + 200
        (10, named(inputs=["a", "200"], outputs=["b", "300"])),  # 1050 + 200 + 300
        (10, named(inputs=["b", "300"], outputs=["c", "30"])),  # a is gone: 1050 + 300 + 30
        (10, named(inputs=["w", "1000"], outputs=["d", "480"])),  # c stays, nobody takes it: 1050 + 30 + 480
    )
    found = simulate(job, TOY)
    assert peaks(found) == [1560]


def test_a_naive_sweep_agrees():
    rng = np.random.default_rng(3)
    for _ in range(20):
        nodes, names = [], [f"t{k}" for k in range(8)]
        size = {name: int(rng.integers(1, 100)) for name in names}
        for _ in range(12):
            lists = {}
            for side in ("inputs", "outputs"):
                chosen = [n for n in names if rng.random() < 0.25]
                lists[side] = [text for n in chosen for text in (n, str(size[n]))]
            nodes.append((int(rng.integers(1, 9)), named(**lists)))
        job = chain(*nodes)
        found = simulate(job, TOY)
        start, end = found.timing.block(0)
        assert peaks(found) == [naive_peak(nodes, start, end)]


def naive_peak(nodes: list[tuple[int, dict[str, Any]]], start: Any, end: Any) -> int:
    sizes: dict[str, int] = {}
    makers: dict[str, list[int]] = {}
    takers: dict[str, list[int]] = {}
    for row, (_, more) in enumerate(nodes):
        for side, users in (("inputs", takers), ("outputs", makers)):
            texts = more["attrs"][side][1]
            for name, size in zip(texts[::2], texts[1::2], strict=True):
                sizes[name] = int(size)
                users.setdefault(name, []).append(row)
    last, most = int(end.max()), 0
    for t in range(last):
        live = 0
        for name, size in sizes.items():
            users = makers.get(name, []) + takers.get(name, [])
            begin = min(int(start[r]) for r in makers[name]) if name in makers else 0
            stays = name not in makers or name not in takers
            until = last + 1 if stays else max(int(end[r]) for r in users)
            live += size * (begin <= t < until)
        most = max(most, live)
    return most


def test_more_than_the_device_has_is_said():
    small = TOY.replace(device=TOY.device.__class__(name="d", memory_bytes=1000, memory_bandwidth_bytes_per_s=1e9))
    found = simulate(chain((1, named(outputs=["a", "1001"]))), small)
    assert found.notes[-1] == "1 ranks need more memory than the 1,000 B of their device; the first is rank 0"


def test_lists_of_another_form_are_left_alone():
    for texts in (["a"], ["a", "b"], ["a", "1", "b"], ["a", "-3"]):
        assert peaks(simulate(chain((1, named(inputs=texts))), TOY)) == [UNKNOWN]


def test_ranks_that_differ_in_tensors_alone_are_not_folded():
    builders = []
    for rank in range(2):
        b = TraceBuilder()
        b.add(Kind.COMP, source_id=1, duration_ns=5, **named(outputs=["a", str(100 + rank)]))
        b.add(Kind.COLL, source_id=2, data=[0], collective=Collective.ALL_REDUCE, in_bytes=8)
        builders.append(b)
    found = simulate(job_of("w", builders), TOY)
    assert peaks(found) == [100, 101]


def memory_job(kind: Kind, place: Any, value_kind: ValueKind = ValueKind.UINT32) -> Job:
    b = TraceBuilder()
    attrs = {} if place is None else {"tensor_loc": (value_kind, place)}
    b.add(kind, source_id=4, tensor_bytes=1000, attrs=attrs)
    return job_of("w", [b])


@pytest.mark.parametrize(
    ("place", "remote", "time_ns", "peak"),
    [
        (1, FAR, 1000, UNKNOWN), (2, FAR, 507, 1000), (None, FAR, 507, 1000), (1, None, 1000, UNKNOWN),
        (None, None, 1000, 1000),
    ],
)  # fmt: skip
def test_memory_nodes_work_where_they_say(place: int | None, remote: RemoteMemory | None, time_ns: int, peak: int):
    """1000 B at 1 B/ns in the device's own memory, at 2 B/ns and 7 ns in the remote one."""
    found = simulate(memory_job(Kind.MEM_LOAD, place), TOY, remote_memory=remote)
    assert (found.makespan_ns, peaks(found)) == (time_ns, [peak])


def test_words_and_what_cannot_be():
    assert simulate(memory_job(Kind.MEM_STORE, "REMOTE", ValueKind.STRING), TOY, remote_memory=FAR).makespan_ns == 507
    with pytest.raises(ClusterError, match="node 4: it uses remote memory, but none is described"):
        simulate(memory_job(Kind.MEM_LOAD, 2), TOY)
    with pytest.raises(TraceError, match="node 4: its `tensor_loc` is neither"):
        simulate(memory_job(Kind.MEM_LOAD, 9), TOY)


def test_a_generated_trace_names_its_tensors(shared: Path):
    job = etude.open(shared / "oracle" / "stg" / "gpt_pp4_mb8" / "trace.0.et")
    tensors = tensors_of(job.traces[0])
    sizes = {}
    for row in range(len(job.traces[0])):
        for attr, texts in job.traces[0].attributes(row):
            if attr.name in ("inputs", "outputs") and texts:
                sizes |= dict(zip(texts[::2], map(float, texts[1::2]), strict=True))
    assert len(tensors) == len(sizes)
    assert int(tensors.size_bytes.sum()) == int(sum(sizes.values()))

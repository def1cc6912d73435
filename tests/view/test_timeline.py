"""Timelines: slices worked by hand, then both file forms against what independent readers find in them."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.timing import Origin, Timing
from etude.surface.cli import main
from etude.tell.view.flows import flows_of, running
from etude.tell.view.slices import Slices, Sort, slices_of
from etude.tell.view.timeline import write_timeline
from simulated_jobs import random_job
from training_step import training_step


def timed(job: Job, *blocks: list[tuple[int, int]], offsets: tuple[int, ...] = ()) -> Run:
    starts, ends = zip(*(np.array(b, np.int64).T for b in blocks), strict=True)
    timing = Timing(
        origin=Origin.MEASURED,
        start_ns=tuple(np.ascontiguousarray(s) for s in starts),
        end_ns=tuple(np.ascontiguousarray(e) for e in ends),
        block_of=np.arange(len(blocks), dtype=np.int32),
        clock_offset_ns=np.array(offsets or [0] * len(blocks), np.int64),
    )
    return Run(job, timing)


def two_ranks() -> Run:
    """Rank r: an operator that holds another, a kernel it launched, and an all-reduce of both ranks."""
    builders = []
    for _ in (0, 1):
        b = TraceBuilder()
        outer = b.add(Kind.COMP, "outer", cpu=1, thread=5)
        inner = b.add(Kind.COMP, "inner", cpu=1, thread=5, data=[outer])
        gemm = b.add(Kind.COMP, "gemm", cpu=0, stream=7, data=[inner])
        b.add(Kind.COLL, "", cpu=0, stream=9, data=[gemm], collective=Collective.ALL_REDUCE, in_bytes=64, group="dp")
        b.add(Kind.COMP, "untimed", cpu=0, stream=7)
        builders.append(b)
    job = job_of("two", builders, {"dp": [0, 1]})
    none = (UNKNOWN, UNKNOWN)
    return timed(
        job,
        [(1000, 1100), (1010, 1050), (1060, 1200), (1200, 1300), none],
        [(900, 1000), (910, 950), (960, 1150), (1150, 1200), none],
        offsets=(0, 100),
    )


def test_slices_lie_in_lanes_on_one_clock():
    run = two_ranks()
    s = slices_of(run)
    assert [(lane.rank, lane.label) for lane in s.lanes] == [
        (0, "thread 5"), (0, "stream 7"), (0, "stream 9"), (1, "thread 5"), (1, "stream 7"), (1, "stream 9")
    ]  # fmt: skip
    names = [s.names[n] for n in s.name]
    assert names[:4] == ["outer", "inner", "gemm", "all_reduce"]
    assert s.start_ns.tolist() == [0, 10, 60, 200, 0, 10, 60, 250]
    assert s.end_ns.tolist() == [100, 50, 200, 300, 100, 50, 250, 300]
    assert s.depth.tolist() == [0, 1, 0, 0] * 2
    assert s.sort.tolist() == [Sort.HOST, Sort.HOST, Sort.COMPUTE, Sort.COMMUNICATION] * 2
    assert (s.origin_ns, s.untimed, s.span_ns) == (1000, 2, 300)


def test_what_overlaps_without_nesting_gets_another_track():
    b = TraceBuilder()
    for _ in range(4):
        b.add(Kind.COMP, cpu=0, stream=1)
    job = job_of("one", [b])
    s = slices_of(timed(job, [(0, 10), (5, 15), (6, 9), (10, 12)]))
    assert dict(zip(s.node.tolist(), s.track.tolist(), strict=True)) == {0: 0, 1: 1, 2: 0, 3: 0}
    assert dict(zip(s.node.tolist(), s.depth.tolist(), strict=True)) == {0: 0, 1: 0, 2: 1, 3: 0}


def test_flows_join_launch_and_members():
    run = two_ranks()
    s = slices_of(run)
    flows = flows_of(run.job, s)
    of = [set(flows.id[flows.start[i] : flows.start[i + 1]].tolist()) for i in range(len(s))]
    inner0, gemm0, sum0, inner1, gemm1, sum1 = (of[i] for i in (1, 2, 3, 5, 6, 7))
    assert [len(x) for x in of] == [0, 1, 2, 2, 0, 1, 2, 2]
    assert inner0 < gemm0 and inner1 < gemm1 and not gemm0 & gemm1
    assert len(sum0 & sum1) == 1


def test_counters_say_how_many_run():
    run = two_ranks()
    found = {(c.rank, c.name): (c.time_ns.tolist(), c.value.tolist()) for c in running(slices_of(run))}
    assert found[0, "compute running"] == ([60, 200], [1, 0])
    assert found[1, "communication running"] == ([250, 300], [1, 0])


def scattered(seed: int) -> Run:
    """A random job with random times: slices that nest, overlap, have no length or no time."""
    rng = random.Random(seed)
    job = random_job(rng, ranks=3, events=60, broken=False)

    def one() -> tuple[int, int]:
        start = rng.randrange(400)
        return (UNKNOWN, UNKNOWN) if rng.random() < 0.1 else (start, start + rng.choice([0, 1, 20, 100]))

    return timed(job, *([one() for _ in range(len(job.trace(r)))] for r in job.ranks.tolist()))


def rows(s: Slices) -> list[tuple[Any, ...]]:
    ranks = [s.lanes[k].rank for k in s.lane.tolist()]
    return sorted(
        zip(ranks, (s.names[n] for n in s.name.tolist()), s.start_ns.tolist(), s.end_ns.tolist(), strict=True)
    )


@pytest.mark.parametrize("seed", range(8))
def test_chrome_json_holds_every_slice(seed: int, tmp_path: Path):
    run = scattered(seed)
    s = write_timeline(run, tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    found = [(e["pid"], e["name"], round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000))
             for e in events if e["ph"] == "X"]  # fmt: skip
    assert sorted(found) == rows(s)
    by_flow: dict[int, list[tuple[float, str]]] = {}
    for e in events:
        if e["ph"] in "stf":
            by_flow.setdefault(e["id"], []).append((e["ts"], e["ph"]))
    for steps in by_flow.values():
        assert steps == sorted(steps, key=lambda step: step[0])
        assert [p for _, p in steps] == ["s"] + ["t"] * (len(steps) - 2) + ["f"]


@pytest.mark.parametrize("seed", range(8))
def test_perfetto_holds_every_slice(seed: int, tmp_path: Path):
    proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs perfetto's schema")
    run = scattered(seed)
    s = write_timeline(run, tmp_path / "run.pftrace")
    trace = proto.Trace.FromString((tmp_path / "run.pftrace").read_bytes())
    names: dict[int, str] = {}
    parent: dict[int, int] = {}
    pid: dict[int, int] = {}
    open_on: dict[int, list[tuple[str, int]]] = {}
    found, counters, flows = [], 0, 0
    for packet in trace.packet:
        names |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            d = packet.track_descriptor
            parent[d.uuid] = d.parent_uuid
            if d.HasField("process"):
                pid[d.uuid] = d.process.pid
        if not packet.HasField("track_event"):
            continue
        e = packet.track_event
        flows += len(e.flow_ids)
        if e.type == e.TYPE_SLICE_BEGIN:
            open_on.setdefault(e.track_uuid, []).append((names[e.name_iid], packet.timestamp))
        elif e.type == e.TYPE_SLICE_END:
            name, start = open_on[e.track_uuid].pop()
            found.append((pid[parent[e.track_uuid]], name, start, packet.timestamp))
        else:
            counters += 1
            assert e.type == e.TYPE_COUNTER
    assert not any(open_on.values())
    assert sorted(found) == rows(s)
    assert counters == sum(len(c.time_ns) for c in running(s))
    assert flows == len(flows_of(run.job, s).id)


def test_the_command_writes_by_name_and_refuses_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from etude.store import chakra

    chakra.write_job(training_step(), tmp_path)
    for name in ("run.pftrace", "run.json", "run.json.gz"):
        out = tmp_path / name
        assert main(["timeline", str(tmp_path), "-o", str(out), "--system", "dgx-h100", "--ranks", "0-1,7"]) == 0
        assert out.stat().st_size > 1000
        assert "63 slices of 3 ranks" in capsys.readouterr().err
    assert main(["timeline", str(tmp_path), "-o", str(tmp_path / "run.txt")]) == 2
    assert main(["timeline", str(tmp_path), "-o", str(tmp_path / "none.json")]) == 2
    assert "no times were recorded" in capsys.readouterr().err
    assert main(["timeline", str(tmp_path), "-o", str(tmp_path / "x.json"), "--system", "dgx-h100",
                 "--ranks", "0,99"]) == 2  # fmt: skip
    assert not (tmp_path / "none.json").exists() and not (tmp_path / "x.json").exists()


def test_time_without_events_is_not_drawn_around_its_operator():
    b = TraceBuilder()
    op = b.add(Kind.COMP, "op", cpu=1, thread=1)
    b.add(Kind.COMP, "host", cpu=1, thread=1, parent=op)
    b.add(Kind.COMP, "host", cpu=1, thread=1)
    b.add(Kind.COMP, "dispatch", cpu=1, thread=9)
    b.add(Kind.COMP, "gemm", cpu=0, stream=7)
    job = job_of("one", [b])
    run = timed(job, [(0, 10), (2, 8), (10, 20), (5, 6), (6, 9)])
    assert [slices_of(run).node.tolist(), slices_of(run).untimed] == [[0, 4], 0]
    predicted = Run(job, replace(run.timing, origin=Origin.SIMULATED))
    assert sorted(slices_of(predicted).node.tolist()) == [0, 2, 3, 4]

"""Random jobs and systems for the simulator's tests: consistent by construction, then broken now and then."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from etude.machine.system import Device, Level, LevelKind, System
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job, assemble
from etude.model.schema import Collective, Kind
from etude.model.timing import Origin, Timing
from etude.run.simulate.options import Options, Overlap, Policy

KINDS = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.BROADCAST, Collective.BARRIER)


def system(devices: int = 8, bandwidth: float = 1e9, latency_ns: float = 50.0, inner: int = 2) -> System:
    """Pairs of devices on a fast switch, the pairs on a slower one; or one switch."""
    fast = Level(
        name="in", kind=LevelKind.SWITCH, size=inner, bandwidth_bytes_per_s=4 * bandwidth, latency_ns=latency_ns
    )
    slow = Level(
        name="out", kind=LevelKind.SWITCH, size=-(-devices // inner), bandwidth_bytes_per_s=bandwidth,
        latency_ns=3 * latency_ns,
    )  # fmt: skip
    device = Device(name="d", memory_bandwidth_bytes_per_s=1e9, memory_bytes=10**6)
    return System(name="s", device=device, levels=(fast, slow))


def where(rng: random.Random) -> dict[str, Any]:
    """On a thread, on one of two streams, or where the kind of node belongs."""
    choice = rng.randrange(6)
    if choice == 0:
        return {"cpu": 1, "thread": rng.randrange(2)}
    return {"stream": rng.randrange(2)} if choice < 3 else {}


def random_job(rng: random.Random, ranks: int | None = None, events: int | None = None, broken: bool = True) -> Job:
    """Compute, collectives on random groups and messages, event by event; each node waits for a few before it."""
    ranks = ranks or rng.randint(1, 5)
    builders = [TraceBuilder() for _ in range(ranks)]
    groups = {f"g{i}": sorted(rng.sample(range(ranks), rng.randint(1, ranks))) for i in range(3)}
    for _ in range(events if events is not None else rng.randint(0, 14)):
        what = rng.choice(["comp", "comp", "comp", "coll", "coll", "message", "message", "meta"])
        if what == "comp":
            _add(rng, builders[rng.randrange(ranks)], Kind.COMP, duration_ns=rng.choice([0, 1, 7, 40, 100]))
        elif what == "meta":
            _add(rng, builders[rng.randrange(ranks)], Kind.METADATA)
        elif what == "coll":
            name = rng.choice([None, "g0", "g1", "g2"])
            call = {"collective": rng.choice(KINDS), "in_bytes": rng.choice([0, 8, 64, 100]), "group": name}
            for r in groups[name] if name else range(ranks):
                if not (broken and rng.random() < 0.02):
                    _add(rng, builders[r], Kind.COLL, **call)
        else:
            src, dst = rng.randrange(ranks), rng.randrange(ranks)
            size, tag = rng.choice([0, 16, 80]), rng.choice([-1, 0, 1])
            parts = [(src, {"kind": Kind.SEND, "dst": dst}), (dst, {"kind": Kind.RECV, "src": src})]
            for r, row in parts if rng.random() < 0.7 else parts[::-1]:
                if not (broken and rng.random() < 0.03):
                    _add(rng, builders[r], tag=tag, in_bytes=size, **row)
    if rng.random() < 0.1:
        del groups["g1"]  # then nobody knows its members
    job = job_of("random", builders, groups)
    if rng.random() < 0.2:
        trace = job.traces[-1]
        slower = np.where(trace.kind == Kind.COMP, trace.duration_ns + 5, trace.duration_ns)
        job = job.replace(values={ranks - 1: {"duration_ns": slower}})
    return job.replace(timing=_timing(rng, job)) if rng.random() < 0.3 else job


def _add(rng: random.Random, b: TraceBuilder, kind: Kind, **row: Any) -> None:
    before = range(max(0, len(b) - 6), len(b))
    data = [d for d in before if rng.random() < 0.2]
    ctrl = [d for d in before if rng.random() < 0.12]
    if rng.random() < 0.3:
        row["priority"] = rng.randrange(3)
    b.add(kind, data=data, ctrl=ctrl, **where(rng), **row)


def _timing(rng: random.Random, job: Job) -> Timing:
    starts = [np.array([rng.randrange(50) for _ in range(len(t))], np.int64) for t in job.traces]
    return Timing(
        origin=Origin.MEASURED,
        start_ns=tuple(starts),
        end_ns=tuple(s + 1 for s in starts),
        block_of=np.arange(len(starts), dtype=np.int32),
        clock_offset_ns=np.zeros(len(starts), np.int64),
    )


def random_options(rng: random.Random, job: Job, **fixed: Any) -> Options:
    given: dict[str, Any] = {
        "policy": rng.choice(list(Policy)),
        "eager_bytes": rng.choice([None, 0, 20]),
        "concurrent_network": rng.random() < 0.3,
        "overlap": rng.choice([Overlap(), Overlap(), Overlap(compute=1.25, communication=1.5), Overlap(compute=2.0)]),
    }
    if rng.random() < 0.3:
        given["slow_ranks"] = {rng.choice(job.ranks.tolist()): rng.choice([0.5, 1.7])}
    return Options(**given | fixed)


def symmetric_job(rng: random.Random) -> Job:
    """Ranks that run one or two programs, folded: rings of messages, groups of neighbours and of equals; now and then
    one rank is different."""
    width = rng.choice([1, 2, 4])
    ranks = width * rng.randint(1, 3) * 2
    programs = [_program(rng)]
    if rng.random() < 0.5:  # the same communication after other compute
        programs.append([(w, v + 10 if w == "comp" else v, lane, deps) for w, v, lane, deps in programs[0]])
    builders = []
    groups = {f"row{i}": list(range(i * width, (i + 1) * width)) for i in range(ranks // width)}
    groups |= {f"col{i}": list(range(i, ranks, width)) for i in range(width)}
    odd = rng.randrange(ranks) if rng.random() < 0.3 else -1
    for r in range(ranks):
        b = TraceBuilder()
        program = programs[(r // width) % 2 % len(programs)]
        for number, (what, value, lane, deps) in enumerate(program):
            data = [number - d for d in deps if number - d >= 0]
            if what == "comp":
                b.add(Kind.COMP, data=data, duration_ns=value + (3 if r == odd else 0), **lane)
            elif what == "coll":
                group = [None, f"row{r // width}", f"col{r % width}"][value % 3]
                b.add(Kind.COLL, data=data, collective=KINDS[value % 5], in_bytes=64, group=group, **lane)
            elif what == "send":
                b.add(Kind.SEND, data=data, dst=(r + value) % ranks, tag=value, in_bytes=30, **lane)
            else:
                b.add(Kind.RECV, data=data, src=(r - value) % ranks, tag=value, in_bytes=30, **lane)
        builders.append(b)
    parts = [b.part(r, groups) for r, b in enumerate(builders)]
    if rng.random() < 0.2 and ranks > 2:
        del parts[rng.randrange(ranks)]  # a job that holds some ranks of its world
    return assemble("symmetric", parts, world_size=ranks)


def _program(rng: random.Random) -> list[tuple[str, int, dict[str, Any], list[int]]]:
    program = []
    for _ in range(rng.randint(1, 5)):
        deps = [d for d in (1, 2, 3) if rng.random() < 0.5]
        what = rng.choice(["comp", "comp", "coll", "message"])
        value = rng.randrange(1, 6)
        if what == "message":
            program.append(("send", value, where(rng), deps))
            program.append(("recv", value, where(rng), deps[:1]))
        else:
            program.append((what, value * (20 if what == "comp" else 1), where(rng), deps))
    return program

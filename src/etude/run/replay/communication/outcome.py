"""The result of a replay of communication: the run and its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from etude.kernels.arrays import I64
from etude.model.job import Job
from etude.model.run import Run
from etude.model.schema import UNKNOWN
from etude.model.timing import Origin, Timing
from etude.run.replay.communication.processes import ProcessResult
from etude.run.replay.program import CommKind, Program, StepKind


def communication_run(job: Job, programs: Sequence[Program], results: Sequence[ProcessResult]) -> Run:
    """The job with the times of the iteration with the median duration. Ranks without a process, and nodes that were
    not played, have no times."""
    middle = _middle(results)
    first = min(int(r.start_ns[middle].min(initial=1 << 62)) for r in results)
    starts, ends = [], []
    by_rank = {r.rank: (p, r) for p, r in zip(programs, results, strict=True)}
    for rank in job.ranks.tolist():
        nodes = len(job.trace(rank))
        start, end = np.full(nodes, UNKNOWN, np.int64), np.full(nodes, UNKNOWN, np.int64)
        if rank in by_rank:
            program, result = by_rank[rank]
            rows, node = _played(program)
            start[node] = result.start_ns[middle][rows] - first
            end[node] = np.maximum(result.end_ns[middle][rows] - first, start[node])
        starts.append(start)
        ends.append(end)
    timing = Timing(
        origin=Origin.REPLAYED,
        start_ns=tuple(starts),
        end_ns=tuple(ends),
        block_of=np.arange(len(starts), dtype=np.int32),
        clock_offset_ns=np.zeros(len(starts), np.int64),
        aligned=True,
        partial=True,
    )
    return Run(replace(job, timing=timing, provenance=dict(job.provenance) | {"tool": "etude replay"}), timing)


def _middle(results: Sequence[ProcessResult]) -> int:
    slowest = np.max([r.wall_ns for r in results], axis=0)
    return int(np.argsort(slowest, kind="stable")[len(slowest) // 2])


def _played(program: Program) -> tuple[I64, I64]:
    """The calls that the program issues, and their nodes."""
    steps = program.steps
    here = steps.kind == StepKind.COMM
    return steps.row[here], steps.node[here].astype(np.int64)


def communication_figures(
    programs: Sequence[Program], results: Sequence[ProcessResult], planned: Sequence[Program]
) -> dict[str, Any]:
    """The data that `etude replay communication JOB --json` prints. `planned`: the programs before ranks were left
    out."""
    steps = max((int(p.about.get("steps", 1)) for p in programs), default=1)
    slowest = np.max([r.wall_ns for r in results], axis=0) // steps
    unprofiled = [p.about["unprofiled_step_ns"] for p in programs if p.about.get("unprofiled_step_ns")]
    recorded = max((int(p.about.get("recorded_step_ns", -1)) for p in programs), default=-1)
    calls = sum(len(p.comms.kind) for p in planned)
    played = sum(len(_played(p)[0]) for p in programs)
    work = sum(_work(p) for p in planned)
    notes, left_out = Counter[str](), Counter[str]()
    for result, program in zip(results, programs, strict=True):
        notes.update(result.about["notes"])
        left_out.update(program.about.get("shrunk", {}).get("left_out", {}))
    checks = [r.about["verified"] for r in results if r.about["verified"] is not None]
    shrunk = next((p.about["shrunk"] for p in programs if "shrunk" in p.about), None)
    return {
        "step_ns": {
            "recorded": recorded if recorded > 0 else None,
            "replayed": int(np.median(slowest)),
            "unprofiled": max(unprofiled, default=None),
            "iterations": slowest.tolist(),
        },
        "coverage": {
            "time": sum(_work(p) for p in programs) / work if work else None,
            "count": played / calls if calls else None,
        },
        "stand_ins": [{"name": name, "count": count} for name, count in sorted(left_out.items())],
        "ranks": [r.rank for r in results],
        "sizes": shrunk["sizes"] if shrunk else "as recorded",
        "groups": shrunk["groups"] if shrunk else [],
        "calls": played,
        "verified": {key: sum(check[key] for check in checks) for key in ("calls", "by_flight_recorder", "at_call")}
        | {"differences": [text for check in checks for text in check["differences"]]}
        if checks
        else None,
        "expressed": dict(notes),
        "collectives": _table(programs, results),
        "processes": [
            {"rank": r.rank, "ready_s": round(r.about["ready_s"], 3), "peak_rss_bytes": r.about["peak_rss_bytes"]}
            for r in results
        ],
    }


def _work(program: Program) -> int:
    steps = program.steps
    return int(steps.work_ns[steps.kind == StepKind.COMM].sum())


def _table(programs: Sequence[Program], results: Sequence[ProcessResult]) -> list[dict[str, Any]]:
    """One row for each kind of call, group size and message size: the number of calls, and their median time recorded
    and replayed."""
    found: dict[tuple[str, int, int], list[tuple[int, float]]] = {}
    for program, result in zip(programs, results, strict=True):
        comms, steps = program.comms, program.steps
        took = np.median(result.end_ns - result.start_ns, axis=0)
        for at in np.flatnonzero(steps.kind == StepKind.COMM).tolist():
            row = int(steps.row[at])
            group = int(comms.group[row])
            message = comms.kind[row] >= CommKind.SEND
            members = 2 if message else len(programs) if group < 0 else len(program.groups[group])
            size = max(int(comms.in_bytes[row]), int(comms.out_bytes[row]))
            key = CommKind(int(comms.kind[row])).name.lower(), members, size
            found.setdefault(key, []).append((int(steps.work_ns[at]), float(took[row])))
    return [
        {
            "call": kind,
            "ranks": members,
            "bytes": size,
            "count": len(times),
            "recorded_us": round(float(np.median([t[0] for t in times])) / 1e3, 1),
            "replayed_us": round(float(np.median([t[1] for t in times])) / 1e3, 1),
        }
        for (kind, members, size), times in sorted(found.items())
    ]

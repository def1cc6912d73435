"""How much of a recording a program plays with the recorded operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from etude.run.replay.program import Program, StepKind


def coverage(program: Program, failed: Mapping[int, str] | None = None) -> dict[str, Any]:
    """`time`: the part of the recorded operator time (kernel time if a device was recorded) that is played by the
    operators themselves; None if no times were recorded. `count`: the part of the operators. `failed`: rows of `calls`
    that could not be called, and why. Waiting and stand-ins never count as covered."""
    steps, failed = program.steps, failed or {}
    lost = np.isin(steps.row, list(failed)) & (steps.kind == StepKind.CALL)
    real = np.isin(steps.kind, (StepKind.CALL, StepKind.COMM)) & ~lost
    other = (steps.kind == StepKind.STAND_IN) | lost
    total_ns, count = int(steps.work_ns[real | other].sum()), int((real | other).sum())
    timed = total_ns > 0 and program.about.get("source") == "recorded"
    return {
        "time": float(steps.work_ns[real].sum() / total_ns) if timed else None,
        "count": float(real.sum() / count) if count else 1.0,
        "stand_ins": stand_ins(program, failed),
    }


def stand_ins(program: Program, failed: Mapping[int, str]) -> list[dict[str, Any]]:
    """What is replaced by stand-ins, the most frequent first: name, count and, for operators that failed, `why`."""
    steps = program.steps
    rows = steps.row[steps.kind == StepKind.STAND_IN].tolist()
    found = Counter((program.labels[int(program.stand_ins.label[row])], "") for row in rows)
    found.update((program.ops[int(program.calls.op[row])], why) for row, why in failed.items())
    return _listed(found)


def _listed(found: Counter[tuple[str, str]]) -> list[dict[str, Any]]:
    """An entry for each name, with its most frequent reason if it has one."""
    count: Counter[str] = Counter()
    reason: dict[str, str] = {}
    for (name, why), times in found.most_common():
        count[name] += times
        reason.update({name: why} if why and name not in reason else {})
    return [
        {"name": name, "count": times} | ({"why": reason[name]} if name in reason else {})
        for name, times in count.most_common()
    ]


def of_ranks(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Coverage of several ranks: the minimum of each figure, and the stand-ins of all ranks."""
    names: Counter[tuple[str, str]] = Counter()
    for one in found:
        for entry in one["stand_ins"]:
            names[entry["name"], entry.get("why", "")] += entry["count"]
    times = [one["time"] for one in found if one["time"] is not None]
    return {
        "time": min(times, default=None),
        "count": min((one["count"] for one in found), default=1.0),
        "stand_ins": _listed(names),
    }

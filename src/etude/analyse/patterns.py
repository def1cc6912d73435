"""Frequent patterns: sequences of kernels that repeat on a stream, by the time they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from etude.analyse.device_work import on_device
from etude.analyse.grouping import table
from etude.analyse.kernels import taken_in_turn
from etude.base.errors import UsageError
from etude.model.run import Run, RunPart
from etude.model.use import uses

__all__ = ["patterns"]


LONGEST = 8


def patterns(run: Run, *, longest: int = LONGEST, top: int = 50) -> pa.Table:
    """One row per sequence of 2 to `longest` consecutive kernels on a stream that occurs at least twice: length, count,
    time_ns (of the kernels in it, over all ranks), mean_ns, names. The most time first; a sequence that only occurs
    inside a longer one is left out. Occurrences do not overlap: in A A A A the pair A A occurs twice, as often as a
    fused kernel would run."""
    if longest < 2:
        raise UsageError(f"a sequence of {longest} is too short", hint="2 or more")
    found: dict[tuple[str, ...], list[int]] = {}
    for part in run.parts():
        for names, count, time in _of_run(part, longest):
            entry = found.setdefault(names, [0, 0])
            entry[0] += count * len(part.at)
            entry[1] += time * len(part.at)
    kept = _maximal({names: (count, time) for names, (count, time) in found.items()})
    rows: list[dict[str, Any]] = [
        {"length": len(n), "count": c, "time_ns": t, "mean_ns": t / c, "names": list(n)} for n, (c, t) in kept.items()
    ]
    rows.sort(key=lambda row: (-row["time_ns"], -row["length"]))
    kinds = {"length": pa.int64(), "count": pa.int64(), "time_ns": pa.int64(), "mean_ns": pa.float64()}
    return table(rows[:top], kinds | {"names": pa.list_(pa.string())})


def _of_run(part: RunPart, longest: int) -> list[tuple[tuple[str, ...], int, int]]:
    """(names, count, time) of each sequence that comes at least twice on the streams of one rank."""
    rows = np.flatnonzero(on_device(part, uses(part.trace)))
    rows = rows[np.lexsort((part.start_ns[rows], part.trace.lane[rows]))]
    codes, words = part.trace.coded("name")
    code, lane = codes[rows].astype(np.int64), part.trace.lane[rows]
    time = np.concatenate([[0], np.cumsum(part.end_ns[rows] - part.start_ns[rows])])
    at, which = np.arange(len(rows)), code + 1  # sequences of one: where each starts, and which it is
    found = []
    for length in range(2, longest + 1):
        longer = np.flatnonzero(at + length <= len(rows))
        longer = longer[lane[at[longer] + length - 1] == lane[at[longer]]]
        key = which[longer] * (len(words) + 1) + code[at[longer] + length - 1] + 1
        at = at[longer]
        first, which, often = np.unique(key, return_index=True, return_inverse=True, return_counts=True)[1:]
        which, start = which.reshape(-1), at[first]
        repeated = often[which] > 1  # a repeated sequence has only repeated parts
        count, total = taken_in_turn(at[repeated], which[repeated], length, time, len(first))
        for i in np.flatnonzero(count > 1).tolist():
            names = tuple(words[c] if c >= 0 else "" for c in code[start[i] : start[i] + length].tolist())
            found.append((names, int(count[i]), int(total[i])))
        at, which = at[repeated], which[repeated]
        if not len(at):
            break
    return found


def _maximal(found: dict[tuple[str, ...], tuple[int, int]]) -> dict[tuple[str, ...], tuple[int, int]]:
    """Drops sequences that occur no more often than a longer one that starts or ends with them."""
    covered = set()
    for names, (count, _) in found.items():
        covered |= {part for part in (names[1:], names[:-1]) if part in found and found[part][0] <= count}
    return {names: value for names, value in found.items() if names not in covered}

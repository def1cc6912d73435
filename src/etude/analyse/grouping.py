"""Times grouped by common properties of nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.stacks import stacks
from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.model.distinct import distinct
from etude.model.job import Job
from etude.model.run import RunPart
from etude.model.schema import UNKNOWN
from etude.model.use import Use

TEXTS: Final = {"name": "name", "module": "module", "phase": "phase", "shapes": "in_shapes", "types": "in_types"}
NUMBERS: Final = ("step", "micro_batch", "stream", "thread")
BY: Final = (*TEXTS, *NUMBERS, "kind", "rank", "stack")
"""What nodes can be grouped by; `stack:3` is the three innermost frames."""
_STACK: Final = re.compile(r"stack(?::(\d{1,4}))?")


class Tally:
    """Sums by key, over runs: count, total, minimum, maximum, and sums of squares for the spread."""

    def __init__(self, by: Sequence[str], values: Sequence[str]) -> None:
        unknown = [name for name in by if name not in BY and not _STACK.fullmatch(name)]
        if unknown or not by:
            raise UsageError(f"nodes cannot be grouped by `{', '.join(unknown)}`", hint=f"known: {', '.join(BY)}")
        self.by, self.values = tuple(by), tuple(values)
        self.found: dict[tuple[Any, ...], list[Any]] = {}

    def add(
        self, part: RunPart, rows: I64, columns: Mapping[str, I64], kinds: NDArray[np.uint8], ranks: list[int]
    ) -> None:
        """Adds these rows of a part; `columns` are aligned with the rows. A part counts once for each of its ranks."""
        if not len(rows):
            return
        labels = [self._labels(part, rows, kinds, name) for name in self.by if name != "rank"]
        unique, which = distinct([code for code, _ in labels] or [np.zeros(len(rows), np.int64)])
        order = np.argsort(which, kind="stable")
        first = np.searchsorted(which[order], np.arange(len(unique)))
        count = np.diff(np.append(first, len(rows)))
        sums = {name: _sums(values[order], first) for name, values in columns.items()}
        for number, code in enumerate(unique.tolist()):
            texts = [words[c] if words is not None else c for c, (_, words) in zip(code, labels, strict=False)]
            entry = [int(count[number]), *(_scalars(sums[name], number) for name in self.values)]
            self._put(texts, entry, ranks)

    def _put(self, texts: list[Any], entry: list[Any], ranks: list[int]) -> None:
        for rank in ranks if "rank" in self.by else [-1]:
            rest = iter(texts)
            key = tuple(rank if name == "rank" else next(rest) for name in self.by)
            weight = 1 if "rank" in self.by else len(ranks)
            old = self.found.setdefault(key, [0, *([0, None, None, 0.0] for _ in self.values)])
            old[0] += weight * entry[0]
            for mine, (total, least, most, squares) in zip(old[1:], entry[1:], strict=True):
                mine[0] += weight * total
                mine[1] = least if mine[1] is None else min(mine[1], least)
                mine[2] = most if mine[2] is None else max(mine[2], most)
                mine[3] += weight * squares

    def _labels(
        self, part: RunPart, rows: I64, kinds: NDArray[np.uint8], name: str
    ) -> tuple[I64, list[str | int | None] | None]:
        if name == "kind":
            return kinds[rows].astype(np.int64), [use.name.lower() for use in Use]
        if found := _STACK.fullmatch(name):
            code, stack = stacks(part.trace, int(found[1] or 0))
            return code[rows].astype(np.int64), [*stack, None]
        if name in TEXTS:
            codes, words = part.trace.coded(TEXTS[name])
            return codes[rows].astype(np.int64), [*words, None]  # -1, no text, is the last
        values = getattr(part.trace, name)[rows]
        return np.where(values == UNKNOWN, -1, values), None

    def rows(self) -> list[dict[str, Any]]:
        """One row per key: the key, count, and for each value `total_`, `mean_`, `min_`, `max_`, `std_`."""
        found = []
        for key, (count, *sums) in self.found.items():
            row = dict(zip(self.by, key, strict=True)) | {"count": count}
            for name, (total, least, most, squares) in zip(self.values, sums, strict=True):
                mean = total / count
                spread = max(squares / count - mean * mean, 0.0)
                std = float(np.sqrt(spread * count / (count - 1))) if count > 1 else 0.0
                row |= {f"total_{name}": total, f"mean_{name}": mean, f"min_{name}": least, f"max_{name}": most}
                row[f"std_{name}"] = std
            found.append(row)
        return found


def _sums(values: I64, first: I64) -> list[NDArray[Any]]:
    real = values.astype(np.float64)
    return [
        np.add.reduceat(values, first),
        np.minimum.reduceat(values, first),
        np.maximum.reduceat(values, first),
        np.add.reduceat(real * real, first),
    ]


def _scalars(sums: list[NDArray[Any]], number: int) -> tuple[int, int, int, float]:
    return int(sums[0][number]), int(sums[1][number]), int(sums[2][number]), float(sums[3][number])


def table(rows: list[dict[str, Any]], names: Mapping[str, Any]) -> pa.Table:
    """Rows as a table with these columns, also if there are none."""
    return pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in names.items()})


def key_kinds(by: Sequence[str]) -> dict[str, Any]:
    texts = {name for name in by if name in TEXTS or name == "kind" or _STACK.fullmatch(name)}
    return {name: pa.string() if name in texts else pa.int64() for name in by}


def by_rank(job: Job, rows: list[tuple[I64, dict[str, Any]]], names: dict[str, Any]) -> pa.Table:
    """A table with one row per rank: `rows` pairs positions of ranks with their common values."""
    which = np.full(len(job.ranks), len(rows))
    for number, (at, _) in enumerate(rows):
        which[at] = number
    found: list[dict[str, Any]] = [*(values for _, values in rows), {}]
    columns = {"rank": pa.array(job.ranks, pa.int32())}
    for name, kind in names.items():
        columns[name] = pa.array([row.get(name) for row in found], kind).take(pa.array(which))
    return pa.table(columns)


def pattern_of(text: str) -> re.Pattern[str]:
    """A pattern that a user gave."""
    try:
        return re.compile(text)
    except re.error as problem:
        raise UsageError(f"`{text}` is not a regular expression: {problem}") from None

"""Rows of tables as slices of a timeline: passes of replicas, requests, states of jobs, whatever has a start and an
end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import pyarrow as pa

from etude.kernels.arrays import I32, I64, U8
from etude.model.schema import LaneKind
from etude.tell.studio.building import BINS, COLUMNS, Builder
from etude.tell.view.slices import Sort

SPANS: Final = (("start", "end"), ("start", "finish"), ("arrival", "finish"))
"""Columns of a start and an end, in `_ns` or `_s`."""
PHASES: Final = (
    ("waits", "arrival_s", "scheduled_s"),
    ("first token", "scheduled_s", "first_token_s"),
    ("further tokens", "first_token_s", "finish_s"),
)
"""Parts of a served request."""
COLOURS: Final = (Sort.COMPUTE, Sort.COMMUNICATION, Sort.MEMORY, Sort.HOST, Sort.COPY, Sort.OTHER)
"""By the time that a name has, the longest first."""
OWNERS: Final = ("replica", "rank", "instance")
"""Columns that say who a row is about."""
NAMES: Final = ("state", "task", "name", "kind")


class TableSlices(NamedTuple):
    """Slices that one table gives."""

    unit: list[str]
    """Who each is about."""
    label: str
    start_ns: I64
    end_ns: I64
    name: list[str]


@dataclass(slots=True)
class TableProgram:
    """Sort and name of the slices of a unit."""

    sort: U8
    name: I32


def slices_in(tables: Mapping[str, pa.Table]) -> list[TableSlices]:
    """The slices of all tables that have a start and an end."""
    found = []
    for name, table in tables.items():
        columns = set(table.schema.names)
        prefix, label = name.rpartition("_")[::2]
        who = _owners(table, prefix)
        if {"arrival_s", "first_token_s", "finish_s"} <= columns:
            for phase, first, last in PHASES:
                first = first if first in columns else "arrival_s"
                found.append(_slices(table, who, label, (first, last, 1e9), [phase] * len(table)))
        elif (span := _span(columns)) is not None:
            found.append(_slices(table, who, label, span, _names(table, label)))
    return [one for one in found if len(one.start_ns)]


def _span(columns: set[str]) -> tuple[str, str, float] | None:
    for first, last in SPANS:
        for unit, scale in (("ns", 1.0), ("s", 1e9)):
            if {f"{first}_{unit}", f"{last}_{unit}"} <= columns:
                return f"{first}_{unit}", f"{last}_{unit}", scale
    return None


def _owners(table: pa.Table, prefix: str) -> list[str]:
    for column in OWNERS:
        if column in table.schema.names:
            return [f"{prefix} {column} {value}".strip() for value in table[column].to_pylist()]
    return [prefix or "all"] * len(table)


def _names(table: pa.Table, label: str) -> list[str]:
    columns = table.schema.names
    if {"prompt_tokens", "decode"} <= set(columns):
        prompts, tokens = (table[name].to_numpy() > 0 for name in ("prompt_tokens", "decode"))
        words = np.array(["empty pass", "tokens", "prompts", "prompts and tokens"], object)
        return list(words[2 * prompts + tokens])
    for column in NAMES:
        if column in columns:
            return [str(value) for value in table[column].to_pylist()]
    return [label] * len(table)


def _slices(table: pa.Table, who: list[str], label: str, span: tuple[str, str, float], names: list[str]) -> TableSlices:
    """Rows whose start and end are known."""
    first, last, scale = span
    start, end = (table[name].to_numpy(zero_copy_only=False).astype(np.float64) * scale for name in (first, last))
    known = np.flatnonzero(np.isfinite(start) & np.isfinite(end) & (end >= start) & (start >= 0))
    if scale == 1.0:  # whole ns, beyond what a float holds
        times = [table[name].take(known).to_numpy(zero_copy_only=False).astype(np.int64) for name in (first, last)]
    else:
        times = [np.round(values[known]).astype(np.int64) for values in (start, end)]
    at = known.tolist()
    return TableSlices([who[i] for i in at], label, times[0], times[1], [names[i] for i in at])


def build_tables(found: list[TableSlices], folder: Path, about: dict[str, Any]) -> None:
    """Writes the index of the slices of tables: a unit is what a rank is in a run."""
    units = list(dict.fromkeys(name for one in found for name in sorted(set(one.unit), key=_by_number)))
    labels = list(dict.fromkeys(one.label for one in found))
    last = max((int(one.end_ns.max()) for one in found), default=0)
    first = min((int(one.start_ns.min()) for one in found), default=0)
    builder = Builder(folder, -(-(last - first + 1) // BINS))
    colour = _colours(found)
    files: dict[str, BinaryIO] = {name: (folder / f"{name}.raw").open("wb") for name in COLUMNS}
    lanes = [(LaneKind.THREAD, number) for number in range(len(labels))]
    try:
        for number, unit in enumerate(units):
            parts = [(one, np.flatnonzero(np.array(one.unit, object) == unit)) for one in found]
            lane = np.concatenate([np.full(len(at), labels.index(one.label), np.int32) for one, at in parts])
            start, end = (
                np.concatenate([getattr(one, side)[at] for one, at in parts]) for side in ("start_ns", "end_ns")
            )
            words = [one.name[i] for one, at in parts for i in at.tolist()]
            codes = np.array([builder.names.setdefault(word, len(builder.names)) for word in words], np.int32)
            sorts = np.array([colour[word] for word in words], np.uint8)
            builder.programs[number] = TableProgram(sorts, codes)
            builder.add_slices(number, lane, lanes, (start, end, np.arange(len(lane), dtype=np.int32)), first, files)
    finally:
        for file in files.values():
            file.close()
    count = len(units)
    builder.write(
        about
        | {
            "ranks": list(range(count)),
            "units": units,
            "labels": labels,
            "sets": _sets(units),
            "part_of": list(range(count)),
            "trace_of": list(range(count)),
            "shift_ns": [0] * count,
            "bins_first_ns": [first] * count,
            "bins_width_ns": builder.width_ns,
        }
    )


def _sets(units: list[str]) -> dict[str, list[int]]:
    """Units by name, and those that differ in their number alone."""
    found: dict[str, list[int]] = {}
    for number, unit in enumerate(units):
        words = _by_number(unit)[0]
        for name in dict.fromkeys((unit, words, words.removesuffix(" replica"))):
            found.setdefault(name, []).append(number)
    return found


def _by_number(name: str) -> tuple[str, int]:
    words, _, number = name.rpartition(" ")
    return (words, int(number)) if number.isdecimal() else (name, 0)


def _colours(found: list[TableSlices]) -> dict[str, int]:
    """A colour for each name, the longest first."""
    total: dict[str, int] = {}
    for one in found:
        lasts = one.end_ns - one.start_ns
        names, codes = np.unique(np.array(one.name, object).astype(str), return_inverse=True)
        for name, took in zip(names.tolist(), np.bincount(codes, lasts).tolist(), strict=True):
            total[name] = total.get(name, 0) + int(took)
    ranked = sorted(total, key=lambda name: -total[name])
    return {name: int(COLOURS[at % len(COLOURS)]) for at, name in enumerate(ranked)}

"""Fault events as columns: drawn from rates with a seed, or read from a file. Policies do not change them."""

from __future__ import annotations

import math
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.files import csv_rows
from etude.base.results import TableSchema, read_table
from etude.base.shapes import AMOUNT, COUNT, FLAG, SECONDS, TEXT, of_each
from etude.kernels.arrays import F64, I64
from etude.world.fleet.faults import Effect, FaultKind, Faults, Scope, units_of

MOST: Final = 5_000_000
EFFECTS: Final = tuple(e for e in Effect if e)
SCOPES: Final = tuple(s for s in Scope if s)
TABLE: Final = TableSchema(
    of_each(SECONDS.or_none(), "time_s duration_s notice_s detect_s")
    | of_each(TEXT.or_none(), "name effect scope group")
    | of_each(COUNT.or_none(), "node nodes")
    | {"factor": AMOUNT.or_none(), "hit": FLAG.or_none()}
)
"""Of a Parquet file."""
COLUMNS: Final = ("time_s", "name", "effect", "scope", "node", "nodes", "duration_s", "factor", "notice_s", "detect_s")


class FleetEvents(NamedTuple):
    """In order of time; those of one instant in order of their kinds."""

    time_ns: I64
    kind: I64
    """Row of `names`."""
    effect: I64
    scope: I64
    node: I64
    """The first that is hit."""
    nodes: I64
    """Number of neighbouring nodes; 0: only processes."""
    duration_ns: I64
    """Until the nodes are back, or the slow time is over."""
    factor: F64
    notice_ns: I64
    detect_ns: I64
    """-1: from the policy."""
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.time_ns)


def draw(faults: Faults, *, nodes: int, gpus_per_node: int, horizon_ns: int, seed: int = 0) -> FleetEvents:
    """Events on this many nodes until the horizon. The draws of one kind do not depend on the other kinds."""
    parts = [
        _drawn(kind, number, nodes, gpus_per_node, horizon_ns, np.random.default_rng((seed, number)))
        for number, kind in enumerate(faults.kinds)
    ]
    names = tuple(kind.name for kind in faults.kinds)
    if not parts:
        return _events([np.empty((0, 10))], names)
    return _events(parts, names)


def _drawn(kind: FaultKind, number: int, nodes: int, gpus_per_node: int, horizon_ns: int, rng: Any) -> F64:
    if kind.mtbf_ns:
        expected = units_of(kind, nodes * gpus_per_node, nodes) / kind.mtbf_ns * horizon_ns
        if expected > MOST:
            raise UsageError(f"fault `{kind.name}`: {expected:,.0f} events are too many", hint="use a longer mtbf")
        times = np.sort(rng.random(rng.poisson(expected)) * horizon_ns)
    else:
        if kind.times > MOST:
            raise UsageError(f"fault `{kind.name}`: {kind.times:,} events are too many", hint="fewer `times`")
        times = kind.at_ns + kind.every_ns * np.arange(kind.times, dtype=np.float64)
        times = times[times < horizon_ns]
    count, struck = len(times), kind.nodes_of(nodes)
    groups = max(nodes // struck, 1) if struck else 1
    if kind.skew:
        weight = (1.0 + rng.permutation(groups)) ** -kind.skew
        first = rng.choice(groups, count, p=weight / weight.sum()) * struck
    else:
        first = rng.integers(0, groups, count) * struck
    duration = kind.duration_ns if kind.effect != Effect.STOP else kind.repair_ns
    lasting = np.full(count, duration)
    if kind.repair_spread == "exponential":
        lasting = rng.exponential(duration, count)
    out = np.empty((count, 10))
    detect = -1.0 if kind.detect_ns is None else kind.detect_ns
    constant = {
        1: number, 2: EFFECTS.index(kind.effect), 3: SCOPES.index(kind.scope), 5: struck, 7: kind.factor,
        8: kind.notice_ns, 9: detect,
    }  # fmt: skip
    for column, value in constant.items():
        out[:, column] = value
    out[:, 0], out[:, 4], out[:, 6] = times, first if struck else -1, lasting
    return out


def _events(parts: list[F64], names: tuple[str, ...]) -> FleetEvents:
    rows = np.concatenate(parts)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    time, kind, effect, scope, node, nodes, duration, _, notice, detect = (
        np.round(rows[:, k]).astype(np.int64) for k in range(10)
    )
    return FleetEvents(time, kind, effect, scope, node, nodes, duration, rows[:, 7], notice, detect, names)


def given_up(events: FleetEvents, now_ns: int) -> FleetEvents:
    """The events with one more: nodes that a job gives up of its own accord."""
    row = {
        "time_ns": now_ns,
        "kind": len(events.names),
        "effect": EFFECTS.index(Effect.PREEMPT),
        "scope": SCOPES.index(Scope.NODE),
        "node": 0,
        "nodes": 1,
        "duration_ns": 0,
        "factor": 1.0,
        "notice_ns": 0,
        "detect_ns": 0,
    }
    columns: dict[str, Any] = {name: np.append(getattr(events, name), value) for name, value in row.items()}
    return FleetEvents(**columns, names=(*events.names, "lent"))


def read_events(path: str | PathLike[str], *, nodes: int) -> FleetEvents:
    """A CSV, or the `events.parquet` of a fleet: `time_s` and those other columns that differ from the defaults."""
    rows = _rows(path)
    names: dict[str, int] = {}
    out = np.empty((len(rows), 10))
    for number, row in enumerate(rows):
        where = f"{path}: row {number}"
        effect = _one_of(row.get("effect") or "stop", EFFECTS, "effect", where)
        scope = _one_of(row.get("scope") or "node", SCOPES, "scope", where)
        struck = 0 if SCOPES[scope] == Scope.PROCESS else int(_figure(row, "nodes", where, 1))
        first = int(_figure(row, "node", where, 0)) if struck else -1
        if struck and not 0 <= first <= first + struck <= nodes:
            raise UsageError(f"node {first} + {struck} of {nodes}", where=where, hint="nodes count from 0")
        name = str(row.get("name") or EFFECTS[effect])
        detect = row.get("detect_s")
        factor = _figure(row, "factor", where, 1.0)
        if EFFECTS[effect] == Effect.SLOW and factor <= 1:
            raise UsageError(f"a factor of {factor:g} is not slower", where=where, hint="factor 1.5")
        out[number] = (
            _figure(row, "time_s", where) * 1e9, names.setdefault(name, len(names)), effect, scope, first, struck,
            _figure(row, "duration_s", where, 0.0) * 1e9, factor, _figure(row, "notice_s", where, 0.0) * 1e9,
            -1.0 if detect in (None, "") else _figure(row, "detect_s", where) * 1e9,
        )  # fmt: skip
    return _events([out], tuple(names))


def _rows(path: str | PathLike[str]) -> list[dict[str, Any]]:
    if not str(path).endswith(".parquet"):
        columns, rows = csv_rows(path)
        _check_columns(columns, str(path))
        return rows
    table = read_table(Path(path), TABLE, "a table of events", hint=f"known: {', '.join(COLUMNS)}")
    _check_columns(table.column_names, str(path))
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def _check_columns(columns: list[str], where: str) -> None:
    if "time_s" not in columns:
        raise UsageError("has no column `time_s`", where=where, hint=f"known: {', '.join(COLUMNS)}")
    known = {*COLUMNS, "hit", "group"}
    if unknown := [name for name in columns if name not in known]:
        raise UsageError(f"unknown column `{unknown[0]}`", where=where, hint=f"known: {', '.join(COLUMNS)}")


def _one_of(text: str, known: tuple[Any, ...], what: str, where: str) -> int:
    if text not in known:
        raise UsageError(f"unknown {what} `{text}`", where=where, hint=f"known: {', '.join(known)}")
    return known.index(text)


def _figure(row: dict[str, Any], name: str, where: str, usual: float | None = None) -> float:
    text = row.get(name)
    if text in (None, "") and usual is not None:
        return usual
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < 9e9:
        raise UsageError(f"{name}: `{text}` is not a valid value", where=where, hint="0 or more")
    return value


def is_events(text: str) -> bool:
    """Whether `--faults` names a file of events."""
    return text.endswith((".csv", ".parquet")) and Path(text).is_file()


def event_table(events: FleetEvents, hit: NDArray[np.bool_] | None = None) -> pa.Table:
    """As `read_events` reads them; `hit`: whether the job was affected."""
    detect = pa.array(events.detect_ns / 1e9, pa.float64(), mask=events.detect_ns < 0)
    columns: dict[str, Any] = {
        "time_s": events.time_ns / 1e9,
        "name": pa.array([events.names[k] for k in events.kind], pa.string()),
        "effect": pa.array([str(EFFECTS[k]) for k in events.effect], pa.string()),
        "scope": pa.array([str(SCOPES[k]) for k in events.scope], pa.string()),
        "node": pa.array(events.node, pa.int64(), mask=events.node < 0),
        "nodes": events.nodes,
        "duration_s": events.duration_ns / 1e9,
        "factor": events.factor,
        "notice_s": events.notice_ns / 1e9,
        "detect_s": detect,
    }
    if hit is not None:
        columns["hit"] = hit
    return pa.table(columns)

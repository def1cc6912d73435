"""A run at a glance: ranks by steps, and what is wrong in it, each with its place in the timeline."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from etude.analyse.steps import steps
from etude.tell.studio.index import TimelineIndex
from etude.tell.studio.session import StudioRun
from etude.tell.view.slices import Sort

MEASURES: Final = {
    "time": ("span_ns",),
    "waiting": ("exposed_comm_ns", "idle_ns"),
    "compute": ("compute_ns",),
    "communication": ("comm_ns",),
    "idle": ("idle_ns",),
}
"""What a cell of the map shows -> measures of `etude trend` that are added up."""
WINDOWS: Final = 40
"""Windows of a run whose nodes name no step."""


def heat_map(one: StudioRun) -> dict[str, Any]:
    """Ranks by steps: for each measure its values row by row (null: none), and each cell's place in the timeline."""

    def made() -> dict[str, Any]:
        table = steps(one.run())
        return _of_steps(one.index, table) if len(table) else _of_windows(one.index)

    found: dict[str, Any] = one.once("heat", made)
    command = f"etude trend {one.words}" if found["by"] == "step" else f"etude breakdown {one.words}"
    return found | {"command": command, "python": f"{one.python}; etude.steps(run)"}


def _of_steps(index: TimelineIndex, table: Any) -> dict[str, Any]:
    column = {name: table[name].to_numpy() for name in table.schema.names if name != "overlap_pct"}
    number, col = np.unique(column["step"], return_inverse=True)
    row = np.searchsorted(index.ranks, column["rank"])
    shift = index.shift_ns[row]
    shape = (len(index.ranks), len(number))

    def cells(values: Any) -> list[int | None]:
        filled = np.full(shape, -1, np.int64)
        filled[row, col] = values
        return [None if v < 0 else v for v in filled.ravel().tolist()]

    return {
        "by": "step",
        "columns": number.tolist(),
        "ranks": index.ranks.tolist(),
        "measures": {name: cells(sum(column[part] for part in parts)) for name, parts in MEASURES.items()},
        "first_ns": cells(column["start_ns"] + shift),
        "last_ns": cells(column["end_ns"] + shift),
    }


def _of_windows(index: TimelineIndex) -> dict[str, Any]:
    """Of a run without steps: windows of equal length, and what its busiest row does in each."""
    width = max(1, index.span_ns // WINDOWS)
    measures: dict[str, list[int | None]] = {"time": [], "compute": [], "communication": [], "waiting": []}
    first: list[int | None] = []
    bins_ns = index.head["bins_width_ns"]
    for at in range(len(index.ranks)):
        rows = index.rows_of(at)
        shares = np.asarray(index.bins[rows.start : rows.stop]).astype(np.float64)
        begin = index.head["bins_first_ns"][int(index.part_of[at])] + int(index.shift_ns[at])
        place = np.clip((begin + bins_ns * np.arange(shares.shape[1])) // width, 0, WINDOWS - 1)
        busy = np.zeros((WINDOWS, shares.shape[2]))
        np.add.at(busy, place, shares.max(axis=0, initial=0.0) * bins_ns / 65535)
        device = busy[:, [Sort.COMPUTE, Sort.COPY]].sum(axis=1)
        measures["time"] += [width] * WINDOWS
        measures["compute"] += device.astype(np.int64).tolist()
        measures["communication"] += busy[:, Sort.COMMUNICATION].astype(np.int64).tolist()
        measures["waiting"] += np.maximum(width - device, 0).astype(np.int64).tolist()
        first += [width * w for w in range(WINDOWS)]
    last = [None if v is None else v + width for v in first]
    return {
        "by": "window",
        "columns": list(range(WINDOWS)),
        "ranks": index.ranks.tolist(),
        "measures": measures,
        "first_ns": first,
        "last_ns": last,
    }


def findings(one: StudioRun) -> dict[str, Any]:
    """What `etude diagnose` finds, each with its ranks, its window of the timeline, and the command that has more."""
    from etude.analyse.diagnose import diagnose
    from etude.analyse.next_steps import command, next_step

    found = one.once("findings", lambda: diagnose(one.run()))
    heat = heat_map(one)
    rows = []
    for verdict in found:
        window = _place(heat, verdict.ranks, verdict.steps) if heat["by"] == "step" else None
        rows.append(
            verdict.record()
            | {"window": window or [0, one.index.span_ns], "next": next_step(verdict)}
            | {"command": command(verdict).replace("RUN", one.words)}
        )
    return {"findings": rows, "command": f"etude diagnose {one.words}", "python": one.python}


def _place(heat: dict[str, Any], ranks: tuple[int, ...], of: tuple[int, int] | None) -> list[int] | None:
    """From the first start to the last end of these steps on these ranks; one step of a finding of the whole run."""
    numbers = heat["columns"]
    first, last = of if of is not None else (numbers[len(numbers) // 2],) * 2
    cells = [
        heat["ranks"].index(rank) * len(numbers) + at
        for rank in ranks[:32]
        if rank in heat["ranks"]
        for at, number in enumerate(numbers)
        if first <= number <= last
    ]
    begins = [heat["first_ns"][c] for c in cells if heat["first_ns"][c] is not None]
    ends = [heat["last_ns"][c] for c in cells if heat["last_ns"][c] is not None]
    return [min(begins), max(ends)] if begins else None

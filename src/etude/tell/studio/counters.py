"""Values over time beside the rows of ranks: memory that is held, and power. A window has the lowest and the highest
value of each of its parts, so that no peak is lost."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.analyse.energy import rank_power
from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.model.memory import memory_levels
from etude.tell.studio.session import StudioRun
from etude.tell.studio.windows import position

COUNTERS: Final = {"memory": "bytes", "power": "W"}
MOST_PARTS: Final = 2_000
MOST_RANKS: Final = 64


def counters(one: StudioRun, name: str, ranks: list[int], window: tuple[int, int], parts: int) -> dict[str, Any]:
    """For each rank the lowest and highest value in each part of a window, its highest value over the run, and why a
    rank has none."""
    first, last = window
    if name not in COUNTERS or not 1 <= parts <= MOST_PARTS or last <= first:
        raise UsageError(f"there is no counter `{name}`", hint=f"known: {', '.join(COUNTERS)}")
    edges = np.linspace(first, last, parts + 1)
    series = []
    for rank in ranks[:MOST_RANKS]:
        shift = int(one.index.shift_ns[position(one.index, rank)])
        time, value = _series(one, name, rank)
        if len(time):
            low, high = lowest_highest(time + shift, value, edges)
            found = {"low": low.tolist(), "high": high.tolist(), "most": float(value.max())}
            series.append({"rank": rank, **found})
    words = one.words
    command = {"memory": f"etude memory {words}", "power": f"etude energy run {words}"}[name]
    python = {"memory": "etude.memory(run)", "power": "etude.energy(run)"}[name]
    return {
        "unit": COUNTERS[name],
        "series": series,
        "why": "" if series else "No node of these ranks says what memory it takes.",
        "command": command,
        "python": f"{one.python}; {python}",
    }


def _series(one: StudioRun, name: str, rank: int) -> tuple[I64, F64]:
    """Times of a rank's own clock, and the value from each on."""

    def made() -> tuple[I64, F64]:
        run = one.run()
        if name == "power":
            curve = rank_power(run, rank, device=_device(one))
            return curve.time_ns[:-1], curve.watts
        held = memory_levels(run.part(run.job.index(rank)))
        none = np.zeros(0, np.int64)
        return (none, none.astype(np.float64)) if held is None else (held.time_ns, held.held_bytes.astype(np.float64))

    found: tuple[I64, F64] = one.once(f"{name} of {rank}", made)
    return found


def _device(one: StudioRun) -> Any:
    """What the run was measured on, as far as it says so."""
    from etude.analyse.devices import device_of

    run = one.run()
    return None if run.system is not None else device_of(run.job, "", "")


def lowest_highest(time: I64, value: F64, edges: F64) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of a value that holds from each time to the next, and is 0 before the first: the lowest and the highest in each
    part between edges."""
    held = np.append(0.0, value)[np.searchsorted(time, edges[:-1], "right")]
    low, high = held.copy(), held.copy()
    inside = np.flatnonzero((time > edges[0]) & (time < edges[-1]))
    place = np.clip(np.searchsorted(edges, time[inside], "right") - 1, 0, len(low) - 1)
    np.minimum.at(low, place, value[inside])
    np.maximum.at(high, place, value[inside])
    return low, high

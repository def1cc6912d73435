"""One row per rank; of very many ranks one per class of ranks that do the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.model.run import Run

__all__ = ["MOST_ROWS", "class_table", "rank_rows", "rank_table"]

MOST_ROWS: Final = 4096
"""Ranks that have a row each where results are shown."""


def rank_table(found: Run) -> pa.Table:
    """One row per rank: when it ends, its breakdown and, if known, its memory."""
    import pyarrow as pa

    from etude.analyse.breakdown import breakdown
    from etude.model.memory import memory_peaks
    from etude.model.schema import UNKNOWN

    finish, peaks = found.timing.last_ends(), memory_peaks(found)
    rows = breakdown(found).add_column(1, "finish_ns", pa.array(finish, mask=finish == UNKNOWN))
    for name, values in (("peak_memory_bytes", peaks.held_bytes), ("peak_stored_bytes", peaks.stored_bytes)):
        if (values != UNKNOWN).any():
            rows = rows.append_column(name, pa.array(values, mask=values == UNKNOWN))
    return rows


def class_table(found: Run) -> pa.Table:
    """One row per class of ranks that run one program at the same times: its first rank, how many and which ranks it
    has, and what `rank_table` says of each of them."""
    import pyarrow as pa

    from etude.analyse.breakdown import part_measures
    from etude.analyse.measures import COLUMNS
    from etude.model.job import ranges
    from etude.model.memory import memory_levels
    from etude.model.schema import UNKNOWN

    kinds: dict[str, Any] = {"rank": pa.int32(), "count": pa.int64(), "ranks": pa.string(), "finish_ns": pa.int64()}
    kinds |= COLUMNS
    rows: list[dict[str, Any]] = []
    for part in found.parts():
        ranks, end = found.job.ranks[part.at], int(part.end_ns.max(initial=UNKNOWN))
        row = {"rank": int(ranks[0]), "count": len(ranks), "ranks": ranges(ranks)}
        row |= {"finish_ns": None if end == UNKNOWN else end, **part_measures(part)}
        if (levels := memory_levels(part)) is not None:
            row["peak_memory_bytes"] = int(levels.held_bytes.max(initial=0))
            row["peak_stored_bytes"] = int(levels.stored_bytes.max(initial=0))
            kinds |= dict.fromkeys(("peak_memory_bytes", "peak_stored_bytes"), pa.int64())
        rows.append(row)
    rows.sort(key=lambda row: row["rank"])
    return pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()})


def rank_rows(found: Run) -> pa.Table:
    """What is shown of ranks: a row for each, or for each class of them where there are more than `MOST_ROWS`."""
    return rank_table(found) if len(found.job.ranks) <= MOST_ROWS else class_table(found)

"""compared(a, b): two served streams, or other records of runs, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

LEFT_OUT = ("asked", "window")


def compared(a: dict[str, Any], b: dict[str, Any]) -> tuple[pa.Table, pa.Table]:
    """Measures of the records, those of parts with a dot (`ttft_s.p99`): `a`, `b`, `change` = b - a and `ratio` =
    b / a, null where one is not known or a is 0; and the settings that differ."""
    one, two = (dict(_numbers({k: v for k, v in of.items() if k not in LEFT_OUT})) for of in (a, b))
    names = list(dict.fromkeys([*one, *two]))
    pairs = [(one.get(name), two.get(name)) for name in names]
    measures = pa.table(
        {
            "measure": names,
            "a": pa.array([x for x, _ in pairs], pa.float64()),
            "b": pa.array([y for _, y in pairs], pa.float64()),
            "change": pa.array([y - x if x is not None and y is not None else None for x, y in pairs], pa.float64()),
            "ratio": pa.array([y / x if x and y is not None else None for x, y in pairs], pa.float64()),
        }
    )
    said = [of.get("asked", {}) for of in (a, b)]
    keys = [k for k in dict.fromkeys([*said[0], *said[1]]) if said[0].get(k) != said[1].get(k)]
    texts = [[None if k not in of else str(of[k]) for k in keys] for of in said]
    settings = pa.table(
        {
            "setting": pa.array(keys, pa.string()),
            **{n: pa.array(t, pa.string()) for n, t in zip("ab", texts, strict=True)},
        }
    )
    return measures, settings


def _numbers(record: dict[str, Any], before: str = "") -> Iterator[tuple[str, float | None]]:
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{before}{name}.")
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield before + name, None if value is None else float(value)

"""The errors of each figure over the rows of a file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def errors(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Predicted over measured, minus 1, of each figure that rows have both values of."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, predicted in row.get("predicted", {}).items():
            measured = row["measured"].get(name, 0.0)
            if measured > 0 and math.isfinite(predicted):
                found.setdefault(name, []).append(predicted / measured - 1.0)
    return found


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each figure: its rows, the median and the 90th percentile of the absolute error, and the bias, which is the
    median of the signed error; all as fractions of what was measured. `refused`: how often each reason was given."""
    known = list(rows)
    found: dict[str, Any] = {name: spread(values) for name, values in errors(known).items()}
    refused = Counter(row["refused"] for row in known if "refused" in row)
    return found | {"refused": dict(refused.most_common())}


def spread(error: Iterable[float]) -> dict[str, float]:
    values = np.asarray(list(error), np.float64)
    median, p90 = np.percentile(np.abs(values), [50, 90])
    return {"rows": len(values), "median": float(median), "p90": float(p90), "bias": float(np.median(values))}

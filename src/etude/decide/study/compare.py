"""Baseline and variants, pair by pair: same place in the sweep, same seed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from etude.decide.study.spec import Metric, StudySpec
from etude.decide.study.stats import INTERVALS, TESTS, holm

Row = dict[str, Any]


def compared(spec: StudySpec, rows: Sequence[Row]) -> list[Row]:
    """A row for each variant, metric and place in the sweep.

    `ratio` is the variant over the baseline, `difference` the mean of variant less baseline. With several seeds `low`
    and `high` hold the ratio with 95% confidence, `p` is that of the test of paired differences, and the verdict holds
    if Holm's procedure over the rows of its family rejects equality. Without seeds nothing is drawn, and nothing is
    tested.
    """
    base = _by_place(spec, rows, spec.baseline)
    found: list[Row] = []
    differences: list[list[float]] = []
    for variant in list(spec.variants)[1:]:
        own = _by_place(spec, rows, variant)
        for metric in spec.metrics:
            for place, point in enumerate(spec.space.points()):
                pairs = _pairs(base[place], own[place], metric.name)
                if pairs is not None:
                    found.append(_row(spec, metric, variant, point, *pairs))
                    differences.append((pairs[1] - pairs[0]).tolist())
    if len(spec.seeds) > 1:
        for row, of in zip(found, differences, strict=True):
            row["p"] = TESTS[spec.stats](of)
        for family in _families(spec, found):
            for row, rejected in zip(family, holm([row["p"] for row in family]), strict=True):
                row["decided"] = rejected
    for row in found:
        metric = next(m for m in spec.metrics if m.name == row["metric"])
        row["verdict"] = _verdict(row, metric)
        sign = spec.predict.get(row["variant"]) if metric is spec.metrics[0] else None
        if sign:
            row["predicted"] = _predicted(row, sign)
    return found


def _families(spec: StudySpec, rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that are judged together: predictions; other metrics with a better side; those that only help. A constant
    that helps thus never makes a prediction harder to decide, nor does a row without any difference."""
    judged = {metric.name for metric in spec.metrics if metric.better}
    families: dict[str, list[Row]] = {}
    for row in rows:
        predicted = row["variant"] in spec.predict and row["metric"] == spec.metrics[0].name
        name = "predicted" if predicted else "judged" if row["metric"] in judged else "helps"
        families.setdefault(name if row["difference"] or row["p"] < 1 else "equal", []).append(row)
    return list(families.values())


def _by_place(spec: StudySpec, rows: Sequence[Row], variant: str) -> list[list[Row]]:
    """Rows of a variant at each place of the sweep, in the order of the seeds."""
    own = [row for row in rows if row["variant"] == variant]
    size = max(1, len(spec.seeds))
    return [own[i : i + size] for i in range(0, len(own), size)]


def _pairs(base: Sequence[Row], own: Sequence[Row], metric: str) -> tuple[Any, Any] | None:
    """Values of both where both are numbers."""
    both: list[tuple[Any, Any]] = [(a[metric], b[metric]) for a, b in zip(base, own, strict=True)]
    kept = [(float(a), float(b)) for a, b in both if _number(a) and _number(b)]
    return (np.array([a for a, _ in kept]), np.array([b for _, b in kept])) if kept else None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def _row(spec: StudySpec, metric: Metric, variant: str, point: Mapping[str, Any], base: Any, own: Any) -> Row:
    mean, other = float(base.mean()), float(own.mean())
    row: Row = {
        "variant": variant, "metric": metric.name, **point, "pairs": len(base), "baseline_value": mean,
        "variant_value": other, "difference": float((own - base).mean()), "ratio": other / mean if mean > 0 else None,
        "low": None, "high": None, "p": None,
    }  # fmt: skip
    if len(base) > 1 and mean > 0:
        row["low"], row["high"] = INTERVALS[spec.interval](base, own) or (None, None)
    return row


def _verdict(row: Row, metric: Metric) -> str:
    if row["difference"] == 0:
        return "equal"
    if row.get("decided") is False:
        return "undecided"
    sign = "lower" if row["difference"] < 0 else "higher"
    return sign if not metric.better else "better" if sign == metric.better else "worse"


def _predicted(row: Row, sign: str) -> str:
    if row["difference"] == 0 or row.get("decided") is False:
        return "undecided"
    return "as predicted" if ("lower" if row["difference"] < 0 else "higher") == sign else "reversed"

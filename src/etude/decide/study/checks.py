"""What a study says must hold of its numbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from etude.base.errors import EtudeError, UsageError
from etude.decide.study.expressions import evaluated
from etude.decide.study.spec import StudyCheck, StudySpec

Row = Mapping[str, Any]


def checked(spec: StudySpec, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every check with its answer.

    In an expression each metric is a function: `step("zip", bandwidth=50)` is its mean over seeds for that variant
    there, and an array in the order of the sweep where more than one place is left. `gain("zip")` is the baseline over
    the variant, of the first metric or of `metric=`.
    """
    names: dict[str, Any] = {m.name: _metric(spec, rows, m.name) for m in spec.metrics}
    names["gain"] = _gain(spec, rows)
    return [_checked(check, names, f"{spec.where}: check `{check.name}`") for check in spec.checks]


def _checked(check: StudyCheck, names: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = {"name": check.name, "kind": check.kind, "ok": False, "detail": ""}
    asked: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            value = function(*args, **given)
            told = ", ".join([*map(str, args), *(f"{k}={v}" for k, v in given.items())])
            line = f"{name}({told}) = {_shown(value)}"
            if line not in asked:
                asked.append(line)
            return value

        return call

    try:
        own = {n: noted(n, f) for n, f in names.items()} | {"margin": check.margin}
        found["ok"] = bool(np.all(evaluated(check.that, own, where)))
        found["detail"] = "; ".join(asked[:8])
    except EtudeError as problem:
        found["detail"] = problem.problem
    return found


def _metric(spec: StudySpec, rows: Sequence[Row], name: str) -> Callable[..., Any]:
    def of(variant: str = spec.baseline, **at: Any) -> Any:
        if variant not in spec.variants:
            raise UsageError(f"no variant `{variant}`", hint=", ".join(spec.variants))
        for axis in at:
            if axis not in spec.space.names:
                raise UsageError(f"no axis `{axis}`", hint=", ".join(spec.space.names))
        places: dict[tuple[Any, ...], list[Any]] = {}
        for row in rows:
            if row["variant"] == variant and all(row[axis] == value for axis, value in at.items()):
                if row["error"]:
                    raise UsageError(f"a point failed: {row['error']}")
                places.setdefault(tuple(str(row[a]) for a in spec.space.names), []).append(row[name])
        if not places:
            raise UsageError(f"no point has {', '.join(f'{k}={v}' for k, v in at.items())}")
        means = [_mean(values) for values in places.values()]
        return means[0] if len(means) == 1 else np.array(means) if not isinstance(means[0], list) else means

    return of


def _mean(values: list[Any]) -> Any:
    """Over seeds; what is not a number must be one and the same."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return values[0] if len(set(values)) == 1 else float(np.mean(values))
    if any(v != values[0] for v in values):
        raise UsageError("values that are not numbers differ between seeds")
    return values[0]


def _gain(spec: StudySpec, rows: Sequence[Row]) -> Callable[..., Any]:
    def of(variant: str, metric: str = spec.metrics[0].name, **at: Any) -> Any:
        if metric not in {m.name for m in spec.metrics}:
            raise UsageError(f"no metric `{metric}`", hint=", ".join(m.name for m in spec.metrics))
        value = _metric(spec, rows, metric)
        return value(spec.baseline, **at) / value(variant, **at)

    return of


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "[" + ", ".join(_shown(v) for v in value.tolist()[:8]) + (", ...]" if len(value) > 8 else "]")
    return f"{value:.6g}" if isinstance(value, float) else str(value)

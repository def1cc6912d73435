"""What a study says must hold of its numbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from etude.base.errors import EtudeError, UsageError
from etude.decide.study.expressions import NotAskedError, evaluated
from etude.decide.study.spec import StudyCheck, StudySpec

Row = Mapping[str, Any]


def checked(spec: StudySpec, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every check with its answer.

    In an expression each metric is a function: `step("zip", bandwidth=50)` is its mean over seeds for that variant
    there, and an array in the order of the sweep where more than one place is left. `gain("zip")` is above 1
    where the variant is better: the baseline over it, or it over the baseline if higher is better; of the first metric
    or of `metric=`.
    """
    names = names_of(spec, rows)
    units = {metric.name: metric.unit for metric in spec.metrics}
    return [_checked(check, names, units, f"{spec.where}: check `{check.name}`") for check in spec.checks]


def names_of(spec: StudySpec, rows: Sequence[Row]) -> dict[str, Any]:
    """What expressions of checks and claims may use; `own` has the names of what is the user's."""
    metrics = {m.name: _metric(spec, rows, m.name) for m in spec.metrics}
    return {"own": list(spec.own), **metrics, "gain": _gain(spec, rows)}


SUFFIXES: Final = {"_ns": "ns", "_us": "us", "_ms": "ms", "_s": "s"}


def _sentence(name: str, words: Sequence[Any], keys: Mapping[str, Any], value: Any, units: Mapping[str, str]) -> str:
    """What was looked up, in words: `step of zip at gbit 50: 1,005 ms`."""
    metric = str(keys.get("metric", "")) if name == "gain" else name
    about = f"{name} of {metric}" if name == "gain" and metric else name
    places = [f"{k} {v}" for k, v in keys.items() if k not in ("metric", "variant")]
    variant = str(words[0] if words else keys.get("variant", ""))
    end = next((end for end in SUFFIXES if metric.endswith(end)), "")
    unit = "" if name == "gain" else units.get(name, "") or SUFFIXES.get(end, "")
    about = about.removesuffix(end) if end and not units.get(name) else about
    said = about.replace("_", " ") + (f" of {variant}" if variant else "")
    return f"{said}{' at ' + ', '.join(places) if places else ''}: {_shown(value)}{' ' + unit if unit else ''}"


def _checked(check: StudyCheck, names: Mapping[str, Any], units: Mapping[str, str], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": check.name, "kind": check.kind, "ok": False, "detail": ""}
    asked: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            value = function(*args, **given)
            line = _sentence(name, args, given, value, units)
            if line not in asked:
                asked.append(line)
            return value

        return call

    try:
        own = {n: noted(n, f) if callable(f) else f for n, f in names.items()} | {"margin": check.margin}
        if check.when and not np.all(evaluated(check.when, own, where)):
            return found | {"ok": None, "detail": f"applies where {check.when}; {'; '.join(asked[:8])}"}
        found["ok"] = bool(np.all(evaluated(check.that, own, where)))
        found["detail"] = "; ".join(asked[:8])
    except NotAskedError as problem:
        found |= {"ok": None, "detail": problem.problem}
    except EtudeError as problem:
        found["detail"] = problem.problem
    return found


def _metric(spec: StudySpec, rows: Sequence[Row], name: str) -> Callable[..., Any]:
    def of(variant: str = spec.baseline, **at: Any) -> Any:
        if variant not in spec.variants:
            raise NotAskedError(f"no variant `{variant}`", hint=", ".join(spec.variants))
        for axis in at:
            if axis not in spec.space.names:
                raise NotAskedError(f"no axis `{axis}`", hint=", ".join(spec.space.names))
        places: dict[tuple[Any, ...], list[Any]] = {}
        for row in rows:
            if row["variant"] == variant and all(row[axis] == value for axis, value in at.items()):
                if row["error"]:
                    raise UsageError(f"a point failed: {row['error']}")
                if row[name] is None:
                    no = NotAskedError if spec.changed else UsageError
                    raise no(f"`{name}` has no value for {variant}")
                places.setdefault(tuple(str(row[a]) for a in spec.space.names), []).append(row[name])
        if not places:
            raise NotAskedError(f"no point has {', '.join(f'{k}={v}' for k, v in at.items())}")
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
    better = {m.name: m.better for m in spec.metrics}

    def of(variant: str, metric: str = spec.metrics[0].name, **at: Any) -> Any:
        if metric not in better:
            raise UsageError(f"no metric `{metric}`", hint=", ".join(m.name for m in spec.metrics))
        value = _metric(spec, rows, metric)
        base, own = value(spec.baseline, **at), value(variant, **at)
        return own / base if better[metric] == "higher" else base / own

    return of


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return ", ".join(_shown(v) for v in value.tolist()[:8]) + (", ..." if len(value) > 8 else "")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"

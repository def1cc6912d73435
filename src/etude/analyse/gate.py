"""A gate for continuous integration: has a measure become worse than a limit allows, beyond what noise explains?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.analyse.gate_samples import MEASURES, Sampled, samples
from etude.analyse.noise import Shift, shift
from etude.base.errors import EtudeError, UsageError
from etude.base.units import format_bytes, format_time, parse_bytes, parse_time
from etude.kernels.arrays import F64

__all__ = ["GateLimit", "gate", "parse_limit", "shown", "table"]


_ALSO: Final = {
    "step_time": "step", "time": "step", "comm": "communication", "exposed_comm": "exposed",
    "exposed_communication": "exposed", "host_time": "host", "launch": "launches", "memory_peak": "memory",
    "peak_memory": "memory", "kernels": "kernel",
}  # fmt: skip
_FORM: Final = re.compile(r"\s*(?P<measure>.*\S)\s*(?P<than>[<>])=?\s*(?P<limit>[^<>=]*?)\s*", re.DOTALL)
_NUMBER: Final = re.compile(r"(?P<sign>[+-]?)\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>%|[A-Za-zµμ]*)")
EXAMPLES: Final = '"step > +3%", "mfu < -2%", "memory > 70 GB", "exposed > +1 ms", "kernel:nccl > +10%"'


@dataclass(frozen=True, slots=True)
class GateLimit:
    """`step > +3%`: where a measure fails."""

    text: str
    measure: str
    """A name of `MEASURES`, or `kernel:NAME`."""
    above: bool
    """Whether it fails above the limit, else below."""
    value: float
    of: str
    """`ratio`: a change as a fraction of the base; `change`: a change in the measure's unit; `value`: the new value."""

    @property
    def regression(self) -> bool:
        """Whether "no change" passes the limit. Otherwise the limit asks for an improvement."""
        return self.of != "value" and (self.value >= 0 if self.above else self.value <= 0)


def parse_limit(text: str) -> GateLimit:
    """`MEASURE > LIMIT` or `MEASURE < LIMIT`. A limit in % is a change; in a unit (ms, GB) it is a change if it has a
    sign, otherwise a value of the new run."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise _unclear("is not of the form `MEASURE > LIMIT` or `MEASURE < LIMIT`", text)
    measure = _measure(form["measure"], text)
    number = _NUMBER.fullmatch(form["limit"])
    if number is None:
        raise _unclear(f"`{form['limit']}` is not a limit", text)
    size, unit = float(number["number"]), number["unit"]
    if unit == "%":
        value, of = size / 100, "ratio"
    else:
        value, of = _in_unit(number, measure, text), "change" if number["sign"] else "value"
    return GateLimit(text, measure, form["than"] == ">", -value if number["sign"] == "-" else value, of)


def _measure(name: str, text: str) -> str:
    key, colon, rest = name.partition(":")
    key = re.sub(r"[\s-]+", "_", key.strip().lower())
    key = _ALSO.get(key, key)
    if key not in MEASURES or (key == "kernel") != bool(colon and rest.strip()):
        known = ", ".join("kernel:NAME" if m == "kernel" else m for m in MEASURES)
        raise UsageError(f"`{name}` is not a measure", where=f"--fail-if `{text}`", hint=f"known: {known}")
    return f"kernel:{rest.strip()}" if colon else key


def _in_unit(number: re.Match[str], measure: str, text: str) -> float:
    kind = MEASURES[measure.partition(":")[0]]
    size, unit = number["number"], number["unit"]
    try:
        if kind and unit:
            return float((parse_time if kind == "ns" else parse_bytes)(f"{size}{unit}"))
    except EtudeError:
        raise _unclear(f"`{unit}` is not a unit of `{measure}`, or the limit is too fine for it", text) from None
    if unit or kind:
        wanted = {"ns": "a time, like `5 ms`", "B": "a size, like `70 GB`", "": "a number without a unit"}[kind]
        raise _unclear(f"a limit of `{measure}` is {wanted}, or a change in %", text)
    return float(size)


def _unclear(problem: str, text: str) -> UsageError:
    return UsageError(problem, where=f"--fail-if `{text}`", hint=f"for example {EXAMPLES}")


def gate(base: Sequence[Sampled], new: Sequence[Sampled], limits: Sequence[GateLimit]) -> list[dict[str, Any]]:
    """A record for each limit: check, measure, unit, base and new (means), ratio, interval (of the ratio, 95%), failed,
    samples (of each side), method, note.

    It fails if the ratio is beyond the limit and the interval does not contain 1 (no change). A limit that asks for an
    improvement, or that is a value, fails where the estimate is beyond it. Where noise is not known, the estimate
    decides, and the note says so.
    """
    return [_check(base, new, limit) for limit in limits]


def _check(base: Sequence[Sampled], new: Sequence[Sampled], limit: GateLimit) -> dict[str, Any]:
    of_runs = samples([*base, *new], limit.measure)
    several = len(base) > 1 or len(new) > 1
    sides = [_units(of_runs[: len(base)], several), _units(of_runs[len(base) :], several)]
    found = shift(*sides, exact=all(one.exact for one in (*base, *new)), series=not several)
    beyond = _beyond(limit, found)
    sure = found.interval is None or not limit.regression or not found.interval[0] <= 1 <= found.interval[1]
    unit = MEASURES[limit.measure.partition(":")[0]]
    return {
        "check": limit.text,
        "measure": limit.measure,
        "unit": unit,
        "base": found.base,
        "new": found.new,
        "ratio": found.ratio,
        "interval": list(found.interval) if found.interval else None,
        "failed": bool(beyond and sure),
        "samples": [len(side) for side in sides],
        "of": "runs" if several or limit.measure == "memory" else "steps",
        "method": found.method,
        "note": _note(limit, found, several=several, beyond=beyond, sure=sure),
    }


def _units(runs: Sequence[F64], several: bool) -> F64:
    """Independent samples: runs if there are several, since differences between runs affect all steps of one; otherwise
    steps."""
    return np.array([float(one.mean()) for one in runs]) if several else runs[0]


def _beyond(limit: GateLimit, found: Shift) -> bool:
    if limit.of == "value":
        value = found.new
    elif limit.of == "change":
        value = found.base * (found.ratio - 1) if found.ratio is not None else found.new - found.base
    elif found.ratio is not None:
        value = found.ratio - 1
    else:  # from 0 to something: more than any percentage
        value = np.inf if found.new > 0 else -np.inf
    return bool(value > limit.value if limit.above else value < limit.value)


def _note(limit: GateLimit, found: Shift, *, several: bool, beyond: bool, sure: bool) -> str:
    told = []
    if found.method == "single":
        told.append("one sample on each side: the noise is not known, and the ratio alone decides")
    elif found.method != "exact" and not several:
        told.append("one run on each side: the interval covers the noise between steps, not that between runs")
    if found.ratio is None:
        told.append("it was 0 before, so there is no ratio")
    if beyond and not sure:
        told.append("beyond the limit, but within the noise: more steps or runs are needed to decide")
    return "; ".join(told)


def shown(value: float, unit: str) -> str:
    """A value formatted for people."""
    if unit == "ns":
        return format_time(round(value))
    return format_bytes(round(value)) if unit == "B" else f"{value:.4g}" if value < 1e4 else f"{value:,.0f}"


def table(checks: Sequence[dict[str, Any]]) -> pa.Table:
    """What `gate` found, for readers: one row per check, values with their units."""
    return pa.table(
        {
            "check": [c["check"] for c in checks],
            "base": [shown(c["base"], c["unit"]) for c in checks],
            "new": [shown(c["new"], c["unit"]) for c in checks],
            "ratio": pa.array([c["ratio"] for c in checks], pa.float64()),
            "low": pa.array([c["interval"][0] if c["interval"] else None for c in checks], pa.float64()),
            "high": pa.array([c["interval"][1] if c["interval"] else None for c in checks], pa.float64()),
            "samples": ["{} and {} {}".format(*c["samples"], c["of"]) for c in checks],
            "verdict": ["failed" if c["failed"] else "passed" for c in checks],
        }
    )

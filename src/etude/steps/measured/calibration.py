"""calibrate(rows), calibrate_run(run): a stack from your own measured steps, or from the ops of a recorded run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from etude.analyse.roofline import measured_ops
from etude.base.errors import UsageError
from etude.cost.compute import roofline_ns
from etude.cost.ops import OpClass
from etude.cost.stacks import Band, Efficiency, Stack, generation_of
from etude.cost.stacks.stack import ANY, KNOBS, NEUTRAL, PRODUCTS
from etude.kernels.arrays import F64
from etude.machine.system import System
from etude.model.run import Run
from etude.steps.measured.outcomes import OutcomeFile
from etude.steps.measured.rows import Case, Refused, cases_of
from etude.steps.measured.stack_fit import FitSample, efficiency_under, error_of, fit_effects

OWN: Final = [("own", "")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A stack, and the errors of its rows: with the stack that it started from, and with one from all other rows."""

    stack: Stack
    rows: int
    refused: tuple[Refused, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    weights: tuple[float, ...] = ()
    """What each error counts: the time of an op of a run; none: rows count alike."""

    def quantiles(self, errors: Sequence[float]) -> tuple[float, float]:
        """Median and 90th percentile of the size of `before` or `after`."""
        sizes = np.abs(np.array(errors))
        if not self.weights:
            half, most = np.percentile(sizes, [50, 90])
            return float(half), float(most)
        weight = np.array(self.weights)
        return _quantile(sizes, weight, 0.5), _quantile(sizes, weight, 0.9)

    @property
    def worse(self) -> bool:
        """What is left out is farther off than with the stack that it started from."""
        return self.quantiles(self.after)[0] > self.quantiles(self.before)[0]


def calibrate(
    rows: list[dict[str, str]], base: Stack, name: str, *, advance: Callable[[int], None] = lambda n: None
) -> Calibrated:
    """A stack that differs from `base` by one factor for each efficiency, fitted to measured steps and kept near 1."""
    found = list(cases_of(rows, base))
    cases = [c for c in found if isinstance(c, Case)]
    refused = tuple(c for c in found if isinstance(c, Refused))
    if not cases:
        why = refused[0].why if refused else "rows of serving and bandwidth are not training steps"
        raise UsageError(f"no row can be predicted: {why}")
    outcomes = OutcomeFile().all(cases, advance=advance)
    samples = [FitSample(c, o) for c, o in zip(cases, outcomes, strict=True) if o is not None]
    before = [error_of(s, base_of(s.case)) for s in samples]
    after = before
    if len(samples) > 1:
        after = [error_of(s, _own(samples[:i] + samples[i + 1 :], s.case)) for i, s in enumerate(samples)]
    factor = _factor(samples)
    made = _multiplied(base, factor, name, f"{len(samples)} measured steps, over the stack {base.name}")
    made = replace(made, bands={"all": _band(after, len(samples), "its own rows, each left out in turn")})
    return Calibrated(stack=made, rows=len(samples), refused=refused, before=tuple(before), after=tuple(after))


def base_of(case: Case) -> Efficiency:
    """Base of the stack of a case."""
    return case.stack.on(generation_of(case.system.device.name), experts=bool(case.model.experts))


def _factor(samples: Sequence[FitSample]) -> Efficiency:
    effects = fit_effects(samples, lambda case: OWN, base_of)
    return efficiency_under(effects, OWN, NEUTRAL, least=0.0)


def _own(samples: Sequence[FitSample], case: Case) -> Efficiency:
    return _bounded(base_of(case).times(_factor(samples)))


def _bounded(by: Efficiency) -> Efficiency:
    rounded = {name: round(getattr(by, name), 3) for name in KNOBS}
    return Efficiency(**rounded | {"overlap": max(rounded["overlap"], 1.0)})


def _multiplied(base: Stack, factor: Efficiency, name: str, source: str) -> Stack:
    known = base.efficiency or {ANY: NEUTRAL}
    efficiency = {key: _bounded(own.times(factor)) for key, own in known.items()}
    doc = f"Calibrated: {base.doc or base.name}"
    return replace(base, name=name, doc=doc, names={}, efficiency=efficiency, source=source)


def _band(errors: Sequence[float], rows: int, source: str) -> Band:
    half, most = np.percentile(np.abs(errors), [50, 90])
    return Band(p50=round(float(half), 4), p90=round(float(most), 4), rows=rows, source=source)


# -- recorded runs -----------------------------------------------------------------------------------------------------


def _knob(op_class: OpClass) -> str:
    if op_class.key in PRODUCTS:
        return "products"
    return "attention" if op_class == OpClass.ATTENTION else "rest"


def calibrate_run(run: Run, system: System, base: Stack, name: str) -> Calibrated:
    """A stack whose kernels take their times in a recorded run, relative to those of `system`'s device. What a
    recording cannot show (8-bit products, the network, overlap) stays as in `base`, and so does a factor that predicts
    held-out ops worse."""
    ops, time_ns = measured_ops(run)
    formula = roofline_ns(system.device, ops)
    kept = np.isfinite(formula) & (formula > 0) & (time_ns > 0)
    if not kept.any():
        raise UsageError(
            "the run has no ops whose work and time are both known", hint="record shapes with the profiler"
        )
    own = base.on(generation_of(system.device.name), experts=False)
    knobs = np.array([_knob(OpClass(number)) for number in ops.op_class.tolist()])[kept]
    ratio, weight = (time_ns[kept] / formula[kept]), time_ns[kept].astype(np.float64)
    start = np.array([getattr(own, knob) for knob in knobs])
    before = start / ratio - 1
    factor, after = dict.fromkeys(KNOBS, 1.0), np.zeros(len(ratio))
    for knob in np.unique(knobs).tolist():
        here = np.flatnonzero(knobs == knob)
        factor[knob] = _central(ratio[here] / start[here], weight[here])
        for i in here:
            others = here[here != i]
            without = _central(ratio[others] / start[others], weight[others]) if len(others) else 1.0
            after[i] = start[i] * without / ratio[i] - 1
        if _central(np.abs(after[here]), weight[here]) >= _central(np.abs(before[here]), weight[here]):
            factor[knob], after[here] = 1.0, before[here]  # its ops have no common factor
    source = f"{len(ratio)} distinct ops of a recorded run, over the stack {base.name}"
    made = _multiplied(base, Efficiency(**{k: round(v, 3) for k, v in factor.items()}), name, source)
    return Calibrated(
        stack=made,
        rows=len(ratio),
        refused=(),
        before=tuple(before.tolist()),
        after=tuple(after.tolist()),
        weights=tuple(weight.tolist()),
    )


def _central(ratio: F64, weight: F64) -> float:
    """The weighted median of the ratios: one slow op moves it little."""
    return _quantile(ratio, weight, 0.5)


def _quantile(values: F64, weight: F64, part: float) -> float:
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(share, share[-1] * part)])

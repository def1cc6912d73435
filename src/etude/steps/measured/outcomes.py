"""The effect of each efficiency of a stack on measured steps: times around a centre, from which a fit is arithmetic."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from etude.base.figures import plain
from etude.cost.stacks import Efficiency
from etude.cost.stacks.stack import KNOBS
from etude.make.generate.schedules import steady_from
from etude.steps.measured.rows import Case
from etude.steps.step import step_times

CENTRE: Final = Efficiency(products=1.08, fp8=1.15, attention=1.3, rest=1.2, network=1.1, overlap=1.08)
"""Where times are evaluated: kernels of a step are slower than alone by about these factors."""
STEP: Final = 0.25
"""Fraction by which each factor is varied."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Seconds of a step at the centre, and how they grow with each factor."""

    base_s: float
    slope_s: tuple[float, ...]

    def at(self, by: Efficiency) -> float:
        """Seconds under other factors, by linear extrapolation from the centre."""
        moved = np.array(by.values()) - np.array(CENTRE.values())
        return float(self.base_s + moved @ np.array(self.slope_s))


def _moved(knob: str) -> Efficiency:
    return replace(CENTRE, **{knob: getattr(CENTRE, knob) * (1 + STEP)})


def outcome_of(case: Case) -> StepOutcome:
    """A step at the centre, and with each factor moved, on the fewest micro-batches that fill the pipeline: what a
    factor does to a part of the step it does to the whole. Factors that can do nothing are not tried."""
    plan = case.plan
    idle = {"fp8"} if str(plan.precision) != "fp8" else set[str]()
    waits = case.model.experts or plan.gpus == 1  # others have long kernels, or graphs
    idle |= {"host"} if not plan.host_ns or not waits else set()
    idle |= {"network", "overlap"} if plan.gpus == 1 else set()
    tried = [k for k in KNOBS if k not in idle]
    base = step_times(case.model, plan, case.system, [CENTRE], case.stack)[0]
    least = steady_from(plan.schedule, ranks=plan.pp) if plan.pp > 1 else 1
    few = plan.replace(global_batch=plan.dp * plan.micro_batch * min(plan.micro_batches, least or plan.micro_batches))
    short, *times = step_times(case.model, few, case.system, [CENTRE, *map(_moved, tried)], case.stack)
    found = {k: (t / short - 1) * base / (STEP * getattr(CENTRE, k)) for k, t in zip(tried, times, strict=True)}
    return StepOutcome(base, tuple(found.get(k, 0.0) for k in KNOBS))


def key_of(case: Case) -> str:
    """Everything that an outcome depends on, except the cost model itself."""
    plan = plain(case.plan)
    if not case.model.experts:
        plan.pop("dispatch", None)
    about = [
        plain(case.model),
        plan,
        plain(case.system),
        case.stack.user_buffers and case.plan.tp_chunks > 1,
        asdict(CENTRE),
        STEP,
    ]
    return hashlib.sha256(json.dumps(about, default=str, sort_keys=True).encode()).hexdigest()[:16]


class OutcomeFile:
    """Outcomes, in a file if one is given: a run that was cut off goes on, and nothing is simulated twice. Whoever
    changes a cost or the generator takes another file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        known = json.loads(path.read_text("utf-8")) if path and path.exists() else {}
        self.known: dict[str, StepOutcome] = {k: StepOutcome(v[0], tuple(v[1])) for k, v in known.items()}

    def all(
        self, cases: Iterable[Case], *, workers: int = 1, advance: Callable[[int], None] = lambda n: None
    ) -> list[StepOutcome | None]:
        """The outcome of each case; None if it cannot be generated."""
        cases = list(cases)
        keys = [key_of(case) for case in cases]
        wanted = {k: c for k, c in zip(keys, cases, strict=True) if k not in self.known}
        small_first = sorted(wanted.items(), key=lambda item: item[1].plan.pp * item[1].plan.micro_batches)
        if workers <= 1 or len(small_first) < 2:
            for key, case in small_first:
                self._keep(key, outcome_of(case))
                advance(1)
        else:
            with ProcessPoolExecutor(workers) as pool:
                futures = {pool.submit(outcome_of, case): key for key, case in small_first}
                for done in as_completed(futures):
                    self._keep(futures[done], done.result())
                    advance(1)
        return [self.known.get(k) for k in keys]

    def _keep(self, key: str, outcome: StepOutcome) -> None:
        self.known[key] = outcome
        if self.path:
            text = json.dumps({k: [o.base_s, o.slope_s] for k, o in self.known.items()})
            self.path.write_text(text, "utf-8")

"""Efficiencies of stacks from measured steps: few effects, shared by stacks and GPUs that have kernels in common.

The logarithm of each factor is a sum of effects: of all rows, of a generation of GPUs, of an earlier year on it, of a
family of stacks, of a stack, of their products, of mixtures of experts. Each effect is held near 0, the more so the
narrower what it speaks of; a stack with two rows moves little, one with none has what its family has. The sum is found
by Gauss and Newton on errors in logarithms, large ones weighted down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from etude.cost.stacks import Efficiency, Stack, generation_of
from etude.cost.stacks.stack import KNOBS
from etude.kernels.arrays import F64
from etude.steps.measured.outcomes import CENTRE, StepOutcome
from etude.steps.measured.rows import Case

NOISE: Final = 0.08
"""Scatter of a row that no effect explains: rows of one source err together, so it is not small."""
CUT: Final = 1.5
"""Errors beyond this many times the scatter have reduced weight."""
SPREAD: Final[dict[str, tuple[float, ...]]] = {
    # products  fp8  attention  rest  network  overlap  host
    "all": (0.2, 0.2, 0.3, 0.3, 0.3, 0.1, 0.3),
    "generation": (0.1, 0.1, 0.2, 0.15, 0.15, 0.05, 0.1),
    "generation, year": (0.1, 0.1, 0.3, 0.1, 0.1, 0.05, 0.1),
    "family": (0.1, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2),
    "family, generation": (0.1, 0.1, 0.2, 0.15, 0.1, 0.05, 0.1),
    "stack": (0.1, 0.1, 0.15, 0.15, 0.15, 0.15, 0.2),
    "stack, generation": (0.07, 0.07, 0.1, 0.1, 0.1, 0.05, 0.1),
    "experts": (0.1, 0.1, 0.1, 0.2, 0.2, 0.05, 0.2),
    "experts, stack": (0.1, 0.1, 0.1, 0.2, 0.2, 0.05, 0.2),
    "own": (0.3, 0.3, 0.4, 0.4, 0.3, 0.2, 0.5),
}
"""Prior spread of each factor: set once, from what such factors are made of."""
ROUNDS: Final = 20
NEWEST: Final = {"ampere": 2023, "hopper": 2025}
"""Year of the newest rows of a generation, of which a stack's factors are; software of years before was slower."""
KERNELS: Final = {("flash-2", "hopper"): 0.6 / 0.35}
"""Attention over the vendor's, before any row is seen. FlashAttention-2 reaches 35% of the rate of an H100 (Shah et al.
2024), the kernels that the catalogue's devices were fitted to 60%."""


@dataclass(frozen=True, slots=True, eq=False)
class FitSample:
    """A measured step, the effect of each factor on it, and the effects that apply to it."""

    case: Case
    outcome: StepOutcome
    source: Hashable = ""
    """Rows of one source are held out together."""

    @property
    def log_measured(self) -> float:
        return float(np.log(self.case.step_s))


Groups = Callable[[Case], list[tuple[str, str]]]
Effects = dict[tuple[str, str], F64]


def of_stack(case: Case) -> list[tuple[str, str]]:
    """(level, name) of the effects on a row, the widest first."""
    stack, kind = case.stack, generation_of(case.system.device.name)
    return stack_groups(stack, kind) + year_groups(case) + (expert_groups(stack) if case.model.experts else [])


def year_groups(case: Case) -> list[tuple[str, str]]:
    return years_from(generation_of(case.system.device.name), case.year) if case.year else []


def years_from(generation: str, year: int) -> list[tuple[str, str]]:
    """A run of a year lacks what was added in that year and in all later ones."""
    return [("generation, year", f"{generation} {y}") for y in range(year, NEWEST.get(generation, 0))]


def centre_of(case: Case) -> Efficiency:
    """Factors before any data."""
    return centre(case.stack, generation_of(case.system.device.name))


def centre(stack: Stack, generation: str) -> Efficiency:
    slower = KERNELS.get((stack.attention, generation), 1.0)
    return replace(CENTRE, attention=CENTRE.attention * slower)


def stack_groups(stack: Stack, generation: str) -> list[tuple[str, str]]:
    family, both = stack.family, f"{stack.family} {generation}"
    return [("all", ""), ("generation", generation), ("family", family), ("family, generation", both),
            ("stack", stack.name), ("stack, generation", f"{stack.name} {generation}")]  # fmt: skip


def expert_groups(stack: Stack) -> list[tuple[str, str]]:
    return [("experts", ""), ("experts, stack", stack.name)]


def of_generation(case: Case) -> list[tuple[str, str]]:
    """Effects without a stack."""
    found = [("all", ""), ("generation", generation_of(case.system.device.name)), *year_groups(case)]
    return found + ([("experts", "")] if case.model.experts else [])


def fit_effects(
    samples: Sequence[FitSample], groups: Groups, start: Callable[[Case], Efficiency] = centre_of
) -> Effects:
    """Effects with the least errors; `start` are the factors without any."""
    index: dict[tuple[str, str], int] = {}
    member = [[index.setdefault(g, len(index)) for g in groups(s.case)] for s in samples]
    spread = np.array([SPREAD[level] for level, _ in index])
    base = np.array([s.outcome.base_s for s in samples])
    slope = np.array([s.outcome.slope_s for s in samples])
    first = np.log([start(s.case).values() for s in samples])
    goal = np.array([s.log_measured for s in samples])
    weight = _weights(samples)
    belongs = np.zeros((len(samples), len(index)))
    for row, of in enumerate(member):
        belongs[row, of] = 1.0
    effects = np.zeros((len(index), len(KNOBS)))
    for _ in range(ROUNDS):
        times, gain = _times(base, slope, first + belongs @ effects)
        error = goal - np.log(times)
        pull = weight * np.minimum(1.0, CUT * NOISE / np.maximum(np.abs(error), 1e-12)) / NOISE**2
        change = _newton(belongs, gain, error, pull, effects, spread)
        effects += change
        if np.abs(change).max() < 1e-4:
            break
    return {group: effects[i] for group, i in index.items()}


def _times(base: F64, slope: F64, log_factor: F64) -> tuple[F64, F64]:
    """Seconds of each row, and how their logarithm grows with that of each factor. No factor of overlap is below 1."""
    factor = np.exp(log_factor)
    at = KNOBS.index("overlap")
    free = np.ones_like(factor)
    free[:, at] = factor[:, at] > 1.0
    factor[:, at] = np.maximum(factor[:, at], 1.0)
    times = base + ((factor - np.array(CENTRE.values())) * slope).sum(axis=1)
    times = np.maximum(times, 0.2 * base)
    return times, slope * factor * free / times[:, None]


def _newton(belongs: F64, gain: F64, error: F64, pull: F64, effects: F64, spread: F64) -> F64:
    """The step to the minimum of the squared errors, weighted, and of the squared effects over their spread."""
    rows, (count, knobs) = len(error), effects.shape
    slopes = (belongs[:, :, None] * gain[:, None, :]).reshape(rows, count * knobs)
    hold = 1.0 / spread.reshape(-1) ** 2
    matrix = slopes.T @ (pull[:, None] * slopes) + np.diag(hold)
    right = slopes.T @ (pull * error) - hold * effects.reshape(-1)
    return np.asarray(np.linalg.solve(matrix, right).reshape(count, knobs))


def _weights(samples: Sequence[FitSample]) -> F64:
    """Rows that differ in little more than their number of GPUs count together as much as the root of their number."""
    like = [(s.case.stack.name, s.case.model.name, s.case.system.device.name, s.case.plan.precision) for s in samples]
    count = Counter(like)
    return np.array([count[k] ** -0.5 for k in like])


def efficiency_under(
    effects: Effects, groups: list[tuple[str, str]], start: Efficiency = CENTRE, *, least: float = 1.0
) -> Efficiency:
    """Factors of a row, from the known effects; that of overlap is at least `least`."""
    known = [effects[g] for g in groups if g in effects]
    factor = np.array(start.values()) * np.exp(np.sum(known, axis=0) if known else 0.0)
    factor[KNOBS.index("overlap")] = max(factor[KNOBS.index("overlap")], least)
    return Efficiency(**dict(zip(KNOBS, (round(float(f), 3) for f in factor), strict=True)))


def held_out(samples: Sequence[FitSample], groups: Groups) -> list[float]:
    """Error of each row (predicted over measured, minus 1) under effects fitted without its source."""
    found = np.zeros(len(samples))
    for source in dict.fromkeys(s.source for s in samples):
        effects = fit_effects([s for s in samples if s.source != source], groups)
        for i, s in enumerate(samples):
            if s.source == source:
                found[i] = error_of(s, efficiency_under(effects, groups(s.case), centre_of(s.case)))
    return found.tolist()


def error_of(sample: FitSample, by: Efficiency) -> float:
    return sample.outcome.at(by) / sample.case.step_s - 1

"""Published figures beside what the study finds."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, Final

import numpy as np

from etude.base.errors import EtudeError
from etude.decide.study.checks import names_of
from etude.decide.study.expressions import evaluated
from etude.decide.study.spec import Claim, StudySpec
from etude.decide.study.stats import ALPHA

Row = Mapping[str, Any]
NEAR: Final = 1.3
"""Effects that differ by no more than this factor agree."""
NONE: Final = 0.01
"""An effect below this is none."""


def compare_claims(spec: StudySpec, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every claim: the published figure, ours, its 95% interval over seeds, and how they compare.

    `agrees`: the interval holds the published figure and not that there is no effect, or the effects (what a gain has
    above 1, a share above 0) differ by no more than a factor of 1.3; `weaker` or `stronger`: by more; `contradicts`:
    the effect goes the other way.
    """
    return [_claimed(spec, claim, rows) for claim in spec.claims]


def _claimed(spec: StudySpec, claim: Claim, rows: Sequence[Row]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "figure": claim.figure, "published": _published(claim), "ours": None, "low": None, "high": None,
        "conditions": claim.conditions, "kind": claim.kind, "unit": claim.unit, "why": claim.why,
        "verdict": "not asked", "detail": "",
    }  # fmt: skip
    where = f"{spec.where}: claim `{claim.figure}`"
    try:
        ours = evaluated(claim.ours, names_of(spec, rows), where)
        if claim.published is None:
            held = bool(np.all(ours))
            return found | {"ours": held, "verdict": "agrees" if held else "contradicts"}
        value = float(ours)
        low, high = _interval(spec, claim, rows, where)
    except EtudeError as problem:
        return found | {"detail": problem.problem}
    except (TypeError, ValueError):
        return found | {"detail": f"`{claim.ours}` is not one number"}
    if not np.isfinite(value):
        return found | {"detail": f"`{claim.ours}` is {value}"}
    return found | {"ours": value, "low": low, "high": high, "verdict": _verdict(claim, value, low, high)}


def _published(claim: Claim) -> Any:
    if claim.published is None:
        return None
    low, high = claim.published
    return low if low == high else [low, high]


def _interval(spec: StudySpec, claim: Claim, rows: Sequence[Row], where: str) -> tuple[float | None, float | None]:
    """Student's interval over the seeds, by leaving each of them out: expressions need not be means."""
    n = len(spec.seeds)
    if n < 2:
        return None, None
    from scipy.stats import t

    whole = float(evaluated(claim.ours, names_of(spec, rows), where))
    without = [
        float(evaluated(claim.ours, names_of(spec, [row for row in rows if row["seed"] != seed]), where))
        for seed in spec.seeds
    ]
    each = n * whole - (n - 1) * np.array(without)
    half = float(t.ppf(1 - ALPHA / 2, n - 1)) * float(each.std(ddof=1)) / sqrt(n)
    return whole - half, whole + half


def _verdict(claim: Claim, ours: float, low: float | None, high: float | None) -> str:
    assert claim.published is not None
    least, most = claim.published
    none = {"gain": 1.0, "share": 0.0, "amount": -np.inf}[claim.kind]
    if low is not None and high is not None and low <= most and high >= least and not low <= none <= high:
        return "agrees"
    if claim.kind == "amount":
        if least / NEAR <= ours <= most * NEAR:
            return "agrees"
        return "stronger" if (ours > most) == (claim.better == "higher") else "weaker"
    effect, ends = _effect(claim.kind, ours), sorted(_effect(claim.kind, end) for end in claim.published)
    if ends[0] < 0 and ends[1] <= 0:
        effect, ends = -effect, [-ends[1], -ends[0]]
    if ends[0] / NEAR <= effect <= ends[1] * NEAR or abs(effect) + abs(ends[1]) <= NONE:
        return "agrees"
    if effect < -NONE and ends[1] > 0:
        return "contradicts"
    return "stronger" if effect > ends[1] else "weaker"


def _effect(kind: str, value: float) -> float:
    """What is more than none: of a gain beyond 1, the same above and below it."""
    if kind == "share":
        return value
    return value - 1 if value >= 1 else 1 - 1 / value if value > 0 else -np.inf

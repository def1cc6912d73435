"""Published figures beside ours: verdicts worked out by hand, intervals by drawing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.decide.study.claims import compare_claims
from etude.decide.study.spec import StudySpec, spec_of


def spec(claim: dict[str, Any], seeds: int = 0) -> StudySpec:
    more = {"seeds": seeds} if seeds else {}
    return spec_of(
        {
            "workload": "toy", "baseline": {"name": "slow"}, "variants": {"fast": {"x": 1}},
            "metrics": {"time": {"value": "time", "better": "lower"}}, "claims": [{"figure": "f", **claim}], **more,
        },
        "s", "s.yaml", Path("/nowhere"),
    )  # fmt: skip


def verdict(ours: float, **claim: Any) -> str:
    rows = [{"variant": "slow", "error": "", "time": ours}, {"variant": "fast", "error": "", "time": 1.0}]
    [found] = compare_claims(spec({"ours": "time('slow') / time('fast')", **claim}), rows)
    return str(found["verdict"])


@pytest.mark.parametrize(
    "ours, claim, said",
    [
        (1.35, {"published": 1.35}, "agrees"),
        (1.28, {"published": 1.35}, "agrees"),  # 0.28 beyond 1 against 0.35: 1.25 times
        (1.25, {"published": 1.35}, "weaker"),  # 1.4 times
        (1.50, {"published": 1.35}, "stronger"),
        (1.005, {"published": 1.35}, "weaker"),
        (0.90, {"published": 1.35}, "contradicts"),
        (2.0, {"published": [1.2, 2.77]}, "agrees"),
        (3.4, {"published": [1.2, 2.77]}, "stronger"),  # 2.4 against 1.77: 1.36 times
        (0.68, {"published": 0.7}, "agrees"),
        (1.20, {"published": 0.7}, "contradicts"),
        (0.50, {"published": 0.7}, "stronger"),
        (0.30, {"published": 0.25, "kind": "share"}, "agrees"),
        (0.10, {"published": 0.25, "kind": "share"}, "weaker"),
        (-0.1, {"published": 0.25, "kind": "share"}, "contradicts"),
        (0.0, {"published": 0, "kind": "share"}, "agrees"),
        (-0.03, {"published": [-0.05, 0.05], "kind": "share"}, "agrees"),
        (-0.10, {"published": [-0.05, 0.05], "kind": "share"}, "contradicts"),
        (500.0, {"published": 607, "kind": "amount"}, "agrees"),
        (400.0, {"published": 607, "kind": "amount"}, "weaker"),
        (400.0, {"published": 607, "kind": "amount", "better": "lower"}, "stronger"),
    ],
)
def test_verdicts(ours: float, claim: dict[str, Any], said: str) -> None:
    assert verdict(ours, **claim) == said


def test_a_statement_holds_or_not() -> None:
    rows = [{"variant": "slow", "error": "", "time": 2.0}, {"variant": "fast", "error": "", "time": 1.0}]
    [yes] = compare_claims(spec({"ours": "time('slow') > time('fast')"}), rows)
    [no] = compare_claims(spec({"ours": "time('slow') < time('fast')"}), rows)
    assert (yes["verdict"], yes["published"], no["verdict"]) == ("agrees", None, "contradicts")


def test_what_is_not_in_the_study_is_not_asked() -> None:
    rows = [{"variant": "slow", "error": "", "time": 2.0}]
    [found] = compare_claims(spec({"published": 2, "ours": "time('slow') / time('fast')"}), rows)
    assert (found["verdict"], found["ours"]) == ("not asked", None)


def test_the_interval_of_a_ratio_of_means_holds_it_in_95_of_100_studies() -> None:
    of, draw, held = spec({"published": 5, "ours": "time('slow') / time('fast')"}, 8), np.random.default_rng(3), 0
    for _ in range(300):
        base = draw.normal(10, 1, 8)
        rows = [
            {"variant": name, "seed": seed, "error": "", "time": float(value)}
            for name, values in (("slow", base), ("fast", base / 2 + draw.normal(0, 0.3, 8)))
            for seed, value in enumerate(values)
        ]
        [found] = compare_claims(of, rows)
        held += found["low"] <= 2 <= found["high"]
    assert 0.91 <= held / 300 <= 0.985

"""Choosing alternatives within budgets: against all assignments tried one by one, and what is refused."""

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from etude.surface.cli import main
from etude.world.serve.workflow import run_workflow, session_table, workflow_summary
from etude.world.serve.workflow.spec import workflow_of


def drawn(seed: int) -> dict[str, Any]:
    """Five tasks: a, then b and c side by side, then d after both, and e after a."""
    random_ = random.Random(seed)
    after = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["a"]}

    def way() -> dict[str, Any]:
        return {
            "tool": "x", "time": f"{random_.randint(1, 9)}s", "cost": float(random_.randint(1, 9)),
            "label": random_.randint(1, 99) / 100,
        }  # fmt: skip

    return {name: {"after": of, "alternatives": [way() for _ in range(random_.randint(1, 3))]}
            for name, of in after.items()}  # fmt: skip


def by_trying_all(tasks: dict[str, Any], latency: float, cost: float) -> float:
    """The best lowest label of all assignments that keep both limits; -1 if none does."""
    best = -1.0
    for ways in product(*(tasks[name]["alternatives"] for name in "abcde")):
        t = [float(way["time"][:-1]) for way in ways]
        takes = t[0] + max(max(t[1], t[2]) + t[3], t[4])
        if takes <= latency and sum(way["cost"] for way in ways) <= cost:
            best = max(best, min(way["label"] for way in ways))
    return best


@pytest.mark.parametrize("seed", range(30))
def test_the_chooser_finds_the_best_of_all_assignments(seed: int):
    tasks = drawn(seed)
    latency, cost = 8.0 + seed % 7, 12.0 + seed % 11
    budget = {"latency": f"{latency}s", "cost": cost}
    flow = workflow_of({"tasks": tasks, "sessions": 2, "rate": 1e-4, "budget": budget}, "f")
    said = workflow_summary(run_workflow(flow, {}, choose="pixie"))
    best = by_trying_all(tasks, latency, cost)
    assert said["violations"] == (0 if best >= 0 else 2)
    if best >= 0:
        assert said["label"] == pytest.approx(best)


def test_without_budgets_it_is_the_best_and_with_one_alternative_nothing():
    tasks = drawn(3)
    flow = workflow_of({"tasks": tasks, "sessions": 3, "vary": 0.5}, "f")
    best, pixie = (session_table(run_workflow(flow, {}, choose=name)) for name in ("fixed:best", "pixie"))
    assert best.equals(pixie)
    only = {name: {**one, "alternatives": one["alternatives"][:1]} for name, one in tasks.items()}
    flow = workflow_of({"tasks": only, "sessions": 3, "budget": {"latency": "1s"}}, "f")
    first, pixie = (session_table(run_workflow(flow, {}, choose=name)) for name in ("first", "pixie"))
    assert first.equals(pixie)


def test_times_that_were_seen_count():
    """The fast one takes 4 s by the file, but waits for the one place of its endpoint behind sessions of others."""
    ways = [{"tool": "fast", "time": "4s", "label": 0.9}, {"tool": "slow", "time": "5s", "label": 0.8}]
    given = {
        "tasks": {"a": {"alternatives": ways}}, "sessions": 40, "rate": 0.5, "endpoints": {"fast": 1},
        "budget": {"latency": "6s"},
    }  # fmt: skip
    fixed, pixie = (
        workflow_summary(run_workflow(workflow_of(given, "f"), {}, choose=name)) for name in ("fixed:best", "pixie")
    )
    assert pixie["violations"] < fixed["violations"] / 2


def test_many_alternatives_are_thinned_out():
    ways = [{"tool": "x", "time": f"{k}s", "cost": float(9 - k), "label": k / 10} for k in range(1, 9)]
    tasks = {f"t{n}": {"alternatives": ways, "after": [f"t{n - 1}"] if n else []} for n in range(14)}
    for budget in ({"latency": "40s"}, {"cost": 40.0}):
        flow = workflow_of({"tasks": tasks, "sessions": 1, "budget": budget}, "f")
        assert workflow_summary(run_workflow(flow, {}, choose="pixie"))["violations"] == 0


def test_branches_that_were_not_taken_are_not_planned_for():
    """After `a` the dear one is never taken: the rest of the budget is free for `end`."""
    ways = [{"tool": "x", "cost": 5.0, "label": 0.9}, {"tool": "x", "cost": 1.0, "label": 0.5}]
    tasks = {
        "a": {"tool": "x", "branch": {"dear": 0.0, "cheap": 1.0}},
        "dear": {"tool": "x", "cost": 9.0, "after": "a"},
        "cheap": {"after": "a", "alternatives": ways},
    }
    flow = workflow_of({"tasks": tasks, "sessions": 1, "budget": {"cost": 6.0}}, "f")
    assert workflow_summary(run_workflow(flow, {}, choose="pixie"))["label"] == 0.9


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--choose", "fixed:worst"], "unknown choice `fixed:worst`"),
        (["--slo", "price=3"], "unknown key `price`"),
        (["--slo", "latency"], "--slo: column 1: `latency` has no value"),
        (["--place", "somewhere"], "--place somewhere"),
    ],
)
def test_what_is_wrong_is_told(words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "f.yaml").write_text(yaml.safe_dump({"tasks": drawn(0)}))
    assert main(["serve", "--workflow", str(tmp_path / "f.yaml"), *words]) == 2
    err = capsys.readouterr().err
    assert told in err and "Traceback" not in err

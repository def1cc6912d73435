"""Choosing among the alternatives of a task: fixed rules, and `pixie`, which stays within the budgets of a session.

choose(task, state) -> the number of an alternative
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import F64

Choose = Callable[[dict[str, Any], dict[str, Any]], Any]
MOST_PLANS: Final = 4096
"""Plans for the rest of a session that are compared; with more, fewer alternatives per task are kept."""


def first(task: dict[str, Any], state: dict[str, Any]) -> int:
    return 0


def best(task: dict[str, Any], state: dict[str, Any]) -> int:
    """The best label; ties by the lowest cost."""
    ways = task["alternatives"]
    return max(range(len(ways)), key=lambda k: (ways[k]["label"], -ways[k]["cost"]))


def cheap(task: dict[str, Any], state: dict[str, Any]) -> int:
    """The lowest cost; ties by the shortest known time."""
    ways = task["alternatives"]
    return min(range(len(ways)), key=lambda k: (ways[k]["cost"], ways[k]["time_s"]))


def within(task: dict[str, Any], state: dict[str, Any]) -> int:
    """The best label of those whose cost and time, where known, fit the remaining budget; else the cheapest."""
    ways, budget, spent = task["alternatives"], state["budget"], state["spent"]
    fits = [
        k
        for k, way in enumerate(ways)
        if spent["cost"] + way["cost"] <= budget.get("cost", np.inf)
        and spent["latency_s"] + way["time_s"] <= budget.get("latency_s", np.inf)
    ]
    return max(fits, key=lambda k: (ways[k]["label"], -ways[k]["cost"])) if fits else cheap(task, state)


def pixie(task: dict[str, Any], state: dict[str, Any]) -> int:
    """The alternative of the plan for this task and the rest of the session that meets all budgets with the best label.

    A plan has an alternative for each task that may still come. Its time is its longest chain, with the 95th percentile
    of the observed times of each alternative. Of plans within the budgets: the best lowest label, then the best labels,
    then the lowest cost. If none is: the fewest budgets exceeded, then by the least.
    """
    tasks = [task, *state["rest"]]
    plans = _plans(tasks)
    cost, label, every = (np.zeros(len(plans)) for _ in range(3))
    label[:] = state["spent"]["label"]
    for column, one in enumerate(tasks):
        ways, k = one["alternatives"], plans[:, column]
        labels = np.array([way["label"] for way in ways])[k]
        cost += np.array([way["cost"] for way in ways])[k]
        label, every = np.minimum(label, labels), every + labels
    time = _longest(tasks, plans)
    budget, spent = state["budget"], state["spent"]
    over = np.stack(
        [
            (spent["cost"] + cost) / budget.get("cost", np.inf) - 1,
            (spent["latency_s"] + time) / budget.get("latency_s", np.inf) - 1,
            (budget.get("label", -np.inf) - label) / max(budget.get("label", 1.0), 1e-12),
        ]
    )
    over = np.where(over > 1e-9, over, 0.0)
    order = np.lexsort((time, cost, -every, -label, over.sum(axis=0), (over > 0).sum(axis=0)))
    return int(plans[order[0], 0])


def _plans(tasks: Sequence[dict[str, Any]]) -> NDArray[np.int64]:
    """A row for each plan, the alternative of each task as columns."""
    options = [list(range(len(task["alternatives"]))) for task in tasks]
    for fewer in (("cheap", "fast", "best"), ("cheap", "fast")):
        if np.prod([float(len(one)) for one in options]) <= MOST_PLANS:
            break
        options = [options[0], *(_ends(task["alternatives"], fewer) for task in tasks[1:])]
    if np.prod([float(len(one)) for one in options]) > MOST_PLANS:
        ends = [_ends(task["alternatives"], (which,))[0] for which in ("cheap", "fast") for task in tasks[1:]]
        halves = ends[: len(tasks) - 1], ends[len(tasks) - 1 :]
        return np.array([[k, *half] for k in options[0] for half in halves], np.int64)
    return np.array(list(product(*options)), np.int64)


def _ends(ways: Sequence[dict[str, Any]], which: Sequence[str]) -> list[int]:
    """The cheapest, the fastest and the best of a task's alternatives."""
    by = {
        "cheap": lambda k: (ways[k]["cost"], ways[k]["late_s"]),
        "fast": lambda k: (ways[k]["late_s"], ways[k]["cost"]),
        "best": lambda k: (-ways[k]["label"], ways[k]["cost"]),
    }
    return sorted({min(range(len(ways)), key=by[one]) for one in which})


def _longest(tasks: Sequence[dict[str, Any]], plans: NDArray[np.int64]) -> F64:
    """The longest chain of each plan, in s from now. Tasks are in topological order."""
    ends: dict[str, F64] = {}
    total = np.zeros(len(plans))
    for column, one in enumerate(tasks):
        takes = np.array([way["late_s"] for way in one["alternatives"]])[plans[:, column]]
        begins = np.zeros(len(plans))
        for other in one["after"]:
            begins = np.maximum(begins, ends.get(other, 0.0))
        ends[one["task"]] = begins + takes
        total = np.maximum(total, ends[one["task"]])
    return total


CHOOSERS: Final[dict[str, Choose]] = {
    "first": first, "best": best, "cheap": cheap, "within": within, "pixie": pixie,
    "fixed:first": first, "fixed:best": best, "fixed:cheap": cheap,
}  # fmt: skip


def chooser(given: str | Choose) -> Choose:
    if not isinstance(given, str):
        return given
    if given not in CHOOSERS:
        raise UsageError(f"unknown choice `{given}`", hint=f"known: {', '.join(CHOOSERS)}, or FILE.py:name")
    return CHOOSERS[given]

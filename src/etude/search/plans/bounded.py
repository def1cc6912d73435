"""Branch and bound: candidates in the order of what they can be at best; those that cannot be the best are not
simulated.

A bound is first that of a family, the plans that differ in recomputation alone, without any: done twice can only take
longer. Rounds have a fixed size, so what is tried does not depend on the number of workers.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from etude.generate.train import model_flops, sequence_of
from etude.search.crew import Crew
from etude.search.found import Row
from etude.search.plans.candidates import NOT_A_PLAN, Candidate
from etude.search.plans.scores import SCORES, AtBest, breaks, dominated
from etude.search.plans.space import PlanSpace
from etude.search.plans.tasks import REFUSED

TOO_LARGE: Final = "does not fit"
BOUND: Final = "bound is no better"
OVER: Final = "over the limit of"
SIMULATED: Final = 8
"""Candidates of a round that are simulated at most."""
LOOKED: Final = 32
"""Candidates of a round whose own bound and memory are worked out at most."""
ALWAYS: Final = ("tp", "pp", "cp", "ep", "zero", "schedule", "micro_batch", "recompute")
"""Fields of a plan that a row has, whether they are searched or not."""
AGAIN: Final = ("recompute",)
"""Fields in which plans of a family differ."""
MOVING: Final = ("recompute", "micro_batch")
"""Fields on which what a GPU holds all the time does not depend."""


@dataclass(slots=True)
class Tree:
    """The candidates that are left, and what is known of them."""

    space: PlanSpace
    crew: Crew
    pruned: Counter[str]
    advance: Callable[[int], None] = lambda n: None
    rows: list[Row] = field(default_factory=list)
    """Those simulated that keep all limits."""
    refusal: str = ""
    at_best: dict[tuple[str, int, int, int], AtBest] = field(default_factory=dict)

    # -- what is known -----------------------------------------------------------------------------------------------

    def ask(self, what: str, some: Sequence[Candidate], *without: str) -> list[dict[str, Any]]:
        """Answers for candidates; those that are alike but for some fields share one."""
        points = [{"what": what, "system": c.system, "plan": c.text(*without)} for c in some]
        alike = {(p["system"], p["plan"]): p for p in points}
        answers = dict(zip(alike, self.crew.ask(list(alike.values())), strict=True))
        return [answers[p["system"], p["plan"]] for p in points]

    def prune(self, why: str, count: int = 1) -> None:
        self.pruned[why] += count
        self.advance(count)

    def best_of(self, c: Candidate, step_ns: float, memory: int | None) -> Row:
        """What a candidate can be at best."""
        plan = c.plan
        key = c.system, plan.gpus, plan.batch, plan.micro_batch if "mfu" in self.space.scores else 0
        if key not in self.at_best:
            system, price = self.space.systems[c.system], self.space.prices.get(c.system)
            seq = plan.seq or sequence_of(self.space.opened)
            flops = model_flops(self.space.opened, plan) / plan.steps if "mfu" in self.space.scores else 0.0
            self.at_best[key] = AtBest(
                plan.gpus, plan.batch * seq, flops, system.peak(plan.dtype, plan.gpus),
                None if price is None else price * plan.gpus,
            )  # fmt: skip
        return self.at_best[key].row(step_ns, memory)

    def hopeless(self, best: Row) -> str:
        """Why nothing better can come of what is at best this; nothing if it can."""
        if name := breaks(best, {k: v for k, v in self.space.limits.items() if k != "memory"}):
            return f"{OVER} {name}"
        return BOUND if dominated(best, self.rows, self.space.scores) else ""

    # -- stages ------------------------------------------------------------------------------------------------------

    def without_large(self, some: Sequence[Candidate]) -> list[Candidate]:
        """Without those whose weights and optimizer alone do not fit."""
        if not any(self.space.memory_limit(name) for name in self.space.systems):
            return list(some)
        kept = []
        for c, found in zip(some, self.ask("static", some, *MOVING), strict=True):
            limit = self.space.memory_limit(c.system)
            if limit and found.get("bytes", 0) > limit:
                self.prune(TOO_LARGE)
            else:
                kept.append(c)
        return kept

    def bounds(self, some: Sequence[Candidate], *without: str) -> list[tuple[float, Candidate]]:
        """(ns of a step at least, candidate) of those that are plans."""
        found = []
        for c, answer in zip(some, self.ask("bound", some, *without), strict=True):
            if REFUSED in answer and not without:
                self.refuse(answer[REFUSED])
            else:
                found.append((float(answer.get("ns", 0.0)), c))
        return found

    def refuse(self, why: str) -> None:
        self.refusal = self.refusal or why
        self.prune(NOT_A_PLAN)

    def looked(self, some: Sequence[Candidate]) -> list[tuple[float, int, Candidate]]:
        """(own bound, memory, candidate) of those that are plans and fit."""
        fits: list[tuple[int, Candidate]] = []
        for c, answer in zip(some, self.ask("memory", some), strict=True):
            limit = self.space.memory_limit(c.system)
            if REFUSED in answer:
                self.refuse(answer[REFUSED])
            elif limit and answer["bytes"] > limit:
                self.prune(TOO_LARGE)
            else:
                fits.append((answer["bytes"], c))
        memory = {c.number: size for size, c in fits}
        return [(ns, memory[c.number], c) for ns, c in self.bounds([c for _, c in fits])]

    def scored(self, some: Sequence[Candidate]) -> None:
        for c, answer in zip(some, self.ask("score", some), strict=True):
            if REFUSED in answer:
                self.refuse(answer[REFUSED])
                continue
            row = row_of(self.space, c, answer)
            if name := breaks(row, self.space.limits):
                self.prune(f"{OVER} {name}")
                continue
            self.rows.append(row)
            self.advance(1)


def row_of(space: PlanSpace, c: Candidate, scored: Mapping[str, Any]) -> Row:
    """What is told of a candidate: where it lies on the axes, and what it scores."""
    row: Row = {"system": c.system, "gpus": c.plan.gpus}
    row |= {name: _said(c, name) for name in dict.fromkeys([*space.axes, *ALWAYS]) if name != "system"}
    row |= {"dp": c.plan.dp, "global_batch": c.plan.batch, **scored}
    if (price := space.prices.get(c.system)) is not None:
        row["cost_usd"] = price * c.plan.gpus * scored["step_time_ns"] / 3.6e12
    return row | {"flags": flags_of(c)}


def _said(c: Candidate, name: str) -> Any:
    value = getattr(c.plan, {"memory_budget": "memory_budget_bytes"}.get(name, name), c.given.get(name))
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value) if isinstance(value, str) else value


def flags_of(c: Candidate) -> str:
    """The plan as flags of `etude predict`."""
    words = []
    for name, value in c.given.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag} {','.join(map(str, value)) if isinstance(value, list) else value}")
    return " ".join(words)


def bounded(tree: Tree, some: Sequence[Candidate]) -> None:
    """Simulates candidates until no other can be better; `tree` has the rows and the reasons."""
    first = SCORES[tree.space.scores[0]]

    def entry(ns: float, memory: int | None, c: Candidate) -> tuple[float, float, int, int | None, Candidate]:
        best = tree.best_of(c, ns, memory)
        return first.sign * best[first.column], ns, c.number, memory, c

    heap = [entry(ns, None, c) for ns, c in tree.bounds(tree.without_large(some), *AGAIN)]
    heapq.heapify(heap)
    while heap:
        look: list[Candidate] = []
        score: list[Candidate] = []
        while heap and len(look) < LOOKED and len(score) < SIMULATED:
            _, ns, _, memory, c = heapq.heappop(heap)
            if why := tree.hopeless(tree.best_of(c, ns, memory)):
                tree.prune(why)
            elif memory is None:
                look.append(c)
            else:
                score.append(c)
        for ns, memory, c in tree.looked(look):
            heapq.heappush(heap, entry(ns, memory, c))
        tree.scored(score)


def first_few(tree: Tree, some: Sequence[Candidate], count: int) -> None:
    """Simulates the so many that fit and have the least bounds; of a family the one that recomputes least."""
    order = sorted((ns, c.number, c) for ns, c in tree.bounds(tree.without_large(some), *AGAIN))
    chosen: list[Candidate] = []
    families: set[tuple[str, str]] = set()
    for at in range(0, len(order), LOOKED):
        some = [c for _, _, c in order[at : at + LOOKED]]
        for _, _, c in sorted((n, c.number, c) for n, _, c in tree.looked(some)):
            family = c.system, c.text(*AGAIN)
            if family in families or len(chosen) >= count:
                tree.prune("not promising")
                continue
            families.add(family)
            chosen.append(c)
        if len(chosen) >= count:
            tree.prune("not promising", len(order) - at - len(some))
            break
    tree.scored(chosen)

"""Branch and bound: candidates in the order of what they can be at best; those that cannot be the best are not
simulated.

A bound is first that of all plans that differ in sharding and recomputation alone: without what copies exchange, with
nothing done twice. Where that leaves hope it is the plan's own sharding without recomputation, then the plan's own.
Rounds have a fixed size, so what is tried does not depend on the number of workers.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from etude.decide.search.crew import Crew
from etude.decide.search.found import Row
from etude.decide.search.plans.candidates import NOT_A_PLAN, Candidate
from etude.decide.search.plans.scores import SCORES, AtBest, breaks, dominated
from etude.decide.search.plans.space import PlanSpace
from etude.decide.search.plans.tasks import ALONE, CLOSER, LOOK, PLACE, REFUSED, SCORE
from etude.make.generate.train import model_flops, sequence_of

TOO_LARGE: Final = "does not fit"
BOUND: Final = "bound is no better"
UNPROMISING: Final = "not promising"
OVER: Final = "over the limit of"
SIMULATED: Final = 8
"""Most candidates of a round that are simulated."""
LOOKED: Final = 64
"""Most candidates of a round that are examined more closely."""
ALWAYS: Final = ("tp", "pp", "cp", "ep", "zero", "schedule", "micro_batch", "recompute")
"""Fields of a plan that a row has, whether they are searched or not."""
ONCE: Final = {"recompute": "none"}
"""Normal form of plans that differ only in recomputation."""
ANY_SHARDING: Final = {"recompute": "none", "zero": 2, "dp_shard": 0}
"""And of those that differ in sharding too: with ZeRO 2 gradients move the fewest bytes."""


Answer = dict[str, Any]
"""A worker's answer for a plan."""


class WantedFigures(NamedTuple):
    """What is requested of candidates."""

    what: str
    some: Sequence[Candidate]
    changed: Mapping[str, Any] | None = None


@dataclass(slots=True)
class SearchTree:
    """The remaining candidates, and what is known about them."""

    space: PlanSpace
    crew: Crew
    pruned: Counter[str]
    advance: Callable[[int], None] = lambda n: None
    rows: list[Row] = field(default_factory=list)
    """Simulated candidates within all limits."""
    row_of: dict[int, Row] = field(default_factory=dict)
    """The same by the number of the candidate."""
    refusal: str = ""
    seed: int = 0
    at_best: dict[tuple[str, int, int, int], AtBest] = field(default_factory=dict)

    # -- what is known -----------------------------------------------------------------------------------------------

    def ask(self, *wanted: WantedFigures) -> list[list[Answer]]:
        """Answers for candidates with some fields changed, all at once; those that are then equal share one."""
        points = [[self._point(w, c) for c in w.some] for w in wanted]
        alike = {_key(p): p for some in points for p in some}
        answers = dict(zip(alike, self.crew.ask(list(alike.values())), strict=True))
        return [[answers[_key(p)] for p in some] for some in points]

    def _point(self, wanted: WantedFigures, c: Candidate) -> dict[str, Any]:
        point: dict[str, Any] = {"what": wanted.what, "system": c.system, "plan": c.text(wanted.changed)}
        if wanted.what in (LOOK, CLOSER):
            point["most"] = self.space.memory_limit(c.system)
        elif wanted.what == PLACE:
            point["seed"] = self.seed
        return point

    def prune(self, why: str, count: int = 1) -> None:
        self.pruned[why] += count
        self.advance(count)

    def best_of(self, c: Candidate, step_ns: float, memory: int | None) -> Row:
        """The best possible scores of a candidate."""
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
        """Why a candidate with these best possible scores cannot win; empty if it can."""
        if name := breaks(best, {k: v for k, v in self.space.limits.items() if k != "memory"}):
            return f"{OVER} {name}"
        return BOUND if dominated(best, self.rows, self.space.scores) else ""

    # -- stages ------------------------------------------------------------------------------------------------------

    def looked(self, some: Sequence[Candidate], answers: Sequence[Answer]) -> list[tuple[float, Candidate]]:
        """(Least ns of a step without recomputation, candidate) of those whose weights and optimizer fit. Nothing is
        known about a changed plan that is invalid."""
        found = []
        for c, answer in zip(some, answers, strict=True):
            if self._large(c, answer):
                self.prune(TOO_LARGE)
            else:
                found.append((float(answer.get("ns", 0.0)), c))
        return found

    def fitting(self, some: Sequence[Candidate], answers: Sequence[Answer]) -> list[tuple[Candidate, Answer]]:
        """Those that are valid plans and fit."""
        found = []
        for c, answer in zip(some, answers, strict=True):
            if REFUSED in answer:
                self.refuse(answer[REFUSED])
            elif self._large(c, answer):
                self.prune(TOO_LARGE)
            else:
                found.append((c, answer))
        return found

    def _large(self, c: Candidate, answer: Answer) -> bool:
        limit = self.space.memory_limit(c.system)
        return bool(limit) and answer.get("bytes", 0) > limit

    def refuse(self, why: str) -> None:
        self.refusal = self.refusal or why
        self.prune(NOT_A_PLAN)

    def scored(self, some: Sequence[Candidate], answers: Sequence[Answer]) -> None:
        for c, answer in zip(some, answers, strict=True):
            if REFUSED in answer:
                self.refuse(answer[REFUSED])
                continue
            row = told_of(self.space, c, answer)
            if name := breaks(row, self.space.limits):
                self.prune(f"{OVER} {name}")
                continue
            self.rows.append(row)
            self.row_of[c.number] = row
            self.advance(1)


def _key(point: Mapping[str, Any]) -> tuple[str, str, str]:
    return point["what"], point["system"], point["plan"]


def told_of(space: PlanSpace, c: Candidate, scored: Mapping[str, Any]) -> Row:
    """Description of a candidate: its position on the axes, and its score."""
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


class Open(NamedTuple):
    """A remaining candidate, in the order of examination."""

    key: float
    """Its best possible first score, less is better."""
    step_ns: float
    number: int
    level: int
    """0: its bound is that of any sharding; 1: that without recomputation; 2: its own, and it fits."""
    memory: int | None
    candidate: Candidate


def bounded(tree: SearchTree, some: Sequence[Candidate]) -> None:
    """Simulates candidates until no other can be better; `tree` has the rows and the reasons."""
    first = SCORES[tree.space.scores[0]]

    def entry(level: int, ns: float, c: Candidate, memory: int | None = None) -> Open:
        best = tree.best_of(c, ns, memory)
        return Open(first.sign * best[first.column], ns, c.number, level, memory, c)

    # With gradients in 16 bits ZeRO 2 may move more bytes than none: then each sharding has its own bound.
    alike = ONCE if "grad_dtype" in {*tree.space.axes, *tree.space.fixed} else ANY_SHARDING
    answers = tree.ask(WantedFigures(ALONE, some, alike))[0]
    heap = [entry(0, float(found.get("ns", 0.0)), c) for c, found in zip(some, answers, strict=True)]
    heapq.heapify(heap)
    while heap:
        levels: tuple[list[Candidate], ...] = ([], [], [])
        while heap and len(levels[0]) + len(levels[1]) < LOOKED and len(levels[2]) < SIMULATED:
            one = heapq.heappop(heap)
            if why := tree.hopeless(tree.best_of(one.candidate, one.step_ns, one.memory)):
                tree.prune(why)
            else:
                levels[one.level].append(one.candidate)
        first_look, second_look, last = levels
        # Simulations take longest: they are the first to be sent.
        scores, closer, looks = tree.ask(
            WantedFigures(SCORE, last), WantedFigures(CLOSER, second_look), WantedFigures(LOOK, first_look, ONCE)
        )
        for ns, c in tree.looked(first_look, looks):
            heapq.heappush(heap, entry(1, ns, c))
        for c, found in tree.fitting(second_look, closer):
            heapq.heappush(heap, entry(2, float(found["ns"]), c, found["bytes"]))
        tree.scored(last, scores)


def first_few(tree: SearchTree, some: Sequence[Candidate], count: int) -> None:
    """Simulates the `count` candidates that fit and have the lowest bounds; of a family only the one that recomputes
    least."""
    looks = tree.ask(WantedFigures(LOOK, some, ONCE))[0]
    order = sorted((ns, c.number, c) for ns, c in tree.looked(some, looks))
    chosen: list[Candidate] = []
    families: set[tuple[str, str]] = set()
    for at in range(0, len(order), LOOKED):
        some = [c for _, _, c in order[at : at + LOOKED]]
        fits = tree.fitting(some, tree.ask(WantedFigures(CLOSER, some))[0])
        for _, _, c in sorted((found["ns"], c.number, c) for c, found in fits):
            family = c.system, c.text(ONCE)
            if family in families or len(chosen) >= count:
                tree.prune(UNPROMISING)
                continue
            families.add(family)
            chosen.append(c)
        if len(chosen) >= count:
            tree.prune(UNPROMISING, len(order) - at - len(some))
            break
    tree.scored(chosen, tree.ask(WantedFigures(SCORE, chosen))[0])

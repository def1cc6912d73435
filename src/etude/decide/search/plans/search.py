"""The best plans of a space.

A bound is first that of all plans that differ in sharding and recomputation alone: without what copies exchange, with
nothing done twice. Where that leaves hope it is the plan's own sharding without recomputation, then the plan's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.base.units import format_time
from etude.decide.search.axes import AxesSpace, Point
from etude.decide.search.crew import crew
from etude.decide.search.found import Found, Row, frontier
from etude.decide.search.plans.candidates import NOT_A_PLAN, Candidate, candidates
from etude.decide.search.plans.rows import at_best, plan_row, side_by_side
from etude.decide.search.plans.scores import SCORES, AtBest, breaks
from etude.decide.search.plans.space import PlanSpace
from etude.decide.search.plans.tasks import ALONE, CLOSER, LOOK, MEMORY, PLACE, REFUSED, SCORE, family, shared_of, task
from etude.decide.search.request import SearchRequest
from etude.decide.search.solver import METHODS, Answer, Trials, search_space
from etude.decide.study.results import forget

TOO_LARGE: Final = "does not fit"
UNPROMISING: Final = "not promising"
OVER: Final = "over the limit of"
ONCE: Final = {"recompute": "none"}
"""Normal form of plans that differ only in recomputation."""
ANY_SHARDING: Final = {"recompute": "none", "zero": 2, "dp_shard": 0}
"""And of those that differ in sharding too: with ZeRO 2 gradients move the fewest bytes."""
PLACED: Final = 3
"""Plans whose ranks are placed, the best first."""
ABOUT: Final = ("placement", "placement_from", "unplaced_ns")
COUNTS: Final = ("simulated", "placements")
"""What is known of a placed plan, besides its scores."""


class WantedFigures(NamedTuple):
    """What is requested of candidates."""

    what: str
    some: Sequence[Point]
    changed: Mapping[str, Any] | None = None


def search_plans(space: PlanSpace, asked: SearchRequest) -> Found:
    asked.once("plans")
    if asked.fresh and asked.out is not None:
        forget(asked.out)
    return search_space(PlanSearch(space), asked)


class PlanSearch(AxesSpace):
    """Plans, the least bound first. Their bounds have three levels, and each asks more of a worker."""

    noun, levels, round_size, look_size = "plans", 3, 8, 64

    def __init__(self, space: PlanSpace) -> None:
        every_plan = candidates(space.opened, space.axes, space.fixed, space.system)
        self.space, self.plans, self.alike = space, every_plan.found, every_plan.same
        self.axes, self.size, self.left_out = list(space.axes.values()), every_plan.space, every_plan.pruned
        self.scores = {SCORES[name].column: SCORES[name].sign for name in space.scores}
        self.methods = {**METHODS, "all": first_few} if space.tries else METHODS
        self.refusal = every_plan.first_refusal
        self.at_best: dict[tuple[str, int, int, int], AtBest] = {}
        # With gradients in 16 bits ZeRO 2 may move more bytes than none: then each sharding has its own bound.
        self.once = ONCE if "grad_dtype" in {*space.axes, *space.fixed} else ANY_SHARDING

    @contextmanager
    def working(self, asked: SearchRequest) -> Iterator[None]:
        self.asked = asked
        with crew(task, shared_of(self.space), asked, family) as self.crew:
            yield

    def candidates(self) -> list[Point]:
        return list(self.plans)

    def same(self, one: Point) -> Point:
        return self.alike.get(one, one)

    def order(self, one: Point, row: Row) -> Any:
        return *(sign * row[name] for name, sign in self.scores.items()), row["flags"]

    def rank(self, row: Row) -> tuple[float, ...]:
        return *super().rank(row), row["step_time_ns"]

    def hopeless(self, bound: Row, trials: Trials[Point]) -> str:
        name = breaks(bound, {k: v for k, v in self.space.limits.items() if k != "memory"})
        return f"{OVER} {name}" if name else super().hopeless(bound, trials)

    def ask(self, *wanted: WantedFigures) -> list[list[dict[str, Any]]]:
        """Answers for candidates with some fields changed, all at once; those that are then equal share one."""
        points = [[self._point(w, self.plans[one]) for one in w.some] for w in wanted]
        alike = {(p["what"], p["system"], p["plan"]): p for some in points for p in some}
        answers = dict(zip(alike, self.crew.ask(list(alike.values())), strict=True))
        return [[answers[p["what"], p["system"], p["plan"]] for p in some] for some in points]

    def _point(self, wanted: WantedFigures, c: Candidate) -> dict[str, Any]:
        point: dict[str, Any] = {"what": wanted.what, "system": c.system, "plan": c.text(wanted.changed)}
        if wanted.what in (LOOK, CLOSER):
            point["most"] = self.space.memory_limit(c.system)
        elif wanted.what == PLACE:
            point["seed"] = self.asked.seed
        return point

    def look(self, by_level: Sequence[Sequence[Point]], limit: float) -> list[list[Answer]]:
        alone, looks, closer, last = by_level
        wanted = (
            WantedFigures(ALONE, alone, self.once),
            WantedFigures(LOOK, looks, ONCE),
            WantedFigures(CLOSER, closer),
            WantedFigures(SCORE, last),
        )
        readers = self._changed_bound, self._changed_bound, self._bound, self._row
        found = self.ask(*wanted[::-1])[::-1]  # simulations take longest: they are the first to be sent
        return [
            [read(one, answer) for one, answer in zip(some, answers, strict=True)]
            for read, some, answers in zip(readers, by_level, found, strict=True)
        ]

    def _why_not(self, one: Point, answer: Mapping[str, Any]) -> str:
        if answer.get(REFUSED):
            self.refusal = self.refusal or answer[REFUSED]
            return NOT_A_PLAN
        limit = self.space.memory_limit(self.plans[one].system)
        return TOO_LARGE if limit and answer.get("bytes", 0) > limit else ""

    def _changed_bound(self, one: Point, answer: Mapping[str, Any]) -> Answer:
        """Nothing is known about a changed plan that is invalid, and its memory is not that of the plan."""
        return self._why_not(one, {**answer, REFUSED: ""}) or self._at_best(one, answer.get("ns", 0.0), None)

    def _bound(self, one: Point, answer: Mapping[str, Any]) -> Answer:
        return self._why_not(one, answer) or self._at_best(one, answer["ns"], answer["bytes"])

    def _at_best(self, one: Point, least_ns: float, memory: int | None) -> Row:
        """The best possible scores."""
        plan, system = self.plans[one].plan, self.plans[one].system
        key = system, plan.gpus, plan.batch, plan.micro_batch if "mfu" in self.space.scores else 0
        if key not in self.at_best:
            self.at_best[key] = at_best(self.space, plan, system)
        return self.at_best[key].row(float(least_ns), memory)

    def _row(self, one: Point, answer: Mapping[str, Any]) -> Answer:
        if answer.get(REFUSED):
            return self._why_not(one, answer)
        row = plan_row(self.space, self.plans[one], answer)
        name = breaks(row, self.space.limits)
        return f"{OVER} {name}" if name else row

    def rows(self, some: Sequence[Point], limit: float) -> list[Answer]:
        """Memory first: what does not fit is not simulated."""
        plans = [one for one in some if one in self.plans]
        sizes = self.ask(WantedFigures(MEMORY, plans))[0]
        found: dict[Point, Answer] = {one: self._why_not(one, size) for one, size in zip(plans, sizes, strict=True)}
        fits = [one for one in plans if not found[one]]
        for one, answer in zip(fits, self.ask(WantedFigures(SCORE, fits))[0], strict=True):
            found[one] = self._row(one, answer)
        return [found.get(one, "") for one in some]

    def found(self, trials: Trials[Point]) -> Found:
        if not trials.rows:
            raise self._nothing(trials.why())
        found = trials.found(more={"axes": dict(self.space.axes), "scores": list(self.scores)})
        ranked = trials.ranked()
        plans = {(row["system"], row["flags"]): self.plans[one] for one, row in ranked}
        if self.space.placed:
            found = self._placed(found, [one for one, _ in ranked[:PLACED]])
        found = replace(found, notes=(*found.notes, range_of_best(found.best)))
        if self.asked.out is None:
            return found
        pairs = [(row, plans[row["system"], row["flags"]]) for row in found.rows]
        return replace(found, more={**found.more, "breakdown": side_by_side(self.space, pairs)})

    def _nothing(self, pruned: Mapping[str, int]) -> UsageError:
        told = ", ".join(f"{count:,} {why}" for why, count in pruned.items())
        first = f"; the first: {self.refusal}" if self.refusal and set(pruned) == {NOT_A_PLAN} else ""
        hint = "use more GPUs, a smaller --micro-batch or --seq, a larger --limit"
        return UsageError(f"no plan is left of {self.size:,}: {told}{first}", hint=hint)

    def _placed(self, found: Found, some: Sequence[Point]) -> Found:
        """The result with the ranks of these plans, which are its first, on the best places: searched last, since every
        placement is simulated."""
        rows, told = [], []
        for one, answer in zip(some, self.ask(WantedFigures(PLACE, some))[0], strict=True):
            about = {name: answer[name] for name in (*ABOUT, *COUNTS)}
            row = plan_row(self.space, self.plans[one], {k: v for k, v in answer.items() if k not in about})
            flags = row.pop("flags")
            rows.append({**row, **{name: about[name] for name in ABOUT}, "flags": flags})
            gain = answer["unplaced_ns"] / answer["step_time_ns"]
            told.append({"flags": flags, "step_time_ns": answer["step_time_ns"], "gain": gain, **about})
        rows = sorted([*rows, *found.rows[len(some) :]], key=lambda row: self.order((), row))
        best = next(one for one in told if one["flags"] == rows[0]["flags"])
        note = (
            f"ranks of the best {len(told)} plans were placed, {sum(one['simulated'] for one in told)} placements "
            f"simulated: {best['gain']:.3f}x for the best, {best['placement_from']}"
        )
        return replace(
            found,
            best=rows[0],
            rows=rows,
            frontier=frontier(rows, self.scores),
            notes=(*found.notes, note),
            more={**found.more, "placements": told},
        )


def range_of_best(row: Row) -> str:
    low, high = row["step_time_low_ns"], row["step_time_high_ns"]
    told = "" if low is None else f"{format_time(low)} to {format_time(high)}, 9 of 10, by "
    return f"range of the step of the best: {told}{row['step_basis']}"


def first_few(trials: Trials[Point], draw: np.random.Generator) -> None:
    """Simulates as many candidates as are asked for, which fit and have the lowest bounds; of a family only the one
    that recomputes least."""
    plans = trials.space
    assert isinstance(plans, PlanSearch)
    size = int(plans.look_size)
    chosen: list[Point] = []
    families: set[tuple[str, str]] = set()
    order = _by_bound(trials, plans.candidates(), 1)
    while order:
        some, order = order[:size], order[size:]
        for one in _by_bound(trials, some, 2):
            kin = plans.plans[one].system, plans.plans[one].text(ONCE)
            if kin in families or len(chosen) >= plans.space.tries:
                trials.take(one, UNPROMISING)
                continue
            families.add(kin)
            chosen.append(one)
        if len(chosen) >= plans.space.tries:
            break
    for one in order:
        trials.take(one, UNPROMISING)
    for one, answer in zip(chosen, plans.look([(), (), (), chosen], 0.0)[3], strict=True):
        trials.take(one, answer)


def _by_bound(trials: Trials[Point], some: Sequence[Point], level: int) -> list[Point]:
    """Those that fit, the least bound of this level first."""
    found = []
    answers = trials.space.look([some if level == n else () for n in range(4)], 0.0)[level]
    for one, answer in zip(some, answers, strict=True):
        if isinstance(answer, str):
            trials.take(one, answer)
        else:
            found.append((answer["step_time_ns"], one))
    return [one for _, one in sorted(found)]

"""The best plans of a space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from etude.base.errors import UsageError
from etude.decide.search.crew import Crew, crew
from etude.decide.search.found import Found, Row, frontier
from etude.decide.search.given import Given, SearchRequest
from etude.decide.search.methods import METHODS
from etude.decide.search.plans.bounded import SearchTree, bounded, first_few
from etude.decide.search.plans.candidates import Candidate, Candidates, candidates
from etude.decide.search.plans.local import local
from etude.decide.search.plans.placing import PLACED, noted, with_places
from etude.decide.search.plans.scores import SCORES
from etude.decide.search.plans.space import PlanSpace, read_plans
from etude.decide.search.plans.tasks import family, task
from etude.decide.search.plans.why import SHOWN, side_by_side
from etude.decide.study.results import forget


def solve(given: Given, asked: SearchRequest) -> Found:
    return solved(read_plans(given), asked)


def solved(space: PlanSpace, asked: SearchRequest) -> Found:
    method = asked.one_of("all", *METHODS)
    asked.once("plans")
    if asked.fresh and asked.out is not None:
        forget(asked.out)
    every = candidates(space.opened, space.axes, space.fixed, space.system)
    with crew(task, shared_of(space), asked, family) as workers:
        found, tree = searched(space, asked, method, workers, every)
        by_number = {c.number: c for c in every.found}
        plans = {_name(row): by_number[number] for number, row in tree.row_of.items()}
        if space.placed:
            found = _with_places(found, tree, [plans[_name(row)] for row in found.rows[:PLACED]])
    if asked.out is None:
        return found
    pairs = [(row, plans[_name(row)]) for row in found.rows[:SHOWN]]
    return replace(found, more={**found.more, "breakdown": side_by_side(space, pairs)})


def _name(row: Row) -> tuple[str, str]:
    return row["system"], row["flags"]


def _with_places(found: Found, tree: SearchTree, some: Sequence[Candidate]) -> Found:
    signs = _signs(tree.space)
    every, told = with_places(tree, found, some)
    rows = _best_first(every, signs)
    return noted(replace(found, best=rows[0], rows=rows, frontier=frontier(rows, signs)), told)


def searched(
    space: PlanSpace, asked: SearchRequest, method: str, workers: Crew, every: Candidates
) -> tuple[Found, SearchTree]:
    with asked.progress("plans", every.space) as advance:
        tree = SearchTree(space, workers, every.pruned, advance, refusal=every.first_refusal, seed=asked.seed)
        advance(sum(every.pruned.values()))
        if method in METHODS:
            local(tree, every, method, asked.seed)
        elif space.tries:
            first_few(tree, every.found, space.tries)
        else:
            bounded(tree, every.found)
        return found_of(space, tree, every.space), tree


def shared_of(space: PlanSpace) -> dict[str, object]:
    """What all calls of workers share."""
    return {
        "model": space.model, "stack": space.stack, "recipe": space.recipe, "network": space.network,
        "energy": "energy" in [*space.scores, *space.limits], "seal": space.seal,
    }  # fmt: skip


def found_of(space: PlanSpace, tree: SearchTree, whole: int) -> Found:
    pruned = {why: count for why, count in tree.pruned.items() if count}
    if not tree.rows:
        told = ", ".join(f"{count:,} {why}" for why, count in pruned.items())
        first = f"; the first: {tree.refusal}" if tree.refusal and set(pruned) == {"not a plan"} else ""
        raise UsageError(
            f"no plan is left of {whole:,}: {told}{first}",
            hint="use more GPUs, a smaller --micro-batch or --seq, a larger --limit",
        )
    signs = _signs(space)
    rows = _best_first(tree.rows, signs)
    return Found(
        best=rows[0], frontier=frontier(rows, signs), tried=len(rows), pruned=pruned, space=whole, rows=rows,
        more={"axes": dict(space.axes), "scores": list(signs)},
    )  # fmt: skip


def _signs(space: PlanSpace) -> dict[str, int]:
    return {SCORES[name].column: SCORES[name].sign for name in space.scores}


def _best_first(rows: Sequence[Row], signs: dict[str, int]) -> list[Row]:
    """By the first score, then by the others; ties by their fields."""
    return sorted(rows, key=lambda row: (*(sign * row[name] for name, sign in signs.items()), row["flags"]))

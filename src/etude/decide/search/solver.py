"""One solver for all spaces: every candidate that no bound rules out, descents, annealing.

A space says what its candidates are, and gives a row for each. A method asks for rows through `Trials`, which asks for
none twice and knows why the others have none. Programs in whole numbers are solved by `programs`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import numpy as np

from etude.decide.search.found import Found, Row, dominated, frontier
from etude.decide.search.request import SearchRequest

C = TypeVar("C", bound=Hashable)
Answer = Row | str
"""The row of a candidate, or why it has none; an empty text if it is among those that are `left_out`."""
STARTS: Final = 4
"""Descents of `greedy`."""
CHAINS: Final = 8
STEPS: Final = 60
"""Chains of `anneal`, and steps of each."""


class CandidateSpace(Generic[C]):
    """What is searched. A space has `rows` and candidates; `greedy` and `anneal` need `neighbours` too, and the rest is
    for those that know more of their candidates."""

    methods: Mapping[str, Method[C]]
    """Name -> how it goes through the candidates; the first is taken where none is asked for."""
    scores: Mapping[str, int]
    """Column of a row -> 1 if less is better, -1 if more is. The first decides, several give a frontier."""
    size: int
    """Number of candidates."""
    listed: Sequence[C] = ()
    """All candidates, where these are few."""
    noun: ClassVar[str] = "candidates"
    beaten: str = "bound is no better"
    """Why a candidate is left out whose bound is not better than what is known."""
    rest: str = "not tried"
    """Why those are left out that no method came to."""
    left_out: Mapping[str, int] = {}
    """Candidates that no method need see, by reason."""
    tries: float = math.inf
    """Most rows that descents and annealing ask for."""
    levels: int = 0
    """Bounds of a candidate that are worked out by `look`, each closer than the one before."""
    round_size: float = math.inf
    """Rows that `all` asks for at once, whatever the number of workers: what is tried does not depend on it."""
    look_size: float = math.inf
    """The same of closer bounds."""
    side_by_side: bool = True
    """Whether descents ask for all neighbours at once and take the best; else one after another, up to a better one."""
    chains: int = CHAINS
    steps: int = STEPS

    def candidates(self) -> Iterable[C]:
        """All of them, without those that are the same as another."""
        return self.listed

    def rows(self, some: Sequence[C], limit: float) -> Sequence[Answer]:
        """What is known of candidates. One whose first score is not below the limit may be left out."""
        raise NotImplementedError

    def bound(self, one: C) -> Answer:
        """Scores that the candidate cannot beat, empty if none are known; or why it is left out."""
        return {}

    def look(self, by_level: Sequence[Sequence[C]], limit: float) -> Sequence[Sequence[Answer]]:
        """Closer bounds of the candidates of each level, and rows of those of the last."""
        return [self.rows(by_level[-1], limit) if by_level[-1] else []]

    def hopeless(self, bound: Row, trials: Trials[C]) -> str:
        """Why a candidate with this bound cannot be among the best; empty if it can."""
        return self.beaten if trials.beats(bound) else ""

    def rank(self, row: Row) -> tuple[float, ...]:
        """The first score of a row or a bound, less is better; what follows says which bound is looked at first."""
        name, sign = next(iter(self.scores.items()))
        return (sign * row[name],)

    def same(self, one: C) -> C:
        """The candidate that stands for all that score alike."""
        return one

    def order(self, one: C, row: Row) -> Any:
        """What comes first of equal scores; by default what was tried first."""
        return 0

    def begin(self, trials: Trials[C]) -> None:
        """Asks for what is tried first, whatever the method."""

    def starts(self, trials: Trials[C], draw: np.random.Generator, count: int) -> Sequence[C]:
        """Where descents and chains begin: at the first candidate, where a space says nothing else."""
        first = list(islice(self.candidates(), 1))
        trials.ask(first)
        return first

    def neighbours(self, one: C) -> Iterable[C]:
        return ()

    def random_neighbour(self, one: C, draw: np.random.Generator) -> C | None:
        """A neighbour at random."""
        some = list(self.neighbours(one))
        return some[int(draw.integers(len(some)))] if some else one

    def warmth(self, trials: Trials[C], score: float, done: float) -> float:
        """By how much worse a step of annealing may be to be taken with probability 1/e; `done`: fraction of the
        steps."""
        return 0.2 * 0.01**done * max(abs(score), 1e-300)

    def working(self, asked: SearchRequest) -> AbstractContextManager[Any]:
        """What rows need while a search lasts, such as workers."""
        return nullcontext()

    def found(self, trials: Trials[C]) -> Found:
        return trials.found()


@dataclass(slots=True)
class Trials(Generic[C]):
    """What is known of the candidates of a space."""

    space: CandidateSpace[C]
    method: str = ""
    advance: Callable[[int], None] = lambda count: None
    rows: dict[C, Row] = field(default_factory=dict)
    pruned: dict[C, str] = field(default_factory=dict)
    """Candidate -> why it has no row."""
    best: float = math.inf
    """The best first score, less is better."""

    def score(self, one: C) -> float:
        """First score, less is better; infinite if there is no row."""
        row = self.rows.get(self.space.same(one))
        return math.inf if row is None else self.first(row)

    def first(self, row: Row) -> float:
        return self.space.rank(row)[0]

    @property
    def full(self) -> bool:
        return len(self.rows) >= self.space.tries

    def beats(self, bound: Row) -> bool:
        """Whether some row is at least as good in every score."""
        if len(self.space.scores) == 1:
            return self.first(bound) >= self.best
        return dominated(bound, self.rows.values(), self.space.scores)

    def ask(self, some: Iterable[C], limit: float = math.inf) -> None:
        """Sees to rows of candidates, as long as there are tries left; not of those whose bound is not below the
        limit."""
        new: list[C] = []
        for one in dict.fromkeys(self.space.same(one) for one in some):
            if one in self.rows or self.pruned.get(one, self.space.beaten) != self.space.beaten:
                continue
            if len(self.rows) + len(new) >= self.space.tries:
                break
            bound = self.space.bound(one)
            if isinstance(bound, str):
                self.take(one, bound)
            elif bound and self.first(bound) >= limit:
                self.take(one, self.space.beaten)
            else:
                new.append(one)
        for one, answer in zip(new, self.space.rows(new, limit) if new else (), strict=True):
            self.take(one, answer)

    def take(self, one: C, answer: Answer) -> None:
        if isinstance(answer, str):
            self.pruned[one] = answer
        else:
            self.pruned.pop(one, None)
            self.rows[one] = answer
            self.best = min(self.best, self.first(answer))
        if one in self.rows or (answer and math.isinf(self.space.tries)):  # where tries are few, these are counted
            self.advance(1)

    def ranked(self) -> list[tuple[C, Row]]:
        """Candidates and their rows, the best first."""
        return sorted(self.rows.items(), key=lambda item: (self.first(item[1]), self.space.order(*item)))

    def why(self) -> dict[str, int]:
        """Why candidates were left out, and how many for that reason."""
        counts = Counter(self.space.left_out) + Counter(filter(None, self.pruned.values()))
        counts[self.space.rest] += self.space.size - len(self.rows) - counts.total()
        return {why: count for why, count in counts.items() if count}

    def found(self, **more: Any) -> Found:
        """`more`: what else `Found` has."""
        rows = [row for _, row in self.ranked()]
        about = {"best": rows[0] if rows else {}, "frontier": frontier(rows, self.space.scores), "rows": rows}
        return Found(**{**about, "tried": len(rows), "pruned": self.why(), "space": self.space.size, **more})


Method = Callable[[Trials[C], np.random.Generator], None]


def search_space(space: CandidateSpace[C], asked: SearchRequest) -> Found:
    """What is found in a space by the method that is asked for."""
    method = asked.one_of(*space.methods)
    with space.working(asked), asked.progress(space.noun, int(min(space.size, space.tries))) as advance:
        trials = Trials(space, method, advance)
        advance(sum(space.left_out.values()))
        space.begin(trials)
        space.methods[method](trials, np.random.default_rng(asked.seed))
        return space.found(trials)


class OpenCandidate(NamedTuple):
    """A remaining candidate, in the order of examination."""

    key: tuple[float, ...]
    number: int
    level: int
    bound: Row
    candidate: Any


def every(trials: Trials[C], draw: np.random.Generator) -> None:
    """Every candidate that no bound rules out. Where bounds have levels, those with the least are looked at first."""
    space = trials.space
    left = (one for one in space.candidates() if one not in trials.rows)
    heap = [OpenCandidate((-math.inf,), number, 0, {}, one) for number, one in enumerate(left)]
    heapify(heap)
    while heap:
        by_level: list[list[OpenCandidate]] = [[] for _ in range(space.levels + 1)]
        while heap and len(by_level[-1]) < space.round_size and sum(map(len, by_level[1:-1])) < space.look_size:
            one = heappop(heap)
            bound = one.bound or space.bound(one.candidate)
            why = bound if isinstance(bound, str) else bound and space.hopeless(bound, trials)
            if why:
                trials.take(one.candidate, str(why))
            else:
                by_level[one.level].append(one)
        found = space.look([[one.candidate for one in some] for some in by_level], trials.best)
        for some, answers in zip(by_level, found, strict=True):
            for one, answer in zip(some, answers, strict=True):
                if one.level == space.levels or isinstance(answer, str):
                    trials.take(one.candidate, answer)
                else:
                    heappush(heap, OpenCandidate(space.rank(answer), one.number, one.level + 1, answer, one.candidate))


def greedy(trials: Trials[C], draw: np.random.Generator) -> None:
    """Descents: from each start to a better neighbour, until none is better."""
    space = trials.space
    going = list(dict.fromkeys(space.starts(trials, draw, STARTS)))
    while going:
        around: list[Iterable[C]] = [space.neighbours(one) for one in going]
        if space.side_by_side:
            around = [list(some) for some in around]
            trials.ask(one for some in around for one in some)
        onward = [_better(trials, one, some) for one, some in zip(going, around, strict=True)]
        going = list(dict.fromkeys(one for one in onward if one is not None))


def _better(trials: Trials[C], now: C, around: Iterable[C]) -> C | None:
    """The best neighbour, or the first better one; none where none is better."""
    score = trials.score(now)
    if trials.space.side_by_side:
        best = min(around, key=lambda one: (trials.score(one), one), default=now)
        return best if trials.score(best) < score else None
    for one in around:
        trials.ask([one], score)
        if trials.score(one) < score:
            return one
    return None


def anneal(trials: Trials[C], draw: np.random.Generator) -> None:
    """Chains of random neighbours: a better one is taken, and a worse one with a probability that falls."""
    space = trials.space
    at = list(space.starts(trials, draw, space.chains))
    for step in range(space.steps):
        if trials.full:
            return
        chosen = [space.random_neighbour(one, draw) for one in at]
        chances = draw.random(len(at))
        done = step / max(space.steps - 1, 1)
        limits = []
        for one, chance in zip(at, chances.tolist(), strict=True):
            score = trials.score(one)
            limits.append(score - space.warmth(trials, score, done) * math.log(max(chance, 1e-300)))
        trials.ask([one for one in chosen if one is not None], max(limits))
        for k, (there, limit) in enumerate(zip(chosen, limits, strict=True)):
            if there is not None and trials.score(there) <= limit:
                at[k] = there


ALL: Final[Mapping[str, Method[Any]]] = {"all": every}
METHODS: Final[Mapping[str, Method[Any]]] = {"all": every, "greedy": greedy, "anneal": anneal}

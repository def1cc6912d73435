"""The fastest placement of a job's ranks on the devices of a system.

Placements are simulated once for all that are the same by symmetry, and not where bytes alone take longer than what is
known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.decide.search.crew import crew
from etude.decide.search.found import Found, Row
from etude.decide.search.placements.bound import TimeBound
from etude.decide.search.placements.orders import first_tries
from etude.decide.search.placements.symmetry import Placement, Symmetry
from etude.decide.search.request import SearchRequest
from etude.decide.search.solver import METHODS, Answer, CandidateSpace, Trials, greedy, search_space
from etude.machine import System
from etude.make.generate import Generated
from etude.model.job import Job
from etude.run.simulate import simulate

NETWORKS: Final = ("flow", "links")
SMALL: Final = 6
"""Ranks up to which all placements are tried unless a method is requested."""
TRIES: Final = 300
MOST: Final = math.factorial(8)
"""Most placements that `all` enumerates, without symmetric ones."""
WARM: Final = 0.02
COOLING: Final = 0.98
"""Annealing takes a step up of 2% with probability 1/e at first, and less with each try. That does not depend on how
many tries are allowed: more of them go on where fewer end."""
SAME: Final = "the same by symmetry"
BOUND: Final = "its transfers alone take longer"
LEFT: Final = "not examined"
TimesOf = Callable[[Sequence[Placement]], Sequence[int]]
"""Placements -> their times in ns."""


def seated(system: System, placement: tuple[int, ...]) -> System:
    """The system with rank r on the device of the original rank placement[r]."""
    base = system.placement or tuple(range(len(system)))
    topology = system.topology
    if topology is not None:
        topology = replace(topology, device=topology.device[list(placement)])
    return system.replace(placement=tuple(base[place] for place in placement), topology=topology)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSimulation:
    """How placements are simulated."""

    network: str = "flow"
    tries: int = TRIES
    """Most simulations of descents and annealing."""
    bound: bool = True
    """Prune placements by the bytes over a cut."""
    time_of: Callable[[System], int] | None = None
    """ns on a system whose ranks are placed; by default the makespan of the job."""

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise UsageError(f"network `{self.network}` cannot rank placements", hint=f"{' or '.join(NETWORKS)}")
        if self.tries < 1:
            raise UsageError(f"tries: {self.tries} simulations", hint="1 or more")


class PlacementSpace(CandidateSpace[Placement]):
    """The device of each rank. A neighbour swaps two ranks, or moves one to a free device."""

    noun, beaten, round_size, side_by_side, chains = "placements", BOUND, 16, False, 1

    def __init__(self, job: Job, system: System, axes: Mapping[str, int], about: PlacementSimulation) -> None:
        self.ranks, self.devices = job.world_size, system.num_ranks
        if self.ranks > self.devices:
            raise UsageError(f"{self.ranks} ranks on a system of {self.devices} devices", hint="use a larger --system")
        self.job, self.system, self.axes, self.about = job, system, axes, about
        self.least, self.symmetry = TimeBound(job, system) if about.bound else None, Symmetry(system)
        self.size, self.scores = math.perm(self.devices, self.ranks), {"time_ns": 1}
        self.tries, self.steps = about.tries, 20 * about.tries
        small = self.ranks <= SMALL and self.devices <= SMALL
        self.methods = METHODS if small else {"greedy": greedy, **METHODS}
        self.given_ns = 0
        """Ranks in the order of devices, which is tried first."""
        self.name = "given"
        """Where the placements that are asked for come from."""
        self.turn = 0
        """Which change is tried next."""

    @contextmanager
    def working(self, asked: SearchRequest) -> Iterator[None]:
        """Placements are simulated here, or by workers whose answers are kept in a folder."""
        method, job, system, network = asked.one_of(*self.methods), self.job, self.system, self.about.network
        if method != "all":
            asked.in_turn(f"`{method}`", "--method all, or several `shardings`, which are searched in parallel")
        if self.about.time_of is not None or (asked.alone and asked.out is None):
            own = self.about.time_of or (lambda placed: simulate(job, placed, network=network).makespan_ns)
            self.times_of: TimesOf = lambda some: [own(seated(system, placement)) for placement in some]
            yield
            return
        with crew(placed_ns, {"job": job, "system": system, "network": network}, asked) as workers:
            self.times_of = lambda some: [found["ns"] for found in workers.ask([{"placement": list(p)} for p in some])]
            yield

    def rows(self, some: Sequence[Placement], limit: float) -> list[Answer]:
        times = self.times_of(some)
        self.given_ns = self.given_ns or times[0]
        return [
            {"time_ns": time, "gain": self.given_ns / time, "from": self.name, "placement": list(one)}
            for one, time in zip(some, times, strict=True)
        ]

    def bound(self, one: Placement) -> Row:
        return {"time_ns": self.least.least_ns(one)} if self.least else {}

    def same(self, one: Placement) -> Placement:
        return self.symmetry.same(one)

    def order(self, one: Placement, row: Row) -> Placement:
        return one

    def candidates(self) -> list[Placement]:
        found: list[Placement] = []
        for placement in classes_of(self.symmetry, self.ranks, self.devices):
            found.append(placement)
            if len(found) > MOST:
                raise UsageError(
                    f"{self.ranks} ranks on {self.devices} devices have more than {MOST:,} placements, even without "
                    "symmetries",
                    hint="--method greedy or anneal",
                )
        return found

    def begin(self, trials: Trials[Placement]) -> None:
        trials.ask([tuple(range(self.ranks))])
        self.name = trials.method

    def starts(self, trials: Trials[Placement], draw: np.random.Generator, count: int) -> list[Placement]:
        """The best of orders that are worth trying."""
        for name, placement in first_tries(self.system, self.axes, self.ranks):
            self.name = name
            trials.ask([placement], trials.best)
        self.name = "swap" if trials.method == "greedy" else trials.method
        self.warm, self.simulated = WARM * trials.best, len(trials.rows)
        return [trials.ranked()[0][0]]

    def neighbours(self, one: Placement) -> Iterator[Placement]:
        """Goes on behind the change that was taken last, so that every rank has its turn."""
        changes = [(a, b) for a in range(self.ranks) for b in range(a + 1, self.devices)]
        for _ in changes:
            self.turn = self.turn % len(changes) + 1
            yield self.changed(one, *changes[self.turn - 1])

    def changed(self, one: Placement, rank: int, other: int) -> Placement:
        """Swaps two ranks, or moves one to a free device: `other` counts the ranks, then those."""
        found = list(one)
        if other < len(found):
            found[rank], found[other] = found[other], found[rank]
        else:
            found[rank] = sorted(set(range(self.devices)) - set(one))[other - len(found)]
        return tuple(found)

    def random_neighbour(self, one: Placement, draw: np.random.Generator) -> Placement | None:
        if self.devices == 1:
            return None
        rank, other = sorted(int(x) for x in draw.choice(self.devices, 2, replace=False))
        return self.changed(one, rank, other) if rank < self.ranks else None

    def warmth(self, trials: Trials[Placement], score: float, done: float) -> float:
        return self.warm * COOLING ** (len(trials.rows) - self.simulated)

    def found(self, trials: Trials[Placement]) -> Found:
        self.rest = SAME if trials.method == "all" or self.symmetry.everything else LEFT
        ranked = trials.ranked()
        best, row = ranked[0]
        default = {"time_ns": self.given_ns, "placement": list(range(self.ranks))}
        more = {"default": default, "gain": row["gain"], "worst_ns": ranked[-1][1]["time_ns"], "method": trials.method}
        return trials.found(more=more | {"least_ns": self.bound(best).get("time_ns", 0)})


def placed_ns(placement: Sequence[int], *, job: Job, system: System, network: str) -> dict[str, int]:
    return {"ns": simulate(job, seated(system, tuple(placement)), network=network).makespan_ns}


def classes_of(symmetry: Symmetry, ranks: int, devices: int) -> Iterator[Placement]:
    """One placement of each class, in the order of tuples. The first of a class begins with firsts of its parts."""

    def go(begun: Placement) -> Iterator[Placement]:
        if len(begun) == ranks:
            yield begun
            return
        for device in range(devices):
            if device not in begun and symmetry.same((*begun, device)) == (*begun, device):
                yield from go((*begun, device))

    return go(())


def best_placement(made: Job | Generated, system: System, *, asked: SearchRequest | None = None, **how: Any) -> Found:
    """The fastest placement that is found. `how`: method, seed, and what `placement_space` takes."""
    asked = replace(asked or SearchRequest(), **{name: how.pop(name) for name in ("method", "seed") if name in how})
    return search_space(placement_space(made, system, **how), asked)


def placement_space(
    made: Job | Generated, system: System, *, axes: Mapping[str, int] | None = None, **how: Any
) -> PlacementSpace:
    """`axes`: name -> size as ranks are numbered, innermost first; of a generated job those of its plan. `how`: what
    `PlacementSimulation` has."""
    job = made.job if isinstance(made, Generated) else made
    if axes is None:
        axes = plan_axes(made) if isinstance(made, Generated) else {}
    system = system if system.topology is not None else system.replace(placement=())
    return PlacementSpace(job, system, axes, PlacementSimulation(**how))


def plan_axes(made: Generated) -> dict[str, int]:
    """Axes of a plan and their sizes, innermost first."""
    plan = made.plan
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
    return {axis: sizes[axis] for axis in plan.order.split("-")}

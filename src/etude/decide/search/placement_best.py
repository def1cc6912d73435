"""The fastest placement of a job's ranks on the devices of a system."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from etude.base.errors import UsageError
from etude.decide.search import placement_methods as methods
from etude.decide.search.crew import crew
from etude.decide.search.found import Found, Row
from etude.decide.search.given import SearchRequest
from etude.decide.search.placement_bound import TimeBound
from etude.decide.search.placement_orders import first_tries
from etude.decide.search.placement_symmetry import Symmetry
from etude.machine import System
from etude.make.generate import Generated
from etude.model.job import Job
from etude.run.simulate import simulate

METHODS: Final = ("greedy", "all", "anneal")
NETWORKS: Final = ("flow", "links")
SMALL: Final = 6
"""Ranks up to which all placements are tried unless a method is requested."""
TRIES: Final = 300
SAME: Final = "the same by symmetry"
BOUND: Final = "its transfers alone take longer"
LEFT: Final = "not examined"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementMethod:
    """How placements are enumerated and scored."""

    method: str = ""
    network: str = "flow"
    tries: int = TRIES
    seed: int = 0
    bound: bool = True
    """Prune placements by the bytes over a cut."""

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise UsageError(f"network `{self.network}` cannot rank placements", hint=f"{' or '.join(NETWORKS)}")
        if self.method and self.method not in METHODS:
            raise UsageError(f"method `{self.method}` does not fit placements", hint=f"--method {'|'.join(METHODS)}")
        if self.tries < 1:
            raise UsageError(f"tries: {self.tries} simulations", hint="1 or more")


def seated(system: System, placement: tuple[int, ...]) -> System:
    """The system with rank r on the device of the original rank placement[r]."""
    base = system.placement or tuple(range(len(system)))
    topology = system.topology
    if topology is not None:
        topology = replace(topology, device=topology.device[list(placement)])
    return system.replace(placement=tuple(base[place] for place in placement), topology=topology)


def best_placement(
    made: Job | Generated, system: System, *, axes: Mapping[str, int] | None = None, asked: SearchRequest | None = None,
    time_of: Callable[[System], int] | None = None, **how: Any,
) -> Found:  # fmt: skip
    """The fastest placement that is found. `axes`: name -> size as ranks are numbered, innermost first; of a generated
    job those of its plan. `time_of`: ns on a system whose ranks are placed; by default the makespan of the job. `how`:
    method, network, tries, seed."""
    job = made.job if isinstance(made, Generated) else made
    asked = asked or SearchRequest()
    settings = PlacementMethod(**{"method": asked.method, "seed": asked.seed, **how})
    if axes is None:
        axes = plan_axes(made) if isinstance(made, Generated) else {}
    system = system if system.topology is not None else system.replace(placement=())
    ranks, devices = job.world_size, system.num_ranks
    if ranks > devices:
        raise UsageError(f"{ranks} ranks on a system of {devices} devices", hint="use a larger --system")
    bound, symmetry = TimeBound(job, system) if settings.bound else None, Symmetry(system)
    method = settings.method or ("all" if ranks <= SMALL and devices <= SMALL else "greedy")
    if method != "all":
        asked.in_turn(f"`{method}`", "--method all, or several `shardings`, which are searched in parallel")
    space = math.perm(devices, ranks)
    with (
        _simulating(job, system, settings.network, asked, time_of) as times_of,
        asked.progress("placements", min(space, settings.tries)) as advance,
    ):
        tried = methods.Tried(times_of, bound.least_ns if bound else lambda p: 0, symmetry, settings.tries, advance)
        default = tuple(range(ranks))
        tried.score(default, "given")
        _go(tried, method, system, axes, settings.seed)
    return _found(tried, default, space, method)


@contextmanager
def _simulating(
    job: Job, system: System, network: str, asked: SearchRequest, time_of: Callable[[System], int] | None
) -> Iterator[Callable[[Sequence[tuple[int, ...]]], list[int]]]:
    """A function that simulates placements: here, or by workers whose answers are kept in a folder."""
    if time_of is not None or (asked.alone and asked.out is None):
        own = time_of or (lambda placed: simulate(job, placed, network=network).makespan_ns)
        yield lambda some: [own(seated(system, placement)) for placement in some]
        return
    with crew(placed_ns, {"job": job, "system": system, "network": network}, asked) as workers:
        yield lambda some: [found["ns"] for found in workers.ask([{"placement": list(p)} for p in some])]


def placed_ns(placement: Sequence[int], *, job: Job, system: System, network: str) -> dict[str, int]:
    return {"ns": simulate(job, seated(system, tuple(placement)), network=network).makespan_ns}


def _go(tried: methods.Tried, method: str, system: System, axes: Mapping[str, int], seed: int) -> None:
    ranks, devices = len(next(iter(tried.times))), system.num_ranks
    if method == "all":
        methods.every(tried, ranks, devices)
        return
    for name, placement in first_tries(system, axes, ranks):
        tried.score(placement, name, tried.best[0])
    if method == "greedy":
        methods.greedy(tried, ranks, devices)
    else:
        methods.anneal(tried, ranks, devices, seed)


def plan_axes(made: Generated) -> dict[str, int]:
    """Axes of a plan and their sizes, innermost first."""
    plan = made.plan
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
    return {axis: sizes[axis] for axis in plan.order.split("-")}


def _found(tried: methods.Tried, default: tuple[int, ...], space: int, method: str) -> Found:
    given_ns = tried.times[tried.symmetry.same(default)]
    rows: list[Row] = [
        {"time_ns": time, "gain": given_ns / time, "from": tried.names[placement], "placement": list(placement)}
        for placement, time in sorted(tried.times.items(), key=lambda item: (item[1], item[0]))
    ]
    cut = len(tried.cut - set(tried.times))
    rest = space - len(rows) - cut
    why = SAME if method == "all" or tried.symmetry.everything else LEFT
    pruned = {name: count for name, count in ((BOUND, cut), (why, rest)) if count}
    given = {"time_ns": given_ns, "placement": list(default)}
    return Found(
        best=rows[0], frontier=rows[:1], tried=len(rows), pruned=pruned, space=space, rows=rows,
        more={"default": given, "gain": rows[0]["gain"], "worst_ns": rows[-1]["time_ns"], "method": method,
              "least_ns": tried.least_of(tuple(rows[0]["placement"]))},
    )  # fmt: skip

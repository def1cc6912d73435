"""Ranks on places: against all permutations simulated one by one, symmetries counted by hand, bounds that hold."""

import json
import math
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from etude.decide.search.placements.best import (
    BOUND,
    LEFT,
    SAME,
    PlacementSimulation,
    PlacementSpace,
    best_placement,
    classes_of,
)
from etude.decide.search.placements.bound import TimeBound
from etude.decide.search.placements.orders import device_orders
from etude.decide.search.placements.symmetry import Placement, Symmetry
from etude.decide.search.request import SearchRequest
from etude.decide.search.solver import Answer, Trials, search_space
from etude.machine.system import System
from etude.make.generate import Generated, Plan, generate
from etude.make.generate.model import open_model
from etude.run.simulate import simulate
from etude.surface.cli import main
from toy_systems import DEVICE, level, one_level, two_levels

SMALL = open_model("gpt2").replace(layers=4, seq=120, hidden=64, heads=4, ffn=256, vocab=128)


def grid(kind: str, *sizes: int) -> System:
    levels = tuple(level(f"l{i}", kind, size) for i, size in enumerate(sizes))
    return System(name="toy", device=DEVICE, levels=levels)


def job_of(**plan: int) -> Generated:
    return generate(SMALL, Plan(seq=120, **plan))


def took(made: Generated, system: System, placement: tuple[int, ...], network: str = "flow") -> int:
    return simulate(made.job, system.replace(placement=placement), network=network).makespan_ns


CHAIN = job_of(gpus=4, pp=4, global_batch=2)
MIXED = job_of(gpus=4, tp=2, pp=2, global_batch=2)


@pytest.mark.parametrize(
    "made, system, network",
    [
        (CHAIN, grid("ring", 4), "flow"),
        (MIXED, grid("mesh", 4), "flow"),
        (CHAIN, grid("mesh", 2, 2), "links"),
    ],
    ids=["chain on a ring", "mixed on a line", "chain on 2x2"],
)
def test_all_is_the_best_of_every_permutation(made: Generated, system: System, network: str):
    best = min(took(made, system, p, network) for p in permutations(range(4)))
    found = best_placement(made, system, method="all", network=network)
    assert found.best["time_ns"] == best
    assert found.tried + sum(found.pruned.values()) == found.space == 24
    for method in ("greedy", "anneal"):
        other = best_placement(made, system, method=method, network=network, tries=12, seed=3)
        assert other.best["time_ns"] >= best
        assert other.tried + sum(other.pruned.values()) == 24


def test_no_simulation_beats_its_bound():
    for system in (grid("ring", 4), grid("mesh", 2, 2), two_levels(2, 2)):
        for made in (MIXED, job_of(gpus=4, zero=3), job_of(gpus=4, cp=4)):
            bound = TimeBound(made.job, system)
            for placement in ((0, 1, 2, 3), (2, 0, 3, 1)):
                assert bound.least_ns(placement) <= took(made, system, placement)


def test_a_bound_by_hand():
    """An all-reduce of 1,000 bytes over a line of 2 x 2 devices with 0.5 bytes/ns a link: 1,000 bytes come in to a
    corner over two links, and to half of the devices over two links."""
    made, system = job_of(gpus=4, tp=4), grid("mesh", 2, 2)
    bound = TimeBound(made.job, system)
    bound = _with(bound, size=[[0.0, 1000.0, 0.0, 0.0]])
    assert bound.least_ns((0, 1, 2, 3)) == 1000
    assert _with(bound, size=[[1000.0, 0.0, 0.0, 0.0]]).least_ns((0, 1, 2, 3)) == 3000
    assert _with(bound, size=[[0.0, 0.0, 1000.0, 0.0]]).least_ns((0, 1, 2, 3)) == 500


def _with(bound: TimeBound, size: list[list[float]]) -> TimeBound:
    bound.needs = bound.needs._replace(member=np.ones((1, 4)), size=np.array(size), sent=np.zeros((4, 4)))
    return bound


@pytest.mark.parametrize(
    "system, classes",
    [
        (grid("ring", 5), math.factorial(5) // 10),
        (grid("ring", 4), math.factorial(4) // 4),  # ties are split by pairs, so that half of the 8 are left
        (grid("mesh", 4), math.factorial(4) // 2),
        (grid("mesh", 3, 2), math.factorial(6) // 4),
        (one_level("switch", 6), 1),
        (one_level("full", 6), 1),
        (two_levels(2, 2), math.factorial(4) // 8),
        (two_levels(3, 2), math.factorial(6) // 72),
    ],
    ids=["ring 5", "ring 4", "line 4", "mesh 3x2", "switch", "full", "two of two", "two of three"],
)
def test_classes_by_hand(system: System, classes: int):
    assert sum(1 for _ in classes_of(Symmetry(system), len(system), len(system))) == classes


@pytest.mark.parametrize(
    "system, plan",
    [
        (grid("ring", 5), {"gpus": 5, "cp": 5}),
        (grid("mesh", 2, 3), {"gpus": 6, "tp": 2, "cp": 3}),
        (grid("ring", 3, 3), {"gpus": 9, "zero": 3}),
        (two_levels(3, 2), {"gpus": 6, "zero": 3}),
        (one_level("switch", 4), {"gpus": 4, "tp": 2, "pp": 2, "global_batch": 4}),
    ],
    ids=["ring", "mesh", "torus", "nodes", "switch"],
)
def test_placements_that_are_the_same_take_as_long(system: System, plan: dict[str, int]):
    made, symmetry, rng = job_of(**plan), Symmetry(system), np.random.default_rng(0)
    for _ in range(2):
        placement = tuple(rng.permutation(len(system)).tolist())
        same = symmetry.same(placement)
        assert symmetry.same(same) == same
        assert took(made, system, placement) == pytest.approx(took(made, system, same), rel=1e-4)


def test_on_a_switch_one_is_tried():
    found = best_placement(job_of(gpus=6, tp=2, pp=3, global_batch=6), one_level("switch", 6))
    assert found.tried == 1
    assert found.pruned == {SAME: 719}
    assert found.more["gain"] == 1.0


def test_more_room_and_more_tries_are_never_worse():
    made = job_of(gpus=3, pp=3, global_batch=2)
    narrow, wide = (best_placement(made, grid("mesh", n), method="all").best["time_ns"] for n in (3, 4))
    assert wide <= narrow
    system = grid("mesh", 3, 2)
    six = job_of(gpus=6, cp=3, zero=1)
    for method in ("greedy", "anneal"):
        found = [best_placement(six, system, method=method, tries=n) for n in (2, 8, 16, 16)]
        times = [one.best["time_ns"] for one in found]
        assert times == sorted(times, reverse=True)
        assert found[2].rows == found[3].rows


def test_orders_visit_every_device_and_neighbours():
    orders = device_orders(grid("mesh", 4, 4))
    assert set(orders) == {"rows", "snake", "loop", "tiles"}
    for order in orders.values():
        assert sorted(order.tolist()) == list(range(16))
    for name in ("snake", "loop"):
        x, y = orders[name] % 4, orders[name] // 4
        assert (np.abs(np.diff(x)) + np.abs(np.diff(y)) == 1).all()
    first, last = orders["loop"][[0, -1]]
    assert abs(first % 4 - last % 4) + abs(first // 4 - last // 4) == 1
    assert orders["tiles"].tolist()[:4] == [0, 1, 4, 5]


SPACE = """
search: placement
model: gpt2
layers: 2
plan: {gpus: 4, seq: 128, global_batch: 4}
shardings: {tp: [1, 2, 4], pp: [1, 2, 3]}
keep: 2
system: line.yaml
tries: 10
"""
LINE = """
name: line
device: tpu-v5e
levels: [{name: ici, kind: mesh, size: 4, bandwidth: 100GB/s}]
"""


def run(folder: Path, text: str, *words: str) -> int:
    (folder / "line.yaml").write_text(LINE)
    (folder / "space.yaml").write_text(text)
    return main(["search", str(folder / "space.yaml"), *words])


def test_shardings_that_send_least_are_placed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(tmp_path, SPACE, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["shardings"]) == 2
    sent = [row["sent_bytes"] for row in found["shardings"]]
    assert sent == sorted(sent)
    # tp x pp of 1x1, 2x1, 4x1, 1x2, 2x2 can be; 3 stages cannot fill 4 ranks, 4 x 2 are 8.
    assert found["pruned_why"]["invalid plan"] == 4
    assert found["pruned_why"]["sends more than those kept"] == 3
    assert found["best"]["time_ns"] == min(row["time_ns"] for row in found["shardings"])
    assert found["tried"] + found["pruned"] == found["space"]
    assert set(found["pruned_why"]) <= {SAME, BOUND, LEFT, "invalid plan", "sends more than those kept"}


def test_a_folder_of_traces_is_placed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["generate", "gpt2", "--gpus", "4", "--pp", "4", "--seq", "64", "-o", str(tmp_path / "job")]
    assert main(words) == 0
    capsys.readouterr()
    assert run(tmp_path, "search: placement\njob: job\nsystem: line.yaml\nnetwork: links\n", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["method"] == "all"
    assert found["best"]["time_ns"] <= found["default"]["time_ns"]


@pytest.mark.parametrize(
    "changed, told",
    [
        ("colour=red", "unknown key `colour`"),
        ("network=analytic", "cannot rank placements"),
        ("tries=0", "not a count"),
        ("layers=some", "not a count"),
        ("keep=-1", "not a count"),
        ("job=here", "`job` or `model` is needed"),
        ("system=3", "`system` is needed"),
        ("plan={gpus: 8, tp: 8, pp: 1, global_batch: 4}", ""),
    ],
)
def test_bad_spaces_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: str, told: str):
    shardings = ["--set", "shardings={}"] if not told else []
    assert run(tmp_path, SPACE, "--set", changed, *shardings) == 2
    assert told in capsys.readouterr().err


def test_too_many_for_all_and_unknown_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(tmp_path, SPACE, "--method", "dp") == 2
    assert "--method" in capsys.readouterr().err


def test_annealing_takes_worse_placements_and_greed_does_not() -> None:
    """Every swap of the first placement is worse by 1%, and what two swaps reach is half as long."""
    first, goal = (0, 1, 2, 3), (1, 0, 3, 2)

    class Pit(PlacementSpace):
        def rows(self, some: Sequence[Placement], limit: float) -> list[Answer]:
            return [{"time_ns": {first: 100, goal: 50}.get(one, 101), "gain": 1.0} for one in some]

        def same(self, one: Placement) -> Placement:
            return one

        def starts(self, trials: Trials[Placement], draw: np.random.Generator, count: int) -> list[Placement]:
            self.warm, self.simulated = 2.0, 1
            return [first]

    def best(method: str) -> int:
        space = Pit(CHAIN.job, grid("ring", 4), {}, PlacementSimulation(tries=24, bound=False))
        return int(search_space(space, SearchRequest(method=method)).best["time_ns"])

    assert (best("greedy"), best("anneal")) == (100, 50)

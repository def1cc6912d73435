"""Local search against brute force: never better, and as good on small spaces."""

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from etude.decide.search.axes import AxesSpace, Point, neighbours
from etude.decide.search.request import SearchRequest
from etude.decide.search.solver import ALL, Answer, CandidateSpace, search_space
from etude.surface.cli import main

AXES = [[1, 2, 4], [1, 2, 4, 8], ["a", "b"]]


def test_neighbours_by_hand():
    found = neighbours((0, 2, 1), AXES)  # 1, 4, b
    assert found == [(1, 2, 1), (2, 2, 1), (0, 0, 1), (0, 1, 1), (0, 3, 1), (0, 2, 0), (2, 0, 1)]  # the last: 4, 1, b


class Worths(AxesSpace):
    """Points by what they are worth, less is better; some are infeasible."""

    axes, size = AXES, 24

    def __init__(self, worth: Callable[[Point], float]) -> None:
        self.worth, self.asked, self.scores = worth, list[Point](), {"worth": 1}

    def rows(self, some: Sequence[Point], limit: float) -> list[Answer]:
        self.asked += some
        return [{"worth": self.worth(p), "at": p} if np.isfinite(self.worth(p)) else "infeasible" for p in some]


@pytest.mark.parametrize("method", ["greedy", "anneal"])
@pytest.mark.parametrize("seed", range(8))
def test_never_better_than_brute_force_and_mostly_as_good(method: str, seed: int):
    draw = np.random.default_rng(seed)
    worth = {p: float(v) for p, v in zip(product(range(3), range(4), range(2)), draw.random(24), strict=True)}
    worth[0, 0, 0] = np.inf
    space = Worths(worth.__getitem__)
    found = search_space(space, SearchRequest(method=method, seed=seed))
    assert len(space.asked) == len(set(space.asked))
    assert found.best["worth"] == min(worth[p] for p in space.asked)
    assert sorted(worth.values()).index(found.best["worth"]) < 3
    assert found.tried + sum(found.pruned.values()) == found.space == 24
    again = search_space(Worths(worth.__getitem__), SearchRequest(method=method, seed=seed))
    assert again == found
    everything = search_space(Worths(worth.__getitem__), SearchRequest(method="all"))
    assert everything.best["worth"] == min(worth.values())
    assert (everything.tried, everything.pruned) == (23, {"infeasible": 1})


def test_a_slope_is_gone_down():
    def slope(p: Point) -> float:
        return float((p[0] - 1) ** 2 + (p[1] - 3) ** 2 + p[2])

    for method in ("greedy", "anneal"):
        assert search_space(Worths(slope), SearchRequest(method=method)).best["at"] == (1, 3, 0)


class Bounded(CandidateSpace[int]):
    """Worths with two bounds, each closer; some candidates turn out to be infeasible at a closer look."""

    methods, levels = ALL, 2

    def __init__(self, seed: int, *sizes: int) -> None:
        draw = np.random.default_rng(seed)
        self.listed, self.size, self.scores = range(40), 40, {"worth": 1}
        self.worth = draw.integers(10, 60, 40).tolist()
        low = [int(w * part) for w, part in zip(self.worth, draw.random(40), strict=True)]
        self.bounds = [low, [int(draw.integers(b, w + 1)) for b, w in zip(low, self.worth, strict=True)]]
        self.infeasible = set(draw.choice(40, 5, replace=False).tolist())
        self.round_size, self.look_size = sizes
        self.asked: list[int] = []

    def look(self, by_level: Sequence[Sequence[int]], limit: float) -> list[list[Answer]]:
        first, second, last = by_level
        self.asked += last
        assert len(last) <= self.round_size and len(second) <= self.look_size
        bounds: list[list[Answer]] = [[{"worth": self.bounds[0][i]} for i in first]]
        bounds.append(["infeasible" if i in self.infeasible else {"worth": self.bounds[1][i]} for i in second])
        return [*bounds, [{"worth": self.worth[i], "number": i} for i in last]]


@pytest.mark.parametrize("seed", range(8))
def test_bounds_leave_out_what_cannot_be_better(seed: int):
    for sizes in ((1, 1), (3, 7), (100, 100)):
        space = Bounded(seed, *sizes)
        found = search_space(space, SearchRequest())
        feasible = {i: w for i, w in enumerate(space.worth) if i not in space.infeasible}
        best = min(feasible.values())
        assert found.best["worth"] == best
        assert found.tried + sum(found.pruned.values()) == found.space == 40
        assert len(space.asked) == len(set(space.asked)) == found.tried
        assert set(found.pruned) <= {"infeasible", space.beaten}
        left = set(feasible) - set(space.asked)
        assert all(space.bounds[1][i] >= best for i in left)
        if sizes == (1, 1):  # one after another, the least bound first: none is tried that the best rules out
            assert all(space.bounds[1][i] <= best for i in space.asked)


@pytest.mark.parametrize("method", ["greedy", "anneal"])
def test_commands_and_plans_have_them(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "space.yaml").write_text(
        "search: commands\nrun: predict gpt2 --gpus 8 --global-batch 8 --system dgx-h100 --json {flags}\n"
        "axes: {tp: [1, 2], zero: [0, 1]}\nwhen: tp * zero < 2\nscore: {step: step_time_ns}\n"
    )
    assert main(["search", str(tmp_path / "space.yaml"), "--method", method, "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    words = ["gpt2", "--gpus", "8", "--global-batch", "8", "--system", "dgx-h100", "--over", "tp=1|2,zero=0|1"]
    assert main(["search", *words, "--method", method, "--json"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert one["tried"] + one["pruned"] == one["space"] == other["space"] == other["tried"] + other["pruned"] == 4
    assert main(["search", *words, "--json"]) == 0
    exact = json.loads(capsys.readouterr().out)
    assert other["best"] == exact["best"]
    assert one["best"]["step"] >= exact["best"]["step_time_ns"]

"""What several have in common: a part of the kernels of one rank, a switch of several nodes, a stage of a pipeline."""

import numpy as np
import pytest

from etude.analyse.diagnose import diagnose
from etude.analyse.findings import FAULTS
from etude.analyse.late_hosts import stages
from etude.analyse.outliers import Profile
from etude.analyse.part_levels import part_levels
from etude.analyse.switches import behind_switch
from etude.model.schema import Collective, Kind
from timed_jobs import timed


def test_the_slower_part_of_a_rank_is_much_of_its_time_and_several_kinds():
    """Five kinds in one step: rank 0 has three that are 10% above, 60 of 100 us; rank 1 one of 60 us; rank 2 none."""
    cell = np.repeat([0, 1, 2], 5)
    kind = np.tile(np.arange(5), 3)
    lasted = np.tile([30.0, 20.0, 10.0, 20.0, 20.0], 3)
    lasted[5:10] = [60.0, 10.0, 10.0, 10.0, 10.0]
    away = np.array([0.1, 0.1, 0.1, 0.0, 0.0, 0.3, 0.01, 0.01, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    twice = [np.tile(x, 2) for x in (cell, kind, away, lasted)]  # a single time says nothing
    found = part_levels(*twice, (3, 1))
    assert found.upper[:, 0] == pytest.approx([0.1, 0.01, 0.0])
    assert found.lower[:, 0] == pytest.approx([0.0, 0.01, 0.0])
    assert found.mean[0, 0] == pytest.approx(0.06)
    assert np.isnan(part_levels(cell, kind, away, lasted, (3, 1)).upper).all()


def test_few_kinds_have_no_part():
    found = part_levels(np.zeros(3, np.int64), np.arange(3), np.array([0.1, 0.1, 0.0]), np.ones(3), (1, 1))
    assert np.isnan(found.upper).all()


def pairs(slow: set[int], by: float = 0.3) -> tuple[list[tuple[int, ...]], Profile]:
    """Messages from each rank of two nodes to the same one two nodes on; slow if an end is of these ranks."""
    units = [(rank, rank + 16) for rank in range(16)]
    units += [(rank + 16, rank + 32) for rank in range(16)]
    level = np.array([by if slow & set(unit) else 0.0 for unit in units])
    return units, Profile((level + 0.01 * np.sin(np.arange(len(units))))[:, None], np.full((len(units), 1), 0.01))


def test_a_switch_is_the_block_of_nodes_that_all_slow_messages_pass():
    units, profiled = pairs(set(range(32, 48)))
    found = behind_switch(units, np.zeros(len(units), np.int64), profiled, 8, 0.04)
    assert found is not None
    slow, ranks, _, count = found
    assert ranks == tuple(range(32, 48))
    assert count == 16
    assert slow.factor == pytest.approx(np.exp(0.3), rel=0.02)


def test_one_slow_pair_is_no_switch():
    units, profiled = pairs(set())
    profiled.log_slower[3] = 0.3
    assert behind_switch(units, np.zeros(len(units), np.int64), profiled, 8, 0.04) is None


def test_stages_are_in_the_order_in_which_messages_arrive_though_receives_are_posted_before():
    """Rank 0 posts its receive of the way back before it sends."""
    comm = {"stream": 9, "cpu": 0, "in_bytes": 8, "tag": 1}
    there, back = {**comm, "kind": Kind.SEND, "dst": 1}, {**comm, "kind": Kind.RECV, "src": 1, "tag": 2}
    mine = [(back, 0, 900), (there, 100, 200)]
    other = [
        ({**comm, "kind": Kind.RECV, "src": 0}, 50, 200),
        ({**comm, "kind": Kind.SEND, "dst": 0, "tag": 2}, 700, 900),
    ]
    assert stages(timed(mine, other)).tolist() == [0, 1]


@pytest.mark.parametrize(("slow", "level"), [(("a", "b", "c"), "power"), (("a", "b", "c", "d", "e"), "kernel")])
def test_a_rank_of_which_only_some_kinds_are_slower_has_its_power_limited(slow: tuple[str, ...], level: str):
    rng = np.random.default_rng(7)
    kinds = {"a": 100, "b": 200, "c": 150, "d": 30, "e": 40}
    ranks: list[list] = [[] for _ in range(6)]
    now = np.zeros(6)
    for step in range(10):
        for name, us in kinds.items():
            took = us * 1000 * rng.normal(1, 0.005, 6)
            took[4] *= 1.12 if name in slow else 1.0
            node = {"kind": Kind.COMP, "name": name, "stream": 7, "cpu": 0, "step": step}
            for rank in range(6):
                ranks[rank].append((node, int(now[rank]), int(now[rank] + took[rank])))
            now = now + took.astype(np.int64)
        total = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "step": step, "group": "g"}
        total |= {"collective": Collective.ALL_REDUCE, "in_bytes": 1024}
        end = int(now.max()) + 20_000
        for rank in range(6):
            ranks[rank].append((total, int(now[rank]), end))
        now[:] = end
    (one,) = [f for f in diagnose(timed(*ranks, groups={"g": list(range(6))})) if f.kind in FAULTS]
    assert (one.kind, one.level, one.ranks) == ("slow_rank", level, (4,))
    assert one.height == pytest.approx(0.12, abs=0.01)
    assert one.words.startswith("The longer kernels, not all," if level == "power" else "Kernels of rank 4")

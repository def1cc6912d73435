"""Routing over equal ways: by hash, by load, or over all of them."""

from __future__ import annotations

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.cost.collectives import schedule
from etude.machine import open_system
from etude.machine.fabrics import fat_tree
from etude.machine.topology import Wire, ring
from etude.model.schema import Collective
from etude.run.simulate.networks import Operation, run_operations
from etude.run.simulate.options import Options

TREE = fat_tree(8, Wire(bytes_per_s=1e9, latency_ns=10))
"""128 devices, 16 ways between pods; not oversubscribed."""
SIZE = 160_000


def permutation(seed: int) -> list[Operation]:
    """Every device sends to one in another pod and hears from one."""
    goal = (np.random.default_rng(seed).permutation(16) + np.arange(0, 128, 16)[:, None]).ravel()
    goal = goal[(np.arange(128) + 16 * (1 + seed)) % 128]
    return [Operation.message(a, int(b), SIZE) for a, b in enumerate(goal)]


@pytest.mark.parametrize("seed", [0, 1])
def test_sprayed_a_permutation_runs_at_the_rate_of_the_ports(seed: int) -> None:
    ops = permutation(seed)
    ends = {way: run_operations(TREE, ops, routing=way).end_ns for way in ("static", "adaptive", "spray")}
    assert ends["spray"] == SIZE + 60  # six links of 10 ns
    assert ends["static"] > 1.9 * ends["spray"]
    assert ends["adaptive"] < ends["static"]


@pytest.mark.parametrize("routing", ["static", "adaptive", "spray"])
def test_links_carry_the_same_bytes_however_they_go(routing: str) -> None:
    ops = permutation(0)
    times = run_operations(TREE, ops, model="links", routing=routing)
    assert times.link_bytes.sum() == 128 * 6 * SIZE
    assert times.end_ns >= SIZE + 60
    if routing != "static":
        assert times.end_ns < run_operations(TREE, ops, model="links").end_ns


@pytest.mark.parametrize("routing", ["adaptive", "spray"])
def test_collectives_are_routed_too(routing: str) -> None:
    op = Operation(schedule(Collective.ALL_REDUCE, "ring", 32), np.arange(128).reshape(4, 32).T.ravel()[:32], 32_000)
    usual = run_operations(TREE, [op]).end_ns
    assert 62 * 1000 <= run_operations(TREE, [op], routing=routing).end_ns <= usual


def test_where_there_is_one_way_nothing_changes() -> None:
    op = Operation(schedule(Collective.ALL_REDUCE, "ring", 4), range(4), 4000)
    t = ring(4, Wire(bytes_per_s=1e9, latency_ns=10))
    assert len({run_operations(t, [op], routing=way).end_ns for way in ("static", "adaptive", "spray")}) == 1


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown routing `magic`"):
        run_operations(TREE, [], routing="magic")
    with pytest.raises(UsageError, match="routing: unknown value `magic`"):
        Options(routing="magic")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="closed forms have no paths"):
        Options(routing="spray").on(open_system("dgx-h100"))  # type: ignore[arg-type]

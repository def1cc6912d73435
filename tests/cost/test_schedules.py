"""Every algorithm is carried out on symbolic blocks, in random order of events, and must end with the right data."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from etude.base.errors import ClusterError
from etude.cost.collectives.schedules import known, schedule
from etude.cost.collectives.trees import rings_of_full
from etude.cost.schedule import Schedule, chunked, message
from etude.model.schema import Collective
from symbolic import assert_right

NESTED = ("hierarchical", "rail", "torus")
FLAT = [(Collective.parse(c), a) for c, names in known().items() for a in names if a not in NESTED]
REDUCING = [Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER]


@pytest.mark.parametrize(("collective", "algorithm"), FLAT)
def test_every_member_ends_with_the_right_data(collective: Collective, algorithm: str) -> None:
    for n in [*range(1, 18), 24, 33]:
        for seed in range(4 if n < 10 else 1):
            assert_right(schedule(collective, algorithm, n), seed)


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER])
def test_any_member_may_be_the_root(collective: Collective) -> None:
    for algorithm in known()[collective.name.lower()]:
        for n in range(1, 10):
            for root in range(n):
                assert_right(schedule(collective, algorithm, n, root=root), root)


def test_a_barrier_may_be_any_all_reduce_of_nothing() -> None:
    for algorithm in known()["all_reduce"]:
        assert_right(schedule(Collective.BARRIER, algorithm, 7))


@pytest.mark.parametrize("dims", [(4, 3), (2, 3, 2), (1, 5), (6,)])
def test_phased(dims: tuple[int, ...]) -> None:
    n = int(np.prod(dims))
    made = schedule(Collective.ALL_TO_ALL, "phased", n, dims=dims)
    assert_right(made, 1)
    phases = made.dst.reshape(n - 1, n)
    assert all(sorted(to) == list(range(n)) for to in phases)  # each sends to one and receives from one
    inside = [(to // dims[0] == np.arange(n) // dims[0]).all() for to in phases]
    assert inside == [True] * (dims[0] - 1) + [False] * (n - dims[0])


@pytest.mark.parametrize("algorithm", ["put", "get"])
def test_windows_move_a_count_of_8_bytes_for_each_pair(algorithm: str) -> None:
    made = schedule(Collective.ALL_TO_ALL, algorithm, 5)
    pairs = Counter(zip(made.src.tolist(), made.dst.tolist(), made.transfer_bytes(1003).tolist(), strict=True))
    for src in range(5):
        for dst in set(range(5)) - {src}:
            block = 201 if dst < 3 else 200  # 1003 bytes in 5 parts
            assert pairs[src, dst, 8] == pairs[src, dst, block] == 1
    assert made.transfer_bytes(1003).sum() == 5 * 1003 - (3 * 201 + 2 * 200) + 8 * 5 * 4
    assert chunked(made, 4).transfer_bytes(1003).sum() == made.transfer_bytes(1003).sum()  # counts go once


@pytest.mark.parametrize("collective", REDUCING)
@pytest.mark.parametrize(
    ("dims", "inner"),
    [
        ((4, 3), ("ring", "direct")),
        ((3, 4), ("halving_doubling", "ring")),
        ((5, 1, 2), ("direct", "ring", "halving_doubling")),
        ((2, 3, 4), ("direct", "halving_doubling", "ring")),
        ((7, 3), ("halving_doubling", "halving_doubling")),
        ((6,), ("ring",)),
    ],
)
def test_hierarchical(collective: Collective, dims: tuple[int, ...], inner: tuple[str, ...]) -> None:
    for seed in range(3):
        assert_right(schedule(collective, "hierarchical", int(np.prod(dims)), dims=dims, inner=inner), seed)


@pytest.mark.parametrize("collective", REDUCING)
@pytest.mark.parametrize(
    ("dims", "inner"),
    [((4, 3), ("ring_both", "line")), ((3, 4, 2), ("line", "ring_both", "ring")), ((4, 4), None), ((5,), None)],
)
def test_a_torus_begins_at_every_dimension(collective: Collective, dims: tuple[int, ...], inner: Any) -> None:
    for seed in range(2):
        assert_right(schedule(collective, "torus", int(np.prod(dims)), dims=dims, inner=inner), seed)


@pytest.mark.parametrize("collective", REDUCING)
@pytest.mark.parametrize(
    ("dims", "inner"),
    [((4, 3), ("in_switch", "ring")), ((3, 4), ("in_switch", "in_switch")), ((2, 3), ("line", "in_switch"))],
)
def test_a_level_may_reduce_in_its_switches(collective: Collective, dims: tuple[int, ...], inner: Any) -> None:
    made = schedule(collective, "hierarchical", int(np.prod(dims)), dims=dims, inner=inner)
    assert made.helpers == sum(np.prod(dims) // d for d, name in zip(dims, inner, strict=True) if name == "in_switch")
    assert_right(made)


@pytest.mark.parametrize("collective", [*REDUCING, Collective.ALL_TO_ALL, Collective.BROADCAST, Collective.REDUCE])
def test_in_a_line_nothing_goes_round_the_end(collective: Collective) -> None:
    for n in (1, 2, 3, 4, 5, 8, 9):
        made = schedule(collective, "ring_both", n, line=True, root=n // 2)
        assert_right(made, n)
        assert (np.abs(made.src - made.dst)[made.src != made.dst] == 1).all()


def test_both_ways_round_a_ring_of_an_even_number_carry_the_same() -> None:
    for n in (4, 6, 8):
        made = schedule(Collective.ALL_TO_ALL, "ring_both", n)
        up = (made.dst - made.src) % n == 1
        moved = made.transfer_bytes(n * 1000)
        assert moved[up].sum() == moved[~up].sum() == n * n * n * 1000 // 8


def test_rings_of_a_full_mesh_share_no_link() -> None:
    for n in range(3, 14):
        rings = rings_of_full(n)
        assert len(rings) == (n - 1 if n % 2 else n - 2)
        used = Counter((ring[i - 1], ring[i]) for ring in rings for i in range(n))
        assert set(used.values()) == {1}
        assert all(sorted(ring) == list(range(n)) for ring in rings)


@pytest.mark.parametrize("algorithm", ["hierarchical", "rail"])
@pytest.mark.parametrize("dims", [(4, 3), (1, 5), (5, 1), (3, 3), (2, 6)])
def test_all_to_all_in_two_phases(algorithm: str, dims: tuple[int, int]) -> None:
    for seed in range(3):
        assert_right(schedule(Collective.ALL_TO_ALL, algorithm, dims[0] * dims[1], dims=dims), seed)


@pytest.mark.parametrize("chunks", [2, 5])
def test_chunks_carry_all_of_the_data(chunks: int) -> None:
    for collective, algorithm in FLAT:
        p = chunked(schedule(collective, algorithm, 6), chunks, window=1)
        assert_right(p)
        assert len(p) == chunks * len(schedule(collective, algorithm, 6))
    p = schedule(Collective.ALL_REDUCE, "hierarchical", 12, dims=(4, 3), chunks=chunks)
    assert_right(p)


@pytest.mark.parametrize("size", [0, 1, 7, 1000, 4096, 999_999_937])
@pytest.mark.parametrize("chunks", [1, 3])
def test_bytes_are_cut_exactly(size: int, chunks: int) -> None:
    for n in (1, 2, 3, 5, 8, 13):
        for collective in REDUCING:
            ring = schedule(collective, "ring", n, chunks=chunks)
            whole = size * (n if collective == Collective.ALL_GATHER else 1)
            rounds = 2 if collective == Collective.ALL_REDUCE else 1
            assert ring.transfer_bytes(size).sum() == rounds * (n - 1) * whole
        received = Counter()
        direct = schedule(Collective.ALL_TO_ALL, "direct", n, chunks=chunks)
        for dst, b in zip(direct.dst, direct.transfer_bytes(size), strict=True):
            received[int(dst)] += int(b)
        assert direct.transfer_bytes(size).sum() <= size * n
        assert all(received[m] >= (n - 1) * (size // chunks // n) * chunks for m in range(n))


def test_a_ring_all_reduce_moves_two_n_minus_one_nths_of_the_bytes() -> None:
    for n in range(1, 20):
        p = schedule(Collective.ALL_REDUCE, "ring", n)
        sent = np.zeros(n, np.int64)
        np.add.at(sent, p.src, p.transfer_bytes(n * 840))
        assert (sent == 2 * (n - 1) * 840).all()


def test_all_to_all_on_rails_crosses_nodes_once_and_only_on_its_rail() -> None:
    p = schedule(Collective.ALL_TO_ALL, "rail", 12, dims=(4, 3))
    moved = p.transfer_bytes(12 * 5)
    cross = p.src // 4 != p.dst // 4
    assert ((p.src % 4 == p.dst % 4) | ~cross).all()
    assert moved[cross].sum() == 12 * 8 * 5  # of 11 partners 8 are in other nodes


def test_strided_blocks_are_counted_one_by_one() -> None:
    p = schedule(Collective.ALL_TO_ALL, "rail", 6, dims=(2, 3), chunks=2)
    size = 17
    parts = [9 // 6 + (k < 9 % 6) for k in range(6)], [8 // 6 + (k < 8 % 6) for k in range(6)]
    for t, moved in enumerate(p.transfer_bytes(size)):
        blocks = p.first[t] - p.chunk[t] * 36 + np.arange(p.count[t]) * p.stride[t]
        assert moved == sum(parts[p.chunk[t]][b % 6] for b in blocks)


def hierarchical(members: int, **more: Any) -> Schedule:
    return schedule(Collective.ALL_REDUCE, "hierarchical", members, **more)


@pytest.mark.parametrize(
    ("say", "call"),
    [
        ("no algorithm `magic` for all_reduce", lambda: schedule(Collective.ALL_REDUCE, "magic", 4)),
        ("0 members", lambda: schedule(Collective.ALL_REDUCE, "ring", 0)),
        ("do not match 5 members", lambda: schedule(Collective.ALL_REDUCE, "hierarchical", 5, dims=(2, 2))),
        (
            "2 dimensions, 1 algorithms",
            lambda: schedule(Collective.ALL_REDUCE, "hierarchical", 4, dims=(2, 2), inner=("ring",)),
        ),
        ("needs two dimensions", lambda: schedule(Collective.ALL_TO_ALL, "rail", 8, dims=(2, 2, 2))),
        ("root 4", lambda: schedule(Collective.BROADCAST, "tree", 4, root=4)),
        ("0 chunks", lambda: schedule(Collective.BROADCAST, "tree", 4, chunks=0)),
        ("-1 bytes", lambda: message().transfer_bytes(-1)),
    ],
)
def test_what_cannot_be_is_refused(say: str, call) -> None:
    with pytest.raises(ClusterError, match=say):
        call()


@pytest.mark.parametrize(("collective", "algorithm"), [(c, a) for c in REDUCING for a in ("ring", "ring_both")])
def test_rings_in_several_orders_share_the_data(collective: Collective, algorithm: str) -> None:
    orders = [[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3], [5, 4, 3, 2, 1, 0]]
    for seed in range(3):
        assert_right(schedule(collective, algorithm, 6, orders=orders), seed)


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
def test_rooted_chains_and_trees_over_nodes(collective: Collective) -> None:
    orders = [[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]]
    for root in range(6):
        assert_right(schedule(collective, "ring", 6, root=root, orders=orders), root)
        assert_right(schedule(collective, "ring_both", 6, root=root, orders=orders), root)
        for dims in ((3, 2), (2, 3), (1, 6), (6, 1)):
            assert_right(schedule(collective, "tree", 6, root=root, dims=dims), root)


@pytest.mark.parametrize("dims", [(4, 3), (3, 5), (1, 4), (4, 1), (8, 4)])
def test_trees_over_nodes_leave_through_every_member(dims: tuple[int, int]) -> None:
    p = schedule(Collective.ALL_REDUCE, "tree", dims[0] * dims[1], dims=dims)
    for seed in range(3):
        assert_right(p, seed)
    across = p.src // dims[0] != p.dst // dims[0]
    assert dims[1] == 1 or set((p.src[across] % dims[0]).tolist()) == set(range(dims[0]))
    assert dims[1] == 1 or (p.src[across] % dims[0] == p.dst[across] % dims[0]).all()


def test_an_order_must_have_everyone_once() -> None:
    with pytest.raises(ClusterError, match="each of 3 members once"):
        schedule(Collective.ALL_REDUCE, "ring", 3, orders=[[0, 1, 1]])

"""One chunk of one collective, against its closed form."""

from dataclasses import replace

import pytest

from astra_build import coll, comp, hop_ns, network, recv, reduce_ns, run, send, system, workload
from etude.base.errors import DeadlockError
from etude.run.astra import AstraAbort

KB, MB = 1 << 10, 1 << 20
E = 10


def finish(name, size, net, sys_, **options):
    result = run(workload([[coll(name, size)]] * net.num_npus), net, sys_, **options)
    return result.finish_ns.tolist()


@pytest.mark.parametrize("by_message", [False, True])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
@pytest.mark.parametrize(("topology", "hops"), [("Ring", 1), ("FullyConnected", 1), ("Switch", 2)])
def test_ring(topology, hops, n, by_message):
    net, sys_ = network((topology, n, 50, 500)), system("ring")
    m = MB // n
    d, r = hop_ns(m, 50, 500, hops), reduce_ns(m)
    whole = hop_ns(MB, 50, 500, hops)
    expected = {
        "all-reduce": E + 2 * (n - 1) * (d + E) + (n - 1) * r,
        "reduce-scatter": E + (n - 1) * (d + E + r),
        "all-gather": E + (n - 1) * (whole + E),
        "all-to-all": E + n * (n - 1) // 2 * (d + E),
    }
    for name, ns in expected.items():
        assert finish(name, MB, net, sys_, is_message_by_message=by_message) == [ns] * n, name


@pytest.mark.parametrize("by_message", [False, True])
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_direct_on_a_switch(n, by_message):
    net, sys_ = network(("Switch", n, 50, 500)), system("direct")
    d, r, whole = hop_ns(MB // n, 50, 500, 2), reduce_ns(MB // n), hop_ns(MB, 50, 500, 2)
    assert finish("reduce-scatter", MB, net, sys_, is_message_by_message=by_message) == [2 * E + d + r] * n
    assert finish("all-gather", MB, net, sys_, is_message_by_message=by_message) == [2 * E + whole] * n
    assert finish("all-to-all", MB, net, sys_, is_message_by_message=by_message) == [2 * E + d] * n
    assert finish("all-reduce", MB, net, sys_, is_message_by_message=by_message) == [3 * E + 2 * d + r] * n


@pytest.mark.parametrize("by_message", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_halving_doubling_on_a_switch(k, by_message):
    n = 2**k
    net, sys_ = network(("Switch", n, 50, 500)), system("halvingDoubling")
    scatter = (
        E
        + sum(hop_ns(MB >> i, 50, 500, 2) + E for i in range(1, k + 1))
        + sum(reduce_ns(MB >> i) for i in range(2, k + 1))
    )
    gather = sum(hop_ns(MB // n << i, 50, 500, 2) + E for i in range(k))
    assert finish("reduce-scatter", MB, net, sys_, is_message_by_message=by_message) == [scatter] * n
    assert finish("all-reduce", MB, net, sys_, is_message_by_message=by_message) == [scatter + gather] * n
    assert (
        finish("all-gather", KB, net, sys_, is_message_by_message=by_message)
        == [E + sum(hop_ns(KB << i, 50, 500, 2) + E for i in range(k))] * n
    )


def test_halving_doubling_of_odd_bytes_turns_round_with_an_even_number():
    # 1365, 682, 341 on the way out; there it halves once more, to 170, and doubles back: 340, 680
    net, n = network(("Switch", 4, 1, 0)), 4
    d = [hop_ns(m, 1, 0, 2) for m in (682, 341, 340, 680)]
    assert finish("all-reduce", 1365, net, system("halvingDoubling")) == [5 * E + sum(d) + reduce_ns(341)] * n


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_double_binary_tree_on_a_switch(k):
    net, sys_ = network(("Switch", 2**k, 50, 500)), system("doubleBinaryTree")
    d, r = hop_ns(MB, 50, 500, 2), reduce_ns(MB)
    assert max(finish("all-reduce", MB, net, sys_)) == E + 2 * k * d + 2 * k * E + (2 * k - 1) * r


@pytest.mark.parametrize(
    ("splits", "active", "queues", "rounds"), [(4, 1, 1, 4), (4, 2, 1, 2), (5, 2, 1, 3), (8, 4, 2, 4)]
)
def test_chunks_run_in_rounds(splits, active, queues, rounds):
    # An all-reduce uses the first half of the queues; each runs ceil(active / queues) chunks at once.
    net = network(("Ring", 4, 50, 500))
    one = finish("all-reduce", MB // splits, net, system("ring"))[0]
    many = finish(
        "all-reduce",
        MB // splits * splits,
        net,
        system("ring", splits=splits, active_chunks=active),
        num_queues_per_dim=queues,
    )
    assert many == [rounds * one] * 4


def test_a_remainder_is_one_more_chunk_of_full_size():
    net = network(("Ring", 4, 50, 500))
    one = finish("all-reduce", 1000, net, system("ring"))[0]
    assert finish("all-reduce", 4001, net, system("ring", splits=4))[0] == 5 * one


def test_all_reduce_on_two_dimensions_scatters_reduces_and_gathers():
    net, sys_ = network(("Ring", 4, 200, 50), ("Switch", 2, 100, 500)), system("ring", "ring")
    m1, m2 = MB // 4, MB // 4 // 2
    up = E + 3 * (hop_ns(m1, 200, 50) + E + reduce_ns(m1))
    top = E + 2 * (hop_ns(m2, 100, 500, 2) + E) + reduce_ns(m2)
    down = E + 3 * (hop_ns(m1, 200, 50) + E)
    for by_message in (False, True):
        assert finish("all-reduce", MB, net, sys_, is_message_by_message=by_message) == [up + top + down] * 8


def test_a_group_has_its_own_endpoint_delay_and_keeps_its_order():
    net, sys_ = network(("Ring", 8, 50, 500)), system("ring", endpoint_ns=100)
    w = workload([[coll("all-gather", KB, group=0)] if r in (0, 2, 5) else [comp(1)] for r in range(8)], {7: (0, 5, 2)})
    # 0 -> 5 is 3 hops the other way round, 5 -> 2 is 3, 2 -> 0 is 2
    long, short = hop_ns(KB, 50, 500, 3), hop_ns(KB, 50, 500, 2)
    first = {0: 10, 5: 10, 2: 10}
    second = {5: first[0] + long + 10, 2: first[5] + long + 10, 0: first[2] + short + 10}
    third = {
        5: max(second[0] + long, second[5]) + 10,
        2: max(second[5] + long, second[2]) + 10,
        0: max(second[2] + short, second[0]) + 10,
    }
    for by_message in (False, True):
        ends = run(w, net, sys_, is_message_by_message=by_message).finish_ns.tolist()
        assert [ends[0], ends[5], ends[2]] == [third[0], third[5], third[2]]


def test_congestion_makes_direct_wait_for_the_ring():
    net = network(("Ring", 8, 50, 500))
    fast, slow = (finish("all-to-all", MB, net, system("direct"), backend=b)[0] for b in ("unaware", "aware"))
    assert slow > 2 * fast


def test_a_member_that_comes_late_delays_the_others_unevenly():
    net, sys_ = network(("Switch", 4, 50, 500)), system("ring")
    w = workload([[comp(5), coll("reduce-scatter", KB, 0)]] + [[coll("reduce-scatter", KB)]] * 3)
    d = hop_ns(KB // 4, 50, 500, 2)
    # the late rank's first packet reaches the others one hop after another; it needs three hops itself
    late = 5000 + E
    a, b = run(w, net, sys_), run(w, net, sys_, is_message_by_message=True)
    assert a.finish_ns.tolist() == b.finish_ns.tolist()
    assert a.finish_ns.tolist()[3] == late + 3 * (d + E)


@pytest.mark.parametrize("backend", ["unaware", "aware"])
def test_a_collective_given_as_a_trace(backend):
    # an all-gather of three members round a ring, with a local step of 1 ns in between
    n, size = 3, 4096
    trace = workload(
        [
            [
                send((r + 1) % n, size),
                recv((r - 1) % n, size),
                comp(0, 1),
                send((r + 1) % n, size, 2),
                recv((r - 1) % n, size, 2),
            ]
            for r in range(n)
        ]
    )
    net, d = network(("FullyConnected", 4, 50, 500)), hop_ns(size, 50, 500)
    sys_ = replace(system("ring"), custom={"all-gather": "mine"})
    ranks = [[coll("all-gather", 77, group=0), comp(1, 0)] if r != 1 else [comp(1)] for r in range(4)]
    w = workload(ranks, {1: (0, 3, 2)})
    result = run(w, net, sys_, custom={"mine": trace}, backend=backend)
    ends = 2 * d + 1 + 1000
    assert result.finish_ns.tolist() == [ends, 1000, ends, ends]
    with pytest.raises(AstraAbort, match="was not given"):
        run(w, net, sys_)
    with pytest.raises(DeadlockError):
        run(w, net, replace(sys_, splits=2), custom={"mine": trace})

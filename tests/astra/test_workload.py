"""The workload layer: what may run when, what a message waits for, and what is said when nothing moves any more."""

from typing import Any

import numpy as np
import pytest

from astra_build import coll, comp, ends, hop_ns, network, recv, reduce_ns, run, send, starts, system, workload
from etude.base.errors import DeadlockError
from etude.model.schema import Collective, Kind
from etude.run.astra import AstraAbort
from etude.run.astra.config import RemoteMemoryConfig

KB, MB = 1 << 10, 1 << 20
RING4 = network(("Ring", 4, 50, 500))
RING = system("ring")


def idle(n):
    return [[comp(1)] for _ in range(n)]


def test_compute_runs_one_at_a_time_in_ascending_id():
    result = run(workload([[comp(100), comp(50), comp(7, 0)]] * 4), RING4, RING)
    assert starts(result)[:3].tolist() == [0, 100_000, 150_000]
    assert result.finish_ns.tolist() == [157_000] * 4
    assert result.exposed_ns.tolist() == [0] * 4


def test_compute_without_a_duration_takes_a_nanosecond():
    assert run(workload([[comp(100), comp(0, 0)]] * 4), RING4, RING).finish_ns.tolist() == [100_001] * 4


def test_a_ready_node_of_smaller_id_goes_first_even_if_it_became_ready_later():
    # 2 frees 1; when 0 ends, both 1 and 3 are ready and 1 has the smaller id
    nodes = [comp(10), comp(5, 2), {**comp(1), "is_cpu": True}, comp(5)]
    result = run(workload([nodes, *idle(3)]), RING4, RING)
    assert starts(result)[:4].tolist() == [0, 10_000, 0, 15_000]


def test_cpu_compute_and_communication_overlap_but_not_two_of_a_kind():
    nodes = [comp(100), {**comp(50), "is_cpu": True}, coll("all-reduce", MB), coll("all-reduce", MB)]
    result = run(workload([nodes] * 4), RING4, RING)
    one = 10 + 6 * (hop_ns(MB // 4, 50, 500) + 10) + 3 * reduce_ns(MB // 4)
    assert ends(result)[:4].tolist() == [100_000, 50_000, one, 2 * one]
    assert result.exposed_ns[0] == 0


def test_a_send_holds_the_port_until_it_arrives_and_a_receive_holds_nothing():
    net = network(("FullyConnected", 4, 50, 500))
    d = hop_ns(MB, 50, 500)
    w = workload([[send(1, MB), send(2, MB), recv(3, KB)], [recv(0, MB)], [recv(0, MB)], [comp(1), send(0, KB, 0)]])
    for backend in ("unaware", "aware"):
        result = run(w, net, RING, backend=backend)
        assert result.finish_ns.tolist() == [2 * d, d, 2 * d, 1000 + hop_ns(KB, 50, 500)]


def test_a_late_receive_finds_its_message_waiting():
    w = workload([[send(1, KB)], [comp(100), recv(0, KB, 0)], *idle(2)])
    assert run(w, RING4, RING).finish_ns.tolist() == [hop_ns(KB, 50, 500), 100_000, 1000, 1000]


def test_two_messages_share_a_link_in_the_aware_backend():
    # 0 -> 2 goes by way of 1, whose link to 2 is busy with its own message
    w = workload([[send(2, MB)], [send(2, MB, tag=1)], [recv(0, MB), recv(1, MB, tag=1)], [comp(1)]])
    d, serial = hop_ns(MB, 50, 500), hop_ns(MB, 50, 0)
    assert run(w, RING4, RING).finish_ns.tolist() == [hop_ns(MB, 50, 500, 2), d, hop_ns(MB, 50, 500, 2), 1000]
    aware = run(w, RING4, RING, backend="aware").finish_ns.tolist()
    assert serial < d
    assert aware == [2 * d, d, 2 * d, 1000]


def test_rendezvous_sends_a_handshake_first():
    w = workload([[send(1, MB)], [recv(0, MB)], *idle(2)])
    plain, shaken = (run(w, RING4, RING, rendezvous=r).finish_ns.tolist() for r in (False, True))
    assert plain[0] == hop_ns(MB, 50, 500)
    assert shaken[0] == shaken[1] == hop_ns(8192, 50, 500) + hop_ns(MB, 50, 500)


def test_rendezvous_deadlocks_two_ranks_that_both_send_first():
    w = workload([[send(1, KB), recv(1, KB, 0)], [send(0, KB), recv(0, KB, 0)], *idle(2)])
    assert run(w, RING4, RING).finish_ns.tolist()[:2] == [hop_ns(KB, 50, 500)] * 2
    with pytest.raises(DeadlockError, match="rank 0: node 0 waits for rank 1 to be ready to receive"):
        run(w, RING4, RING, rendezvous=True)


def test_a_pool_of_remote_memory_serves_one_rank_at_a_time():
    nodes = [{"kind": Kind.MEM_LOAD, "tensor_size": 1000, "deps": ()}, comp(1, 0)]
    pool = RemoteMemoryConfig(kind="MEMORY_POOL", latency_ns=100, bytes_per_ns=10)
    assert run(workload([nodes] * 4), RING4, RING, remote_memory=pool).finish_ns.tolist() == [1200, 1400, 1600, 1800]
    own = RemoteMemoryConfig(kind="PER_NPU_MEMORY_EXPANSION", latency_ns=100, bytes_per_ns=10)
    assert run(workload([nodes] * 4), RING4, RING, remote_memory=own).finish_ns.tolist() == [1200] * 4


def test_roofline():
    sys_ = system("ring", memory=1000.0, has_roofline=True, peak_tflop_per_s=1.0)
    bound = [comp(9, num_ops=3_000_000, tensor_size=1000), comp(9, 0, num_ops=1000, tensor_size=1_000_000)]
    result = run(workload([bound] * 4), RING4, sys_)
    assert ends(result)[:2].tolist() == [3000, 3000 + 1000]
    empty = run(workload([[comp(1, num_ops=0, tensor_size=8)]] * 4), RING4, sys_)
    assert empty.finish_ns.tolist() == [2**63] * 4
    assert any("2**63" in w for w in empty.warnings)


def test_replay_only_takes_recorded_durations():
    w = workload([[comp(100), coll("all-reduce", MB, 0, duration_us=30)]] * 4)
    result = run(w, RING4, system("ring", is_replay_only=True))
    assert result.finish_ns.tolist() == [130_000] * 4
    assert result.exposed_ns.tolist() == [0] * 4


def test_nodes_in_a_cycle_are_dropped_with_a_warning():
    result = run(workload([[comp(1), comp(1, 2), comp(1, 1)]] * 4), RING4, RING)
    assert result.finish_ns.tolist() == [1000] * 4
    assert any("8 nodes never ran" in w for w in result.warnings)


# --- what hangs -----------------------------------------------------------------------------------------------------


def test_a_receive_without_a_send():
    with pytest.raises(
        DeadlockError, match=r"rank 1: node 0 waits for a message from rank 0 \(tag 7, 1024 bytes\)"
    ) as caught:
        run(workload([[comp(1)], [recv(0, KB, tag=7)], *idle(2)]), RING4, RING)
    assert caught.value.exit_code == 1
    assert "3 of 4 ranks finish" in str(caught.value)


@pytest.mark.parametrize(
    ("sends", "receives", "why"),
    [
        ([], [recv(0, KB)], "which sends nothing to it"),
        ([send(1, KB)], [recv(0, MB)], "which sends tag 0, 1024 bytes"),
        ([send(1, KB, tag=3)], [recv(0, KB)], "which sends tag 3, 1024 bytes"),
        ([send(1, KB)], [recv(0, KB), recv(0, KB)], "which sends 1 such for 2 receives"),
        ([recv(3, KB), send(1, KB, 0)], [recv(0, KB)], "not sent yet"),
    ],
)
def test_what_the_sender_does_instead(sends, receives, why):
    with pytest.raises(DeadlockError, match=why):
        run(workload([sends or [comp(1)], receives, *idle(2)]), RING4, RING)


def test_many_ranks_that_hang_are_told_in_short():
    nodes = [[coll("all-reduce", KB)] for _ in range(300)]
    nodes[7] = [comp(1)]
    with pytest.raises(DeadlockError, match=r"\.\.\. and 279 more"):
        run(workload(nodes), network(("Switch", 300, 50, 500)), RING)


def test_a_rank_that_does_not_join():
    nodes = [[coll("all-reduce", KB)] for _ in range(4)]
    nodes[2] = [comp(1)]
    with pytest.raises(
        DeadlockError, match="rank 0: node 0 waits for collective 1 of all ranks, which rank 2 has not joined"
    ):
        run(workload(nodes), RING4, RING)


def test_ranks_that_join_in_another_order():
    nodes = [[coll("all-reduce", KB), coll("all-gather", KB, 0)] for _ in range(4)]
    nodes[1] = [coll("all-gather", KB), coll("all-reduce", KB, 0)]
    why = "rank 1 with an all-gather of 1024 bytes, it with an all-reduce of 1024 bytes"
    with pytest.raises(DeadlockError, match=why):
        run(workload(nodes), RING4, RING)


def test_a_group_of_one():
    w = workload([[coll("all-reduce", KB, group=r)] for r in range(4)], {r + 1: (r,) for r in range(4)})
    with pytest.raises(DeadlockError, match="group 1, which has one member"):
        run(w, RING4, RING)


def test_a_collective_of_all_ranks_behind_one_of_a_group():
    nodes = [
        [coll("all-gather", KB)] if r < 2 else [coll("all-reduce", KB, group=0), coll("all-gather", KB, 0)]
        for r in range(4)
    ]
    with pytest.raises(DeadlockError, match="name a group of all ranks"):
        run(workload(nodes, {1: (2, 3)}), RING4, RING)
    named = [[{**n, "group": 1} if n["group"] == -1 else n for n in rank] for rank in nodes]
    assert run(workload(named, {1: (2, 3), 2: (0, 1, 2, 3)}), RING4, RING).finish_ns.min() > 0


def test_a_child_of_a_node_that_takes_no_time():
    with pytest.raises(DeadlockError, match="looks for ready nodes only when something finishes"):
        run(workload([[{"kind": Kind.INVALID, "deps": ()}, comp(1, 0)]] * 4), RING4, RING)


@pytest.mark.parametrize("backend", ["unaware", "aware"])
def test_halving_doubling_on_three(backend):
    with pytest.raises(DeadlockError, match="cannot complete for this number of ranks"):
        run(
            workload([[coll("all-reduce", KB)]] * 3),
            network(("Switch", 3, 50, 500)),
            system("halvingDoubling"),
            backend=backend,
        )


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"kind": Kind.METADATA, "deps": ()}, "METADATA"),
        ({**coll("all-reduce", KB), "is_cpu": True}, "on the CPU"),
        ({**coll("all-reduce", KB), "comm_type": Collective.REDUCE}, "does not simulate"),
        ({**coll("all-reduce", KB), "group": -2}, "names a group"),
        (send(0, KB), "to the sender itself"),
        (send(9, KB), "a rank that does not exist"),
        (send(1, 0), "0 bytes"),
        ({**send(1, KB), "src": 3}, "for another rank"),
        ({"kind": Kind.MEM_LOAD, "tensor_size": 8, "deps": ()}, "but there is none"),
    ],
)
def test_nodes_on_which_it_dies(node, why):
    with pytest.raises(AstraAbort, match=why) as caught:
        run(workload([[node], *idle(3)]), RING4, RING)
    assert caught.value.exit_code == 1
    assert "rank 0, node 0" in str(caught.value)


def test_no_endpoint_delay_at_tick_zero():
    with pytest.raises(AstraAbort, match="tick 0"):
        run(workload([[coll("all-reduce", KB)]] * 4), RING4, system("ring", endpoint_ns=0))
    later = workload([[comp(1), coll("all-reduce", KB, 0)]] * 4)
    assert len(set(run(later, RING4, system("ring", endpoint_ns=0)).finish_ns.tolist())) == 1


def test_traces_and_networks_that_do_not_fit():
    with pytest.raises(AstraAbort, match="no trace of rank 3"):
        run(workload(idle(3)), RING4, RING)
    with pytest.raises(AstraAbort, match="no nodes"):
        run(workload([*idle(3), []]), RING4, RING)
    with pytest.raises(AstraAbort, match="every node waits"):
        run(workload([*idle(3), [comp(1, 1), comp(1, 0)]]), RING4, RING)
    with pytest.raises(AstraAbort, match="not in the trace"):
        run(workload([*idle(3), [comp(1), comp(1, -1)]]), RING4, RING)
    with pytest.raises(AstraAbort, match="two NPUs"):
        run(workload(idle(2)), network(("Ring", 2, 50, 500)), RING, backend="aware")
    with pytest.raises(AstraAbort, match="only one network dimension"):
        run(workload(idle(8)), network(("Ring", 4, 50, 500), ("Ring", 2, 50, 500)), RING, backend="aware")
    with pytest.raises(AstraAbort, match="splits"):
        run(workload([[coll("all-reduce", KB)]] * 4), RING4, system("ring", splits=0))
    with pytest.raises(AstraAbort, match="2 entries"):
        run(workload([[coll("all-reduce", KB)]] * 4), RING4, system("ring", "ring"))


# --- working ahead is the same as running every message ------------------------------------------------------------


def random_program(seed):
    """Ranks that compute, talk in pairs and join collectives of overlapping groups, with many ties."""
    random = np.random.default_rng(seed)
    n = int(random.choice([4, 6, 8]))
    groups = {g + 1: tuple(random.permutation(n)[: random.integers(2, n + 1)].tolist()) for g in range(4)}
    ranks: list[list[dict[str, Any]]] = [[] for _ in range(n)]
    last: list[int | None] = [None] * n

    def add(rank, node, is_comm):
        deps: set[int] = set()
        if ranks[rank]:
            deps = {int(d) for d in random.integers(0, len(ranks[rank]), int(random.integers(0, 3)))}
        if is_comm and last[rank] is not None:
            deps.add(last[rank])
        if is_comm:
            last[rank] = len(ranks[rank])
        ranks[rank].append({**node, "deps": tuple(sorted(deps))})

    for _ in range(int(random.integers(5, 40))):
        kind = random.integers(0, 4)
        if kind < 2:
            add(int(random.integers(0, n)), comp(int(random.integers(0, 4))), False)
        elif kind == 2:
            g = int(random.integers(0, 4))
            node = coll(
                str(random.choice(["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])),
                int(random.choice([64, 1000, 4096])),
                group=g,
            )
            for rank in groups[g + 1]:
                add(rank, node, True)
        else:
            a, b = (int(x) for x in random.permutation(n)[:2])
            add(a, send(b, 512), True)
            add(b, recv(a, 512), False)
    for rank in ranks:
        if not rank:
            rank.append(comp(1))
    ranks = [[{**node, "deps": node["deps"] if i else ()} for i, node in enumerate(rank)] for rank in ranks]
    topology = str(random.choice(["Ring", "Switch", "FullyConnected"]))
    shape = (
        [(topology, n, 1, 0 if seed % 3 else 250)]
        if n == 6 or seed % 2
        else [(topology, n // 2, 1, 10), ("Switch", 2, 2, 5)]
    )
    listed = [str(random.choice(["ring", "direct", "direct2"])) for _ in shape]
    return (
        workload(ranks, groups),
        network(*shape),
        system(*listed, splits=int(random.choice([1, 2, 3])), active_chunks=int(random.choice([1, 2])), memory=1),
    )


@pytest.mark.parametrize("block", range(6))
def test_working_ahead_changes_nothing(block):
    finished = 0
    for seed in range(25 * block, 25 * block + 25):
        w, net, sys_ = random_program(seed)
        results: list[Any] = []
        for by_message in (False, True):
            try:
                r = run(w, net, sys_, is_message_by_message=by_message, num_queues_per_dim=1 + seed % 3)
                results.append((r.finish_ns.tolist(), starts(r).tolist(), ends(r).tolist(), r.exposed_ns.tolist()))
            except (DeadlockError, AstraAbort) as error:
                results.append(str(error))
        assert results[0] == results[1], seed
        finished += not isinstance(results[0], str)
    assert finished >= 10


@pytest.mark.parametrize(
    ("size", "sent"),
    [
        (2**31 - 1, 2**31 - 1),
        (2**31, 2**64 - 2**31),  # -2**31 in an int, and that without its sign
        (3 * 2**30, 2**64 - 2**30),
        (2**32 + 5, 5),
    ],
)
@pytest.mark.parametrize("backend", ["unaware", "aware"])
def test_rendezvous_keeps_sizes_in_an_int_of_32_bits(size: int, sent: int, backend: str):
    w = workload([[send(1, size)], [recv(0, size)], *idle(2)])
    plain = run(w, RING4, RING, backend=backend)
    assert plain.finish_ns[0] == hop_ns(size, 50, 500)
    assert not plain.warnings
    shaken = run(w, RING4, RING, backend=backend, rendezvous=True)
    assert shaken.finish_ns[:2].tolist() == [hop_ns(8192, 50, 500) + hop_ns(sent, 50, 500)] * 2
    assert any("overflows an int" in text for text in shaken.warnings) == (size != sent)


def test_rendezvous_of_4_gib_sends_nothing():
    w = workload([[comp(1), send(1, 2**32, 0)], [recv(0, 2**32)], *idle(2)])
    with pytest.raises(AstraAbort, match="rank 0, node 1: a message of 0 bytes"):
        run(w, RING4, RING, rendezvous=True)


def test_a_size_that_overflowed_may_never_arrive():
    w = workload([[send(1, 2**31)], [recv(0, 2**31)], *idle(2)])
    slow = network(("Ring", 4, 1, 500))
    with pytest.raises(AstraAbort, match="rank 0, node 0: .* never arrives"):
        run(w, slow, RING, rendezvous=True)


@pytest.mark.parametrize("rendezvous", [False, True])
def test_a_message_of_0_bytes_is_named(rendezvous: bool):
    w = workload([[comp(1), send(1, 0, 0)], [recv(0, 0)], *idle(2)])
    with pytest.raises(AstraAbort, match="rank 0, node 1: a message of 0 bytes"):
        run(w, RING4, RING, rendezvous=rendezvous)


def test_the_way_out_of_tick_0_fits_its_cause():
    still = system("ring", endpoint_ns=0)
    with pytest.raises(AstraAbort, match="`endpoint-delay` above 0"):
        run(workload([[coll("all-reduce", MB)]] * 4), RING4, still)
    near = network(("Ring", 4, 50, 0))
    with pytest.raises(AstraAbort, match="`latency` of 1 ns or more") as found:
        run(workload([[send(1, 1)], [recv(0, 1)], *idle(2)]), near, RING)
    assert "endpoint" not in str(found.value)
    pool = RemoteMemoryConfig(kind="PER_NPU_MEMORY_EXPANSION", latency_ns=0, bytes_per_ns=10)
    load = {"kind": Kind.MEM_LOAD, "tensor_size": 1, "deps": ()}
    with pytest.raises(AstraAbort, match="`remote-mem-latency` above 0"):
        run(workload([[load, comp(1, 0)]] * 4), RING4, RING, remote_memory=pool)


def test_a_hang_on_a_group_of_one_says_what_would_help():
    alone = {i + 1: [i] for i in range(4)} | {9: list(range(4))}
    nodes = [[coll("all-reduce", MB, group=r), coll("all-gather", MB, 0)] for r in range(4)]
    with pytest.raises(DeadlockError, match="leave collectives of a group of one out of the trace"):
        run(workload(nodes, alone), RING4, RING)


def test_lists_of_one_entry_are_freed_twice_only_where_a_rank_has_two_groups():
    def warned(groups: dict[int, list[int]], of: list[list[int]], list_: tuple[str, ...] = ("ring",)) -> bool:
        nodes = [[coll("all-reduce", MB, *range(i)[-1:], group=g) for i, g in enumerate(mine)] for mine in of]
        return any("frees" in text for text in run(workload(nodes, groups), RING4, system(*list_)).warnings)

    pairs = {1: [0, 1], 2: [2, 3]}
    assert not warned(pairs, [[0], [0], [1], [1]])  # group4of8_ring: exit code 0
    assert not warned({1: [0, 1, 2, 3]}, [[0]] * 4)  # gpt8L_r64_dp64
    crossed = {**pairs, 3: [0, 2], 4: [1, 3]}
    assert warned(crossed, [[0, 2], [0, 3], [1, 2], [1, 3]])  # gpt8L_r16_dp4tp4: aborts at the end
    assert not warned(crossed, [[0, 2], [0, 3], [1, 2], [1, 3]], ("ring", "ring"))

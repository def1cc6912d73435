"""Operations and jobs on a network of packets: limits that are exact, and those of the other networks."""

import numpy as np
import pytest

from etude.base.errors import ClusterError, DeadlockError, UsageError
from etude.cost.collectives import schedule
from etude.extend import topology as fabrics
from etude.machine import open_system
from etude.machine.topology import Wire, switch
from etude.make.generate import MicroOptions, micro
from etude.model.schema import Collective
from etude.run.simulate import simulate
from etude.run.simulate.choices import Network, PacketFabric
from etude.run.simulate.networks import Operation, run_operations
from etude.run.simulate.networks.queues import PACKET_BYTES
from etude.run.simulate.options import LinkChange, Options
from etude.run.simulate.run import start_engine

WIRE = Wire(bytes_per_s=1e9, latency_ns=500)


def end_ns(many: int, size_bytes: int, model: str) -> int:
    """`many` messages into one device of a switch."""
    ops = [Operation.message(i, many, size_bytes, i) for i in range(many)]
    return run_operations(switch(many + 1, WIRE), ops, model=model).end_ns


def test_a_message_on_an_idle_path_takes_its_bytes_a_packet_and_the_latencies():
    """10 packets of 4,096 ns; the last one once more on the second link; two latencies."""
    assert end_ns(1, 10 * PACKET_BYTES, "packets") == 10 * 4096 + 4096 + 2 * 500
    assert end_ns(1, 100, "packets") == 100 + 100 + 2 * 500


@pytest.mark.parametrize("many", [2, 3, 8])
def test_senders_share_one_bottleneck_as_flows_do(many: int):
    """Behind one full link the order of packets does not matter: its bytes, one packet before them."""
    found = end_ns(many, 1_000 * PACKET_BYTES, "packets")
    assert found == many * 1_000 * 4096 + 4096 + 2 * 500
    assert found == pytest.approx(end_ns(many, 1_000 * PACKET_BYTES, "flow"), rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_fair_queues_and_windows_that_fill_the_path_are_what_flow_says(seed: int):
    """Random long messages on random fat trees: each takes the time of `flow` within 1%, which first in, first out at
    the rate of the line does not."""
    rng = np.random.default_rng(seed)
    tree = fabrics.fat_tree(4, WIRE, levels=2 + seed % 2)
    ends = [rng.choice(len(tree), 2, replace=False).tolist() for _ in range(9)]
    sizes = (rng.integers(8_000, 20_000, len(ends)) * PACKET_BYTES).tolist()
    ops = [Operation.message(a, b, size, i) for i, ((a, b), size) in enumerate(zip(ends, sizes, strict=True))]
    joins = rng.integers(0, 5_000_000, len(ops)).tolist()
    took = {}
    for model, fabric in (("flow", "roce"), ("packets", "fair"), ("packets", "roce")):
        found = run_operations(tree, ops, joins, model=model, fabric=fabric)
        took[model, fabric] = np.array([end.max() - join for end, join in zip(found.finish_ns, joins, strict=True)])
    assert took["packets", "fair"] == pytest.approx(took["flow", "roce"], rel=0.01)
    assert took["packets", "roce"] != pytest.approx(took["flow", "roce"], rel=0.01)


def test_a_ring_on_a_switch_takes_what_flow_says():
    ring = schedule(Collective.ALL_REDUCE, "ring", 8)
    found = [
        run_operations(switch(8, WIRE), [Operation(ring, range(8), 1 << 26)], model=model).end_ns
        for model in ("flow", "packets")
    ]
    assert found[1] == pytest.approx(found[0], rel=0.01)


def test_a_victim_behind_a_paused_link_is_slower_than_flow_says():
    """Eight hosts send to one, over links that a ninth flow shares: a pause stops both. Only packets show it."""
    fabric = fabrics.fat_tree(8, WIRE, levels=2)
    ops = [Operation.message(src, 0, 400 * PACKET_BYTES, src) for src in range(8, 16)]
    victim = Operation.message(8, 1, 100 * PACKET_BYTES, 8)
    alone = run_operations(fabric, [victim], model="packets").end_ns
    took = {
        model: int(run_operations(fabric, [*ops, victim], model=model).finish_ns[-1].max())
        for model in ("flow", "packets")
    }
    assert took["packets"] > alone
    assert took["packets"] != took["flow"]


def ring_of_switches() -> fabrics.Topology:
    """Three devices, each on its own switch; switches forward one way round."""
    kind = [fabrics.VertexKind.DEVICE] * 3 + [fabrics.VertexKind.SWITCH] * 3
    ends = (
        [(i, 3 + i) for i in range(3)] + [(3 + i, i) for i in range(3)] + [(3 + i, 3 + (i + 1) % 3) for i in range(3)]
    )
    src, dst = np.array(ends, np.int32).T
    return fabrics.Topology(
        name="ring of switches",
        kind=np.array(kind, np.uint8),
        forwards=np.arange(6) >= 3,
        src=src,
        dst=dst,
        bytes_per_s=np.full(9, 1e9),
        latency_ns=np.full(9, 500),
        link_type=np.zeros(9, np.int32),
        link_names=("",),
        device=np.arange(3, dtype=np.int32),
        out_start=np.searchsorted(np.sort(src), np.arange(7)),
        out_link=np.argsort(src, kind="stable").astype(np.int32),
        vertex_name=lambda vertex: f"d{vertex}" if vertex < 3 else f"s{vertex - 3}",
    )


def test_switches_that_wait_in_a_cycle_are_named():
    """Each device sends to the one before it, over all but one switch: every buffer waits for the next one."""
    ops = [Operation.message(i, (i + 2) % 3, 2_000 * PACKET_BYTES) for i in range(3)]
    with pytest.raises(DeadlockError, match="cycle of 3 full buffers: s. -> s."):
        run_operations(ring_of_switches(), ops, model="packets")
    assert run_operations(ring_of_switches(), ops, model="flow").end_ns > 0


def test_bytes_over_links_are_those_of_flow():
    rng = np.random.default_rng(2)
    fabric = fabrics.fat_tree(4, WIRE, levels=3)
    for _ in range(20):
        ends = [rng.choice(16, 2, replace=False).tolist() for _ in range(12)]
        ops = [Operation.message(a, b, int(rng.integers(1, 100_000)), i) for i, (a, b) in enumerate(ends)]
        joins = rng.integers(0, 100_000, len(ops)).tolist()
        packets = run_operations(fabric, ops, joins, model="packets")
        flow = run_operations(fabric, ops, joins, model="flow")
        assert packets.link_bytes.tolist() == flow.link_bytes.tolist()
        assert packets.end_ns > packets.link_bytes.max()  # 1 byte a ns


def test_jobs_run_on_packets_and_what_they_do_not_read_is_refused():
    job = micro("all_reduce", MicroOptions(ranks=16, sizes=(1 << 22,)))
    system = open_system("dgx-h100").resized(16)
    found = simulate(job, system, network="packets")
    assert found.makespan_ns == pytest.approx(simulate(job, system, network="flow").makespan_ns, rel=0.25)
    assert any(note.startswith("packets of 4 KiB") for note in found.notes)
    assert any(" packets; the longest queue: " in note for note in found.notes)
    assert found.links and all(link.busy_ns > 0 for link in found.links)
    with pytest.raises(UsageError, match="only packets have a fabric"):
        simulate(job, system, network="flow", fabric="roce")
    engine, _ = start_engine(job, system, Options(network=Network.PACKETS))
    engine.advance(1_000)
    with pytest.raises(UsageError, match="links that change"):
        engine.apply(LinkChange(1_000, (0, "switch0.0"), 2.0), 1_000)


FABRICS = tuple(fabric.value for fabric in PacketFabric)
DROPPING = ("roce-lossy", "dctcp")


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("routing", ["static", "spray", "adaptive"])
def test_every_fabric_delivers_what_was_sent(fabric: str, routing: str):
    """Random messages on a fat tree: each is delivered, none sooner than on an idle path, and links carry every byte
    of them: over the first and the last link those of `flow`."""
    rng = np.random.default_rng(4)
    tree = fabrics.fat_tree(4, WIRE, levels=3)
    for _ in range(3):
        ends = [rng.choice(16, 2, replace=False).tolist() for _ in range(40)]
        ops = [Operation.message(a, b, int(rng.integers(1, 200_000)), i) for i, (a, b) in enumerate(ends)]
        joins = np.sort(rng.integers(0, 100_000, len(ops))).tolist()
        found = run_operations(tree, ops, joins, model="packets", fabric=fabric, routing=routing)
        for op, begin, end in zip(ops, joins, found.finish_ns, strict=True):
            assert end.max() >= begin + op.size_bytes + 2 * 500


@pytest.mark.parametrize("fabric", FABRICS)
def test_one_idle_message_is_as_fast_on_every_fabric(fabric: str):
    """Its window is never full: 10 packets, one more on the second link, two latencies."""
    found = run_operations(switch(2, WIRE), [Operation.message(0, 1, 40_960)], model="packets", fabric=fabric)
    assert found.end_ns == 10 * 4096 + 4096 + 2 * 500


def test_windows_keep_queues_short_where_the_line_does_not():
    """Eight senders, one receiver: about the same end, but a victim of pauses behind RoCE is faster with windows."""
    tree = fabrics.fat_tree(8, WIRE, levels=2)
    ops = [Operation.message(src, 0, 400 * PACKET_BYTES, src) for src in range(8, 16)]
    victim = Operation.message(8, 1, 100 * PACKET_BYTES, 8)
    ends = {f: run_operations(tree, [*ops, victim], model="packets", fabric=f) for f in FABRICS}
    took = {f: int(found.finish_ns[-1].max()) for f, found in ends.items()}
    assert took["ultra-ethernet"] < took["roce"]
    steady = set(FABRICS) - {"roce-dcqcn", *DROPPING}  # which are slower while they find their rate
    for fabric, found in ends.items():
        assert found.end_ns == pytest.approx(8 * 400 * 4096, rel=0.15 if fabric in steady else 1.0)
        assert found.end_ns >= 8 * 400 * 4096


def queues_of(fabric: str) -> dict[str, int]:
    """What the queues of an all-to-all of 16 did on a fabric with half the rate between its leaves."""
    job = micro("all_to_all", MicroOptions(ranks=16, sizes=(1 << 23,)))
    tree = fabrics.fat_tree(12, WIRE, levels=2, oversubscription=2, devices=16)
    system = open_system("dgx-h100").resized(16).replace(topology=tree)
    found = simulate(job, system, network="packets", fabric=fabric, collective={"all_to_all": "direct"})
    names = ("marks", "cut", "dropped", "pauses")
    return {name: sum(getattr(queue, name) for queue in found.queues) for name in names}


@pytest.mark.parametrize("fabric", FABRICS)
def test_only_what_a_fabric_has_happens_in_its_queues(fabric: str):
    found = queues_of(fabric)
    pauses, marks = fabric in ("roce", "roce-dcqcn", "infiniband"), fabric not in ("roce", "infiniband", "fair")
    assert (found["pauses"] > 0) <= pauses and (found["marks"] > 0) == marks
    assert (found["dropped"] > 0) <= (fabric in DROPPING)
    assert (found["cut"] > 0) <= (PacketFabric(fabric).spreads)


def test_senders_that_slow_down_at_marks_are_paused_less():
    assert queues_of("roce-dcqcn")["pauses"] < queues_of("roce")["pauses"]


def test_what_is_dropped_is_sent_again():
    """Eight senders, one receiver, queues of 16 packets: what finds no room is lost, and everything arrives."""
    tree = fabrics.fat_tree(8, WIRE, levels=2)
    ops = [Operation.message(src, 0, 400 * PACKET_BYTES, src) for src in range(8, 16)]
    for fabric in DROPPING:
        found = run_operations(tree, ops, model="packets", fabric=fabric)
        assert len(found.finish_ns) == 8 and found.end_ns > 8 * 400 * 4096 + 4096


def test_answers_need_a_way_back():
    tops = ring_of_switches()
    one = [Operation.message(0, 1, 4096)]
    assert run_operations(tops, one, model="packets", fabric="roce").end_ns > 0
    with pytest.raises(ClusterError, match="has no link in the other direction"):
        run_operations(tops, one, model="packets", fabric="dctcp")


def test_queues_are_in_the_result():
    """Each of 8 ranks sends to each over a switch: its 8 links to them have queues."""
    job = micro("all_to_all", MicroOptions(ranks=8, sizes=(1 << 22,)))
    system = open_system("dgx-h100").resized(8).replace(topology=switch(8, WIRE))
    found = simulate(job, system, network="packets")
    assert sum(queue.longest_bytes > 0 for queue in found.queues) == 8
    assert all(0 < queue.mean_bytes <= queue.longest_bytes for queue in found.queues if queue.longest_bytes)
    assert [queue.longest_bytes for queue in found.queues] == sorted(
        (queue.longest_bytes for queue in found.queues), reverse=True
    )
    assert not simulate(job, system, network="flow").queues


def test_links_have_their_other_direction():
    from etude.run.simulate.networks.queues import reverse_links

    tree = fabrics.fat_tree(4, WIRE, levels=3)
    back = reverse_links(tree)
    assert (tree.src[back] == tree.dst).all() and (tree.dst[back] == tree.src).all()
    assert (back[back] == np.arange(len(back))).all()

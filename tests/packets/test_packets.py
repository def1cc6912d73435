"""The network of packets: times by hand, what is conserved, and what stops for ever."""

import numpy as np
import pytest

from etude.base.errors import DeadlockError, UsageError
from etude.run.simulate.packets.alone import PacketFlow, Wires, run_flows
from etude.run.simulate.packets.state import Rules

US = 1_000_000
PLAIN = Rules(
    payload_bytes=1000, header_bytes=0, answer_bytes=10, pads=False, answers=True,
    pause_bytes=0, resume_bytes=0, mark_bytes=0, notice_ps=0, raise_ps=0,
)  # fmt: skip


def wires(*ends: str, switch_us: float = 0) -> Wires:
    """Links of 1 byte per ns and 1 us; what begins with `s` is a switch."""
    return Wires(
        bytes_per_s=np.full(len(ends), 1e9),
        wire_ps=np.full(len(ends), US),
        switch_ps=np.full(len(ends), round(switch_us * US)),
        to_switch=np.array([end[1] == "s" for end in ends], np.int64),
        names=tuple(f"{end[0]}->{end[1]}" for end in ends),
    )


def test_one_flow_on_an_idle_path_takes_its_bytes_once_and_a_packet_more_per_hop():
    """10 packets of 1 us: the last leaves its host at 10 us, and each of 2 hops takes 1 us; a switch holds it for 1 us
    and, store and forward, 0.3 us. So it is there at 13.3 us; the ACK of 10 ns needs 0.01 + 1 + 0.3 + 0.01 + 1."""
    done = run_flows(
        wires("as", "sb", "bs", "sa", switch_us=0.3), [PacketFlow(path=(0, 1), back=(2, 3), size_bytes=10_000)], PLAIN
    )
    assert done.delivered_ps.tolist() == [13_300_000]
    assert done.finished_ps.tolist() == [15_620_000]


def test_the_last_packet_is_short():
    """1,000 + 1,000 + 500 bytes. The last leaves the host at 2.5 us and waits at the switch from 3.5 to 4 for the one
    before it; then it needs 0.5 + 1."""
    done = run_flows(wires("as", "sb", "bs", "sa"), [PacketFlow(path=(0, 1), back=(2, 3), size_bytes=2_500)], PLAIN)
    assert done.delivered_ps.tolist() == [5_500_000]


def test_two_flows_share_a_link_half_and_half():
    """Two flows of 1,000 packets into one link: both end after 2,000 us of packets, one of them a packet earlier."""
    ends = wires("as", "bs", "sc", "cs", "sa", "sb")
    flows = [
        PacketFlow(path=(0, 2), back=(3, 4), size_bytes=1_000_000),
        PacketFlow(path=(1, 2), back=(3, 5), size_bytes=1_000_000),
    ]
    done = run_flows(ends, flows, PLAIN)
    assert sorted(done.delivered_ps.tolist()) == [2_002 * US, 2_003 * US]
    assert done.ports["carried_bytes"].tolist() == [1_000_000, 1_000_000, 2_000_000, 20_000, 10_000, 10_000]


def test_two_flows_of_one_host_take_turns():
    """Three packets of one and one of the other: the second has its turn after the first packet of the other."""
    done = run_flows(
        wires("ab", "ba"),
        [PacketFlow(path=(0,), back=(1,), size_bytes=3_000), PacketFlow(path=(0,), back=(1,), size_bytes=1_000)],
        PLAIN,
    )
    assert done.delivered_ps.tolist() == [5 * US, 3 * US]


def test_a_window_of_one_packet_waits_for_each_ack():
    """Each packet needs 1 us of bytes and 1 us of wire, its ACK 0.01 and 1: 3.01 us a round; the last only arrives."""
    done = run_flows(wires("ab", "ba"), [PacketFlow(path=(0,), back=(1,), size_bytes=4_000, window=1)], PLAIN)
    assert done.delivered_ps.tolist() == [3 * 3_010_000 + 2 * US]


def test_a_full_ingress_pauses_its_sender_and_nothing_is_lost():
    """Two senders at full rate into one link: each ingress gains half a packet per us, and is paused above 5,000 B;
    what is on its way then, 1 us of wire each way and a packet, still comes."""
    rules = PLAIN._replace(pause_bytes=5_000, resume_bytes=3_000)
    ends = wires("as", "bs", "sc", "cs", "sa", "sb")
    flows = [PacketFlow(path=(i, 2), back=(3, 4 + i), size_bytes=200_000) for i in range(2)]
    done = run_flows(ends, flows, rules)
    assert sorted(done.delivered_ps.tolist()) == [402 * US, 403 * US]  # the bottleneck never waits
    assert (done.ports["pauses"][:2] > 10).all() and (done.ports["pauses"] == done.ports["resumes"]).all()
    assert done.ports["most_held_bytes"][:2].max() <= 5_000 + 4_000
    assert (run_flows(ends, flows, PLAIN).ports["most_held_bytes"][:2] > 90_000).any()  # without: all of it


def test_marks_slow_a_sender_down():
    """Four senders at full rate into one link: with marks and notices the queue stays shorter than without."""
    ends = wires("as", "bs", "cs", "ds", "se", "es", "sa", "sb", "sc", "sd")
    flows = [PacketFlow(path=(i, 4), back=(5, 6 + i), size_bytes=2_000_000) for i in range(4)]
    free = run_flows(ends, flows, PLAIN)
    marked = run_flows(ends, flows, PLAIN._replace(mark_bytes=20_000, notice_ps=50 * US, raise_ps=55 * US))
    assert free.ports["marks"].sum() == free.notices == 0
    assert marked.ports["marks"][4] > 0 and marked.notices > 0
    assert marked.ports["most_queue_bytes"][4] < free.ports["most_queue_bytes"][4] / 2


def test_a_cycle_of_full_buffers_is_named():
    """Three switches in a ring, and flows that go on past the next one: each waits for room in the one after."""
    ends = wires("as", "bs", "cs", *["ss"] * 3, "sa", "sb", "sc")
    named = ("a->s0", "b->s1", "c->s2", "s0->s1", "s1->s2", "s2->s0", "s0->a", "s1->b", "s2->c")
    ends = Wires(
        bytes_per_s=ends.bytes_per_s, wire_ps=ends.wire_ps, switch_ps=ends.switch_ps, to_switch=ends.to_switch,
        names=named,
    )  # fmt: skip
    flows = [PacketFlow(path=(i, 3 + i, 3 + (i + 1) % 3, 6 + (i + 2) % 3), size_bytes=500_000) for i in range(3)]
    rules = PLAIN._replace(answers=False, pause_bytes=4_000, resume_bytes=2_000)
    with pytest.raises(DeadlockError, match=r"cycle of 3 full buffers: s\d->s\d waits for s\d->s\d waits for"):
        run_flows(ends, flows, rules)
    assert (run_flows(ends, flows, rules._replace(pause_bytes=0)).delivered_ps > 0).all()


def test_nothing_is_lost_in_500_random_networks():
    """Trees of switches, whose buffers cannot wait in a cycle: every byte goes over every link of its path, every
    packet is answered once, all that was held is let go, and every pause has its resume."""
    rng = np.random.default_rng(3)
    for _ in range(500):
        leaves, each = rng.integers(1, 4), rng.integers(1, 4)
        hosts = int(leaves * each)
        up = [(f"h{h}", f"l{h // each}") for h in range(hosts)] + [(f"l{leaf}", "t") for leaf in range(leaves)]
        ends = up + [(b, a) for a, b in up]
        number = {end: i for i, end in enumerate(ends)}

        def way(a: int, b: int, number=number, each=each) -> tuple[int, ...]:
            la, lb = f"l{a // each}", f"l{b // each}"
            over = [] if la == lb else [(la, "t"), ("t", lb)]
            return tuple(number[end] for end in [(f"h{a}", la), *over, (lb, f"h{b}")])

        net = Wires(
            bytes_per_s=rng.choice([1e9, 2e9, 5e9], len(ends)),
            wire_ps=rng.integers(0, 3 * US, len(ends)),
            switch_ps=rng.integers(0, US, len(ends)),
            to_switch=np.array([not b.startswith("h") for _, b in ends], np.int64),
        )
        high = int(rng.integers(2, 20)) * 1000
        rules = PLAIN._replace(
            header_bytes=int(rng.integers(0, 80)), pads=bool(rng.integers(2)), pause_bytes=high * int(rng.integers(2)),
            resume_bytes=high // 2, mark_bytes=5000 * int(rng.integers(2)), notice_ps=20 * US, raise_ps=30 * US,
        )  # fmt: skip
        flows = []
        for _ in range(int(rng.integers(1, 12))):
            a, b = rng.integers(0, hosts, 2).tolist()
            if a != b:
                size, begin, window = (int(rng.integers(low, most)) for low, most in ((1, 60_000), (0, 9 * US), (0, 9)))
                flows.append(PacketFlow(path=way(a, b), back=way(b, a), size_bytes=size, begin_ps=begin, window=window))
        if not flows:
            continue
        done = run_flows(net, flows, rules)
        packets = [-(-f.size_bytes // 1000) for f in flows]
        expected = np.zeros(len(ends), np.int64)
        for f, count in zip(flows, packets, strict=True):
            payload = count * 1000 if rules.pads else f.size_bytes
            np.add.at(expected, list(f.path), payload + count * rules.header_bytes)
            np.add.at(expected, list(f.back), count * rules.answer_bytes)
        notices = done.ports["carried_bytes"] - expected
        assert (notices % 10 == 0).all() and (notices >= 0).all() and notices.max() <= 10 * done.notices
        assert done.packets == sum(packets)
        assert (done.ports["held_bytes"] == 0).all() and (done.ports["queue_bytes"] == 0).all()
        assert (done.ports["pauses"] == done.ports["resumes"]).all() and (done.ports["paused"] == 0).all()
        assert (done.finished_ps > done.delivered_ps).all()


def test_a_flow_without_a_way_is_refused():
    with pytest.raises(UsageError, match="way back"):
        run_flows(wires("ab"), [PacketFlow(path=(0,), size_bytes=10)], PLAIN)
    with pytest.raises(UsageError, match="outside"):
        run_flows(wires("ab"), [PacketFlow(path=(3,), back=(0,), size_bytes=10)], PLAIN)

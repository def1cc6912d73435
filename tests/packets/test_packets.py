"""The network of packets: times by hand, what is conserved, and what stops for ever."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from etude.base.errors import DeadlockError, UsageError
from etude.run.simulate.packets.alone import PacketFlow, PacketLinks, PacketTimes, run_flows
from etude.run.simulate.packets.state import (
    ADAPTIVE,
    DCTCP,
    EQDS,
    FIXED,
    NDP,
    NSCC,
    RCCC,
    ROTATE,
    SPRAY,
    TURNS,
    WINDOW,
    PacketRules,
)

US = 1_000_000
PLAIN = PacketRules(
    payload_bytes=1000, header_bytes=0, answer_bytes=10, pads=False, answers=True,
    pause_bytes=0, resume_bytes=0, mark_bytes=0, notice_ps=0, raise_ps=0,
)  # fmt: skip


def wires(*ends: str, switch_us: float = 0) -> PacketLinks:
    """Links of 1 byte per ns and 1 us; what begins with `s` is a switch."""
    return PacketLinks(
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
    ends = PacketLinks(
        bytes_per_s=ends.bytes_per_s, wire_ps=ends.wire_ps, switch_ps=ends.switch_ps, to_switch=ends.to_switch,
        names=named,
    )  # fmt: skip
    flows = [PacketFlow(path=(i, 3 + i, 3 + (i + 1) % 3, 6 + (i + 2) % 3), size_bytes=500_000) for i in range(3)]
    rules = PLAIN._replace(answers=False, pause_bytes=4_000, resume_bytes=2_000)
    with pytest.raises(DeadlockError, match=r"cycle of 3 full buffers: s\d->s\d waits for s\d->s\d waits for"):
        run_flows(ends, flows, rules)
    assert (run_flows(ends, flows, rules._replace(pause_bytes=0)).delivered_ps > 0).all()


def ring_of_switches(many: int) -> PacketLinks:
    """Link i is from host i to its switch, `many` + i on to the next switch, 2 * `many` + i down to the host."""
    return PacketLinks(
        bytes_per_s=np.full(3 * many, 1e9),
        wire_ps=np.full(3 * many, US),
        switch_ps=np.zeros(3 * many, np.int64),
        to_switch=np.repeat([1, 1, 0], many),
        names=tuple(f"{kind}{i}" for kind in ("up", "on", "down") for i in range(many)),
    )


@pytest.mark.parametrize("many", [3, 4, 6])
def test_switches_in_a_ring_end_or_name_the_links_that_wait_for_one_another(many: int):
    """Random flows along a ring of switches. Flows that leave one of its links free always end: there is no cycle of
    buffers. With all of them some never end, and what is named are all links of the ring."""
    rng, stuck = np.random.default_rng(many), 0
    rules = PLAIN._replace(answers=False, pause_bytes=4_000, resume_bytes=2_000)
    ring = ring_of_switches(many)
    for _ in range(60):
        flows = []
        for _ in range(3 * many):
            a, hops = int(rng.integers(many)), int(rng.integers(1, many))
            on = tuple(many + (a + k) % many for k in range(hops))
            flows.append(
                PacketFlow(path=(a, *on, 2 * many + (a + hops) % many), size_bytes=int(rng.integers(1, 80_000)))
            )
        open_ring = [flow for flow in flows if 2 * many - 1 not in flow.path]
        if open_ring:
            assert (run_flows(ring, open_ring, rules).delivered_ps > 0).all()
        try:
            run_flows(ring, flows, rules)
        except DeadlockError as problem:
            stuck += 1
            named = str(problem).split(" full buffers: ")[1].split("\n")[0].split(" waits for ")
            assert sorted(named[:-1]) == sorted(f"on{i}" for i in range(many)) and named[0] == named[-1]
    assert stuck > 5


def test_a_fair_queue_sends_a_packet_of_each_flow_in_turn():
    """Three packets of one flow are in the queue when one of another comes: first in, first out it is the last; in turn
    it is sent after the one that is on its way and the next one. By bytes, so shorter packets come sooner."""
    links = replace(wires("as", "bs", "sc"), bytes_per_s=np.array([1e9, 1e9, 0.1e9]))
    flows = [PacketFlow(path=(0, 2), size_bytes=5_000), PacketFlow(path=(1, 2), size_bytes=1_000, begin_ps=5 * US)]
    rules = PLAIN._replace(answers=False)
    assert run_flows(links, flows, rules).delivered_ps.tolist() == [53 * US, 63 * US - 5 * US]
    assert run_flows(links, flows, rules._replace(fair=True)).delivered_ps.tolist() == [63 * US, 33 * US - 5 * US]


class Tree(NamedTuple):
    """Hosts on leaves under one switch: buffers cannot wait in a cycle."""

    links: PacketLinks
    number: dict[tuple[str, str], int]
    hosts: int
    each: int

    def way(self, a: int, b: int) -> tuple[int, ...]:
        la, lb = f"l{a // self.each}", f"l{b // self.each}"
        over = [] if la == lb else [(la, "t"), ("t", lb)]
        return tuple(self.number[end] for end in [(f"h{a}", la), *over, (lb, f"h{b}")])

    def flows(self, rng: np.random.Generator, most_bytes: int) -> list[PacketFlow]:
        found = []
        for _ in range(int(rng.integers(1, 12))):
            a, b = rng.integers(0, self.hosts, 2).tolist()
            if a != b:
                size, begin, window = (
                    int(rng.integers(low, most)) for low, most in ((1, most_bytes), (0, 9 * US), (0, 9))
                )
                ways = self.way(a, b), self.way(b, a)
                found.append(PacketFlow(path=ways[0], back=ways[1], size_bytes=size, begin_ps=begin, window=window))
        return found


def random_tree(rng: np.random.Generator) -> Tree:
    leaves, each = rng.integers(1, 4), rng.integers(1, 4)
    hosts = int(leaves * each)
    up = [(f"h{h}", f"l{h // each}") for h in range(hosts)] + [(f"l{leaf}", "t") for leaf in range(leaves)]
    ends = up + [(b, a) for a, b in up]
    links = PacketLinks(
        bytes_per_s=rng.choice([1e9, 2e9, 5e9], len(ends)),
        wire_ps=rng.integers(0, 3 * US, len(ends)),
        switch_ps=rng.integers(0, US, len(ends)),
        to_switch=np.array([not b.startswith("h") for _, b in ends], np.int64),
    )
    return Tree(links, {end: i for i, end in enumerate(ends)}, hosts, int(each))


def test_nothing_is_lost_in_500_random_networks():
    """Every byte goes over every link of its path, every packet is answered once, all that was held is let go, and
    every pause has its resume."""
    rng = np.random.default_rng(3)
    for _ in range(500):
        tree = random_tree(rng)
        high = int(rng.integers(2, 20)) * 1000
        rules = PLAIN._replace(
            header_bytes=int(rng.integers(0, 80)), pads=bool(rng.integers(2)), pause_bytes=high * int(rng.integers(2)),
            resume_bytes=high // 2, mark_bytes=5000 * int(rng.integers(2)), notice_ps=20 * US, raise_ps=30 * US,
        )  # fmt: skip
        flows = tree.flows(rng, 60_000)
        if not flows:
            continue
        done = run_flows(tree.links, flows, rules)
        packets = [-(-f.size_bytes // 1000) for f in flows]
        expected = np.zeros(len(tree.number), np.int64)
        for f, count in zip(flows, packets, strict=True):
            payload = count * 1000 if rules.pads else f.size_bytes
            np.add.at(expected, list(f.path), payload + count * rules.header_bytes)
            np.add.at(expected, list(f.back), count * rules.answer_bytes)
        notices = done.ports["carried_bytes"] - expected
        assert (notices % 10 == 0).all() and (notices >= 0).all() and notices.max() <= 10 * done.notices
        assert done.packets == sum(packets)
        assert_empty(done)


def assert_empty(done: PacketTimes) -> None:
    ports, flows = done.ports, done.flows
    for name in ("held_bytes", "queue_bytes", "urgent_bytes", "paused"):
        assert (ports[name] == 0).all(), name
    assert (ports["pauses"] == ports["resumes"]).all()
    assert (flows["lost"]["head"] == -1).all() and (flows["dropped"]["head"] == -1).all()
    assert (done.finished_ps > done.delivered_ps).all()


WINDOWED = PLAIN._replace(
    header_bytes=50, window_bytes=20_000, base_ps=12 * US, pull_bytes=4_000, pull_ps_per_byte=1000 / 0.99,
    retry_ps=100 * US,
)  # fmt: skip
SENDERS = {"window": WINDOW, "dctcp": DCTCP, "nscc": NSCC, "rccc": RCCC, "eqds": EQDS, "ndp": NDP}


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("trims", [True, False])
def test_every_sender_delivers_all_bytes_in_500_random_networks(sender: str, trims: bool):
    """Queues of a few packets, so that most runs cut or drop some. Bytes are conserved: over its first link went each
    packet once, and again as often as it was cut or dropped. So are credits: nothing was sent without."""
    rng, lost = np.random.default_rng(5), 0
    for _ in range(250):
        tree = random_tree(rng)
        room = int(rng.integers(2, 12)) * 1050
        rules = WINDOWED._replace(
            sender=SENDERS[sender], trims=trims, room_bytes=room, control_bytes=2 * room * int(rng.integers(2)),
            mark_bytes=room // 4, mark_all_bytes=room // 2, seed=int(rng.integers(99)),
            pads=sender == "ndp", least_pull_rate=float(rng.choice([0.2, 1.0])),
        )  # fmt: skip
        flows = tree.flows(rng, 60_000)
        if not flows:
            continue
        done = run_flows(tree.links, flows, rules)
        packets = np.array([-(-f.size_bytes // 1000) for f in flows])
        assert done.flows["received"].tolist() == packets.tolist()
        cut = int(done.ports["trims"].sum())
        drops = int(done.ports["drops"].sum())
        assert done.packets == packets.sum()
        assert max(cut, drops) <= done.resent <= cut + drops  # a header may be dropped too
        assert trims or not cut
        lost += done.resent
        credit = done.flows["given"] + rules.window_bytes
        if sender in ("eqds", "ndp"):
            sent = np.array([f.size_bytes for f in flows]) + 50 * packets
            assert (sent <= credit + 1050 * (1 + done.flows["resent"])).all()
        assert_empty(done)
    assert lost > 100


@pytest.mark.parametrize("sender", SENDERS)
def test_every_sender_fills_an_idle_path(sender: str):
    """10 packets of 1.05 us; the last one once more at the switch; two wires: 10 * 1.05 + 1.05 + 2. What EQDS may send
    unasked ends with the first answer; it then waits for credit."""
    rules = WINDOWED._replace(sender=SENDERS[sender], room_bytes=30_000, trims=True)
    done = run_flows(wires("as", "sb", "bs", "sa"), [PacketFlow(path=(0, 1), back=(2, 3), size_bytes=10_000)], rules)
    assert done.delivered_ps[0] >= 13_550_000
    assert done.delivered_ps[0] == 13_550_000 or sender == "eqds"


@pytest.mark.parametrize("sender", SENDERS)
def test_two_flows_of_any_sender_share_a_link_about_half_and_half(sender: str):
    """2,000 packets of 1.05 us through one link: no flow is through long before the other."""
    rules = WINDOWED._replace(
        sender=SENDERS[sender], room_bytes=30_000, trims=True, mark_bytes=8_000, mark_all_bytes=20_000
    )
    flows = [PacketFlow(path=(i, 2), back=(3, 4 + i), size_bytes=1_000_000) for i in range(2)]
    done = run_flows(wires("as", "bs", "sc", "cs", "sa", "sb"), flows, rules)
    assert done.delivered_ps.max() == pytest.approx(2_100 * US, rel=0.06)
    assert done.delivered_ps.min() > 0.8 * done.delivered_ps.max()


def two_ways(**more: Any) -> PacketTimes:
    """A flow of 1,000 packets between two switches, with two ways of half the rate of its host."""
    ends = wires("as", "sx", "sy", "xt", "yt", "tb", "bt", "ts")
    links = replace(
        ends, bytes_per_s=np.array([1e9, *[0.5e9] * 4, 1e9, 1e9, 1e9]), to_switch=np.array([1, 1, 1, 1, 1, 0, 1, 0])
    )
    paths = ((0, 1, 3, 5), (0, 2, 4, 5))
    flow = PacketFlow(path=paths[0], back=(6, 7), paths=paths, size_bytes=1_000_000)
    return run_flows(links, [flow], WINDOWED._replace(sender=WINDOW, window_bytes=200_000, **more))


def test_packets_that_choose_use_both_ways():
    """One way of half the rate takes twice as long as both."""
    took_us = {
        routing: two_ways(routing=routing).delivered_ps[0] / US for routing in (FIXED, SPRAY, TURNS, ROTATE, ADAPTIVE)
    }
    assert took_us[FIXED] == pytest.approx(2_100, rel=0.01)
    for routing in (TURNS, ROTATE, ADAPTIVE):
        assert took_us[routing] == pytest.approx(1_050, rel=0.02)
    assert 1_050 < took_us[SPRAY] < 1_300  # a hash is not even


def test_a_flow_without_a_way_is_refused():
    with pytest.raises(UsageError, match="way back"):
        run_flows(wires("ab"), [PacketFlow(path=(0,), size_bytes=10)], PLAIN)
    with pytest.raises(UsageError, match="outside"):
        run_flows(wires("ab"), [PacketFlow(path=(3,), back=(0,), size_bytes=10)], PLAIN)

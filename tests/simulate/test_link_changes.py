"""Links whose rate changes during a run: bytes are the integral of the rate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from etude.base.errors import ClusterError, UsageError
from etude.model.build import TraceBuilder, job_of
from etude.model.schema import Kind
from etude.run.simulate import simulate
from etude.run.simulate.options import LinkChange
from etude.store import chakra
from etude.surface.cli import main
from toy_systems import one_level

TOY = one_level("switch", 4)
"""1 byte/ns, 5 ns to the switch and 5 from it."""
LINK = (0, "switch0.0")


def message(size: int, *, senders: int = 1):
    """Ranks 0, 1, ... send so many bytes to the last one."""
    ranks = [TraceBuilder() for _ in range(senders + 1)]
    for rank in range(senders):
        ranks[rank].add(Kind.SEND, "s", dst=senders, tag=rank, in_bytes=size)
        ranks[-1].add(Kind.RECV, "r", src=rank, tag=rank, in_bytes=size, stream=rank)
    return job_of("m", ranks, {})


def takes(*changes: LinkChange, size: int = 100, senders: int = 1) -> int:
    return simulate(message(size, senders=senders), TOY, network="flow", link_changes=changes).makespan_ns


def test_bytes_are_the_integral_of_the_rate():
    assert takes() == 10 + 100
    # 40 bytes in 40 ns, then 60 at a quarter of the rate
    assert takes(LinkChange(40, LINK, 4.0)) == 10 + 40 + 240
    # ... restored after 40 ns of that: 10 bytes went, 50 are left
    assert takes(LinkChange(40, LINK, 4.0), LinkChange(80, LINK, 1.0)) == 10 + 80 + 50
    assert takes(LinkChange(80, LINK, 1.0), LinkChange(40, LINK, 4.0)) == 10 + 80 + 50


def test_a_failed_link_waits_until_it_is_back():
    assert takes(LinkChange(40, LINK, math.inf), LinkChange(1000, LINK, 1.0)) == 10 + 1000 + 60
    assert takes(LinkChange(0, LINK, math.inf), LinkChange(1000, LINK, 2.0)) == 10 + 1000 + 200


def test_what_does_not_change_or_comes_late_changes_nothing():
    assert takes(LinkChange(50, LINK, 1.0)) == takes(LinkChange(10**6, LINK, 8.0)) == takes()
    assert takes(LinkChange(40, (3, "switch0.0"), 4.0)) == takes()


def test_others_take_what_a_slow_link_leaves():
    # Two senders share the port of the receiver: 50 bytes each in 100 ns. Then one has a tenth of its link: it moves
    # 0.1 bytes/ns and the other 0.9, which ends after 50 / 0.9 = 55.6 ns, rounded up to 56.
    both = simulate(message(100, senders=2), TOY, network="flow", link_changes=(LinkChange(100, LINK, 10.0),))
    ends = sorted(int(both.timing.block(rank)[1][0]) for rank in (0, 1))
    assert ends == [100 + 56 + 10, 100 + 500 + 10]


RING = one_level("ring", 4, gbyte_per_s=2.0)
"""1 byte/ns and 10 ns each way between neighbours."""


def on_ring(*pairs: tuple[int, int], size: int = 100, **options):
    """Each pair is a message; when each has landed, and the run."""
    ranks, sends = [TraceBuilder() for _ in range(4)], []
    for tag, (src, dst) in enumerate(pairs):
        sends.append((src, ranks[src].add(Kind.SEND, "s", dst=dst, tag=tag, in_bytes=size, stream=tag)))
        ranks[dst].add(Kind.RECV, "r", src=src, tag=tag, in_bytes=size, stream=tag)
    ran = simulate(job_of("m", ranks, {}), RING, **{"network": "flow"} | options)
    return [int(ran.timing.block(rank)[1][node]) for rank, node in sends], ran


FAILS, BACK = LinkChange(40, (0, 1), math.inf), LinkChange(60, (0, 1), 1.0)


def test_what_is_on_a_link_that_fails_goes_on_another_way():
    assert on_ring((0, 1))[0] == [100 + 10]
    # 40 bytes went; 60 go around, over three links
    found, ran = on_ring((0, 1), link_changes=(FAILS,), link_stats=True)
    assert found == [40 + 60 + 30]
    assert {use.link.split(": ")[1]: use.bytes for use in ran.links} == {
        "device.0 -> device.1": 40, "device.0 -> device.3": 60, "device.3 -> device.2": 60, "device.2 -> device.1": 60,
    }  # fmt: skip
    visits = ran.link_stats.visits.to_pylist()
    assert [(v["size_bytes"], v["begin_ns"], v["end_ns"]) for v in visits] == [(40, 0, 40), *[(60, 40, 100)] * 3]
    # ... and 40 of these over the link again, once it is back
    assert on_ring((0, 1), link_changes=(FAILS, BACK))[0] == [40 + 20 + 40 + 10]


def test_ways_that_meet_after_a_failure_share_their_links():
    # From 40 on both use 3 -> 2, with half of it each: 60 bytes take 120 ns.
    assert on_ring((0, 1), (3, 2), link_changes=(FAILS,))[0] == [40 + 120 + 30, 40 + 120 + 10]
    # Others are on their ways as before.
    assert on_ring((0, 1), (2, 3), link_changes=(FAILS,))[0] == [130, 110]


def test_what_begins_after_a_failure_goes_around_as_if_it_had_failed_before():
    early = LinkChange(0, (0, 1), math.inf)
    before = on_ring((0, 1), (2, 1), slow_links={(0, 1): math.inf})[0]
    assert on_ring((0, 1), (2, 1), link_changes=(early,))[0] == before == [200 + 30, 200 + 10]


def test_no_way_is_left():
    cut = (FAILS, LinkChange(50, (0, 3), math.inf))
    with pytest.raises(ClusterError, match="no route from device.0 to device.1 is left"):
        on_ring((0, 1), link_changes=cut)
    assert on_ring((1, 2), link_changes=cut)[0] == [110]  # nobody needs it
    assert on_ring((0, 1), link_changes=(*cut, LinkChange(1000, (0, 3), 1.0)))[0] == [1000 + 50 + 30]
    with pytest.raises(ClusterError, match="no route from device.0 to switch0.0|no route from device.0 to device.1"):
        takes(LinkChange(1, LINK, math.inf))


def test_links_that_take_one_message_at_a_time_have_rates_over_time_too():
    def links(*changes, pairs=((0, 1),)):
        return on_ring(*pairs, network="links", link_changes=changes)[0]

    assert links() == [110]
    # 40 bytes in 40 ns, 10 at a quarter of the rate, 50
    assert links(LinkChange(40, (0, 1), 4.0), LinkChange(80, (0, 1), 1.0)) == [80 + 50 + 10]
    # The second waits until the first has left the link, at 40 + 240, and half of it goes at a tenth of the rate.
    changes = LinkChange(40, (0, 1), 4.0), LinkChange(280, (0, 1), 1.0), LinkChange(330, (0, 1), 10.0)
    assert links(*changes, pairs=((0, 1), (0, 1))) == [280 + 10, 330 + 500 + 10]


@pytest.mark.parametrize("more", [(), (BACK,)])
def test_whole_messages_are_sent_again_over_another_way(more):
    """From 40 on all 100 bytes go around, over three links of 10 ns, though the link may be back at 60."""
    found, ran = on_ring((0, 1), network="links", link_changes=(FAILS, *more), link_stats=True)
    assert found == [40 + 100 + 30]
    used = {use.link.split(": ")[1]: use.bytes for use in ran.links if use.bytes}
    assert used == dict.fromkeys(("device.0 -> device.3", "device.3 -> device.2", "device.2 -> device.1"), 100)
    busy = {use.link.split(": ")[1]: use.busy_ns for use in ran.links}
    assert busy["device.0 -> device.1"] == 40
    begins = [(visit["begin_ns"], visit["end_ns"]) for visit in ran.link_stats.visits.to_pylist()]
    assert begins == [(0, 40), (40, 140), (50, 150), (60, 160)]


def test_what_has_yet_to_come_to_a_failed_link_goes_on_from_where_it_is():
    """0 to 2 by way of 1 (a tie goes up): it has left the first link when the second fails, and comes back over it."""
    assert on_ring((0, 2), network="links")[0] == [100 + 20]
    late = LinkChange(5, (1, 2), math.inf)  # its head is on the way to 1, at 10
    assert on_ring((0, 2), network="links", link_changes=(late,))[0] == [100 + 10 + 30]
    queued, ran = on_ring((0, 1), (0, 1), network="links", link_changes=(FAILS,))
    assert queued == [40 + 100 + 30, 40 + 200 + 30] and ran.makespan_ns == 270


def test_a_message_without_another_way_waits_or_is_named():
    def alone(*changes):
        return simulate(message(100), TOY, network="links", link_changes=changes).makespan_ns

    assert alone(LinkChange(40, LINK, math.inf), LinkChange(1000, LINK, 1.0)) == 1000 + 60 + 10
    with pytest.raises(ClusterError, match="no route from device.0"):
        alone(LinkChange(40, LINK, math.inf))
    with pytest.raises(UsageError, match="choose their way when they start"):
        simulate(message(10), TOY, network="links", routing="adaptive", link_changes=(FAILS,))


# -- failures at random ------------------------------------------------------------------------------------------------


def random_changes(rng: np.random.Generator, links: list[tuple[int | str, int | str]], last: int) -> list[LinkChange]:
    """Some links become slower or fail, and all of them are back by `last`."""
    found = []
    for at in rng.choice(len(links), min(int(rng.integers(1, 3)), len(links)), replace=False).tolist():
        times = np.sort(rng.integers(0, last, int(rng.integers(1, 4)))).tolist()
        found += [LinkChange(time, links[at], float(rng.choice([math.inf, math.inf, 2.0, 5.0]))) for time in times]
        found.append(LinkChange(last, links[at], 1.0))
    return found


ON_RING: list[tuple[int | str, int | str]] = [(a, b) for k in range(4) for a, b in ((k, (k + 1) % 4), ((k + 1) % 4, k))]


@pytest.mark.parametrize("network", ["flow", "links"])
def test_no_byte_is_lost_and_one_message_is_never_sooner(network: str):
    rng = np.random.default_rng(11)
    for _ in range(12):
        pairs = [tuple(rng.choice(4, 2, replace=False).tolist()) for _ in range(int(rng.integers(1, 5)))]
        size, changes = int(rng.integers(1, 400)), random_changes(rng, ON_RING, 600)
        found, ran = on_ring(*pairs, size=size, network=network, link_changes=changes)
        into = np.zeros(4, np.int64)
        for use in ran.links:
            src, dst = (int(end.removeprefix("device.")) for end in use.link.split(": ")[1].split(" -> "))
            into[dst] += use.bytes
            into[src] -= use.bytes
        kept = np.zeros(4, np.int64)
        for src, dst in pairs:
            kept[dst] += size
            kept[src] -= size
        assert into.tolist() == kept.tolist(), (pairs, size, changes)
        alone, _ = on_ring(pairs[0], size=size, network=network)
        assert on_ring(pairs[0], size=size, network=network, link_changes=changes)[0] >= alone, (
            pairs[0],
            size,
            changes,
        )
        assert min(found) >= size


@pytest.mark.parametrize("network", ["flow", "links"])
def test_senders_to_one_port_end_no_sooner_and_links_that_are_back_leave_no_trace(network: str):
    rng = np.random.default_rng(12)
    for _ in range(12):
        job = message(int(rng.integers(50, 400)), senders=int(rng.integers(1, 4)))
        plain = simulate(job, TOY, network=network)
        links: list[tuple[int | str, int | str]] = [(rank, "switch0.0") for rank in range(len(job.ranks) - 1)]
        changes = random_changes(rng, links, 700)
        assert simulate(job, TOY, network=network, link_changes=changes).makespan_ns >= plain.makespan_ns, changes
        # Down and back at one instant, or only before and after the run.
        time, link = int(rng.integers(0, 100)), links[int(rng.integers(len(links)))]
        blink = LinkChange(time, link, math.inf), LinkChange(time, link, 1.0)
        end = plain.makespan_ns
        late = LinkChange(end + 1, link, math.inf), LinkChange(end + 2, link, 1.0)
        for nothing in (blink, late):
            same = simulate(job, TOY, network=network, link_changes=nothing)
            for rank in range(len(job.ranks)):
                assert [x.tolist() for x in same.timing.block(rank)] == [x.tolist() for x in plain.timing.block(rank)]


def test_bad_changes():
    for wrong, said in (
        ((LinkChange(-1, LINK, 2.0),), "before the run"),
        ((LinkChange(1, LINK, 0.0),), "not a positive factor"),
        ((LinkChange(1, (0, 1), 2.0),), "no link joins"),
    ):
        with pytest.raises(UsageError, match=said):
            takes(*wrong)
    with pytest.raises(UsageError, match="closed forms"):
        simulate(message(100), TOY, link_changes=(LinkChange(1, LINK, 2.0),))


def test_the_flag(tmp_path, capsys):
    (tmp_path / "m").mkdir()
    chakra.write_job(message(10**6), tmp_path / "m")
    asked = ["simulate", str(tmp_path / "m"), "--system", "dgx-h100", "--network", "flow"]
    assert main(asked) == 0
    assert main([*asked, "--link-change", "1us:0/switch0.0=4"]) == 0
    assert main([*asked, "--link-change", "0/switch0.0=4"]) == 2
    assert "has no time" in capsys.readouterr().err

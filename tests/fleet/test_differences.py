"""Differential saves, slots of storage: worked by hand."""

import pytest

from etude.base.errors import UsageError
from etude.world.fleet import parse_checkpoints, simulate_fleet
from etude.world.fleet.checkpoint import NODE, PROCESS
from etude.world.fleet.copies import Copies
from etude.world.fleet.costs import Config, Costs

SECOND = 10**9


class Ledger:
    """Stands for the account: it knows the step."""

    def __init__(self) -> None:
        self.step = 0

    def mark(self):
        from etude.world.fleet.account import Mark

        return Mark(self.step, 0, 0, 0, 0)


def copies(text: str) -> Copies:
    return Copies(parse_checkpoints(text), SECOND)


def save(of: Copies, tier: int, step: int, now_s: int = 0) -> float:
    """At a step; the part of the state that it wrote. The state has 100 bytes on one node."""
    ledger, before = Ledger(), of.written[tier]
    ledger.step = step
    of.saved(tier, now_s * SECOND, ledger, 100.0, 1)
    return of.written[tier] - before


def test_differences_build_on_a_copy_of_their_own_until_there_is_another():
    of = copies("local:10:diff=0.1:rate=10B/s,remote:50:full:rate=1B/s")
    assert save(of, 0, 10) == 1.0  # nothing to differ from
    assert save(of, 0, 20) == save(of, 0, 30) == pytest.approx(0.1)
    # its own base, 10 s, and two saves of a tenth: 2 s
    assert of.nearest(100.0, 1)[1:] == (0, 12 * SECOND)
    save(of, 1, 50)
    assert of.bases[0].step == 10  # step 30 lies before the new whole copy
    assert save(of, 0, 60) == pytest.approx(0.1)
    # the whole copy of step 50 from storage, 100 s, and one tenth from here, 1 s
    assert of.nearest(100.0, 1)[1:] == (0, 101 * SECOND)
    of.struck(NODE, 0)
    assert of.nearest(100.0, 1)[0].step == 50
    # on the new node 30 steps lie between the base and the first save
    assert save(of, 0, 80) == pytest.approx(0.3)
    assert save(of, 0, 90) == pytest.approx(0.1)


def test_a_base_that_ends_on_its_way_is_taken_over():
    of = copies("peer:10:diff=0.2:rate=10B/s,remote:50:async:rate=1B/s")
    save(of, 0, 10)
    save(of, 0, 50)
    save(of, 1, 50, now_s=100)  # written by 200 s
    save(of, 0, 60)
    assert of.bases[0] == (0, 10)
    of.settle(200 * SECOND)
    assert of.bases[0] == (1, 50)  # what the peer holds reaches beyond it: a tenth of two after it
    assert of.nearest(100.0, 1)[1:] == (0, 102 * SECOND)
    of.out_until_ns = 300 * SECOND
    assert of.reached(0, 250 * SECOND) and not of.readable(0, 250 * SECOND)
    of.struck(PROCESS, 200 * SECOND)
    assert of.nearest(100.0, 1)[0].step == 60


def test_differences_never_exceed_the_state():
    of = copies("local:10:diff=0.4:rate=10B/s")
    save(of, 0, 10)
    for step in range(20, 100, 10):
        save(of, 0, step)
    assert of.nearest(100.0, 1)[2] == 20 * SECOND  # a base and as much again


COSTS = Costs(Config(8, SECOND, 10), 8, 8, 100.0, 100.0, 1.0)


def test_a_run_with_differences_and_one_fault():
    # saves to the node of a tenth in 1 s every 10 s of steps, the first of all in 10 s; a crash at step 25
    tiers = parse_checkpoints("local:10:diff=0.1:rate=10B/s")
    found = simulate_fleet(
        COSTS, days=100 / 86400, faults="process:at=36.5s,detect=0s", tiers=tiers
    ).record()  # 10 steps, 10 s, 10 steps, 1 s, then 5.5 s of steps
    assert found["lost_s"]["redo"] == pytest.approx(5.5)
    # restarts take 300 s: the rest of the time
    assert found["lost_s"]["restart"] == pytest.approx(100 - 36.5) and found["useful_s"] == 20
    assert found["saved_bytes"] == {"local": pytest.approx(110.0)} and found["saves"] == {"local": 2}


def test_without_faults_only_stalls_cost_and_one_whole_tier_is_the_classic():
    plain = simulate_fleet(COSTS, days=1 / 24, tiers=parse_checkpoints("remote:100:rate=10B/s")).record()
    # 110 s a cycle, 32 of them in an hour; the last 80 s are steps
    assert plain["lost_s"]["checkpoint"] == 32 * 10 and plain["saved_bytes"] == {"remote": 3200.0}
    parts = simulate_fleet(COSTS, days=1 / 24, tiers=parse_checkpoints("remote:100:diff=0.5:rate=10B/s")).record()
    # the first takes 10 s and the others 5: 110 + 33 cycles of 105, and 25 s
    assert parts["lost_s"]["checkpoint"] == 10 + 33 * 5 and parts["saved_bytes"] == {"remote": 100 + 33 * 50.0}
    assert parts["useful_s"] + sum(parts["lost_s"].values()) == pytest.approx(3600)


@pytest.mark.parametrize("every", [10, 50])
def test_what_is_waited_for_is_written_whichever_tier_comes_first(every: int):
    """A tier with differences and a whole one that are due at the same step: ten bytes a second each."""
    tiers = ["local:10:diff=0.1:rate=10B/s", f"remote:{every}:full:rate=10B/s"]
    both = [
        simulate_fleet(COSTS, days=600 / 86400, tiers=parse_checkpoints(",".join(order))).record()
        for order in (tiers, tiers[::-1])
    ]
    for found in both:
        assert sum(found["saved_bytes"].values()) == pytest.approx(10 * found["lost_s"]["checkpoint"])
        assert min(found["saved_bytes"].values()) > 0
    assert both[0]["saved_bytes"] == pytest.approx(both[1]["saved_bytes"])
    # 10 steps and both whole, 30 s; then 27 cycles of 21 s
    assert every != 10 or both[0]["saved_bytes"] == pytest.approx({"local": 100 + 270, "remote": 2800})


def test_slots_bound_what_a_node_writes():
    slow = parse_checkpoints("remote:1h:rate=25GB/s:slots=128:request=1MiB:response=52ms")[0]
    assert slow.node_rate(60) == pytest.approx(2.58e9, rel=0.01)  # 128 MiB every 52 ms
    assert parse_checkpoints("remote:1h:rate=1GB/s:slots=128")[0].node_rate(60) == 1e9
    for bad in ("remote:1h:slots=-1", "remote:1h:slots=2:response=0s", "remote:1h:diff=2"):
        with pytest.raises(UsageError):
            parse_checkpoints(bad)

"""The long loop, worked by hand: steps of 10 s, saves of 2 s, faults at known times."""

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.world.fleet.checkpoint import SaveTier
from etude.world.fleet.costs import Config, Costs, StepRounds
from etude.world.fleet.events import EFFECTS, SCOPES, FleetEvents
from etude.world.fleet.loop import TrainingRun
from etude.world.fleet.recovery import Recovery, policy_of
from etude.world.fleet.results import summary
from etude.world.fleet.training import run_job
from naive_fleet import fleet as naive

S = 1_000_000_000
STEP = Config(gpus=4, step_ns=10 * S, tokens=100, energy_j=50.0)


def costs(predicted=None, **given) -> Costs:
    usual = {"healthy": STEP, "gpus_per_node": 1, "replica_gpus": 1, "state_bytes": 8.0, "node_bytes": 5.0,
             "node_bytes_per_s": 1.0, "idle_w": 1.0}  # fmt: skip
    return Costs(predicted=predicted, **usual | given)


def tier(name: str = "remote", steps: int = 5, survives: str = "all", **given) -> SaveTier:
    """Writes 2 bytes of a node at 1 byte/s: 2 s; reads its 5 in 5 s."""
    return SaveTier(name=name, steps=steps, rate_bytes_per_s=1.0, survives=survives, **given)


def events(*rows: tuple[float, str, str, int, int, float], factor: float = 1.0, notice: float = 0.0) -> FleetEvents:
    """(time, effect, scope, node, nodes, duration) in seconds."""
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 6
    ns = [np.round(np.array(columns[k], float) * S).astype(np.int64) for k in (0, 5)]
    n = len(rows)
    return FleetEvents(
        ns[0], np.zeros(n, np.int64), np.array([EFFECTS.index(e) for e in columns[1]], np.int64),
        np.array([SCOPES.index(s) for s in columns[2]], np.int64), np.array(columns[3], np.int64),
        np.array(columns[4], np.int64), ns[1], np.full(n, factor), np.full(n, round(notice * S), np.int64),
        np.full(n, -1, np.int64), ("fault",),
    )  # fmt: skip


TIMES = Recovery(detect_ns=60 * S, restart_ns=100 * S, regroup_ns=20 * S)


def ran(
    happens: FleetEvents, *tiers: SaveTier, seconds: float = 1000, policy: str = "restart", spares: int | None = None,
    of: Costs | None = None, times: Recovery = TIMES,
) -> TrainingRun:  # fmt: skip
    return run_job(of or costs(), happens, tiers=tiers, policy=policy_of(policy), recovery=times, spares=spares,
                   horizon_ns=round(seconds * S))  # fmt: skip


def parts(found: TrainingRun) -> dict[str, float]:
    """Seconds, those that are not 0; they add up to the whole."""
    account = found.account
    assert account.useful_ns + sum(account.lost_ns.values()) == found.horizon_ns
    table = account.table()
    start, end, useful = (table[name].to_numpy() for name in ("start_s", "end_s", "useful_s"))
    assert np.allclose(start[1:], end[:-1]) and np.isclose(useful.sum(), account.useful_ns / S)
    shown = {"useful": account.useful_ns} | account.lost_ns
    return {name: ns / S for name, ns in shown.items() if ns}


def test_without_faults_steps_are_all_there_is():
    found = ran(events(), seconds=1000)
    assert (found.account.step, found.account.tokens, parts(found)) == (100, 10_000, {"useful": 1000})
    assert parts(ran(events(), seconds=1004)) == {"useful": 1000, "idle": 4}


def test_a_fault_costs_detection_restart_load_and_the_steps_since_the_save():
    # saves end at 52 and 104 (step 10); two steps and 6 s are lost at 130; 60 + 100 + 5 until 295; then 13 saves,
    # 2 steps, 9 s of a step
    found = ran(events((130, "stop", "node", 1, 1, 0)), tier())
    assert parts(found) == {"useful": 770, "detect": 60, "restart": 105, "redo": 26, "checkpoint": 30, "idle": 9}
    assert (found.account.step, found.interruptions, found.copies.writes) == (77, 1, [15])
    assert found.account.computed - found.account.tokens == 200  # the two lost steps


def test_without_a_checkpoint_all_is_done_again():
    found = ran(events((130, "stop", "node", 1, 1, 0)))
    assert parts(found) == {"redo": 130, "detect": 60, "restart": 100, "useful": 710}


def test_a_copy_on_the_node_survives_a_crash_and_not_the_loss_of_the_node():
    tiers = tier("local", 2, "process"), tier("remote", 8)
    # after step 10 local alone has a copy: 10 steps, 5 local saves and 1 remote one end at 112
    crash = ran(events((115, "stop", "process", -1, 0, 0)), *tiers, seconds=280)
    lost = ran(events((115, "stop", "node", 0, 1, 0)), *tiers, seconds=280)
    assert parts(crash)["redo"] == 3 and parts(lost)["redo"] == 23
    assert parts(crash)["detect"] == 60 and parts(crash)["restart"] == 105


def test_a_fault_during_recovery_begins_it_again():
    found = ran(events((130, "stop", "node", 1, 1, 0), (200, "stop", "node", 2, 1, 0)), tier())
    assert parts(found)["detect"] == 120 and parts(found)["restart"] == 10 + 105 and found.interruptions == 2


def test_stretches_of_one_state_that_meet_are_one_row():
    """The second fault comes while the first is being detected: one stretch, from 130 to 150 + 60."""
    found = ran(events((130, "stop", "node", 1, 1, 0), (150, "stop", "node", 2, 1, 0)), tier())
    assert [(row.start_ns / S, row.end_ns / S) for row in found.account.rows if row.state == "detect"] == [(130, 210)]


def test_times_between_failures_and_down_by_hand():
    """One fault: 60 s until it is noticed, 105 s until the job is back, 9 s at the end in which no step fits."""
    found = summary(ran(events((130, "stop", "node", 1, 1, 0)), tier()), costs())
    assert (found["mttr_s"], found["mttf_s"]) == (60 + 105 + 9, 1000 - 174)
    # one of four nodes is away for 200 of 1,000 s
    found = summary(ran(events((130, "stop", "node", 1, 1, 200)), tier(), spares=0), costs())
    assert found["node_availability"] == pytest.approx((4 * 1000 - 200) / 4000)


def test_a_fault_in_a_save_leaves_the_copy_before():
    found = ran(events((103, "stop", "node", 1, 1, 0)), tier(), seconds=400)
    assert parts(found)["redo"] == 50 and found.account.rows[0].steps == 5


def test_a_background_save_stops_steps_for_the_snapshot_alone_and_counts_when_it_is_written():
    behind = tier(steps=2, background=True, snapshot_bytes_per_s=2.0, latency_ns=6.0 * S)  # 1 s, then 8 s
    assert parts(ran(events(), behind, seconds=105)) == {"useful": 100, "checkpoint": 5}
    # the first is there at 29; at 28 nothing is
    assert parts(ran(events((28, "stop", "node", 0, 1, 0)), behind, seconds=200))["redo"] == 27
    assert parts(ran(events((29, "stop", "node", 0, 1, 0)), behind, seconds=200))["redo"] == 8


def test_steps_beside_a_background_save_are_slower():
    behind = tier(steps=2, background=True, snapshot_bytes_per_s=2.0, latency_ns=6.0 * S, contend=1.5)
    # steps 3, 5, 7 begin beside a save of 8 s: 15 s each
    found = ran(events(), behind, seconds=21 * 1 + 3 * 26)
    assert parts(found) == {"useful": 80, "checkpoint": 4, "degraded": 15}


def test_without_spares_the_job_waits_for_the_repair():
    found = ran(events((130, "stop", "node", 1, 1, 300)), tier(), spares=0)
    assert parts(found)["idle"] >= 240 and parts(found)["detect"] == 60
    with_one = ran(events((130, "stop", "node", 1, 1, 300)), tier(), spares=1)
    assert parts(with_one) == parts(ran(events((130, "stop", "node", 1, 1, 0)), tier()))


def test_a_spare_joins_the_living():
    found = ran(events((130, "stop", "node", 1, 1, 900)), tier(), policy="spare", spares=1)
    assert parts(found)["restart"] == 25  # groups and the load; state is sharded, so the copy is gone back to
    copied = ran(events((130, "stop", "node", 1, 1, 900)), tier(), policy="spare", spares=1, of=costs(replicated=True))
    assert parts(copied)["redo"] == 6 and parts(copied)["restart"] == 25  # the step under way alone


def fewer(shape: str, gpus: int) -> Config:
    """By hand: the same micro-batches on fewer replicas, or fewer of them."""
    if shape == "shrink":
        return Config(gpus, 10 * S, 25 * gpus, name="fewer")
    return Config(gpus, round(12.5 * S), 100, name="longer")


@pytest.mark.parametrize(("policy", "steps", "useful"), [("shrink", 40, 300), ("redistribute", 32, 320)])
def test_fewer_replicas_go_on(policy: str, steps: int, useful: float):
    # 100 s of 4 nodes, then 20 s to regroup, then 3 nodes until 520: 40 steps of 75 tokens, or 32 of 100
    of = costs(predicted=fewer, replicated=True)
    times = Recovery(detect_ns=0, regroup_ns=20 * S)
    found = ran(events((100, "stop", "node", 3, 1, 9e6)), policy=policy, spares=0, of=of, times=times, seconds=520)
    assert parts(found) == {"useful": 100 + useful, "restart": 20, "degraded": 400 - useful}
    assert found.account.step == 10 + steps and found.account.tokens == 1000 + 10 * useful


def test_a_repaired_node_is_taken_in_at_the_next_step():
    of = costs(predicted=fewer, replicated=True)
    times = Recovery(detect_ns=0, regroup_ns=20 * S)
    # back at 303: the step ends at 310; 20 s + 5 s of copying; whole again from 335
    found = ran(events((100, "stop", "node", 3, 1, 203)), policy="shrink", spares=0, of=of, times=times, seconds=435)
    assert found.transitions == {"shrink": 1, "reintegrate": 1}
    assert parts(found) == {"useful": 100 + 19 * 7.5 + 100, "restart": 45, "degraded": 19 * 2.5}


def test_a_slow_node_slows_all_and_may_be_left_out():
    slow = events((102, "slow", "node", 2, 1, 100), factor=2.0)
    found = ran(slow, seconds=300)
    # 8 s left at 102 take 16; then 4 steps of 20; at 202 16 s are left of a step, which take 8; then 9 steps
    assert parts(found) == {"useful": 250, "degraded": 50}
    out = ran(slow, tier(steps=100), policy="spare", spares=1, seconds=300,
              times=Recovery(detect_ns=8 * S, regroup_ns=3 * S, eject=True))  # fmt: skip
    # noticed at 110, the step ends at 118; saved in 2 s, regrouped in 3, loaded in 5
    assert parts(out) == {"useful": 280, "checkpoint": 2, "restart": 8, "degraded": 8, "idle": 2}


def test_notice_of_a_preemption_saves_the_steps():
    taken = events((103, "preempt", "node", 1, 1, 200), notice=30)
    with_notice = ran(taken, tier(steps=100), policy="spare", spares=1)
    assert "redo" not in parts(with_notice) and parts(with_notice)["checkpoint"] == 2
    short = events((103, "preempt", "node", 1, 1, 200), notice=5)
    assert parts(ran(short, tier(steps=100), policy="spare", spares=1))["redo"] == 108


def test_storage_that_cannot_be_reached_is_neither_written_nor_read():
    both = events((45, "storage", "process", -1, 0, 100), (130, "stop", "node", 0, 1, 0))
    found = ran(both, tier(), seconds=500)
    assert found.copies.writes[0] < 9 and parts(found)["redo"] == 130  # the saves at 50 and 100 were left out


def test_the_loop_is_the_naive_one():
    rng = np.random.default_rng(7)
    for _ in range(60):
        step, every, stall = int(rng.integers(3, 12)), int(rng.integers(1, 6)), int(rng.integers(1, 4))
        detect, restart, horizon = int(rng.integers(0, 30)), int(rng.integers(1, 40)), int(rng.integers(300, 1500))
        at = sorted({int(t) for t in rng.integers(1, horizon, rng.integers(0, 8))})
        of = costs(healthy=Config(4, step * S, 100), state_bytes=4.0 * stall, node_bytes=0.0)
        times = Recovery(detect_ns=detect * S, restart_ns=restart * S)
        happens = events(*[(t, "stop", "process", -1, 0, 0) for t in at])
        found = ran(happens, tier(steps=every), seconds=horizon, of=of, times=times)
        wanted = naive(step, every, stall, at, detect, restart, horizon)
        assert found.account.step == wanted.pop("steps")
        assert parts(found) == {name: value for name, value in wanted.items() if value}


def test_two_state_availability():
    rng = np.random.default_rng(1)
    times = np.sort(rng.random(rng.poisson(50 * 40)) * 4e5)
    struck = rng.integers(0, 50, len(times))
    rows = [(t, "stop", "node", int(n), 1, 2500.0) for t, n in zip(times, struck, strict=True)]
    found = ran(events(*rows), spares=49, of=costs(healthy=Config(1, 10 * S, 100)), seconds=4e5)
    # each node fails after 10,000 s on average and is back after 2,500
    assert found.node_up_ns / (50 * found.horizon_ns) == pytest.approx(0.8, abs=0.02)


def loops(view):
    return "wait"


def wrong(view):
    return "panic"


@pytest.mark.parametrize(("policy", "said"), [(loops, "so the run never continues"), (wrong, "answered 'panic'")])
def test_policies_that_cannot_go_on_are_refused(policy, said):
    with pytest.raises(UsageError, match=said):
        run_job(costs(), events((5, "stop", "node", 0, 1, 0)), policy=policy, recovery=TIMES, spares=None,
                horizon_ns=S * 1000)  # fmt: skip


def test_nodes_that_are_not_used_feel_nothing():
    both = events((102, "slow", "node", 1, 1, 500), (300, "stop", "node", 1, 1, 900), factor=2.0)
    given = {"policy": policy_of("spare"), "recovery": TIMES, "spares": 1, "horizon_ns": 1000 * S}
    out = run_job(costs(), both, excluded=(1,), **given)
    assert (parts(out), out.interruptions) == ({"useful": 1000}, 0)
    assert run_job(costs(), both, **given).interruptions == 1
    for excluded, said in (((1, 2), "2 nodes are excluded, and there are 1 spares"), ((9,), "node 9 is excluded")):
        with pytest.raises(UsageError, match=said):
            run_job(costs(), both, excluded=excluded, **given)


def test_replan_deals_micro_batches_by_speed():
    """4 nodes with 6 micro-batches of 1 s each, and 4 s of sums; one node becomes slower by 2."""
    whole = Config(4, 10 * S, 24, rounds=StepRounds(6, S, S, 9 * S))

    def dealt(most: int) -> Config:
        return Config(4, (most + 4) * S, 24, name=str(most), rounds=StepRounds(most, S, S, (most + 3) * S))

    of = costs(healthy=whole, dealt=dealt, predicted=fewer, replicated=True)
    found = of.slowed(2.0)
    assert found is not None and (found.step_ns, found.absorbs) == (11 * S, 2.0)  # 3 for it in 6 s, 7 for the others
    assert of.slowed(1.0) is None  # healthy devices keep the plan
    slow = events((100, "slow", "node", 2, 1, 98), factor=2.0)
    times = Recovery(detect_ns=5 * S, regroup_ns=2 * S)
    # slow from 100 on: a step of 20 s; noticed at 105, dealt from 120 to 122; 7 steps of 11 s until 199; 2 s; then 10 s
    replanned = ran(slow, policy="replan", of=of, times=times, spares=0, seconds=301)
    assert replanned.transitions == {"deal": 2}
    assert parts(replanned) == {"useful": 280, "restart": 4, "degraded": 17}
    kept = ran(slow, policy="redistribute", of=of, times=times, spares=0, seconds=301)
    assert kept.account.step < replanned.account.step

"""Workloads of one machine, each composition worked by hand: steps of 10 s, passes of 1 us, faults at known times."""

from dataclasses import replace

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.machine import open_system
from etude.world.clock import Clock, Event
from etude.world.devices import DOWN, FREE
from etude.world.entities.jobs import JobsWorkload
from etude.world.entities.links import LinkedImages, LinkedRollouts
from etude.world.entities.machine import LINKS
from etude.world.entities.power import PowerGovernor
from etude.world.entities.rollouts import RolloutWorkload
from etude.world.entities.training import training_workload
from etude.world.fleet.checkpoint import SaveTier
from etude.world.fleet.recovery import Recovery
from etude.world.fleet.rl import read_rl
from etude.world.fleet.rl.run import loop_of
from etude.world.fleet.sharing.cluster import cluster_of
from etude.world.fleet.sharing.gangs import Gangs, SharingTimes
from etude.world.fleet.sharing.jobs import read_jobs
from etude.world.fleet.sharing.policies import sharing_policy
from etude.world.fleet.sharing.supply import Supply
from etude.world.policies import PowerView, placed, policy, speed_of
from etude.world.serve.images.costs import ImageCosts
from etude.world.serve.images.requests import images_of
from etude.world.serve.images.words import DegreeRule
from etude.world.serve.requests import requests_of
from etude.world.serve.steps import step_cost
from small_worlds import Borrower, S, costs, faults, machine_of, pictures, run, serving, tier, training, wrong_in

SLOW = step_cost(tokens=[1], layers_ns=[0.5e9])


def seconds(parts: dict[str, int]) -> dict[str, float]:
    return {name: ns / S for name, ns in parts.items() if ns}


def test_a_free_node_takes_the_place_of_one_that_fails():
    # as with endless spares: saves end at 52 and 104; the fault at 130 costs 26 s, 60, 105; then 13 saves, 2 steps, 9 s
    machine = machine_of(5, faults((130 * S, 1, 500 * S)))
    train = training(machine, tier())
    run(machine, 1000 * S)
    wanted = {"useful": 770, "detect": 60, "restart": 105, "redo": 26, "checkpoint": 30, "idle": 9}
    assert seconds(train.parts_ns(1000 * S)) == {name: 4 * s for name, s in wanted.items()}
    devices = machine.devices
    assert devices.device_ns(DOWN, 1000 * S) == 500 * S
    assert devices.device_ns(FREE, 1000 * S) == (130 + 370) * S
    assert (train.job.account.step, train.job.interruptions) == (77, 1)


def test_without_a_free_node_a_job_waits_for_the_repair():
    # down from 130 to 630; 60 s of detection, 440 of waiting; start and load until 735; five rounds of 52 s, 5 s left
    machine = machine_of(4, faults((130 * S, 1, 500 * S)))
    train = training(machine, tier())
    run(machine, 1000 * S)
    assert seconds(train.parts_ns(1000 * S)) == {
        "useful": 4 * 350,
        "detect": 3 * 60,
        "restart": 4 * 105,
        "redo": 4 * 26,
        "checkpoint": 4 * 14,
        "idle": 3 * 440 + 4 * 5,
    }
    assert machine.devices.device_ns("train", 1000 * S) == 3500 * S


def test_a_job_lends_a_node_and_takes_it_back():
    # 10 steps; groups form for 20 s; 28 steps of three quarters of the batch; 25 s to take the node in; 57 steps, 5 s
    machine = machine_of(4, faults())
    train = training(machine, recover="shrink", lend_to="borrower", replicated=True)
    borrower = Borrower(machine, 100 * S, 400 * S)
    run(machine, 1000 * S)
    assert borrower.got_ns == 100 * S
    assert machine.devices.device_ns("borrower", 1000 * S) == 300 * S
    assert train.job.account.tokens == 10 * 100 + 28 * 75 + 57 * 100
    assert seconds(train.parts_ns(1000 * S)) == {
        "useful": 4 * 100 + 3 * 210 + 4 * 570,
        "degraded": 3 * 70,
        "restart": 3 * 20 + 4 * 25,
        "idle": 4 * 5,
    }
    assert train.job.interruptions == 0


def test_a_lender_keeps_what_it_needs():
    machine = machine_of(4, faults())
    train = training(machine, recover="shrink", lend_to="borrower", replicated=True)
    Borrower(machine, 100 * S, 400 * S, nodes=9)
    run(machine, 300 * S)
    assert machine.devices.held("train") == 1 and machine.devices.held("borrower") == 3
    assert train.job.account.tokens == 10 * 100 + 18 * 25


def test_requests_of_a_lost_replica_are_answered_by_the_other():
    # The pass from 1000 on is lost at 1500; the other replica reads prompt and first token again from 2000 on.
    machine = machine_of(2, faults((1500, 1, 10**6)))
    chat = serving(machine, requests_of([0, 0, 0, 0], [1, 1, 1, 1], [3, 3, 3, 3]), replicas=2)
    run(machine, 10_000)
    served = chat.served(10_000)
    assert served.column("FIRST").tolist() == [1000] * 4
    assert served.column("FINISH").tolist() == [3000, 4000, 3000, 4000]
    assert served.column("PREEMPTED").tolist() == [0, 1, 0, 1]
    assert chat.parts_ns(10_000) == {"busy": 4000 + 1500, "starting": 0, "idle": 6000}
    assert machine.devices.device_ns(DOWN, 10_000) == 8500
    assert chat.figures(10_000)["moved_requests"] == 2


def test_a_lost_replica_starts_where_devices_are_free():
    # The only replica is lost at 1500; the next starts at once, has its weights at 2000, and reads two tokens again.
    machine = machine_of(2, faults((1500, 0, 10**6)))
    chat = serving(machine, requests_of([0, 1600], [1, 1], [3, 1]), cold_ns=500)
    run(machine, 10_000)
    served = chat.served(10_000)
    assert served.column("FIRST").tolist() == [1000, 3000]
    assert served.column("FINISH").tolist() == [4000, 3000]
    assert chat.parts_ns(10_000) == {"busy": 1500 + 2000, "starting": 500, "idle": 6000}
    assert machine.devices.device_ns("chat", 10_000) == 1500 + 8500


def test_a_node_that_is_taken_away_goes_after_the_notice():
    """At 1000 it is said that the node goes at 1500: the replica works until then, and starts on the other node."""
    machine = machine_of(2, faults((1000, 0, 10**6), notice_ns=500))
    chat = serving(machine, requests_of([0], [1], [3]), cold_ns=500)
    run(machine, 10_000)
    assert chat.served(10_000).column("FINISH").tolist() == [4000]
    assert machine.devices.device_ns("chat", 10_000) == 1500 + 8500
    assert machine.devices.device_ns(DOWN, 10_000) == 8500


def test_a_job_saves_before_its_node_is_taken_away():
    """With 30 s of notice at 90 s: the ninth step ends at 92 (a save took 2 s at 50), a save until 94; the free node
    takes the place after 20 s for groups and 5 s for the state. From 119 on: a step, a save, five steps, a save, a step
    until 193."""
    machine = machine_of(5, faults((90 * S, 0, 500 * S), notice_ns=30 * S))
    train = training(machine, tier(), recover="spare", replicated=True)
    run(machine, 200 * S)
    assert train.job.account.step == 16
    assert seconds(train.parts_ns(200 * S)) == {
        "useful": 4 * 160, "checkpoint": 4 * 8, "restart": 4 * 25, "idle": 4 * 7,
    }  # fmt: skip
    held = [(row.time_ns // S, row.devices) for row in machine.devices.history["train"]]
    assert held == [(0, 4), (94, 4)]


def test_requests_wait_while_no_device_is_there():
    machine = machine_of(1, faults((1500, 0, 3500)))
    chat = serving(machine, requests_of([0, 1600], [1, 1], [3, 1]))
    run(machine, 10_000)
    served = chat.served(10_000)
    # back at 5000, and ready a nanosecond later
    assert served.column("FIRST").tolist() == [1000, 6001]
    assert served.column("FINISH").tolist() == [7001, 6001]


def test_what_is_not_answered_by_the_horizon_is_counted():
    machine = machine_of(1, faults())
    chat = serving(machine, requests_of([0, 0], [1, 1], [3, 20]))
    run(machine, 5500)
    found = chat.figures(5500)
    assert (found["requests"], found["finished"], found["unfinished"]) == (2, 1, 1)
    assert chat.parts_ns(5500) == {"busy": 5500, "starting": 0, "idle": 0}


def test_serving_takes_nodes_of_training_for_its_load():
    """Sixteen requests at once want eight replicas: a second later there are the free node and three of the trainer's
    four. At 2 s, with passes of 1 us, all 10^6 tokens of each are done, and at 3 s the trainer has its nodes again."""
    machine = machine_of(6, faults())
    train = training(machine, recover="shrink", lend_to="chat", replicated=True)
    chat = serving(machine, requests_of([0] * 16, [1] * 16, [2 * 10**6] * 16), most=8)
    run(machine, 60 * S)
    held = {row.time_ns: row.devices for row in machine.devices.history["chat"]}
    assert (held[0], held[S]) == (1, 5)
    assert machine.devices.held("chat") == 1 and machine.devices.held("train") == 4
    assert next(one["nodes"] for one in machine.log if one["kind"] == "lend") == 3
    for one in (train, chat):
        assert sum(one.parts_ns(60 * S).values()) == machine.devices.device_ns(one.name, 60 * S)


def test_training_slows_down_under_a_cap_and_no_joule_is_lost():
    # 4 W of idle devices and 1 W of steps; a cap of 4.5 W leaves half the speed: 30 steps of 10 J above idle in 600 s
    machine = machine_of(4, faults())
    train = training(machine)
    clock = Clock(600 * S)
    governor = PowerGovernor(clock, machine, 4.5, 1.0, policy("power", "cap-training-first"))
    clock.add(machine, train, governor)
    clock.run()
    train.close()
    assert (train.job.account.step, train.work_j(600 * S)) == (30, pytest.approx(300))
    assert seconds(train.parts_ns(600 * S)) == {"useful": 4 * 300, "degraded": 4 * 300}
    drawn = sum(row.total_w * 60 for row in governor.readings[1:])
    assert drawn == pytest.approx(4 * 600 + 300)
    assert all(row.total_w == pytest.approx(4.5) for row in governor.readings[1:])


@pytest.mark.parametrize(("until", "joules"), [(590, 295), (595, 297.5)])
def test_a_slow_step_that_does_not_end_took_its_part_of_the_energy(until: int, joules: float):
    """Steps of 20 s at half speed: 29 end, and of the thirtieth a half, or three quarters, of 10 J above idle."""
    machine = machine_of(4, faults())
    train = training(machine)
    clock = Clock(until * S)
    clock.add(machine, train, PowerGovernor(clock, machine, 4.5, 1.0, policy("power", "cap-training-first")))
    clock.run()
    train.close()
    assert (train.job.account.step, train.work_j(until * S)) == (29, pytest.approx(joules))


def test_a_cap_leaves_to_slow_links_what_they_leave_of_the_power():
    """As above until 299 s, when links leave half the speed: a quarter with the cap's half, until the cap is read at
    300 s. Then steps draw 0.5 W, all of it is there, and they run at half speed: 14.95 + 0.025 + 15 steps."""
    machine = machine_of(4, faults())
    train = training(machine)
    clock = Clock(600 * S)
    governor = PowerGovernor(clock, machine, 4.5, 1.0, policy("power", "cap-training-first"))
    clock.add(machine, train, governor)
    clock.post([Event(299 * S, LINKS, train.name, lambda state: 0.5)], outside=True)
    clock.run()
    train.close()
    assert (train.job.account.step, train.work_j(600 * S)) == (29, pytest.approx(299.75))
    assert [row.speed for row in governor.readings[4:]] == [0.5, *[pytest.approx(1.0)] * 6]
    assert all(row.total_w <= 4.5 + 1e-9 for row in governor.readings[1:])


def test_jobs_of_a_shared_cluster_lose_their_work_since_the_last_save(tmp_path):
    """Two nodes of one device. `a` runs on the first, which fails at 25 s: of its 25 s, 5 are lost, and it goes on when
    the node is back at 40 s. `b` does not notice."""
    file = tmp_path / "jobs.csv"
    file.write_text("name,arrival_s,gpus,duration_s,save_s\na,0,1,60,10\nb,0,1,50,10\n")
    machine, jobs = machine_of(2, faults((25 * S, 0, 15 * S))), read_jobs(file)
    cluster = cluster_of({"nodes": [{"count": 2, "gpus": 1}]}, "test")
    gangs = Gangs(cluster, jobs, sharing_policy("fifo"), SharingTimes(), Supply(cluster))
    nodes = machine.devices.take_nodes("jobs", 2, 0)
    shared = JobsWorkload("jobs", gangs, machine.devices, dict(enumerate(nodes)), "fifo")
    machine.workloads["jobs"] = shared
    run(machine, 200 * S)
    found = shared.figures(200 * S)
    assert gangs.out.end_ns.tolist() == [(40 + 40) * S, 50 * S]
    assert shared.parts_ns(200 * S) == {"useful": 110 * S, "redo": 5 * S, "starting": 0, "idle": (385 - 115) * S}
    assert (found["jobs_done"], found["interruptions"]) == (2, 1)
    assert machine.devices.device_ns(DOWN, 200 * S) == 15 * S


def test_rollouts_lose_the_turns_of_a_node_that_fails():
    """A sample takes 1 s and an update of both devices 1 s. At 2.5 s a node fails in the second round: half of a sample
    is lost, and the other replica makes it again from 3 s on. The second update ends at 5 s."""
    machine = machine_of(2, faults((2_500_000_000, 1, 100 * S)))
    given = {
        "rollout": {"nodes": "own", "samples": 2, "tokens": 10, "at_once": 1, "step_ns": {1: "100ms"}},
        "train": {"nodes": "own", "time": "1s"},
        "steps": 50,
    }
    cluster = cluster_of({"nodes": [{"name": "own", "count": 2, "gpus": 1}]}, "test")
    nodes = machine.devices.take_nodes("post", 2, 0)
    post = RolloutWorkload("post", loop_of(cluster, read_rl(given, "test"), "test"), machine.devices, 2, nodes)
    machine.workloads["post"] = post
    run(machine, 5_500_000_000)
    found = post.figures(5_500_000_000)
    assert (found["updates"], found["samples"], found["lost_tokens"]) == (2, 4, pytest.approx(5))
    parts = post.parts_ns(5_500_000_000)
    assert parts == {"useful": pytest.approx(7.5 * S), "redo": pytest.approx(0.5 * S), "starting": 0, "idle": 0}


def test_rollouts_lend_their_nodes_at_once():
    machine = machine_of(2, faults())
    given = {
        "rollout": {"nodes": "own", "samples": 2, "tokens": 10, "at_once": 1, "step_ns": {1: "100ms"}},
        "train": {"nodes": "own", "time": "1s"},
        "steps": 50,
    }
    cluster = cluster_of({"nodes": [{"name": "own", "count": 2, "gpus": 1}]}, "test")
    nodes = machine.devices.take_nodes("post", 2, 0)
    loop = loop_of(cluster, read_rl(given, "test"), "test")
    post = RolloutWorkload("post", loop, machine.devices, 2, nodes, "borrower")
    machine.workloads["post"] = post
    borrower = Borrower(machine, 500_000_000, 3 * S)
    run(machine, 10 * S)
    # one sample until 1 s, the other again until 2 s, an update until 3 s; then rounds of 2 s: 5, 7, 9
    assert borrower.got_ns == 500_000_000 and post.figures(10 * S)["updates"] == 4
    assert machine.devices.device_ns("post", 10 * S) == (20 - 2.5) * S
    assert sum(post.parts_ns(10 * S).values()) == (20 - 2.5) * S


def test_spares_are_held_but_not_useful():
    machine = machine_of(6, faults())
    train = training_workload("train", costs(), machine.devices, machine.events, tiers=(), recover="spare",
                              recovery=Recovery(spares="2"))  # fmt: skip
    machine.workloads["train"] = train
    run(machine, 100 * S)
    assert seconds(train.parts_ns(100 * S)) == {"useful": 4 * 100, "spare": 2 * 100}


def test_a_cap_holds_while_a_job_saves():
    """Saves of 30 s after every step, so that most minutes begin in one: the steps are slow all the same."""
    machine = machine_of(4, faults())
    slow = SaveTier(name="remote", steps=1, rate_bytes_per_s=1 / 15, survives="all")
    train = training(machine, slow)
    clock = Clock(1200 * S)
    governor = PowerGovernor(clock, machine, 4.5, 1.0, policy("power", "cap-training-first"))
    clock.add(machine, train, governor)
    clock.run()
    assert {row.speed for row in governor.readings} == {0.5}


def test_a_replica_that_is_released_is_held_until_its_rule_looks():
    """Passes of half a second: the first replica is done at 0.5 s, the second at 1.5 s. At 1 s one request is too few
    for two replicas, so the second is released; at 2 s the rule sees that it is empty."""
    machine = machine_of(2, faults())
    chat = serving(machine, requests_of([0, 0], [1, 1], [1, 3]), replicas=2, least=1, cost=SLOW)
    run(machine, 10 * S)
    assert [(row.time_ns, row.devices) for row in machine.devices.history["chat"]] == [(0, 2), (2 * S, 1)]
    assert chat.parts_ns(10 * S) == {"busy": 2 * S, "starting": 0, "idle": 10 * S}


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda *given: 1 / 0, "raised ZeroDivisionError"),
        (lambda *given: None, "returned None"),
        (lambda *given: {"nobody": 1}, "returned"),
        (lambda *given: {"train": 100}, "returned"),
        (lambda *given: {"train": -1}, "returned"),
        (lambda *given: {"train": 0.5}, "returned"),
    ],
)
def test_who_lends_is_asked_for_a_number_of_nodes(function, told):
    machine = machine_of(4, faults())
    machine.share = function
    training(machine, recover="shrink", lend_to="borrower", replicated=True)
    Borrower(machine, 100 * S, 400 * S)
    with pytest.raises(UsageError, match=told):
        run(machine, 300 * S)


def test_places_and_speeds_are_checked():
    for found in (-1, 2, None, 0.0, True):
        with pytest.raises(UsageError, match="returned"):
            placed(lambda free, devices, found=found: found, [1, 1], 1)
    view = PowerView(1.0, 1.0, 1.0, 1.0)
    for found in (-1, 5.0, float("nan"), None, "fast"):
        with pytest.raises(UsageError, match="returned"):
            speed_of(lambda view, found=found: found, view)


# -- images whose nodes fail -------------------------------------------------------------------------------------------

ONE = DegreeRule(degrees=(1,))
PICTURE = (1, 512, 512)


@pytest.mark.parametrize(
    ("nodes", "has", "ends", "parts"),
    [
        # its second node is idle: the ten steps of 1 s begin again there at 4.5; the first is back at 7.5, and loads
        # for two seconds: it has 37 device seconds in all
        (2, 2, 14.5, {"busy": 10, "redo": 4.5, "starting": 2, "idle": 20.5}),
        # a free node takes the place, and has the weights at 6.5
        (2, 1, 16.5, {"busy": 10, "redo": 4.5, "starting": 2, "idle": 3.5}),
        # the node itself comes back at 7.5 and has the weights at 9.5
        (1, 1, 19.5, {"busy": 10, "redo": 4.5, "starting": 2, "idle": 0.5}),
    ],
)
def test_a_picture_begins_again_when_its_node_fails(nodes, has, ends, parts):
    machine = machine_of(nodes, faults((round(4.5 * S), 0, 3 * S)))
    made = pictures(machine, images_of([0], [PICTURE], [10]), ONE, nodes=has, cold_ns=2 * S)
    run(machine, 20 * S)
    assert made.loop.finish_ns.tolist() == [round(ends * S)]
    assert seconds(made.parts_ns(20 * S)) == parts
    assert (made.failures, made.figures(20 * S)["begun_again"]) == (1, 1)
    assert wrong_in(machine, 20 * S) == []


def test_a_node_that_fails_while_it_loads_is_replaced():
    # lost at 4.5; the second node loads from there on and fails at 5.5; the third has the weights at 7.5
    machine = machine_of(3, faults((round(4.5 * S), 0, 100 * S), (round(5.5 * S), 1, 100 * S)))
    made = pictures(machine, images_of([0], [PICTURE], [10]), ONE, nodes=1, cold_ns=2 * S)
    run(machine, 20 * S)
    assert made.loop.finish_ns.tolist() == [round(17.5 * S)]
    assert seconds(made.parts_ns(20 * S)) == {"busy": 10, "redo": 4.5, "starting": 3, "idle": 2.5}
    assert made.failures == 2


def test_an_elastic_group_goes_on_with_the_devices_that_are_left():
    # two devices take 0.6 s for a step: 7 steps by 4.2, lost in the 8th; then one alone, with 1 s for each of ten
    machine = machine_of(2, faults((round(4.5 * S), 1, 100 * S)))
    rule = DegreeRule(degrees=(1, 2), elastic=True)
    made = pictures(machine, images_of([0], [PICTURE], [10]), rule, nodes=2, step_ns=(S, round(0.6 * S)))
    run(machine, 20 * S)
    assert made.loop.finish_ns.tolist() == [round(14.5 * S)]
    assert seconds(made.parts_ns(20 * S)) == {"busy": 10, "redo": 2 * 4.5, "idle": 5.5}
    cut = made.loop.tasks.rows[0]
    assert (cut[1], cut[2], cut[3], cut[7]) == ("cut", 0, round(4.5 * S), [0, 1])


@pytest.mark.parametrize(
    ("degrees", "set_up", "at", "ends"),
    [
        # two devices take 1 s for a step and 2 s from a moment on: the fifth step goes on as it began
        ((2,), 0, 4.5, 5 + 5 * 2),
        ((2,), 0, 4.0, 4 + 6 * 2),
        ((2,), 1.0, 0.5, 1 + 10 * 2),  # set up, and not begun
        ((2,), 0, 9.5, 10),  # the last one
        # alone a step takes 1.5 s, so that the last five are on one device
        ((1, 2), 0, 4.5, 5 + 5 * 1.5),
    ],
)
@pytest.mark.parametrize("elastic", [False, True])
def test_steps_of_pictures_take_what_links_leave_them(elastic, degrees, set_up, at, ends):
    if not elastic and (set_up or len(degrees) > 1):
        return
    machine = machine_of(1, faults(), per_node=2)
    rule = DegreeRule(degrees=degrees, elastic=elastic, set_up_ns=round(set_up * S))
    made = pictures(machine, images_of([0], [PICTURE], [10]), rule, nodes=1, step_ns=(1.5 * S, S)[-len(degrees) :])
    costs = made.loop.tasks.costs
    steps = np.array([[[1.5 * S], [2 * S]]], np.int64)[:, -len(degrees) :]
    later = LinkedImages(open_system("dgx-h100"), ImageCosts(costs.degrees, steps, costs.decode_ns, costs.encode_ns))
    made.changes.append(Event(round(at * S), LINKS, made.name, later))
    run(machine, 40 * S)
    assert made.loop.finish_ns.tolist() == [round(ends * S)]
    assert wrong_in(machine, 40 * S) == []


def test_rollouts_take_what_links_leave_them():
    """100 tokens at 10 ms each; from half of them on at 20 ms. The update, with 3 s left, goes on as it began, and the
    next one takes 10 s."""
    machine = machine_of(1, faults())
    given = {
        "rollout": {"nodes": "own", "samples": 1, "tokens": 100, "at_once": 1, "step_ns": {1: "10ms"}},
        "train": {"nodes": "own", "time": "4s"},
        "steps": 2,
    }
    cluster = cluster_of({"nodes": [{"name": "own", "count": 1, "gpus": 1}]}, "test")
    nodes = machine.devices.take_nodes("post", 1, 0)
    post = RolloutWorkload("post", loop_of(cluster, read_rl(given, "test"), "test"), machine.devices, 1, nodes)
    machine.workloads["post"] = post
    usual, system = post.loop.priced, open_system("dgx-h100")
    slow = replace(usual, step_ns={"rollout": np.full(2, 20e6)})
    for at, what in ((0.5, slow), (2.5, replace(slow, train_ns=10 * S))):
        post.changes.append(Event(round(at * S), LINKS, "post", LinkedRollouts(system, what)))
    run(machine, 20 * S)
    assert [(one.stage, one.end_ns / S) for one in post.loop.stretches] == [
        ("rollout", 0.5 + 50 * 0.02),
        ("train", 1.5 + 4),
        ("rollout", 5.5 + 2),
        ("train", 7.5 + 10),
    ]
    assert wrong_in(machine, 20 * S) == []


@pytest.mark.parametrize("seed", range(40))
def test_pictures_are_never_lost(seed):
    """Random faults: every picture is done, and device time adds up."""
    random = np.random.default_rng(seed)
    rows = sorted(
        (int(random.integers(60 * S)), int(random.integers(5)), int(random.integers(1, 30) * S)) for _ in range(9)
    )
    machine = machine_of(5, faults(*rows), per_node=2)
    elastic = bool(seed % 2)
    rule = DegreeRule(degrees=(1, 2, 4) if elastic else (2,), elastic=elastic, set_up_ns=S // 3 if elastic else 0)
    steps = (S, S * 6 // 10, S * 4 // 10) if elastic else (S,)
    wanted = images_of(np.sort(random.integers(0, 60 * S, 12)), [PICTURE] * 12, random.integers(1, 9, 12))
    made = pictures(machine, wanted, rule, nodes=3, cold_ns=2 * S, step_ns=steps)
    run(machine, 400 * S)
    assert (made.loop.finish_ns > 0).all()
    assert wrong_in(machine, 400 * S) == []
    last = {row[0][0]: row for row in made.loop.tasks.rows if row[1] == "steps"}
    assert len(last) == 12

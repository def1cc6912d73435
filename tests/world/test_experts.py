"""A group of experts whose nodes fail: as alone where a free node takes their place, and later where it comes later."""

from dataclasses import replace

import pytest

from etude.machine import open_system
from etude.make.generate.model import open_model
from etude.world.clock import Event
from etude.world.entities.experts import ExpertsWorkload
from etude.world.fleet import Recovery
from etude.world.fleet.experts import ExpertGroup, ExpertPrices, parse_failures, serve_group
from etude.world.fleet.experts.run import GroupRun
from small_worlds import S, faults, machine_of, run, wrong_in

MODEL = open_model("deepseek-v3").replace(
    layers=3, dense_layers=1, hidden=256, heads=4, ffn=512, vocab=1000, experts=8, top_k=2, expert_ffn=128,
    shared_ffn=128, q_rank=64, kv_rank=32,
)  # fmt: skip
FOUND = open_system("dgx-h100")
SYSTEM = FOUND.replace(levels=(replace(FOUND.levels[0], size=2), FOUND.levels[1]))
TIMES = Recovery(detect_ns=1e9, regroup_ns=2e9, restart_ns=20e9)
GROUP = ExpertGroup(sequences=4, context=64, horizon_ns=60e9, redundant=4, replace_ns=5e9)
PRICES = ExpertPrices(MODEL, SYSTEM, 4, 64)


def on(nodes, *rows, recover="shrink", ranks=4, recovery=TIMES):
    """A group of four ranks, two on a node, after 60 s."""
    machine = machine_of(nodes, faults(*rows), per_node=2)
    made = GroupRun(PRICES, GROUP, recovery, recover, ranks)
    made.replaces = False
    got = machine.devices.take_nodes("group", 2, 0)
    work = ExpertsWorkload("group", made, machine.devices, dict(enumerate(got)))
    machine.workloads["group"] = work
    run(machine, 60 * S)
    assert wrong_in(machine, 60 * S) == []
    return work


def alone(fail, recover="shrink"):
    return serve_group(PRICES, replace(GROUP, fail=fail), ranks=4, recover=recover, recovery=TIMES)


@pytest.mark.parametrize("recover", ["shrink", "restart"])
def test_with_a_free_node_it_is_the_group_alone(recover):
    wanted, found = alone("node0@10s", recover), on(3, (10 * S, 0, 100 * S), recover=recover).figures(60 * S)
    assert {name: found[name] for name in found} == {name: wanted[name] for name in found}
    assert found["interruptions"] == 1


def test_ranks_join_later_where_the_node_comes_later():
    """At once: noticed at 11 s, new processes start. With the node only at 25 s they start then, 14 s later; a pass is
    less than a millisecond."""
    wanted, found = alone("node0@10s"), on(2, (10 * S, 0, 15 * S)).figures(60 * S)
    soon, later = (next(one for one in its["pauses"] if one["why"] == "join") for its in (wanted, found))
    assert later["at_s"] - soon["at_s"] == pytest.approx(14, abs=2e-3)
    assert later["read_bytes"] == soon["read_bytes"]


def test_a_group_that_starts_again_waits_for_its_node():
    """Noticed at 11 s, waits until 25 s, starts in 20 s and loads. Two devices are held meanwhile."""
    wanted, found = alone("node0@10s", "restart"), on(2, (10 * S, 0, 15 * S), recover="restart")
    its, parts = found.figures(60 * S), found.parts_ns(60 * S)
    assert its["pauses"][0]["parts_s"] == wanted["pauses"][0]["parts_s"] | {"wait": 14.0}
    assert parts["idle"] >= 2 * 14 * S and parts["detect"] == 2 * S and parts["restart"] >= 4 * 20 * S
    assert its["tokens"] < wanted["tokens"]


def test_a_group_of_which_nothing_is_left_starts_again():
    found = on(2, (10 * S, 0, 5 * S), (12 * S, 1, 5 * S)).figures(60 * S)
    assert [one["why"] for one in found["pauses"]] == ["leave", "restart"]
    assert found["pauses"][1]["parts_s"]["wait"] == pytest.approx(17 - 13)
    assert found["curve"][-1]["state"] == "serve" and found["curve"][-1]["ranks"] == 4


def test_a_node_of_new_processes_that_fails_is_replaced_again():
    """The free node has taken the place at 10 s and fails at 12 s, before its ranks joined; the first is back at 20."""
    found = on(3, (10 * S, 0, 10 * S), (12 * S, 2, 100 * S)).figures(60 * S)
    joins = [one["at_s"] for one in found["pauses"] if one["why"] == "join"]
    assert len(joins) == 1 and 25 < joins[0] < 26


def test_the_same_when_it_is_asked_in_between():
    """A pause that is looked at in the middle takes as long."""
    plain, made = GroupRun(PRICES, GROUP, TIMES, "shrink", 4), GroupRun(PRICES, GROUP, TIMES, "shrink", 4)
    for one, step in ((plain, 60 * S), (made, S // 3)):
        now = 0
        while now < 60 * S:
            after = min(now + step, 60 * S)
            if now < 10 * S <= after:
                one.advance(10 * S)
                one.on(Event(10 * S, "fail", one.name, parse_failures("node0@10s", ranks=4, node=2)[0]))
            one.advance(after)
            now = after
    assert made.record() == plain.record()

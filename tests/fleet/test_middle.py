"""One step with one fault: the engine, node by node, and the long loop say the same."""

from dataclasses import replace

import numpy as np
import pytest
from fault_in_step import fault_in_step

from etude.base.errors import UsageError
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.world.fleet import Recovery, predicted_costs
from etude.world.fleet.costs import Config, Costs, StepRounds
from etude.world.fleet.events import EFFECTS, SCOPES, FleetEvents
from etude.world.fleet.recovery import policy_of
from etude.world.fleet.training import run_job

MODEL = replace(open_model("gpt2"), layers=2)
FOUND = open_system("dgx-h100")
SYSTEM = FOUND.replace(levels=(replace(FOUND.levels[0], size=2), replace(FOUND.levels[1], size=4)))
TIMES = Recovery(detect_ns=1_000_000, restart_ns=700_000, regroup_ns=300_000)
PLAN = Plan(gpus=8, tp=2, zero=0, micro_batch=1, global_batch=4 * 6, seq=512)
DEEP = Plan(gpus=8, tp=1, pp=2, zero=0, micro_batch=1, global_batch=4 * 6, seq=512)


def stop(at_ns: int, nodes: list[int]) -> FleetEvents:
    n = len(nodes)
    return FleetEvents(
        np.full(n, at_ns), np.zeros(n, np.int64), np.full(n, EFFECTS.index("stop")), np.full(n, SCOPES.index("node")),
        np.array(nodes), np.ones(n, np.int64), np.full(n, 10**18), np.ones(n), np.zeros(n, np.int64),
        np.full(n, -1, np.int64), ("fault",),
    )  # fmt: skip


def loop(costs: Costs, at_ns: int, recover: str, until_ns: int):
    return run_job(costs, stop(at_ns, [costs.nodes - 1]), policy=policy_of(recover), recovery=TIMES,
                   spares=None if recover == "restart" else 0, horizon_ns=until_ns)  # fmt: skip


@pytest.fixture(scope="module")
def known() -> Costs:
    return predicted_costs(MODEL, PLAN, SYSTEM, energy=False)


@pytest.mark.parametrize("recover", ["restart", "shrink", "redistribute"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.8])
def test_node_by_node_and_the_loop_end_the_step_at_the_same_nanosecond(recover: str, part: float, known: Costs):
    at_ns = round(part * known.healthy.step_ns)
    found = fault_in_step(MODEL, PLAN, SYSTEM, at_ns=at_ns, replicas=1, recover=recover, recovery=TIMES)
    for more, steps in ((-1, 0), (0, 1)):
        assert loop(known, at_ns, recover, found.end_ns + more).account.step == steps
    assert found.lost_ns <= found.done_ns and not found.ended
    if recover == "redistribute":  # 24 micro-batches on three replicas: 8 each, of which some are done
        assert found.kept + found.left == 8 and found.lost_ns < found.done_ns / 3
    else:
        assert found.lost_ns == found.done_ns


def test_in_a_pipeline_too():
    costs = predicted_costs(MODEL, DEEP, SYSTEM, energy=False)
    at_ns = round(0.6 * costs.healthy.step_ns)
    costs = replace(costs, gpus_per_node=2)  # two stages are on two nodes: both strike one replica
    found = fault_in_step(MODEL, DEEP, SYSTEM, at_ns=at_ns, replicas=1, recover="redistribute", recovery=TIMES)
    ended = loop(costs, at_ns, "redistribute", found.end_ns + found.end_ns // 100).account
    assert ended.step == 1 and loop(costs, at_ns, "redistribute", found.end_ns * 99 // 100).account.step == 0


def test_a_fault_after_the_sums_costs_the_others_nothing_of_the_step(known: Costs):
    rounds = known.healthy.rounds
    assert rounds is not None
    at_ns = (rounds.alone_ns + known.healthy.step_ns) // 2
    for recover in ("shrink", "redistribute"):
        found = fault_in_step(MODEL, PLAN, SYSTEM, at_ns=at_ns, replicas=1, recover=recover, recovery=TIMES)
        assert found.ended and found.end_ns == known.healthy.step_ns and found.lost_ns == 0
        ran = loop(known, at_ns, recover, at_ns + 1_300_000)  # noticed, regrouped
        assert ran.account.step == 1 and ran.account.tokens == known.healthy.tokens
    again = fault_in_step(MODEL, PLAN, SYSTEM, at_ns=at_ns, replicas=1, recover="restart", recovery=TIMES)
    assert again.end_ns == at_ns + 1_700_000 + known.healthy.step_ns


def test_kept_micro_batches_worked_by_hand():
    """Steps of 8 micro-batches of 10 s and 20 s of sums; one of 4 replicas is lost: 11 micro-batches each."""
    whole = Config(4, 100, 32, rounds=StepRounds(8, 10, 10, 90))
    fewer = Config(3, 130, 32, rounds=StepRounds(11, 10, 10, 120))
    costs = Costs(whole, 1, 1, 8.0, 0.0, 1.0, replicated=True, predicted=lambda shape, gpus: fewer)
    times = Recovery(detect_ns=15, regroup_ns=5)

    def ran(at: int, until: int, n: int = 1):
        return run_job(costs, stop(at, [3]), policy=policy_of("redistribute"), recovery=times, spares=0,
                       horizon_ns=until).account  # fmt: skip

    # stops at 34; noticed at 49 with 4 micro-batches done; groups at 54; 130 - 40 = 90 to go
    assert ran(34, 143).step == 0
    found = ran(34, 144)
    assert (found.step, found.tokens, found.useful_ns) == (1, 32, 100)
    assert {part: ns for part, ns in found.lost_ns.items() if ns} == {"detect": 15, "restart": 5, "degraded": 24}
    rows = found.table().to_pydict()
    assert rows["state"] == ["train", "detect", "restart", "train"] and sum(rows["tokens"]) == 32
    # at 70 all 8 would be done at 85: 3 are left
    assert ran(70, 139).step == 0 and ran(70, 140).step == 1
    cut = ran(34, 100)  # the end cuts it off again
    assert cut.step == 0 and cut.lost_ns["idle"] == 34 + 46 and sum(cut.lost_ns.values()) == 100
    assert ran(34, 40).lost_ns["redo"] == 34  # nobody has taken it up


@pytest.mark.parametrize(("given", "said"), [
    ({"recover": "spare"}, "not possible with `spare`"), ({"replicas": 4}, "at least one must be left"),
    ({"plan": PLAN.replace(zero=1)}, "must be whole"),
])  # fmt: skip
def test_what_cannot_be_is_refused(given: dict, said: str):
    usual = {"plan": PLAN, "recover": "shrink", "replicas": 1}
    now = usual | given
    with pytest.raises(UsageError, match=said):
        fault_in_step(MODEL, now.pop("plan"), SYSTEM, at_ns=5, recovery=TIMES, **now)

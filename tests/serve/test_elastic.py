"""Plans that change and replicas that come and go: by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.base.grammar import line
from etude.surface.cli import main
from etude.world.serve import Engine, serve
from etude.world.serve import state as of
from etude.world.serve.elastic import change_ns, moved_bytes, pays
from etude.world.serve.elastic.held import Arrivals
from etude.world.serve.elastic.moves import part_of
from etude.world.serve.elastic.reconfigure import (
    PlanChange,
    PlanShape,
    Reconfigure,
    SwitchMethod,
    Timetable,
    read_timetable,
    reconfigured,
)
from etude.world.serve.elastic.scale import EXAMPLE, Scale, ScaleRule, scale_rule, scaled
from etude.world.serve.requests import Requests, requests_of
from etude.world.serve.serving import Group
from etude.world.serve.steps import step_cost
from etude.world.serve.wire import wire_of

SLOW = step_cost(tokens=[1], layers_ns=[1000.0])
QUICK = step_cost(tokens=[1], layers_ns=[400.0])
PLAIN = Engine(async_scheduling=False)
DRAINED, LIVE, AGAIN = SwitchMethod(), SwitchMethod(live=True), SwitchMethod(live=True, move=False)
ONE, TWO, APART = PlanShape(1), PlanShape(2), PlanShape(1, "1:1")
GROUPS = {ONE: [Group(SLOW, 2)], TWO: [Group(QUICK, 1)], APART: [Group(SLOW, 1, of.PREFILL), Group(SLOW, 1, of.DECODE)]}


def changing(
    *changes: PlanChange,
    plans: tuple[PlanShape, ...] = (ONE, TWO),
    hook=None,
    every_ns: int = 1000,
    how: SwitchMethod = DRAINED,
) -> Reconfigure:
    """Two ranks; 100 bytes of weights, which load at a byte a ns, and 100 ns of set-up."""
    counts = [sum(group.count for group in GROUPS[plan]) for plan in plans]
    table = Timetable(plans, changes, hook, every_ns, how)
    weights = [100 / plan.tp for plan in plans]
    return reconfigured(table, counts, weights, 2, set_up_ns=100, load_bytes_per_s=1e9)


def groups_of(*plans: PlanShape) -> list[Group]:
    return [group for plan in plans for group in GROUPS[plan]]


def drawn(count: int = 150, *, alike: bool = False) -> Requests:
    """`alike`: prompts are one of seven."""
    random = np.random.default_rng(1)
    arrival, prompt = np.cumsum(random.integers(0, 900, count)), random.integers(1, 60, count)
    blocks = [[k % 7] for k in range(count)] if alike else None
    return requests_of(arrival, prompt * 0 + 512 if alike else prompt, random.integers(1, 30, count), blocks=blocks)


# -- what a change moves -----------------------------------------------------------------------------------------------


def test_a_part_that_shrinks_lies_in_the_old_one():
    quarters = [part_of(rank, 4) for rank in range(4)]
    assert sorted(quarters) == [(k / 4, (k + 1) / 4) for k in range(4)]
    for rank in range(8):
        for wide, narrow in ((1, 2), (2, 4), (4, 8), (2, 8), (2, 6)):
            low, high = part_of(rank, wide)
            first, last = part_of(rank, narrow)
            assert low <= first < last <= high


def test_bytes_that_ranks_need_and_do_not_have():
    # 120 bytes: halves are 60, quarters 30, thirds of nothing in common are counted stretch by stretch.
    assert moved_bytes(4, 2, 4, 30) == [0, 0, 0, 0]
    assert moved_bytes(4, 4, 2, 60) == [30, 30, 30, 30]
    assert moved_bytes(4, 4, 1, 120) == [90, 90, 90, 90]
    assert moved_bytes(4, 2, 2, 60) == [0, 0, 0, 0]
    assert moved_bytes(2, 0, 2, 60) == [60, 60]
    # From halves [0, 60) and [60, 120), in turn, to thirds [0, 40), [40, 80), [80, 120): 0, 20, 40, 40, 20, 0.
    assert moved_bytes(6, 2, 3, 40) == [0, 20, 40, 40, 20, 0]


def test_ranks_load_at_the_same_time():
    assert change_ns(500, [30, 60, 0], 2e9) == 530
    assert change_ns(500, [0, 0], 2e9) == 500


def test_a_change_pays_if_what_is_saved_is_more():
    # 1,000 ns remain; with steps of 60 instead of 100 they take 600: 400 are saved.
    assert pays(399, 100, 60, 1000) and not pays(400, 100, 60, 1000)
    assert not pays(0, 100, 100, 1000) and not pays(0, 60, 100, 1000)


# -- plans -------------------------------------------------------------------------------------------------------------


def test_there_and_back_by_hand():
    # The first is answered where it is, by 3,000. The second waits for that and for 100 of set-up: halves are there.
    # Back, each rank loads the other half: 50. The third finds the plan as it was.
    requests = requests_of([0, 1600, 6000], [4, 4, 4], [3, 2, 2])
    control = changing(PlanChange(1500, 1), PlanChange(5000, 0))
    found = serve(requests, PLAIN, groups_of(ONE, TWO), control=control)
    assert found.column("REPLICA").tolist() == [0, 2, 0]
    assert found.column("FIRST").tolist() == [1000, 3500, 7000]
    assert found.column("FINISH").tolist() == [3000, 3900, 8000]
    assert [(one["plan"], one["drained_s"], one["ready_s"], one["bytes"]) for one in found.changes] == [
        ("tp=2", 3000 / 1e9, 3100 / 1e9, 0),
        ("tp=1", 5000 / 1e9, 5150 / 1e9, 100),
    ]
    assert found.held_ns is not None and found.held_ns.tolist() == [6000, 6000, 2000]
    assert found.count("USED").tolist() == [0, 0, 0] and found.count("PENDING").tolist() == [0, 0, 0]


def test_who_has_not_begun_goes_along():
    requests = requests_of([0, 0, 0], [4, 4, 4], [3, 1, 1])
    engine = Engine(async_scheduling=False, max_num_seqs=1)
    control = changing(PlanChange(500, 1), plans=(TWO, ONE))
    found = serve(requests, engine, groups_of(TWO, ONE), control=control)
    # 3 passes of 400; then 100 and half of the weights, and both at a time.
    assert found.column("REPLICA").tolist() == [0, 1, 2]
    assert found.column("FINISH").tolist() == [1200, 1200 + 150 + 1000, 1200 + 150 + 1000]


def test_the_same_plan_costs_nothing():
    control = changing(PlanChange(2000, 0), PlanChange(9000, 0))
    assert control.cost(0, 0) == (0, 0)
    found = serve(drawn(), PLAIN, groups_of(ONE, TWO), router="least", control=control)
    static = serve(drawn(), PLAIN, groups_of(ONE), router="least")
    assert found.changes == [] and (found.column("FINISH") == static.column("FINISH")).all()


@pytest.mark.parametrize("engine", [PLAIN, Engine(block_size=4, num_gpu_blocks=24), Engine(cache="prefix")])
def test_nothing_is_lost_while_plans_change(engine: Engine):
    seen = []

    def next_one(now, plans, now_s):
        seen.append((now["plan"], now["arrived"]))
        assert plans[2] == {"tp": 1, "replicas": 2, "prefill": 1, "decode": 1}
        return (now["plan"] + 1) % 3

    control = changing(plans=(ONE, TWO, APART), hook=next_one, every_ns=9000)
    wire, requests = wire_of(1.0, choose="best"), drawn(alike=engine.cache == "prefix")
    found = serve(requests, engine, groups_of(ONE, TWO, APART), router="least", control=control, wire=wire)
    assert (found.column("FINISH") != of.NEVER).all() and len(found.changes) > 3
    assert int(found.count("MADE").sum()) == int(requests.output.sum())
    assert not found.count("USED").any() and not found.count("PENDING").any()
    # Two ranks, all of the time.
    ranks = np.array([1, 1, 2, 1, 1])
    assert found.held_ns is not None and int((found.held_ns * ranks).sum()) == 2 * int(found.column("FINISH").max())
    assert 0 < sum(n for _, n in seen) <= len(requests)
    last = [str(plan) for plan in (ONE, ONE, TWO, APART, APART)]
    closed = np.array([plan != found.changes[-1]["plan"] for plan in last])
    assert not found.count("CACHED")[closed].any()


def test_a_live_change_moves_what_ranks_lack_by_hand():
    # Two replicas of one rank become one of two: each rank has all keys and values of its own requests, keeps one half
    # and lacks the half of the other's. Weights: halves are there, so 100 of set-up: copied at 1,600. Passes that run
    # end at 2,000, when each request has read 4 tokens and has 2 out: 5 tokens are held, so each rank gets 2.5 tokens
    # of 8 bytes, 20 bytes at 1 byte a ns, after 7 of latency. Then passes of 400.
    requests = requests_of([0, 0, 1700], [4, 4, 4], [4, 3, 1])
    wire = wire_of(8.0, 1e9, 7)
    found = serve(
        requests, PLAIN, groups_of(ONE, TWO), router="least", control=changing(PlanChange(1500, 1, LIVE)), wire=wire
    )
    (change,) = found.changes
    assert (change["copied_s"], change["halted_s"], change["ready_s"]) == (1600 / 1e9, 2000 / 1e9, 2027 / 1e9)
    assert (change["bytes"], change["kv_bytes"], change["moved"], change["read_again"]) == (0, 40, 2, 0)
    # The third came when the first had room: it has not begun, and goes along.
    assert found.column("FINISH").tolist() == [2027 + 800, 2027 + 400, 2027 + 400]
    assert found.column("REPLICA").tolist() == [2, 2, 2] and found.column("PREEMPTED").sum() == 0


def test_a_live_change_may_read_again():
    requests = requests_of([0], [4], [4])
    found = serve(requests, PLAIN, groups_of(ONE, TWO), control=changing(PlanChange(1500, 1, AGAIN)), wire=wire_of(8.0))
    (change,) = found.changes
    assert (change["kv_bytes"], change["moved"], change["read_again"]) == (0, 0, 1)
    # Two tokens are out by 2,000; the next pass reads 6 tokens again, and a nanosecond passes between.
    assert found.column("FINISH").tolist() == [2001 + 800] and found.count("READ").tolist() == [4, 0, 6]


def test_requests_are_shared_out_among_smaller_replicas():
    # One replica of two ranks becomes two of one: a rank lacks half of the keys and values of each request it gets.
    requests = requests_of([0, 0], [4, 4], [9, 9])
    control = changing(PlanChange(500, 1, LIVE), plans=(TWO, ONE))
    found = serve(requests, PLAIN, groups_of(TWO, ONE), control=control, wire=wire_of(8.0, 1e9, 0))
    # Copied at 500 + 100 + 50, where the second pass runs until 800: 5 tokens of each are held.
    (change,) = found.changes
    assert sorted(found.column("REPLICA").tolist()) == [1, 2] and change["kv_bytes"] == 2 * 20
    assert change["bytes"] == 100 and found.column("FINISH").tolist() == [800 + 20 + 7000] * 2


def test_copies_of_weights_take_room_from_keys_and_values():
    # Halves to wholes: 50 bytes for each rank, in blocks of 16 tokens of 1 byte: 4 of 10. The second pass, at 400,
    # needs two blocks for each of four requests.
    control = changing(PlanChange(350, 1, LIVE), plans=(TWO, ONE))
    engine = Engine(async_scheduling=False, num_gpu_blocks=10)
    many = requests_of([0] * 4, [16] * 4, [12] * 4)
    found = serve(many, engine, groups_of(TWO, ONE), control=control, wire=wire_of(2.0, 1e9, 0))
    assert found.count("PREEMPTED").tolist() == [1, 0, 0] and found.count("ROOM").tolist() == [10, 10, 10]
    large = requests_of([0], [100], [20])
    with pytest.raises(UsageError, match="weights of both plans leave 6 blocks"):
        control = changing(PlanChange(500, 1, LIVE), plans=(TWO, ONE))
        serve(large, engine, groups_of(TWO, ONE), control=control, wire=wire_of(2.0, 1e9, 0))


@pytest.mark.parametrize("how", [LIVE, AGAIN])
@pytest.mark.parametrize(
    "engine",
    [
        PLAIN,
        Engine(block_size=4, num_gpu_blocks=40),
        Engine(cache="prefix"),
        Engine(chunked=False),
        Engine(max_num_seqs=2),
    ],
)
def test_nothing_is_lost_while_plans_change_live(engine: Engine, how: SwitchMethod):
    control = changing(
        plans=(ONE, TWO, APART), hook=lambda now, plans, now_s: (now["plan"] + 1) % 3, every_ns=5000, how=how
    )
    wire, requests = wire_of(10.0, choose="best"), drawn(alike=engine.cache == "prefix")
    found = serve(requests, engine, groups_of(ONE, TWO, APART), router="least", control=control, wire=wire)
    assert (found.column("FINISH") != of.NEVER).all() and len(found.changes) > 5
    assert int(found.count("MADE").sum()) == int(requests.output.sum())
    assert not found.count("USED").any() and not found.count("PENDING").any()
    assert sum(one["moved"] + one["read_again"] for one in found.changes) > 0
    ranks = np.array([1, 1, 2, 1, 1])
    assert found.held_ns is not None and int((found.held_ns * ranks).sum()) == 2 * int(found.column("FINISH").max())


def test_a_hook_that_returns_nonsense_names_the_moment():
    control = changing(hook=lambda now, plans, now_s: 7)
    with pytest.raises(UsageError, match="returned 7"):
        serve(drawn(), PLAIN, groups_of(ONE, TWO), control=control)


@pytest.mark.parametrize(
    ("text", "plans"),
    [
        ("at=60s", ""), ("at=60s,tp=3", ""), ("at=60s,tp=2,split=1:1", ""), ("at=60s,tp=1,split=x", ""),
        ("at=60s,tp=2;at=50s,tp=1", ""), ("at=60s,tp=2;tp=1", ""), ("f,every=0s", "tp=2"), ("f", ""), ("f", "tp=9"),
        ("f,often=1s", "tp=2"), ("at=60s,tp=2,how=soon", ""), ("at=60s,tp=2,kv=move", ""), ("f,kv=x,how=live", "tp=2"),
    ],
)  # fmt: skip
def test_timetables_that_are_refused(text: str, plans: str):
    with pytest.raises(UsageError):
        read_timetable(text, plans, ONE, 2, lambda name: max)


# -- replicas ----------------------------------------------------------------------------------------------------------


def test_a_replica_that_comes_and_goes_by_hand():
    # At 1,000 the pass that ends there is not over: three requests on one replica, one is wanted. So one comes, by
    # 1,000 + 50 + 500. What arrives before goes to the first, what arrives then to the second, until it is given up.
    requests = requests_of([0, 0, 0, 1540, 1560, 9000], [4] * 6, [3, 3, 3, 1, 2, 1])
    rule = ScaleRule(most=2, every_ns=1000, lag_ns=50, low=0.6, high=1.0)
    found = serve(requests, PLAIN, SLOW, replicas=2, router="least", control=Scale(rule, 1, 500))
    assert found.column("REPLICA").tolist() == [0, 0, 0, 0, 1, 0]
    # At 1,560 a pass begins on the second, until 2,560; and one until 3,560. At 4,000 nothing is there: one goes.
    assert found.column("FINISH").tolist() == [3000, 3000, 3000, 3000, 3560, 10000]
    assert found.changes == [{"replicas": 2, "asked_s": 1e-6}, {"replicas": 1, "asked_s": 4e-6}]
    assert found.held_ns is not None and found.held_ns.tolist() == [10000, 3000]


def test_a_replica_that_is_given_up_answers_what_it_has():
    requests = requests_of([0, 0], [4, 4], [5, 5])
    found = serve(
        requests, PLAIN, SLOW, replicas=2, router="least",
        control=Scale(ScaleRule(most=2, every_ns=1500, hook=lambda seen, now_s: 1), 2, 0),
    )  # fmt: skip
    assert found.column("REPLICA").tolist() == [0, 1] and found.column("FINISH").tolist() == [5000, 5000]
    assert found.held_ns is not None and found.held_ns.tolist() == [5000, 5000]


def test_limits_that_are_never_reached_are_static():
    static = serve(drawn(), PLAIN, SLOW, replicas=2, router="least")
    rule = ScaleRule(most=4, every_ns=700)
    found = serve(drawn(), PLAIN, SLOW, replicas=4, router="least", control=Scale(rule, 2, 10))
    assert found.changes == [] and (found.column("FINISH") == static.column("FINISH")).all()


def test_replicas_at_once_and_for_nothing_are_all_of_them():
    """Asked for before the stream begins, without lag: as many as if they had always been there."""
    all_ = drawn()
    late = requests_of([0, *(all_.arrival_ns + 5000)], [1, *all_.prompt], [1, *all_.output])
    rule = ScaleRule(most=4, every_ns=1000, hook=lambda seen, now_s: 4)
    found = serve(late, PLAIN, SLOW, replicas=4, router="least", control=Scale(rule, 1, 0))
    static = serve(late, PLAIN, SLOW, replicas=4, router="least")
    assert (found.column("FINISH") == static.column("FINISH")).all()


def test_nothing_is_lost_while_replicas_come_and_go():
    random = np.random.default_rng(3)
    rule = ScaleRule(most=5, every_ns=800, hook=lambda seen, now_s: int(random.integers(1, 6)))
    found = serve(drawn(), PLAIN, SLOW, replicas=5, router="tokens", control=Scale(rule, 2, 300))
    assert (found.column("FINISH") != of.NEVER).all() and len(found.changes) > 10
    busy = found.count("BUSY")
    assert found.held_ns is not None and (busy <= found.held_ns).all()
    assert int(found.held_ns.sum()) < 5 * int(found.column("FINISH").max())


def test_a_function_is_told_what_arrived_since():
    # The second comes 200 after the answer of the first, which has three tokens: at 3,200.
    told = []
    rule = ScaleRule(most=2, every_ns=1000, hook=lambda seen, now_s: told.append(seen["arrived"]) or 1)
    serve(requests_of([0, 200], [4, 4], [3, 2], parents=[[], [0]]), PLAIN, SLOW, replicas=2, control=Scale(rule, 1, 0))
    assert told[:4] == [1, 0, 0, 1] and sum(told) == 2


def test_prompts_and_answers_scale_apart():
    groups = [Group(SLOW, 3, of.PREFILL), Group(SLOW, 4, of.DECODE)]
    told = []

    def count(seen, now_s):
        told.append(seen["role"])
        return 3 if seen["requests"] > 2 else 1

    rules = [ScaleRule(most=3, every_ns=700, hook=count), ScaleRule(most=4, every_ns=900, low=1.0, high=3.0)]
    found = serve(
        drawn(), PLAIN, groups, router="least", control=scaled(rules, [1, 2], 300), wire=wire_of(1.0, choose="best")
    )
    assert (found.column("FINISH") != of.NEVER).all() and set(told) == {"prefill"}
    assert {one["role"] for one in found.changes} == {"prefill", "decode"}
    busy = found.count("BUSY")
    assert found.held_ns is not None and (busy <= found.held_ns).all()
    assert (found.held_ns <= int(found.column("FINISH").max())).all() and not found.count("USED").any()


@pytest.mark.parametrize(
    "text",
    [
        "queue:2..16",
        "queue:16..2,most=4",
        "queue:2,most=4",
        "queue:1..2,most=0",
        "queue:1..2,most=1",
        "f,most=4,x=1",
        "target:0,most=4",
        "target:8,most=4,tolerance=2",
        "queue:1..2,most=4,down=5s",
        "f,most=4,noise=x",
    ],
)
def test_rules_of_scaling_that_are_refused(text: str):
    with pytest.raises(UsageError):
        scale_rule(line(text, "--scale", EXAMPLE), 2, lambda name: max)


# -- the command -------------------------------------------------------------------------------------------------------

STREAM = ["serve", "llama3-8b", "--system", "dgx-h100", "--count", "60", "--rate", "30", "--output", "32", "--json"]


def test_the_command_changes_plans(capsys: pytest.CaptureFixture[str]):
    assert main([*STREAM, "--replicas", "2", "--reconfigure", "at=1s,tp=2", "--set-up", "200ms"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["finished"] == 60
    (change,) = found["changes"]
    assert change["plan"] == "tp=2" and change["asked_s"] == 1.0 and change["bytes"] == 0
    assert change["ready_s"] == pytest.approx(change["drained_s"] + 0.2)


def test_the_command_scales(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "mine.py").write_text("def two(seen, now_s):\n    return 2 if seen['arrived'] > 5 else 1\n")
    given = [*STREAM, "--scale", f"{tmp_path}/mine.py:two,most=2,every=500ms", "--set-up", "0s"]
    assert main([*given, "--load", "50GB/s"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["finished"] == 60 and found["changes"][0] == {"replicas": 2, "asked_s": 0.5}
    assert found["duration_s"] < found["replica_s"] < 2 * found["duration_s"]


@pytest.mark.parametrize(
    "given",
    [
        ["--scale", "queue:1..2,most=4", "--reconfigure", "at=1s,tp=2"],
        ["--scale", "queue:1..2,most=4", "--disaggregate", "1:1"],
        ["--scale", "queue:1..2,most=4;queue:1..2,most=4"],
        ["--reconfigure", "at=1s,tp=2", "--replicas", "2", "--cache", "prefix host=4GB"],
        ["--reconfigure", "nowhere.py:mine", "--plans", "tp=1"],
    ],
)
def test_what_does_not_go_together(given: list[str], capsys: pytest.CaptureFixture[str]):
    assert main([*STREAM, *given]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_target_asks_as_kubernetes_does():
    rule = ScaleRule(most=20, target=8.0)
    # 10% of the target is no reason; else as many as bring it there.
    assert [rule.aimed(requests, 4) for requests in (32, 35, 36, 29, 28, 400)] == [4, 4, 5, 4, 4, 20]
    assert [rule.aimed(requests, 4) for requests in (0, 8, 9)] == [1, 1, 2]
    scale = Scale(ScaleRule(most=20, target=8.0, down_ns=100), 4, 0)
    asked = [(0, 6), (50, 3), (100, 2), (101, 2), (160, 1)]
    now, found = 4, []
    for when, aim in asked:
        now = scale._aimed(aim, now, when)
        found.append(now)
    # 6 at 0 holds until 100, 3 at 50 until 150, then 2 of 100 and 101.
    assert found == [6, 6, 6, 3, 2]


def test_what_is_known_of_the_load_is_old_and_noisy():
    told: dict[str, list[float]] = {"now": [], "old": [], "noisy": []}
    for name, more in (("now", {}), ("old", {"seen_ns": 2000}), ("noisy", {"noise": 0.5, "seed": 3})):
        hook = lambda seen, now_s, name=name: told[name].append(seen["requests"]) or 1  # noqa: E731
        rule = ScaleRule(most=2, every_ns=1000, hook=hook, **more)
        serve(requests_of([0, 2500], [4, 4], [9, 9]), PLAIN, SLOW, replicas=2, control=Scale(rule, 1, 0))
    assert told["old"] == told["now"][: len(told["old"])] and len(told["now"]) - len(told["old"]) == 2
    assert len(told["noisy"]) == len(told["now"]) and told["noisy"] != told["now"] and min(told["noisy"]) >= 0


def test_requests_of_a_stretch_are_those_that_came_in_it():
    """Rows 1 and 3 wait for others: 1 came at 25, and 3 has not come."""
    request = np.zeros(6, of.REQUEST)
    request["arrival_ns"] = [5, 25, 10, 12, 20, 20]
    request["parents"], request["missing"] = [0, 1, 0, 2, 0, 0], [0, 0, 0, 1, 0, 0]
    arrivals = Arrivals(request)
    stretches = {(0, 5): [], (5, 10): [0], (10, 20): [2], (20, 25): [4, 5], (20, 26): [1, 4, 5], (26, 99): []}
    for (since, until), rows in stretches.items():
        assert arrivals.between(since, until).tolist() == rows
    request["missing"][3], request["arrival_ns"][3] = 0, 30
    assert arrivals.between(26, 31).tolist() == [3]

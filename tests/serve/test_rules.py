"""Who goes first, who gives way, how many branches run, what a draft brings, where a router looks: by hand."""

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.kernels.compile import kernel
from etude.kernels.rows import TableRows
from etude.world.serve import Engine, serve
from etude.world.serve import state as of
from etude.world.serve.hooks import Hooks
from etude.world.serve.queues import draw
from etude.world.serve.requests import Requests, requests_of
from etude.world.serve.results import request_times, step_imbalance
from etude.world.serve.serving import Group
from etude.world.serve.steps import step_cost

CONSTANT = step_cost(tokens=[1], layers_ns=[1000.0])
BY_TOKENS = step_cost(tokens=[0, 1000], layers_ns=[100.0, 10100.0])  # 100 + 10 a token
BY_KEYS = step_cost(
    tokens=[1], layers_ns=[100.0],
    attention=([0.0], [0.0], [0.0, 1.0, 8.0], [0.0, 1000.0],
               np.array([[[[0.0, 0.0], [0.0, 1000.0], [0.0, 8000.0]]]])),
)  # fmt: skip
ONE = {"max_num_seqs": 1, "async_scheduling": False}


def served_in_order(requests: Requests, **rules) -> list[int]:
    found = serve(requests, Engine(**ONE, **rules), CONSTANT)
    return np.argsort(found.column("FINISH"), kind="stable").tolist()


def test_who_goes_first():
    """The first enters at once; the others are there when it is done."""
    more = {
        "deadline_ns": [9000, 8000, 3000, 5000, 4000], "tier": [0, 2, 1, 1, 0], "tenant": [0, 0, 0, 1, 1],
    }  # fmt: skip
    requests = requests_of([0, 1, 2, 3, 4], [5, 9, 8, 7, 6], [1, 1, 1, 1, 1], **more)
    assert served_in_order(requests) == [0, 1, 2, 3, 4]
    assert served_in_order(requests, scheduling_policy="edf") == [0, 2, 4, 3, 1]
    assert served_in_order(requests, scheduling_policy="priority") == [0, 4, 2, 3, 1]
    assert served_in_order(requests, scheduling_policy="shortest") == [0, 4, 3, 2, 1]
    # Tags: 0 begins at 0 and ends at 6; 1 and 2 of the same tenant at 6 and 16; 3 and 4 of the other at 0 and 8.
    assert served_in_order(requests, scheduling_policy="fair") == [0, 3, 1, 4, 2]


def test_two_tenants_share_alike_however_much_one_asks():
    many = requests_of(np.zeros(60), np.full(60, 10), np.full(60, 2), tenant=np.arange(60) % 6 == 5)
    found = serve(many, Engine(**ONE, scheduling_policy="fair"), CONSTANT)
    order = np.argsort(found.column("FINISH"), kind="stable")
    first = many.tenant[order][:20]  # 10 requests of the second tenant are there
    assert abs(int(first.sum()) - 10) <= 1


def test_a_swap_brings_back_what_it_took_away():
    """As with a prompt that is read again: three blocks, the second request gives way at the fifth token of the first.
    Its four or five tokens go to the host and come back, at 10 ns each."""
    requests = requests_of([0, 0], [4, 4], [5, 6])
    rules = {"block_size": 4, "num_gpu_blocks": 3, "async_scheduling": False, "enable_prefix_caching": False}
    group = Group(CONSTANT, token_bytes=250.0)
    again = serve(requests, Engine(**rules), [group])
    swap = serve(requests, Engine(**rules, preemption_mode="swap", swap_bandwidth_bytes_per_s=25_000_000_000), [group])
    assert swap.count("READ")[0] == 8 and again.count("READ")[0] == 13
    assert swap.column("PREEMPTED").tolist() == [0, 1]
    # passes of 1000: prompts, then 4 of the first alone (the second moved out with the first of them), then the second
    assert swap.column("FINISH")[0] == 5000 + 4 * 10
    assert swap.column("FINISH")[1] == 5000 + 4 * 10 + 5000 + 4 * 10
    with pytest.raises(UsageError, match="is not known"):
        serve(requests, Engine(preemption_mode="swap"), CONSTANT)


# -- branches ----------------------------------------------------------------------------------------------------------


def test_branches_one_after_another_or_side_by_side():
    """12 tokens in 3 branches of 4; the first comes with the prompt."""
    requests = requests_of([0], [10], [12], branches=[3])
    plain = Engine(async_scheduling=False)
    finish = {
        rule: int(serve(requests, plain, CONSTANT, admit=rule, tpot_ns=1e4).column("FINISH")[0])
        for rule in ("off", "eager", "cap:1", "cap:2", "slack:0", "slack:inf")
    }
    assert finish["off"] == finish["cap:1"] == 12_000
    # after the prompt: 3 passes finish the first branch beside 3 tokens of both others, then one more for these
    assert finish["eager"] == 1000 + 4000
    # two side by side: (0, 1) three times, then (1, 2), then 2 three times
    assert finish["cap:2"] == 1000 + 3000 + 1000 + 3000
    assert finish["slack:inf"] == finish["eager"]


def test_slack_zero_is_off_if_a_branch_costs_time_and_no_pass_exceeds_its_slack():
    random = np.random.default_rng(3)
    requests = requests_of(
        np.cumsum(random.integers(0, 4000, 60)), random.integers(5, 60, 60), random.integers(8, 30, 60),
        branches=random.integers(1, 6, 60),
    )  # fmt: skip
    run = {
        rule: serve(requests, Engine(), BY_TOKENS, admit=rule, tpot_ns=250.0, keep_passes=True)
        for rule in ("off", "eager", "slack:0", "slack:inf", "slack")
    }
    columns = {rule: found.column("FINISH").tolist() for rule, found in run.items()}
    assert columns["slack:0"] == columns["off"] and columns["slack:inf"] == columns["eager"]
    assert columns["slack"] != columns["off"] and columns["slack"] != columns["eager"]
    passes = run["slack"].passes
    assert passes is not None
    extra, added, slack = (passes[name].to_numpy() for name in ("extra_branches", "extra_ns", "slack_ns"))
    assert (added <= slack).all() and extra.max() > 0
    assert (added == 10 * extra).all()  # a token is 10 ns
    assert run["eager"].count("MADE").sum() == requests.output.sum()


def test_keys_of_a_branch_are_the_prompt_and_its_own_tokens():
    # 100 + a key each 1: prompt of 10 without keys; then both branches at 11 keys, then at 12 and 11 ...
    requests = requests_of([0], [10], [4], branches=[2])
    found = serve(requests, Engine(async_scheduling=False), BY_KEYS, admit="eager", keep_passes=True)
    assert found.passes is not None
    # tokens of the branches before each pass: (1, 0), then (2, 1): the first is complete
    assert found.passes["decode_keys"].to_pylist() == [0, 11 + 11, 11]
    assert found.count("PEAK")[0] == 1  # 13 tokens, the prompt once


# -- speculation, exits ------------------------------------------------------------------------------------------------


def test_tokens_a_pass_brings_with_a_draft():
    """k proposed, each right with probability a after the one before: (1 - a^(k+1)) / (1 - a) on the mean."""
    requests = requests_of([0], [10], [40_001])
    engine = Engine(async_scheduling=False, num_speculative_tokens=3, acceptance=0.6)
    found = serve(requests, engine, CONSTANT, draft=step_cost(tokens=[1], layers_ns=[50.0]), keep_passes=True)
    passes = int(found.count("PASSES")[0]) - 1
    assert 40_000 / passes == pytest.approx(1 + 0.6 + 0.36 + 0.216, rel=0.02)
    assert found.column("FINISH")[0] == 1000 + passes * (1000 + 3 * 50)
    never = Engine(async_scheduling=False, num_speculative_tokens=3, acceptance=0.0)
    assert serve(requests_of([0], [10], [5]), never, CONSTANT).column("FINISH").tolist() == [5000]
    always = Engine(async_scheduling=False, num_speculative_tokens=3, acceptance=1.0)
    assert serve(requests_of([0], [10], [9]), always, BY_TOKENS).column("FINISH").tolist() == [200 + 2 * 140]


def test_tokens_that_leave_early_take_their_part_of_the_layers():
    found = serve(requests_of([0], [10], [3]), Engine(async_scheduling=False, exit_depth=0.25), CONSTANT)
    assert found.column("FINISH").tolist() == [1000 + 2 * 250]


# -- routers -----------------------------------------------------------------------------------------------------------


def test_the_router_that_balances_fills_the_margin_below_the_fullest():
    # 100 to the first, 60 to the second, 30 to the third, which holds less. 100 are 60 over the fullest on the second
    # and 30 on the third, which is the fullest then. 5 fit below it on the first and the second, which holds less.
    requests = requests_of([0, 0, 0, 0, 0], [100, 60, 30, 100, 5], [50, 50, 50, 50, 50])
    found = serve(requests, Engine(), BY_TOKENS, replicas=3, router="br0")
    assert found.column("REPLICA").tolist() == [0, 1, 2, 2, 1]
    assert serve(requests, Engine(), BY_TOKENS, replicas=3, router="br:0").column("REPLICA").tolist() == [0, 1, 2, 2, 1]


def test_looking_ahead_sees_who_will_be_gone():
    # One long prompt that ends at once, one shorter that stays; the third fits below the first now, and not later.
    requests = requests_of([0, 0, 0], [100, 60, 30], [2, 200, 200])
    now, later = (
        serve(requests, Engine(), BY_TOKENS, replicas=2, router=router).column("REPLICA").tolist()
        for router in ("br0", "br:100")
    )
    assert now == [0, 1, 1] and later == [0, 1, 0]


def test_decisions_take_their_time_one_after_another():
    requests = requests_of([0, 0, 1000], [4, 4, 4], [1, 1, 1])
    found = serve(requests, Engine(async_scheduling=False), CONSTANT, decide_ns=300, replicas=3)
    assert found.column("FIRST").tolist() == [1300, 1600, 2300]


def test_equal_requests_in_multiples_of_replicas_are_balanced():
    engine = Engine(barrier=True, async_scheduling=False)
    even = serve(requests_of(np.zeros(8), np.full(8, 10), np.full(8, 5)), engine, BY_TOKENS, replicas=4, router="br0")
    assert step_imbalance(even) == 0.0
    # Steps of 600 and 200, then two of 110 beside nothing: (200 + 55 + 55) of 820 are waited for.
    pair = serve(requests_of([0, 0], [50, 10], [1, 3]), engine, BY_TOKENS, replicas=2)
    assert step_imbalance(pair) == pytest.approx(310 / 820)


# -- hooks inside the loop ---------------------------------------------------------------------------------------------


def stream(count: int = 40) -> Requests:
    random = np.random.default_rng(5)
    return requests_of(
        np.cumsum(random.integers(0, 900, count)), random.integers(1, 60, count), random.integers(1, 30, count)
    )


def test_hooks_that_do_what_the_rules_do_change_nothing():
    requests = stream()
    rules = {"max_num_batched_tokens": 64, "max_num_seqs": 7, "block_size": 4, "num_gpu_blocks": 24}
    hooks = Hooks(
        admit=lambda request, replica, now_s: True,
        batch=lambda waiting, replica, now_s: [one["request"] for one in waiting],
        evict=lambda running, replica, now_s: running[-1]["request"],
        exit=lambda request, replica, now_s: 1.0,
    )
    compiled = serve(requests, Engine(**rules), BY_TOKENS, replicas=2, router="two")
    plain = serve(requests, Engine(**rules), BY_TOKENS, replicas=2, router="two", hooks=hooks)
    assert compiled.state.request.tolist() == plain.state.request.tolist()
    assert compiled.count("PREEMPTED").sum() > 0


def test_a_hook_orders_those_that_wait():
    requests = requests_of([0, 1, 2, 3], [5, 6, 7, 8], [1, 1, 1, 1])
    hooks = Hooks(batch=lambda waiting, replica, now_s: sorted((one["request"] for one in waiting), reverse=True))
    found = serve(requests, Engine(**ONE), CONSTANT, hooks=hooks)
    assert found.column("FINISH").tolist() == [1000, 4000, 3000, 2000]


def boom(*_):
    raise KeyError("x")


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        (Hooks(admit=lambda *_: 1), "request 0: `<lambda>` returned 1"),
        (Hooks(admit=boom), "request 0: `boom` raised KeyError"),
        (Hooks(batch=lambda *_: [0]), r"replica 0: `<lambda>` returned \[0\]"),
        (Hooks(evict=lambda *_: None), "replica 0: `<lambda>` returned None"),
        (Hooks(exit=lambda *_: 2.0), "request 0: `<lambda>` returned 2.0"),
        (Hooks(admit=lambda *_: False), "request 0: never gets memory"),
    ],
)
def test_nonsense_of_a_hook_is_refused(hooks: Hooks, said: str):
    engine = Engine(max_num_seqs=2, block_size=4, num_gpu_blocks=24, async_scheduling=False)
    with pytest.raises(UsageError, match=said):
        serve(requests_of(np.zeros(6), np.full(6, 40), np.full(6, 20)), engine, CONSTANT, hooks=hooks)


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="--admit: column 5: `cap:0`"):
        serve(stream(), Engine(), CONSTANT, admit="cap:0")
    with pytest.raises(UsageError, match="slack needs a limit"):
        serve(stream(), Engine(), CONSTANT, admit="slack")
    with pytest.raises(UsageError, match="a draft proposes tokens for one branch"):
        serve(requests_of([0], [4], [4], branches=[2]), Engine(num_speculative_tokens=2), CONSTANT)


def test_tokens_of_branches_side_by_side_count_from_pass_to_pass():
    """Four branches of two tokens after the first: a pass of 1,000 ns each."""
    requests = requests_of([0, 0], [10, 10], [9, 5], branches=[4, 1])
    for admit in ("off", "eager"):
        found = serve(requests, Engine(async_scheduling=False), CONSTANT, admit=admit)
        assert request_times(found)["tpot_s"].tolist() == [1e-6, 1e-6]
    assert found.column("FINISH")[0] < 9000


@kernel(allocates=False)
def _drawn(clocks, n):
    return draw(clocks[0], n)


def test_random_numbers_are_those_of_park_and_miller():
    """The ten thousandth after 1 is known: 399,268,537 (C++ has it for `minstd_rand`)."""
    clocks = np.zeros(1, of.CLOCK)
    clock = TableRows(clocks)[0]
    clock.random = 1
    for _ in range(10_000):
        draw.py_func(clock, 10)
    assert clock.random == 399_268_537
    clock.random = 1
    assert [int(_drawn(clocks, 10)) for _ in range(3)] == [48271 % 10, 182605794 % 10, 1291394886 % 10]

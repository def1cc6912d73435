"""Replicas of several stages, and the times between tokens: worked by hand."""

import pytest

import etude
from etude.base.errors import UsageError
from etude.machine import open_system
from etude.make.generate.model import open_model
from etude.world.serve import Engine, serve
from etude.world.serve.deployment import deployed, replica_plan
from etude.world.serve.network import stage_shares
from etude.world.serve.requests import requests_of
from etude.world.serve.results import summary
from etude.world.serve.steps import step_cost

CONSTANT = step_cost(tokens=[1], layers_ns=[1000.0])
BY_TOKENS = step_cost(tokens=[0, 1000], layers_ns=[100.0, 10100.0])  # 100 + 10 a token
AT_ONCE = Engine(async_scheduling=False)


def times(found) -> tuple[list[int], list[int]]:
    return found.column("FIRST").tolist(), found.column("FINISH").tolist()


def test_two_groups_follow_one_another_through_two_stages():
    """a is on the first stage 0..500 and on the second 500..1000, b half a pass later; then neither waits."""
    requests = requests_of([0, 0], [1, 1], [2, 2])
    found = serve(requests, AT_ONCE, CONSTANT, replicas=2, router="turn", stages=(0.5, 0.5))
    assert times(found) == ([1000, 1500], [2000, 2500])


def test_one_group_alone_takes_as_long_as_without_stages():
    requests = requests_of([0], [1], [3])
    found = serve(requests, AT_ONCE, CONSTANT, replicas=4, router="turn", stages=(0.25,) * 4)
    assert times(found) == ([1000], [3000])


def test_a_short_pass_waits_behind_a_long_one_on_every_stage():
    """a: 90 tokens, 1000; b: 10 tokens, 200. The stages have a quarter and the rest. a is on the first 0..250 and on
    the second 250..1000; b is on the first 250..300, waits for the second until 1000, and ends at 1150. Then a's token
    (110: 27 and 82) is on the first 1000..1027, on the second 1150..1232; b's is on the first 1150..1177, the second
    1232..1314."""
    requests = requests_of([0, 0], [90, 10], [2, 2])
    found = serve(requests, AT_ONCE, BY_TOKENS, replicas=2, router="turn", stages=(0.25, 0.75))
    assert times(found) == ([1000, 1150], [1232, 1314])


def test_logits_are_on_the_last_stage_alone():
    """1000 of layers and 400 of logits. The stages take 500 and 900: a's tokens are on the last one 500..1400 and
    2300..3200, b's wait for it, 1400..2300 and 3200..4100."""
    cost = step_cost(tokens=[1], layers_ns=[1000.0], head=((1.0,), (400.0,)))
    requests = requests_of([0, 0], [1, 1], [2, 2])
    found = serve(requests, AT_ONCE, cost, replicas=2, router="turn", stages=(0.5, 0.5))
    assert times(found) == ([1400, 2300], [3200, 4100])


def test_layers_that_are_left_over_are_on_the_stages_before_the_last():
    model = open_model("llama3-8b")  # 32 layers
    assert stage_shares(model, 3) == (11 / 32, 11 / 32, 10 / 32)
    assert stage_shares(model, 5) == (6 / 32, 6 / 32, 7 / 32, 7 / 32, 6 / 32)
    with pytest.raises(UsageError, match="33 stages of 32 layers"):
        stage_shares(model, 33)


def test_times_between_tokens_are_those_of_every_token():
    """b's prompt of 50 shares the pass of a's third token: 100 + 10 * 51. a's tokens: 110, 220, 830."""
    requests = requests_of([0, 150], [1, 50], [3, 1])
    one = summary(serve(requests, AT_ONCE, BY_TOKENS))
    assert one["itl_s"]["mean"] == pytest.approx(360e-9)
    assert one["itl_s"]["p50"] == pytest.approx(110e-9, rel=0.0026)
    assert one["itl_s"]["p99"] == pytest.approx(610e-9, rel=0.0026)
    assert one["tpot_s"]["p99"] == pytest.approx(360e-9)  # the mean of a request hides the late token


def test_answers_of_one_token_have_no_time_between_tokens():
    assert summary(serve(requests_of([0], [5], [1]), AT_ONCE, CONSTANT))["itl_s"] is None


@pytest.mark.parametrize(
    ("more", "name"),
    [({"cache": "prefix"}, "--cache"), ({"disaggregate": "1:1"}, "--disaggregate"), ({"max_loras": 2}, "--max-loras"),
     ({"scale": "queue:2..4,most=2"}, "--scale")],
)  # fmt: skip
def test_what_several_stages_do_not_have_is_refused(more: dict, name: str):
    with pytest.raises(UsageError, match=f"--pp 2 cannot be combined with {name}"):
        etude.serve("gpt2", system="dgx-h100", rate="4", count=4, pp=2, **more)


def test_a_stage_has_its_part_of_the_weights_and_of_the_memory():
    """32 layers in 3 stages: the largest has 11. A group of the 3 has a third of what is left there, whose blocks are
    11/32 as large."""
    model = open_model("llama3-8b")

    def opened(pp: int):
        return deployed(model, replica_plan(model, 1), open_system("dgx-h100"), AT_ONCE, pp=pp)

    whole, third = opened(1), opened(3)
    assert third.weights_bytes == pytest.approx(whole.weights_bytes * 11 / 32)
    more = (whole.weights_bytes - third.weights_bytes) / (16 * whole.token_bytes)  # blocks of all layers
    assert third.blocks == pytest.approx((whole.blocks + more) * 32 / 33, abs=2)

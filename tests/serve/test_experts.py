"""Experts that lie with the host: streamed layer by layer, or computed there."""

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.cost.tiers import streamed_ns
from etude.machine import open_system
from etude.make.generate.model import open_model
from etude.world.serve.catalogue import PARTS, TOKENS
from etude.world.serve.deployment import replica_plan
from etude.world.serve.offload.experts import MOST, _Ways, expert_rules, far_experts, tables_of
from etude.world.serve.pass_time import times_ns
from etude.world.serve.stacks import ServingStack
from etude.world.serve.steps import PassContent, step_cost


def ways(*, device_ns: float = 0.0, load: float = 0.0, host_ns: float = 0.0, moe: int = 4, first: bool = False,
         batches: int = 1, layers: int = 6) -> _Ways:  # fmt: skip
    """A pass of any tokens is `device_ns` long on the device, half of it experts, and `host_ns` with the host."""
    flat = np.ones(len(TOKENS))
    return _Ways(device_ns / 2 * flat, device_ns / 2 * flat, host_ns * flat, load, moe, layers, first, batches)


def pass_of(curves: np.ndarray, tokens: int) -> float:
    cost = step_cost(tokens=[tokens, tokens + 1], layers_ns=curves[0], beside=curves[1:])
    return float(times_ns(cost, [PassContent(tokens, tokens, 0, 0, 0, 0)])[0])


@pytest.mark.parametrize("load", [10.0, 60.0, 400.0])
@pytest.mark.parametrize(("moe", "first"), [(4, False), (6, True)])
def test_a_streamed_pass_is_its_layers_one_after_another(load: float, moe: int, first: bool) -> None:
    """Each layer 100 ns; the layers without experts come first; two buffers."""
    at = np.array([64.0, 65.0])
    found = pass_of(ways(device_ns=600, load=load, moe=moe, first=first).streamed(at), 64)
    loads = np.array([0.0] * (6 - moe) + [load] * moe)
    assert found == pytest.approx(streamed_ns(np.full(6, 100.0), loads), abs=1)


def test_the_host_computes_or_takes_turns() -> None:
    at = np.array([8.0, 9.0])
    assert pass_of(ways(device_ns=200, host_ns=300).hosted(at), 8) == 400
    # halves of 100 and 300 ns each, two of each: the host is never idle, once the first half is past its first layer
    found = pass_of(ways(device_ns=200, host_ns=150, batches=2).hosted(at), 8)
    assert found == 250  # 100 + 150 as they are: two halves would take 300
    linear = np.array(TOKENS, np.float64)
    halves = _Ways(10 * linear, 0 * linear, 30 * linear, 1.0, 4, 6, False, 2).hosted(at)
    # of 8 tokens: 80 on the device and 240 with the host, of which the first half's first layer comes before
    assert pass_of(halves, 8) == pytest.approx(240 + 80 / 12, abs=1)
    assert pass_of(halves, 8) < 80 + 240


def test_a_pass_takes_the_shorter_way() -> None:
    linear = np.array(TOKENS, np.float64)
    both = _Ways(0 * linear, 0 * linear, 10 * linear, 100.0, 4, 4, False, 1)  # 400 ns of loads; 10 ns a token
    assert both.crossing() == 40
    assert _Ways(0 * linear, 20 * linear, 10 * linear, 1.0, 4, 4, False, 1).crossing() == MOST


def test_the_bytes_of_a_real_model_and_what_the_device_holds() -> None:
    """Two layers of DeepSeek-V2-Lite, one of 64 experts of three matrices of 2,048 x 1,408."""
    model, system = open_model("deepseek-v2-lite").replace(layers=2), open_system("rtx5090")
    plan = replica_plan(model, 1)
    rules = expert_rules("experts path=stream host=xeon-8480 bits=4")
    tables = tables_of(model, plan, system, rules, kv_dtype="")
    far = far_experts(model, plan, system, rules, tables, ServingStack())
    numbers = 64 * 3 * 2048 * 1408
    assert far.record["host_bytes"] == numbers // 2
    assert far.record["token_bytes"] == numbers // 2 * 6 // 64
    assert far.record["load_s"] == pytest.approx(5500e-9 + numbers / 2 / 55.4e9)
    assert far.weights_bytes == float(tables.weights_bytes[0]) - numbers * 2 + numbers / 2


def test_two_ranks_hold_and_load_half_each() -> None:
    """The same two layers on two ranks: half of the experts' 16-bit weights leave each, half of a 4-bit layer comes."""
    model, system = open_model("deepseek-v2-lite").replace(layers=2), open_system("dgx-h100")
    plan = replica_plan(model, 2)
    rules = expert_rules("experts path=stream host=xeon-8480 bits=4")
    tables = tables_of(model, plan, system, rules, kv_dtype="")
    far = far_experts(model, plan, system, rules, tables, ServingStack())
    numbers = 64 * 3 * 2048 * 1408
    assert far.weights_bytes == float(tables.weights_bytes[0]) - numbers * 2 / 2 + numbers / 2 / 2
    host = next(tier for tier in system.tiers if tier.name == "host")
    assert far.record["load_s"] == pytest.approx(host.latency_ns / 1e9 + numbers / 2 / 2 / host.read_bytes_per_s)


def hosted(layers: int, *, bits: str = "", tp: int = 1, streams: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """DeepSeek-V2-Lite of so many layers, all but the first with experts, which the host computes: times of passes in
    us at TOKENS, and those of the same passes on a device that computes experts in no time."""
    model, system = open_model("deepseek-v2-lite").replace(layers=layers), open_system("rtx5090")
    plan = replica_plan(model, tp)
    rules = expert_rules(f"experts path=host host=xeon-8480{bits}")
    tables = tables_of(model, plan, system, rules, kv_dtype="")
    far = far_experts(model, plan, system, rules, tables, ServingStack(), streams=streams)
    own = sum(tables.layers_ns[PARTS.index(name)] for name in ("products", "dense", "narrow", "rest", "network"))
    return far.curves["layers_ns"] / 1e3, own / 1e3


def test_the_host_reads_the_experts_that_are_chosen_in_every_layer() -> None:
    """16,384 tokens have six experts of 3 x 2,048 x 1,408 numbers each: 1.7 TFLOP, of which the socket does 114.7 a
    second at most. Tokens go to the host and back: 2 x 16,384 x 2,048 x 2 bytes at 55.4 GB/s. One token reads six of
    64 experts, from a memory of 307.2 GB/s."""
    two, own = hosted(2)
    beyond = two - own
    flops = 2 * 16_384 * 6 * 3 * 2048 * 1408
    least_us = flops / 114.7e12 * 1e6 + 2 * 16_384 * 2048 * 2 / 55.4e9 * 1e6
    assert least_us < beyond[-1] < 2.5 * least_us
    read_us = 6 * 3 * 2048 * 1408 * 2 / 307.2e9 * 1e6
    assert read_us < beyond[0] < 2.5 * read_us
    three, its_own = hosted(3)
    assert three - its_own == pytest.approx(2 * beyond, rel=1e-6)  # two layers with experts instead of one


def test_fewer_bits_are_read_sooner_and_streams_take_their_part_of_the_memory() -> None:
    whole, own = hosted(2)
    packed, own_packed = hosted(2, bits=" bits=4")
    sent_us = 2 * (5.5 + 2048 * 2 / 55.4e3)
    for halved, by in ((packed - own_packed, 1 / 4), (hosted(2, streams=1)[0] - own, 307.2 / (307.2 - 55.4))):
        assert halved[0] - sent_us == pytest.approx((whole[0] - own[0] - sent_us) * by, rel=0.05)


@pytest.mark.parametrize(
    "words",
    ["experts", "experts path=disk host=xeon-8480", "experts path=auto", "experts path=auto host=xeon-8480 bits=0.5",
     "experts path=auto host=xeon-8480 batches=3", "experts path=auto host=xeon-8480 rooms=1"],
)  # fmt: skip
def test_words_that_say_nothing(words: str) -> None:
    with pytest.raises(UsageError):
        expert_rules(words)


def test_a_model_without_experts_and_a_host_too_small() -> None:
    model, system = open_model("llama3-8b"), open_system("rtx5090")
    rules = expert_rules("experts path=auto host=xeon-8480")
    with pytest.raises(UsageError, match="no experts"):
        far_experts(model, replica_plan(model, 1), system, rules, None, ServingStack())  # type: ignore[arg-type]
    big = open_model("deepseek-v3")
    with pytest.raises(UsageError, match="do not fit in"):
        far_experts(big, replica_plan(big, 1), system, rules, None, ServingStack())  # type: ignore[arg-type]

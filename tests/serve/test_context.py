"""Replicas whose ranks have parts of each sequence (`--cp`), against arithmetic by hand."""

import numpy as np
import pytest

import etude
from etude.base.errors import UsageError
from etude.machine import open_system
from etude.make.generate.model import open_model
from etude.world.serve.context import in_context, in_parts
from etude.world.serve.deployment import deployed, replica_plan
from etude.world.serve.engine import Engine
from etude.world.serve.pass_time import times_ns
from etude.world.serve.steps import PassContent, StepCost, step_cost


def cost() -> StepCost:
    """10 ns for a token in the layers; 2 ns for a token of a prompt and each 100 before it; 1 ns for a key of a token
    out."""
    chunk, past, decode, keys = (0.0, 1_000.0), (0.0, 1_000.0), (0.0, 10.0), (1.0, 1_001.0)
    prompts = np.array([[0.0, 0.0], [2_000.0, 20_000.0]])
    tokens = np.array([[0.0, 0.0], [10.0, 10_010.0]])
    grid = prompts[:, :, None, None] + tokens[None, None, :, :]
    return step_cost(tokens=(0, 1_000), layers_ns=(0, 10_000), attention=(chunk, past, decode, keys, grid))


def took(found: StepCost, prompt: int, past: int, decode: int, keys: int) -> float:
    pairs = prompt * past + prompt * (prompt + 1) / 2
    shape = PassContent(prompt, pairs, decode, decode * keys, decode, keys)
    return float(times_ns(found, [shape])[0])


def test_a_prompt_is_in_parts_and_tokens_out_are_on_every_rank() -> None:
    alone = in_parts(cost(), 2)
    assert took(alone, 1_000, 1_000, 0, 0) == 500 * 10 + 20_000 / 2
    assert took(alone, 0, 0, 10, 1_001) == pytest.approx(10 * 10 + 10 * 501, abs=10)
    assert took(in_parts(cost(), 1), 1_000, 1_000, 0, 0) == took(cost(), 1_000, 1_000, 0, 0) == 10_000 + 20_000


def test_keys_pass_by_while_a_rank_attends_and_what_is_found_is_summed() -> None:
    model, machine = open_model("gpt2"), open_system("dgx-h100")
    level = machine.levels[0]
    rate = level.bandwidth_bytes_per_s / 1e9
    found = in_context(cost(), model, machine, 1, 2, 0.0)
    sent = model.layers * level.latency_ns
    assert took(found, 1_000, 1_000, 0, 0) == pytest.approx(5_000 + 5_000 + max(5_000, sent), abs=1)
    heavy = in_context(cost(), model, machine, 1, 2, 1e6)
    slow = sent + 1e6 * (1_000 + 1_000) / 2 / rate
    assert took(heavy, 1_000, 1_000, 0, 0) == pytest.approx(5_000 + 5_000 + slow, rel=1e-6)
    more = took(found, 0, 0, 10, 1_001) - took(in_parts(cost(), 2), 0, 0, 10, 1_001)
    sums_ns = 12 * (
        5_000 + 10 * 768 * 2 / (rate * level.efficiency)
    )  # each of 12 layers, read from the other rank at once
    assert more == pytest.approx(sums_ns, abs=1)


def test_twice_the_ranks_hold_twice_the_keys_and_draw_power() -> None:
    model, machine = open_model("llama3-8b"), open_system("dgx-h100")
    one, two = (deployed(model, replica_plan(model, 2), machine, Engine(), cp=cp) for cp in (1, 2))
    assert two.blocks in (2 * one.blocks, 2 * one.blocks + 1)
    assert two.energy.ranks == 2 * one.energy.ranks and two.token_bytes == one.token_bytes
    prompt = PassContent(8192, 8192 * 8193 / 2, 0, 0, 1, 0)
    assert 0.5 < float(times_ns(two.cost, [prompt])[0]) / float(times_ns(one.cost, [prompt])[0]) < 0.65


def test_a_run_has_the_ranks_of_its_parts_and_no_range() -> None:
    given = {"system": "dgx-h100", "rate": "1", "count": 6, "prompt": "4000", "output": "8", "tp": 2}
    one, two = (etude.serve("llama3-8b", cp=cp, **given) for cp in (1, 2))
    assert two.summary()["ttft_s"]["mean"] < one.summary()["ttft_s"]["mean"]
    assert two.summary()["energy_j"] > one.summary()["energy_j"]


@pytest.mark.parametrize("more", [{"pp": 2}, {"ep": 2}, {"cache": "prefix"}])
def test_what_parts_do_not_have_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="cannot be combined with"):
        etude.serve("mixtral-8x7b", system="dgx-h100", rate="1", count=2, tp=2, cp=2, **more)

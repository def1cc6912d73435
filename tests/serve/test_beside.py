"""Adapters, images, shares of tenants, replicas that take over or share experts, results of a client: by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import FormatError, UsageError
from etude.machine import open_system
from etude.make.generate.model import open_model
from etude.world.serve import Engine, serve
from etude.world.serve import state as of
from etude.world.serve.adapters import LoraCost
from etude.world.serve.beside import lora_cost, tower_cost, weighed, with_images
from etude.world.serve.deployment import shared_plan
from etude.world.serve.measured import bench_result, beside_bench
from etude.world.serve.pools import deployed_pools
from etude.world.serve.pools.groups import Pool
from etude.world.serve.request_files import read_requests
from etude.world.serve.requests import Requests, requests_of
from etude.world.serve.serving import Group
from etude.world.serve.stacks import ServingStack
from etude.world.serve.steps import step_cost
from etude.world.serve.wire import wire_of

COST = step_cost(tokens=[1], layers_ns=[1000.0])
LORA = LoraCost(pass_ns=10.0, adapter_ns=20.0, token_ns=1.0, load_ns=300)


def engine(slots: int = 0, **more) -> Engine:
    return Engine(async_scheduling=False, max_loras=slots, **more)


def alike(count: int, *, output: int = 1, **more) -> Requests:
    return requests_of([0] * count, [4] * count, [output] * count, **more)


# -- adapters ----------------------------------------------------------------------------------------------------------


def test_adapters_of_a_pass_by_hand():
    # Two loads of 300; 10 for the pass, 20 for each of two, 1 for each of 12 tokens. The last has none.
    found = serve(alike(3, adapter=[0, 1, -1]), engine(2), COST, lora=LORA)
    assert found.column("FINISH").tolist() == [1000 + 600 + 10 + 40 + 12] * 3
    assert found.count("LOADED").tolist() == [2] and found.count("ADAPTERS").tolist() == [0]


def test_who_finds_no_slot_lets_others_go_first():
    # One slot: the second waits for the first, the third shares its adapter, the fourth has none.
    found = serve(alike(4, adapter=[0, 1, 0, -1]), engine(1), COST, lora=LORA)
    first = 1000 + 300 + 10 + 20 + 12
    assert found.column("FINISH").tolist() == [first, first + 1000 + 300 + 10 + 20 + 4, first, first]


def test_the_slot_that_was_left_first_is_taken():
    arrival = [0, 10_000, 20_000, 30_000, 40_000]
    requests = requests_of(arrival, [4] * 5, [1] * 5, adapter=[0, 1, 0, 2, 0])
    found = serve(requests, engine(2), COST, lora=LORA)
    # 0 and 1 are loaded, 0 is there, 2 takes the slot of 1, 0 is there still.
    late = found.column("FINISH") - found.column("ARRIVAL")
    assert late.tolist() == [1334, 1334, 1034, 1334, 1034] and found.count("LOADED").tolist() == [3]


@pytest.mark.parametrize("more", [{}, {"num_gpu_blocks": 40, "block_size": 4}, {"chunked": False}])
def test_no_adapter_is_lost(more):
    random = np.random.default_rng(2)
    requests = requests_of(
        np.cumsum(random.integers(0, 900, 80)), random.integers(1, 60, 80), random.integers(1, 30, 80),
        adapter=random.integers(-1, 6, 80),
    )  # fmt: skip
    found = serve(requests, engine(3, **more), COST, replicas=2, router="least", lora=LORA)
    assert not found.count("ADAPTERS").any() and (found.count("RESIDENT") <= 3).all()
    assert (found.state.adapter[:, :, 0] <= 0).all() and not found.count("PENDING").any()
    plain = serve(requests, engine(6, **more), COST, replicas=2, router="least")
    assert int(found.count("MADE").sum()) == int(requests.output.sum()) == int(plain.count("MADE").sum())


def test_adapters_where_prompts_and_answers_are_apart():
    groups = [Group(COST, 1, of.PREFILL), Group(COST, 1, of.DECODE)]
    wire = wire_of(100, 1e9, choose="best")
    # 4 tokens, 400 bytes. Loaded where the prompt is read, and again where it is decoded, while the bytes come.
    found = serve(alike(1, output=2, adapter=[0]), engine(1), groups, lora=LORA, wire=wire)
    first = 1000 + 300 + 10 + 20 + 4
    assert found.column("FIRST").tolist() == [first] and found.column("READY").tolist() == [first + 400]
    assert found.column("FINISH").tolist() == [first + 400 + 1000 + 300 + 10 + 20 + 1]
    # One slot: the second is not sent before the first is answered.
    requests = requests_of([0, 5000], [4, 4], [9, 2], adapter=[0, 1])
    found = serve(requests, engine(1), groups, lora=LORA, wire=wire)
    assert found.column("READY")[1] == found.column("FINISH")[0] + 400
    assert not found.count("ADAPTERS").any() and found.count("LOADED").tolist() == [2, 2]


def test_adapters_without_slots_are_refused():
    with pytest.raises(UsageError, match="request 1"):
        serve(alike(3, adapter=[-1, 0, 1]), engine(), COST)


def test_weights_of_an_adapter():
    # llama3-8b, rank 16: q 4096 + 4096, k and v 4096 + 1024, o 4096 + 4096, three of 4096 + 14336, in 32 layers.
    found = lora_cost(open_model("llama3-8b"), 1, open_system("dgx-h100"), ServingStack(kernel_ns=1000.0), 16, 4)
    wide = 2 * 8192 + 2 * 5120 + 3 * 18432
    assert found.slot_bytes == 2 * 16 * wide * 32 == 83_886_080
    more = lora_cost(open_model("llama3-8b"), 2, open_system("dgx-h100"), ServingStack(kernel_ns=1000.0), 16, 4)
    assert found.slot_bytes / 2 < more.slot_bytes < found.slot_bytes and more.pass_ns == found.pass_ns
    with pytest.raises(UsageError, match="adapters need a decoder"):
        lora_cost(open_model("resnet-50"), 1, open_system("dgx-h100"), ServingStack(), 16, 4)


# -- images ------------------------------------------------------------------------------------------------------------


def test_images_are_waited_for_once():
    requests = requests_of([0, 5000], [4, 4], [2, 2], images=[3, 0])
    found = serve(requests, engine(), COST, image_ns=100)
    assert found.column("FINISH").tolist() == [2300, 7000]
    with pytest.raises(UsageError, match="request 0"):
        serve(requests, engine(), COST)


def test_a_tower_makes_tokens():
    found = tower_cost(open_model("qwen3-vl-2b"), 1, open_system("dgx-h100"))
    assert found.tokens == 1024 and 1e5 < found.image_ns < 1e9
    assert with_images(alike(2, images=[0, 2]), found).prompt.tolist() == [4, 4 + 2048]
    with pytest.raises(UsageError, match="no tower"):
        tower_cost(open_model("llama3-8b"), 1, open_system("dgx-h100"))


# -- tenants -----------------------------------------------------------------------------------------------------------


def test_shares_of_tenants_that_always_have_work(tmp_path: Path):
    path = tmp_path / "r.csv"
    rows = [f"0,4,1,{'chat' if k % 2 else 'batch'}" for k in range(120)]
    path.write_text("\n".join(["arrival,prompt,output,tenant", *rows]))
    requests = weighed(read_requests(path), "chat=3")
    assert requests.tenant_names == ("batch", "chat") and requests.weights == (1000, 3000)
    found = serve(requests, engine(max_num_seqs=1, scheduling_policy="fair"), COST)
    for done in (8, 20, 40, 64):  # within one request of three to one
        first = np.argsort(found.column("FINISH"))[:done]
        assert abs(int(requests.tenant[first].sum()) - 0.75 * done) <= 1
    for wrong in ("chat", "chat=0", "chat=x", "none=2"):
        with pytest.raises(UsageError, match="--tenant-weights"):
            weighed(requests, wrong)


# -- replicas that take over -------------------------------------------------------------------------------------------


def test_who_has_no_work_takes_over():
    # All of one session: the first replica takes one at a time. The other takes over what it cannot take.
    requests = alike(6, session=[0] * 6)
    alone = serve(requests, engine(max_num_seqs=1), COST, replicas=2, router="session")
    found = serve(requests, engine(max_num_seqs=1), COST, replicas=2, router="session+steal")
    assert sorted(alone.column("FINISH").tolist()) == [1000, 2000, 3000, 4000, 5000, 6000]
    # The first pass is under way when the second replica looks: at 0.
    assert sorted(found.column("FINISH").tolist()) == [1000, 1000, 2000, 2000, 3000, 3000]
    assert found.count("STOLEN").sum() == 3 and not found.count("PENDING").any()
    one = serve(requests, engine(max_num_seqs=1), COST, router="session+steal")
    assert (one.column("FINISH") == alone.column("FINISH")).all()


# -- replicas that share experts ---------------------------------------------------------------------------------------


def test_steps_without_work_and_choices_ahead_at_a_barrier():
    # Two replicas start together; the second has nothing after its first step.
    requests = requests_of([0, 0], [4, 4], [3, 1])
    found = serve(requests, engine(barrier=True), COST, replicas=2)
    assert found.count("DUMMY").tolist() == [0, 2] and found.column("FINISH").tolist() == [3000, 1000]
    ahead = serve(requests, Engine(barrier=True), COST, replicas=2)
    assert ahead.column("FINISH").tolist() == [3000, 1000]
    # One that comes while a step runs: the next is chosen already, and it is in the one after.
    late = requests_of([0, 100], [4, 4], [4, 1])
    first = [serve(late, e, COST).column("FIRST")[1] for e in (engine(barrier=True), Engine(barrier=True))]
    assert first == [2000, 3000]


def test_experts_over_all_replicas():
    plan = shared_plan(open_model("qwen3-30b-a3b"), 2, 4)
    assert (plan.gpus, plan.tp, plan.ep) == (8, 2, 8)
    with pytest.raises(UsageError, match="128 experts cannot be spread over 6 ranks"):
        shared_plan(open_model("qwen3-30b-a3b"), 1, 6)
    with pytest.raises(UsageError, match="has no experts"):
        deployed_pools(open_model("llama3-8b"), [Pool(count=4, ep=4)], engine(), system="dgx-h100")


# -- what a client measured --------------------------------------------------------------------------------------------


def test_a_result_of_the_client_beside_a_prediction(tmp_path: Path):
    path = tmp_path / "result.json"
    record = {
        "request_throughput": 2.0, "start_times": [7.0, 7.5], "input_lens": [4, 4], "output_lens": [3, 1],
        "ttfts": [0.2, 0.4], "itls": [[0.1, 0.3], []], "errors": ["", ""],
    }  # fmt: skip
    path.write_text(json.dumps(record))
    measured = bench_result(path)
    assert measured == pytest.approx({"ttft_s": 0.3, "latency_s": 0.5, "tpot_s": 0.2})
    requests = read_requests(path)
    assert requests.arrival_ns.tolist() == [0, 500_000_000] and requests.output.tolist() == [3, 1]
    second = step_cost(tokens=[1], layers_ns=[0.15e9])
    found = beside_bench(measured, serve(requests, engine(), second))
    assert found["predicted"] == pytest.approx({"ttft_s": 0.15, "tpot_s": 0.15, "latency_s": 0.3})
    assert found["error"]["ttft_s"] == pytest.approx(-0.5)
    path.write_text(json.dumps(record | {"mean_ttft_ms": 310.0}))
    assert bench_result(path)["ttft_s"] == pytest.approx(0.31)
    for bad in ("{", "{}", json.dumps(record | {"itls": [[1]]}), json.dumps(record | {"ttfts": ["x", 1]})):
        path.write_text(bad)
        with pytest.raises(FormatError):
            bench_result(path)

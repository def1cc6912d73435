"""Costs of passes: interpolation, padding, floors; tables of the catalogue against the node level."""

import numpy as np
import pyarrow as pa
import pytest

from etude.base.errors import UsageError
from etude.cost.opdb import add_rows
from etude.cost.opdb.database import SCHEMA
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import Model, open_model
from etude.make.generate.passes import PassShape, pass_job
from etude.run.simulate import simulate
from etude.steps import grown
from etude.world.serve.catalogue import PARTS, TOKENS, fullest, pass_tables
from etude.world.serve.deployment import deployed
from etude.world.serve.engine import Engine
from etude.world.serve.fit import descend
from etude.world.serve.network import all_reduce_ns
from etude.world.serve.pass_time import times_ns
from etude.world.serve.profiles import graphs_of, profile_cost, profile_tables
from etude.world.serve.stacks import ServingStack, serving_stack
from etude.world.serve.steps import PassContent, step_cost

AXES = ((0, 10), (0, 100), (0, 4), (0, 50))


def one(cost, **given) -> float:
    shape = {"prompt_tokens": 0, "pairs": 0.0, "decode": 0, "decode_keys": 0, "outputs": 0, "most_keys": 0} | given
    return float(times_ns(cost, [PassContent(**shape)])[0])


def test_layers_and_logits_are_linear_between_points_and_beyond():
    cost = step_cost(tokens=[1, 11, 21], layers_ns=[100, 200, 400], head=([1, 3], [10, 30]))
    assert one(cost, prompt_tokens=6) == 150
    assert one(cost, prompt_tokens=31) == 600
    assert one(cost, decode=1, outputs=2) == 100 + 20


def test_attention_is_linear_in_all_four_axes():
    a, b, c, d = (np.array(axis, float) for axis in AXES)
    grid = a[:, None, None, None] * (1 + b[None, :, None, None]) + c[None, None, :, None] * d[None, None, None, :]
    cost = step_cost(tokens=[1], layers_ns=[0], attention=(*AXES, grid))
    chunk, past = 4, 25
    pairs = chunk * past + chunk * (chunk + 1) / 2
    assert one(cost, prompt_tokens=chunk, pairs=pairs, decode=2, decode_keys=2 * 30) == 4 * 26 + 2 * 30


def test_several_short_prompts_take_no_longer_than_one_long_one():
    a, b, c, d = (np.array(axis, float) for axis in ((0, 64, 1024), (0, 100), (0, 4), (0, 50)))
    grid = np.broadcast_to((a**1.5)[:, None, None, None], (3, 2, 2, 2))
    cost = step_cost(tokens=[1], layers_ns=[0], attention=(a, b, c, d, grid))
    whole = one(cost, prompt_tokens=1024, pairs=1024 * 1025 / 2)
    parts = one(cost, prompt_tokens=1024, pairs=16 * 64 * 65 / 2)
    assert parts == pytest.approx(16 * 64**1.5, abs=2) and parts < whole


def test_passes_are_padded_to_graphs_and_the_host_is_a_floor_without_one():
    cost = step_cost(
        tokens=[0, 100], layers_ns=[0, 100], decode_graphs=[1, 8, 16], floor_ns=(0, 70, 90), pass_ns=(1, 2)
    )
    assert one(cost, decode=9, decode_keys=9) == 16 + 1
    assert one(cost, decode=17, decode_keys=17) == 70 + 2
    assert one(cost, prompt_tokens=80) == 80 + 2
    assert one(cost, prompt_tokens=3, decode=3, decode_keys=3) == 90 + 2


def test_the_longest_sequence_is_a_chain_unless_few_share_the_device():
    cost = step_cost(tokens=[1], layers_ns=[0], chain_ns=(2.0, 4.0))
    assert one(cost, decode=8, decode_keys=800, most_keys=500) == 1000
    assert one(cost, decode=1, decode_keys=500, most_keys=500) == 250


def test_bad_tables_are_refused():
    with pytest.raises(UsageError, match="are not ascending"):
        step_cost(tokens=[2, 1], layers_ns=[1, 1])
    with pytest.raises(UsageError, match="negative or not a number"):
        step_cost(tokens=[1, 2], layers_ns=[1, float("nan")])
    with pytest.raises(UsageError, match="unknown engine `x`"):
        serving_stack("x", "h100")


def test_passes_cost_what_the_node_level_says():
    """Shapes that are not among those of the table, simulated node by node and interpolated."""
    model, plan, system = open_model("qwen3-0.6b"), Plan(gpus=2, tp=2), open_system("dgx-h100")
    shapes = [
        PassShape(chunk=700),
        PassShape(decode=24, keys=700),
        PassShape(chunk=300, past=2000, decode=40, keys=900),
    ]
    run = simulate(pass_job(model, plan, shapes), grown(system, 2), compute="roofline")
    part = run.part(0)
    node_level = [
        part.end_ns[part.trace.step == k].max() - part.start_ns[part.trace.step == k].min() for k in range(len(shapes))
    ]
    cost = pass_tables(model, plan, system, keep=False).step_cost(ServingStack())
    asked = [
        PassContent(s.chunk, s.chunk * s.past + s.chunk * (s.chunk + 1) / 2, s.decode, s.decode * s.keys,
              s.decode + bool(s.chunk), s.keys)
        for s in shapes
    ]  # fmt: skip
    assert times_ns(cost, asked) == pytest.approx(np.array(node_level, float), rel=0.04)


def test_few_tokens_read_few_experts():
    model = open_model("qwen3-30b-a3b").replace(layers=2)
    tables = pass_tables(model, Plan(gpus=1), open_system("dgx-h100"), keep=False)
    experts = tables.layers_ns[PARTS.index("experts")]
    assert experts[0] < 0.15 * experts[10]  # 8 of 128 against all, and what is fixed


def test_what_an_engine_adds_to_the_catalogue():
    """A token is chosen from all words; a product of experts in 8 bits takes some time whatever is in it. A layer of
    this model has two, with gate and input in one."""
    model = open_model("qwen3-30b-a3b").replace(layers=2)
    tables = pass_tables(model, Plan(gpus=1, precision="fp8"), open_system("dgx-h100"), keep=False)

    def beyond(**figures: float) -> float:
        plain = one(tables.step_cost(ServingStack()), decode=8, decode_keys=800, outputs=8)
        return one(tables.step_cost(ServingStack(**figures)), decode=8, decode_keys=800, outputs=8) - plain

    assert beyond(word_ns=0.5) == pytest.approx(0.5 * 8 * 151_936, abs=2)
    assert beyond(group_ns=1000.0) == pytest.approx(1000 * 2 * 2, abs=2)


def test_the_rank_with_the_most_experts_to_read_decides():
    """Of 8 experts a token chooses 2. On 4 ranks with 2 each, one token chooses an expert with 1/4: a rank has none
    with 9/16, at most one with 15/16; no rank has any with (9/16)^4, none more than one with (15/16)^4."""
    model = open_model("mixtral-8x7b")
    found = fullest(model, 4, np.array([1.0, 1e6]))
    assert found[0] == pytest.approx(((1 - (9 / 16) ** 4) + (1 - (15 / 16) ** 4)) / 0.5) and found[1] == 1.0


def test_groups_share_the_experts_of_all_ranks():
    """Two data-parallel groups of one rank: each rank reads half of the experts, for the tokens of both."""
    model, system = open_model("mixtral-8x7b"), open_system("dgx-h100")
    experts, wide = PARTS.index("experts"), PARTS.index("wide_experts")
    alone = pass_tables(model, Plan(gpus=1), system, keep=False).layers_ns
    both = pass_tables(model, Plan(gpus=1), system, groups=2, keep=False).layers_ns
    at, twice = TOKENS.index(256), TOKENS.index(512)  # enough to read all
    assert both[wide, at] == pytest.approx(alone[experts, twice] / 2)
    assert both[experts, at] == 0 and alone[wide, at] == 0
    few = TOKENS.index(2)  # of two groups: as many as a rank has experts
    assert both[wide, few] == 0 and both[experts, few] > 0
    network = PARTS.index("network")
    assert both[network, at] > 0 and alone[network, at] == 0


def test_all_reduces_over_fast_links_take_one_shot_or_two():
    fast = open_system("dgx-h100").levels[0]  # 450 GB/s, of which 0.795
    small, large = all_reduce_ns(fast, 4, [1000.0, 1e7])
    assert small == pytest.approx(5000 + 3 * 1000 / 357.75)
    assert large == pytest.approx(10000 + 1.5 * 1e7 / 357.75)
    assert all_reduce_ns(fast, 1, 1e6) == 0


def test_graphs_reach_to_twice_the_sequences():
    assert max(graphs_of("a/b", 8)) == 16 and max(graphs_of("a/b", 4096)) == 512
    assert max(graphs_of("openai/gpt-oss-120b", 4096)) == 1024


def test_descend_finds_a_minimum():
    found = descend({"a": 1.0, "b": 5.0}, lambda x: (x["a"] - 3) ** 2 + (x["b"] - 2) ** 2)
    assert found["a"] == pytest.approx(3, rel=0.02) and found["b"] == pytest.approx(2, rel=0.02)


def test_a_database_of_operators(tmp_path):
    """Attention measured for 16 sequences of 128 keys and a prompt of 64, at 77 and 55 us, in each of two layers."""
    heads = {"device": "h200", "backend": "torch", "op": "attention_serve", "dtype": "bf16", "heads": 4, "kv_heads": 4,
             "head_size": 16}  # fmt: skip
    rows = [heads | {"batch": 16, "batch_keys": 128, "time_us": 77.0}, heads | {"tokens": 64, "time_us": 55.0}]
    known = {"repeat": 0, "source": "test"}
    table = {name: [(known | row).get(name, 0) for row in rows] for name in SCHEMA.names}
    add_rows(tmp_path / "h.ops", pa.table(table, schema=SCHEMA))
    shape = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 256, "seq": 32, "gated": True, "norm": "rms"}
    model, system = Model.from_dict({"name": "small", **shape}), open_system("dgx-h200")
    cost = profile_cost(tmp_path / "h.ops", model, system, serving_stack("none", "h200"), graphs=())
    of_prompt, of_decode = cost.chunk.tolist().index(64), cost.decode.tolist().index(16)
    keys = cost.keys.tolist().index(128)
    assert cost.grid_ns[0, 0, of_decode, keys] == 154_000 and cost.grid_ns[of_prompt, 0, 0, 0] == 110_000
    assert cost.grid_ns[of_prompt, 0, of_decode, keys] == 264_000 and cost.grid_ns[0, 0, 0, 0] == 0
    assert (np.diff(cost.layers_ns) >= 0).all() and (cost.head_ns >= 0).all()
    with pytest.raises(UsageError, match="several ranks"):
        profile_cost(tmp_path / "h.ops", model, system, serving_stack("none", "h200"), spread=2)


def test_a_profile_whose_chunks_have_places_of_their_own(tmp_path):
    """Attention 2 chunk + past + 3 n keys, measured at other places for one chunk than for another."""
    part = tmp_path / "tp1"
    part.mkdir()
    (part / "dense.csv").write_text("layer,tokens,time_us\nqkv_proj,1,2\nqkv_proj,9,10\nembedding,1,1\nembedding,9,1\n")
    (part / "per_sequence.csv").write_text("layer,sequences,time_us\nlm_head,1,5\nlm_head,3,7\n")
    lines = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    for chunk, pasts in ((0, (0,)), (8, (0, 16, 64)), (16, (0, 32, 64))):
        for past in pasts:
            for n, keys in ((0, 0), (1, 16), (1, 64), (4, 16), (4, 64)):
                if chunk or n:
                    lines.append(f"{chunk},{past},{n},{keys},{2 * chunk + past + 3 * n * keys}")
    (part / "attention.csv").write_text("\n".join(lines))
    model = open_model("qwen3-0.6b").replace(layers=2)
    cost = step_cost(**profile_tables(tmp_path, model, 1))
    assert one(cost, prompt_tokens=5) == pytest.approx(1000 * (2 * 6 + 1) + 2000 * (10 + 0), rel=0.01)
    shape = {"prompt_tokens": 16, "pairs": 16 * 16 + 16 * 17 / 2, "decode": 2, "decode_keys": 64}
    assert one(cost, **shape) - 1000 * (2 * 19 + 1) == pytest.approx(2000 * (32 + 16 + 3 * 64), rel=0.01)


def test_the_host_schedules_beside_the_device_and_before_its_launches_in_one_process():
    """Of 10 sequences that decode, 20 are counted (each is run and comes out). Tokens take 1 ns each, gaps 5."""
    given = {"tokens": [0, 100], "layers_ns": [0, 100], "gaps_ns": 5.0, "floor_ns": (0, 70, 90), "pass_ns": (1, 1)}
    ten = [PassContent(0, 0.0, 10, 10, 10, 1)]
    assert times_ns(step_cost(**given, graphs=[16], schedule_ns=0.5), ten) == 16 + 5 + 1  # the device is slower
    assert times_ns(step_cost(**given, graphs=[16], schedule_ns=2.0), ten) == 2 * 20 + 1
    assert times_ns(step_cost(**given, schedule_ns=2.0), ten) == 70 + 1  # launched, while 40 ns of others go on
    assert times_ns(step_cost(**given, schedule_ns=2.0, one_process=True), ten) == 70 + 40 + 1


def test_a_deployment_has_the_graphs_of_its_limit_of_sequences():
    """vLLM captures sizes up to twice `max_num_seqs`, and no more than 512."""
    tiny, system = open_model("qwen3-0.6b").replace(layers=1), open_system("dgx-h100")
    few, many = (
        deployed(tiny, Plan(gpus=1), system, Engine(max_num_seqs=limit)).cost.padded.tolist() for limit in (8, 256)
    )
    assert few == [1, 1, 2, 4, 4, 8, 8, 8, 8, *[16] * 8]
    assert len(many) == 513 and many[300] == 304

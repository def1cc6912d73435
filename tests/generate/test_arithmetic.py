"""Generated jobs against arithmetic by hand: each axis alone, then random decoders and plans."""

import ast
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest

from etude.machine import open_system
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import Generated, generate
from etude.model.schema import Collective, Kind
from etude.run.simulate.run import simulate
from hand_cases import by_hand, cases, differences

MODEL = Model(name="tiny", layers=8, hidden=64, heads=8, kv_heads=4, ffn=192, vocab=512, seq=64, gated=True)
WHOLE = 10**12
"""A bucket that holds every stage, so that padding is that of stages."""


def made(m: Model = MODEL, **plan: Any) -> Generated:
    return generate(m, Plan.from_dict({"bucket": WHOLE, "seq": m.seq, **plan}))


def bytes_by_type(found: Generated) -> dict[str, int]:
    return dict(found.summary()["comm_bytes_by_type"])


AXES: list[dict[str, Any]] = [
    {},
    {"gpus": 4, "tp": 4},
    {"gpus": 4, "tp": 4, "sp": False},
    {"gpus": 4, "tp": 4, "tp_chunks": 4},
    {"gpus": 4, "tp": 4, "tp_chunks": 4, "sp": False},
    {"gpus": 2, "tp": 2, "recompute": "full"},
    {"gpus": 2, "tp": 2, "sp": False, "recompute": "full"},
    {"gpus": 2, "tp": 2, "recompute": "selective"},
    {"gpus": 4, "cp": 4},
    {"gpus": 4, "cp": 4, "cp_kind": "all_gather"},
    {"gpus": 4, "cp": 4, "cp_kind": "ulysses"},
    {"gpus": 4, "cp": 4, "recompute": "selective"},
    {"gpus": 4, "tp": 4, "tp_chunks": 2, "recompute": "selective:norm,activation"},
    {"recompute": "selective:norm,activation"},
    {"gpus": 4, "pp": 4, "global_batch": 8},
    {"gpus": 4, "pp": 4, "global_batch": 8, "schedule": "interleaved:2"},
    {"gpus": 4, "pp": 4, "global_batch": 8, "schedule": "zb1p"},
    {"gpus": 4, "pp": 4, "global_batch": 8, "schedule": "zbv"},
    {"gpus": 4, "global_batch": 8},
    {"gpus": 4, "zero": 1, "global_batch": 8},
    {"gpus": 4, "zero": 2, "global_batch": 8, "grad_dtype": "bf16"},
]


@pytest.mark.parametrize("axis", AXES, ids=str)
def test_each_axis_alone(axis: dict[str, Any]):
    found = made(**axis)
    assert differences(found, by_hand(MODEL, found.plan)) == []


EACH = 13


@pytest.mark.parametrize("seed", [1000 * n for n in range(8)])
def test_random_decoders_and_plans(seed: int):
    """104 in all, every quantity; thousands: benchmarks/validate_arithmetic.py."""
    for at, found, hand in islice(cases(seed), EACH):
        assert differences(found, hand) == [], f"seed {at}"


def test_sharded_weights_are_gathered_for_each_pass_and_block():
    """ZeRO 3: every block's weights twice a micro-batch, its gradients once; both padded to the ranks."""
    found = made(gpus=4, zero=3, global_batch=8)
    layer = 64 * 8 * (2 * 8 + 2 * 4) + 3 * 64 * 192 + 2 * 64
    blocks = [512 * 64, *[layer] * 8, 64 + 512 * 64]
    padded = sum(-(-b // 4) * 4 for b in blocks)
    expected = Counter(all_gather=2 * 2 * padded * 2 // 4 * 4, reduce_scatter=2 * padded * 4 * 4, all_reduce=4 * 4)
    assert bytes_by_type(found) == dict(expected)


def test_weights_that_stay_are_gathered_once():
    kept = bytes_by_type(made(gpus=4, zero=3, reshard=False))
    freed = bytes_by_type(made(gpus=4, zero=3))
    assert freed["all_gather"] == 2 * kept["all_gather"]


def test_hybrid_shards_reduce_over_replicas_too():
    """HSDP: shards of 2, so each rank scatters whole gradients in its pair and sums its half over the 2 replicas."""
    found = bytes_by_type(made(gpus=4, zero=3, dp_shard=2, clip=False))
    assert found["all_reduce"] * 2 == found["reduce_scatter"]


def test_compute_runs_in_the_order_of_the_program():
    """Every compute node waits for the one before it, by way of communication or at once: nothing slips ahead."""
    for plan in (
        {},
        {"gpus": 2, "tp": 2, "sp": False},
        {"gpus": 2, "zero": 3},
        {"gpus": 2, "pp": 2, "schedule": "zb1p"},
    ):
        for trace in made(global_batch=4, **plan).job.traces:
            rows = np.flatnonzero(trace.kind == int(Kind.COMP))
            last = np.arange(len(trace))  # the latest compute row that each row has to wait for
            for row in range(len(trace)):
                waited = [*trace.data[slice(*trace.data_start[row : row + 2])],
                          *trace.ctrl[slice(*trace.ctrl_start[row : row + 2])]]  # fmt: skip
                before = max((last[w] for w in waited), default=-1)
                last[row] = row if trace.kind[row] == int(Kind.COMP) else before
                if row in rows[1:]:
                    assert before == rows[np.searchsorted(rows, row) - 1]


MIXTURE = MODEL.replace(name="moe", experts=8, top_k=2, expert_ffn=32, shared_ffn=64, dense_layers=2)


@pytest.mark.parametrize(
    "plan", [{}, {"gpus": 4, "ep": 4}, {"gpus": 4, "ep": 2, "tp": 2}, {"gpus": 8, "ep": 4, "etp": 2}]
)
def test_experts(plan: dict[str, Any]):
    """Six layers with 2 of 8 experts for a token and a shared one; exchanged twice forward and twice backward."""
    found = made(MIXTURE, **plan)
    p = found.plan
    tokens, h = p.batch * 64, 64
    attention = h * 8 * (2 * 8 + 2 * 4)
    weights = 8 * attention + 2 * 3 * h * 192 + 6 * (8 * h + 2 * 3 * h * 32 + 3 * h * 64) + h * 512
    assert found.model_flops == 6 * tokens * weights + 12 * p.batch * 8 * 8 * 8 * 64 * 65 // 2
    moved = bytes_by_type(found)
    assert moved.get("all_to_all", 0) == (6 * 4 * tokens * 2 * h * 2 if p.ep > 1 else 0)


def test_skew_moves_work_between_expert_ranks_and_keeps_its_sum():
    even, skewed = (made(MIXTURE, gpus=4, ep=4, moe_skew=s) for s in (1.0, 1.5))
    own = [int(skewed.job.trace(r).flops.clip(0).sum()) for r in range(4)]
    assert own == sorted(own) and own[0] < own[3]
    assert abs(sum(own) - 4 * int(even.job.trace(0).flops.clip(0).sum())) <= 4 * len(even.job.traces[0])


@pytest.mark.parametrize(
    "plan", [{"gpus": 4, "ep": 4}, {"gpus": 8, "ep": 4, "etp": 2}, {"gpus": 4, "ep": 4, "capacity": 1.25}]
)
def test_skew_says_what_each_expert_rank_receives(plan: dict[str, Any]):
    """A rank with load l receives l times what each sends, and sends as much back; so do gradients. Over etp ranks l
    times as much is gathered and scattered. What is over the capacity is not sent at all."""
    job = made(MIXTURE, moe_skew=1.5, **plan).job
    load = [min(x, plan.get("capacity", 2.0)) for x in (0.5, 0.5 + 1 / 3, 0.5 + 2 / 3, 1.5)]
    size, etp = 64 * 2 * 64 * 2, plan.get("etp", 1)
    for rank in range(plan["gpus"]):
        trace, mine = job.trace(rank), load[rank // etp]
        slots = np.array([*trace.group_slots, ""])[trace.group]
        here, away = round(size * sum(load) / 4), round(size * mine)
        pairs = Counter(
            zip(trace.in_bytes[slots == "ep"].tolist(), trace.out_bytes[slots == "ep"].tolist(), strict=True)
        )
        assert pairs == Counter({(here, away): 2 * 6}) + Counter({(away, here): 2 * 6})
        gathers = np.isin(trace.collective, (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)) & (slots == "etp")
        sides = np.stack([trace.in_bytes[gathers], trace.out_bytes[gathers]])
        assert gathers.sum() == (4 * 6 if etp > 1 else 0)
        assert (sides.min(axis=0) == away).all() and (abs(sides.max(axis=0) - etp * size * mine) <= 1).all()


def test_an_uneven_exchange_lasts_as_long_as_the_fullest_rank_receives():
    """Half as much again on the fullest rank is as long as half as much again on all."""
    thin = MIXTURE.replace(expert_ffn=2)
    times = []
    # large enough that bytes and not the shortest time of an exchange count
    for plan in ({"micro_batch": 4096}, {"micro_batch": 4096, "moe_skew": 1.5}, {"micro_batch": 6144}):
        job = made(thin, gpus=4, ep=4, **plan).job
        (start, end), trace = simulate(job, open_system("dgx-h100")).timing.block(3), job.trace(3)
        exchanges = trace.collective == Collective.ALL_TO_ALL
        times.append(int((end - start)[exchanges].sum()))
    assert times[0] < times[1] and times[1] == pytest.approx(times[2], rel=0.02)


def test_memory_of_weights_gradients_and_state():
    """16 bytes and 2 more for each parameter in bf16 with a copy in fp32; ZeRO spreads what it names."""
    n = 8 * (64 * 8 * (2 * 8 + 2 * 4) + 3 * 64 * 192 + 2 * 64) + 64 + 2 * 512 * 64
    for zero, whole in ((0, 2 + 4 + 12), (1, 2 + 4 + 12 / 4)):
        found = made(gpus=4, zero=zero)
        assert found.memory[0].static_bytes == pytest.approx(n * whole, abs=16)
    full = made(gpus=4, zero=3).memory[0]
    largest = max(512 * 64 + 64, 64 * 8 * 24 + 3 * 64 * 192 + 128)
    assert full.weights == 2 * (n // 4) + 2 * 2 * largest
    assert full.gradients == 4 * (n // 4) + 4 * largest
    assert full.optimizer == pytest.approx(12 * n / 4, abs=12 * 16)


def test_memory_of_activations_is_that_of_micro_batches_in_flight():
    """1F1B: stage s of p holds p - s micro-batches; GPipe holds all."""
    one = made(gpus=1).memory[0]
    layers = [made(gpus=4, pp=4, global_batch=8, schedule=s) for s in ("1f1b", "gpipe")]
    each = [m.activation_bytes for m in layers[0].memory]
    assert each[1] * 2 == each[2] * 3
    assert layers[1].memory[1].activation_bytes * 3 == each[1] * 8
    assert one.activation_bytes < sum(each)


def test_a_layer_keeps_34_bytes_less_masks_for_each_element():
    """Of s x b x h: 2 for each norm, 2 into the projections, 6 for queries, keys and values, 2 + 8 + 8 around the
    feed-forward layer; and 4 for each row of each head that attention keeps."""
    m = MODEL.replace(gated=False, ffn=256, kv_heads=8, positions="none")
    found = made(m)
    bare = made(m.replace(layers=7))
    kept = found.memory[0].activation_bytes - bare.memory[0].activation_bytes
    assert kept == 32 * 64 * 64 + 4 * 8 * 64


def test_experts_keep_what_they_are_sent():
    """Of a layer with experts: what the routed tokens bring into its two products and its activation, on the fullest
    rank; a shared expert and the router keep theirs of a rank's own tokens."""
    kept = []
    for layers in (3, 4):
        m = MIXTURE.replace(layers=layers)
        kept.append([made(m, gpus=4, ep=4, moe_skew=s).memory[0].activation_bytes for s in (1.0, 1.5)])
    tokens, h = 64, 64
    routed = 2 * 2 * tokens * (h + 2 * 32 + 32)
    core = 2 * tokens * 8 * (8 + 2 * 4) + 4 * tokens * 8
    attention = core + 3 * 2 * tokens * h + 2 * tokens * 8 * 8  # two norms, into the first product, into the last
    shared = 2 * tokens * (h + 3 * 64)
    assert kept[1][0] - kept[0][0] == attention + 2 * tokens * h + shared + routed
    assert kept[1][1] - kept[0][1] - (kept[1][0] - kept[0][0]) == routed // 2


def test_full_recomputation_keeps_the_input_of_a_layer():
    m = MODEL
    diff = [made(m.replace(layers=n), recompute="full").memory[0].activation_bytes for n in (7, 8)]
    assert diff[1] - diff[0] == 64 * 64 * 2


def rows_of(found: Generated, module: str) -> tuple[Any, np.ndarray]:
    trace = found.job.trace(0)
    codes, words = trace.coded("module")
    return trace, np.array([w.endswith(module) for w in words])[codes]


def test_weights_are_cast_once_a_step_and_when_they_were_gathered():
    products = 8 * (64 * 8 * (2 * 8 + 2 * 4) + 3 * 64 * 192)  # not the head's
    for plan, times in (({"global_batch": 4}, 1), ({"gpus": 2, "zero": 3, "global_batch": 4}, 2 * 2)):
        trace, cast = rows_of(made(precision="fp8", **plan), "quantise")
        assert trace.flops[cast].sum() == products * times
        assert trace.tensor_bytes[cast].sum() == 4 * products * times


def test_sharded_weights_are_whole_for_the_blocks_at_work():
    layer = 64 * 8 * (2 * 8 + 2 * 4) + 3 * 64 * 192 + 2 * 64
    table = 512 * 64
    biggest, total = max(layer, table + 64), 8 * layer + 2 * table + 64
    for plan, whole in (({}, 2 * biggest), ({"prefetch": 0}, biggest), ({"reshard": False}, total)):
        found = made(gpus=4, zero=3, **plan)
        assert found.memory[0].weights == 2 * -(-total // 4) + 2 * whole


@pytest.mark.parametrize("plan", [{"gpus": 4}, {"gpus": 4, "zero": 1}, {"gpus": 4, "tp": 2}])
def test_a_checkpoint_is_written_once(plan: dict[str, Any]):
    found = made(checkpoint=True, data_loading=True, **plan)
    trace, store = rows_of(found, "checkpoint")
    assert store.sum() == 1 and trace.kind[store][0] == int(Kind.MEM_STORE)
    norms = 17 * 64 * (found.plan.tp - 1)  # on every tensor-parallel rank
    assert trace.tensor_bytes[store].sum() * 4 == 14 * (found.params + norms)
    trace, load = rows_of(found, "data")
    assert trace.tensor_bytes[load].tolist() == [16 * 64]


@pytest.mark.parametrize("kind", ["ring", "all_gather", "ulysses"])
def test_context_parallel_ranks_share_the_work_of_a_window(kind: str):
    m = MODEL.replace(window=24)
    whole = made(m).model_flops
    assert made(m, gpus=4, cp=4, cp_kind=kind).model_flops == whole < made().model_flops


@pytest.mark.parametrize("precision", ["bf16", "fp32", "fp8"])
def test_every_node_says_what_it_works_on(precision: str):
    """Kind, bytes, shapes, data type, module and phase; shapes of communication are its bytes."""
    width = {"Float": 4, "BFloat16": 2, "Float8_e4m3fn": 1}
    plan = {"gpus": 16, "tp": 2, "cp": 2, "pp": 2, "zero": 1, "global_batch": 8, "precision": precision}
    trace = made(**plan).job.trace(0)
    texts = {name: trace.coded(name) for name in ("module", "phase", "in_shapes", "in_types")}
    for row in range(len(trace)):
        module, phase, shape, kind = (words[codes[row]] if codes[row] >= 0 else "" for codes, words in texts.values())
        assert module and phase
        if trace.kind[row] == int(Kind.RECV) or trace.kind[row] in (int(Kind.SEND), int(Kind.COLL)):
            (count,) = ast.literal_eval(shape)[0]
            assert count * width[kind.partition("::")[2].rstrip(")']")] == trace.in_bytes[row]
        else:
            assert shape and kind and trace.flops[row] >= 0 and trace.tensor_bytes[row] > 0

"""Experts that are not equally loaded: tokens, work and bytes of each expert-parallel rank, counted one by one."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import EtudeError
from etude.cost.compute import compute_time_ns
from etude.cost.ops import OpClass, OpTable, Work
from etude.cost.traces import ops_of
from etude.machine import open_device, open_system
from etude.make.generate.model.open import open_model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import Generated, generate
from etude.model.schema import Collective
from etude.model.trace import Trace, assert_same
from etude.run.simulate.run import simulate

# 8 experts, 2 for each token, gates of width 32; 64 tokens a rank, so that 128 copies leave each rank
MIXTURE = open_model("mixtral-8x7b").replace(
    layers=2, hidden=64, heads=8, kv_heads=4, head_size=8, ffn=96, expert_ffn=32, vocab=512
)
TOKENS, HIDDEN, TOP, WIDE = 64, 64, 2, 32


def made(loads: str = "", **more: object) -> Generated:
    plan: dict[str, object] = {"gpus": 4, "ep": 4, "seq": TOKENS, "micro_batch": 1, "global_batch": 4}
    return generate(MIXTURE, Plan(**(plan | {"moe_loads": loads} | more)))


def work_of(trace: Trace, part: str, name: str, phase: str) -> list[int]:
    """Operations of these nodes, layer by layer."""
    paths, words = trace.coded("module")
    names, called = trace.coded("name")
    phases, labels = trace.coded("phase")
    return [
        int(trace.flops[i])
        for i in range(len(trace))
        if words[paths[i]].endswith(part) and called[names[i]] == name and labels[phases[i]] == phase
    ]


@pytest.mark.parametrize("loads", ["zipf:0", "1,1,1,1,1,1,1,1", "2,2,2,2,2,2,2,2"])
@pytest.mark.parametrize("ep", [1, 4])
def test_equal_loads_are_the_job_without(loads: str, ep: int):
    plain, equal = made(ep=ep).job, made(loads, ep=ep).job
    for rank in range(4):
        assert_same(plain.trace(rank), equal.trace(rank))


def test_a_list_says_what_each_rank_has():
    """Of 512 copies expert 0 gets a half and the others a fourteenth each: 256 and 36 or 37. The seven shares of 36.57
    leave 4 of 512 over, which the first four of them get. Two experts are on each rank."""
    tokens = [256, 37, 37, 37, 37, 36, 36, 36]
    assert sum(tokens) == 4 * TOKENS * TOP
    job = made("7,1,1,1,1,1,1,1").job
    for rank in range(4):
        mine, trace = sum(tokens[2 * rank : 2 * rank + 2]), job.trace(rank)
        assert work_of(trace, "experts.down", "aten::_grouped_mm", "forward") == [2 * mine * WIDE * HIDDEN] * 2
        assert work_of(trace, "experts.down", "aten::_grouped_mm", "backward-weight") == [2 * mine * WIDE * HIDDEN] * 2
        assert work_of(trace, "experts.up", "aten::_grouped_mm", "forward") == [2 * mine * 2 * WIDE * HIDDEN] * 2
        sent, come = 2 * TOKENS * TOP * HIDDEN, 2 * mine * HIDDEN
        rows = trace.collective == Collective.ALL_TO_ALL
        pairs = Counter(zip(trace.in_bytes[rows].tolist(), trace.out_bytes[rows].tolist(), strict=True))
        assert pairs == Counter({(sent, come): 4}) + Counter({(come, sent): 4})


@pytest.mark.parametrize("loads", ["zipf:1.2", "dirichlet:0.3", "0,0,0,0,0,0,0,1"])
@pytest.mark.parametrize("etp", [1, 2])
def test_no_token_is_lost_whatever_the_loads(loads: str, etp: int):
    even, uneven = made(gpus=8, global_batch=8, etp=etp).job, made(loads, gpus=8, global_batch=8, etp=etp).job
    each = 2 * WIDE * HIDDEN // etp
    for layer in range(2):
        found = [work_of(uneven.trace(r), "experts.down", "aten::_grouped_mm", "forward")[layer] for r in range(8)]
        # a rank without tokens says one operation
        assert sum(f if f > 1 else 0 for f in found) == 8 * etp * TOKENS * TOP * each
    received = []
    for job in (even, uneven):
        traces = [job.trace(r) for r in range(8)]
        received.append(sum(int(t.out_bytes[t.collective == Collective.ALL_TO_ALL].sum()) for t in traces))
    assert abs(received[0] - received[1]) <= 8 * 8  # one byte instead of none


def test_layers_have_loads_of_their_own_and_a_seed_gives_others():
    def loads(seed: int) -> list[list[int]]:
        job = made("zipf:1", moe_seed=seed).job
        return [work_of(job.trace(r), "experts.down", "aten::_grouped_mm", "forward") for r in range(4)]

    first, again, other = loads(3), loads(3), loads(4)
    assert first == again != other
    assert any(one != two for one, two in first)
    # 1, 1/2 ... 1/8 are 2.7179 together: the fullest of 8 experts has 188 of 512 copies
    assert max(max(pair) for pair in first) >= 188 * 2 * WIDE * HIDDEN


def test_a_table_gives_each_layer_its_own(tmp_path: Path):
    path = tmp_path / "loads.csv"
    rows = [f"{layer},{9 if e == heavy else 1}" for layer, heavy in ((0, 0), (1, 7)) for e in range(8)]
    path.write_text("layer,load\n" + "\n".join(rows) + "\n")
    job = made(str(path)).job
    first = work_of(job.trace(0), "experts.down", "aten::_grouped_mm", "forward")
    last = work_of(job.trace(3), "experts.down", "aten::_grouped_mm", "forward")
    # 512 / 16 = 32 copies for each part: 10 parts on the rank with the heavy one, 2 on the others
    each = 2 * 32 * WIDE * HIDDEN
    assert first == [10 * each, 2 * each] and last == [2 * each, 10 * each]


def test_a_capacity_holds_for_each_expert():
    """512 copies, 64 for an expert on average: of 256 no more than 80 are taken, and the others have 36 or 37."""
    job = made("7,1,1,1,1,1,1,1", capacity=1.25).job
    found = [work_of(job.trace(r), "experts.down", "aten::_grouped_mm", "forward")[0] for r in range(4)]
    assert found == [n * 2 * WIDE * HIDDEN for n in (80 + 37, 37 + 37, 37 + 36, 36 + 36)]


def test_memory_is_that_of_the_fullest_rank():
    """Of a layer 2 bytes for each of what goes into the two products and the activation: 64 + 2 x 32 + 32 a copy."""
    even, uneven = made().memory[0], made("7,1,1,1,1,1,1,1").memory[0]
    more = (256 + 37 - TOKENS * TOP) * 2 * (HIDDEN + 2 * WIDE + WIDE)
    assert uneven.activation_bytes - even.activation_bytes == pytest.approx(2 * more, abs=8)


def test_unequal_products_are_a_class_of_their_own():
    trace = made("zipf:1").job.trace(0)
    table = ops_of(trace)
    names, called = trace.coded("name")
    phases, labels = trace.coded("phase")
    for i in range(len(trace)):
        if called[names[i]] == "aten::_grouped_mm":
            ragged = labels[phases[i]] != "backward-weight"
            assert table.op_class[i] == int(OpClass.RAGGED_GEMM if ragged else OpClass.GROUPED_GEMM)
            assert table.batch[i] == 2


def test_rows_that_end_anywhere_fill_half_a_tile_less():
    """Of 128 rows on average some have two tiles of 128; far from a tile, or with many, it does not matter."""

    def times(rows: int) -> float:
        works = [
            Work(op_class=c, flops=2 * 8 * rows * 4096 * 7168, size_bytes=16 * (rows * 11264 + 4096 * 7168), m=rows,
                 n=4096, k=7168, batch=8, dtype="bf16")
            for c in (OpClass.GROUPED_GEMM, OpClass.RAGGED_GEMM)
        ]  # fmt: skip
        even, uneven = compute_time_ns(open_device("h200"), OpTable.of(works)).tolist()
        return uneven / even

    assert times(64) == pytest.approx(1.0, abs=0.1)
    assert 1.05 < times(128) < 1.75  # measured on an H200: 1.61
    assert times(8192) == pytest.approx(1.0, abs=0.05)


def test_a_step_waits_for_the_fullest_rank_of_each_layer():
    wide = MIXTURE.replace(expert_ffn=4096, hidden=1024, head_size=128)
    plan = {"gpus": 4, "ep": 4, "seq": 4096, "micro_batch": 1, "global_batch": 4}
    times = [
        simulate(generate(wide, Plan(**plan, moe_loads=loads)).job, open_system("dgx-h100").resized(4)).makespan_ns
        for loads in ("", "zipf:1", "zipf:2")
    ]
    assert times[0] < times[1] < times[2]


@pytest.mark.parametrize(
    ("loads", "more", "message"),
    [
        ("zipf", {}, "loads of experts"),
        ("zipf:a", {}, "loads of experts"),
        ("normal:1", {}, "loads of experts"),
        ("dirichlet:0", {}, "loads of experts"),
        ("1,-1", {}, "loads of experts"),
        ("0,0", {}, "loads of experts"),
        ("1,2", {}, "2 loads for 8 experts"),
        ("none.csv", {}, "cannot be read"),
        ("zipf:1", {"moe_skew": 1.5}, "how full ranks are"),
        ("zipf:1", {"ep_node": 2}, "equally loaded"),
    ],
)
def test_what_cannot_be_is_refused(loads: str, more: dict[str, object], message: str):
    with pytest.raises(EtudeError, match=message):
        made(loads, **more)


def test_a_dense_model_has_no_loads():
    with pytest.raises(EtudeError, match="no experts"):
        generate(open_model("llama3-8b").replace(layers=1), Plan(gpus=1, moe_loads="zipf:1"))


def test_loads_are_equal_on_average():
    from etude.make.generate.blocks.loads import loads_of

    for text in ("zipf:1.5", "dirichlet:0.2", "3,1,1,1"):
        assert np.allclose(loads_of(text, 4, 5, 1).mean(axis=1), 1.0)

"""Parts that recipes do again: which ops, in what order, how many operations, how many bytes less. Worked by hand."""

import pytest

from etude.base.errors import EtudeError
from etude.make.generate.model.open import open_model
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train import plan_memory
from etude.make.generate.train.job import generate

DEEP = open_model("deepseek-v3").replace(layers=4)  # three dense layers, one of experts
TOKENS, HIDDEN, HEADS = 4096, 7168, 128


def plan(recompute: str, ep: int = 8) -> Plan:
    return Plan(gpus=8, ep=ep, micro_batch=1, global_batch=8, recompute=recompute)


def again(model: Model, given: Plan) -> tuple[list[str], int]:
    """Modules of what is done again in the last layer, in order, and the operations of all of it."""
    trace = generate(model, given).job.trace(0)
    phases, words = trace.coded("phase")
    modules, names = trace.coded("module")
    rows = [i for i in range(len(trace)) if phases[i] >= 0 and words[phases[i]] == "recompute"]
    flops = sum(max(int(trace.flops[i]), 0) for i in rows)
    last = f"layers.{model.layers - 1}."
    return [names[modules[i]].removeprefix(last) for i in rows if names[modules[i]].startswith(last)], flops


def saved(recompute: str) -> int:
    """Bytes fewer on the rank."""
    peaks = [int(plan_memory(DEEP, plan(kind))[0].activations.max()) for kind in ("none", recompute)]
    return peaks[0] - peaks[1]


def test_a_mixture_is_done_again_with_its_exchanges():
    modules, flops = again(DEEP, plan("selective:experts"))
    assert modules == [
        "experts.router", "experts.router", "experts.dispatch", "experts.dispatch", "experts.sort", "experts.up",
        "experts.activation", "experts.down", "experts.sort", "experts.combine", "experts.combine",
        "shared.up", "shared.activation", "shared.down", "shared.sum",
    ]  # fmt: skip
    routed = 8 * TOKENS * 2 * HIDDEN * (2 * 2048 + 2048)
    shared = TOKENS * 2 * HIDDEN * (2 * 2048 + 2048)
    router = TOKENS * 2 * HIDDEN * 256
    assert routed + shared + router < flops < 1.01 * (routed + shared + router)


def test_dense_layers_are_done_again():
    _, flops = again(DEEP, plan("selective:ffn"))
    products = 3 * TOKENS * 2 * HIDDEN * (2 * 18432 + 18432)
    assert products < flops < 1.01 * products


def test_latent_attention_makes_its_heads_again():
    modules, flops = again(DEEP, plan("selective:latent"))
    assert modules == ["attention.q_up", "attention.kv_up", "attention.rotary"]
    queries, keys = 1536 * HEADS * 192, 512 * HEADS * (128 + 128)
    assert 4 * 2 * TOKENS * (queries + keys) < flops < 1.01 * 4 * 2 * TOKENS * (queries + keys)
    # queries and keys of 192, values of 128, in 16 bits, of four layers
    assert saved("selective:latent") == 4 * 2 * TOKENS * HEADS * (192 + 192 + 128)


def test_what_a_part_is_made_of_is_made_first():
    modules, _ = again(DEEP, plan("selective:experts,norm,latent"))
    assert modules[0] == "ffn_norm" and modules[1] == "experts.router"
    names = modules[modules.index("shared.sum") + 1 :]
    assert set(names[:2]) == {"attention.q_norm", "attention.kv_norm"}
    assert names[2:] == ["attention.q_up", "attention.kv_up", "attention.rotary", "attention_norm"]


def test_a_model_without_the_part_is_as_it_was():
    dense = open_model("llama3-8b").replace(layers=2)
    assert again(dense, plan("selective:experts,latent", ep=1)) == ([], 0)


def test_unknown_parts_are_refused():
    with pytest.raises(EtudeError, match="recompute: column 11: unknown part `mla`"):
        plan("selective:mla")


PLAIN = open_model("llama3-8b").replace(layers=2)
QKV, OUT, GATE, UP, DOWN = 4096 * 6144, 4096 * 4096, 4096 * 14336, 4096 * 14336, 14336 * 4096
CORE = 8192 * 8193 // 2 * 4 * 4096  # pairs of tokens, two products of 2 operations, 32 heads of 128


def work(recompute: str) -> tuple[list[str], float]:
    """Modules of a layer that are done again, and the operations for a layer, over those of its products."""
    given = Plan(gpus=1, seq=8192, micro_batch=1, recompute=recompute)
    modules, flops = again(PLAIN, given)
    return modules, flops / 2


def test_checkpoints_that_stop_leave_the_last_product_out():
    modules, flops = work("full:needed")
    assert "ffn.down" not in modules
    assert modules[-2:] == ["ffn.up", "ffn.activation"]
    products = 2 * 8192 * (QKV + OUT + GATE + UP) + CORE
    assert products < flops < 1.01 * products
    _, whole = work("full")
    assert whole - flops == pytest.approx(2 * 8192 * DOWN, rel=1e-3)


def test_products_whose_results_are_kept_are_not_done_again():
    modules, flops = work("full:qkv,out")
    assert not {"attention.qkv", "attention.out", "ffn.down"} & set(modules)
    assert "attention.core" in modules
    assert flops == pytest.approx(2 * 8192 * (GATE + UP) + CORE, rel=0.01)
    modules, flops = work("full:qkv,core,gate")  # of the first product of the feed-forward layer half
    assert "attention.core" not in modules
    assert flops == pytest.approx(2 * 8192 * (OUT + UP), rel=0.01)


def test_results_that_are_kept_take_memory():
    def held(kind: str) -> int:
        given = Plan(gpus=1, seq=8192, micro_batch=1, recompute=kind)
        return int(plan_memory(PLAIN.replace(layers=32), given)[0].activations.max())

    assert held("full:needed") == held("full")
    bytes_of_a_layer = 2 * 8192 * 6144  # queries, keys and values in 16 bits
    assert held("full:qkv") - held("full") == pytest.approx(32 * bytes_of_a_layer, rel=0.04)


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(EtudeError, match="recompute: column 6: unknown part `moon`"):
        plan("recompute: column 6: unknown part `moon`")

"""Stacks: files, factors on a device, recipes, names in tables."""

from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import EtudeError
from etude.cost.compute import compute_time_ns
from etude.cost.estimates import EstimateCase
from etude.cost.ops import OpTable, activation, attention, elementwise, matmul, optimizer
from etude.cost.stacks import Efficiency, Stack, generation_of, open_stack, stack_for, stack_names
from etude.cost.stacks.open import stack_in
from etude.cost.stacks.stack import tuned
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.steps.estimates import step_case, step_estimate
from etude.steps.measured.recipes import RunFacts, completed
from etude.steps.step import step_time


def test_every_stack_of_the_catalogue_can_be_written_and_read_again():
    assert stack_names()[0] == "default"
    for name in stack_names():
        stack = open_stack(name)
        assert stack.name == name
        assert Stack.from_dict(stack.to_dict()) == stack


def test_an_unknown_stack_is_refused_by_name():
    with pytest.raises(EtudeError, match="unknown stack `nemesis`"):
        open_stack("nemesis")


def test_a_file_with_an_unknown_key_is_refused(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\neficiency: {}\n")
    with pytest.raises(EtudeError, match="unknown key `eficiency`"):
        open_stack(path)


def test_names_of_tables_and_their_years():
    assert stack_for("PaXML").name == "paxml"
    assert stack_for("jax").name == "maxtext"
    assert stack_for("megatron-lm", 2021).name == "megatron-2022"
    assert stack_for("megatron-lm", 2024).name == "megatron-core"
    assert stack_for("Megatron LM").name == "megatron-core"
    assert stack_for("nothing of the kind") is None


@pytest.mark.parametrize(
    ("gpu", "generation"),
    [("NVIDIA H100 SXM5 80GB", "hopper"), ("H100-96GB(HBM2e,500W)", "hopper"), ("A100-40GB", "ampere"),
     ("GB200", "blackwell"), ("MI300X", "cdna3"), ("abacus", "")],
)  # fmt: skip
def test_generations(gpu: str, generation: str):
    assert generation_of(gpu) == generation


def times(system, by: Efficiency):
    ops = OpTable.of([matmul(8192, 8192, 8192), attention(8192, 8192, heads=32, head_size=128), activation(1 << 26)])
    return compute_time_ns(tuned(system, by).device, ops).astype(float)


def test_each_factor_slows_its_own_ops():
    system = open_system("dgx-h100")
    plain = times(system, Efficiency())
    assert times(system, Efficiency(rest=1.5)) == pytest.approx(plain * [1, 1, 1.5], rel=1e-3)
    products = times(system, Efficiency(products=1.5)) / plain
    assert products == pytest.approx([1.5, 1, 1], rel=0.02)  # memory beside it costs a little
    assert times(system, Efficiency(attention=1.5)) / plain == pytest.approx([1, 1.5, 1], rel=0.02)
    slow = tuned(system, Efficiency(network=2))
    assert [b.bandwidth_bytes_per_s for b in slow.levels] == [a.bandwidth_bytes_per_s / 2 for a in system.levels]


def test_no_factor_moves_bytes_faster_than_the_memory_does():
    """Three tensors of 4 GiB at 3.35 TB/s: 3.8 ms at least, whatever a stack's factor is."""
    system, ops = open_system("dgx-h100"), OpTable.of([elementwise(1 << 31, inputs=2)])
    floor_ns = 3 * 2**32 / 3.35e12 * 1e9
    plain, fast, faster = (
        float(compute_time_ns(tuned(system, Efficiency(rest=rest)).device, ops)[0]) for rest in (1.0, 0.5, 0.1)
    )
    assert plain > fast >= faster >= floor_ns
    assert faster == pytest.approx(floor_ns, rel=1e-3)


def test_norms_of_queries_cost_less_where_short_rows_share_a_block():
    """Qwen3 normalises each head's 128 elements: a step with PyTorch's norms is longer."""
    model = open_model("qwen3-8b").replace(layers=2)
    plan, system = Plan(gpus=1, seq=4096), open_system("dgx-h100")
    shared, alone = (Stack(name="mine", short_rows=short) for short in (True, False))
    assert step_time(model, plan, system, shared) < step_time(model, plan, system, alone)


def test_the_optimizer_is_bound_by_the_memory_whatever_the_software():
    system, ops = open_system("dgx-h100"), OpTable.of([optimizer(1 << 30)])
    plain = compute_time_ns(system.device, ops)
    assert (compute_time_ns(tuned(system, Efficiency(rest=1.5, products=2.0)).device, ops) == plain).all()


def test_a_stack_is_as_it_was_in_a_year():
    stack = Stack.from_dict({"name": "mine", "efficiency": {"hopper": {"products": 1.2}, "any": {"products": 1.1}},
                             "years": {"hopper 2023": {"products": 1.5, "overlap": 0.9}, "hopper 2024": {"rest": 2.0},
                                       "ampere 2022": {"products": 2.0}}})  # fmt: skip

    def on(year: int, generation: str = "hopper") -> Efficiency:
        return stack.in_year(year).on(generation, experts=False)

    assert (on(0), on(2025)) == (Efficiency(products=1.2), Efficiency(products=1.2))
    assert on(2024) == Efficiency(products=1.2, rest=2.0)
    assert on(2023) == on(2022) == Efficiency(products=pytest.approx(1.8))  # overlap is at least 1
    assert on(2022, "ampere") == Efficiency(products=2.2)
    assert on(2023, "ampere") == Efficiency(products=1.1)
    with pytest.raises(EtudeError, match="not a generation and a year"):
        Stack.from_dict({"name": "odd", "years": {"hopper": {}}})


def test_products_in_8_bits_have_their_own_factor():
    system, ops = open_system("dgx-h100"), OpTable.of([matmul(8192, 8192, 8192, dtype="fp8")])
    plain = compute_time_ns(system.device, ops)
    assert (compute_time_ns(tuned(system, Efficiency(products=1.7)).device, ops) == plain).all()
    assert compute_time_ns(tuned(system, Efficiency(fp8=1.5)).device, ops) / plain == pytest.approx([1.5], rel=0.03)


def test_a_recipe_fills_in_and_flags_stand():
    model, system = open_model("llama3-70b"), open_system("dgx-h100")
    given = {"gpus": 512, "tp": 4, "pp": 4, "cp": 2, "global_batch": 1024}
    plan, said = completed(RunFacts(model=model, given=given, system=system), open_stack("nemo"))
    assert (plan.zero, plan.grad_dtype, plan.tp_chunks, plan.micro_batch, plan.dp) == (1, "bf16", 4, 1, 16)
    assert plan.schedule == "interleaved:2"  # the most up to 3 that divide 80 layers on 4 ranks
    assert any("nemo" in text for text in said)
    own = {**given, "zero": 0, "tp_chunks": 1, "schedule": "1f1b"}
    plan, _ = completed(RunFacts(model=model, given=own, system=system), open_stack("nemo"))
    assert (plan.zero, plan.tp_chunks, plan.schedule) == (0, 1, "1f1b")


def test_models_of_transformers_launch_more_than_plain_ones():
    """16 layers of 2048, a sample of 512 tokens, all in bf16: 69.2, 79.6 and 90.2 ms on the hosts of two H200s, to
    which nothing was fitted."""
    model, system = open_model("llama3.2-1b"), open_system("dgx-h200")
    given = {
        "seq": 512,
        "global_batch": 1,
        "micro_batch": 1,
        "recompute": "none",
        "grad_dtype": "bf16",
        "master": False,
    }

    def estimated(name: str) -> tuple[float, EstimateCase]:
        stack = open_stack(name)
        plan, _ = completed(RunFacts(model=model, given={"gpus": 1, **given}, system=system), stack)
        return step_time(model, plan, system, stack) * 1e3, step_case(model, plan, system, stack)

    (hugging, case), (plain, own) = estimated("transformers"), estimated("eager")
    assert plain < 30 < 62 < hugging < 90.2
    assert (case.figure, case.kind) == ("program step", "programs")
    assert (own.figure, own.kind) == ("step", "eager")
    assert stack_in("HuggingFace TRL 0.20").name == stack_for("transformers").name == "transformers"


def test_stacks_mean_different_things_by_recomputation():
    model, system = open_model("llama3-8b"), open_system("dgx-h100")

    def kind(stack: str, **given: object) -> str:
        run = RunFacts(model=model, given={"gpus": 8, "global_batch": 16, "micro_batch": 2, **given}, system=system)
        return completed(run, open_stack(stack))[0].recompute

    assert kind("torchtitan", recompute="selective") == "full:qkv,core,gate"
    assert kind("torchtitan", recompute="full") == "full:needed"
    assert kind("torchtitan", recompute="none") == "none"
    assert kind("nemo", recompute="full") == "full"
    assert kind("maxtext", gpus=512, global_batch=512, micro_batch=1, seq=4096) == "none"
    assert kind("maxtext", gpus=512, global_batch=2048, micro_batch=4) == "full:qkv"  # the least that fits


def test_without_a_pipeline_the_micro_batch_is_the_most_that_fits():
    model, system = open_model("llama2-7b"), open_system("dgx-h100")
    given = {"gpus": 64, "zero": 3, "global_batch": 4096, "recompute": "full"}
    plan, _ = completed(RunFacts(model=model, given=given, system=system), open_stack("torchtitan"))
    assert plan.micro_batch > 1
    assert 64 % plan.micro_batch == 0


def test_an_unknown_condition_of_a_recipe_is_refused():
    stack = Stack.from_dict({"name": "odd", "recipe": [{"when": {"moon": "full"}, "plan": {"zero": 1}}]})
    with pytest.raises(EtudeError, match="unknown condition `moon`"):
        completed(RunFacts(model=open_model("llama3-8b"), given={}, system=open_system("dgx-h100")), stack)


def test_a_named_stack_has_a_narrower_range():
    model, system = open_model("llama3-8b"), open_system("dgx-h100")
    plan = Plan.from_dict({"gpus": 64, "zero": 3})
    known, unknown = (step_case(model, plan, system, open_stack(name)) for name in ("nemo", "default"))
    assert (known.kind, known.named, unknown.named) == ("dense", True, False)
    narrow, wide = (step_estimate(1.0, case, open_stack("nemo")) for case in (known, unknown))
    assert narrow.most and wide.most and 0 < narrow.most < wide.most < 1


def test_a_device_without_measured_steps_has_no_range():
    model, plan, stack = open_model("llama3-8b"), Plan.from_dict({"gpus": 8}), open_stack("default")
    for name in ("mi300x-node", "trn2"):
        found = step_estimate(1.0, step_case(model, plan, open_system(name), stack), stack)
        assert found.low is None and "no evidence for the step on" in found.basis["text"]
    found = step_estimate(1.0, step_case(model, plan, open_system("dgx-h100"), open_stack("none")), open_stack("none"))
    assert found.low is None and "without a software stack" in found.basis["text"]


def test_factors_of_overlap_below_1_are_refused():
    with pytest.raises(EtudeError, match="less than 1"):
        Stack.from_dict({"name": "odd", "efficiency": {"any": {"overlap": 0.9}}})


def test_shipped_factors_are_of_the_size_of_kernels():
    for name in stack_names():
        for by in open_stack(name).efficiency.values():
            assert np.all((np.array(by.values()) > 0.4) & (np.array(by.values()) < 4)), (name, by)

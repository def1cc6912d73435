"""Plans that were run must fit the machines that they were run on."""

from etude.cost.stacks import open_stack
from etude.machine import open_system
from etude.make.generate.model import open_model
from etude.make.generate.train import plan_memory
from etude.steps.measured.recipes import RunFacts, completed

GB = 10**9


def test_deepseek_v3_fits_2048_h800():
    """16 stages, experts on 64 ranks, ZeRO 1, micro-batches of one sequence of 4,096 tokens, in 8 bits."""
    system, model = open_system("h800-node"), open_model("deepseek-v3")
    given = {"gpus": 2048, "pp": 16, "ep": 64, "seq": 4096, "global_batch": 15360, "precision": "fp8"}
    plan, _ = completed(RunFacts(model=model, given=given, system=system), open_stack("deepseek"))
    assert {"latent", "norm", "activation"} <= set(plan.recompute.removeprefix("selective:").split(","))
    assert max(memory.peak_bytes for memory in plan_memory(model, plan)) < 80 * GB
    assert max(memory.peak_bytes for memory in plan_memory(model, plan.replace(recompute="selective"))) > 80 * GB

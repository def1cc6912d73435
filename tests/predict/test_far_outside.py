"""Steps far from all that was measured: each says of what there is no evidence, and none has a range."""

from __future__ import annotations

import math
from typing import Any

import pytest

from etude.cost.estimates import Estimate
from etude.cost.stacks import open_stack
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.steps.estimates import step_case, step_estimate


def estimate(model: str, system: str, stack: str = "default", **axes: Any) -> Estimate:
    """Of one second."""
    by = open_stack(stack)
    return step_estimate(1.0, step_case(open_model(model), Plan.from_dict(axes), open_system(system), by), by)


@pytest.mark.parametrize(
    ("model", "system", "axes", "said"),
    [
        ("llama3-8b", "mi300x-node", {"gpus": 8, "tp": 8, "precision": "fp4"}, "for the step on AMD Instinct MI300X"),
        ("llama3-8b", "tpu-v5e-pod", {"gpus": 16, "tp": 8, "precision": "fp8"}, "on Google TPU v5e"),
        ("llama3-70b", "dgx-h100", {"gpus": 65536, "tp": 8}, "of dense models on 65,536 devices: the most measured"),
        ("mamba2-2.7b", "trn2", {"gpus": 16, "zero": 3}, "for the step on AWS Trainium2"),
        ("mixtral-8x7b", "tpu-v6e-pod", {"gpus": 16, "ep": 8}, "of mixtures of experts on Google TPU v6e"),
        ("gpt2", "dgx-h200", {"gpus": 1, "seq": 16, "stack": "eager"}, "of so small products, where the host decides"),
        ("gpt2", "dgx-a100", {"gpus": 1, "stack": "eager"}, "of models in eager PyTorch on NVIDIA A100"),
        ("llama3-8b", "dgx-h100", {"gpus": 8, "stack": "none"}, "without a software stack"),
        ("resnet-50", "dgx-h100", {"gpus": 8}, "of convolutional models on NVIDIA H100"),
        ("llama3-8b", "rubin-nvl144", {"gpus": 8, "tp": 8}, "for the step on NVIDIA"),
        ("llama3-8b", "jetson-orin", {"gpus": 1}, "for the step on"),
        ("llama3-8b", "xeon-8480", {"gpus": 1}, "for the step on Intel Xeon"),
    ],
)
def test_a_step_far_from_all_rows_has_no_range(model: str, system: str, axes: dict[str, Any], said: str) -> None:
    found = estimate(model, system, **axes)
    assert found.low is found.high is None
    text = found.basis["text"]
    assert text.startswith("no evidence for the step") and said in text


@pytest.mark.parametrize("axis", [{"gpus": 8192}, {"precision": "fp8"}, {"gpus": 8192, "precision": "fp8"}])
def test_a_range_never_becomes_narrower_with_distance(axis: dict[str, Any]) -> None:
    near = estimate("llama3-70b", "dgx-h100", gpus=64, tp=8)
    far = estimate("llama3-70b", "dgx-h100", **{"gpus": 64, "tp": 8, **axis})
    assert near.most is not None and far.most is not None
    assert far.most >= near.most and math.isfinite(far.most)

"""FLOPs of operators against PyTorch's own counter, which knows products, attention and convolution."""

from __future__ import annotations

from typing import Any

import pytest

from etude.cost.aten import aten_work
from later import TORCH, later

torch = later("torch", TORCH)

Q = [2, 8, 64, 16]
STRIDE, PADDING, ONE = [2, 2], [1, 1], [1, 1]
IMAGE, FILTER, OUT = [1, 3, 8, 8], [4, 3, 3, 3], [1, 4, 4, 4]


@pytest.mark.parametrize(
    ("name", "given", "made"),
    [
        ("mm", [[5, 4], [4, 3]], [5, 3]),
        ("addmm", [[3], [5, 4], [4, 3]], [5, 3]),
        ("bmm", [[6, 5, 4], [6, 4, 3]], [6, 5, 3]),
        ("baddbmm", [[6, 5, 3], [6, 5, 4], [6, 4, 3]], [6, 5, 3]),
        ("_scaled_dot_product_flash_attention", [Q, Q, Q], Q),
        ("_scaled_dot_product_cudnn_attention", [Q, Q, Q], Q),
        ("_scaled_dot_product_flash_attention_backward", [Q, Q, Q, Q], Q),
        ("_scaled_dot_product_efficient_attention_backward", [Q, Q, Q, Q], Q),
        ("convolution", [IMAGE, FILTER, None, STRIDE, PADDING, ONE, False, [0, 0], 1], OUT),
        ("_convolution", [IMAGE, FILTER, None, STRIDE, PADDING, ONE, False, [0, 0], 1], OUT),
        ("convolution_backward",
         [OUT, IMAGE, FILTER, [4], STRIDE, PADDING, ONE, False, [0, 0], 1, [True, True, False]], [IMAGE, FILTER, None]),
        ("convolution_backward",
         [OUT, IMAGE, FILTER, [4], STRIDE, PADDING, ONE, False, [0, 0], 1, [False, True, False]], [None, FILTER, None]),
    ],
)  # fmt: skip
def test_flops_are_those_that_pytorch_counts(name: str, given: list[Any], made: list[Any]) -> None:
    from torch.utils.flop_counter import flop_registry

    is_shape = [isinstance(value, list) and len(value) > 0 for value in given]
    tensors = len(given) if "convolution" not in name else 3 if "backward" in name else 2
    shapes = [value if at < tensors and is_shape[at] else [] for at, value in enumerate(given)]
    values = [[] if at < tensors else value for at, value in enumerate(given)]
    work = aten_work(f"aten::{name}", str(shapes), str(["Tensor(float)"] * tensors), str(values))
    assert work.flops == flop_registry[getattr(torch.ops.aten, name)](*given, out_val=made)

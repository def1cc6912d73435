from dataclasses import replace

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.cost import ops
from etude.cost.aten import aten_work
from etude.cost.aten_inputs import dtype_of, shapes_of
from etude.cost.ops import OpClass, OpTable
from etude.cost.traces import ops_of, trace_time_ns
from etude.model.build import TraceBuilder
from etude.model.schema import UNKNOWN, Kind
from toy_systems import DEVICE


def test_matmul():
    work = ops.matmul(2, 3, 4)
    assert (work.flops, work.size_bytes) == (2 * 2 * 3 * 4, 2 * (8 + 12 + 6))
    batched = ops.matmul(2, 3, 4, batch=5, dtype="fp32")
    assert (batched.flops, batched.size_bytes) == (5 * 48, 4 * 5 * 26)
    shared = ops.matmul(2, 3, 4, batch=5, shared_weight=True)
    assert (shared.m, shared.batch, shared.size_bytes) == (10, 1, 2 * (40 + 30 + 12))


def test_attention_counts_the_pairs_that_a_causal_mask_leaves():
    whole = ops.attention(4, 4, heads=2, head_size=8, causal=False)
    assert whole.flops == 4 * 2 * 16 * 8
    assert ops.attention(4, 4, heads=2, head_size=8).flops == 4 * 2 * 10 * 8  # 1 + 2 + 3 + 4 pairs
    assert ops.attention(2, 4, heads=1, head_size=8).flops == 4 * 7 * 8  # 3 + 4
    assert ops.attention(4, 4, heads=2, head_size=8, backward=True).flops == 10 * 2 * 10 * 8
    step = ops.attention(1, 4096, heads=32, head_size=128, kv_heads=8)
    assert step.op_class == OpClass.ATTENTION_DECODE
    assert step.size_bytes == 2 * 128 * (2 * 32 + 2 * 4096 * 8)
    double = (
        ops.attention(2048, 2048, heads=1, head_size=64).flops / ops.attention(1024, 1024, heads=1, head_size=64).flops
    )
    assert double == pytest.approx(4, rel=1e-3)  # the square of the length


def test_convolution_is_the_gemm_that_it_is():
    work = ops.convolution(1, 3, 8, (10, 10), (3, 3), in_size=(12, 12))
    assert work.flops == 2 * 100 * 8 * 27
    assert work.size_bytes == 2 * (3 * 144 + 8 * 27 + 800)
    assert ops.convolution(1, 8, 8, (10,), (3,), groups=8).flops == 2 * 10 * 8 * 3  # depthwise


def test_the_rest():
    assert ops.normalisation(4, 16).size_bytes == 2 * (128 + 16)
    assert ops.elementwise(10, inputs=2).size_bytes == 60
    assert ops.copy(10).flops == 0
    assert ops.embedding(7, 16).size_bytes == 2 * 2 * 7 * 16 + 56
    adam = ops.optimizer(1000)
    assert adam.size_bytes == 3 * 2000 + 4 * 4000  # read p, g, write p; two moments read and written
    with pytest.raises(UsageError, match="unknown optimizer `lion`"):
        ops.optimizer(1, kind="lion")
    with pytest.raises(UsageError, match="unknown data type `fp12`"):
        ops.matmul(1, 1, 1, dtype="fp12")


def test_what_pytorch_recorded():
    assert dtype_of("['Tensor(c10::BFloat16)', 'Int']") == "bf16"
    assert dtype_of("['Tensor(c10::Float4_e2m1fn_x2)']") == dtype_of("['c10::Float4_e2m1fn_x2']") == "fp4"
    assert dtype_of("['Int']") == ""
    assert shapes_of("[[2, 4], [], 'x']") == [[2, 4], [], []]
    assert shapes_of("[[2, ") == []
    types = "['Tensor(c10::BFloat16)', 'Tensor(c10::BFloat16)']"
    assert aten_work("aten::mm", "[[2, 4], [4, 3]]", types) == ops.matmul(2, 3, 4)
    assert aten_work("aten::addmm", "[[3], [2, 4], [4, 3]]", types) == ops.matmul(2, 3, 4)
    assert aten_work("aten::linear", "[[5, 2, 4], [3, 4], [3]]", types) == ops.matmul(10, 3, 4)
    for given in ("[[2, 6, 4], [2, 4, 3]]", "[[6, 8], [8, 3], [2]]", "[[2, 6, 4], [4, 6], [2]]"):
        assert aten_work("aten::_grouped_mm", given, types) == ops.grouped(6, 3, 4, experts=2)
    ragged = aten_work("aten::_grouped_mm", "[[12, 4], [2, 4, 3], [2]]", types)  # no shape says how full experts are
    assert ragged == replace(ops.grouped(6, 3, 4, experts=2), op_class=OpClass.RAGGED_GEMM)
    assert ops.grouped(6, 3, 4, experts=2).flops == 2 * 2 * 6 * 3 * 4
    assert aten_work("aten::add", "[[8], [8], []]", types) == ops.elementwise(8, inputs=2)
    assert aten_work("aten::gelu", "[[8, 2]]", types) == ops.activation(16)


def floats(count: int) -> str:
    return str(["Tensor(float)"] * count)


def test_attention_and_its_backward():
    shapes = "[[2, 8, 64, 16], [2, 8, 64, 16], [2, 8, 64, 16]]"
    forward = aten_work("aten::_scaled_dot_product_flash_attention", shapes, floats(3))
    assert (forward.flops, forward.size_bytes) == (2 * 2 * 2 * 8 * 64 * 64 * 16, 4 * 4 * 2 * 8 * 64 * 16)
    last = "[[2, 64, 8, 16], [2, 64, 8, 16], [2, 64, 8, 16], [2, 64, 8, 16]]"
    backward = aten_work("aten::_flash_attention_backward", last, floats(4))
    assert backward.flops == forward.flops * 5 // 2


def test_convolution_and_its_backward():
    """1 x 3 x 8 x 8 by 3 x 3 to 4 channels, stride 2, padding 1: 4 x 4 pixels out."""
    given = '["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]'
    forward = aten_work(
        "aten::convolution", "[[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []]", floats(2), given
    )
    assert forward.flops == 2 * 16 * 4 * 27
    assert forward.size_bytes == 4 * (3 * 64 + 4 * 27 + 4 * 16)
    shapes = "[[1, 4, 4, 4], [1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], [], []]"
    values = "[[], [], [], [], [2, 2], [1, 1], [1, 1], false, [0, 0], 1, [%s, true, false]]"
    assert aten_work("aten::convolution_backward", shapes, floats(3), values % "true").flops == 2 * forward.flops
    assert aten_work("aten::convolution_backward", shapes, floats(3), values % "false").flops == forward.flops
    assert aten_work("aten::convolution_backward", shapes, floats(3)).flops == UNKNOWN


def test_elements_are_broadcast_and_lists_are_summed():
    work = aten_work("aten::mul", "[[4, 8], [4, 1]]", floats(2))
    assert (work.flops, work.size_bytes) == (32, 4 * (32 + 4 + 32))
    work = aten_work("aten::copy_", "[[4, 8], [4, 8], []]", "['Tensor(float)', 'Tensor(c10::BFloat16)', 'Bool']")
    assert (work.flops, work.size_bytes) == (0, 32 * 6)
    lists = "['GenericList[Tensor(float),Tensor(float)]', 'GenericList[Tensor(float),Tensor(float)]']"
    work = aten_work("aten::_foreach_add_", "[[[4, 8], [2]], [[4, 8], [2]]]", lists)
    assert (work.flops, work.size_bytes) == (34, 3 * 34 * 4)
    assert aten_work("aten::_foreach_add_", "[[], []]", "['TensorList', 'TensorList']").flops == UNKNOWN
    five = "[[[4]], [[4]], [[4]], [[4]], [], [[]]]"
    work = aten_work("aten::_fused_adamw_", five, str(["GenericList[Tensor(float)]"] * 4))
    assert (work.flops, work.size_bytes) == (14 * 4, 4 * 4 * 7)
    assert aten_work("aten::sum", "[[4, 8], []]", floats(1)).size_bytes == 128


def test_types_as_the_profiler_names_them():
    assert aten_work("aten::mm", "[[2, 4], [4, 3]]", "['c10::BFloat16', 'c10::BFloat16']") == ops.matmul(2, 3, 4)
    picked = aten_work("aten::nll_loss_forward", "[[64, 1000], [64], [], [], []]", "['float', 'long int']")
    assert (picked.flops, picked.size_bytes) == (64, 64 * (4 + 8))  # of each row the one element that a target names
    work = aten_work("aten::embedding", "[[100, 8], [5], [], [], []]", "['float', 'long int', 'Scalar', 'Scalar']")
    assert work == ops.embedding(5, 8, dtype="fp32")


@pytest.mark.parametrize(
    ("name", "shapes"),
    [("aten::mystery", "[[2]]"), ("aten::mm", "[[2]]"), ("aten::mm", "[]"), ("aten::bmm", "nonsense")],
)
def test_unknown_stays_unknown(name: str, shapes: str):
    work = aten_work(name, shapes, "['Tensor(float)']")
    assert (work.op_class, work.flops, work.size_bytes) == (OpClass.NONE, UNKNOWN, UNKNOWN)


def test_without_a_type_the_bytes_are_unknown_and_the_flops_are_not():
    work = aten_work("aten::mm", "[[2, 4], [4, 3]]", "[]")
    assert (work.flops, work.size_bytes) == (48, UNKNOWN)


def tiny():
    b = TraceBuilder()
    b.add(Kind.COMP, "fwd", flops=10**6, tensor_bytes=1000, duration_ns=77)
    b.add(Kind.COMP, "aten::mm", in_shapes="[[2, 4], [4, 3]]", in_types="['Tensor(float)', 'Tensor(float)']")
    b.add(Kind.COMP, "aten::mystery")
    b.add(Kind.COLL, "ar", in_bytes=100)
    return b.build()


def test_a_trace_as_ops():
    table = ops_of(tiny())
    assert table.op_class.tolist() == [OpClass.OTHER, OpClass.GEMM, OpClass.NONE, OpClass.NONE]
    assert table.flops.tolist() == [10**6, 48, UNKNOWN, UNKNOWN]
    assert table.size_bytes.tolist() == [1000, 4 * 26, UNKNOWN, UNKNOWN]


def test_the_time_of_a_trace():
    assert trace_time_ns(DEVICE, tiny(), mode="measured").tolist() == [77, UNKNOWN, UNKNOWN, UNKNOWN]
    assert trace_time_ns(DEVICE, tiny(), mode="scaled", scale=2.0).tolist() == [154, UNKNOWN, UNKNOWN, UNKNOWN]
    known = trace_time_ns(DEVICE, tiny()) != UNKNOWN
    assert known.tolist() == [True, True, False, False]


def test_a_table_has_columns_of_one_length():
    table = OpTable.plain(np.array([1, 2]), np.array([3, 4]))
    assert len(table.take(np.array([True, False]))) == 1

"""Rooflines: the roof of the units that ran, what causal attention computes, whose a kernel is, what is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etude.analyse.kernel_names import is_causal, is_tf32
from etude.analyse.roofline import not_known, roofline, utilisation
from etude.capture.ingest import causal, reading
from etude.cost.aten import aten_work
from etude.cost.aten_matrix import CAUSAL, pairs
from etude.machine.system import Device
from etude.model.run import Run, recorded
from etude.tell.report.compose import report
from recorded import device_json, kernel, launch, op, read_device_json

DEVICE = Device(name="d", peak_flop_per_s={"fp32": 1e12, "tf32": 8e12, "bf16": 16e12},
                memory_bandwidth_bytes_per_s=1e13, memory_bytes=10**9, cache_bytes=1000)  # fmt: skip
SGEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(cutlass_80_simt_sgemm_256x128_8x4_nn)"
TF32 = (
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x128_32x3_nn_align1>(cutlass_80_tensorop_s1688gemm_256x128)",
    "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x256x32_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas",
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1",
    "ampere_tf32_s1688gemm_128x64_nn", "Cijk_Ailk_Bljk_XF32_MT128x128x32",
)  # fmt: skip
NOT_TF32 = (
    SGEMM, "ampere_sgemm_128x64_nn", "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3",
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "fmha_cutlassF_f32_aligned_64x64_rf_sm80", "volta_sgemm_64x64_nt",
)  # fmt: skip
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
    "cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, false, {}, "
    "false, false, false, true, false>(pytorch_flash::Flash_fwd_params)"
)
BACK = (
    "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, false, "
    "false, cutlass::bfloat16_t, Flash_kernel_traits<128, 64, 128, 8, cutlass::bfloat16_t> >, true>(Flash_bwd_params)"
)


def test_names_of_kernels_say_on_which_units_products_run() -> None:
    assert [is_tf32(name) for name in TF32] == [True] * len(TF32)
    assert [is_tf32(name) for name in NOT_TF32] == [False] * len(NOT_TF32)


def test_names_of_flash_attention_say_whether_it_is_causal() -> None:
    assert [is_causal(FLASH.format(flag)) for flag in ("true", "false")] == [True, False]
    assert [is_causal(name) for name in (BACK, "attn_fwd", SGEMM)] == [None] * 3
    split = "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 64, 256, 4, false>, true, false, false, true>(P)"
    assert is_causal(split) is True


def operator(name: str, ts: float, dur: float, rf: int, shapes: Any, types: Any, values: Any = None) -> dict[str, Any]:
    found = op(name, ts, dur, rf)
    found["args"] |= {"Input Dims": shapes, "Input type": types}
    if values is not None:
        found["args"]["Concrete Inputs"] = values
    return found


def run_of(*events: dict[str, Any]) -> Run:
    return recorded(causal.to_job("run", [causal.convert(read_device_json(device_json(*events)), rank=0)]))


def product(name: str) -> dict[str, Any]:
    """A product of 100 x 200 and 200 x 300 floats, 12 million FLOPs, in 4 us: 3 TFLOP/s."""
    mm = operator("aten::mm", 0, 10, 1, [[100, 200], [200, 300]], ["float", "float"])
    (row,) = roofline(run_of(mm, launch(2, 1), kernel(name, 5, 4, 1, 1)), DEVICE).to_pylist()
    return row


def test_products_in_tf32_are_held_against_the_rate_of_tf32() -> None:
    """3 of 8 TFLOP/s are 37.5%; of the 1 TFLOP/s of fp32 they would be 300%."""
    for name in TF32:
        row = product(name)
        assert (row["dtype"], row["roofline_pct"]) == ("tf32", pytest.approx(37.5))
    row = product(SGEMM)
    assert (row["dtype"], row["roofline_pct"]) == ("fp32", pytest.approx(300))


def test_a_row_above_its_roof_is_a_finding() -> None:
    mm = operator("aten::mm", 0, 10, 1, [[100, 200], [200, 300]], ["float", "float"])
    run = run_of(mm, launch(2, 1), kernel(SGEMM, 5, 4, 1, 1))
    page = report(run, device=DEVICE)
    (found,) = [t for t in page.told if "above the roofline" in t.what]
    assert found.what == "1 operator is above the roofline: faster than the peak rates of d allow."
    assert "reaches 300%: 3 TFLOP/s" in found.why
    (section,) = [s for s in page.sections if s.id == "roofline"]
    assert "cache" not in section.lead


# -- attention ---------------------------------------------------------------------------------------------------------

SHAPE, KEYS = [2, 3, 10, 4], [2, 3, 16, 4]


def counted(queries: int, keys: int, sees: Any) -> int:
    """Pairs, one by one."""
    return sum(sees(i, j) for i in range(queries) for j in range(keys))


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (3, 9), (9, 3), (1, 7)])
def test_pairs_under_a_mask_are_those_that_are_seen(queries: int, keys: int) -> None:
    assert pairs(0, queries, keys) == queries * keys
    assert pairs(1, queries, keys) == counted(queries, keys, lambda i, j: j <= i)
    assert pairs(2, queries, keys) == counted(queries, keys, lambda i, j: j <= i + keys - queries)


def attention(name: str, flag: Any, keys: list[int] = SHAPE) -> int:
    """FLOPs of an attention of that name whose argument for causal has this value."""
    back = "backward" in name
    last = "aten::_flash" in name or "aten::_efficient" in name
    q, k = ([s[0], s[2], s[1], s[3]] if last else s for s in (SHAPE, keys))
    shapes = ([q] if back else []) + [q, k, k]
    values = [""] * CAUSAL[name] + [flag]
    return aten_work(name, str(shapes), str(["float"] * len(shapes)), str(values)).flops


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_attention_counts_the_pairs_that_it_computes(name: str) -> None:
    """10 queries and keys: 55 of 100 pairs; 2 products forward, 5 backward, of 2 x 3 heads of size 4."""
    numbered = "aten::_efficient" in name
    products = 5 if "backward" in name else 2
    each = products * 2 * 2 * 3 * 4
    no, yes = ("0", "1") if numbered else ("False", "True")
    assert attention(name, no) == each * 100
    assert attention(name, yes) == each * 55
    assert attention(name, "") == each * 100  # not recorded: at most
    longer = 55 if "aten::_flash" not in name else 10 * 6 + 55  # whether the first or the last query sees all
    assert attention(name, yes, KEYS) == each * longer
    if numbered:
        assert attention(name, "2", KEYS) == each * (10 * 6 + 55)


def test_the_argument_is_where_pytorch_has_it() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: make test TORCH=1")
    for name, place in CAUSAL.items():
        found = getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema.arguments[place].name
        assert found == ("custom_mask_type" if "aten::_efficient" in name else "is_causal"), name


def flash(values: Any, kernel_name: str) -> dict[str, Any]:
    shapes = [[2, 10, 3, 4]] * 3
    found = operator("aten::_flash_attention_forward", 0, 10, 1, shapes, ["float"] * 3, values)
    (row,) = roofline(run_of(found, launch(2, 1), kernel(kernel_name, 5, 4, 1, 1)), DEVICE).to_pylist()
    return row


def test_where_arguments_do_not_say_the_kernel_may() -> None:
    full, half = 96 * 100, 96 * 55
    said = ["", "", "", "", "", "10", "10", "0.", "True"]
    cases = [(said, "attn_fwd", half, False), (None, FLASH.format("true"), half, False),
             (None, FLASH.format("false"), full, False), (None, "attn_fwd", full, True)]  # fmt: skip
    for values, name, flops, at_most in cases:
        row = flash(values, name)
        assert (row["flops"], row["at_most"]) == (flops, at_most)


def test_kernels_and_arguments_of_recorded_attention_agree(shared: Path) -> None:
    """24 causal attentions; their kernels' names say so too."""
    path = shared / "oracle/tracelens/input_h100_qwen15_05b.json.gz"
    run = recorded(causal.to_job("run", [causal.convert(reading.load_device(path), rank=0)]))
    rows = [r for r in roofline(run).to_pylist() if "attention" in r["name"]]
    assert sum(r["count"] for r in rows) == 24
    assert {r["flops"] for r in rows} == {2 * 2 * 16 * 16 * 64 * (559 * 560 // 2)}
    trace = run.job.traces[0]
    kernels = [trace.text("name", i) for i in range(len(trace)) if trace.cpu[i] == 0]
    assert {is_causal(name) for name in kernels if "flash_fwd" in name} == {True}


# -- whose a kernel is -------------------------------------------------------------------------------------------------

IMAGE, FILTER = [10, 64, 56, 56], [64, 64, 3, 3]
CONV = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
FLOPS = 2 * 10 * 56 * 56 * 64 * 64 * 9


def convolved(*, inner_shapes: bool, outer_shapes: bool) -> Run:
    """aten::convolution that calls MIOpen's, which fills its workspace and runs a kernel of 100 us."""
    given = {True: [IMAGE, FILTER], False: []}
    outer = operator("aten::convolution", 0, 100, 1, given[outer_shapes], ["float", "float"][: 2 * outer_shapes],
                     CONV if outer_shapes else None)  # fmt: skip
    inner = operator("aten::miopen_convolution", 5, 80, 2, given[inner_shapes], ["float", "float"][: 2 * inner_shapes],
                     ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"] if inner_shapes else None)  # fmt: skip
    fill = operator("aten::fill_", 10, 10, 3, [[1000]], ["float"])
    return run_of(outer, inner, fill, launch(12, 1), kernel("fill", 20, 1, 1, 3), launch(40, 2),
                  kernel("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f3x2_stride1", 60, 100, 2, 2))  # fmt: skip


@pytest.mark.parametrize("inner", [True, False])
def test_a_convolution_is_counted_though_it_fills_on_the_way(inner: bool) -> None:
    run = convolved(inner_shapes=inner, outer_shapes=True)
    row, fill = roofline(run, DEVICE).to_pylist()
    assert (row["name"], row["op_class"]) == (f"aten::{'miopen_' * inner}convolution", "convolution")
    assert (row["flops"], row["time_ns"], row["dtype"]) == (FLOPS, 100_000, "fp32")
    assert (fill["name"], fill["time_ns"]) == ("aten::fill_", 1000)
    assert not_known(run).num_rows == 0
    assert utilisation(run, DEVICE)["flops"].to_pylist() == [FLOPS]


def test_a_convolution_without_shapes_is_said_to_be_unknown() -> None:
    run = convolved(inner_shapes=False, outer_shapes=False)
    assert not_known(run).to_pylist() == [{"name": "aten::miopen_convolution", "count": 1, "time_ns": 100_000}]
    page = report(run, device=DEVICE)
    (section,) = [s for s in page.sections if s.id == "roofline"]
    assert "Neither FLOPs nor bytes are known for 99.0% of the compute time: aten::miopen_convolution" in section.empty


def test_a_tensor_that_is_written_to_is_not_read() -> None:
    """mul(x, 2, out=x): 1,000 floats read and 1,000 written."""
    assert aten_work("aten::mul", "[[1000], [], [1000]]", "['float', '', 'float']").size_bytes == 8000
    assert aten_work("aten::add", "[[1000], [1000], [], [1000]]", "['float', 'float', '', 'float']").size_bytes == 12000

"""Kernels and units chosen op by op: against hand-worked cases, a naive search, and the plain op."""

from dataclasses import replace
from itertools import product as every_way

import numpy as np
import pytest

from etude.base.errors import ClusterError, UsageError
from etude.cost.choice import Menu, cheapest_layouts, chosen
from etude.cost.compute import roofline_ns
from etude.cost.ops import OpClass, OpTable, attention, elementwise, grouped, matmul, normalisation
from etude.machine import Device, open_device
from etude.machine.system import OpCost

# No fixed cost, no tiles: 300 and 100 FLOP per ns on two units, 1 byte per ns.
IDEAL = OpCost(fixed_ns=0, flop_efficiency=1, memory_efficiency=1, tile_falloff=0, split_ns=0)
TWO = Device(name="two", peak_flop_per_s={"bf16": 300e9, "fp32": 300e9}, memory_bandwidth_bytes_per_s=1e9,
             units={"big": {"fp32": 300e9}, "small": {"fp32": 100e9}}, ops={"default": IDEAL})  # fmt: skip


def some_ops(seed: int, rows: int = 60) -> OpTable:
    draw = np.random.default_rng(seed)

    def size(least: int, most: int) -> int:
        return int(2 ** draw.uniform(np.log2(least), np.log2(most)))

    makers = (
        lambda: matmul(size(1, 16384), size(16, 16384), size(16, 16384)),
        lambda: matmul(size(1, 512), size(16, 512), size(16, 512), batch=size(2, 64)),
        lambda: grouped(size(1, 512), size(128, 4096), size(128, 4096), experts=size(2, 64)),
        lambda: attention(1, size(64, 65536), heads=32, head_size=128, kv_heads=8, batch=size(1, 64)),
        lambda: attention(size(64, 4096), 4096, heads=32, head_size=128),
        lambda: elementwise(size(1, 1 << 24)),
        lambda: normalisation(size(1, 8192), 4096),
    )
    return OpTable.of([makers[int(draw.integers(len(makers)))]() for _ in range(rows)])


@pytest.mark.parametrize("name", ["h200", "xdna2", "phone-sme", "l40s"])
def test_auto_is_never_slower_and_is_the_least_of_what_is_named(name: str):
    device, ops = open_device(name), some_ops(7)
    names = ["product:w4a16:g128", "product:w8a8:g128", "product:lcma:2,2,2,7", "attention:sparse keep=0.1 block=32"]
    auto = chosen(device, ops, Menu.of(["auto", *names]))
    each = np.stack([chosen(device, ops, Menu.of([kernel])).factor for kernel in names])
    assert (auto.factor <= 1).all()
    assert auto.factor.tolist() == np.minimum(each.min(axis=0), 1).tolist()
    for alone in ("auto", "product:lcma:auto"):
        assert (chosen(device, ops, Menu.of([alone])).factor <= 1).all()


def test_only_ops_of_its_class_take_a_kernel():
    ops = some_ops(3)
    quantised = chosen(open_device("h200"), ops, Menu.of(["product:w4a16:g128"]))
    weights = np.isin(ops.op_class, (OpClass.GEMM, OpClass.GROUPED_GEMM)) & (
        (ops.batch == 1) | (ops.op_class == OpClass.GROUPED_GEMM)
    )
    assert ((quantised.number == 1) == weights).all()
    assert (quantised.factor[~weights] == 1).all()


def test_keeping_everything_is_dense_attention():
    ops = some_ops(5)
    dense = chosen(open_device("h200"), ops, Menu.of(["attention:sparse keep=1 block=32 centroid=free"]))
    assert (dense.factor == 1).all()
    # 4,096 keys, a tenth kept: 410 blocks of 10 keys would do it exactly; of 32 it is 13 of 128
    op = OpTable.of([attention(1, 4096, heads=8, head_size=128, batch=64)])
    device = replace(TWO, units={}, peak_flop_per_s={"fp32": 1e18})
    kept = chosen(device, op, Menu.of(["attention:sparse keep=0.1 block=32 centroid=int8"])).factor[0]
    queries, cache, centroids = 2 * 128 * 2, 2 * 4096 * 128 * 2, 128 * 128
    assert kept == pytest.approx((queries + cache * 13 / 128 + centroids) / (queries + cache), rel=1e-6)


def test_units_split_what_is_bound_by_compute():
    # 2 * 4000 ** 3 FLOPs and 96 MB: compute is the limit of each. 300 and 100 split as 3 to 1.
    product = OpTable.of([matmul(4000, 4000, 4000)])
    factor = {units: chosen(TWO, product, Menu.of(units=units)).factor[0] for units in ("big", "small", "auto")}
    assert factor["big"] == 1
    assert factor["small"] == pytest.approx(3, rel=0.01)
    assert factor["auto"] == pytest.approx(0.75, rel=0.01)
    assert chosen(TWO, product, Menu.of(units="big+small")).factor[0] == factor["auto"]


def test_memory_bound_ops_stay_on_one_unit():
    choice = chosen(TWO, OpTable.of([elementwise(1_000_000)]), Menu.of(units="auto"))
    assert choice.factor[0] == 1
    assert choice.names[choice.number[0]] == "plain on big"


@pytest.mark.parametrize("name", ["phone-sme", "xdna2"])
def test_auto_over_units_is_no_slower_than_any_of_them(name: str):
    device, ops = open_device(name), some_ops(11)
    auto = chosen(device, ops, Menu.of(units="auto")).factor
    for unit in device.units:
        assert (auto <= chosen(device, ops, Menu.of(units=unit)).factor).all()


def test_one_unit_is_the_device():
    device, ops = open_device("h200"), some_ops(13)
    one = replace(device, units={"gpu": device.peak_flop_per_s})
    for units in ("auto", "gpu"):
        assert (chosen(one, ops, Menu.of(units=units)).factor == 1).all()
    assert roofline_ns(one, ops).tolist() == roofline_ns(device, ops).tolist()
    assert (chosen(device, ops, Menu.of(units="auto")).factor == 1).all()


def test_a_kernel_runs_on_the_unit_that_can():
    device = replace(TWO, units={"cpu": {"fp32": 1e11}, "npu": {"fp32": 1e11, "int8": 1e12}})
    choice = chosen(device, OpTable.of([matmul(4096, 4096, 4096)]), Menu.of(["product:w8a8"], "auto"))
    assert choice.names[choice.number[0]].startswith("product:w8a8 on ")
    with pytest.raises(UsageError, match="no rate for products of 8 bits"):
        chosen(device, OpTable.of([matmul(64, 64, 64)]), Menu.of(["product:w8a8"], "cpu"))


def test_bad_names_are_refused():
    with pytest.raises(ClusterError, match="no unit `npu`"):
        chosen(TWO, some_ops(1), Menu.of(units="npu"))
    for kernels in (["product:w4a16", "product:lcma:2,2,2,7"], ["gemm"], ["attention:sparse keep=2"],
                    ["attention:sparse block=0"], ["attention:sparse top=1"]):  # fmt: skip
        with pytest.raises(UsageError):
            Menu.of(kernels)
    with pytest.raises(UsageError, match="does not name units"):
        Menu.of(units="cpu+")


@pytest.mark.parametrize(("units", "problem"), [
    ({"cpu": {"fp31": "1T"}}, "unknown data type `fp31`"), ({"cpu": {"fp32": -1}}, "is not positive"),
    ({"auto": {"fp32": "1T"}}, "is reserved"), ({"cpu": {}}, "no rates"), ({"cpu": 5}, "expected keys and values"),
])  # fmt: skip
def test_bad_units_are_refused(units: object, problem: str):
    with pytest.raises(ClusterError, match=problem):
        Device.from_dict({"name": "d", "peak": {"fp32": "1T"}, "units": units})


def test_units_need_a_peak_beside_them():
    with pytest.raises(ClusterError, match="without `peak`"):
        Device.from_dict({"name": "d", "units": {"cpu": {"fp32": "1T"}}})


def test_an_array_takes_its_tiles_in_turn():
    # 64 x 64 x 64: 524,288 FLOPs at 300 a ns are 1,748 ns; operands of 16,384 bytes and a result of 8,192 at 1 a ns,
    # 3 x 2 x 1 times, after the first operands
    product = OpTable.of([matmul(129, 128, 64)])
    array = chosen(TWO, product, Menu.of(["product:array:64,64,64"])).factor * roofline_ns(TWO, product)
    assert array[0] == pytest.approx(16_384 + 6 * 24_576)


def test_products_of_few_rows_are_filled_up_to_the_rows_of_a_tile():
    # 1 row of 64 columns and 64 deep: 64 x 64 x 64 products filled up, or 1, 16 and 32 rows of it
    wide = replace(TWO, units={}, memory_bandwidth_bytes_per_s=1e18)
    for rows, tile_rows, filled in ((1, 64, 64), (1, 1, 1), (1, 16, 16), (17, 16, 32), (200, 16, 256)):
        device = replace(wide, ops={"default": replace(IDEAL, tile_rows=tile_rows)})
        time = roofline_ns(device, OpTable.of([matmul(rows, 64, 64)]))[0]
        assert time == pytest.approx(2 * filled * 64 * 64 / 300, rel=1e-6)


def test_what_is_carried_out_is_what_the_kernel_does():
    ops = OpTable.of([matmul(64, 4096, 4096), elementwise(1000), matmul(8, 512, 512, batch=4)])
    choice = chosen(open_device("a100"), ops, Menu.of(["product:w4a4:g128"]))
    # 4 bits of weights and activations, 16 for each group of 128 weights, results in 2 bytes
    assert choice.ops.size_bytes[0] == 4096 * 4096 * 4.125 / 8 + 64 * 4096 * 0.5 + 64 * 4096 * 2
    assert choice.vector_flops.tolist() == [32 * 64 * 4096 * 4096 / 128, 0, 0]
    assert (choice.ops.dtype != ops.dtype).tolist() == [True, False, False]
    assert choice.ops.flops.tolist() == ops.flops.tolist()
    turns = chosen(open_device("a100"), ops, Menu.of(["product:array:64,64,64"]))
    # 64 x 64 turns that read 2 x 64 x 64 values of 2 bytes, 64 results, and what the first turn waits for
    assert turns.ops.size_bytes[0] == 64 * 64 * 2 * (2 * 64 * 64) + 64 * 64 * 64 * 2 + 2 * (2 * 64 * 64)


def test_operations_of_a_split_go_to_units_by_their_rates():
    choice = chosen(TWO, OpTable.of([matmul(4000, 4000, 4000)]), Menu.of(units="auto"))
    assert choice.flops_of == pytest.approx({"big": 0.75 * 2 * 4000**3, "small": 0.25 * 2 * 4000**3})


@pytest.mark.parametrize("seed", range(6))
def test_layouts_are_the_cheapest_of_all_ways(seed: int):
    draw = np.random.default_rng(seed)
    time, change = draw.uniform(0, 10, (2, 7)), draw.uniform(0, 6, 7)
    if seed == 5:
        time[0] = np.inf

    def cost(way: tuple[int, ...]) -> float:
        steps = zip((0, *way), way, change, strict=False)
        return sum(time[now, i] + (c if now != before else 0) for i, (before, now, c) in enumerate(steps))

    found = tuple(cheapest_layouts(time, change).tolist())
    assert cost(found) == pytest.approx(min(cost(way) for way in every_way((0, 1), repeat=7)))


def test_a_layout_is_paid_once_for_ops_that_share_it():
    # 512 x 512 inputs of 2 bytes read and written at 1 a ns: 1,048,576 ns, and 2,000 to start
    packed = replace(TWO, packed=("big",))
    ops = OpTable.of([matmul(512, 4096, 512)] * 3)
    free, paid = (chosen(device, ops, Menu.of(units="big")) for device in (TWO, packed))
    more = (paid.factor - free.factor) * roofline_ns(TWO, ops)
    assert more == pytest.approx([2 * 512 * 512 * 2, 0, 0])
    assert paid.repacked == 1
    assert paid.ops.size_bytes[0] - ops.size_bytes[0] == 2 * 512 * 512 * 2


def test_a_layout_can_cost_more_than_its_unit_gains():
    # 64 x 64 x 64: 1,311 ns on both, 1,748 on big, 5,243 on small; 16,384 bytes are packed, at 1 or at 1,000 a ns
    fits = replace(TWO, packed=("big",), cache_bytes=1 << 40)
    for speed, taken in ((4.0, "plain on small"), (1000.0, "plain on big+small")):
        choice = chosen(replace(fits, cache_speedup=speed), OpTable.of([matmul(64, 64, 64)]), Menu.of(units="auto"))
        assert choice.names[choice.number[0]] == taken


def test_layouts_make_no_choice_slower_than_one_unit_for_all():
    device, ops = open_device("phone-sme"), some_ops(17)
    base = roofline_ns(device, ops)
    auto = (chosen(device, ops, Menu.of(units="auto")).factor * base).sum()
    for units in ("cpu", "sme", "cpu+sme"):
        assert auto <= (chosen(device, ops, Menu.of(units=units)).factor * base).sum() * (1 + 1e-12)


def test_a_layout_of_no_unit_is_refused():
    with pytest.raises(ClusterError, match="packed: no unit `npu`"):
        replace(TWO, packed=("npu",))
    described = {"name": "d", "peak": {"fp32": "1T"}, "units": {"cpu": {"fp32": "1T"}}}
    with pytest.raises(ClusterError, match="expected a list"):
        Device.from_dict(described | {"packed": 1})
    assert Device.from_dict(described | {"packed": "cpu"}).packed == ("cpu",)

from dataclasses import replace
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.base.errors import MismatchError, UsageError
from etude.cost import ops
from etude.cost.compute import MeasuredOps, compute_time_ns, roofline_ns
from etude.cost.gemm import SPLITS, TILE_COLUMNS, TILE_ROWS, Core, fastest_tile_ns
from etude.cost.ops import OpClass, OpTable, Work
from etude.machine import device_names, open_device
from etude.machine.system import Device, OpCost
from etude.model.schema import UNKNOWN

PLAIN = OpCost(fixed_ns=0.0, flop_efficiency=1.0, memory_efficiency=1.0)
# 1000 FLOP/ns in the matrix units, 10 in the vector units, 1 byte/ns
TOY = Device(
    name="toy",
    peak_flop_per_s={"bf16": 1e12, "fp32": 1e10},
    memory_bandwidth_bytes_per_s=1e9,
    ops={"default": PLAIN},
)


SIZES = st.integers(1, 1 << 14)


def time_of(device: Device, *works: Work) -> list[int]:
    return compute_time_ns(device, OpTable.of(works)).tolist()


def test_the_roofline_is_the_longer_of_compute_and_memory():
    other = OpClass.OTHER
    assert time_of(
        TOY,
        Work(op_class=other, flops=5000, size_bytes=2),
        Work(op_class=other, flops=5000, size_bytes=70),
        Work(op_class=other, flops=5000),
        Work(op_class=other, size_bytes=70),
        Work(op_class=other),
    ) == [5, 70, 5, 70, UNKNOWN]


def test_vector_ops_run_at_the_vector_rate():
    assert time_of(TOY, Work(op_class=OpClass.ACTIVATION, flops=500, size_bytes=2)) == [50]


def test_efficiency_launch_and_traffic():
    cost = OpCost(fixed_ns=7.0, flop_efficiency=0.5, memory_efficiency=0.25, traffic=2.0)
    device = replace(TOY, ops={"copy": cost})
    assert time_of(device, ops.copy(10)) == [7 + 40 * 2 * 4]


def test_what_fits_the_cache_is_faster():
    device = replace(TOY, cache_bytes=100, cache_speedup=2.0)
    assert time_of(device, ops.copy(25), ops.copy(26)) == [50, 104]


def test_a_wider_type_lends_its_rate():
    assert TOY.peak("fp8") == 1e12  # from bf16
    assert TOY.peak("tf32") == 1e10
    assert Device(name="none").peak("bf16") == 0.0
    assert time_of(Device(name="none"), Work(op_class=OpClass.OTHER, flops=5)) == [UNKNOWN]


def test_tiles_of_a_gemm_come_in_waves():
    device = replace(TOY, cores=4, memory_bandwidth_bytes_per_s=1e15)
    one = ops.matmul(128, 512, 64)
    two = ops.matmul(128, 1024, 64)
    just_over = ops.matmul(128, 513, 64)
    t1, t2, t3 = time_of(device, one, two, just_over)
    # four tiles of 128 x 128, which take in 4/3 of what the largest does for each multiply-add
    assert t1 == pytest.approx(one.flops / 1000 * (1 + 0.2 * 4 / 3) / 1.2, rel=0.01)
    assert t2 == pytest.approx(two.flops / 1000, rel=0.01)  # four tiles of 128 x 256
    assert t3 > 1.2 * t1  # one column more starts another wave


def test_a_long_product_slows_down_to_what_lasts():
    device = replace(TOY, sustained_fraction=0.5, sustained_after_ns=1000.0)
    short, long = Work(op_class=OpClass.GEMM, flops=10_000), Work(op_class=OpClass.GEMM, flops=10**9)
    assert time_of(device, short, long) == [pytest.approx(10, abs=1), pytest.approx(2 * 10**6, rel=0.01)]


def test_cores_that_idle_are_not_slowed_down_for_it():
    """At the power limit half of the rate is left; a product that fills half of the cores takes no longer for it."""
    device = replace(TOY, cores=4, memory_bandwidth_bytes_per_s=1e15, sustained_fraction=0.5)
    full, half = ops.matmul(512, 256, 64), ops.matmul(256, 256, 64)
    fast, slow = time_of(device, full, half), time_of(device.busy(), full, half)
    assert slow[0] == pytest.approx(2 * full.flops / 1000, rel=0.01)
    assert slow[1] == pytest.approx(2 * half.flops / 1000, rel=0.01)
    assert fast[0] == pytest.approx(full.flops / 1000, rel=0.01) and fast[1] > 1.05 * half.flops / 1000


def test_a_deep_product_with_few_tiles_is_split():
    """64 x 64 x 65,536 on 4 cores of 250 FLOP/ns: one core would take 2,147,484 ns and 1.1111 for its small tile."""
    cost = replace(PLAIN, split_ns=1000.0)
    device = replace(TOY, cores=4, memory_bandwidth_bytes_per_s=1e15, ops={"gemm": cost})
    whole = 2 * 64 * 64 * 65_536 / 250 * (1 + 0.2 * 8 / 3) / 1.2
    assert time_of(device, ops.matmul(64, 64, 65_536)) == [pytest.approx(whole / 4 + 1000, rel=0.001)]
    dear = replace(device, ops={"gemm": replace(cost, split_ns=1e9)})
    assert time_of(dear, ops.matmul(64, 64, 65_536)) == [pytest.approx(whole, rel=0.001)]


def test_what_a_product_writes_is_not_all_hidden():
    device = replace(TOY, memory_bandwidth_bytes_per_s=1e12, ops={"gemm": PLAIN})
    work = ops.matmul(256, 256, 64)
    bare, written = time_of(device, work) + time_of(replace(device, ops={"gemm": replace(PLAIN, epilogue=0.5)}), work)
    assert written - bare == pytest.approx(0.5 * 2 * 256 * 256 / 1000, abs=1)  # 2 bytes each, 1000 bytes/ns


def test_short_rows_share_a_block():
    """A million rows of 128 at 2 ns each; of blocks of 1,024 elements eight rows share one. Rows of 4,096 do not."""
    alone = OpCost(fixed_ns=1.0, row_ns=2.0)
    device = replace(TOY, memory_bandwidth_bytes_per_s=1e12, ops={"normalisation": alone})
    shared = replace(device, ops={"normalisation": replace(alone, block=1024)})

    def saved_ns(rows: int, width: int) -> float:
        table = OpTable.of([ops.normalisation(rows, width)])
        return float(roofline_ns(device, table)[0] - roofline_ns(shared, table)[0])

    assert saved_ns(1_000_000, 128) == pytest.approx(1_000_000 * 2.0 * 7 / 8)
    assert saved_ns(1_000_000, 4096) == 0.0


def test_few_rows_take_as_long_as_one():
    """1,024 elements along a row take 500 ns; 2 rows of 2,048 have 24,576 bytes, at 1000 bytes/ns."""
    cost = replace(PLAIN, depth_ns=500.0)
    device = replace(TOY, memory_bandwidth_bytes_per_s=1e12, peak_flop_per_s={"fp32": 1e16}, ops={"activation": cost})
    few = ops.activation(2 * 2048, inputs=2, row_width=2048)
    many = ops.activation(2000 * 2048, inputs=2, row_width=2048)
    flat = ops.activation(2 * 2048, inputs=2)
    assert time_of(device, few, many, flat) == [1000, 24_576, 25]


def naive_tile_ns(m: int, n: int, k: int, batch: int, core: Core, ragged: bool) -> float:
    """The definition of `fastest_tile_ns`, one product at a time."""
    times = []
    for rows, columns in zip(TILE_ROWS, TILE_COLUMNS, strict=True):
        for split in SPLITS:
            high = floor(max(m / rows + 0.5, 1.0) * batch) if ragged else ceil(m / rows) * batch
            tiles = high * ceil(n / columns) * split
            deep = ceil(k / split / 64) * 64
            taken_in = (1 / rows + 1 / columns) / (1 / 128 + 1 / 256)
            slower = (1 + core.falloff * taken_in) / (1 + core.falloff)
            one = max(2 * rows * columns * deep * float(core.ns_per_flop[0]) * slower, core.depth_ns * deep / 1024)
            sums = core.split_ns + (split + 1) * 4 * m * n * batch * core.ns_per_byte if split > 1 else 0.0
            times.append(ceil(tiles / core.cores) * (one + core.wave_ns) + sums)
    return min(times)


@settings(deadline=None, max_examples=60)
@given(SIZES, SIZES, SIZES, st.sampled_from([1, 3, 64]), st.sampled_from([1, 84, 132]), st.floats(0.0, 2.0))
def test_the_fastest_tile_is_that_of_the_naive_search(m: int, n: int, k: int, batch: int, cores: int, falloff: float):
    core = Core(cores, np.array([1e-4]), falloff, 600.0, 250.0, 3000.0, 1e-4)
    shape = [np.array([x]) for x in (m, n, k, batch)]
    for ragged in (False, True):
        naive = naive_tile_ns(m, n, k, batch, core, ragged)
        assert fastest_tile_ns(*shape, core, ragged)[0] == pytest.approx(naive, rel=1e-9)


def test_attention_is_spread_over_the_cores():
    device = replace(TOY, cores=2, memory_bandwidth_bytes_per_s=1e15)
    work = ops.attention(256, 256, heads=2, head_size=128, causal=False)
    # 8 blocks of 128 x 128 and 2 for the diagonals, over 2 cores, and half of the chain of 2
    block_ns = 4 * 128**3 / 1000 * 2
    assert time_of(device, work) == [pytest.approx((10 / 2 + 1) * block_ns, rel=1e-3)]


def test_products_that_come_again_take_as_long():
    """Ten thousand products of few shapes, one by one and together; more shapes than are remembered."""
    device = open_device("h200")
    works = [ops.matmul(64 * (i % 7 + 1), 32 * (i % 1500 + 1), 64 * (i % 5 + 1)) for i in range(6000)]
    works += [replace(w, dtype="fp8") for w in works[:100]] + works[:3000]
    together = roofline_ns(device, OpTable.of(works))
    for i in (0, 1, 5999, 6000, 6050, 6100, 9099):
        assert together[i] == roofline_ns(device, OpTable.of([works[i]]))[0]


def test_measured_and_scaled():
    table = OpTable.plain(np.array([1, 1]), np.array([1, 1]))
    measured = np.array([100, UNKNOWN])
    assert compute_time_ns(TOY, table, mode="measured", measured_ns=measured).tolist() == [100, UNKNOWN]
    assert compute_time_ns(TOY, table, mode="scaled", measured_ns=measured, scale=0.25).tolist() == [25, UNKNOWN]
    with pytest.raises(UsageError, match="needs the measured times"):
        compute_time_ns(TOY, table, mode="measured")
    with pytest.raises(MismatchError, match="2 ops and 1 measured"):
        compute_time_ns(TOY, table, mode="measured", measured_ns=np.array([1]))
    with pytest.raises(UsageError, match="unknown mode `magic`"):
        compute_time_ns(TOY, table, mode="magic")


def test_a_table_is_met_at_its_points_and_leads_between_them():
    sizes = [1000, 4000]
    known = MeasuredOps(OpTable.of([ops.copy(n) for n in sizes]), np.array([8000, 32_000]))  # twice the formula
    asked = OpTable.of([ops.copy(1000), ops.copy(2000), ops.matmul(4, 4, 4)])
    time = compute_time_ns(TOY, asked, mode="table", table=known)
    assert time[0] == 8000
    assert 13_000 < time[1] < 16_001
    assert time[2] == compute_time_ns(TOY, asked)[2]  # a class that the table has not


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(device_names()), SIZES, SIZES, SIZES, st.sampled_from([1, 2, 7]))
def test_no_gemm_beats_the_peak(name: str, m: int, n: int, k: int, batch: int):
    device, work = open_device(name), ops.matmul(m, n, k, batch=batch)
    time = float(roofline_ns(device, OpTable.of([work]))[0])
    assert time >= work.flops / device.peak("bf16") * 1e9


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(["copy", "activation", "elementwise"]), st.integers(1, 1 << 30), st.integers(1, 1 << 30))
def test_more_elements_never_take_less_time(family: str, a: int, b: int):
    device = open_device("h200")
    works = [getattr(ops, family)(n) for n in sorted((a, b))]
    first, second = roofline_ns(device, OpTable.of(works)).tolist()
    assert first <= second

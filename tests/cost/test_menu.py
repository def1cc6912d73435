"""Units on one memory and other kernels for a product, worked by hand."""

import pytest

from etude.cost.menu import array_iterations, fastest_kernel, kernel_ns, sparse_bytes, units_ns
from etude.errors import UsageError
from etude.machine import Device

# 1000 FLOP per ns in bf16, 4 times that in fp4, 62.5 in fp32 (rho 64, q 4), 1 byte per ns
SLOW_MEMORY = Device(name="d", peak_flop_per_s={"bf16": 1e12, "fp4": 4e12, "fp32": 62.5e9},
                     memory_bandwidth_bytes_per_s=1e9)  # fmt: skip
FAST_MEMORY = Device(name="d", peak_flop_per_s={"bf16": 1e12, "fp4": 4e12, "fp32": 62.5e9},
                     memory_bandwidth_bytes_per_s=1e15)  # fmt: skip


def test_units_split_what_is_bound_by_compute():
    # 300 and 100 FLOP per ns: 4000 FLOPs take 10 ns together, 3/4 on the first
    assert units_ns(4000, 1, (300e9, 100e9), 1e9) == (pytest.approx(10), [0.75, 0.25])
    # 12 bytes at 1 per ns: 12 ns together, where the faster alone takes 13.3
    assert units_ns(4000, 12, (300e9, 100e9), 1e9)[0] == pytest.approx(12)
    # 20 bytes: the memory is the limit of the faster alone, and nothing is gained
    assert units_ns(4000, 20, (300e9, 100e9), 1e9) == (pytest.approx(20), [1.0, 0.0])
    assert units_ns(4000, 1, (300e9,), 1e9)[0] == pytest.approx(4000 / 300)


def test_a_plain_product_is_its_roofline():
    assert kernel_ns(FAST_MEMORY, 1000, 1000, 1000) == pytest.approx(2e6)
    assert kernel_ns(SLOW_MEMORY, 1, 1000, 1000) == pytest.approx(2 * (1000 + 1_000_000 + 1000))


@pytest.mark.parametrize(("group", "speed_up"), [(128, 0.5), (256, 1.0), (512, 2.0), (1024, 4.0), (4096, 4.0)])
def test_partial_sums_bound_a_product_of_four_bits(group: int, speed_up: float):
    plain, narrow = (kernel_ns(FAST_MEMORY, 4096, 4096, 4096, name) for name in ("product", f"product:w4a4:g{group}"))
    assert plain / narrow == pytest.approx(speed_up)


def test_narrow_weights_pay_where_the_memory_is_the_limit():
    plain, narrow = (kernel_ns(SLOW_MEMORY, 1, 8192, 8192, name) for name in ("product", "product:w4a16:g128"))
    assert plain / narrow == pytest.approx(16 / 4.125, rel=2e-3)
    assert kernel_ns(FAST_MEMORY, 4096, 4096, 4096, "product:w4a16:g128") == kernel_ns(FAST_MEMORY, 4096, 4096, 4096)


def test_a_level_of_strassen_pays_from_a_size_on():
    # n > 54 b P / B with b = 2, P = 1000 per ns, B = 100 per ns: from 1080 on
    device = Device(name="d", peak_flop_per_s={"bf16": 1e12}, memory_bandwidth_bytes_per_s=100e9)
    lcma = "product:lcma:2,2,2,7"
    assert fastest_kernel(device, 1000, 1000, 1000, [lcma])[0] == "product"
    assert fastest_kernel(device, 1200, 1200, 1200, [lcma])[0] == lcma
    assert kernel_ns(FAST_MEMORY, 4096, 4096, 4096, lcma) == pytest.approx(
        7 / 8 * kernel_ns(FAST_MEMORY, 4096, 4096, 4096), rel=1e-3
    )
    assert kernel_ns(device, 512, 512, 512, "product:lcma:2,2,2,8") == kernel_ns(device, 512, 512, 512)


def test_tiles_of_an_array():
    assert array_iterations((128, 64, 32), (64, 64, 32)) == 2
    assert array_iterations((129, 64, 32), (64, 64, 32)) == 3
    assert array_iterations((129, 65, 33), (64, 64, 32)) == 12
    once = kernel_ns(FAST_MEMORY, 64, 64, 64, "product:array:64,64,64")
    assert kernel_ns(FAST_MEMORY, 64, 64, 128, "product:array:64,64,64") == pytest.approx(2 * once)


def test_bytes_of_sparse_attention():
    dense = 1024 * 2 * 128 * 2
    assert sparse_bytes(1024, 128, [(32, 1.0)], 0.0) == dense
    # mixed and uniform blocks of one budget read the same keys and values
    mixed, uniform = ([(16, 0.25), (64, 0.25)], [(32, 0.25), (32, 0.25)])
    assert sparse_bytes(1024, 128, mixed, 0.0) == sparse_bytes(1024, 128, uniform, 0.0) == dense / 2
    assert sparse_bytes(1024, 128, [(32, 0.25)], 1.0) - sparse_bytes(1024, 128, [(32, 0.25)], 0.0) == 32 * 128


@pytest.mark.parametrize("kernel", ["gemm", "product:w4a4:g0", "product:lcma:2,2,2,9", "product:array:0,1,1"])
def test_bad_kernels_are_refused(kernel: str):
    with pytest.raises(UsageError):
        kernel_ns(FAST_MEMORY, 64, 64, 64, kernel)


def test_a_missing_rate_is_named():
    with pytest.raises(UsageError, match="no rate for products of 4 bits"):
        kernel_ns(Device(name="d", peak_flop_per_s={"bf16": 1e12}, memory_bandwidth_bytes_per_s=1e9), 8, 8, 8,
                  "product:w4a4:g8")  # fmt: skip
    with pytest.raises(UsageError, match="at least one unit"):
        units_ns(1, 1, (), 1e9)

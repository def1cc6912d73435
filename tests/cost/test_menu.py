"""Units on one memory and other kernels for a product, worked by hand."""

import pytest

from etude.base.errors import UsageError
from etude.cost.menu import fastest_kernel, kernel_figures, kernel_ns
from etude.machine import Device, open_device

# 1000 FLOP per ns in bf16, 4 times that in fp4, 62.5 in fp32 (rho 64, q 4), 1 byte per ns
SLOW_MEMORY = Device(name="d", peak_flop_per_s={"bf16": 1e12, "fp4": 4e12, "fp32": 62.5e9},
                     memory_bandwidth_bytes_per_s=1e9)  # fmt: skip
FAST_MEMORY = Device(name="d", peak_flop_per_s={"bf16": 1e12, "fp4": 4e12, "fp32": 62.5e9},
                     memory_bandwidth_bytes_per_s=1e15)  # fmt: skip


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
    """Of 128 x 64 x 192: three tiles deep, twice. At 1e9 bytes/s in bf16 a tile loads 16,384 bytes in 16,384 ns, its
    result of 8,192 bytes is written once for three; the first load is waited for."""
    slow = Device.from_dict({"name": "d", "peak": {"bf16": "100T"}, "memory_bandwidth": "1GB/s"})
    found = kernel_ns(slow, 128, 64, 192, "product:array:64,64,64")
    assert found == pytest.approx(16_384 + 6 * 16_384 + 2 * 8_192)


@pytest.mark.parametrize(("name", "group", "speed_up"), [
    ("a100", "128", 0.5), ("a100", "256", 1.0), ("a100", "row", 4.0),  # 1248 / 19.5 = 64, 1248 / 312 = 4
    ("a40", "128", 2.0), ("l40s", "128", 2.0), ("l40s", "row", 2.0),  # 598.7 / 37.4 = 16; 733 / 91.6 = 8, 733 / 362 = 2
    ("rtx3090", "128", 4.0), ("rtx3090", "row", 8.0),  # 568 / 35.6 = 16, 568 / 71 = 8 with sums in fp32
])  # fmt: skip
def test_the_ratio_of_integer_and_vector_rates_decides_how_coarse_groups_must_be(
    name: str, group: str, speed_up: float
):
    device = open_device(name)
    plain, narrow = (kernel_ns(device, 8192, 8192, 8192, kernel) for kernel in ("product", f"product:w4a4:g{group}"))
    assert plain / narrow == pytest.approx(speed_up, rel=0.02)


def test_a_quarter_of_the_columns_in_groups_has_a_quarter_of_the_partial_sums():
    # 32 x 4096^3 x (1/4 / 128 + 3/4 / 4096) vector operations at 62.5 a ns, against 2 x 4096^3 / 4000
    mixed = kernel_ns(FAST_MEMORY, 4096, 4096, 4096, "product:w4a4:g128:1,row:3")
    assert mixed == pytest.approx(32 * 4096**3 * (0.25 / 128 + 0.75 / 4096) / 62.5)
    assert kernel_ns(FAST_MEMORY, 4096, 4096, 4096, "product:w4a4:grow:2") == pytest.approx(2 * 4096**3 / 4000)


def test_zero_points_are_bits_of_each_group():
    # 4 + (16 + 16) / 128 bits of 16
    plain, narrow = (kernel_ns(SLOW_MEMORY, 1, 8192, 8192, name) for name in ("product", "product:w4a16:g128:z16"))
    assert plain / narrow == pytest.approx(16 / 4.25, rel=2e-3)


def test_kernels_apart_write_and_read_what_lies_between():
    # 4096 x 4096 weights: unpacked to a byte and scaled to two, each written and read once more
    fused, apart = (kernel_figures(SLOW_MEMORY, 16, 4096, 4096, f"product:w4a16:g128{how}") for how in ("", ":apart"))
    assert apart["size_bytes"] - fused["size_bytes"] == 2 * (1 + 2) * 4096 * 4096
    assert apart["flops"] == fused["flops"] == 2 * 16 * 4096 * 4096
    assert fused["size_bytes"] == 4096 * 4096 * 4.125 / 8 + 2 * 16 * 4096 * 2


def test_levels_of_fewer_products():
    two = kernel_figures(FAST_MEMORY, 4096, 4096, 4096, "product:lcma:2,2,2,7 levels=2")
    assert two["flops"] == pytest.approx(2 * 4096**3 * 49 / 64)
    # 18 additions of blocks of 2048^2, and 7 times 18 of 1024^2, three accesses of two bytes each, beside the operands
    assert two["size_bytes"] == 3 * 2 * 4096**2 + 18 * 6 * (2048**2 + 7 * 1024**2)
    fused = kernel_figures(FAST_MEMORY, 4096, 4096, 4096, "product:lcma:2,2,2,7 levels=2 fused=0.75")
    assert fused["size_bytes"] == 3 * 2 * 4096**2 + 18 * 6 * (2048**2 + 7 * 1024**2) / 4


def test_the_fastest_of_fewer_products_is_never_slower_than_the_plain_one():
    device = open_device("a100")
    for size in (64, 4096, 32768, 131072):
        taken = kernel_figures(device, size, size, size, "product:lcma:auto")
        assert taken["time_ns"] <= kernel_ns(device, size, size, size)
        assert (taken["taken"] == "product") == (size < 16525)  # 54 x 2 x 312 / 2.039
    assert kernel_figures(device, 131072, 131072, 131072, "product:lcma:auto fused=1")["taken"].endswith(
        "levels=2 fused=1"
    )


def test_energy_of_an_array_is_its_power_times_its_time():
    device = open_device("versal-aie16")
    small, large = (kernel_figures(device, n, n, n, "product:array:64,64,64") for n in (256, 512))
    assert small["energy_j"] == pytest.approx(10.677 * small["time_ns"] / 1e9)
    assert (small["iterations"], large["iterations"]) == (64, 512)
    assert small["operations_per_s"] < large["operations_per_s"] < 1.15 * small["operations_per_s"]


def test_a_product_on_units():
    # 2 and 0.52 TFLOP/s in 16 bits: both where compute is the limit, one where the memory is
    device = open_device("phone-sme")
    large, small = (kernel_figures(device, m, 4096, 4096, "product", "auto") for m in (4096, 1))
    assert large["unit_shares"] == pytest.approx({"sme": 2 / 2.52, "cpu": 0.52 / 2.52})
    assert large["time_ns"] == pytest.approx(2 * 4096**3 / 2520)
    assert small["units"] == "sme"


@pytest.mark.parametrize("kernel", [
    "gemm", "product:w4a4:g0", "product:lcma:2,2,2,9", "product:array:0,1,1", "product:w4a4:g128:0", "product:w17a16",
    "product:w4a4:g128:apart", "product:w16a16:apart", "product:w4a16:z17", "product:lcma:2,2,2,7 levels=0",
    "product:lcma:2,2,2,7 fused=2", "product:lcma:2,2,2,7 deep=1", "product:lcma:auto levels=2", "product:lcma:2,2",
])  # fmt: skip
def test_bad_kernels_are_refused(kernel: str):
    with pytest.raises(UsageError):
        kernel_ns(FAST_MEMORY, 64, 64, 64, kernel)


def test_a_missing_rate_is_named():
    with pytest.raises(UsageError, match="no rate for products of 4 bits"):
        kernel_ns(Device(name="d", peak_flop_per_s={"bf16": 1e12}, memory_bandwidth_bytes_per_s=1e9), 8, 8, 8,
                  "product:w4a4:g8")  # fmt: skip

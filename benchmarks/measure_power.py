"""Power of a GPU by its energy counter (NVML), in the columns that `etude energy --rows` reads.

    python benchmarks/measure_power.py -o mine.csv          # needs PyTorch, CUDA and the driver's NVML; about a minute
    python benchmarks/fit_power.py --cases mine.csv --system my.yaml

It has not been run on a device yet: its cases are those of the rows that the H200 was fitted to. Each case runs again
and again for some seconds; power is the difference of the counter over that time.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import time
from collections.abc import Callable

import torch

MEGA = 1 << 20


class Counter:
    """The counter of the first GPU, in mJ."""

    def __init__(self) -> None:
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.handle = ctypes.c_void_p()
        for code in (self.nvml.nvmlInit_v2(), self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle))):
            if code:
                raise SystemExit(f"NVML says {code}: is there a driver?")

    def joules(self) -> float:
        value = ctypes.c_ulonglong()
        if code := self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle, ctypes.byref(value)):
            raise SystemExit(f"NVML says {code}: this GPU has no energy counter")
        return value.value / 1000

    def edge(self) -> tuple[float, float]:
        """Time and count when it changes next: it does about every 100 ms."""
        before = self.joules()
        while (now := self.joules()) == before:
            pass
        return time.perf_counter(), now


def cases() -> dict[str, tuple[str, Callable[[], object]]]:
    def gemm(m: int, n: int, k: int) -> Callable[[], object]:
        a, b = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
        return lambda: a @ b

    a, b = (torch.randn(256 * MEGA, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out, rows = torch.empty_like(a), torch.randn(65536, 4096, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(1, 32, 16384, 128, device="cuda", dtype=torch.bfloat16)
    attend = torch.nn.functional.scaled_dot_product_attention
    half = 128 * MEGA
    return {
        "gemm_bf16_2048": ("gemm_bf16", gemm(2048, 2048, 2048)),
        "gemm_bf16_8192": ("gemm_bf16", gemm(8192, 8192, 8192)),
        "gemm_bf16_16x8192x8192": ("gemm_bf16", gemm(16, 8192, 8192)),
        "copy_256MiB": ("copy", lambda: out[:half].copy_(a[:half])),
        "add_256M": ("elementwise", lambda: torch.add(a, b, out=out)),
        "softmax_65536x4096": ("softmax", lambda: torch.softmax(rows, -1)),
        "attn_1x32x16384": ("attention", lambda: attend(q, q, q, is_causal=True)),
    }


def measured(counter: Counter, call: Callable[[], object] | None, seconds: float) -> tuple[float, float]:
    """Mean power in W, and calls in a second."""

    def run(until: float) -> int:
        calls = 0
        while time.perf_counter() < until:
            if call is None:
                time.sleep(0.05)
                continue
            for _ in range(8):
                call()
            torch.cuda.synchronize()
            calls += 8
        return calls

    run(time.perf_counter() + 1.0)
    begin, first = time.perf_counter(), counter.edge()
    calls = run(begin + seconds)
    lasted, last = time.perf_counter() - begin, (time.perf_counter(), counter.joules())
    return (last[1] - first[1]) / (last[0] - first[0]), calls / lasted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", required=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    counter = Counter()
    torch.zeros(1, device="cuda")
    with open(given.out, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["name", "kind", "detail", "duty", "mean_w", "energy_j_per_call"])
        watts, _ = measured(counter, None, given.seconds)
        out.writerow(["idle_start", "idle", "", 0, round(watts, 2), 0])
        for name, (kind, call) in cases().items():
            watts, rate = measured(counter, call, given.seconds)
            shape = name.removeprefix("gemm_bf16_") if name.count("x") == 2 and kind == "gemm_bf16" else ""
            out.writerow([name, kind, shape, 1, round(watts, 2), watts / rate])
            print(f"{name:28s} {watts:7.1f} W  {rate:10.1f} a second")


if __name__ == "__main__":
    main()

"""Power of a GPU by its energy counter (NVML), in the columns that `etude energy rows` reads.

    python benchmarks/measure_power.py -o mine.csv          # needs PyTorch, CUDA and the driver's NVML; two minutes
    python benchmarks/measure_power.py -o mine.csv --clocks 1500,1200,900 --caps 600,500      # with the right to do so
    python benchmarks/fit_power.py --cases mine.csv --system my.yaml

Each case is a CUDA graph that runs again and again for some seconds; power is the difference of the counter between two
of its changes, over the time between them. Clocks and caps are set with nvidia-smi and taken back at the end; where the
driver does not permit that, the script says so and measures the rest.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import subprocess
import time
from collections.abc import Callable

import torch

MEGA = 1 << 20
COLUMNS = ("name", "kind", "detail", "duty", "clock_mhz", "cap_w", "call_ns", "mean_w", "energy_j_per_call", "sm_mhz")
SWEPT = ("gemm_bf16_8192", "gemm_bf16_16x8192x8192", "copy_256MiB", "attn_1x32x16384", "gelu_256M")
"""Cases that are measured at each clock and under each cap."""


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

    def clock_mhz(self) -> int:
        value = ctypes.c_uint()
        self.nvml.nvmlDeviceGetClockInfo(self.handle, 1, ctypes.byref(value))
        return value.value


def cases() -> dict[str, tuple[str, str, Callable[[], object]]]:
    """Name -> kind, detail, call."""

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def gemm(m: int, n: int, k: int) -> tuple[str, str, Callable[[], object]]:
        a, b, out = made(m, k), made(k, n), made(m, n)
        return "gemm_bf16", f"{m}x{n}x{k}", lambda: torch.mm(a, b, out=out)

    def attention(batch: int, heads: int, length: int) -> tuple[str, str, Callable[[], object]]:
        q = made(batch, heads, length, 128)
        attend = torch.nn.functional.scaled_dot_product_attention
        return "attention", "", lambda: attend(q, q, q, is_causal=True)

    def softmax(rows: int, width: int) -> tuple[str, str, Callable[[], object]]:
        x = made(rows, width)
        return "softmax", "", lambda: torch.softmax(x, -1)

    a, b, out = (made(512 * MEGA) for _ in range(3))

    def copy(mebi: int) -> tuple[str, str, Callable[[], object]]:
        half = mebi * MEGA // 2
        return "copy", "", lambda: out[:half].copy_(a[:half])

    def add(mega: int) -> tuple[str, str, Callable[[], object]]:
        return "elementwise", "", lambda: torch.add(a[: mega * MEGA], b[: mega * MEGA], out=out[: mega * MEGA])

    gelu = torch.nn.functional.gelu
    return {
        "gemm_bf16_2048": gemm(2048, 2048, 2048),
        "gemm_bf16_8192": gemm(8192, 8192, 8192),
        "gemm_bf16_16x8192x8192": gemm(16, 8192, 8192),
        "gemm_bf16_64x14336x4096": gemm(64, 14336, 4096),
        "gemm_bf16_256x4096x14336": gemm(256, 4096, 14336),
        "gemm_bf16_4096x4096x512": gemm(4096, 4096, 512),
        "copy_256MiB": copy(256),
        "copy_32MiB": copy(32),
        "copy_1024MiB": copy(1024),
        "add_256M": add(256),
        "add_16M": add(16),
        "gelu_256M": ("activation", "", lambda: gelu(a[: 256 * MEGA])),
        "softmax_65536x4096": softmax(65536, 4096),
        "softmax_8192x32768": softmax(8192, 32768),
        "attn_1x32x16384": attention(1, 32, 16384),
        "attn_8x32x2048": attention(8, 32, 2048),
    }


def graph_of(call: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, int]:
    """Calls of about 10 ms together."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = max(1, min(200, int(0.01 / max(time.perf_counter() - begin, 1e-5))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return graph, count


class Meter:
    """Runs something for so long, and reads the counter at the first and the last change in that time."""

    def __init__(self, counter: Counter, seconds: float) -> None:
        self.counter, self.seconds = counter, seconds

    def measured(self, call: Callable[[], object] | None) -> tuple[float, float, int]:
        """Mean power in W, ns of a call, clock at the end."""
        graph, count = graph_of(call) if call is not None else (None, 0)
        self._run(graph, 0.6)
        edges, runs, lasted = self._run(graph, self.seconds)
        (first, before), (last, after) = edges[0], edges[-1]
        return (after - before) / (last - first), lasted / max(runs * count, 1) * 1e9, self.counter.clock_mhz()

    def _run(self, graph: torch.cuda.CUDAGraph | None, seconds: float) -> tuple[list[tuple[float, float]], int, float]:
        torch.cuda.synchronize()
        begin = now = time.perf_counter()
        edges, runs, known = [], 0, self.counter.joules()
        done: list[torch.cuda.Event] = []
        while now < begin + seconds:
            if graph is None:
                time.sleep(0.002)
            else:
                graph.replay()
                done.append(torch.cuda.Event())
                done[-1].record()
                runs += 1
                if len(done) > 2:  # two graphs are under way at any time
                    done.pop(0).synchronize()
            now, found = time.perf_counter(), self.counter.joules()
            if found != known:
                known = found
                edges.append((now, found))
        torch.cuda.synchronize()
        return edges, runs, time.perf_counter() - begin


def set_to(*flags: str) -> bool:
    """Whether nvidia-smi did it."""
    done = subprocess.run(["nvidia-smi", *flags], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"nvidia-smi {' '.join(flags)}: {(done.stdout + done.stderr).strip().splitlines()[0]}")
    return done.returncode == 0


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", required=True)
    parser.add_argument("--seconds", type=float, default=2.2)
    parser.add_argument("--clocks", default="", help="MHz, to lock the clock at")
    parser.add_argument("--caps", default="", help="W, to limit the power to")
    given = parser.parse_args()
    torch.zeros(1, device="cuda")
    meter, known = Meter(Counter(), given.seconds), cases()
    with open(given.out, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(COLUMNS)

        def row(name: str, clock: int = 0, cap: int = 0) -> None:
            kind, detail, call = known.get(name, ("idle", "", None))
            watts, call_ns, mhz = meter.measured(call)
            joules = watts * call_ns / 1e9 if call is not None else 0
            time_ns = round(call_ns, 1) if call is not None else 0
            out.writerow(
                [
                    name,
                    kind,
                    detail,
                    int(call is not None),
                    clock or "",
                    cap or "",
                    time_ns,
                    round(watts, 2),
                    joules,
                    mhz,
                ]
            )
            file.flush()
            print(f"{name:28s} {clock or '':>5} {cap or '':>4} {watts:7.1f} W  {time_ns / 1e3:10.1f} us  {mhz} MHz")

        for name in ("idle_start", *known):
            row(name)
        for clock in numbers(given.clocks):
            if set_to("-lgc", f"{clock},{clock}"):
                for name in ("idle_locked", *SWEPT):
                    row(name, clock=clock)
                set_to("-rgc")
        for cap in numbers(given.caps):
            if set_to("-pl", str(cap)):
                for name in SWEPT:
                    row(name, cap=cap)
                set_to("-pl", "700")


if __name__ == "__main__":
    main()

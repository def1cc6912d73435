"""Measures op times on the GPU at hand: the table that `validate_ops.py` and `etude.cost.calibrate` take.

    python benchmarks/measure_ops.py out.csv     # needs PyTorch and a GPU; made h200_ops_grid.csv in 20 s

Each op is captured into a CUDA graph of several calls and replayed; a time is the median over replays, per call, so the
host does not count. Columns: op, shape, flops, bytes, microseconds. A linear's shape is M x N x K, attention's is
batch x heads x sequence x head size.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

BATCHES = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
WEIGHTS = (
    (1024, 1024), (4096, 1024), (1024, 4096), (2048, 2048), (5632, 2048), (4096, 4096), (11008, 4096), (14336, 4096),
    (4096, 11008), (32000, 4096), (8192, 8192), (28672, 8192), (3072, 768), (50304, 768),
)  # fmt: skip
ROWS = (
    (512, 1024), (4096, 1024), (8192, 768), (16384, 1024), (16384, 2048), (4096, 4096), (16384, 4096), (2048, 8192),
    (8192, 8192), (4096, 16384),
)  # fmt: skip
ELEMENTS = tuple(4**k for k in range(6, 15))
CAUSAL = (
    (1, 16, 512, 64),
    (4, 16, 1024, 64),
    (1, 32, 2048, 128),
    (2, 32, 4096, 128),
    (1, 32, 8192, 128),
    (8, 12, 1024, 64),
)
DECODE = ((1, 32, 2048, 128), (16, 32, 2048, 128), (8, 8, 8192, 128), (64, 8, 8192, 128))

Case = tuple[str, tuple[int, ...], float, float, Callable[[], Any]]


def cases(torch: Any) -> Iterator[Case]:
    def made(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    f = torch.nn.functional
    for n, k in WEIGHTS:
        weight = made(n, k)
        for m in BATCHES:
            size = 2 * (m * n + n * k + m * k)
            yield "linear_bf16", (m, n, k), 2 * m * n * k, size, partial(f.linear, made(m, k), weight)
    sdpa = f.scaled_dot_product_attention
    for b, h, s, d in CAUSAL:
        call = partial(sdpa, made(b, h, s, d), made(b, h, s, d), made(b, h, s, d), is_causal=True)
        yield "sdpa_causal_bf16", (b, h, s, d), 2 * b * h * s * s * d, 8 * b * h * s * d, call
    for b, h, s, d in DECODE:
        call = partial(sdpa, made(b, h, 1, d), made(b, h, s, d), made(b, h, s, d))
        yield "sdpa_decode_bf16", (b, h, s, d), 4 * b * h * s * d, 4 * b * h * s * d, call
    for n in ELEMENTS:
        x, y, out = made(n), made(n), made(n)
        yield "add_bf16", (n,), n, 6 * n, partial(torch.add, x, y)
        yield "gelu_bf16", (n,), 8 * n, 4 * n, partial(f.gelu, x)
        yield "copy_bf16", (n,), 0, 4 * n, partial(out.copy_, x)
    for rows, width in ROWS:
        x, size = made(rows, width), 4 * rows * width
        yield "layernorm_bf16", (rows, width), 2 * size, size, partial(f.layer_norm, x, (width,))
        yield "softmax_bf16", (rows, width), 5 * rows * width, size, partial(f.softmax, x, -1)


def microseconds(torch: Any, call: Callable[[], Any], *, replays: int = 15) -> float:
    """Median time of one call over replays of a graph that holds several."""
    calls = 10
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        times = []
        for _ in range(replays):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / calls)
    del graph
    return statistics.median(times)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", help="the CSV file to write")
    args = parser.parse_args(argv)
    try:
        import torch
    except ImportError:
        torch = None
    if args.out is None or torch is None or not torch.cuda.is_available():
        print("skipped: needs a file to write, PyTorch and a GPU", file=sys.stderr)
        return 0

    with open(args.out, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("op", "shape", "flops", "bytes", "microseconds"))
        for op, shape, flops, size_bytes, call in cases(torch):
            time_us = microseconds(torch, call)
            writer.writerow((op, "x".join(map(str, shape)), int(flops), int(size_bytes), f"{time_us:.3f}"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

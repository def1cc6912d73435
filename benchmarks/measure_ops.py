"""Measures op times on the GPU at hand: the table that `validate_ops.py` and `etude.cost.calibrate` take.

    python benchmarks/measure_ops.py out.csv            # needs PyTorch and a GPU; made h200_ops_grid.csv in 20 s
    python benchmarks/measure_ops.py out.csv --set shapes   # products of other shapes
    python benchmarks/measure_ops.py out.csv --set experts  # products of experts
    python benchmarks/measure_ops.py out.csv --set uneven   # products of experts that are not equally full
    python benchmarks/measure_ops.py out.csv --set others   # 8 bits, small rows, attention

They made h200_ops_more.csv, h200_ops_experts.csv and h200_ops_uneven.csv, in 3 minutes.

Each op is captured into a CUDA graph of several calls and replayed; a time is the median over replays, per call, so the
host does not count. Columns: op, shape, flops, bytes, microseconds. A linear's shape is M x N x K, attention's is
batch x heads x sequence x head size, that of a product of experts is experts x rows of each x N x K. In `zipf1` rows of
the i-th fullest expert are as 1/i (`zipf05`: 1 over its root), in an order that is shuffled; in `uneven` they go evenly
from 0.25 to 1.75 of the mean. An op that this PyTorch or GPU does not have is left out, and said so.
"""

from __future__ import annotations

import argparse
import csv
import random
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

# -- the other sets: what the first did not have
MORE_ROWS = (48, 192, 384, 768, 1536, 3072, 6144, 16384)
MORE_WEIGHTS = (
    (1024, 1024), (3072, 1024), (4096, 1024), (8192, 1024), (6144, 2048), (2048, 512), (7168, 2048), (4096, 7168),
    (1536, 7168), (2880, 2880), (1024, 16384), (10240, 5120), (5120, 13824), (768, 3072), (6144, 8192),
)  # fmt: skip
WEIGHT_GRADIENTS = ((1024, 4096), (2048, 2048), (4096, 4096), (7168, 2048), (8192, 1024))
"""N and M of products whose reduced dimension is the tokens."""
TOKENS = (2048, 8192, 32768)
EXPERT_ROWS = (16, 64, 128, 256, 512, 1024, 4096)
EXPERTS = (
    # experts, N, K: both products of Qwen3-30B-A3B, DeepSeek-V3, Mixtral 8x7B, gpt-oss-120b and a small one
    (16, 1536, 2048), (16, 2048, 768), (64, 1536, 2048), (64, 2048, 768), (8, 4096, 7168), (8, 7168, 2048),
    (32, 4096, 7168), (32, 7168, 2048), (8, 28672, 4096), (8, 4096, 14336), (4, 5760, 2880), (16, 5760, 2880),
    (8, 2048, 1024), (1, 4096, 4096), (2, 28672, 4096),
)  # fmt: skip
EIGHT_BIT = ((4096, 4096), (7168, 2048), (4096, 7168), (14336, 4096), (8192, 8192), (3072, 1024))
EIGHT_BIT_ROWS = (128, 512, 2048, 8192)
MORE_CAUSAL = (
    (1, 32, 512, 128), (8, 32, 512, 128), (4, 32, 1024, 128), (1, 64, 4096, 128), (8, 16, 2048, 64), (1, 8, 8192, 128),
    (1, 16, 16384, 128), (16, 16, 512, 64),
)  # fmt: skip
SMALL_ROWS = ((1, 4096), (16, 4096), (64, 8192), (128, 2048), (256, 4096), (1024, 4096), (1024, 8192), (32768, 1024))

MEMORY_LIMIT = 24e9
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


def shapes(torch: Any) -> Iterator[Case]:
    """Products of other shapes, and gradients of weights, whose reduced dimension is the tokens."""

    def made(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    for n, k in MORE_WEIGHTS:
        weight = made(n, k)
        for m in MORE_ROWS:
            call = partial(torch.nn.functional.linear, made(m, k), weight)
            yield "linear_bf16", (m, n, k), 2 * m * n * k, _moved(m, n, k), call
    for n, m in WEIGHT_GRADIENTS:
        for k in TOKENS:
            # as a backward pass has it: the gradient transposed, times the input
            call = partial(torch.mm, made(k, m).t(), made(k, n))
            yield "linear_bf16", (m, n, k), 2 * m * n * k, _moved(m, n, k), call


def others(torch: Any) -> Iterator[Case]:
    """Products in 8 bits, few and many rows, attention."""

    def made(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    f = torch.nn.functional
    yield from _eight_bit(torch, made)
    for rows, width in SMALL_ROWS:
        x, gate, weight, size = made(rows, width), made(rows, width), made(width), 4 * rows * width
        yield "layernorm_bf16", (rows, width), 2 * size, size, partial(f.layer_norm, x, (width,))
        yield "rmsnorm_bf16", (rows, width), 2 * size, size, partial(f.rms_norm, x, (width,), weight)
        yield "softmax_bf16", (rows, width), 5 * rows * width, size, partial(f.softmax, x, -1)
        yield "add_bf16", (rows * width,), rows * width, 6 * rows * width, partial(torch.add, x, gate)
        yield "gelu_bf16", (rows * width,), 2 * size, size, partial(f.gelu, x)
        order = torch.randperm(rows, device="cuda")
        yield "gather_bf16", (rows, width), 0, size, partial(torch.index_select, x, 0, order)
        cast = partial(x.to, torch.float8_e4m3fn)
        yield "cast_fp8", (rows, width), 0, 3 * rows * width, cast
    for b, h, s, d in MORE_CAUSAL:
        q, k, v = (made(b, h, s, d) for _ in range(3))
        flops, size = 2 * b * h * s * s * d, 8 * b * h * s * d
        call = partial(f.scaled_dot_product_attention, q, k, v, is_causal=True)
        yield "sdpa_causal_bf16", (b, h, s, d), flops, size, call


def _moved(m: int, n: int, k: int) -> int:
    return 2 * (m * n + n * k + m * k)


def experts(torch: Any) -> Iterator[Case]:
    """Rows sorted by expert times a weight of each: forward, and the gradient of the weights."""

    def made(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    for count, n, k in EXPERTS:
        weight = made(count, n, k).transpose(1, 2)
        for rows in EXPERT_ROWS:
            if 2 * count * rows * (n + k) > MEMORY_LIMIT:
                continue
            ends = torch.arange(1, count + 1, device="cuda", dtype=torch.int32) * rows
            x, g = made(count * rows, k), made(count * rows, n)
            shape, flops, size = (count, rows, n, k), 2 * count * rows * n * k, count * _moved(rows, n, k)
            yield "grouped_bf16", shape, flops, size, partial(torch._grouped_mm, x, weight, offs=ends)
            yield "grouped_weight_bf16", shape, flops, size, partial(torch._grouped_mm, g.t(), x, offs=ends)
            if count > 1 and rows >= 64:
                steep = torch.linspace(0.25, 1.75, count)
                ends = (torch.cumsum(steep, 0) / steep.sum() * count * rows).round().clamp(max=count * rows)
                uneven = ends.to(device="cuda", dtype=torch.int32)
                yield "grouped_uneven_bf16", shape, flops, size, partial(torch._grouped_mm, x, weight, offs=uneven)


def uneven(torch: Any) -> Iterator[Case]:
    """The same where experts are not equally full."""

    def made(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    for count, n, k in EXPERTS:
        weight = made(count, n, k).transpose(1, 2)
        for rows in EXPERT_ROWS if count > 1 else ():
            if 2 * count * rows * (n + k) > MEMORY_LIMIT:
                continue
            x, g = made(count * rows, k), made(count * rows, n)
            shape, flops, size = (count, rows, n, k), 2 * count * rows * n * k, count * _moved(rows, n, k)
            for name, power in (("zipf05", 0.5), ("zipf1", 1.0)):
                ends = torch.tensor(zipf_ends(count, rows, power), device="cuda", dtype=torch.int32)
                yield f"grouped_{name}_bf16", shape, flops, size, partial(torch._grouped_mm, x, weight, offs=ends)
                call = partial(torch._grouped_mm, g.t(), x, offs=ends)
                yield f"grouped_weight_{name}_bf16", shape, flops, size, call


def zipf_ends(count: int, rows: int, power: float) -> list[int]:
    """Where the rows of each expert end: of the i-th fullest as i ** -power, all together count x rows."""
    loads = [i**-power for i in range(1, count + 1)]
    random.Random(0).shuffle(loads)
    total, ends = 0.0, []
    for load in loads:
        total += load
        ends.append(round(total / sum(loads) * count * rows))
    return ends


def _eight_bit(torch: Any, made: Callable[..., Any]) -> Iterator[Case]:
    one = torch.ones((), device="cuda")
    for n, k in EIGHT_BIT:
        weight = made(n, k).to(torch.float8_e4m3fn).t()
        for m in EIGHT_BIT_ROWS:
            x = made(m, k).to(torch.float8_e4m3fn)
            call = partial(torch._scaled_mm, x, weight, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
            yield "linear_fp8", (m, n, k), 2 * m * n * k, m * k + n * k + 2 * m * n, call


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


SETS = {"grid": cases, "shapes": shapes, "experts": experts, "uneven": uneven, "others": others}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", help="the CSV file to write")
    parser.add_argument("--set", choices=tuple(SETS), default="grid", help="which ops")
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
        lacking: set[str] = set()
        for op, shape, flops, size_bytes, call in SETS[args.set](torch):
            if op in lacking:
                continue
            try:
                call()
            except (RuntimeError, AttributeError, NotImplementedError) as problem:
                print(f"left out: {op} {shape}: {problem}", file=sys.stderr)
                lacking.add(op)
                continue
            time_us = microseconds(torch, call)
            writer.writerow((op, "x".join(map(str, shape)), int(flops), int(size_bytes), f"{time_us:.3f}"))
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

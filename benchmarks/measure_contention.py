"""Operators beside one another on one GPU, timed: makes `h200_pairs.csv`, with the columns of `etude ops contend`.

python benchmarks/measure_contention.py OUT.csv          needs PyTorch and a GPU; 20 s on an H200
python benchmarks/measure_contention.py OUT.csv later    twelve operators more, each beside each: `h200_pairs_later.csv`

The operator repeats in a CUDA graph on one stream while the background repeats on another; both are released by one
event. Median of three; `covered` is 0 where the background ended first.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Op = tuple[Callable[[], Any], int, int]


def tensor(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def gemm(m: int, n: int, k: int) -> Op:
    a, b, c = tensor(m, k), tensor(k, n), tensor(m, n)
    return lambda: torch.mm(a, b, out=c), 2 * m * n * k, 2 * (m * n + m * k + n * k)


def add(n: int) -> Op:
    a, b, c = tensor(n), tensor(n), tensor(n)
    return lambda: torch.add(a, b, out=c), n, 6 * n


def copy(size: int) -> Op:
    a, b = (torch.empty(size, device="cuda", dtype=torch.uint8) for _ in range(2))
    return lambda: b.copy_(a), 0, 2 * size


def unary(function: Callable[[Any], Any], *shape: int) -> Op:
    a = tensor(*shape)
    return lambda: function(a), 0, 4 * a.numel()


def layer_norm(rows: int, width: int) -> Op:
    a, weight, bias = tensor(rows, width), tensor(width), tensor(width)
    return lambda: functional.layer_norm(a, (width,), weight, bias), 0, 4 * rows * width


def attention(batch: int, heads: int, seq: int, head: int) -> Op:
    q, k, v = (tensor(batch, heads, seq, head) for _ in range(3))
    flops, size = 2 * batch * heads * seq * seq * head, 8 * batch * heads * seq * head
    return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True), flops, size


OPS: dict[str, Callable[[], Op]] = {
    "gemm_1024": lambda: gemm(1024, 1024, 1024),
    "gemm_2048": lambda: gemm(2048, 2048, 2048),
    "gemm_4096": lambda: gemm(4096, 4096, 4096),
    "gemm_8192": lambda: gemm(8192, 8192, 8192),
    "gemm_m64_n8192_k8192": lambda: gemm(64, 8192, 8192),
    "attn_1x32x4096x128": lambda: attention(1, 32, 4096, 128),
    "add_128M": lambda: add(1 << 27),
    "copy_256MiB": lambda: copy(1 << 28),
    "layernorm_16384x4096": lambda: layer_norm(16384, 4096),
    "gemm_3072": lambda: gemm(3072, 3072, 3072),
    "gemm_m512_n4096_k4096": lambda: gemm(512, 4096, 4096),
    "gemm_m8192_n1024_k8192": lambda: gemm(8192, 1024, 8192),
    "gelu_64M": lambda: unary(functional.gelu, 1 << 26),
    "softmax_8192x8192": lambda: unary(lambda x: functional.softmax(x, -1), 8192, 8192),
    "attn_4x16x2048x64": lambda: attention(4, 16, 2048, 64),
    "copy_64MiB": lambda: copy(1 << 26),
}
LATER: dict[str, Callable[[], Op]] = {
    "gemm_1536": lambda: gemm(1536, 1536, 1536),
    "gemm_6144": lambda: gemm(6144, 6144, 6144),
    "gemm_m128_n8192_k4096": lambda: gemm(128, 8192, 4096),
    "gemm_m4096_n4096_k1024": lambda: gemm(4096, 4096, 1024),
    "gemm_m256_n16384_k4096": lambda: gemm(256, 16384, 4096),
    "attn_2x32x2048x128": lambda: attention(2, 32, 2048, 128),
    "attn_8x8x1024x128": lambda: attention(8, 8, 1024, 128),
    "add_32M": lambda: add(1 << 25),
    "silu_128M": lambda: unary(functional.silu, 1 << 27),
    "layernorm_4096x8192": lambda: layer_norm(4096, 8192),
    "softmax_4096x16384": lambda: unary(lambda x: functional.softmax(x, -1), 4096, 16384),
    "copy_128MiB": lambda: copy(1 << 27),
}
"""Chosen before any of them was measured, when the model stood."""
OLD = ("gemm_2048", "gemm_8192", "attn_1x32x4096x128", "add_128M", "layernorm_16384x4096", "gemm_m64_n8192_k8192")
NEW = tuple(OPS)[9:]
SAME = ("gemm_8192", "copy_256MiB", "gemm_1024", "gemm_2048", "gemm_4096")
COLUMNS = (
    "op,background,priority,op_alone_ns,op_with_background_ns,slowdown,background_alone_ns,background_with_op_ns,"
    "background_slowdown_whole,covered,repetitions,op_flops,op_bytes,background_flops,background_bytes,n,m"
)


def graph(run: Callable[[], Any], count: int, stream: Any) -> Any:
    run()
    torch.cuda.synchronize()
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made, stream=stream):
        for _ in range(count):
            run()
    return made


def event() -> Any:
    return torch.cuda.Event(enable_timing=True)


def alone(name: str) -> tuple[float, int, int]:
    run, flops, size = OPS[name]()
    stream = torch.cuda.Stream()
    made = graph(run, 20, stream)
    times = []
    with torch.cuda.stream(stream):
        for _ in range(5):
            begin, end = event(), event()
            begin.record(stream)
            made.replay()
            end.record(stream)
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e6 / 20)
    return statistics.median(times), flops, size


def pair(op: str, background: str, n: int, m: int) -> tuple[float, float, int]:
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    runs = OPS[op]()[0], OPS[background]()[0]  # they hold the tensors that the graphs read
    graphs = graph(runs[0], n, streams[0]), graph(runs[1], m, streams[1])
    filler = torch.empty(1 << 28, device="cuda", dtype=torch.float32)
    found = []
    for _ in range(3):
        torch.cuda.synchronize()
        for _ in range(4):
            filler.zero_()
        go = torch.cuda.Event()
        go.record()
        begin, end = (event(), event()), (event(), event())
        for stream in streams:
            stream.wait_event(go)
        for k in (1, 0):
            with torch.cuda.stream(streams[k]):
                begin[k].record(streams[k])
                graphs[k].replay()
                end[k].record(streams[k])
        torch.cuda.synchronize()
        took, whole = begin[0].elapsed_time(end[0]), begin[0].elapsed_time(end[1])
        found.append((took * 1e6 / n, begin[1].elapsed_time(end[1]) * 1e6 / m, int(whole >= took)))
    return sorted(found)[1]


def main() -> None:
    OPS.update(LATER)
    if sys.argv[2:] == ["later"]:
        todo = [(a, b) for a in LATER for b in LATER]
    else:
        todo = [(a, b) for a in NEW for b in NEW] + [(a, b) for a in NEW for b in OLD]
        todo += [(b, a) for a in NEW for b in OLD] + [(a, a) for a in SAME]
    base = {name: alone(name) for name in OPS}
    with open(sys.argv[1], "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS.split(","))
        for op, background in todo:
            (a, *of_op), (b, *of_background) = base[op], base[background]
            n = max(6, min(200, int(10e6 / (a + b))))
            m = max(6, min(4000, int(n * (a + b) * 1.6 / b) + 2))
            took, other, covered = pair(op, background, n, m)
            writer.writerow([
                op, background, "equal", int(a), int(took), round(took / a, 5), int(b), int(other), round(other / b, 5),
                covered, 3, *of_op, *of_background, n, m,
            ])  # fmt: skip
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

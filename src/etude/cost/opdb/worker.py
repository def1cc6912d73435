"""Measures the points of a plan with PyTorch, on this machine's GPU or CPU. Needs the standard library and torch alone.

    python worker.py plan.json -o points.csv [--budget 300]

A plan is what `etude ops measure --plan-only plan.json` writes; `etude ops add points.csv --db FILE` takes the points.
The points are measured in the order of the plan until the budget is spent; each is written as soon as it is known, so
that an interrupted run keeps what it has, and one that is started again goes on behind it. On a GPU calls are captured
into a CUDA graph, so that the host does not count, over several sets of tensors, so that the caches hold none of them.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

FIXED = ("n", "k", "heads", "kv_heads", "head_size", "experts", "inputs", "element_bytes")
FREE = ("tokens", "keys", "batch", "batch_keys", "elements")
COLUMNS = ("device", "backend", "op", "dtype", *FIXED, *FREE, "time_us", "repeat", "source")
"""The columns of the database (schema.py); a test keeps them equal."""
TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
MOVED = 200_000_000
"""Least total bytes of all sets of tensors, for a small op: several times a cache."""
SETS = 8
MEMORY_PART = 0.6
"""Fraction of the device's memory that a point may take."""
LONG_S = 0.05
"""Each point runs for at least this long, so that clocks and power settle."""

log = logging.getLogger("etude.ops")
Point = dict[str, Any]
Call = Callable[[], Any]


class UnsupportedError(Exception):
    """This PyTorch or device does not have the op, or not this size of it."""


# -- ops ---------------------------------------------------------------------------------------------------------------


class Maker:
    """Tensors on a device."""

    def __init__(self, torch: Any, device: str, dtype: str) -> None:
        if dtype not in TYPES:
            raise UnsupportedError(f"data type {dtype}")
        self.torch, self.device, self.dtype = torch, device, getattr(torch, TYPES[dtype])

    def __call__(self, *shape: int, **more: Any) -> Any:
        return self.torch.randn(*shape, device=self.device, dtype=more.pop("dtype", self.dtype), **more)

    def numbers(self, most: int, *shape: int) -> Any:
        return self.torch.randint(most, shape, device=self.device)


def call_of(point: Point, torch: Any, device: str) -> Call:
    """One set of tensors, and the call that is measured with it."""
    made = Maker(torch, device, point["dtype"])
    op, d = point["op"], {name: int(point.get(name) or 0) for name in FIXED + FREE}
    for prefix, build in BUILDERS.items():
        if op == prefix or op.startswith(prefix + "_"):
            found: Call = build(torch, made, op, d)
            return found
    raise UnsupportedError(f"op {op}")


def _linear(torch: Any, made: Maker, op: str, d: dict[str, int]) -> Call:
    rows, n, k = d["tokens"], d["n"], d["k"]
    if op == "linear_weight":  # as a backward pass has it: the gradient transposed, times the input
        gradient, x = made(rows, n), made(rows, k)
        return lambda: torch.mm(gradient.t(), x)
    if op == "linear_input":
        x, weight = made(rows, k), made(k, n)
        return lambda: torch.mm(x, weight)
    x, weight = made(rows, k), made(n, k)
    return lambda: torch.nn.functional.linear(x, weight)


def _grouped(torch: Any, made: Maker, op: str, d: dict[str, int]) -> Call:
    experts, rows, n, k = d["experts"], d["tokens"], d["n"], d["k"]
    ends = torch.arange(1, experts + 1, device=made.device, dtype=torch.int32) * rows
    x = made(experts * rows, k)
    if op == "grouped_weight":
        gradient = made(experts * rows, n)
        return lambda: torch._grouped_mm(gradient.t(), x, offs=ends)
    weight = made(experts, k, n) if op == "grouped_input" else made(experts, n, k).transpose(1, 2)
    return lambda: torch._grouped_mm(x, weight, offs=ends)


def _attention(torch: Any, made: Maker, op: str, d: dict[str, int]) -> Call:
    if op == "attention_serve":
        return _serve(torch, made, d)
    batch, heads, kv, size = d["batch"], d["heads"], d["kv_heads"], d["head_size"]
    if d["tokens"] != d["keys"]:
        raise UnsupportedError("queries and keys of other numbers")
    grows = {"requires_grad": True} if op == "attention_backward" else {}
    # as in a layer: heads after the sequence
    q, k, v = (made(batch, d["tokens"], h, size, **grows) for h in (heads, kv, kv))
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def forward() -> Any:
        parts = (t.transpose(1, 2) for t in (q, k, v))
        return sdpa(*parts, is_causal=True, **({"enable_gqa": True} if heads != kv else {}))

    if not grows:
        return forward
    return _backward(torch, forward, (q, k, v))


def _backward(torch: Any, forward: Call, inputs: tuple[Any, ...]) -> Call:
    """The backward pass of one forward pass."""
    with torch.enable_grad():
        out = forward()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def _serve(torch: Any, made: Maker, d: dict[str, int]) -> Call:
    """A prompt after earlier tokens, and one token for each of several sequences."""
    heads, kv, size = d["heads"], d["kv_heads"], d["head_size"]
    sdpa, more = torch.nn.functional.scaled_dot_product_attention, {"enable_gqa": True} if heads != kv else {}
    calls: list[Call] = []
    if d["tokens"]:
        from torch.nn.attention.bias import causal_lower_right

        held = d["tokens"] + d["keys"]
        q, k, v = (
            made(1, length, h, size).transpose(1, 2) for length, h in ((d["tokens"], heads), (held, kv), (held, kv))
        )
        if d["keys"]:
            if heads != kv:  # the biased form needs as many heads of keys as of queries
                k, v = (t.repeat_interleave(heads // kv, dim=1) for t in (k, v))
            mask = causal_lower_right(d["tokens"], held)
            calls.append(lambda: sdpa(q, k, v, attn_mask=mask))
        else:
            calls.append(lambda: sdpa(q, k, v, is_causal=True, **more))
    if d["batch"]:
        q1, k1, v1 = (
            made(d["batch"], n, h, size).transpose(1, 2)
            for n, h in ((1, heads), (d["batch_keys"], kv), (d["batch_keys"], kv))
        )
        calls.append(lambda: sdpa(q1, k1, v1, **more))
    return lambda: [one() for one in calls]


def _norm(torch: Any, made: Maker, op: str, d: dict[str, int]) -> Call:
    grows = {"requires_grad": True} if op.endswith("backward") else {}
    x, weight = made(d["tokens"], d["n"], **grows), made(d["n"], **grows)
    f = torch.nn.functional
    if op.startswith("rms"):
        inputs: tuple[Any, ...] = (x, weight)
        forward = lambda: f.rms_norm(x, (d["n"],), weight)  # noqa: E731
    else:
        bias = made(d["n"], **grows)
        inputs = (x, weight, bias)
        forward = lambda: f.layer_norm(x, (d["n"],), weight, bias)  # noqa: E731
    return _backward(torch, forward, inputs) if grows else forward


def _softmax(torch: Any, made: Maker, op: str, d: dict[str, int]) -> Call:
    x = made(d["tokens"], d["n"])
    if op == "softmax_backward":
        out = torch.log_softmax(x, -1)
        gradient = made(d["tokens"], d["n"])
        return lambda: torch.ops.aten._log_softmax_backward_data(gradient, out, -1, x.dtype)
    if op == "log_softmax":
        return lambda: torch.log_softmax(x, -1)
    return lambda: torch.softmax(x, -1)


def _multinomial(torch: Any, made: Maker, op: str, d: dict[str, int]) -> Call:
    chances = torch.softmax(made(d["tokens"], d["n"]), -1)
    return lambda: torch.multinomial(chances, 1)


def _embedding(torch: Any, made: Maker, op: str, d: dict[str, int]) -> Call:
    rows = d["k"] or 32768
    picked = made.numbers(rows, d["tokens"])
    if op == "embedding_backward":
        gradient = made(d["tokens"], d["n"])
        return lambda: torch.ops.aten.embedding_dense_backward(gradient, picked, rows, -1, False)
    table = made(rows, d["n"])
    return lambda: torch.nn.functional.embedding(picked, table)


def _elementwise(torch: Any, made: Maker, op: str, d: dict[str, int]) -> Call:
    f, n = torch.nn.functional, d["elements"]
    x = made(n)
    if op in ("gelu_backward", "silu_backward"):
        return _activation_backward(torch, made, op, d)
    if op == "silu" and d["inputs"] == 2:
        y = made(n)
        return lambda: f.silu(x) * y
    if op in ("add", "mul") and d["inputs"] == 2:
        y = made(n)
        return lambda: getattr(torch, op)(x, y)
    if op == "cast":
        source = made(n, dtype=torch.bfloat16)
        return lambda: source.to(torch.float32)
    if op == "copy":
        return lambda: x.clone()
    if op == "gather":
        wide = next((w for w in (4096, 2048, 1024, 512, 256, 128) if n % w == 0), 1)
        rows, order = x.view(-1, wide), torch.randperm(n // wide, device=made.device)
        return lambda: torch.index_select(rows, 0, order)
    if op == "norm":
        parts = list(x.split(1 << 24))
        return lambda: torch._foreach_norm(parts)
    one = {"add": lambda: torch.add(x, 1.0), "mul": lambda: torch.mul(x, 0.5), "gelu": lambda: f.gelu(x),
           "silu": lambda: f.silu(x), "relu": lambda: f.relu(x)}  # fmt: skip
    return one[op]


def _activation_backward(torch: Any, made: Maker, op: str, d: dict[str, int]) -> Call:
    x, gradient, aten = made(d["elements"]), made(d["elements"]), torch.ops.aten
    if op == "gelu_backward":
        return lambda: aten.gelu_backward(gradient, x)
    if d["inputs"] < 3:
        return lambda: aten.silu_backward(gradient, x)
    y = made(d["elements"], requires_grad=True)
    x.requires_grad_()
    return _backward(torch, lambda: torch.nn.functional.silu(x) * y, (x, y))


def _adamw(torch: Any, made: Maker, op: str, d: dict[str, int]) -> Call:
    kinds = {14: torch.bfloat16, 28: torch.float32}
    if d["element_bytes"] not in kinds:
        raise UnsupportedError(f"an update that moves {d['element_bytes']} bytes for an element")
    sizes = [1 << 24] * (d["elements"] >> 24) + ([d["elements"] % (1 << 24)] if d["elements"] % (1 << 24) else [])
    weights = [made(size, dtype=kinds[d["element_bytes"]]).requires_grad_() for size in sizes]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW(weights, lr=1e-5, fused=True, capturable=made.device == "cuda")
    return lambda: optimizer.step()


BUILDERS: dict[str, Callable[[Any, Maker, str, dict[str, int]], Call]] = {
    "linear": _linear, "grouped": _grouped, "attention": _attention, "rms_norm": _norm, "layer_norm": _norm,
    "softmax": _softmax, "log_softmax": _softmax, "multinomial": _multinomial, "embedding": _embedding,
    "adamw": _adamw, **dict.fromkeys(("add", "mul", "gelu", "silu", "relu", "cast", "copy", "gather", "norm"),
                                     _elementwise),
}  # fmt: skip


# -- the host ----------------------------------------------------------------------------------------------------------


def host_us(torch: Any, device: str, repeats: int) -> list[float]:
    """Time of the host to issue one op of a training step, in eager mode: a step of a small model, whose ops the device
    finishes long before the next arrives."""
    from torch import nn

    layers, hidden, heads, vocab = 8, 64, 4, 128

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
            self.qkv, self.out = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
            self.gate, self.up = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
            self.down = nn.Linear(hidden, hidden, bias=False)

        def forward(self, x: Any) -> Any:
            b, s, h = x.shape
            q, k, v = self.qkv(self.first(x)).view(b, s, 3, heads, -1).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(b, s, h))
            y = self.second(x)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    model = nn.Sequential(
        nn.Embedding(vocab, hidden),
        *(Layer() for _ in range(layers)),
        nn.RMSNorm(hidden),
        nn.Linear(hidden, vocab, bias=False),
    ).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens, labels = torch.randint(vocab, (1, 16), device=device), torch.randint(vocab, (16,), device=device)

    def step() -> None:
        nn.functional.cross_entropy(model(tokens).view(-1, vocab), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    found = []
    for _ in range(repeats + 1):
        times = []
        for _ in range(20):
            wait()
            begin = time.perf_counter()
            step()
            wait()
            times.append(time.perf_counter() - begin)
        found.append(statistics.median(times) * 1e6 / ops_of_a_step(layers))
    return found[1:]


def ops_of_a_step(layers: int) -> int:
    """Ops of a step of this model as Etude counts them: those in a generated trace of it."""
    return 24 * layers + 12


# -- timing ------------------------------------------------------------------------------------------------------------


def size_of(point: Point) -> float:
    """Bytes of its tensors, roughly."""
    d = {name: int(point.get(name) or 0) for name in FIXED + FREE}
    width = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}.get(point["dtype"], 2)
    op = point["op"]
    rows, n, k = d["tokens"], d["n"], d["k"]
    if op.startswith(("linear", "grouped")):
        return float(width * max(d["experts"], 1) * (rows * n + rows * k + n * k))
    if op.startswith("attention"):
        queries = max(d["batch"], 1) * rows + d["batch"] * (op == "attention_serve")
        keys = rows + d["keys"] + d["batch"] * d["batch_keys"] if op == "attention_serve" else d["batch"] * d["keys"]
        return float(width * d["head_size"] * (2 * queries * d["heads"] + 2 * keys * max(d["kv_heads"], 1)))
    if op == "adamw":
        return float(d["elements"] * (d["element_bytes"] // 7) * 4)
    if op.startswith("embedding"):
        return float(width * (rows * n + max(k, 32768) * n))
    return float(width * (2 * rows * n + d["elements"] * (d["inputs"] + 1)) * (3 if "backward" in op else 1))


def measured(point: Point, torch: Any, device: str, repeats: int) -> list[float]:
    """Microseconds of one call, once for each repeat."""
    if point["op"] == "host":
        return host_us(torch, device, repeats)
    size = size_of(point)
    if device == "cuda":
        limit = torch.cuda.get_device_properties(0).total_memory * MEMORY_PART
        needed = size if point["op"] == "adamw" else 3 * size  # it works in place
        if needed > limit:
            raise UnsupportedError(f"{needed / 1e9:.0f} GB of tensors")
    sets = 1 if device == "cpu" or point["op"] == "adamw" else min(max(int(MOVED / max(size, 1)), 1), SETS)
    if device == "cpu":
        with torch.no_grad():
            return _on_cpu(call_of(point, torch, device), repeats)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    # A backward pass runs on the stream of its forward pass, which must be the one that is captured.
    with torch.cuda.stream(side), torch.no_grad():
        return _on_gpu(torch, [call_of(point, torch, device) for _ in range(sets)], repeats)


def _on_cpu(call: Call, repeats: int) -> list[float]:
    found = []
    begin = time.perf_counter()
    call()
    once = max(time.perf_counter() - begin, 1e-7)
    count = min(max(int(LONG_S / 5 / once), 1), 10000)
    for _ in range(repeats):
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(count):
                call()
            times.append((time.perf_counter() - begin) / count)
        found.append(statistics.median(times) * 1e6)
    return found


def _on_gpu(torch: Any, calls: list[Call], repeats: int) -> list[float]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for call in calls:
        call()
    begin.record()
    for call in calls:
        call()
    end.record()
    torch.cuda.synchronize()
    once_ms = max(begin.elapsed_time(end) / len(calls), 1e-3)
    rounds = min(max(int(2.0 / (once_ms * len(calls))), 1), 50)
    run, in_run = _captured(torch, calls, rounds)
    times: list[float] = []
    until = time.perf_counter() + LONG_S * (repeats + 1)
    while len(times) < 2 * (repeats + 1) or time.perf_counter() < until:
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / in_run)
    later = times[len(times) // (repeats + 1) :]  # the first part warms up
    return [statistics.median(later[i::repeats]) for i in range(repeats)]


def _captured(torch: Any, calls: list[Call], rounds: int) -> tuple[Call, int]:
    """The calls as a graph, and how many it has; one after another if they cannot be captured."""

    def all_of_them() -> None:
        for _ in range(rounds):
            for call in calls:
                call()

    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            all_of_them()
        graph.replay()
        torch.cuda.synchronize()
    except RuntimeError:
        torch.cuda.synchronize()
        return all_of_them, rounds * len(calls)
    return graph.replay, rounds * len(calls)


# -- plans -------------------------------------------------------------------------------------------------------------


def identity(point: Point) -> tuple[Any, ...]:
    return (point["op"], point["dtype"], *(int(point.get(name) or 0) for name in FIXED + FREE))


def rows_of(
    plan: dict[str, Any], *, budget_s: float, done: set[tuple[Any, ...]]
) -> Iterator[tuple[Point, list[float]]]:
    """The points of a plan with their times, until the budget is spent. Points that cannot be measured have none."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    until, lacking = time.monotonic() + budget_s, set[str]()
    for point in plan["points"]:
        if time.monotonic() >= until:
            return
        if identity(point) in done or point["op"] in lacking:
            continue
        try:
            times = measured(point, torch, device, int(plan.get("repeats", 3)))
        except UnsupportedError as problem:
            log.warning("left out: %s: %s", described(point), problem)
            times = []
        except (RuntimeError, AttributeError, NotImplementedError) as problem:
            log.warning("left out: %s: %s", described(point), str(problem).splitlines()[0] if str(problem) else problem)
            if not isinstance(problem, RuntimeError):
                lacking.add(point["op"])
            times = []
        yield point, times
        if device == "cuda" and torch.cuda.memory_reserved() > 0.5 * torch.cuda.get_device_properties(0).total_memory:
            torch.cuda.empty_cache()


def described(point: Point) -> str:
    return f"{point['op']} {' '.join(f'{name}={point[name]}' for name in FIXED + FREE if point.get(name))}"


def written(plan: dict[str, Any], point: Point, times: list[float]) -> list[dict[str, Any]]:
    """Rows of the database."""
    known = {name: int(point.get(name) or 0) for name in FIXED + FREE}
    about = {"device": plan["device"], "backend": plan["backend"], "op": point["op"], "dtype": point["dtype"]}
    about["source"] = plan.get("source", "measured")
    return [{**about, **known, "time_us": f"{us:.4f}", "repeat": number} for number, us in enumerate(times)]


def already(path: str) -> set[tuple[Any, ...]]:
    """Points that a file has."""
    if not os.path.exists(path):
        return set()
    with open(path, newline="", encoding="utf-8") as file:
        return {identity(row) for row in csv.DictReader(file)}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", help="what `etude ops measure --plan-only` wrote")
    parser.add_argument("-o", "--out", required=True, help="CSV of points to write, or to go on with")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds; default: the plan's")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    with open(args.plan, encoding="utf-8") as file:
        plan = json.load(file)
    done, begin, count = already(args.out), time.monotonic(), 0
    with open(args.out, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not done and not file.tell():
            writer.writeheader()
        try:
            for point, times in rows_of(plan, budget_s=args.budget or plan.get("budget_s", 1e9), done=done):
                writer.writerows(written(plan, point, times))
                file.flush()
                count += bool(times)
                log.info("%4d of %d, %.0f s: %s: %s us", count, len(plan["points"]), time.monotonic() - begin,
                         described(point), f"{statistics.mean(times):.2f}" if times else "-")  # fmt: skip
        except KeyboardInterrupt:
            log.info("interrupted: %d points are in %s", count, args.out)
    log.info("%d points in %.0f s", count, time.monotonic() - begin)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

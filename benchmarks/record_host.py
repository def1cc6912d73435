"""Records small training programs on a GPU, and how long their hosts take without the profiler.

    python benchmarks/record_host.py OUT [NAME ...]      # needs PyTorch and a GPU

The programs are so small that the host is the limit. First all of them run without a profiler, round after round, then
each is recorded as `../shared/measured/replay` was: operators with shapes, the observer that writes their arguments,
one step to warm up and three that are kept. OUT gets `NAME_et.json.gz`, `NAME_kineto.json.gz` and `host.csv`: the
median time of a step in a loop, and what the host takes for its forward pass, backward pass and optimizer.
"""

from __future__ import annotations

import argparse
import csv
import gc
import gzip
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

Parts = tuple[Callable[[], Tensor], Callable[[], object], Callable[[], object]]
"""Forward pass, clearing of gradients, optimizer."""

LOOP_S = 0.4
ROUNDS = 3
DEVICE = "cuda"


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, width), nn.Linear(width, 1000, bias=False)
        self.blocks = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width),
                           nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)])
            for _ in range(layers)
        )  # fmt: skip
        self.heads = heads

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        b, t, d = x.shape
        for norm1, qkv, out, norm2, up, down in self.blocks:
            q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in qkv(norm1(x)).split(d, -1))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out(mixed.transpose(1, 2).reshape(b, t, d))
            x = x + down(functional.gelu(up(norm2(x))))
        return self.head(x)


class Llama(nn.Module):
    """Norms and rotary positions written out, as model code on the web does."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, width), nn.Linear(width, 1000, bias=False)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(width, width, bias=False) for name in "qkvo"}
                          | {name: nn.Linear(width, 2 * width, bias=False) for name in ("gate", "up")}
                          | {"down": nn.Linear(2 * width, width, bias=False)})
            for _ in range(layers)
        )  # fmt: skip
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(2 * layers))
        self.heads = heads
        angle = torch.arange(64)[:, None] * torch.rand(width // heads)[None]
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def norm(self, x: Tensor, scale: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * scale

    def turned(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat((-b, a), -1) * self.sin

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        b, t, d = x.shape
        for n, block in enumerate(self.blocks):
            y = self.norm(x, self.scales[2 * n])
            q, k, v = (block[name](y).view(b, t, self.heads, -1).transpose(1, 2) for name in "qkv")
            mixed = functional.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
            x = x + block["o"](mixed.transpose(1, 2).reshape(b, t, d))
            y = self.norm(x, self.scales[2 * n + 1])
            x = x + block["down"](functional.silu(block["gate"](y)) * block["up"](y))
        return self.head(x)


class Experts(nn.Module):
    """Each token goes to two of four experts, all of which see all tokens."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, width), nn.Linear(width, 1000)
        self.routers = nn.ModuleList(nn.Linear(width, 4) for _ in range(layers))
        self.ups = nn.ParameterList(nn.Parameter(torch.randn(4, width, 2 * width) * 0.02) for _ in range(layers))
        self.downs = nn.ParameterList(nn.Parameter(torch.randn(4, 2 * width, width) * 0.02) for _ in range(layers))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).flatten(0, 1)
        for router, up, down in zip(self.routers, self.ups, self.downs, strict=True):
            weight, chosen = router(x).softmax(-1).topk(2, -1)
            gate = torch.zeros(len(x), 4, device=x.device, dtype=x.dtype).scatter(1, chosen, weight)
            y = torch.bmm(functional.silu(torch.bmm(x.expand(4, -1, -1), up)), down)
            x = x + (y * gate.t().unsqueeze(-1)).sum(0)
        return self.head(x).unflatten(0, ids.shape)


class Tables(nn.Module):
    """Bags of a recommendation model and the products of their vectors."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(1000, width, mode="sum") for _ in range(count))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + (count + 1) ** 2, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        first = self.bottom(dense)
        rows = torch.stack([first, *(bag(ids) for bag in self.bags)], 1)
        pairs = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)
        return self.top(torch.cat((first, pairs), 1)).squeeze(-1)


def convolutions(layers: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    parts: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(layers):
        parts += [nn.Conv2d(16, 16, 3, padding=1, bias=False), norm(16), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


class Unrolled(nn.Module):
    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.cell, self.head, self.steps = nn.LSTMCell(width, width), nn.Linear(width, 10), steps

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for at in range(self.steps):
            state = self.cell(x[at], state)
        return self.head(state[0])


def language(model: nn.Module, optimizer: torch.optim.Optimizer, clip: bool = False) -> Parts:
    ids = torch.randint(0, 1000, (2, 64), device=DEVICE)

    def forward() -> Tensor:
        return functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())

    def update() -> None:
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return forward, lambda: optimizer.zero_grad(set_to_none=True), update


def classes(model: nn.Module, optimizer: torch.optim.Optimizer, *shape: int, cast: bool = False) -> Parts:
    x, y = torch.randn(*shape, device=DEVICE), torch.randint(0, 10, (shape[0],), device=DEVICE)
    y = y if len(shape) != 3 else torch.randint(0, 10, (shape[1],), device=DEVICE)

    def forward() -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=cast):
            return functional.cross_entropy(model(x), y)

    return forward, optimizer.zero_grad, optimizer.step


def gpt() -> Parts:
    model = Gpt(6, 256, 4).bfloat16()
    return language(model, torch.optim.AdamW(model.parameters(), fused=True))


def llama() -> Parts:
    model = Llama(4, 256, 4).bfloat16()
    return language(model, torch.optim.AdamW(model.parameters(), foreach=True))


def resnet() -> Parts:
    model = convolutions(16, nn.BatchNorm2d)
    return classes(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), 4, 3, 16, 16)


def perceptron() -> Parts:
    model = nn.Sequential(*(part for _ in range(20) for part in (nn.Linear(64, 64), nn.ReLU())), nn.Linear(64, 10))
    return classes(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False), 32, 64)


def lstm() -> Parts:
    model = Unrolled(64, 24)
    return classes(model, torch.optim.Adam(model.parameters()), 24, 8, 64)


def recommender() -> Parts:
    model = Tables(12, 16)
    dense, ids, y = (
        torch.randn(64, 13, device=DEVICE),
        torch.randint(0, 1000, (64, 4), device=DEVICE),
        torch.rand(64, device=DEVICE),
    )
    optimizer = torch.optim.Adagrad(model.parameters())
    return (
        lambda: functional.binary_cross_entropy_with_logits(model(dense, ids), y), optimizer.zero_grad, optimizer.step
    )  # fmt: skip


def experts() -> Parts:
    model = Experts(8, 64)
    return language(model, torch.optim.AdamW(model.parameters(), fused=True))


def mixed() -> Parts:
    model = convolutions(10, lambda width: nn.GroupNorm(4, width))
    return classes(model, torch.optim.AdamW(model.parameters(), fused=True), 4, 3, 16, 16, cast=True)


def encoder() -> Parts:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(1000, 64), nn.TransformerEncoder(layer, 5, enable_nested_tensor=False), nn.Linear(64, 1000)
    )
    return language(model, torch.optim.AdamW(model.parameters(), foreach=False), clip=True)


PROGRAMS = (gpt, llama, resnet, perceptron, lstm, recommender, experts, mixed, encoder)
"""What the time of a host was fitted on."""


def autoencoder() -> Parts:
    down = [part for _ in range(4) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.LeakyReLU())]
    up = [part for _ in range(4) for part in (nn.ConvTranspose2d(8, 8, 3, padding=1), nn.LeakyReLU())]
    model = nn.Sequential(*down, nn.AvgPool2d(2), nn.Upsample(scale_factor=2), *up)
    x = torch.randn(4, 8, 16, 16, device=DEVICE)
    optimizer = torch.optim.RMSprop(model.parameters())
    return lambda: functional.mse_loss(model(x), x), optimizer.zero_grad, optimizer.step


def towers() -> Parts:
    model = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(64, 64), nn.Tanh(), nn.Dropout(0.1))))
    a, b, same = torch.randn(32, 64, device=DEVICE), torch.randn(32, 64, device=DEVICE), torch.ones(32, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def update() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return lambda: functional.cosine_embedding_loss(model(a), model(b), same), optimizer.zero_grad, update


def decoder() -> Parts:
    layer = nn.TransformerDecoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerDecoder(layer, 3)
    x, memory = torch.randn(2, 16, 64, device=DEVICE), torch.randn(2, 8, 64, device=DEVICE)
    optimizer = torch.optim.NAdam(model.parameters())
    return lambda: functional.smooth_l1_loss(model(x, memory), x), optimizer.zero_grad, optimizer.step


HELD_OUT = (autoencoder, towers, decoder)


def step_of(parts: Parts) -> Callable[[], None]:
    forward, clear, update = parts

    def step() -> None:
        clear()
        forward().backward()
        update()

    return step


def loop_ns(step: Callable[[], None], count: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - begin) / count


def part_ns(parts: Parts, count: int) -> list[float]:
    """What the host takes for forward, backward and optimizer; the device has nothing left to do before each."""
    forward, clear, update = parts
    took: list[list[int]] = [[], [], []]
    for _ in range(count):
        clear()
        torch.cuda.synchronize()
        a = time.perf_counter_ns()
        loss = forward()
        b = time.perf_counter_ns()
        torch.cuda.synchronize()
        c = time.perf_counter_ns()
        loss.backward()
        d = time.perf_counter_ns()
        torch.cuda.synchronize()
        e = time.perf_counter_ns()
        update()
        f = time.perf_counter_ns()
        for each, ns in zip(took, (b - a, d - c, f - e), strict=True):
            each.append(ns)
    return [statistics.median(each) for each in took]


def record(name: str, step: Callable[[], None], out: Path) -> None:
    observer = torch.profiler.ExecutionTraceObserver()
    host, device = out / f"{name}_et.json", out / f"{name}_kineto.json"
    observer.register_callback(str(host))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1),
        record_shapes=True,
        execution_trace_observer=observer,
        on_trace_ready=lambda found: found.export_chrome_trace(str(device)),
    ) as profiler:
        for _ in range(4):
            step()
            torch.cuda.synchronize()
            profiler.step()
    observer.unregister_callback()
    for file in (host, device):
        with file.open("rb") as plain, gzip.open(f"{file}.gz", "wb", 5) as packed:
            shutil.copyfileobj(plain, packed)
        file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="programs; all without any")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    made: dict[str, Parts] = {}
    for one in (*PROGRAMS, *HELD_OUT):
        if not asked.names or one.__name__ in asked.names:
            torch.manual_seed(0)
            with torch.device(DEVICE):
                made[one.__name__] = one()
    loops: dict[str, list[float]] = {name: [] for name in made}
    pieces: dict[str, list[list[float]]] = {name: [] for name in made}
    for _ in range(ROUNDS):
        for name, parts in made.items():
            step = step_of(parts)
            for _ in range(3):
                step()
            gc.collect()
            gc.disable()
            loops[name].append(loop_ns(step, max(int(LOOP_S * 1e9 / loop_ns(step, 5)), 15)))
            pieces[name].append(part_ns(parts, 15))
            gc.enable()
    with (asked.out / "host.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "step_ns", "forward_ns", "backward_ns", "optimizer_ns", "step_ns_least", "step_ns_most"])
        for name in made:
            rest = [statistics.median(each) for each in zip(*pieces[name], strict=True)]
            row = [statistics.median(loops[name]), *rest, min(loops[name]), max(loops[name])]
            rows.writerow([name, *(round(value) for value in row)])
            print(name, *(round(value / 1e3) for value in row), "us", flush=True)
    for name, parts in made.items():
        record(name, step_of(parts), asked.out)


if __name__ == "__main__":
    main()

"""What recording costs: time per step of a small GPT, without and with it.

    python benchmarks/bench_collect.py [--layers 2 --width 128 --tokens 64 --batch 4 --steps 8]

Steps alternate between plain and recorded, so that a noisy machine hits both alike; the median of each is printed, and
their ratio. The second line is a model whose operators are larger: the cost is one per operator, not one per FLOP.
Starting, stopping and writing happen outside of steps and are printed by themselves.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from etude.capture.collect import torch as collect

try:
    import torch
    from torch import Tensor, nn
except ModuleNotFoundError:
    print("skipped: needs PyTorch")
    raise SystemExit(0) from None

VOCABULARY = 512


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


def stepper(layers: int, width: int, tokens: int, batch: int) -> Callable[[], None]:
    torch.manual_seed(0)
    blocks = [Block(width, max(1, width // 64)) for _ in range(layers)]
    model = nn.Sequential(nn.Embedding(VOCABULARY, width), *blocks, nn.LayerNorm(width), nn.Linear(width, VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters())
    text = torch.randint(VOCABULARY, (batch, tokens + 1))

    def step() -> None:
        optimizer.zero_grad()
        logits = model(text[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def seconds(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure(name: str, steps: int, step: Callable[[], None]) -> None:
    plain, recorded, around = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            step()
        for k in range(steps):
            plain.append(seconds(step))
            begin = time.perf_counter()
            with collect.trace(Path(folder) / str(k), detect_steps=False) as run:
                recorded.append(seconds(step))
                run.step()
            around.append(time.perf_counter() - begin - recorded[-1])
            size = sum(path.stat().st_size for path in run.files.values())
    without, with_it, rest = (1e3 * statistics.median(times) for times in (plain, recorded, around))
    print(
        f"{name:34} {without:9.1f} ms without {with_it:9.1f} ms with, ratio {with_it / without:5.2f};"
        f" {rest:6.0f} ms to start, stop and write {size / 1e3:.0f} kB"
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 2), ("width", 128), ("tokens", 64), ("batch", 4), ("steps", 8)):
        arguments.add_argument(f"--{name}", type=int, default=default)
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    for scale in (1, 4):
        width, tokens = chosen.width * scale, chosen.tokens * scale
        name = f"{chosen.layers} layers of {width}, {chosen.batch} x {tokens}"
        measure(name, chosen.steps, stepper(chosen.layers, width, tokens, chosen.batch))


if __name__ == "__main__":
    main()

"""Measures training steps of plain transformers on the GPU at hand, in eager PyTorch: what `etude score` reads.

    python benchmarks/measure_steps.py steps.csv     # needs PyTorch and a GPU; made h200_steps_grid.csv in 5 minutes

Decoders with causal attention, no biases, no positions, untied head; all in bf16, fused AdamW, cross entropy in
bf16 logits. A step is forward, backward, optimizer and clearing of gradients; the median of at least five, in device
time between two events, after two for warming up.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

# layers, hidden, heads, ffn, vocab, norm, activation, batch, sequence
GRID = [
    (4, 512, 8, 2048, 32000, "ln", "gelu", 8, 512),
    (24, 1024, 16, 4096, 50304, "ln", "gelu", 1, 512),
    (24, 1024, 16, 4096, 50304, "ln", "gelu", 8, 1024),
    (12, 768, 12, 3072, 50304, "ln", "gelu", 16, 1024),
    (12, 768, 12, 2048, 32000, "rms", "swiglu", 2, 1024),
    (48, 1600, 25, 6400, 50304, "ln", "gelu", 1, 1024),
    (48, 1600, 25, 6400, 50304, "ln", "gelu", 4, 1024),
    (24, 2048, 16, 8192, 50304, "ln", "gelu", 4, 2048),
    (16, 2048, 32, 8192, 128256, "rms", "swiglu", 2, 4096),
    (16, 2048, 16, 5632, 32000, "rms", "swiglu", 1, 512),
    (32, 2560, 32, 10240, 50304, "ln", "gelu", 2, 2048),
    (8, 4096, 32, 14336, 128256, "rms", "swiglu", 1, 8192),
    (16, 4096, 32, 11008, 32000, "rms", "swiglu", 4, 2048),
    (32, 4096, 32, 11008, 32000, "rms", "swiglu", 1, 4096),
    (10, 5120, 40, 13824, 32000, "rms", "swiglu", 2, 4096),
    (4, 8192, 64, 28672, 32000, "rms", "swiglu", 1, 4096),
    (4, 8192, 64, 22016, 32000, "ln", "swiglu", 2, 2048),
    (6, 6144, 48, 24576, 50304, "ln", "gelu", 1, 2048),
]


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, seq, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, hidden))


class Feed(nn.Module):
    def __init__(self, hidden: int, ffn: int, gated: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False) if gated else None
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(
            functional.silu(self.gate(x)) * self.up(x) if self.gate is not None else functional.gelu(self.up(x))
        )


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, ffn: int, norm: str, gated: bool) -> None:
        super().__init__()
        made = nn.RMSNorm if norm == "rms" else nn.LayerNorm
        self.first, self.second = made(hidden), made(hidden)
        self.attention, self.feed = Attention(hidden, heads), Feed(hidden, ffn, gated)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.feed(self.second(x))


class Decoder(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, ffn: int, vocab: int, norm: str, act: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, ffn, norm, act == "swiglu") for _ in range(layers))
        self.norm = (nn.RMSNorm if norm == "rms" else nn.LayerNorm)(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def timed(work: object, budget_ms: float = 4000.0) -> tuple[float, float]:
    """Median and least milliseconds of a call, of 5 to 30 calls."""
    times: list[float] = []
    for _ in range(2):
        work()  # type: ignore[operator]
    while len(times) < 5 or (len(times) < 30 and sum(times) < budget_ms):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()  # type: ignore[operator]
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times), min(times)


def measured(row: tuple) -> dict[str, object]:  # type: ignore[type-arg]
    layers, hidden, heads, ffn, vocab, norm, act, batch, seq = row
    torch.cuda.reset_peak_memory_stats()
    model = Decoder(layers, hidden, heads, ffn, vocab, norm, act).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(vocab, (batch, seq), device="cuda")
    labels = torch.randint(vocab, (batch * seq,), device="cuda")

    def step() -> None:
        functional.cross_entropy(model(tokens).view(-1, vocab), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    median, least = timed(step)
    peak = torch.cuda.max_memory_allocated()
    with torch.no_grad():
        forward, _ = timed(lambda: model(tokens), 1500.0)
    names = ("layers", "hidden", "heads", "ffn", "vocab", "norm", "act", "batch", "seq")
    return {
        "kind": "train",
        **dict(zip(names, row, strict=True)),
        "params": sum(p.numel() for p in model.parameters()),
        "train_step_ms_median": median,
        "train_step_ms_min": least,
        "forward_ms_median": forward,
        "peak_bytes": peak,
    }


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "steps.csv")
    with path.open("w", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for row in GRID:
            found = measured(row)
            if writer is None:
                writer = csv.DictWriter(file, list(found), lineterminator="\n")
                writer.writeheader()
            writer.writerow(found)
            file.flush()
            print(*row, f"{found['train_step_ms_median']:.2f} ms", f"{found['forward_ms_median']:.2f} ms", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

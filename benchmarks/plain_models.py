"""Decoders of the catalogue in plain PyTorch, as people write and train them: `generators_against_dry.py` runs them
without numbers.

    python benchmarks/plain_models.py gpt2 fsdp 1024        # or ddp, which is the model alone on one rank

Shapes are those that were published, with `LAYERS` layers; `forward` takes tokens and labels and gives the loss.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

LAYERS = 4


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class GatedLayer(nn.Module):
    """Llama's layer; with norms of queries and keys, that of Qwen3."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, size: int, ffn: int, query_norm: bool) -> None:
        super().__init__()
        self.size = size
        self.first, self.second = Norm(hidden), Norm(hidden)
        self.q = nn.Linear(hidden, heads * size, bias=False)
        self.k = nn.Linear(hidden, kv_heads * size, bias=False)
        self.v = nn.Linear(hidden, kv_heads * size, bias=False)
        self.out = nn.Linear(heads * size, hidden, bias=False)
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)
        self.norms = nn.ModuleList([Norm(size), Norm(size)]) if query_norm else None

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = x.shape
        y = self.first(x)
        q, k, v = (f(y).view(batch, seq, -1, self.size) for f in (self.q, self.k, self.v))
        if self.norms is not None:
            q, k = self.norms[0](q), self.norms[1](k)
        q, k, v = rotated(q.transpose(1, 2), angles), rotated(k.transpose(1, 2), angles), v.transpose(1, 2)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        x = x + self.out(y.transpose(1, 2).reshape(batch, seq, -1))
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Gated(nn.Module):
    def __init__(
        self, hidden: int, heads: int, kv_heads: int, size: int, ffn: int, vocab: int, *,
        query_norm: bool = False, tied: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(GatedLayer(hidden, heads, kv_heads, size, ffn, query_norm) for _ in range(LAYERS))
        self.norm, self.head = Norm(hidden), nn.Linear(hidden, vocab, bias=False)
        self.half = size // 2
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        place = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
        angles = place[:, None] / 500_000 ** (torch.arange(self.half, device=tokens.device) / self.half)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, angles)
        return loss_of(self.head(self.norm(x)), labels)


class GptLayer(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, hidden = x.shape
        q, k, v = (one.view(batch, seq, self.heads, -1).transpose(1, 2) for one in self.qkv(self.first(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.down(functional.gelu(self.up(self.second(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, hidden: int, heads: int, vocab: int, positions: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(vocab, hidden), nn.Embedding(positions, hidden)
        self.layers = nn.ModuleList(GptLayer(hidden, heads) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return loss_of(self.head(self.norm(x)), labels)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def llama3_8b() -> nn.Module:
    return Gated(4096, 32, 8, 128, 14336, 128256)


def qwen3_0_6b() -> nn.Module:
    return Gated(1024, 16, 8, 128, 3072, 151936, query_norm=True, tied=True)


def gpt2() -> nn.Module:
    return Gpt(768, 12, 50257, 1024)


MODELS = {"llama3-8b": llama3_8b, "qwen3-0.6b": qwen3_0_6b, "gpt2": gpt2}


def sharded(model: nn.Module) -> nn.Module:
    """FSDP2 as torchtitan wraps a decoder: embedding, layers, norm and head; a tied table belongs to the root."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    is_tied = model.head.weight is model.embedding.weight
    for part in ([] if is_tied else [model.embedding]) + list(model.layers):
        fully_shard(part, mp_policy=policy)
    if not is_tied:
        fully_shard([model.norm, model.head], mp_policy=policy, reshard_after_forward=True)
    return fully_shard(model, mp_policy=policy)


def train(name: str, plan: str, seq: int, steps: int = 3) -> None:
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    if plan == "fsdp":
        with torch.device("meta"):
            model = MODELS[name]()
        model = sharded(model).to_empty(device=device)
    else:
        with device:
            model = MODELS[name]()
        model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index]) if world > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.zeros(1, seq, dtype=torch.int64, device=device)
    for _ in range(steps):
        optimizer.zero_grad()
        with nullcontext() if plan == "fsdp" else torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]))

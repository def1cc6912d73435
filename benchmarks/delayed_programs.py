"""Programs that `validate_graphs.py` validates: bound by device or host, one that hides work, one of two ranks."""

from __future__ import annotations

import sys
from pathlib import Path

COMMON = """
import os, sys, torch, torch.nn as nn
import torch.nn.functional as F
torch.manual_seed(0)
gpu = torch.cuda.is_available() and "RANK" not in os.environ
device = "cuda" if gpu else "cpu"
if not gpu:
    torch.set_num_threads(1)
STEPS = 100_000

class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

class Decoder(nn.Module):
    def __init__(self, layers, d, heads, words):
        super().__init__()
        self.embed, self.layers = nn.Embedding(words, d), nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, words)
    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
"""
"""What the programs share. A program never ends by itself: `validate` ends it."""

DECODER = """
layers, d, batch, length = (24, 1536, 8, 512) if gpu else (4, 128, 4, 64)
model = Decoder(layers, d, d // 64, 8192 if gpu else 512).to(device)
optimizer = torch.optim.AdamW(model.parameters(), fused=gpu)
for _ in range(STEPS):
    ids = torch.randint(0, model.embed.num_embeddings, (batch, length + 1), device=device)
    with torch.autocast(device, torch.bfloat16, enabled=gpu):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
"""On a GPU the device is busy throughout: a spin of the host is hidden."""

SMALL = """
model = Decoder(12 if gpu else 6, 256 if gpu else 64, 4, 512).to(device)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(STEPS):
    ids = torch.randint(0, 512, (4, 65), device=device)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    loss.item()
"""
"""Many small kernels: on a GPU the host is what takes the time, and each step waits for its device."""

CONV = """
width = 64 if gpu else 16
class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.one, self.two, self.norm = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c)
    def forward(self, x):
        return F.relu(x + self.two(F.relu(self.norm(self.one(x)))))
model = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3), *(Residual(width) for _ in range(16 if gpu else 4)),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100)).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
side, batch = (128, 64) if gpu else (32, 8)
for _ in range(STEPS):
    images, labels = torch.randn(batch, 3, side, side), torch.randint(0, 100, (batch,))
    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
"""The host makes its images, copies them, and waits for the copy: in part hidden behind the device."""

RANKS = """
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.parallel.DistributedDataParallel(Decoder(4, 128, 4, 512), bucket_cap_mb=1)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(STEPS):
    ids = torch.randint(0, 512, (2 + 3 * rank, 65))
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
"""Rank 1 has more to do than rank 0, which waits for it: a spin of rank 0 is hidden, one of rank 1 is not."""

PROGRAMS = {"decoder": (DECODER, 1), "small": (SMALL, 1), "conv": (CONV, 1), "ranks": (RANKS, 2)}


def command(name: str, folder: Path) -> list[str]:
    text, ranks = PROGRAMS[name]
    script = folder / f"{name}.py"
    script.write_text(COMMON + text)
    if ranks == 1:
        return [sys.executable, str(script)]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(script)]

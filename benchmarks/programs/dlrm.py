"""26 tables of embeddings and three MLPs, SGD."""

import itertools

import torch
import torch.nn as nn
from torch.nn import functional

TIMES = globals().get("TIMES", 1)
B, E = 8192 * TIMES, 64
tables = nn.ModuleList(nn.EmbeddingBag(200000, E, mode="sum") for _ in range(26)).cuda()


def mlp(*w):
    return nn.Sequential(*[y for a, b in itertools.pairwise(w) for y in (nn.Linear(a, b), nn.ReLU())])


bot, top = mlp(13, 512, 256, E).cuda(), nn.Sequential(mlp(E + 27 * 26 // 2, 1024, 512, 256), nn.Linear(256, 1)).cuda()
o = torch.optim.SGD([*tables.parameters(), *bot.parameters(), *top.parameters()], 0.1)
d = torch.randn(B, 13, device="cuda")
ids = torch.randint(200000, (26, B * 4), device="cuda")
off = torch.arange(0, B * 4, 4, device="cuda")
y = torch.rand(B, 1, device="cuda")
li, lj = torch.tril_indices(27, 27, -1, device="cuda")


def step():
    v = bot(d)
    e = [t(i, off) for t, i in zip(tables, ids, strict=False)]
    z = torch.stack([v, *e], 1)
    w = torch.bmm(z, z.transpose(1, 2))[:, li, lj]
    loss = functional.binary_cross_entropy_with_logits(top(torch.cat([v, w], 1)), y)
    o.zero_grad()
    loss.backward()
    o.step()


if __name__ == "__main__":
    for _ in range(30):
        step()

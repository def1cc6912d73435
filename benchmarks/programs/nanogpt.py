"""A GPT as in many tutorials: autocast, fused AdamW, four micro-batches a step."""

import torch
import torch.nn as nn
from torch.nn import functional

TIMES = globals().get("TIMES", 1)
D, L, H, V, T, B = 768, 12, 12, 50304, 1024, 8 * TIMES


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.LayerNorm(D)
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.o = nn.Linear(D, D, bias=False)
        self.b = nn.LayerNorm(D)
        self.up = nn.Linear(D, 4 * D)
        self.down = nn.Linear(4 * D, D)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.a(x)).split(D, 2)
        q, k, v = (y.view(b, t, H, d // H).transpose(1, 2) for y in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(y)
        return x + self.down(functional.gelu(self.up(self.b(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(V, D)
        self.p = nn.Embedding(T, D)
        self.h = nn.ModuleList(Block() for _ in range(L))
        self.n = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        self.head.weight = self.e.weight

    def forward(self, i, y):
        x = self.e(i) + self.p(torch.arange(i.shape[1], device=i.device))
        for h in self.h:
            x = h(x)
        return functional.cross_entropy(self.head(self.n(x)).view(-1, V), y.view(-1))


m = GPT().cuda()
o = torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True)


def step():
    for _ in range(4):
        i = torch.randint(V, (B, T), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = m(i, i) / 4
        loss.backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    o.step()
    o.zero_grad(set_to_none=True)


if __name__ == "__main__":
    for _ in range(30):
        step()

"""A diffusion transformer in bf16, adaLN, AdamW."""

import torch
import torch.nn as nn
from torch.nn import functional

TIMES = globals().get("TIMES", 1)
D, L, H, B, N = 1152, 14, 16, 32 * TIMES, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1 = nn.LayerNorm(D, elementwise_affine=False)
        self.n2 = nn.LayerNorm(D, elementwise_affine=False)
        self.att = nn.MultiheadAttention(D, H, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(approximate="tanh"), nn.Linear(4 * D, D))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(D, 6 * D))

    def forward(self, x, c):
        a, b, g, d, e, h = self.ada(c).chunk(6, 1)
        y = self.n1(x) * (1 + b[:, None]) + a[:, None]
        x = x + g[:, None] * self.att(y, y, y, need_weights=False)[0]
        return x + h[:, None] * self.mlp(self.n2(x) * (1 + e[:, None]) + d[:, None])


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Conv2d(4, D, 2, 2)
        self.pos = nn.Parameter(torch.zeros(1, N, D))
        self.t = nn.Sequential(nn.Linear(256, D), nn.SiLU(), nn.Linear(D, D))
        self.y = nn.Embedding(1001, D)
        self.b = nn.ModuleList(Block() for _ in range(L))
        self.o = nn.Linear(D, 16)

    def forward(self, x, t, y):
        f = torch.exp(-torch.arange(128, device=x.device) * 0.07)
        a = t[:, None].float() * f
        c = self.t(torch.cat([a.cos(), a.sin()], 1).bfloat16()) + self.y(y)
        x = self.p(x).flatten(2).transpose(1, 2) + self.pos
        for b in self.b:
            x = b(x, c)
        return self.o(x)


m = DiT().cuda().bfloat16()
o = torch.optim.AdamW(m.parameters(), lr=1e-4)
x = torch.randn(B, 4, 32, 32, device="cuda", dtype=torch.bfloat16)
z = torch.randn(B, N, 16, device="cuda", dtype=torch.bfloat16)


def step():
    t = torch.randint(1000, (B,), device="cuda")
    y = torch.randint(1000, (B,), device="cuda")
    loss = functional.mse_loss(m(x, t, y), z)
    o.zero_grad()
    loss.backward()
    o.step()


if __name__ == "__main__":
    for _ in range(30):
        step()

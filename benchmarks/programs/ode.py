"""A neural ODE: 40 small evaluations and their gradients."""

import torch
import torch.nn as nn

TIMES = globals().get("TIMES", 1)
f = nn.Sequential(nn.Linear(65, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 64)).cuda()
o = torch.optim.AdamW(f.parameters(), 1e-3)
x0 = torch.randn(256 * TIMES, 64, device="cuda")
y = torch.randn(256 * TIMES, 64, device="cuda")


def g(t, x):
    return f(torch.cat([x, torch.full_like(x[:, :1], t)], 1))


def step():
    x, h = x0, 0.1
    for n in range(10):
        t = n * h
        a = g(t, x)
        b = g(t + h / 2, x + h / 2 * a)
        c = g(t + h / 2, x + h / 2 * b)
        d = g(t + h, x + h * c)
        x = x + h / 6 * (a + 2 * b + 2 * c + d)
    loss = (x - y).pow(2).mean()
    o.zero_grad()
    loss.backward()
    o.step()


if __name__ == "__main__":
    for _ in range(30):
        step()

"""Points: shared MLPs and a maximum, float32 with TF32 off, Adam."""

import itertools

import torch
import torch.nn as nn
from torch.nn import functional

TIMES = globals().get("TIMES", 1)


def mlp(*w):
    return nn.Sequential(
        *[y for a, b in itertools.pairwise(w) for y in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())]
    )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = mlp(3, 64, 128, 1024)
        self.tf = nn.Linear(1024, 9)
        self.a = mlp(3, 64, 64)
        self.b = mlp(64, 128, 1024)
        self.c = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 40))

    def forward(self, x):
        r = self.tf(self.t(x).amax(2)).view(-1, 3, 3)
        x = torch.bmm(r, x)
        return self.c(self.b(self.a(x)).amax(2))


m = Net().cuda()
o = torch.optim.Adam(m.parameters())
x = torch.randn(64 * TIMES, 3, 2048, device="cuda")
y = torch.randint(40, (64 * TIMES,), device="cuda")


def step():
    o.zero_grad()
    functional.cross_entropy(m(x), y).backward()
    o.step()


if __name__ == "__main__":
    for _ in range(30):
        step()

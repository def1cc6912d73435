"""A 3-D U-Net on volumes, instance norm, autocast fp16, Adam."""

import torch
import torch.nn as nn
from torch.nn import functional

TIMES = globals().get("TIMES", 1)


def c(a, b):
    return nn.Sequential(
        nn.Conv3d(a, b, 3, 1, 1),
        nn.InstanceNorm3d(b, affine=True),
        nn.LeakyReLU(0.01),
        nn.Conv3d(b, b, 3, 1, 1),
        nn.InstanceNorm3d(b, affine=True),
        nn.LeakyReLU(0.01),
    )


class U(nn.Module):
    def __init__(self, w=(32, 64, 128, 256)):
        super().__init__()
        self.d = nn.ModuleList(c(a, b) for a, b in zip((1, *w), w, strict=False))
        self.u = nn.ModuleList(c(a + b, b) for a, b in zip(w[:0:-1], w[-2::-1], strict=False))
        self.o = nn.Conv3d(w[0], 4, 1)

    def forward(self, x):
        k = []
        for i, d in enumerate(self.d):
            x = d(x if i == 0 else functional.max_pool3d(x, 2))
            k.append(x)
        for u, y in zip(self.u, k[-2::-1], strict=False):
            x = u(torch.cat([functional.interpolate(x, scale_factor=2, mode="trilinear"), y], 1))
        return self.o(x)


m = U().cuda()
o = torch.optim.Adam(m.parameters())
x = torch.randn(2 * TIMES, 1, 96, 96, 96, device="cuda")
y = torch.randint(4, (2 * TIMES, 96, 96, 96), device="cuda")
g = torch.amp.GradScaler("cuda")


def step():
    o.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = functional.cross_entropy(m(x), y)
    g.scale(loss).backward()
    g.step(o)
    g.update()


if __name__ == "__main__":
    for _ in range(30):
        step()

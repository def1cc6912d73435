"""A convolutional VAE and its discriminator, two optimizers."""

import torch
import torch.nn as nn
from torch.nn import functional

TIMES = globals().get("TIMES", 1)


def down(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.GroupNorm(8, b), nn.SiLU())


def up(a, b):
    return nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.GroupNorm(8, b), nn.SiLU())


enc = nn.Sequential(down(3, 64), down(64, 128), down(128, 256), down(256, 512), nn.Conv2d(512, 64, 1)).cuda()
dec = nn.Sequential(
    nn.Conv2d(32, 512, 1), up(512, 256), up(256, 128), up(128, 64), nn.ConvTranspose2d(64, 3, 4, 2, 1)
).cuda()
dis = nn.Sequential(down(3, 64), down(64, 128), down(128, 256), nn.Conv2d(256, 1, 4)).cuda()
a = torch.optim.Adam([*enc.parameters(), *dec.parameters()], 2e-4)
b = torch.optim.Adam(dis.parameters(), 2e-4)
x = torch.randn(32 * TIMES, 3, 128, 128, device="cuda")


def step():
    mu, s = enc(x).chunk(2, 1)
    z = mu + torch.randn_like(mu) * (s * 0.5).exp()
    y = dec(z)
    loss = functional.l1_loss(y, x) - 0.5 * (1 + s - mu * mu - s.exp()).mean() - 0.1 * dis(y).mean()
    a.zero_grad()
    loss.backward()
    a.step()
    b.zero_grad()
    (functional.relu(1 - dis(x)).mean() + functional.relu(1 + dis(y.detach())).mean()).backward()
    b.step()


if __name__ == "__main__":
    for _ in range(30):
        step()

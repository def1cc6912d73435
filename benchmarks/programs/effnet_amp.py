"""Efficientnet_b3, channels last, fp16 with a GradScaler, SGD with momentum."""

import torch
import torchvision

TIMES = globals().get("TIMES", 1)
m = torchvision.models.efficientnet_b3().cuda().to(memory_format=torch.channels_last)
o = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, nesterov=True)
g = torch.amp.GradScaler("cuda")
x = torch.randn(64 * TIMES, 3, 300, 300, device="cuda").to(memory_format=torch.channels_last)
y = torch.randint(1000, (64 * TIMES,), device="cuda")


def step():
    o.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = torch.nn.functional.cross_entropy(m(x), y, label_smoothing=0.1)
    g.scale(loss).backward()
    g.step(o)
    g.update()


if __name__ == "__main__":
    for _ in range(30):
        step()

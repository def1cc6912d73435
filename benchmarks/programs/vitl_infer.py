"""Inference of ViT-L/16 in fp16, batch 64."""

import torch
import torchvision

TIMES = globals().get("TIMES", 1)
m = torchvision.models.vit_l_16().cuda().half().eval()
x = torch.randn(64 * TIMES, 3, 224, 224, device="cuda", dtype=torch.float16)


@torch.inference_mode()
def step():
    return m(x).argmax(1)


if __name__ == "__main__":
    for _ in range(30):
        step()

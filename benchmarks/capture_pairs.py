"""Records programs twice each on a GPU: once with little work an operator (the host is the limit), once with much (the
GPU is). The graph of the one with the device times of the other must predict the other (`fidelity_ingest.py --pair`).

python benchmarks/capture_pairs.py OUT [PROGRAM...]     needs a CUDA GPU and PyTorch
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from etude.capture.collect import torch as collect

STEPS = 3
Step = Callable[[], object]


class Block(nn.Module):
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.second = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(wide), nn.BatchNorm2d(wide)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(x + self.norms[1](self.second(inner)))


class Gpt(nn.Module):
    def __init__(self, layers: int, wide: int, words: int = 8192) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, wide)
        layer = nn.TransformerEncoderLayer(wide, wide // 64, 4 * wide, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(wide, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.body(self.embed(tokens), mask=mask, is_causal=True))


def training(model: nn.Module, inputs: torch.Tensor, target: torch.Tensor, optimizer: str, reads: bool) -> Step:
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-4)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            out = model(inputs)
            loss = functional.cross_entropy(out.flatten(0, -2).float(), target.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        made.step()
        made.zero_grad()
        if reads:
            loss.item()

    return step


def convnet(large: bool) -> Step:
    """A residual network: convolutions and batch norms, SGD, the loss read every step."""
    body = [nn.Conv2d(3, 128, 3, padding=1), *(Block(128) for _ in range(8)), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*body, nn.Linear(128, 100)).cuda()
    batch = 512 if large else 4
    images = torch.randn(batch, 3, 32, 32, device="cuda")
    return training(model, images, torch.randint(100, (batch,), device="cuda"), "SGD", reads=True)


def gpt(large: bool) -> Step:
    """A decoder of 12 layers, AdamW, the loss never read: nothing but the launch queue holds the host back."""
    batch = 512 if large else 1
    tokens = torch.randint(8192, (batch, 257), device="cuda")
    return training(Gpt(12, 768).cuda(), tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), "AdamW", reads=False)


def decode(large: bool) -> Step:
    """Sixteen tokens one after the other, each read by the host before the next."""
    model = Gpt(6, 1024).cuda().eval().bfloat16()
    tokens = torch.randint(8192, (1024 if large else 1, 128), device="cuda")

    def step() -> None:
        seen = tokens
        with torch.no_grad():
            for _ in range(16):
                last = model(seen)[:, -1].argmax(-1, keepdim=True)
                seen = torch.cat([seen[:, 1:], last], 1)
                if int(last[0, 0].item()) < 0:
                    return

    return step


def streams(large: bool) -> Step:
    """Copies on one stream, work on another, held together by events; ends in a synchronisation."""
    wide = 4096 if large else 256
    weights = [torch.randn(wide, wide, device="cuda") for _ in range(4)]
    sources = [torch.randn(wide, wide).pin_memory() for _ in range(6)]
    side = torch.cuda.Stream()

    def step() -> None:
        results = []
        for source in sources:
            with torch.cuda.stream(side):
                loaded = source.to("cuda", non_blocking=True)
                ready = side.record_event()
            torch.cuda.current_stream().wait_event(ready)
            for weight in weights:
                loaded = torch.relu(loaded @ weight)
            done = torch.cuda.current_stream().record_event()
            with torch.cuda.stream(side):
                side.wait_event(done)
                results.append(loaded.to("cpu", non_blocking=True))
        torch.cuda.synchronize()

    return step


PROGRAMS = {"convnet": convnet, "gpt": gpt, "decode": decode, "streams": streams}


def main(out: str, names: list[str]) -> None:
    for name in names or list(PROGRAMS):
        for large in (False, True):
            torch.manual_seed(0)
            step = PROGRAMS[name](large)
            folder = Path(out) / f"{name}_{'large' if large else 'small'}"
            with collect.trace(folder, steps=STEPS, warmup=3, name=name) as run:
                for _ in range(STEPS + 4):
                    step()
                    run.step()
            print(folder, "recorded", flush=True)
            del step
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

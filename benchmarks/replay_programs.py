"""Programs that `fidelity_replay.py` records: those of `programs` and `spread` were looked at while replay was made,
those of `held_out` and `spread_held_out` were written down before any of them was played, and fit nothing.

Each is (model, loss of it): a step is the loss, its gradients and AdamW.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

STEPS, WARMUP = 3, 6
"""Steps that are recorded, and those before them: as `etude collect` has it."""
Program = Callable[[], tuple[object, Callable[[object], object]]]


def programs() -> dict[str, Program]:
    """Name -> (model, step of it), made when asked for."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.heads = heads

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    def gpt(width: int, layers: int, heads: int, words: int, batch: int, tokens: int):
        body = [Block(width, heads) for _ in range(layers)]
        model = nn.Sequential(nn.Embedding(words, width), *body, nn.LayerNorm(width), nn.Linear(width, words))
        ids, target = torch.randint(0, words, (batch, tokens)), torch.randint(0, words, (batch * tokens,))

        def loss(module):
            return functional.cross_entropy(module(ids).view(-1, words), target)

        return model, loss

    def convolutions():
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
            nn.Linear(1024, 10),
        )  # fmt: skip
        x, target = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
        return model, lambda module: functional.cross_entropy(module(x), target)

    def perceptron():
        model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 1024), nn.ReLU(),
                              nn.Linear(1024, 10))  # fmt: skip
        x, target = torch.randn(64, 512), torch.randint(0, 10, (64,))
        return model, lambda module: functional.cross_entropy(module(x), target)

    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTMCell(32, 32), nn.Linear(32, 10)

        def forward(self, x):
            state = None
            for each in x:
                state = self.cell(each, state)
            return self.head(state[0])

    def lstm():
        x, target = torch.randn(12, 8, 32), torch.randint(0, 10, (8,))
        return Unrolled(), lambda module: functional.cross_entropy(module(x), target)

    def small_layers():
        model = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(32, 32), nn.ReLU())), nn.Linear(32, 10))
        x, target = torch.randn(16, 32), torch.randint(0, 10, (16,))
        return model, lambda module: functional.cross_entropy(module(x), target)

    return {
        "gpt, width 64": lambda: gpt(64, 2, 4, 512, 4, 32),
        "gpt, width 256": lambda: gpt(256, 3, 4, 2000, 2, 128),
        "convolutions": convolutions,
        "perceptron": perceptron,
        "lstm, unrolled": lstm,
        "small layers": small_layers,
    }


def spread(ranks: int) -> dict[str, Program]:
    """Small programs that communicate by themselves: most of their step is Python."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.nn.functional import all_to_all_single
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn import functional

    def layers() -> nn.Sequential:
        return nn.Sequential(*(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)) for _ in range(4)))

    x, target = torch.randn(16 * ranks, 64), torch.randn(16 * ranks, 64)

    def loss(module):
        return functional.mse_loss(module(x), target)

    class Experts(nn.Module):
        """As many tokens go to each process; an expert a process."""

        def __init__(self) -> None:
            super().__init__()
            self.routers = nn.ModuleList(nn.Linear(64, ranks) for _ in range(2))
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
                                         for _ in range(2))  # fmt: skip

        def forward(self, x):
            for router, expert in zip(self.routers, self.experts, strict=True):
                weight, chosen = router(x).softmax(-1).max(-1)
                order = chosen.argsort()
                there = all_to_all_single(torch.empty_like(x), x[order])
                back = all_to_all_single(torch.empty_like(x), expert(there))
                x = x + torch.zeros_like(x).index_copy(0, order, back) * weight.unsqueeze(-1)
            return x

    def sharded():
        model = layers()
        for part in (*model, model):
            fully_shard(part)
        return model, loss

    def tensor_parallel():
        model, mesh = layers(), dist.init_device_mesh("cpu", (ranks,))
        plan = {f"{k}.{n}": style() for k in range(4) for n, style in ((0, ColwiseParallel), (2, RowwiseParallel))}
        return parallelize_module(model, mesh, plan), loss

    return {"experts": lambda: (Experts(), loss), "FSDP2": sharded, "tensor parallel": tensor_parallel}


def held_out() -> dict[str, Program]:
    """Name -> program, none of which replay was made with."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Patches(nn.Module):
        """A small vision transformer."""

        def __init__(self) -> None:
            super().__init__()
            self.cut = nn.Conv2d(3, 96, 8, stride=8)
            layer = nn.TransformerEncoderLayer(96, 4, 192, dropout=0.0, batch_first=True, norm_first=True)
            self.body, self.head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(96, 10)
            self.place = nn.Parameter(torch.randn(1, 64, 96))

        def forward(self, x):
            return self.head(self.body(self.cut(x).flatten(2).transpose(1, 2) + self.place).mean(1))

    def vision():
        x, target = torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))
        return Patches(), lambda module: functional.cross_entropy(module(x), target)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.body, self.head = nn.Embedding(300, 48), nn.GRU(48, 64, 2, dropout=0.2), nn.Linear(64, 300)

        def forward(self, ids):
            return self.head(self.body(self.words(ids))[0])

    def gru():
        ids, target = torch.randint(0, 300, (20, 8)), torch.randint(0, 300, (160,))
        return Recurrent(), lambda module: functional.cross_entropy(module(ids).view(160, 300), target)

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(8))
            self.across = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
                                        for _ in range(4))  # fmt: skip
            self.along = nn.ModuleList(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
                                       for _ in range(4))  # fmt: skip

        def forward(self, x):
            for k in range(4):
                x = x + self.across[k](self.norms[2 * k](x).transpose(1, 2)).transpose(1, 2)
                x = x + self.along[k](self.norms[2 * k + 1](x))
            return x.mean(1)

    def mixer():
        x, target = torch.randn(8, 32, 64), torch.randn(8, 64)
        return Mixer(), lambda module: functional.mse_loss(module(x), target)

    class Tables(nn.Module):
        """A recommender: bags of embeddings and a tower."""

        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(2000, 16, mode="sum") for _ in range(8))
            self.tower = nn.Sequential(nn.Linear(141, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, dense, ids):
            found = [bag(one) for bag, one in zip(self.bags, ids, strict=True)]
            return self.tower(torch.cat([dense, *found], 1)).squeeze(1)

    def recommender():
        dense, ids = torch.randn(64, 13), [torch.randint(0, 2000, (64, 4)) for _ in range(8)]
        target = torch.rand(64)
        return Tables(), lambda module: functional.binary_cross_entropy_with_logits(module(dense, ids), target)

    return {"vision transformer": vision, "gru, dropout": gru, "mlp mixer": mixer, "recommender": recommender}


def spread_held_out(ranks: int) -> dict[str, Program]:
    """Programs that communicate by themselves, none of which replay was made with."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.nn.functional import all_gather
    from torch.nn import functional

    class Contrast(nn.Module):
        """Two towers; every process sees the rows of all."""

        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = (nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)) for _ in range(2))

        def forward(self, x):
            one, other = (functional.normalize(tower(x), dim=1) for tower in (self.left, self.right))
            return torch.cat(all_gather(one)) @ torch.cat(all_gather(other)).T

    def contrast():
        x, target = torch.randn(16, 64), torch.arange(16 * ranks)
        return Contrast(), lambda module: functional.cross_entropy(module(x), target)

    def sharded():
        layers = [nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True) for _ in range(2)]
        model = nn.Sequential(*layers, nn.Linear(64, 8))
        x, target = torch.randn(4, 16, 64), torch.randn(4, 16, 8)
        for part in (*layers, model):
            fully_shard(part)
        return model, lambda module: functional.mse_loss(module(x), target)

    return {"two towers": contrast, "FSDP2, encoder": sharded}


def training(model: object, loss: Callable[[object], object], module: object = None) -> Callable[[], None]:
    """A step of a program; `module` is what wraps the model."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss(module or model).backward()
        optimizer.step()

    return step


def record(step: Callable[[], None], run: Path) -> None:
    from etude.capture.collect import torch as collect

    with collect.trace(run, steps=STEPS, warmup=WARMUP) as recording:
        for _ in range(WARMUP + STEPS):
            step()
            recording.step()

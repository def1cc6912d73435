"""Models without a training loop: two blocks and a head, and what is not a model."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


class Net(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head, self.more = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
        if tied:
            self.more.weight = self.head.weight

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.more(self.head(x)) * scale


def build() -> nn.Module:
    return Net(tied=True)


def sizes() -> list[int]:
    return [32, 64]


def wide(width: int) -> nn.Module:
    return nn.Linear(width, width)


def frozen() -> nn.Module:
    return Net().requires_grad_(False)


number = 3

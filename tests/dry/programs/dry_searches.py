"""LBFGS with four turns a step: `plain`, with a `search` along each direction, or a closure that `asks`."""

import sys

import torch
from torch import Tensor, nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
given = torch.ones(5, 4)
kind = sys.argv[1]
optimizer = torch.optim.LBFGS(
    model.parameters(), max_iter=4, line_search_fn="strong_wolfe" if kind == "search" else None
)


def closure() -> Tensor:
    optimizer.zero_grad()
    loss = model(given).square().mean()
    if kind == "asks" and loss > 100:
        loss = loss * 2
    loss.backward()
    return loss


for _ in range(4):
    optimizer.step(closure)

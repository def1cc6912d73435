"""Backward passes in which gradients meet: some are summed in place, some not."""

import torch

given = torch.randn(4, 8, requires_grad=True)
layer = torch.nn.Linear(8, 8)
kept: list[torch.Tensor] = []
optimizer = torch.optim.SGD([given, *layer.parameters()], lr=0.1)


def doubled() -> torch.Tensor:
    return given * 2


def step() -> None:
    rows = doubled()
    (rows + layer(rows)).sum().backward()  # the first is an expanded number
    rows = doubled()
    (rows + layer(rows)).square().sum().backward()
    rows = doubled()
    seen = rows + layer(rows)
    seen.register_hook(kept.append)
    seen.square().sum().backward()  # the program holds the first
    rows = doubled()
    (rows.view(-1).sin().sum() + rows.t().cos().square().sum()).backward()
    rows = doubled()
    sum(torch.var_mean(rows, 1)).square().sum().backward()  # its formula has a sum of its own
    layer(layer(given)).square().sum().backward()  # the same weight twice
    rows = doubled()
    (rows * rows).sum().backward()  # one function hands on two gradients
    rows = doubled()
    (
        rows[[0, 2, 2]].sum() + rows.topk(3)[0].square().sum() + rows.gather(1, torch.zeros(4, 1, dtype=int)).sum()
    ).backward()
    with torch.inference_mode():
        layer(torch.ones(2, 8))
    optimizer.step()


if __name__ == "__main__":
    for _ in range(3):
        step()

"""FSDP2 of layers whose rows 16 ranks do not divide: 3, ..., 3, 1, 0, 0, 0 of 37, and 1, ..., 1, 0, ..., 0 of 7."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.distributed.init_process_group("gloo")
model = nn.Sequential(nn.Linear(64, 37, bias=False), nn.Linear(37, 7, bias=False))
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

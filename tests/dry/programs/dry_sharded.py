"""`fully_shard` without a mesh, and gradients clipped by their norm."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % 8)
with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(5)))
fully_shard(model)
model.to_empty(device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(4, 64, device="cuda")).mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()

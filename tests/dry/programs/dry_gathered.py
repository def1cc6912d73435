"""Layers that are sharded over all ranks, each gathered while it works: `dry_gathered.py LAYERS`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
with torch.device("meta"):
    model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(int(sys.argv[1]))])
for layer in model:
    fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
fully_shard(model)
model = model.to_empty(device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(4, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

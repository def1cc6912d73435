"""Two stages, each sharded over four ranks: 8 rows, two each, and 6 rows, of which the last rank has none."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("pp", "dp"))
model = nn.Linear(16, 8 if mesh["pp"].get_local_rank() == 0 else 6, bias=False)
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

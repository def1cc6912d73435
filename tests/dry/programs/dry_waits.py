"""A reduction whose result nothing reads: the host waits for it before its next operator."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(16, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows, count = torch.ones(4, 16), torch.ones(3)
for _ in range(4):
    model(rows).square().mean().backward()
    work = dist.all_reduce(count, async_op=True)
    torch.sin(rows)
    work.wait()
    torch.cos(rows)
    optimizer.step()
    optimizer.zero_grad()

"""Two stages of a pipeline, two micro-batches."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
stage = PipelineStage(nn.Linear(32, 32), rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 2, loss_fn=lambda found, wanted: (found - wanted).square().mean())
optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
for _ in range(3):
    if rank == 0:
        schedule.step(torch.randn(8, 32))
    else:
        schedule.step(target=torch.randn(8, 32), losses=[])
    optimizer.step()
    optimizer.zero_grad()

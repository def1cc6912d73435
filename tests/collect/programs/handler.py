"""Ranks that record themselves as PyTorch's tutorials do: a schedule that repeats, and its TensorBoard handler."""

import sys

import torch
import torch.distributed as dist
from torch.profiler import profile, schedule, tensorboard_trace_handler

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with profile(
    activities=[torch.profiler.ProfilerActivity.CPU],
    schedule=schedule(wait=0, warmup=1, active=2, repeat=2),
    on_trace_ready=tensorboard_trace_handler(sys.argv[1], use_gzip=True),
) as running:
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        running.step()
dist.destroy_process_group()

"""A script that knows nothing of Etude: `plain.py HOW`. Says what it did on stdout and ends with exit code 7."""

import os
import sys
import time

import torch
from torch import nn

torch.set_num_threads(1)
HOW = sys.argv[1]


def model() -> nn.Module:
    made: nn.Module = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        made = nn.parallel.DistributedDataParallel(made)
    return made


def train(steps: int) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for k in range(steps):
        optimizer.zero_grad()
        net(torch.ones(8, 16)).sum().backward()
        if HOW == "raises" and k == 2:
            raise ValueError("in the middle of a step")
        optimizer.step()
        schedule.step()
        if HOW == "waits" and k == 3:
            print("waiting", flush=True)
            time.sleep(60)


if HOW == "infers":
    with torch.no_grad():
        for _ in range(4):
            model()(torch.ones(8, 16))
elif HOW == "profiles":
    with torch.profiler.profile() as profiler:
        train(4)
    print("own profile has events:", len(profiler.events()) > 0)
else:
    train(6)
if "RANK" in os.environ:
    torch.distributed.destroy_process_group()
# One write: ranks share the pipe, and an unbuffered print() writes a piece at a time.
sys.stdout.write(f"done {os.environ.get('RANK', '-')} {os.environ.get('SITE', '-')}\n")
sys.stdout.flush()
sys.exit(0 if "RANK" in os.environ else 7)

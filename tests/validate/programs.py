"""A small program for delays: `programs.py KIND STEPS [FILE]`. It notes that it runs in FILE."""

import os
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)
kind, steps = sys.argv[1], int(sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for number in range(steps):
    loss = model(torch.ones(4, 8)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if kind == "fails" and number == 4:
        raise RuntimeError("out of luck")
    if len(sys.argv) > 3 and number == 2:
        Path(sys.argv[3]).write_text(str(os.getpid()))

"""A program without optimizer steps. `python dry_infer.py WHAT`: batches in a loop, one batch, texts that grow, an
evaluation before training."""

import sys

import torch
from torch import nn

what = sys.argv[1]
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)).eval()
small = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if what == "train" else None
calls = {"loop": 40, "once": 1, "grow": 6, "train": 20}[what]
with torch.no_grad():
    for number in range(calls):
        rows = torch.randn(16 + (number if what == "grow" else 0), 64)
        found = model(small(rows))
        found.softmax(-1)
print("evaluated")
for _ in range(3 if optimizer is not None else 0):
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()

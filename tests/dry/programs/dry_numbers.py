"""A program that decides by numbers. `python dry_numbers.py WHAT`: by its own, by those of chance, of another rank."""

import sys

import numpy
import torch

what = sys.argv[1]
device = "cuda" if torch.cuda.is_available() else "cpu"
lengths = torch.tensor([3, 1, 4], device=device)
rows = torch.randn(8, 16, device=device, requires_grad=True)
optimizer = torch.optim.SGD([rows], lr=0.1)
for step in range(3):
    taken = rows[: int(lengths.sum())]  # 8
    if what == "own":
        lengths[1] += 1 if step < 0 else 0
        chosen = torch.arange(8, device=device)
        taken = taken[chosen[chosen % 3 == 0]]  # 0, 3, 6
        assert lengths.max().item() == 4 and (lengths > 0).all() and lengths.tolist() == [3, 1, 4]
        assert numpy.asarray(lengths.cpu()).sum() == 8
        assert not torch.isnan(taken.sum())
    if what == "chance":
        drawn = torch.rand(1)
        if drawn > 0.5:
            break
    if what == "weights":
        lengths = lengths + rows.sum().long()
        if lengths.max() > 100:
            break
    if what == "rank":
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        torch.distributed.all_reduce(lengths)
        if lengths.max() > 4:
            break
    taken.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()

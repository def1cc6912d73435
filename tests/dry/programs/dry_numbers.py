"""A program that decides by numbers. `python dry_numbers.py WHAT`: by its own, by those of chance, of other ranks."""

import sys

import numpy
import torch

what = sys.argv[1]
device = "cuda" if torch.cuda.is_available() else "cpu"
lengths = torch.tensor([3, 1, 4], device=device)
rows = torch.randn(8, 16, device=device, requires_grad=True)
optimizer = torch.optim.SGD([rows], lr=0.1)


def exchange(step):
    """What four ranks that have the same numbers get of them."""
    stop = torch.tensor([1 if step > 5 else 0], device=device)
    torch.distributed.broadcast(stop, src=0)
    assert stop.item() == 0
    counted, view = torch.tensor([2, 3], device=device), None
    view = counted[1:]
    torch.distributed.all_reduce(counted)
    assert counted.tolist() == [8, 12] and view.item() == 12
    torch.distributed.all_reduce(counted, op=torch.distributed.ReduceOp.MAX)
    assert (counted + 1).tolist() == [9, 13]
    torch.distributed.all_reduce(view, op=torch.distributed.ReduceOp.PRODUCT)
    assert counted[1] == 12**4
    found = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(4)]
    torch.distributed.all_gather(found, torch.tensor([7], device=device))
    assert torch.cat(found).tolist() == [7, 7, 7, 7]
    whole = torch.empty(4, dtype=torch.int64, device=device)
    torch.distributed.all_gather_into_tensor(whole, torch.tensor([5], device=device))
    assert whole.sum().item() == 20
    flag = torch.tensor([True], device=device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MIN)
    assert bool(flag)


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
    if what in ("alike", "rank", "gradient") and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    if what == "alike":
        exchange(step)
    if what == "rank":
        here = torch.tensor([torch.distributed.get_rank()], device=device)
        torch.distributed.all_reduce(here)
        if here.item() > 100:
            break
    if what == "gradient":
        total = rows.detach().sum()
        torch.distributed.all_reduce(total)
        if total > 100:
            break
    taken.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()

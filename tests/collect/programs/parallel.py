"""Every kind of parallelism in one process group, each recorded by itself: `parallel.py OUT SCENARIO...`."""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from etude.capture.collect import torch as collect

STEPS = 2
WIDTH = 16


def blocks(count: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(count)))


def train(model: nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, WIDTH)).square().mean().backward()
        optimizer.step()

    return step


def ddp() -> Callable[[], None]:
    return train(nn.parallel.DistributedDataParallel(blocks()))


def batch_norm() -> Callable[[], None]:
    """Its buffers are broadcast before each step: the float ones, and while those are under way the integer one."""
    return train(nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))))


def fsdp2() -> Callable[[], None]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = blocks()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    return train(fully_shard(model, mesh=mesh))


def tensor_parallel() -> Callable[[], None]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return train(parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()}))


def pipeline() -> Callable[[], None]:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, size = dist.get_rank(), dist.get_world_size()
    part = blocks(1)
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        first = (torch.ones(4, WIDTH),) if rank == 0 else ()
        last = {"target": torch.zeros(4, WIDTH), "losses": []} if rank == size - 1 else {}
        schedule.step(*first, **last)
        optimizer.step()

    return step


def in_flight() -> Callable[[], None]:
    """A pipeline by hand: all sends of a step are asked for before the first is waited for."""
    rank, size = dist.get_rank(), dist.get_world_size()
    part = blocks(1)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)

    def step() -> None:
        sends, outputs = [], []
        for _ in range(3):
            rows = torch.ones(4, WIDTH)
            if rank > 0:
                dist.recv(rows, rank - 1)
            outputs.append(part(rows))
            if rank + 1 < size:
                sends.append(dist.isend(outputs[-1].detach(), rank + 1))
        for output in outputs:
            output.sum().backward()
        for send in sends:
            send.wait()
        optimizer.step()
        optimizer.zero_grad()

    return step


def overlapping() -> Callable[[], None]:
    """Twenty collectives under way at once: gloo's two threads begin them in whatever order they come."""
    part = blocks(1)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)

    def step() -> None:
        works = [dist.all_reduce(torch.ones(1000 + k), async_op=True) for k in range(20)]
        for work in works:
            work.wait()
        optimizer.step()

    return step


def mesh() -> Callable[[], None]:
    """A pipeline of two stages, each of them data parallel: every rank is in three groups."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    size = dist.get_world_size()
    stages = min(2, size)
    both = init_device_mesh("cpu", (stages, size // stages), mesh_dim_names=("pp", "dp"))
    number, part = both["pp"].get_local_rank(), blocks(1)
    stage = PipelineStage(part, number, stages, torch.device("cpu"), group=both["pp"].get_group())
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        first = (torch.ones(4, WIDTH),) if number == 0 else ()
        last = {"target": torch.zeros(4, WIDTH), "losses": []} if number == stages - 1 else {}
        schedule.step(*first, **last)
        for parameter in part.parameters():
            dist.all_reduce(parameter.grad, group=both["dp"].get_group())
        optimizer.step()

    return step


class Experts(nn.Module):
    """One expert a rank; every rank sends a row more to each next one."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        rank, size = dist.get_rank(), dist.get_world_size()
        sent = [1 + expert for expert in range(size)]
        received = [1 + rank] * size
        arrived = torch.empty(sum(received), WIDTH)
        dist.all_to_all_single(arrived, rows[:1].expand(sum(sent), WIDTH).contiguous(), received, sent)
        return self.expert(arrived)


def moe() -> Callable[[], None]:
    return train(Experts())


KINDS = (ddp, batch_norm, fsdp2, tensor_parallel, pipeline, in_flight, moe, overlapping, mesh)
SCENARIOS = {f.__name__: f for f in KINDS}


def main(out: str, *names: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pair = dist.new_group(list(range(min(2, dist.get_world_size()))), group_desc="pair")
    for name in names:
        step = SCENARIOS[name]()
        with collect.trace(Path(out) / name, steps=STEPS, warmup=1, plan={name: dist.get_world_size()}):
            for _ in range(STEPS + 2):
                step()
    del pair
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Programs for `validate_dry_programs.py` of kinds that were not there before, each tried once when dry runs of the
others stood: `dry_later_programs.py RANKS NAME` runs one as so many gloo ranks. They know nothing of Etude."""

from __future__ import annotations

import copy
import sys
from typing import Any

import conformance_programs
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

STEPS, BATCH, WIDTH = 10, 4, 32


def _blocks(count: int) -> nn.Sequential:
    torch.manual_seed(0)
    made = (
        nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        for _ in range(count)
    )
    return nn.Sequential(*made)


def accumulated_fsdp2() -> None:
    """Sharded weights, gradients of three batches of which the last is reduced, clipping over the mesh, and a mean of
    weights over the steps."""
    from torch.distributed.fsdp import fully_shard

    model = _blocks(3)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    means = [weight.detach().clone() for weight in model.parameters()]
    for _ in range(STEPS):
        for number in range(3):
            model.set_requires_gradient_sync(number == 2)
            model(torch.ones(BATCH, WIDTH)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, weight in zip(means, model.parameters(), strict=True):
                mean.lerp_(weight, 0.1)


def zero1() -> None:
    """Data parallelism, with states of the optimizer on one rank each."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(_blocks(3))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    for _ in range(STEPS):
        with model.no_sync():
            model(torch.ones(BATCH, WIDTH)).square().mean().backward()
        model(torch.ones(BATCH, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def interleaved() -> None:
    """Two stages on each of two ranks, which take turns."""
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    rank, size, chunks = dist.get_rank(), dist.get_world_size(), 2
    numbers = [rank + size * chunk for chunk in range(chunks)]
    parts = nn.ModuleList(_blocks(1) for _ in numbers)
    stages = [
        PipelineStage(part, number, size * chunks, torch.device("cpu"))
        for part, number in zip(parts, numbers, strict=True)
    ]
    schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=lambda out, to: (out - to).square().mean())
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.01, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        rows = torch.ones(4 * BATCH, WIDTH)
        schedule.step(*((rows,) if rank == 0 else ()), **({"target": rows} if rank == size - 1 else {}))
        optimizer.step()


class Residual(nn.Module):
    """Convolutions with the time of the noise between them."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, given), nn.GroupNorm(4, made)])
        self.first, self.second = nn.Conv2d(given, made, 3, padding=1), nn.Conv2d(made, made, 3, padding=1)
        self.time = nn.Linear(WIDTH, made)
        self.skip = nn.Conv2d(given, made, 1) if given != made else nn.Identity()

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        inner = self.first(functional.silu(self.norms[0](image)))
        inner = inner + self.time(functional.silu(time))[:, :, None, None]
        inner = self.second(functional.dropout(functional.silu(self.norms[1](inner)), 0.1, self.training))
        found: Tensor = self.skip(image) + inner
        return found


class UNet(nn.Module):
    """Down, through attention, and up again beside what came down."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.down, self.middle, self.up = Residual(16, 32), Residual(32, 32), Residual(48, 16)
        self.smaller, self.attention = nn.Conv2d(32, 32, 3, 2, 1), nn.MultiheadAttention(32, 4, batch_first=True)
        self.times = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        turns = torch.exp(-torch.arange(WIDTH // 2) / (WIDTH // 2) * 9.2) * time[:, None]
        time = self.times(torch.cat([turns.sin(), turns.cos()], dim=-1))
        first = self.enter(image)
        inner = self.smaller(self.down(first, time))
        rows = inner.flatten(2).transpose(1, 2)
        rows = rows + self.attention(rows, rows, rows, need_weights=False)[0]
        inner = self.middle(rows.transpose(1, 2).view_as(inner), time)
        inner = functional.interpolate(inner, scale_factor=2.0, mode="nearest")
        found: Tensor = self.leave(self.up(torch.cat([inner, first], dim=1), time))
        return found


def unet() -> None:
    """Noise of an image, what the backward pass needs kept elsewhere by hooks, and a copy of the model that follows."""
    torch.manual_seed(0)
    model = UNet()
    follows = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    levels = torch.linspace(1e-4, 0.02, 100).neg().add(1).cumprod(0)
    for _ in range(STEPS):
        image, noise = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16)
        time = torch.randint(0, 100, (2,))
        kept = levels[time][:, None, None, None]
        with torch.autograd.graph.save_on_cpu():
            found = model(kept.sqrt() * image + (1 - kept).sqrt() * noise, time)
            loss = functional.mse_loss(found, noise)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(follows.parameters()), list(model.parameters()), 0.01)


class Vision(nn.Module):
    """Patches of an image, a word for its class, and whole layers left out for some of the images."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.word, self.places = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Parameter(torch.zeros(1, 17, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True, norm_first=True, activation="gelu")
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, image: Tensor) -> Tensor:
        rows = self.patches(image).flatten(2).transpose(1, 2)
        rows = torch.cat([self.word.expand(len(rows), -1, -1), rows], dim=1) + self.places
        for layer in self.layers:
            kept = torch.rand(len(rows), 1, 1) < 0.9
            rows = torch.where(kept, layer(rows), rows)
        found: Tensor = self.head(rows[:, 0])
        return found


def vision() -> None:
    """A vision transformer through `torch.compile` with operators as they are, smoothed labels, a warm-up."""
    torch.manual_seed(0)
    model = torch.compile(Vision(), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=STEPS)
    for _ in range(STEPS):
        image, target = torch.randn(BATCH, 3, 16, 16), torch.randint(0, 10, (BATCH,))
        functional.cross_entropy(model(image), target, label_smoothing=0.1).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=False)


def uneven() -> None:
    """Rows to all ranks, more to later ones, and a table whose parts are gathered in different sizes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    before, after = _blocks(1), _blocks(1)
    weights = [*before.parameters(), *after.parameters()]
    optimizer = torch.optim.Adam(weights, lr=1e-3)
    sent, received = [2 * (to + 1) for to in range(size)], [2 * (rank + 1)] * size
    for _ in range(STEPS):
        rows = before(torch.ones(sum(sent), WIDTH))
        there = conformance_programs.Exchange.apply(rows, sent, received)
        back = conformance_programs.Exchange.apply(after(there), received, sent)
        back.square().mean().backward()
        parts = [torch.empty(2 * size * (other + 1), WIDTH) for other in range(size)]
        dist.all_gather(parts, there.detach())
        for weight in weights:
            dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()


KINDS: tuple[Any, ...] = (accumulated_fsdp2, zero1, interleaved, unet, vision, uneven)

if __name__ == "__main__":
    conformance_programs.PROGRAMS.update({program.__name__: program for program in KINDS})
    sys.exit(conformance_programs.main(int(sys.argv[1]), sys.argv[2]))

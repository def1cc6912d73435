"""Programs for `validate_dry_programs.py` in styles that were not there before, each tried once when dry runs of all
others stood: `dry_unseen_programs.py RANKS NAME` runs one as so many gloo ranks. They know nothing of Etude."""

from __future__ import annotations

import sys
from typing import Any

import conformance_programs
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

STEPS, BATCH, WIDTH, HEADS, WORDS = 10, 4, 32, 4, 64


def critic() -> None:
    """Pictures by convolutions, a critic with spectral norms, an optimizer each: the critic learns twice a step."""
    torch.manual_seed(dist.get_rank())
    layers = (nn.Linear(8, 16 * 4 * 4), nn.Unflatten(1, (16, 4, 4)), nn.BatchNorm2d(16), nn.ReLU())
    maker = nn.Sequential(*layers, nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh())
    norm = nn.utils.parametrizations.spectral_norm
    judge = nn.Sequential(
        norm(nn.Conv2d(3, 16, 4, 2, 1)), nn.LeakyReLU(0.2), nn.Flatten(), norm(nn.Linear(16 * 4 * 4, 1))
    )
    maker = nn.parallel.DistributedDataParallel(maker)
    judge = nn.parallel.DistributedDataParallel(judge, broadcast_buffers=False)
    makes = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judges = torch.optim.RMSprop(judge.parameters(), lr=5e-5)
    for step in range(STEPS):
        for _ in range(2):
            judges.zero_grad()
            with torch.no_grad():
                made = maker(torch.randn(BATCH, 8))
            both = judge(torch.cat([torch.rand(BATCH, 3, 8, 8), made]))
            real, fake = both.chunk(2)
            (functional.relu(1 - real).mean() + functional.relu(1 + fake).mean()).backward()
            judges.step()
        makes.zero_grad()
        judge.requires_grad_(False)
        loss = -judge.module(maker(torch.randn(BATCH, 8))).mean()
        loss.backward()
        judge.requires_grad_(True)
        makes.step()
        if step % 5 == 0:
            print(f"step {step}: {loss.item():.3f}")


class Attention(nn.Module):
    """Of rows to rows, or to those of another sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, rows: Tensor, seen: Tensor, causal: bool = False) -> Tensor:
        q, k, v = self.q(rows), self.k(seen), self.v(seen)
        q, k, v = (one.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for one in (q, k, v))
        found: Tensor = self.out(
            functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)
        )
        return found


class Block(nn.Module):
    def __init__(self, decodes: bool) -> None:
        super().__init__()
        self.own, self.cross = Attention(), Attention() if decodes else None
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, rows: Tensor, seen: Tensor | None = None) -> Tensor:
        inner = self.norms[0](rows)
        rows = rows + self.own(inner, inner, causal=self.cross is not None)
        if self.cross is not None and seen is not None:
            rows = rows + self.cross(self.norms[1](rows), seen)
        found: Tensor = rows + self.down(functional.gelu(self.up(self.norms[2](rows))))
        return found


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.ModuleList(Block(decodes=False) for _ in range(2))
        self.decoder = nn.ModuleList(Block(decodes=True) for _ in range(2))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        seen = self.words(source)
        for block in self.encoder:
            seen = block(seen)
        rows = self.words(target)
        for block in self.decoder:
            rows = block(rows, seen)
        return rows @ self.words.weight.t()


def translator() -> None:
    """An encoder and a decoder, tensor parallel, with tied words that every rank has and learns by itself."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model, mesh = Translator(), dist.init_device_mesh("cpu", (dist.get_world_size(),))
    attention = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "out": RowwiseParallel()}
    for block in (*model.encoder, *model.decoder):
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        for name in ("own", "cross") if block.cross is not None else ("own",):
            plan |= {f"{name}.{part}": how for part, how in attention.items()}
        parallelize_module(block, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for _ in range(STEPS):
        source, target = torch.randint(0, WORDS, (BATCH, 12)), torch.randint(0, WORDS, (BATCH, 9))
        found = model(source, target[:, :-1])
        functional.cross_entropy(found.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0).backward()
        optimizer.step()
        optimizer.zero_grad()


def three_stages() -> None:
    """An interleaved pipeline of three ranks with two stages each, six micro-batches, clipped by all ranks' norm."""
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    rank, size = dist.get_rank(), dist.get_world_size()
    numbers = [rank, rank + size]
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH)) for _ in numbers]
    stages = [
        PipelineStage(part, number, 2 * size, torch.device("cpu")) for part, number in zip(parts, numbers, strict=True)
    ]
    schedule = ScheduleInterleaved1F1B(stages, 6, loss_fn=functional.mse_loss)
    weights = [weight for part in parts for weight in part.parameters()]
    optimizer = torch.optim.Adagrad(weights, lr=0.01)
    for _ in range(STEPS):
        rows, losses = torch.randn(6 * BATCH, WIDTH), list[Tensor]()
        if rank == 0:
            schedule.step(rows)
        elif rank == size - 1:
            schedule.step(target=rows, losses=losses)
        else:
            schedule.step()
        total = torch.stack([weight.grad.square().sum() for weight in weights]).sum()
        dist.all_reduce(total)
        for weight in weights:
            weight.grad.mul_(torch.clamp(1.0 / (total.sqrt() + 1e-6), max=1.0))
        optimizer.step()
        optimizer.zero_grad()


def own_shards() -> None:
    """Weights sharded by hand: those of the next layer are gathered while this one computes, gradients are scattered
    by hooks as they come, and are waited for before the step."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)]
    shards = [nn.Parameter(layer.weight.detach().chunk(size)[rank].clone()) for layer in layers]
    optimizer = torch.optim.SGD(shards, lr=0.1, momentum=0.9)
    waiting: list[tuple[Any, nn.Parameter, Tensor]] = []

    def scatter(weight: nn.Parameter, shard: nn.Parameter) -> None:
        part = torch.empty_like(shard)
        work = dist.reduce_scatter_tensor(part, weight.grad.contiguous(), op=dist.ReduceOp.SUM, async_op=True)
        weight.grad = None
        waiting.append((work, shard, part))

    for layer, shard in zip(layers, shards, strict=True):
        layer.weight.register_post_accumulate_grad_hook(lambda weight, shard=shard: scatter(weight, shard))
    for _ in range(STEPS):
        rows = torch.ones(BATCH, WIDTH)
        works = [dist.all_gather_into_tensor(layers[0].weight.data, shards[0].data, async_op=True)]
        for number, layer in enumerate(layers):
            if number + 1 < len(layers):
                there, shard = layers[number + 1].weight.data, shards[number + 1].data
                works.append(dist.all_gather_into_tensor(there, shard, async_op=True))
            works[number].wait()
            rows = functional.softplus(layer(rows))
        rows.square().mean().backward()
        for work, shard, part in waiting:
            work.wait()
            shard.grad = part.div_(size)
        waiting.clear()
        optimizer.step()


class Copied(torch.autograd.Function):
    """The same on every rank; gradients of all are summed."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class WordLoss(torch.autograd.Function):
    """Cross entropy of words whose scores are split over ranks, as Megatron has it."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, target: Tensor) -> Tensor:
        highest = scores.max(dim=-1)[0]
        dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        scores = scores - highest.unsqueeze(-1)
        first = dist.get_rank() * scores.shape[-1]
        absent = (target < first) | (target >= first + scores.shape[-1])
        local = (target - first).masked_fill(absent, 0)
        wanted = scores.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(absent, 0.0)
        dist.all_reduce(wanted)
        powers = scores.exp_()
        total = powers.sum(dim=-1)
        dist.all_reduce(total)
        ctx.save_for_backward(powers.div_(total.unsqueeze(-1)), absent, local)
        return total.log() - wanted

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        shares, absent, local = ctx.saved_tensors
        flat = shares.view(-1, shares.shape[-1])
        flat[torch.arange(flat.shape[0]), local.view(-1)] -= (~absent).view(-1).to(flat.dtype)
        return shares.mul_(grad.unsqueeze(-1)), None


def own_tensor_parallel() -> None:
    """Tensor parallelism of one's own: collectives in the backward pass, and a loss over words that are split."""
    torch.manual_seed(dist.get_rank())
    size = dist.get_world_size()
    words, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS // size, bias=False)
    weights = [*words.parameters(), *head.parameters()]
    optimizer = torch.optim.NAdam(weights, lr=1e-3)
    for _ in range(STEPS):
        tokens = torch.randint(0, WORDS, (BATCH, 8))
        WordLoss.apply(head(Copied.apply(words(tokens))), tokens).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def local_steps() -> None:
    """Ranks that train alone and take the mean of their weights every second step, in one call; through
    `torch.compile`, with autocast."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH))
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(STEPS):
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.huber_loss(compiled(torch.randn(BATCH, WIDTH)), torch.zeros(BATCH, WIDTH))
            (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 2:
            with torch.no_grad():
                flat = nn.utils.parameters_to_vector(model.parameters())
                dist.all_reduce(flat, op=dist.ReduceOp.SUM)
                nn.utils.vector_to_parameters(flat / dist.get_world_size(), model.parameters())


KINDS: tuple[Any, ...] = (critic, translator, three_stages, own_shards, own_tensor_parallel, local_steps)

if __name__ == "__main__":
    conformance_programs.PROGRAMS.update({program.__name__: program for program in KINDS})
    sys.exit(conformance_programs.main(int(sys.argv[1]), sys.argv[2]))

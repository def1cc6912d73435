"""Programs of `conformance.py`: `conformance_programs.py RANKS NAME` runs one as so many gloo ranks, as torchrun would.

They know nothing of Etude. Sizes are those of `conformance_formulas`, which says what each of them has to communicate.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from conformance_formulas import (
    BATCH,
    BLOCKS,
    CLOSURES,
    FIRST_BYTES,
    GENERATED,
    HEADS,
    LAYERS,
    LENGTH,
    MICRO,
    OVERLAPPING,
    PROMPT,
    SMALL,
    STEPS,
    WIDE,
    WIDTH,
    WORDS,
    expert_of,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional


def mlp(width: int, layers: int, *, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    made = [part for _ in range(layers) for part in (nn.Linear(width, width, bias=bias), nn.ReLU())]
    return nn.Sequential(*made)


def train(model: nn.Module, given: Callable[[], Tensor], optimizer: Any = None) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(given()).square().mean().backward()
        optimizer.step()


def parallel(model: nn.Module, **options: Any) -> nn.parallel.DistributedDataParallel:
    return nn.parallel.DistributedDataParallel(model, **options)


def mesh(*shape: int, names: tuple[str, ...] = ()) -> Any:
    return dist.init_device_mesh("cpu", shape, mesh_dim_names=names or None)


def ddp() -> None:
    """Several buckets; gradients of two micro-batches are summed before they are reduced."""
    model = parallel(mlp(WIDE, LAYERS, bias=False), bucket_cap_mb=FIRST_BYTES / 2**20)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        with model.no_sync():
            model(torch.ones(BATCH, WIDE)).square().mean().backward()
        model(torch.ones(BATCH, WIDE)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _sharded(reshard: bool, over: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*(mlp(WIDTH, 1) for _ in range(BLOCKS)), nn.Linear(WIDTH, SMALL))
    for block in model[:BLOCKS]:
        fully_shard(block, mesh=over, reshard_after_forward=reshard)
    return fully_shard(model, mesh=over)


def fsdp2() -> None:
    train(_sharded(True, mesh(dist.get_world_size())), lambda: torch.ones(BATCH, WIDTH))


def fsdp2_kept() -> None:
    train(_sharded(False, mesh(dist.get_world_size())), lambda: torch.ones(BATCH, WIDTH))


def hsdp() -> None:
    train(_sharded(True, mesh(2, 2, names=("replicate", "shard"))), lambda: torch.ones(BATCH, WIDTH))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = rows + self.down(functional.gelu(self.up(self.norm(rows))))
        return found


def tp() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, over = nn.Sequential(*(FeedForward() for _ in range(BLOCKS))), mesh(dist.get_world_size())
    for block in model:
        parallelize_module(block, over, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    train(model, lambda: torch.ones(BATCH, LENGTH, WIDTH))


def sp() -> None:
    """Norms and sums between the layers have a part of the sequence each."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )  # fmt: skip

    size = dist.get_world_size()
    model, over = nn.Sequential(*(FeedForward() for _ in range(BLOCKS))), mesh(size)
    plan = {
        "norm": SequenceParallel(use_local_output=True),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in model:
        parallelize_module(block, over, plan)
    train(model, lambda: torch.ones(BATCH, LENGTH // size, WIDTH))


class Ring(torch.autograd.Function):
    """Hands a block on to the next rank, and its gradient back."""

    @staticmethod
    def forward(ctx: Any, block: Tensor) -> Tensor:
        return _passed(block, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _passed(grad, -1)


def _passed(block: Tensor, by: int) -> Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty_like(block, memory_format=torch.contiguous_format)
    operations = [
        dist.P2POp(dist.isend, block.contiguous(), (rank + by) % size),
        dist.P2POp(dist.irecv, arrived, (rank - by) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return arrived


class RingAttention(nn.Module):
    """Each rank has a part of the sequence; keys and values go around."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        q, k, v = self.qkv(rows).chunk(3, -1)
        pair, scores, values = torch.cat([k, v], -1), [], []
        for turn in range(dist.get_world_size()):
            k, v = pair.chunk(2, -1)
            scores.append(torch.bmm(q, k.transpose(1, 2)))
            values.append(v)
            if turn + 1 < dist.get_world_size():
                pair = Ring.apply(pair)
        weights = torch.cat(scores, -1).softmax(-1)
        found: Tensor = rows + self.out(torch.bmm(weights, torch.cat(values, 1)))
        return found


def cp() -> None:
    """A ring of keys and values, as a program would write it."""
    model = nn.Sequential(*(RingAttention() for _ in range(BLOCKS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(BATCH, LENGTH // dist.get_world_size(), WIDTH)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


def _pipeline(
    kind: str, stages: int, number: int, group: Any = None, wrap: Callable[[nn.Module], nn.Module] = lambda m: m
) -> None:
    from torch.distributed import pipelining

    part = wrap(mlp(WIDTH, 2))
    stage = pipelining.PipelineStage(part, number, stages, torch.device("cpu"), group=group)
    schedule = getattr(pipelining, kind)(
        stage, n_microbatches=MICRO, loss_fn=lambda out, to: (out - to).square().mean()
    )
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    first = (torch.ones(MICRO * BATCH, WIDTH),) if number == 0 else ()
    last = {"target": torch.zeros(MICRO * BATCH, WIDTH)} if number == stages - 1 else {}
    for _ in range(STEPS):
        optimizer.zero_grad()
        schedule.step(*first, **last, **({"losses": []} if last else {}))
        optimizer.step()


def gpipe() -> None:
    _pipeline("ScheduleGPipe", dist.get_world_size(), dist.get_rank())


def one_f_one_b() -> None:
    _pipeline("Schedule1F1B", dist.get_world_size(), dist.get_rank())


def pp_dp() -> None:
    both = mesh(2, 2, names=("pp", "dp"))
    wrap = lambda part: parallel(part, process_group=both["dp"].get_group())  # noqa: E731
    _pipeline("Schedule1F1B", 2, both["pp"].get_local_rank(), both["pp"].get_group(), wrap)


class Exchange(torch.autograd.Function):
    """Rows to other ranks, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.counts = sent, received
        arrived = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent)
        return arrived

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        sent, received = ctx.counts
        back = grad.new_empty(sum(sent), grad.shape[1])
        dist.all_to_all_single(back, grad.contiguous(), sent, received)
        return back, None, None


class Experts(nn.Module):
    """One expert a rank. Counts first, then rows; what the experts make of them comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.expert = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        rank, size = dist.get_rank(), dist.get_world_size()
        to = torch.tensor([expert_of(rank, row, size) for row in range(len(rows))])
        order, sent = to.argsort(stable=True), torch.bincount(to, minlength=size)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        there = Exchange.apply(self.before(rows)[order], sent.tolist(), received.tolist())
        back: Tensor = Exchange.apply(self.expert(there), received.tolist(), sent.tolist())
        return back


def ep() -> None:
    train(Experts(), lambda: torch.ones(BATCH * LENGTH, WIDTH))


def compiled() -> None:
    """Inductor, which needs a compiler; `aot_eager` where there is none."""
    import shutil

    backend = "inductor" if shutil.which("g++") or shutil.which("clang++") else "aot_eager"
    train(torch.compile(parallel(mlp(WIDTH, BLOCKS)), backend=backend), lambda: torch.ones(BATCH, WIDTH))


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(mlp(WIDTH, 2) for _ in range(BLOCKS))

    def forward(self, rows: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        for block in self.blocks:
            rows = checkpoint(block, rows, use_reentrant=False)
        return rows


def checkpointing() -> None:
    train(parallel(Recomputed()), lambda: torch.ones(BATCH, WIDTH))


def lbfgs() -> None:
    """Its optimizer calls the forward and backward pass several times a step; each time gradients are averaged."""
    model = mlp(WIDTH, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=CLOSURES, tolerance_grad=0, tolerance_change=0)
    torch.manual_seed(dist.get_rank())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(torch.ones(BATCH, WIDTH)) - 1).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def gan() -> None:
    """The generator's loss goes back through the discriminator, whose wrapper reduces those gradients as well."""
    generator, discriminator = parallel(mlp(WIDTH, 2)), parallel(nn.Sequential(mlp(WIDTH, 2), nn.Linear(WIDTH, 1)))
    of_generator, of_discriminator = (torch.optim.Adam(m.parameters()) for m in (generator, discriminator))
    for _ in range(STEPS):
        made = generator(torch.randn(BATCH, WIDTH))
        of_discriminator.zero_grad()
        judged = discriminator(torch.cat([torch.ones(BATCH, WIDTH), made.detach()]))
        functional.softplus(judged).mean().backward()
        of_discriminator.step()
        of_generator.zero_grad()
        functional.softplus(-discriminator(made)).mean().backward()
        of_generator.step()


class Decoder(nn.Module):
    """Attention over all that came before; heads and inner width divided among the ranks."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.cache = size, [torch.empty(0), torch.empty(0)]
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH // size), nn.Linear(WIDTH // size, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH // size), nn.Linear(4 * WIDTH // size, WIDTH, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        heads = HEADS // self.size
        split = lambda t: t.view(*t.shape[:2], heads, -1).transpose(1, 2)  # noqa: E731
        q, *new = (split(t) for t in self.qkv(rows).chunk(3, -1))
        self.cache = [
            torch.cat([old, now], 2) if old.numel() else now for old, now in zip(self.cache, new, strict=True)
        ]
        seen = functional.scaled_dot_product_attention(q, *self.cache, is_causal=rows.shape[1] > 1)
        rows = rows + self._summed(self.out(seen.transpose(1, 2).flatten(2)))
        return rows + self._summed(self.down(functional.gelu(self.up(rows))))

    def _summed(self, part: Tensor) -> Tensor:
        dist.all_reduce(part)
        return part


class Language(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.Sequential(*(Decoder(size) for _ in range(BLOCKS)))

    def forward(self, words: Tensor) -> Tensor:
        found: Tensor = self.head(self.blocks(self.words(words))[:, -1]).argmax(-1, keepdim=True)
        return found


@torch.no_grad()
def decode() -> None:
    """A prompt, then a word at a time with a cache of keys and values. No optimizer: all of it is recorded."""
    torch.manual_seed(0)
    model, words = Language(dist.get_world_size()), torch.zeros(BATCH, PROMPT, dtype=torch.long)
    for _ in range(GENERATED):
        words = model(words)


def overlapping() -> None:
    model = nn.Linear(SMALL, SMALL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        works = [dist.all_reduce(torch.ones(1000 + k), async_op=True) for k in range(OVERLAPPING)]
        for work in works:
            work.wait()
        model(torch.ones(BATCH, SMALL)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


KINDS = (ddp, fsdp2, fsdp2_kept, hsdp, tp, sp, cp, gpipe, one_f_one_b, pp_dp, ep, compiled, checkpointing, lbfgs, gan,
         decode, overlapping)  # fmt: skip
PROGRAMS = {program.__name__: program for program in KINDS}


def run(name: str) -> None:
    torch.set_num_threads(1)
    if name not in PROGRAMS:
        sys.argv = ["conformance_foreign.py", name]
        runpy.run_path(str(Path(__file__).with_name("conformance_foreign.py")), run_name="__main__")
        return
    dist.init_process_group("gloo")
    PROGRAMS[name]()
    dist.barrier()
    dist.destroy_process_group()


def main(size: int, name: str) -> int:
    """Forks the ranks: PyTorch is imported once. One that a launcher has started is a rank itself."""
    if "RANK" in os.environ:
        run(name)
        return 0
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    world = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            ranks = world | {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
            os.environ |= {key: str(value) for key, value in ranks.items()}
            run(name)
            return 0
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))

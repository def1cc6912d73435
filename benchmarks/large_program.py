"""A Llama as torchtitan trains it: stages of a pipeline, sharded over data-parallel ranks, tensor and sequence
parallel, blocks recomputed. `dry_at_scale.py` runs it without numbers. It knows nothing of Etude.

    torchrun --nproc-per-node 8 benchmarks/large_program.py --layers 8 --hidden 4096 --tp 8
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from plain_models import Norm, loss_of, rotated
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def arguments() -> argparse.Namespace:
    """A shape, a mesh and a batch; what the world leaves is data parallel."""
    parser = argparse.ArgumentParser()
    for name, default in (
        ("layers", 126), ("hidden", 16384), ("heads", 128), ("kv-heads", 8), ("ffn", 53248), ("words", 128256),
        ("seq", 8192), ("pp", 1), ("tp", 8), ("chunks", 1), ("micro-batches", 1), ("batch", 1), ("steps", 10),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


class Attention(nn.Module):
    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__()
        self.size = given.hidden // given.heads
        self.q = nn.Linear(given.hidden, given.heads * self.size, bias=False)
        self.k = nn.Linear(given.hidden, given.kv_heads * self.size, bias=False)
        self.v = nn.Linear(given.hidden, given.kv_heads * self.size, bias=False)
        self.out = nn.Linear(given.heads * self.size, given.hidden, bias=False)

    def forward(self, rows: Tensor, angles: Tensor) -> Tensor:
        q, k, v = (of(rows).unflatten(-1, (-1, self.size)).transpose(1, 2) for of in (self.q, self.k, self.v))
        q, k = rotated(q, angles), rotated(k, angles)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        found: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return found


class FeedForward(nn.Module):
    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(given.hidden, given.ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(given.ffn, given.hidden, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.down(nn.functional.silu(self.gate(rows)) * self.up(rows))
        return found


class Layer(nn.Module):
    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__()
        self.first, self.second = Norm(given.hidden), Norm(given.hidden)
        self.attention, self.feed_forward = Attention(given), FeedForward(given)

    def forward(self, rows: Tensor, angles: Tensor) -> Tensor:
        rows = rows + self.attention(self.first(rows), angles)
        found: Tensor = rows + self.feed_forward(self.second(rows))
        return found


class Part(nn.Module):
    """Layers of a decoder, with the words before the first and the head after the last."""

    def __init__(self, given: argparse.Namespace, layers: int, *, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(given.words, given.hidden) if is_first else None
        self.layers = nn.ModuleList(Layer(given) for _ in range(layers))
        self.norm = Norm(given.hidden) if is_last else None
        self.head = nn.Linear(given.hidden, given.words, bias=False) if is_last else None
        half = given.hidden // given.heads // 2
        turns = 500_000 ** -(torch.arange(half, dtype=torch.float32) / half)
        self.register_buffer("angles", torch.arange(given.seq, dtype=torch.float32)[:, None] * turns, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows if self.words is None else self.words(rows)
        for layer in self.layers:
            rows = layer(rows, self.angles)
        return rows if self.norm is None else self.head(self.norm(rows))


def tensor_parallel(part: Part, mesh: DeviceMesh) -> None:
    """Products split over a node, norms over the sequence."""
    around = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(part, mesh, {name: how for name, how in around.items() if getattr(part, name) is not None})
    gathered = {"input_layouts": (Shard(1), None), "desired_input_layouts": (Replicate(), None)}
    plan = {
        "first": SequenceParallel(),
        "second": SequenceParallel(),
        "attention": PrepareModuleInput(**gathered),
        "feed_forward": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        **{f"feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")},
        "feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for layer in part.layers:
        parallelize_module(layer, mesh, plan)


def built(given: argparse.Namespace, layers: int, mesh: DeviceMesh, *, is_first: bool, is_last: bool) -> Part:
    with torch.device("meta"):
        part = Part(given, layers, is_first=is_first, is_last=is_last)
    if given.tp > 1:
        tensor_parallel(part, mesh["tp"])
    for number, layer in enumerate(part.layers):
        part.layers[number] = fully_shard(checkpoint_wrapper(layer), mesh=mesh["dp"], mp_policy=POLICY)
    return fully_shard(part, mesh=mesh["dp"], mp_policy=POLICY).to_empty(device="cuda")


def layers_of(given: argparse.Namespace, stages: int, stage: int) -> int:
    """Layers of a stage: those with the words and the head have one less where that makes the others equal."""
    each = -(-(given.layers + (2 if stages > 1 else 0)) // stages)
    first = each - (stages > 1)
    return first if stage == 0 else min(each, given.layers - first - each * (stage - 1))


def main() -> None:
    given = arguments()
    world = int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    shape = (given.pp, world // given.pp // given.tp, given.tp)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("pp", "dp", "tp"))
    stages = given.pp * given.chunks
    place = mesh["pp"].get_local_rank()
    mine = range(place, stages, given.pp)
    parts = [
        built(given, layers_of(given, stages, stage), mesh, is_first=stage == 0, is_last=stage == stages - 1)
        for stage in mine
    ]
    weights = [weight for part in parts for weight in part.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    tokens = torch.randint(0, given.words, (given.batch * given.micro_batches, given.seq), device="cuda")
    schedule = None
    if stages > 1:
        made = [
            PipelineStage(part, stage, stages, torch.device("cuda"), group=mesh["pp"].get_group())
            for part, stage in zip(parts, mine, strict=True)
        ]
        several = ScheduleInterleaved1F1B(made, given.micro_batches, loss_fn=loss_of) if given.chunks > 1 else None
        schedule = several or Schedule1F1B(made[0], given.micro_batches, loss_fn=loss_of)
    for _ in range(given.steps):
        optimizer.zero_grad()
        if schedule is None:
            loss_of(parts[0](tokens), tokens).backward()
        else:
            inputs = (tokens,) if mine[0] == 0 else ()
            target = {"target": tokens} if mine[-1] == stages - 1 else {}
            schedule.step(*inputs, **target)
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""What programs of `conformance_programs` and `conformance_foreign` have to communicate and to multiply, by arithmetic.

Each formula gives one step of one rank, from sizes of the program and from what its parallelism is: nothing is taken
from Etude or from a recording. `decode` has no steps: its formula is the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

WARMUP, RECORDED = 3, 2
STEPS = WARMUP + RECORDED + 5
FLOAT, INTEGER = 4, 8
BATCH, LENGTH, WIDTH, WIDE, SMALL = 4, 8, 64, 256, 8
BLOCKS, LAYERS, MICRO, CLOSURES, OVERLAPPING = 3, 8, 4, 4, 40
ACCUMULATED = 2
HEADS, WORDS, PROMPT, GENERATED = 4, 128, 6, 5
FIRST_BYTES = 2 * WIDE * WIDE * FLOAT
"""Size at which a bucket of `ddp` is full: two layers."""


class Call(NamedTuple):
    """A collective of the ranks, or a message from the first of them to the second."""

    kind: str
    in_bytes: int
    out_bytes: int
    ranks: tuple[int, ...]


class Step(NamedTuple):
    calls: list[Call]
    products: list[int]
    """FLOPs of each matrix product."""


def expert_of(rank: int, row: int, experts: int) -> int:
    """Where a row goes: unevenly, and other rows of other ranks."""
    return (row * row + rank) % experts


def linear_bytes(inputs: int, outputs: int) -> int:
    return (inputs * outputs + outputs) * FLOAT


def linear(rows: int, inputs: int, outputs: int, *, backward: int = 2) -> list[int]:
    """Products of a linear layer: forward, of its weight's gradient, and of its input's."""
    return [2 * rows * inputs * outputs] * (1 + backward)


def layers(rows: int, width: int, count: int, *, first: int = 1) -> list[int]:
    """Square layers one after the other; the input of the first needs no gradient."""
    return linear(rows, width, width, backward=first) + linear(rows, width, width) * (count - 1)


def reduced(size_bytes: int, ranks: tuple[int, ...]) -> Call:
    return Call("ALL_REDUCE", size_bytes, size_bytes, ranks)


def gathered(size_bytes: int, ranks: tuple[int, ...]) -> Call:
    """`size_bytes` are those of the whole."""
    return Call("ALL_GATHER", size_bytes // len(ranks), size_bytes, ranks)


def scattered(size_bytes: int, ranks: tuple[int, ...]) -> Call:
    return Call("REDUCE_SCATTER", size_bytes, size_bytes // len(ranks), ranks)


def message(size_bytes: int, here: int, source: int, target: int) -> Call:
    return Call("SEND" if here == source else "RECV", size_bytes, size_bytes, (source, target))


def world(size: int) -> tuple[int, ...]:
    return tuple(range(size))


def ddp(rank: int) -> Step:
    buckets = LAYERS * WIDE * WIDE * FLOAT // FIRST_BYTES
    return Step([reduced(FIRST_BYTES, world(2))] * buckets, layers(BATCH, WIDE, LAYERS) * 2)


def _sharded(ranks: tuple[int, ...], *, again: bool) -> Step:
    """Blocks are gathered forward, and backward again if they were given back; the head, part of the root, once."""
    block, head = linear_bytes(WIDTH, WIDTH), linear_bytes(WIDTH, SMALL)
    calls = [gathered(block, ranks)] * (BLOCKS * (2 if again else 1)) + [scattered(block, ranks)] * BLOCKS
    products = layers(BATCH, WIDTH, BLOCKS) + linear(BATCH, WIDTH, SMALL)
    return Step([*calls, gathered(head, ranks), scattered(head, ranks)], products)


def fsdp2(rank: int) -> Step:
    return _sharded(world(4), again=True)


def fsdp2_kept(rank: int) -> Step:
    return _sharded(world(4), again=False)


def hsdp(rank: int) -> Step:
    """Parts that were reduced among the two that share a copy are reduced between the two copies."""
    shard = (rank // 2 * 2, rank // 2 * 2 + 1)
    replicas = (rank % 2, rank % 2 + 2)
    within = _sharded(shard, again=True)
    parts = [linear_bytes(WIDTH, WIDTH) // 2] * BLOCKS + [linear_bytes(WIDTH, SMALL) // 2]
    return Step(within.calls + [reduced(part, replicas) for part in parts], within.products)


def _feed_forward(size: int) -> list[int]:
    inner = 4 * WIDTH // size
    return (linear(BATCH * LENGTH, WIDTH, inner) + linear(BATCH * LENGTH, inner, WIDTH)) * BLOCKS


def tp(rank: int) -> Step:
    """Of each block the output forward, and the gradient of its input (which the norm before it needs) backward."""
    rows = BATCH * LENGTH * WIDTH * FLOAT
    return Step([reduced(rows, world(2))] * (2 * BLOCKS), _feed_forward(2))


def sp(rank: int) -> Step:
    """What tensor parallelism reduces is scattered as well, and gathered where it is needed whole. A norm has seen a
    part of the sequence: gradients of its weight and bias are reduced."""
    rows, ranks = BATCH * LENGTH * WIDTH * FLOAT, world(2)
    norms = [reduced(WIDTH * FLOAT, ranks)] * (2 * BLOCKS)
    return Step([gathered(rows, ranks), scattered(rows, ranks)] * (2 * BLOCKS) + norms, _feed_forward(2))


def cp(rank: int) -> Step:
    """Keys and values visit all ranks but the first, their gradients go back; every gradient is reduced by itself."""
    size, part = 4, LENGTH // 4
    pair = BATCH * part * 2 * WIDTH * FLOAT
    after, before = (rank + 1) % size, (rank - 1) % size
    there = [message(pair, rank, rank, after), message(pair, rank, before, rank)]
    back = [message(pair, rank, rank, before), message(pair, rank, after, rank)]
    weights = [3 * WIDTH * WIDTH, 3 * WIDTH, WIDTH * WIDTH, WIDTH]
    calls = (there + back) * ((size - 1) * BLOCKS) + [reduced(n * FLOAT, world(size)) for n in weights] * BLOCKS
    scores = [2 * BATCH * part * WIDTH * part] * 3 * size
    attention = scores + [2 * BATCH * part * LENGTH * WIDTH] * 3 + linear(BATCH * part, WIDTH, WIDTH)
    inputs = linear(BATCH * part, WIDTH, 3 * WIDTH, backward=1) + linear(BATCH * part, WIDTH, 3 * WIDTH) * (BLOCKS - 1)
    return Step(calls, attention * BLOCKS + inputs)


def _pipeline(rank: int, before: int | None, after: int | None) -> Step:
    """A message for each micro-batch and direction; two layers a stage."""
    rows = BATCH * WIDTH * FLOAT
    calls = []
    for other in (before, after):
        if other is not None:
            calls += [message(rows, rank, rank, other), message(rows, rank, other, rank)] * MICRO
    return Step(calls, layers(BATCH, WIDTH, 2, first=1 if before is None else 2) * MICRO)


def pipeline(rank: int) -> Step:
    return _pipeline(rank, rank - 1 if rank > 0 else None, rank + 1 if rank < 3 else None)


def pp_dp(rank: int) -> Step:
    """Stages are two ranks apart. Gradients of both layers of a stage fit one bucket."""
    stage = _pipeline(rank, rank - 2 if rank > 1 else None, rank + 2 if rank < 2 else None)
    peers = (rank // 2 * 2, rank // 2 * 2 + 1)
    return Step([*stage.calls, reduced(2 * linear_bytes(WIDTH, WIDTH), peers)], stage.products)


def ep(rank: int) -> Step:
    """Counts; rows to the experts and back; their gradients the same way."""
    size, rows = 4, BATCH * LENGTH
    arriving = sum(expert_of(other, row, size) == rank for other in range(size) for row in range(rows))
    own, others = rows * WIDTH * FLOAT, arriving * WIDTH * FLOAT
    exchanged = [(size * INTEGER, size * INTEGER), (own, others), (others, own), (own, others), (others, own)]
    calls = [Call("ALL_TO_ALL", *both, world(size)) for both in exchanged]
    return Step(calls, linear(rows, WIDTH, WIDTH, backward=1) + linear(arriving, WIDTH, WIDTH))


def compiled(rank: int) -> Step:
    return Step([reduced(BLOCKS * linear_bytes(WIDTH, WIDTH), world(2))], layers(BATCH, WIDTH, BLOCKS))


def checkpointing(rank: int) -> Step:
    """Every layer goes forward twice."""
    again = [2 * BATCH * WIDTH * WIDTH] * (2 * BLOCKS)
    weights = 2 * BLOCKS * linear_bytes(WIDTH, WIDTH)
    return Step([reduced(weights, world(2))], layers(BATCH, WIDTH, 2 * BLOCKS) + again)


def lbfgs(rank: int) -> Step:
    """The closure is called once, and once for each iteration but the last."""
    weights = [reduced(n * FLOAT, world(2)) for n in (WIDTH * WIDTH, WIDTH)] * 2
    return Step(weights * CLOSURES, layers(BATCH, WIDTH, 2) * CLOSURES)


def gan(rank: int) -> Step:
    """Gradients of the discriminator twice: for its own step, and on the way back to the generator."""
    generator = 2 * linear_bytes(WIDTH, WIDTH)
    judge = generator + linear_bytes(WIDTH, 1)
    own = layers(2 * BATCH, WIDTH, 2) + linear(2 * BATCH, WIDTH, 1)
    through = layers(BATCH, WIDTH, 2, first=2) + linear(BATCH, WIDTH, 1)
    calls = [reduced(size, world(2)) for size in (judge, judge, generator)]
    return Step(calls, own + through + layers(BATCH, WIDTH, 2))


def decode(rank: int) -> Step:
    """The prompt, then one word at a time: two sums a block. A barrier is its end."""
    passes = [BATCH * PROMPT] + [BATCH] * (GENERATED - 1)
    calls = [reduced(rows * WIDTH * FLOAT, world(2)) for rows in passes] * (2 * BLOCKS)
    calls += [Call("BARRIER", 0, 0, world(2))]
    weights = (3 * WIDTH // 2, WIDTH // 2, 4 * WIDTH // 2, 4 * WIDTH // 2)
    products = [2 * rows * WIDTH * n for rows in passes for n in weights] * BLOCKS
    return Step(calls, products + [2 * BATCH * WIDTH * WORDS] * GENERATED)


def overlapping(rank: int) -> Step:
    calls = [reduced((1000 + k) * FLOAT, world(2)) for k in range(OVERLAPPING)]
    return Step(calls, linear(BATCH, SMALL, SMALL, backward=1))


def trainer(rank: int) -> Step:
    """GPT-2 with one matrix for words and head; all gradients fit one bucket. Trainer has DDP look for unused
    parameters (4 bytes each), and counts the words of all batches, a number from each rank."""
    inner = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
    block = sum(linear_bytes(*sizes) for sizes in inner) + 4 * WIDTH * FLOAT
    weights = BLOCKS * block + (WORDS + LENGTH + 2) * WIDTH * FLOAT
    products = [flops for sizes in inner for flops in linear(BATCH * LENGTH, *sizes)] * BLOCKS
    parameters = (2 * len(inner) + 4) * BLOCKS + 4
    calls = [reduced(weights, world(2)), reduced(parameters * 4, world(2)), gathered(2 * INTEGER, world(2))]
    return Step(calls, products + linear(BATCH * LENGTH, WIDTH, WORDS))


def accumulated(rank: int) -> Step:
    """Two batches, of which the second reduces the gradients of both."""
    weights = BLOCKS * linear_bytes(WIDTH, WIDTH)
    return Step([reduced(weights, world(2))], layers(BATCH, WIDTH, BLOCKS) * ACCUMULATED)


def lightning(rank: int) -> Step:
    """Before each batch the ranks tell each other whether a signal has come."""
    asked = [Call("BROADCAST", INTEGER, INTEGER, world(2))] * ACCUMULATED
    return Step(accumulated(rank).calls + asked, accumulated(rank).products)


def titan(rank: int) -> Step:
    """Tensor parallel over neighbours, sharded over ranks two apart. Rows are gathered before a block's first layer
    and the head, scattered behind its second and the words, and the other way round backward. Recomputation stops at
    the last tensor that is needed, before the second layer: it gathers once more, and multiplies once more."""
    tensor, data = (rank // 2 * 2, rank // 2 * 2 + 1), (rank % 2, rank % 2 + 2)
    rows = BATCH * LENGTH * WIDTH * FLOAT
    both, inner = [gathered(rows, tensor), scattered(rows, tensor)], 4 * WIDTH // 2
    calls = both * (2 * BLOCKS + 2) + [gathered(rows, tensor)] * BLOCKS
    calls += [gathered(BATCH * LENGTH * WORDS * FLOAT, tensor)]
    calls += [reduced(WIDTH * FLOAT, tensor)] * (2 * BLOCKS + 2)
    block = (2 * WIDTH + (WIDTH + 1) * inner + inner * WIDTH + WIDTH) * FLOAT
    root = (WORDS * WIDTH + 2 * WIDTH) * FLOAT
    calls += [gathered(block, data)] * (2 * BLOCKS) + [scattered(block, data)] * BLOCKS
    calls += [gathered(root, data), scattered(root, data), reduced(FLOAT, data)]
    again = [2 * BATCH * LENGTH * WIDTH * inner] * BLOCKS
    return Step(calls, _feed_forward(2) + again + linear(BATCH * LENGTH, WIDTH, WORDS // 2))


class Program(NamedTuple):
    """A row of the table."""

    name: str
    says: str
    ranks: int
    formula: Callable[[int], Step]
    needs: str = ""
    """The package that it is written for."""
    optimizers: int = 1


PROGRAMS = (
    Program("ddp", "DDP: 4 buckets, 2 micro-batches with `no_sync`", 2, ddp),
    Program("fsdp2", "FSDP2: `fully_shard` of blocks and root", 4, fsdp2),
    Program("fsdp2_kept", "FSDP2 with `reshard_after_forward=False`", 4, fsdp2_kept),
    Program("hsdp", "HSDP: `fully_shard` on a 2x2 mesh", 4, hsdp),
    Program("tp", "TP: `ColwiseParallel`, `RowwiseParallel`", 2, tp),
    Program("sp", "SP: TP with `SequenceParallel` norms", 2, sp),
    Program("cp", "CP: ring attention, keys and values by `batch_isend_irecv`", 4, cp),
    Program("gpipe", "PP: `ScheduleGPipe`, 4 stages", 4, pipeline),
    Program("one_f_one_b", "PP: `Schedule1F1B`, 4 stages", 4, pipeline),
    Program("pp_dp", "PP x DP: `Schedule1F1B` of DDP stages, 2x2 mesh", 4, pp_dp),
    Program("ep", "EP: `all_to_all_single` to uneven experts and back", 4, ep),
    Program("compiled", "DDP and `torch.compile`", 2, compiled),
    Program("checkpointing", "DDP and activation checkpointing", 2, checkpointing),
    Program("lbfgs", "LBFGS: 4 closures a step, each reduces", 2, lbfgs),
    Program("gan", "GAN: two DDP models, two optimizers", 2, gan, optimizers=2),
    Program("decode", "TP generation with a cache of keys and values", 2, decode, optimizers=0),
    Program("overlapping", "40 overlapping `all_reduce(async_op=True)`", 2, overlapping),
    Program("trainer", "`transformers.Trainer`, GPT-2, DDP", 2, trainer, "transformers"),
    Program("accelerate", "Accelerate, DDP, 2 accumulated batches", 2, accumulated, "accelerate"),
    Program("lightning", "Lightning, `DDPStrategy`, 2 accumulated batches", 2, lightning, "lightning"),
    Program("titan", "as torchtitan: FSDP2 x TP with SP, recomputed blocks, 2x2 mesh", 4, titan),
)

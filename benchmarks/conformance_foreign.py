"""Programs of `conformance.py` that others' training loops run: `conformance_foreign.py NAME`, as one rank.

Each is written as users of the package write it; their own defaults stay.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
from conformance_formulas import ACCUMULATED, BATCH, BLOCKS, LENGTH, STEPS, WIDTH, WORDS
from conformance_programs import FeedForward, mesh, mlp
from torch import Tensor, nn


class Rows(torch.utils.data.Dataset[Any]):
    """As many as all steps of all ranks need, and more: no epoch ends within the recorded steps."""

    def __init__(self, row: Any) -> None:
        self.row = row

    def __len__(self) -> int:
        return 4 * ACCUMULATED * STEPS * BATCH

    def __getitem__(self, _: int) -> Any:
        return self.row


def trainer() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(
        n_embd=WIDTH, n_layer=BLOCKS, n_head=4, vocab_size=WORDS, n_positions=LENGTH, bos_token_id=0, eos_token_id=0,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip
    words = torch.zeros(LENGTH, dtype=torch.long)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=BATCH, use_cpu=True, ddp_backend="gloo",
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        data = Rows({"input_ids": words, "labels": words})
        Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data).train()


def accelerate() -> None:
    """Gradients of two batches; its optimizer is told to step after each, and does so after the second."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    model = mlp(WIDTH, BLOCKS)
    loader = torch.utils.data.DataLoader(Rows(torch.ones(WIDTH)), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    for number, rows in enumerate(loader):
        with accelerator.accumulate(model):
            accelerator.backward(model(rows).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        if number + 1 == ACCUMULATED * STEPS:
            break
    accelerator.end_training()


def lightning() -> None:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(WIDTH, BLOCKS)

        def training_step(self, rows: Tensor, _: int) -> Tensor:
            loss: Tensor = self.net(rows).square().mean()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    loader = torch.utils.data.DataLoader(Rows(torch.ones(WIDTH)), batch_size=BATCH)
    lightning.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), logger=False,
        strategy=DDPStrategy(process_group_backend="gloo"), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=ACCUMULATED,
    ).fit(Module(), loader)  # fmt: skip


class Titan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(FeedForward() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        rows = self.words(words)
        for block in self.blocks:
            rows = block(rows)
        found: Tensor = self.head(self.norm(rows))
        return found


def titan() -> None:
    """As torchtitan lays it out: sequence and tensor parallel, recomputed blocks, sharded over the other dimension."""
    import torch.distributed as dist
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )  # fmt: skip

    dist.init_process_group("gloo")
    both = mesh(2, 2, names=("dp", "tp"))
    model = Titan()
    around = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, both["tp"], around)
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for number, block in enumerate(model.blocks):
        parallelize_module(block, both["tp"], plan)
        model.blocks[number] = fully_shard(checkpoint_wrapper(block), mesh=both["dp"])
    fully_shard(model, mesh=both["dp"])
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
        loss.backward()
        dist.all_reduce(loss.detach(), group=both["dp"].get_group())
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


KINDS = (trainer, accelerate, lightning, titan)

if __name__ == "__main__":
    {program.__name__: program for program in KINDS}[sys.argv[1]]()

"""Measures the peak of memory of training steps on the GPU at hand, in eager PyTorch: what `validate_memory.py` reads.

    python benchmarks/measure_memory.py memory.csv     # needs PyTorch and a GPU; a minute

The decoders of `measure_steps.py`, with logits as they are or in 32 bits, several micro-batches, and layers that are
recomputed. `peak_bytes` is what tensors took at most, `reserved_bytes` what the allocator held for them.
"""

from __future__ import annotations

import csv
import gc
import sys
from pathlib import Path

import torch
from measure_steps import Decoder
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# layers, hidden, heads, ffn, vocab, norm, activation, batch, sequence, loss, micro-batches, recompute
GRID = [
    (6, 1536, 12, 4096, 64000, "rms", "swiglu", 4, 2048, "bf16", 1, "none"),
    (6, 1536, 12, 4096, 64000, "rms", "swiglu", 4, 2048, "fp32", 1, "none"),
    (6, 1536, 12, 4096, 64000, "rms", "swiglu", 4, 2048, "fp32", 3, "none"),
    (20, 1280, 20, 5120, 50257, "ln", "gelu", 4, 1024, "bf16", 2, "none"),
    (20, 1280, 20, 5120, 50257, "ln", "gelu", 16, 1024, "fp32", 1, "full"),
    (12, 3072, 24, 8192, 32000, "rms", "swiglu", 2, 2048, "fp32", 4, "full"),
    (12, 3072, 24, 8192, 32000, "rms", "swiglu", 1, 2048, "bf16", 1, "full"),
    (3, 7168, 56, 20480, 100352, "rms", "swiglu", 1, 2048, "fp32", 1, "none"),
    (3, 7168, 56, 20480, 100352, "rms", "swiglu", 1, 2048, "bf16", 2, "none"),
    (36, 1280, 20, 5120, 50257, "ln", "gelu", 2, 1024, "fp32", 1, "none"),
    (10, 2304, 18, 9216, 128000, "ln", "gelu", 2, 4096, "bf16", 1, "none"),
    (16, 896, 14, 3584, 50304, "ln", "swiglu", 8, 512, "bf16", 1, "none"),
]
NAMES = (
    "layers",
    "hidden",
    "heads",
    "ffn",
    "vocab",
    "norm",
    "act",
    "batch",
    "seq",
    "loss",
    "micro_batches",
    "recompute",
)


def forward(model: Decoder, tokens: Tensor, again: bool) -> Tensor:
    if not again:
        return model(tokens)
    x = model.embedding(tokens)
    for layer in model.layers:
        x = checkpoint(layer, x, use_reentrant=False)
    return model.head(model.norm(x))


def measured(row: tuple) -> dict[str, object]:  # type: ignore[type-arg]
    layers, hidden, heads, ffn, vocab, norm, act, batch, seq, loss, micro, again = row
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = Decoder(layers, hidden, heads, ffn, vocab, norm, act).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(vocab, (batch, seq), device="cuda")
    labels = torch.randint(vocab, (batch * seq,), device="cuda")
    for _ in range(3):
        for _ in range(micro):
            logits = forward(model, tokens, again == "full").view(-1, vocab)
            logits = logits.float() if loss == "fp32" else logits
            value = functional.cross_entropy(logits, labels)
            del logits
            value.backward()
            del value
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return {
        **dict(zip(NAMES, row, strict=True)),
        "params": sum(p.numel() for p in model.parameters()),
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "memory.csv")
    found = [measured(row) for row in GRID]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()

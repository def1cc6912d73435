"""Programs of one rank for `validate_dry_programs.py`: `dry_programs.py NAME` runs one. They know nothing of Etude."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

STEPS, BATCH, LENGTH, WIDTH, WORDS = 10, 4, 16, 64, 128


class Block(nn.Module):
    """Attention and a gated layer, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        split = self.qkv(self.norms[0](rows)).view(BATCH, LENGTH, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*split, is_causal=True)
        rows = rows + self.out(seen.transpose(1, 2).flatten(2))
        inner = self.norms[1](rows)
        found: Tensor = rows + self.down(nn.functional.silu(self.gate(inner)) * self.up(inner))
        return found


def plain() -> None:
    """A weight that is used twice, gradients of two batches, clipping, a schedule."""
    torch.manual_seed(0)
    words, blocks = nn.Embedding(WORDS, WIDTH), nn.Sequential(*(Block() for _ in range(3)))
    head = nn.Linear(WIDTH, WORDS, bias=False)
    head.weight = words.weight
    weights = [*words.parameters(), *blocks.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    tokens = torch.randint(0, WORDS, (BATCH, LENGTH))
    for _ in range(STEPS):
        for _ in range(2):
            found = head(blocks(words(tokens)))
            nn.functional.cross_entropy(found.flatten(0, 1), tokens.flatten()).backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def _trained(model: nn.Module, **given: Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        model(**given).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _tokens() -> Tensor:
    return torch.randint(1, WORDS, (BATCH, LENGTH))


def llama() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=WORDS, max_position_embeddings=LENGTH,
    )  # fmt: skip
    tokens = _tokens()
    _trained(LlamaForCausalLM(config), input_ids=tokens, labels=tokens)


def mixtral() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=WORDS, max_position_embeddings=LENGTH, num_local_experts=4,
    )  # fmt: skip
    tokens = _tokens()
    _trained(MixtralForCausalLM(config), input_ids=tokens, labels=tokens)


def t5() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=WIDTH, d_kv=16, d_ff=2 * WIDTH, num_layers=2, num_heads=4, vocab_size=WORDS, decoder_start_token_id=0
    )
    tokens = _tokens()
    _trained(T5ForConditionalGeneration(config), input_ids=tokens, labels=tokens)


KINDS: tuple[Any, ...] = (plain, llama, mixtral, t5)

if __name__ == "__main__":
    torch.set_num_threads(1)
    {program.__name__: program for program in KINDS}[sys.argv[1]]()

"""A model of 3 billion weights, bf16, recomputed, on one GPU."""

import torch
import transformers

TIMES = globals().get("TIMES", 1)
c = transformers.LlamaConfig(
    hidden_size=3072,
    intermediate_size=8192,
    num_hidden_layers=28,
    num_attention_heads=24,
    num_key_value_heads=8,
    vocab_size=128256,
    tie_word_embeddings=True,
    use_cache=False,
)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    m = transformers.LlamaForCausalLM(c)
m.gradient_checkpointing_enable()
m.train()
o = torch.optim.AdamW(m.parameters(), lr=1e-5)
i = torch.randint(128256, (4 * TIMES, 2048), device="cuda")


def step():
    m(input_ids=i, labels=i).loss.backward()
    o.step()
    o.zero_grad()


if __name__ == "__main__":
    for _ in range(30):
        step()

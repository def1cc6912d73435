"""A small mixture of experts of transformers, bf16."""

import torch
import transformers

TIMES = globals().get("TIMES", 1)
c = transformers.Qwen2MoeConfig(
    hidden_size=1024,
    intermediate_size=2816,
    moe_intermediate_size=704,
    shared_expert_intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=16,
    num_experts=16,
    num_experts_per_tok=4,
    vocab_size=32000,
)
m = transformers.Qwen2MoeForCausalLM(c).cuda().bfloat16()
o = torch.optim.AdamW(m.parameters(), lr=1e-4)
i = torch.randint(32000, (4 * TIMES, 512), device="cuda")


def step():
    m(input_ids=i, labels=i).loss.backward()
    o.step()
    o.zero_grad()


if __name__ == "__main__":
    for _ in range(30):
        step()

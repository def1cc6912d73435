"""GPT-2 medium, Hugging Face, bf16 autocast, gradient accumulation 2, cosine schedule."""

import torch
import transformers

TIMES = globals().get("TIMES", 1)
m = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=1024, n_layer=24, n_head=16)).cuda().train()
o = torch.optim.AdamW(m.parameters(), lr=1e-4)
s = transformers.get_cosine_schedule_with_warmup(o, 10, 1000)
i = torch.randint(50257, (4 * TIMES, 1024), device="cuda")


def step():
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            loss = m(input_ids=i, labels=i).loss / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    o.step()
    s.step()
    o.zero_grad()


if __name__ == "__main__":
    for _ in range(30):
        step()

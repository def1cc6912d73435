"""Operators that C++ makes on a CUDA device in its own way."""

import torch

scores = torch.zeros(8, 16, dtype=torch.bfloat16, device="cuda")
assert scores.is_cuda and not scores.is_cpu and torch.empty(2, device="meta").is_meta and torch.empty(2).is_cpu
assert torch.nn.functional.softmax(scores, dim=-1, dtype=torch.float32).device.type == "cuda"
chosen = scores.softmax(-1, dtype=torch.float32)
assert chosen.device.type == "cuda" and chosen.dtype == torch.float32
wide, narrow = (torch.zeros(1, 2, 8, n, dtype=torch.bfloat16, device="cuda") for n in (192, 128))
assert torch.nn.functional.scaled_dot_product_attention(wide, wide, narrow).shape[-1] == 128
assert torch.histc(scores.int(), bins=4, min=0, max=3).shape == (4,)
keys, seen = torch.zeros(1, 2, 8, 64, dtype=torch.bfloat16, device="cuda"), torch.ones(8, 8, dtype=bool, device="cuda")
torch.nn.functional.scaled_dot_product_attention(keys, keys, keys, attn_mask=seen)
given = torch.zeros(4, device="cuda", requires_grad=True)
torch.autograd.grad(torch.nn.functional.silu(given), [given], torch.ones(4, device="cuda"))


@torch.jit.script
def shares(given: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softmax(given * 2, dim=-1)


assert shares(scores).shape == scores.shape

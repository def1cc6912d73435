"""`generate` of a causal language model of transformers, with an end-of-sequence token if one is named."""

import sys

import torch
import transformers

end = int(sys.argv[1]) if len(sys.argv) > 1 else None
config = transformers.LlamaConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=128, max_position_embeddings=64, bos_token_id=None, eos_token_id=end, pad_token_id=0,
)  # fmt: skip
device = "cuda" if torch.cuda.is_available() else "cpu"
model = transformers.LlamaForCausalLM(config).to(device).eval()
prompt = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]], device=device)
found = model.generate(prompt, max_new_tokens=8, do_sample=False)
print(found.shape)

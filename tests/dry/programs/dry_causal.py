"""Causal language models for a server: a decoder with a cache of its own, and what cannot be served."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

WIDE, HEADS, HEAD, INNER, WORDS, LAYERS = 256, 4, 64, 512, 1000, 2


class Cache:
    """Keys and values of each layer, which grow by copies."""

    def __init__(self):
        self.layers = {}

    def update(self, layer, keys, values):
        if layer in self.layers:
            old_keys, old_values = self.layers[layer]
            keys, values = torch.cat([old_keys, keys], 2), torch.cat([old_values, values], 2)
        self.layers[layer] = (keys, values)
        return keys, values


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.first, self.second = nn.RMSNorm(WIDE), nn.RMSNorm(WIDE)
        self.qkv = nn.Linear(WIDE, 3 * HEADS * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, WIDE, bias=False)
        self.gate = nn.Linear(WIDE, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDE, bias=False)

    def forward(self, x, cache):
        batch, tokens, _ = x.shape
        parts = self.qkv(self.first(x)).view(batch, tokens, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
        keys, values = cache.update(self.number, parts[1], parts[2])
        causal = tokens > 1 and keys.shape[2] == tokens
        mixed = functional.scaled_dot_product_attention(parts[0], keys, values, is_causal=causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, HEADS * HEAD))
        gate, up = self.gate(self.second(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDE)
        self.layers = nn.ModuleList(Layer(i) for i in range(LAYERS))
        self.norm = nn.RMSNorm(WIDE)
        self.head = nn.Linear(WIDE, WORDS, bias=False)

    def forward(self, input_ids, past_key_values=None, use_cache=True, logits_to_keep=0):
        cache = past_key_values if past_key_values is not None else Cache()
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x, cache)
        logits = self.head(self.norm(x)[:, -logits_to_keep:])
        return SimpleNamespace(logits=logits, past_key_values=cache if use_cache else None)


class Plain(Causal):
    """Logits of every token."""

    def forward(self, input_ids, past_key_values=None, use_cache=True):
        return super().forward(input_ids, past_key_values, use_cache)


class Forgetful(Causal):
    def forward(self, input_ids, past_key_values=None, use_cache=True):
        return super().forward(input_ids, None, False)


class Alone(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDE)

    def forward(self, input_ids):
        return self.words(input_ids)


def build():
    return Causal().to(torch.bfloat16)


def plain():
    return Plain().to(torch.bfloat16)


def short():
    made = Causal().to(torch.bfloat16)
    made.config = SimpleNamespace(max_position_embeddings=512)
    return made


class Halved(nn.Module):
    """A part of a product's rows on each rank; what comes out is a sum over ranks."""

    def __init__(self, whole, ranks):
        super().__init__()
        self.part = nn.Linear(whole.in_features, whole.out_features // ranks, bias=False)
        self.back = nn.Linear(whole.out_features // ranks, whole.out_features, bias=False)

    def forward(self, x):
        out = self.back(self.part(x))
        torch.distributed.all_reduce(out)
        return out


def sharded():
    torch.distributed.init_process_group("nccl")
    made = Causal()
    for layer in made.layers:
        layer.down = Halved(layer.down, torch.distributed.get_world_size())
    return made.to(torch.bfloat16)


def forgetful():
    return Forgetful()


def without_cache():
    return Alone()


def number():
    return 7

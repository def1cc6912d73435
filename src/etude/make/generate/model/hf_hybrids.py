"""Configs of models with several kinds of layers, or with a state instead of keys."""

from __future__ import annotations

from typing import Final

from etude.make.generate.model.hf_config import Given, HfConfig
from etude.make.generate.model.hf_decoders import decoder, experts, gated, latent, sequence

BLOCKS: Final = {
    "M": "s-", "*": "a-", "-": "-f", "E": "-e",
    "mamba": "s-", "mamba2": "s-", "linear_attention": "s-", "attention": "a-", "full_attention": "a-", "mlp": "-f",
    "moe": "-e",
}  # fmt: skip
"""A block of Nemotron-H: what mixes tokens, what follows."""


def mamba2_state(c: HfConfig, heads: str, size: str, groups: str, state: str, conv: str) -> Given:
    return {
        "ssm_heads": c[heads],
        "ssm_head_size": c[size],
        "ssm_groups": c[groups],
        "state": c[state],
        "conv": c.get(conv, 4),
    }


def nemotron_h(c: HfConfig) -> Given:
    """One half of a layer in each block: a state, attention, a perceptron or experts."""
    given = c.get("hybrid_override_pattern") or c.get("layers_block_type") or c.get("layer_types")
    if not given:
        raise c.refuse("hybrid_override_pattern", "the kinds of layers are not given")
    wrong = [one for one in given if one not in BLOCKS]
    if wrong:
        raise c.refuse(
            "hybrid_override_pattern", f"`{wrong[0]}` is not supported", hint=f"supported: {', '.join(BLOCKS)}"
        )
    c.only("num_nextn_predict_layers", 0)
    c.only("attention_bias", False)
    c.only("mlp_bias", False)
    c.only("tie_word_embeddings", False)
    found = {
        "layers": len(given),
        "hidden": c["hidden_size"],
        "heads": c["num_attention_heads"],
        "kv_heads": c.get("num_key_value_heads", 0),
        "head_size": c.get("head_dim") or c.get("attention_head_dim", 128),
        "ffn": c["intermediate_size"],
        "ffn_bias": c.get("mlp_bias", False),
        "vocab": c["vocab_size"],
        "seq": sequence(c.get("max_position_embeddings", 4096)),
        "positions": "none",
        "tied": c.get("tie_word_embeddings", False),
        "mixers": "".join(BLOCKS[one][0] for one in given),
        "feeds": "".join(BLOCKS[one][1] for one in given),
        "ssm_bias": c.get("use_bias", False),
        "conv_bias": c.get("use_conv_bias", True),
    }
    found |= mamba2_state(c, "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
    if "e" in found["feeds"]:
        shared = c.get("moe_shared_expert_intermediate_size", 0) * c.get("n_shared_experts", 1)
        found |= experts(c) | {"shared_ffn": shared, "router_bias": True, "dense_layers": 0, "moe_every": 1}
        found |= {"expert_latent": c.get("moe_latent_size") or 0}
    return found


def mamba(c: HfConfig) -> Given:
    """Only states, without feed-forward layers."""
    found = {
        "layers": c["num_hidden_layers"],
        "hidden": c["hidden_size"],
        "vocab": c["vocab_size"],
        "seq": 4096,
        "positions": "none",
        "tied": c.get("tie_word_embeddings", c.kind != "mamba2"),
        "feeds": "-",
        "state": c["state_size"],
        "conv": c.get("conv_kernel", 4),
        "ssm_bias": c.get("use_bias", False),
        "conv_bias": c.get("use_conv_bias", True),
    }
    if c.kind == "mamba2":
        return (
            found | mamba2_state(c, "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel") | {"mixers": "s"}
        )
    inner = c.get("intermediate_size") or c.get("expand", 2) * c["hidden_size"]
    return found | {"mixers": "m", "ssm_heads": inner, "ssm_rank": _rank(c, "time_step_rank")}


def _rank(c: HfConfig, key: str) -> int:
    rank = c.get(key, "auto")
    return -(-c["hidden_size"] // 16) if rank == "auto" else int(rank)


def jamba(c: HfConfig) -> Given:
    """Attention in one layer of a period, experts in one of another, Mamba and a perceptron in the rest."""
    n = c["num_hidden_layers"]
    period, offset = c.get("attn_layer_period", 8), c.get("attn_layer_offset", 4)
    every, first = c.get("expert_layer_period", 2), c.get("expert_layer_offset", 1)
    found = gated(c) | {
        "positions": "none",
        "mixers": "".join("a" if i % period == offset else "m" for i in range(n)),
        "state": c["mamba_d_state"],
        "conv": c.get("mamba_d_conv", 4),
        "ssm_heads": c.get("mamba_expand", 2) * c["hidden_size"],
        "ssm_rank": _rank(c, "mamba_dt_rank"),
        "ssm_bias": c.get("mamba_proj_bias", False),
        "conv_bias": c.get("mamba_conv_bias", True),
        "ssm_norm": True,
    }
    if c.get("num_experts", 16) > 1:
        found |= {"feeds": "".join("e" if i % every == first else "f" for i in range(n))}
    else:
        found |= {"experts": 0, "top_k": 0}
    return found


def bamba(c: HfConfig) -> Given:
    """Mamba-2 in most layers, attention in those that the config names, a perceptron in all."""
    named, types = c.get("attn_layer_indices", []), c.get("layer_types") or c.get("layers_block_type")
    n = c["num_hidden_layers"]
    here = [t in ("attention", "full_attention") for t in types] if types else [i in named for i in range(n)]
    state = {
        "mixers": "".join("a" if one else "s" for one in here),
        "ssm_bias": c.get("mamba_proj_bias", False),
        "conv_bias": c.get("mamba_conv_bias", True),
    }
    inner = c.get("mamba_expand", 2) * c["hidden_size"]
    heads = c["mamba_n_heads"]
    state |= {
        "ssm_heads": heads,
        "ssm_head_size": inner // heads,
        "ssm_groups": c["mamba_n_groups"],
        "state": c["mamba_d_state"],
        "conv": c.get("mamba_d_conv", 4),
    }
    return gated(c.without("layer_types")) | state


def granite_hybrid(c: HfConfig) -> Given:
    """As Bamba, with experts, and with one shared perceptron in every layer."""
    width = c.get("shared_intermediate_size", 0)
    found = bamba(c) | {"positions": "rotary" if c.get("position_embedding_type") == "rope" else "none"}
    if not c.get("num_local_experts"):
        return found | {"ffn": width, "experts": 0, "top_k": 0}
    return found | {"shared_ffn": width}


def qwen3_next(c: HfConfig) -> Given:
    """Three layers with a gated delta rule, one with attention behind a gate; experts in all."""
    n, every = c["num_hidden_layers"], c.get("full_attention_interval", 4)
    types = c.get("layer_types") or ["linear_attention" if (i + 1) % every else "full_attention" for i in range(n)]
    letters = {"linear_attention": "d", "full_attention": "a"}
    wrong = [t for t in types if t not in letters]
    if wrong:
        raise c.refuse("layer_types", f"`{wrong[0]}` is not supported", hint=f"supported: {', '.join(letters)}")
    c.only("attention_bias", False)
    many = bool(c.get("num_experts"))
    if many and not c.get("intermediate_size"):  # no layer is dense
        c = HfConfig({**c.keys, "intermediate_size": c["moe_intermediate_size"]}, c.where)
    found = decoder(c) | (experts(c) if many else {}) | {"gated": True, "qk_norm": True, "gated_attention": True}
    return found | {
        "head_size": c.get("head_dim", 256),
        "mixers": "".join(letters[t] for t in types),
        "ssm_heads": c["linear_num_value_heads"],
        "ssm_head_size": c["linear_value_head_dim"],
        "ssm_groups": c["linear_num_key_heads"],
        "state": c["linear_key_head_dim"],
        "conv": c.get("linear_conv_kernel_dim", 4),
        "conv_bias": False,
    }


def deepseek_v32(c: HfConfig) -> Given:
    """Latent attention to the keys that an indexer picks."""
    others = set(c.get("layer_types", [])) - {"indexed_attention"}
    if others:
        raise c.refuse("layer_types", f"`{min(others)}` is not supported", hint="supported: indexed_attention")
    c.only("head_dim", c["qk_rope_head_dim"])
    c.only("index_topk_freq", 1)  # an indexer in every layer
    for key in ("index_topk_pattern", "indexer_types"):
        if "shared" in (c.get(key) or []) or "S" in (c.get(key) or []):
            raise c.refuse(key, "layers that share an indexer are not supported")
    return latent(c.without("layer_types")) | {
        "index_heads": c["index_n_heads"],
        "index_size": c["index_head_dim"],
        "index_top": c["index_topk"],
    }


def kimi_linear(c: HfConfig) -> Given:
    """A delta rule that decays channel by channel in most layers, latent attention without positions in the others.
    The published file names layers from 1 on and keys in its own way, `transformers` in its usual one."""
    own = c.inside("linear_attn_config")
    for key in ("use_full_rank_gate", "mla_use_output_gate", "routed_expert_hidden_size", "attn_res_block_size"):
        if c.get(key) or own.get(key):
            raise (own if own.get(key) else c).refuse(key, "this shape is not supported")
    c.only("mla_use_nope", True)
    n, full = c["num_hidden_layers"], [i - 1 for i in own.get("full_attn_layers", [])]
    types = c.get("layer_types") or ["full_attention" if i in full else "linear_attention" for i in range(n)]
    dense = c.get("first_k_dense_replace", 1)
    if not (c.get("layer_types") or full):
        raise c.refuse("layer_types", "which layers have attention is not given")
    if c.get("mlp_layer_types", []) not in ([], ["dense"] * dense + ["sparse"] * (n - dense)):
        raise c.refuse("mlp_layer_types", "dense layers between those with experts are not supported")
    named = {"num_experts_per_tok": "num_experts_per_token", "n_shared_experts": "num_shared_experts"}
    named |= {"max_position_embeddings": "model_max_length"}
    keys = {**c.keys, **{new: c.get(old) for new, old in named.items() if c.get(old)}, "first_k_dense_replace": dense}
    heads, size = (own["num_heads"], own["head_dim"]) if own.keys else (c["linear_num_heads"], c["linear_head_dim"])
    return latent(HfConfig(keys, c.where).without("layer_types", "head_dim")) | {
        "positions": "none",
        "mixers": "".join("a" if one == "full_attention" else "k" for one in types),
        "ssm_heads": heads,
        "ssm_head_size": size,
        "ssm_groups": heads,
        "state": size,
        "conv": own.get("short_conv_kernel_size", 0) or c.get("linear_conv_kernel_dim", 4),
        "conv_bias": False,
    }

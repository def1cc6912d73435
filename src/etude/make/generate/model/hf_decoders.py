"""Configs of decoders: Llama, models that differ from it in a flag, and older kinds."""

from __future__ import annotations

from etude.make.generate.model.hf_config import Given, HfConfig


def decoder(c: HfConfig) -> Given:
    """The keys that Llama's config established."""
    given = {
        "layers": c["num_hidden_layers"],
        "hidden": c["hidden_size"],
        "heads": c["num_attention_heads"],
        "kv_heads": c.get("num_key_value_heads", 0),
        "head_size": c.get("head_dim", 0),
        "ffn": c["intermediate_size"],
        "vocab": c["vocab_size"],
        "seq": sequence(c.get("max_position_embeddings", 4096)),
        "tied": c.get("tie_word_embeddings", False),
        "predict_layers": c.get("num_nextn_predict_layers", 0),
    }
    c.only("add_cross_attention", False)
    return given


def sequence(longest: int) -> int:
    """A plan that names no sequence takes the longest, up to a limit."""
    return min(longest, 8192)


def gated(c: HfConfig) -> Given:
    """Llama, and models that differ from it in a flag."""
    given = decoder(c) | {"gated": True}
    kind = c.kind
    biased = c.get("attention_bias", False)
    given |= {"qkv_bias": biased or kind.startswith("qwen2"), "out_bias": biased, "ffn_bias": c.get("mlp_bias", False)}
    if kind.startswith("qwen3"):
        given["qk_norm"] = True
    return given | window(c) | experts(c)


def window(c: HfConfig) -> Given:
    """Attention windows, of every layer or of some; newer files list them in `layer_types`."""
    size = c.get("sliding_window", 0)
    if not c.get("use_sliding_window", True):
        return {}
    types = c.get("layer_types")
    if types:
        return pattern(c, size, types)
    every = c.get("sliding_window_pattern", 0)
    if size and every:
        return {"window": size, "full_every": every}
    if size and c.kind in ("gemma2", "gpt_oss"):
        return {"window": size, "window_every": 2}
    if size and c.kind.startswith("qwen"):
        c.only("max_window_layers", 0)
    return {"window": size} if size else {}


def pattern(c: HfConfig, size: int, types: list[str]) -> Given:
    known = {"full_attention": False, "sliding_attention": True}
    other = sorted(set(types) - set(known))
    if other:
        raise c.refuse(
            "layer_types", f"`{other[0]}` is not supported", hint="supported: full_attention, sliding_attention"
        )
    windowed = [known[t] for t in types]
    if not any(windowed) or not size:
        return {}
    if all(windowed):
        return {"window": size}
    for n in range(2, len(types) + 1):
        if windowed == [i % n == 0 for i in range(len(types))]:
            return {"window": size, "window_every": n}
        if windowed == [(i + 1) % n != 0 for i in range(len(types))]:
            return {"window": size, "full_every": n}
    raise c.refuse("layer_types", "windows without a regular pattern are not supported")


def experts(c: HfConfig) -> Given:
    experts = c.get("num_local_experts") or c.get("n_routed_experts") or c.get("num_experts")
    if not experts:
        return {}
    if c.get("mlp_only_layers"):
        raise c.refuse("mlp_only_layers", "dense layers between those with experts are not supported")
    c.only("moe_layer_freq", 1)
    width = c.get("moe_intermediate_size") or c["intermediate_size"]
    shared = c.get("shared_expert_intermediate_size") or c.get("n_shared_experts", 0) * width
    return {
        "experts": experts,
        "top_k": c["num_experts_per_tok"],
        "expert_ffn": width,
        "shared_ffn": shared,
        "shared_gate": bool(c.get("shared_expert_intermediate_size")),
        "dense_layers": c.get("first_k_dense_replace", 0),
        "moe_every": c.get("decoder_sparse_step", 1),
    }


def latent(c: HfConfig) -> Given:
    """DeepSeek."""
    given = gated(c) | {
        "q_rank": c.get("q_lora_rank", 0),
        "kv_rank": c["kv_lora_rank"],
        "rope_size": c["qk_rope_head_dim"],
        "nope_size": c["qk_nope_head_dim"],
        "value_size": c["v_head_dim"],
        "router_bias": c.get("topk_method", "noaux_tc" if c.kind != "deepseek_v2" else "") == "noaux_tc",
        "head_size": 0,
        "kv_heads": 0,
    }
    c.only("attention_bias", False)
    return given


def gemma(c: HfConfig) -> Given:
    given = gated(c)
    given |= {"tied": c.get("tie_word_embeddings", True), "head_size": c.get("head_dim", 256)}
    if c.kind != "gemma":
        given["norms"] = 4
    if c.kind == "gemma3_text":
        given["qk_norm"] = True
        c.only("use_bidirectional_attention", False)
    return given


def gpt_oss(c: HfConfig) -> Given:
    biases = {"qkv_bias": True, "out_bias": True, "sinks": True, "gate_clamp": True, "expert_bias": True}
    return gated(c) | {"head_size": c.get("head_dim", 64)} | biases


def llama4(c: HfConfig) -> Given:
    """Experts in every n-th layer, dense layers of another width, one shared expert as wide as a routed one."""
    every = c.get("interleave_moe_layer_step", 1)
    regular = list(range(every - 1, c["num_hidden_layers"], every))
    if c.get("moe_layers", regular) not in ([], regular):
        raise c.refuse("moe_layers", "experts without a regular pattern are not supported")
    others = set(c.get("layer_types", [])) - {"chunked_attention", "full_attention"}
    if others:
        raise c.refuse("layer_types", f"`{min(others)}` is not supported")
    # Chunks of attention are at least as long as the sequences that are built here.
    return gated(c.without("layer_types")) | {
        "ffn": c["intermediate_size_mlp"],
        "expert_ffn": c["intermediate_size"],
        "shared_ffn": c["intermediate_size"],
        "moe_every": every,
    }


def phi3(c: HfConfig) -> Given:
    c.only("partial_rotary_factor", 1.0, 0.75)
    return gated(c)


def olmo(c: HfConfig) -> Given:
    """The first kind has norms without weights, the second normalises queries and keys over all heads."""
    if c.kind == "olmo":
        return gated(c) | {"norm": "layer", "norm_weights": False}
    return gated(c) | {"qk_norm": True, "qk_norm_wide": True}


def layer_normed(c: HfConfig, *, gated: bool, biased: bool) -> Given:
    return decoder(c) | {"gated": gated, "norm": "layer", "norm_bias": True, "bias": biased}


def stablelm(c: HfConfig) -> Given:
    c.only("qk_layernorm", False)
    given = layer_normed(c, gated=True, biased=False)
    return given | {"qkv_bias": c.get("use_qkv_bias", False), "norms": 1 if c.get("use_parallel_residual") else 2}


def starcoder2(c: HfConfig) -> Given:
    given = layer_normed(c, gated=False, biased=c.get("use_bias", True))
    return given | {"tied": c.get("tie_word_embeddings", True)} | window(c)


def cohere(c: HfConfig) -> Given:
    given = layer_normed(c, gated=True, biased=False)
    given |= {"norm_bias": False, "norms": 1, "tied": c.get("tie_word_embeddings", True)}
    c.only("use_qk_norm", False)
    c.only("attention_bias", False)
    return given | window(c)


def nemotron(c: HfConfig) -> Given:
    given = layer_normed(c, gated=False, biased=False)
    return given | {"qkv_bias": c.get("attention_bias", False), "out_bias": c.get("attention_bias", False)}


def neox(c: HfConfig) -> Given:
    given = layer_normed(c, gated=False, biased=True)
    if not c.get("attention_bias", True):
        given |= {"bias": False, "ffn_bias": True}
    return given


def phi(c: HfConfig) -> Given:
    c.only("qk_layernorm", False)
    return layer_normed(c, gated=False, biased=True) | {"norms": 1, "head_bias": True}


def opt(c: HfConfig) -> Given:
    c.only("word_embed_proj_dim", c["hidden_size"])
    c.only("do_layer_norm_before", True)
    c.only("_remove_final_layer_norm", False)
    c.only("layer_norm_elementwise_affine", True)
    longest = c.get("max_position_embeddings", 2048)
    return {
        "layers": c["num_hidden_layers"],
        "hidden": c["hidden_size"],
        "heads": c["num_attention_heads"],
        "ffn": c["ffn_dim"],
        "vocab": c["vocab_size"],
        "seq": sequence(longest),
        "norm": "layer",
        "positions": "learned",
        "max_positions": longest + 2,  # two rows more than positions
        "bias": c.get("enable_bias", True),
        "tied": c.get("tie_word_embeddings", True),
    }


def gpt2(c: HfConfig) -> Given:
    hidden, longest = c["n_embd"], c.get("n_positions", 1024)
    c.only("add_cross_attention", False)
    return {
        "layers": c["n_layer"],
        "hidden": hidden,
        "heads": c["n_head"],
        "kv_heads": 1 if c.kind == "gpt_bigcode" and c.get("multi_query", True) else 0,
        "ffn": c.get("n_inner", 4 * hidden),
        "vocab": c["vocab_size"],
        "seq": longest,
        "norm": "layer",
        "positions": "learned",
        "max_positions": longest,
        "bias": True,
        "tied": c.get("tie_word_embeddings", True),
    }


def gptj(c: HfConfig) -> Given:
    given = gpt2(c) | {"positions": "rotary", "max_positions": 0, "bias": False, "ffn_bias": True}
    return given | {"norms": 1, "head_bias": True, "tied": c.get("tie_word_embeddings", False)}


def bloom(c: HfConfig) -> Given:
    """Positions enter as a bias of the scores (ALiBi), which has no parameters."""
    hidden = c.get("hidden_size") or c["n_embed"]
    return {
        "layers": c.get("n_layer") or c["num_hidden_layers"],
        "hidden": hidden,
        "heads": c.get("n_head") or c["num_attention_heads"],
        "ffn": 4 * hidden,
        "vocab": c["vocab_size"],
        "seq": c.get("seq_length", 2048),
        "norm": "layer",
        "positions": "none",
        "bias": True,
        "embedding_norm": True,
        "tied": c.get("tie_word_embeddings", True),
    }


def falcon(c: HfConfig) -> Given:
    """One norm or two for parallel attention and feed-forward; one head of keys, or several."""
    heads = c.get("num_attention_heads") or c["n_head"]
    newer = c.get("new_decoder_architecture", False)
    kv = c.get("num_kv_heads", heads) if newer else 1 if c.get("multi_query", True) else heads
    two = c.get("num_ln_in_parallel_attn", 2 if newer else 1) == 2 if newer else not c.get("parallel_attn", True)
    return {
        "layers": c.get("num_hidden_layers") or c["n_layer"],
        "hidden": c["hidden_size"],
        "heads": heads,
        "kv_heads": kv,
        "ffn": c.get("ffn_hidden_size", 4 * c["hidden_size"]),
        "vocab": c["vocab_size"],
        "seq": sequence(c.get("max_position_embeddings", 2048)),
        "norm": "layer",
        "norms": 2 if two else 1,
        "positions": "none" if c.get("alibi", False) else "rotary",
        "bias": c.get("bias", False),
        "tied": c.get("tie_word_embeddings", True),
    }


def mpt(c: HfConfig) -> Given:
    attention = c.inside("attn_config")
    attention.only("qk_ln", False)
    c.only("no_bias", True)
    kv = attention.get("kv_n_heads", 0) or (1 if attention.get("attn_type") == "multiquery_attention" else 0)
    alibi = attention.get("alibi", True)
    return {
        "layers": c["n_layers"],
        "hidden": c["d_model"],
        "heads": c["n_heads"],
        "kv_heads": kv,
        "ffn": c.get("expansion_ratio", 4) * c["d_model"],
        "vocab": c["vocab_size"],
        "seq": sequence(c.get("max_seq_len", 2048)),
        "norm": "layer",
        "norm_bias": False,
        "positions": "none" if alibi else "learned",
        "max_positions": 0 if alibi else c.get("max_seq_len", 2048),
        "tied": c.get("tie_word_embeddings", True),
    }


def dbrx(c: HfConfig) -> Given:
    attention, ffn = c.inside("attn_config"), c.inside("ffn_config")
    return {
        "layers": c["n_layers"],
        "hidden": c["d_model"],
        "heads": c["n_heads"],
        "kv_heads": attention["kv_n_heads"],
        "ffn": ffn["ffn_hidden_size"],
        "vocab": c["vocab_size"],
        "seq": sequence(c.get("max_seq_len", 2048)),
        "gated": True,
        "norm": "layer",
        "norm_bias": False,
        "experts": ffn["moe_num_experts"],
        "top_k": ffn["moe_top_k"],
        "tied": c.get("tie_word_embeddings", False),
    }

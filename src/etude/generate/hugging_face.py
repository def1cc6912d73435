"""A model from the `config.json` that Hugging Face keeps beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etude.errors import UsageError
from etude.generate.model import Model

_DENSE = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn",
    "vocab_size": "vocab",
}
_LATENT = {
    "q_lora_rank": "q_rank",
    "kv_lora_rank": "kv_rank",
    "qk_rope_head_dim": "rope_size",
    "qk_nope_head_dim": "nope_size",
    "v_head_dim": "value_size",
}
_GATED = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "phi3",
    "gemma",
    "gpt_oss",
    "olmo2",
)


def from_config(config: Mapping[str, Any], *, where: str = "config.json") -> Model:
    """Families whose blocks Etude has; any other `model_type` is refused by name."""
    kind = str(config.get("model_type", ""))
    name = str(config.get("_name_or_path") or kind or "model").rsplit("/", 1)[-1]
    if kind == "gpt2":
        given = _gpt2(config)
    elif kind == "bert":
        given = _bert(config)
    elif kind in _GATED:
        given = _gated(config, kind)
    else:
        known = ", ".join(("gpt2", "bert", *_GATED))
        raise UsageError(f"`model_type` {kind!r} is not one that is read", where=where, hint=f"known: {known}")
    return Model.from_dict({"name": name, **given}, where)


def _gpt2(config: Mapping[str, Any]) -> dict[str, Any]:
    hidden = config["n_embd"]
    return {
        "layers": config["n_layer"],
        "hidden": hidden,
        "heads": config["n_head"],
        "ffn": config.get("n_inner") or 4 * hidden,
        "vocab": config["vocab_size"],
        "seq": config.get("n_positions", 1024),
        "norm": "layer",
        "positions": "learned",
        "max_positions": config.get("n_positions", 1024),
        "bias": True,
        "tied": config.get("tie_word_embeddings", True),
    }


def _bert(config: Mapping[str, Any]) -> dict[str, Any]:
    given = {ours: config[theirs] for theirs, ours in _DENSE.items() if theirs in config}
    length = config.get("max_position_embeddings", 512)
    return given | {
        "family": "encoder",
        "seq": length,
        "norm": "layer",
        "positions": "learned",
        "max_positions": length,
        "token_types": config.get("type_vocab_size", 2),
        "bias": True,
        "tied": True,
        "pooler": True,
        "embedding_norm": True,
        "final_norm": False,
    }


def _gated(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    given: dict[str, Any] = {ours: config[theirs] for theirs, ours in _DENSE.items() if config.get(theirs)}
    given |= {"gated": True, "tied": bool(config.get("tie_word_embeddings", kind == "gemma"))}
    given["seq"] = min(config.get("max_position_embeddings", 4096), 8192)
    if config.get("head_dim"):
        given["head_size"] = config["head_dim"]
    if config.get("attention_bias") or kind.startswith("qwen2"):
        given["qkv_bias"] = True
    if kind.startswith("qwen3"):
        given["qk_norm"] = True
    if kind.startswith("deepseek"):
        given |= {ours: config.get(theirs) or 0 for theirs, ours in _LATENT.items()}
        given.pop("kv_heads", None)
        given["router_bias"] = kind == "deepseek_v3"
    if config.get("sliding_window") and config.get("use_sliding_window", kind in ("mistral", "gpt_oss")):
        given["window"] = config["sliding_window"]
        given["window_every"] = 2 if kind == "gpt_oss" else 1
    if kind == "gpt_oss":
        given |= {"bias": True, "sinks": True, "expert_bias": True}
    return given | _experts(config)


def _experts(config: Mapping[str, Any]) -> dict[str, Any]:
    experts = config.get("num_local_experts") or config.get("n_routed_experts") or config.get("num_experts")
    if not experts:
        return {}
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    shared = config.get("shared_expert_intermediate_size") or (config.get("n_shared_experts") or 0) * width
    return {
        "experts": experts,
        "top_k": config["num_experts_per_tok"],
        "expert_ffn": width,
        "shared_ffn": shared,
        "shared_gate": bool(config.get("shared_expert_intermediate_size")),
        "dense_layers": config.get("first_k_dense_replace", 0),
        "moe_every": config.get("moe_layer_freq") or 1,
    }

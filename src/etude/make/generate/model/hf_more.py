"""Configs of decoders that differ from Llama in a few flags, and of encoder-decoders for speech and text."""

from __future__ import annotations

from typing import Any

from etude.make.generate.model.hf_config import Given, HfConfig
from etude.make.generate.model.hf_decoders import cohere, gated, latent
from etude.make.generate.model.hf_towers import Parts


def seed_oss(c: HfConfig) -> Given:
    biased = c.get("attention_bias", True)
    return gated(c) | {"qkv_bias": biased, "out_bias": c.get("attention_out_bias", False)}


def arcee(c: HfConfig) -> Given:
    """A perceptron without a gate."""
    return gated(c) | {"gated": False}


def query_normed(c: HfConfig) -> Given:
    """Queries and keys are normalised, head by head."""
    return gated(c) | {"qk_norm": True}


def ernie(c: HfConfig) -> Given:
    biased = c.get("use_bias", False)
    return gated(c) | {"qkv_bias": biased, "out_bias": biased, "ffn_bias": biased}


def ernie_moe(c: HfConfig) -> Given:
    """Experts from one layer to another, dense layers of another width around them. Its layer that predicts further
    tokens is dense, unlike the last, and left out."""
    c.only("use_bias", False)
    n, every = c["num_hidden_layers"], c.get("moe_layer_interval", 1)
    first, last = c.get("moe_layer_start_index", 1), c.get("moe_layer_end_index", -1)
    here = range(first, (n if last < 0 else last + 1))
    plain = c.without("num_nextn_predict_layers", "moe_num_experts")
    found = ernie(plain) | {"tied": c.get("tie_word_embeddings", True)}
    if c.get("num_nextn_predict_layers", 0):
        found["assumed"] = "no layers that predict further tokens"
    width = c["moe_intermediate_size"]
    return found | {
        "experts": c["moe_num_experts"],
        "top_k": c["moe_k"],
        "expert_ffn": width,
        "shared_ffn": c.get("moe_num_shared_experts", 0) * width,
        "router_bias": True,
        "feeds": "".join("e" if i in here and (i + 1) % every == 0 else "f" for i in range(n)),
    }


def smollm3(c: HfConfig) -> Given:
    """Llama; layers without rotary positions cost what the others do."""
    return gated(c) | {"tied": c.get("tie_word_embeddings", True)}


def _for_all(c: HfConfig, key: str) -> int:
    """A count that may be listed layer by layer."""
    value = c.get(key)
    if isinstance(value, list) and len(set(map(str, value))) == 1:
        value = value[0]
    if isinstance(value, list):
        raise c.refuse(key, "layers of several shapes are not supported")
    return HfConfig({**c.keys, key: value}, c.where)[key]


def hunyuan(c: HfConfig) -> Given:
    """Queries and keys are normalised, head by head."""
    for key in ("use_cla", "use_mla"):
        c.only(key, False)
    size = c.get("head_dim") or c.get("attention_head_dim", 0)
    return gated(c) | {"head_size": size, "qk_norm": True, "tied": c.get("tie_word_embeddings", False)}


def hunyuan_moe(c: HfConfig) -> Given:
    """Experts in every layer, and one perceptron beside them for all tokens."""
    one = c.without("num_experts", "moe_intermediate_size", "moe_topk", "num_shared_expert")
    width = _for_all(c, "moe_intermediate_size") if c.get("moe_intermediate_size") else c["intermediate_size"]
    if c.get("moe_layer_num_skipped", 0):
        raise c.refuse("moe_layer_num_skipped", "dense layers before those with experts are not supported")
    shared = _for_all(c, "num_shared_expert") if c.get("use_mixed_mlp_moe", True) else 0
    return hunyuan(one) | {
        "experts": _for_all(c, "num_experts"),
        "top_k": _for_all(c, "moe_topk"),
        "expert_ffn": width,
        "shared_ffn": shared * width,
    }


def phimoe(c: HfConfig) -> Given:
    return gated(c) | {"norm": "layer", "head_bias": c.get("lm_head_bias", False)}


def glm4_moe(c: HfConfig) -> Given:
    usual = c["hidden_size"] // c["num_attention_heads"]
    found = gated(c) | {"head_size": c.get("head_dim", usual), "out_bias": False, "router_bias": True}
    return found | {"qk_norm": c.get("use_qk_norm", False)}


def granite_shared(c: HfConfig) -> Given:
    return gated(c) | {"shared_ffn": c.get("shared_intermediate_size", 0)}


def minimax_m2(c: HfConfig) -> Given:
    return gated(c) | {"qk_norm": c.get("use_qk_norm", True), "qk_norm_wide": True, "router_bias": True}


def low_rank(c: HfConfig) -> Given:
    """Latent attention without experts."""
    c.only("attention_bias", False)
    return latent(c) | {"router_bias": False}


def cohere2(c: HfConfig) -> Given:
    c.only("attention_bias", False)
    return cohere(c)


# -- encoder-decoders ------------------------------------------------------------------------------------------


def _half(heads: int, ffn: int, stream: str, keys: str, *, first: bool, **more: Any) -> Parts:
    """A layer: attention to its own stream, to the other if there is one, a perceptron; a norm before or after each."""

    def step(part: dict[str, Any]) -> Parts:
        norm, both = {"part": "norm", "stream": stream}, [part | {"stream": stream}, {"part": "add", "stream": stream}]
        return [norm, *both] if first else [*both, norm]

    inner: dict[str, Any] = {"part": "attention", "heads": heads, **more}
    found = step(inner | {"causal": bool(keys)})
    found += step(inner | {"keys": keys, "name": "cross"}) if keys else []
    return found + step({"part": "mlp", "ffn": ffn})


def _both(c: HfConfig, source: Given, start: Parts, begin: Parts, *, first: bool, **more: Any) -> Given:
    width, vocab = c["d_model"], c["vocab_size"]
    encode = _half(c["encoder_attention_heads"], c["encoder_ffn_dim"], source["name"], "", first=first, **more)
    decode = _half(c["decoder_attention_heads"], c["decoder_ffn_dim"], "text", source["name"], first=first, **more)
    end = [{"part": "norm", "stream": source["name"]}] if first else []
    last = [{"part": "norm", "stream": "text"}] if first else []
    logits = {"part": "linear", "stream": "text", "out": vocab, "bias": False, "tied": True, "name": "logits"}
    return {
        "family": "composed",
        "streams": [source, {"name": "text", "width": width, "tokens": min(c.get("max_target_positions", 1024), 1024)}],
        "blocks": [
            {"name": "embedding", "parts": start},
            {"name": "encoder", "repeat": c["encoder_layers"], "parts": encode},
            {"name": "between", "parts": [*end, *begin]},
            {"name": "decoder", "repeat": c["decoder_layers"], "parts": decode},
            {"name": "head", "parts": [*last, logits, {"part": "loss", "stream": "text"}]},
        ],
    }


def whisper(c: HfConfig) -> Given:
    """A spectrogram through two convolutions over three frames, the second of which halves them; 30 s of sound."""
    width, bins, frames = c["d_model"], c["num_mel_bins"], c.get("max_source_positions", 1500)
    target = c.get("max_target_positions", 448)
    source = {"name": "sound", "width": 3 * bins, "tokens": 2 * frames}
    start: Parts = [
        {"part": "linear", "out": width, "name": "conv1"},
        {"part": "activation"},
        {"part": "tokens", "count": frames},
        {"part": "conv1d", "out": width, "kernel": 3, "name": "conv2"},
        {"part": "activation"},
        {"part": "weights", "name": "positions", "params": frames * width},
    ]
    begin = [
        {"part": "table", "stream": "text", "rows": c["vocab_size"], "out": width, "name": "tokens"},
        {"part": "weights", "stream": "text", "name": "positions", "params": target * width},
    ]
    return _both(c, source, start, begin, first=True, key_bias=False)


def bart(c: HfConfig) -> Given:
    """One table of tokens for both sides; learned positions, with two extra rows."""
    width, longest = c["d_model"], c.get("max_position_embeddings", 1024)
    first = c.kind == "mbart"
    table = {"part": "table", "rows": c["vocab_size"], "out": width, "name": "tokens"}
    around = [{"part": "weights", "name": "positions", "params": (longest + 2) * width}, {"part": "norm"}]
    again = [table | {"tied": True}, *around]
    source = {"name": "source", "width": width, "tokens": longest}
    return _both(c, source, [table, *around], [p | {"stream": "text"} for p in again], first=first)

"""Configs of encoders, encoder-decoders and image networks."""

from __future__ import annotations

from etude.make.generate.model.hf_config import Given, HfConfig
from etude.make.generate.model.hf_decoders import decoder


def bert(c: HfConfig) -> Given:
    c.only("is_decoder", False)
    c.only("position_embedding_type", "absolute")
    length = c.get("max_position_embeddings", 512)
    return decoder(c) | {
        "family": "encoder",
        "seq": length if c.kind == "bert" else length - c.get("pad_token_id", 1) - 1,  # rows for padding
        "norm": "layer",
        "positions": "learned",
        "max_positions": length,
        "token_types": c.get("type_vocab_size", 2),
        "bias": True,
        "tied": True,
        "pooler": True,
        "embedding_norm": True,
        "final_norm": False,
    }


def t5(c: HfConfig) -> Given:
    c.only("is_encoder_decoder", True)
    style = c.get("feed_forward_proj", "relu")
    return {
        "family": "encoder_decoder",
        "layers": c.get("num_decoder_layers") or c["num_layers"],
        "encoder_layers": c["num_layers"],
        "hidden": c["d_model"],
        "heads": c["num_heads"],
        "head_size": c["d_kv"],
        "ffn": c["d_ff"],
        "vocab": c["vocab_size"],
        "seq": c.get("n_positions", 512),
        "gated": style.startswith("gated-"),
        "positions": "none",
        "relative_buckets": c.get("relative_attention_num_buckets", 32),
        "tied": c.get("tie_word_embeddings", c.kind == "t5"),
    }


def vit(c: HfConfig) -> Given:
    c.only("qkv_bias", True)
    return {
        "family": "vit",
        "layers": c["num_hidden_layers"],
        "hidden": c["hidden_size"],
        "heads": c["num_attention_heads"],
        "ffn": c["intermediate_size"],
        "norm": "layer",
        "positions": "learned",
        "bias": True,
        "image": c["image_size"],
        "patch": c["patch_size"],
        "channels": c.get("num_channels", 3),
        "classes": classes(c),
    }


def classes(c: HfConfig) -> int:
    return int(c.get("num_labels") or len(c.get("id2label", {})) or 2)


def resnet(c: HfConfig) -> Given:
    c.only("layer_type", "bottleneck")
    c.only("embedding_size", 64)
    c.only("downsample_in_first_stage", False)
    depths = list(c.get("depths", [3, 4, 6, 3]))
    widths = [256 << i for i in range(len(depths))]
    if list(c.get("hidden_sizes", widths)) != widths:
        raise c.refuse("hidden_sizes", "stages do not double from 256", hint=f"hidden_sizes: {widths}")
    sizes = {"depths": depths, "channels": c.get("num_channels", 3)}
    return {"family": "convnet", "image": c.get("image_size", 224), "classes": classes(c)} | sizes

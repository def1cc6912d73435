"""Configs of models with towers: images or sounds with a text decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from etude.make.generate.model.hf_config import Given, HfConfig

PIXELS: Final = 1024
"""Side of a sample's image if a tower takes images of any size."""

Parts = list[dict[str, Any]]


def with_text(c: HfConfig, text: Given, *towers: Given) -> Given:
    """A decoder of text with these towers; whether its head is its embedding may be stated outside or inside."""
    tied = c.get("tie_word_embeddings")
    return text | ({"tied": tied} if tied is not None else {}) | {"towers": list(towers)}


def vision(
    name: str, *, tokens: int, pixels: int, hidden: int, layer: Parts, layers: int, start: Parts, end: Parts
) -> Given:
    """Patches, `start` (positions, a norm), layers, `end` (a norm, pooling, the projection to the text)."""
    embedding = [{"part": "linear", "out": hidden, "name": "patches"}, *start]
    blocks = [{"name": "embedding", "parts": embedding}, {"name": "layers", "repeat": layers, "parts": layer}]
    streams = [{"name": "image", "width": pixels, "tokens": tokens}]
    return {"name": name, "streams": streams, "blocks": [*blocks, {"name": "projector", "parts": end}]}


def encoder_layer(heads: int, ffn: int, *, norm: str = "layer", gated: bool = False, **attention: Any) -> Parts:
    """As in a ViT: a norm before each half."""
    return [
        {"part": "norm", "norm": norm},
        {"part": "attention", "heads": heads, "norm": norm, **attention},
        {"part": "add"},
        {"part": "norm", "norm": norm},
        {"part": "mlp", "ffn": ffn, "gated": gated},
        {"part": "add"},
    ]


def positions(params: int) -> dict[str, Any]:
    return {"part": "weights", "name": "positions", "params": params}


# -- Qwen ------------------------------------------------------------------------------------------


def qwen3_vision(v: HfConfig) -> Given:
    """Patches of two frames, positions resampled from a table, neighbours merged by a perceptron; three more mergers
    take the outputs of intermediate layers."""
    hidden, patch = v["hidden_size"], v.get("patch_size", 16)
    merge, out, side = v.get("spatial_merge_size", 2), v["out_hidden_size"], PIXELS // v.get("patch_size", 16)
    pixels = v.get("in_channels", 3) * v.get("temporal_patch_size", 2) * patch**2
    made = vision(
        "vision",
        tokens=side * side,
        pixels=pixels,
        hidden=hidden,
        start=[positions(v.get("num_position_embeddings", 2304) * hidden)],
        layer=encoder_layer(v.get("num_heads", 16), v["intermediate_size"], rotary=True),
        layers=v["depth"],
        end=[{"part": "norm"}, *_merger("image", hidden, merge, out)],
    )
    deep = v.get("deepstack_visual_indexes", [8, 16, 24])
    streams = [{"name": f"deep{i}", "width": hidden, "tokens": side * side} for i in range(len(deep))]
    first = [{"part": "merge", "factor": merge**2}, {"part": "norm"}]
    more = []
    for i in range(len(deep)):
        on = {"stream": f"deep{i}"}
        more.append(
            {"name": f"deepstack{i}", "parts": [*(p | on for p in first), *_merged(on["stream"], hidden, merge, out)]}
        )
    return made | {"streams": made["streams"] + streams, "blocks": made["blocks"] + more}


def _merger(on: str, hidden: int, merge: int, out: int) -> Parts:
    return [{"part": "merge", "stream": on, "factor": merge**2}, *_merged(on, hidden, merge, out)]


def _merged(on: str, hidden: int, merge: int, out: int) -> Parts:
    wide = hidden * merge**2
    return [{"part": "mlp", "stream": on, "ffn": wide, "out": out, "name": "merger"}]


def qwen3_audio(a: HfConfig) -> Given:
    """Three convolutions halve a spectrogram in time and pitch; then an encoder; 30 s of sound."""
    hidden, width, bins = a["d_model"], a["downsample_hidden_size"], a["num_mel_bins"]
    frames, after = 3000, (((bins + 1) // 2 + 1) // 2 + 1) // 2
    last: Parts = [
        {"part": "linear", "out": hidden},
        {"part": "activation"},
        {"part": "linear", "out": a["output_dim"]},
    ]
    # Convolutions of 3 x 3 as matrix products: each halves both sides.
    steps = [
        (frames // 2 * -(-bins // 2), 9),
        (frames // 4 * -(-bins // 4), 9 * width),
        (frames // 8 * after, 9 * width),
    ]
    streams = [{"name": f"pixels{i}", "width": taps, "tokens": tokens} for i, (tokens, taps) in enumerate(steps)]
    convs = [{"part": "linear", "stream": s["name"], "out": width, "name": f"conv{i}"} for i, s in enumerate(streams)]
    body = vision(
        "audio",
        tokens=frames // 8,
        pixels=width * after,
        hidden=hidden,
        start=[],
        layer=encoder_layer(a["encoder_attention_heads"], a["encoder_ffn_dim"]),
        layers=a["encoder_layers"],
        end=[{"part": "norm"}, *last],
    )
    body["blocks"][0]["parts"][0]["bias"] = False
    convolved = {"name": "convolutions", "parts": convs}
    return body | {"streams": body["streams"] + streams, "blocks": [convolved, *body["blocks"]]}


# -- SigLIP, CLIP, Llama ------------------------------------------------------------------------------------------


def siglip_vision(v: HfConfig, end: Parts, *, last_norm: bool = True) -> Given:
    hidden, side = v["hidden_size"], v["image_size"] // v["patch_size"]
    return vision(
        "vision",
        tokens=side * side,
        pixels=v.get("num_channels", 3) * v["patch_size"] ** 2,
        hidden=hidden,
        start=[positions(side * side * hidden)],
        layer=encoder_layer(v["num_attention_heads"], v["intermediate_size"]),
        layers=v["num_hidden_layers"],
        end=[*([{"part": "norm"}] if last_norm else []), *end],
    )


def clip_vision(v: HfConfig, end: Parts) -> Given:
    """With a class token, which is dropped before the projection; a norm before the layers, one after them for it."""
    hidden, side = v["hidden_size"], v["image_size"] // v["patch_size"]
    tokens = side * side + 1
    made = vision(
        "vision",
        tokens=tokens,
        pixels=v.get("num_channels", 3) * v["patch_size"] ** 2,
        hidden=hidden,
        start=[positions((tokens + 1) * hidden), {"part": "norm"}],
        layer=encoder_layer(v["num_attention_heads"], v["intermediate_size"]),
        layers=v["num_hidden_layers"],
        end=[{"part": "weights", "name": "norm", "params": 2 * hidden}, {"part": "tokens", "count": side * side}, *end],
    )
    made["blocks"][0]["parts"][0]["bias"] = False
    return made


def gemma3_projector(c: HfConfig, v: HfConfig, text: Given) -> Parts:
    side, kept = v["image_size"] // v["patch_size"], c.get("mm_tokens_per_image", 256)
    return [
        {"part": "pool", "factor": side * side // kept},
        {"part": "norm", "norm": "rms"},
        {"part": "linear", "out": text["hidden"], "bias": False},
    ]


def llama4_vision(v: HfConfig, text: Given) -> Given:
    """Neighbours concatenated, a perceptron without biases, a projection; with a class token that is dropped before."""
    hidden, side = v["hidden_size"], v["image_size"] // v["patch_size"]
    tokens, ratio = side * side + 1, round(1 / v.get("pixel_shuffle_ratio", 0.5))
    v.only("projector_output_dim", v["projector_input_dim"])
    v.only("vision_output_dim", v["projector_output_dim"])
    v.only("intermediate_size", hidden * ratio**2)
    end: Parts = [
        {"part": "norm"},
        {"part": "tokens", "count": side * side},
        {"part": "merge", "factor": ratio**2},
        {"part": "linear", "out": v["projector_input_dim"], "bias": False},
        {"part": "activation"},
        {"part": "linear", "out": v["projector_output_dim"], "bias": False},
        {"part": "activation"},
        {"part": "linear", "out": text["hidden"], "bias": False},
    ]
    made = vision(
        "vision",
        tokens=tokens,
        pixels=v.get("num_channels", 3) * v["patch_size"] ** 2,
        hidden=hidden,
        start=[positions((tokens + 1) * hidden), {"part": "norm"}],
        layer=encoder_layer(v["num_attention_heads"], v["intermediate_size"], rotary=True),
        layers=v["num_hidden_layers"],
        end=end,
    )
    made["blocks"][0]["parts"][0]["bias"] = False
    return made


# -- configs ------------------------------------------------------------------------------------------

TextReader = Callable[[HfConfig], Given]


def qwen3_vl(c: HfConfig, text: TextReader) -> Given:
    return with_text(c, text(c.inside("text_config")), qwen3_vision(c.inside("vision_config")))


def qwen3_5(c: HfConfig, text: TextReader) -> Given:
    """One merger, of the last layer."""
    vision = c.inside("vision_config")
    last = HfConfig({**vision.keys, "deepstack_visual_indexes": []}, vision.where)
    return with_text(c, text(c.inside("text_config")), qwen3_vision(last))


def qwen3_omni(c: HfConfig, text: TextReader) -> Given:
    """The thinker, which makes text; the talker, which makes speech from it, is a separate model."""
    c = c.inside("thinker_config") if c.get("thinker_config") else c
    towers = qwen3_audio(c.inside("audio_config")), qwen3_vision(c.inside("vision_config"))
    return with_text(c, text(c.inside("text_config")), *towers)


def gemma3(c: HfConfig, text: TextReader) -> Given:
    t, v = text(c.inside("text_config")), c.inside("vision_config")
    if v.get("vision_use_head", True):
        raise v.refuse("vision_use_head", "a tower with its own head is not supported", hint="vision_use_head: false")
    return with_text(c, t | {"tied": True}, siglip_vision(v, gemma3_projector(c, v, t)))


def llama4(c: HfConfig, text: TextReader) -> Given:
    t = text(c.inside("text_config"))
    return with_text(c, t, llama4_vision(c.inside("vision_config"), t))


def llava(c: HfConfig, text: TextReader) -> Given:
    """Two linear layers from the image's tokens to the text's width."""
    c.only("projector_hidden_act", "gelu")
    c.only("vision_feature_layer", -2, -1)
    t, v = text(c.inside("text_config")), c.inside("vision_config")
    bias = c.get("multimodal_projector_bias", True)
    end = [
        {"part": "linear", "out": t["hidden"], "bias": bias},
        {"part": "activation"},
        {"part": "linear", "out": t["hidden"], "bias": bias},
    ]
    build = {"clip_vision_model": clip_vision, "siglip_vision_model": siglip_vision}
    if v.kind not in build:
        raise v.refuse("model_type", "this tower is not supported", hint=f"supported: {', '.join(build)}")
    return with_text(c, t, build[v.kind](v, end))

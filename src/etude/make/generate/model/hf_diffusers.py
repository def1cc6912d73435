"""Configs of diffusion transformers as Diffusers keeps them (`transformer/config.json`): the network of one step of the
sampler. Text encoders and the decoder of pixels are models beside it, and of a pipeline's two networks each has its
config."""

from __future__ import annotations

from typing import Any, Final

from etude.make.generate.model.hf_config import Given, HfConfig

Parts = list[dict[str, Any]]

IMAGE_TOKENS: Final = 4096
"""Of an image of 1024 x 1024 pixels."""
TEXT_TOKENS: Final = 512
"""The longest prompt that the pipelines take by default."""
OWN_TIMES: Final = 48
"""Channels of Wan 2.2's own decoder of pixels: with it each token has its own time, since the first frame may be
given."""


def _linear(out: int, name: str = "", stream: str = "", **more: Any) -> dict[str, Any]:
    """Without keys that say the default."""
    said = {"part": "linear", "out": out, "name": name, "stream": stream}
    return {key: value for key, value in said.items() if value} | more


def _perceptron(stream: str, width: int, *, name: str = "", **more: Any) -> Parts:
    """Two linear layers and what is between them, of a time or a text."""
    names = (f"{name}.in", f"{name}.out") if name else ("", "")
    return [
        _linear(width, names[0], stream, **more),
        {"part": "activation", "stream": stream},
        _linear(width, names[1], stream, **more),
    ]


def _stream(name: str, width: int, tokens: int) -> Given:
    return {"name": name, "width": width, "tokens": tokens}


# -- Wan ---------------------------------------------------------------------------------------------------------------


def wan(c: HfConfig) -> Given:
    """Self-attention over a video, cross-attention to the text, modulated by the time."""
    if c.get("patch_size", [1, 2, 2]) != [1, 2, 2]:
        raise c.refuse("patch_size", "this shape is not supported", hint="supported: [1, 2, 2]")
    for key in ("image_dim", "added_kv_proj_dim"):
        if c.get(key):
            raise c.refuse(key, "a second cross-attention, to an image, is not supported")
    c.only("cross_attn_norm", True)
    c.only("qk_norm", "rms_norm_across_heads")
    heads, channels = c["num_attention_heads"], c["in_channels"]
    shape = {"heads": heads, "width": heads * c["attention_head_dim"], "ffn": c["ffn_dim"]}
    return _wan(c, shape, channels, c.get("out_channels", channels), c["num_layers"])


def wan_native(c: HfConfig) -> Given:
    """The same, by the keys of its authors."""
    if c.get("model_type", "t2v") not in ("t2v", "ti2v"):
        hint = "save `transformer/config.json` of its copy for Diffusers"
        raise c.refuse("model_type", "whether it attends to an image is not said", hint=hint)
    shape = {"heads": c["num_heads"], "width": c["dim"], "ffn": c["ffn_dim"]}
    return _wan(c, shape, c["in_dim"], c["out_dim"], c["num_layers"])


def _wan(c: HfConfig, shape: dict[str, int], channels: int, out: int, layers: int) -> Given:
    width, own = shape["width"], channels == OWN_TIMES
    attention = {"part": "attention", "heads": shape["heads"], "qk_norm": "wide", "norm": "rms"}
    layer: Parts = [
        {"part": "weights", "params": 6 * width, "name": "modulation"},
        {"part": "norm", "affine": False},
        attention | {"rotary": True},
        {"part": "scale"},
        {"part": "norm"},
        attention | {"keys": "text", "name": "cross"},
        {"part": "add"},
        {"part": "norm", "affine": False},
        {"part": "scale"},
        {"part": "mlp", "ffn": shape["ffn"]},
        {"part": "scale"},
    ]
    start: Parts = [_linear(width, "patches"), *_perceptron("text", width), *_perceptron("time", width)]
    head: Parts = [
        {"part": "weights", "params": 2 * width, "name": "modulation"},
        {"part": "norm", "affine": False},
        _linear(4 * out, "pixels"),
        {"part": "loss"},
    ]
    return {
        "family": "composed",
        # 720p: 121 frames of the larger decoder, 81 of the other.
        "seq": 31 * 22 * 40 if own else 21 * 45 * 80,
        "streams": [
            {"name": "video", "width": 4 * channels},
            _stream("text", c.get("text_dim", 4096), c.get("text_len", TEXT_TOKENS)),
            _stream("time", c.get("freq_dim", 256), 0 if own else 1),
        ],
        "blocks": [
            {"name": "embedding", "parts": [*start, _linear(6 * width, "modulation", "time", aside=True)]},
            {"name": "layers", "repeat": layers, "parts": layer},
            {"name": "head", "parts": head},
        ],
    }


# -- images ------------------------------------------------------------------------------------------------------------


def _joint(heads: int, size: int, *, biased: bool) -> Parts:
    """Image and text, each by its own projections, attend together."""
    width, both = heads * size, ("image", "text")
    core = {"part": "core", "stream": "image+text", "heads": heads, "head_size": size, "qk_norm": "head", "norm": "rms"}
    plain: Given = {} if biased else {"bias": False}
    return [
        *(_linear(3 * width, f"{one}.qkv", one, split="column", **plain) for one in both),
        core | {"rotary": True, "name": "attention.core"},
        *(_linear(width, f"{one}.out", one, split="row", **plain) for one in both),
        *({"part": "scale", "stream": one} for one in both),
    ]


def _normed(stream: str) -> Parts:
    """A norm without weights, shifted and scaled by a modulation."""
    return [{"part": "norm", "stream": stream, "affine": False}, {"part": "scale", "stream": stream}]


def _last(width: int, out: int, **more: Any) -> Parts:
    modulation = _linear(2 * width, "modulation", "time", aside=True, **more)
    return [modulation, *_normed("image"), _linear(out, "pixels", "image", **more), {"part": "loss"}]


def qwen_image(c: HfConfig) -> Given:
    """Layers of two streams, each with its own modulation and perceptron."""
    c.only("guidance_embeds", False)
    c.only("patch_size", 2)
    heads, size = c["num_attention_heads"], c["attention_head_dim"]
    width, both = heads * size, ("image", "text")
    layer = [_linear(6 * width, f"{one}.modulation", "time", aside=True) for one in both]
    layer += [*_normed("image"), *_normed("text"), *_joint(heads, size, biased=True)]
    for one in both:
        layer += [*_normed(one), {"part": "mlp", "stream": one, "ffn": 4 * width, "name": f"{one}.mlp"}]
        layer += [{"part": "scale", "stream": one}]
    start: Parts = [
        _linear(width, "patches", "image"),
        {"part": "norm", "stream": "text", "norm": "rms"},
        _linear(width, "text", "text"),
        *_perceptron("time", width, name="time"),
    ]
    return {
        "family": "composed",
        "seq": IMAGE_TOKENS,
        "streams": [
            {"name": "image", "width": c["in_channels"]},
            _stream("text", c["joint_attention_dim"], TEXT_TOKENS),
            _stream("time", 256, 1),
        ],
        "blocks": [
            {"name": "embedding", "parts": start},
            {"name": "layers", "repeat": c["num_layers"], "parts": layer},
            {"name": "head", "parts": _last(width, 4 * c["out_channels"])},
        ],
    }


def flux2(c: HfConfig) -> Given:
    """Layers of two streams, then layers of both as one; one modulation for all layers of a kind, and no biases."""
    c.only("patch_size", 1)
    heads, size, ratio = c["num_attention_heads"], c["attention_head_dim"], float(c.get("mlp_ratio", 3.0))
    width, both, joined = heads * size, ("image", "text"), "image+text"
    inner, plain = round(ratio * width), {"bias": False}
    times = ("time", "guidance") if c.get("guidance_embeds", True) else ("time",)
    start = [part for one in times for part in _perceptron(one, width, name=one, **plain)]
    start += [_linear(6 * width, f"{one}.modulation", "time", aside=True, **plain) for one in both]
    start += [_linear(3 * width, "single.modulation", "time", aside=True, **plain)]
    start += [_linear(width, "patches", "image", **plain), _linear(width, "text", "text", **plain)]
    double = [*_normed("image"), *_normed("text"), *_joint(heads, size, biased=False)]
    for one in both:
        mlp = {"part": "mlp", "stream": one, "ffn": inner, "gated": True, "name": f"{one}.mlp", **plain}
        double += [*_normed(one), mlp, {"part": "scale", "stream": one}]
    core = {"part": "core", "stream": joined, "heads": heads, "head_size": size, "out": width + inner}
    single = [
        *_normed(joined),
        _linear(3 * width + 2 * inner, "qkv_mlp", joined, split="column", **plain),
        core | {"qk_norm": "head", "norm": "rms", "tied": True, "rotary": True, "name": "attention.core"},
        _linear(width, "out", joined, split="row", **plain),
        {"part": "scale", "stream": joined},
    ]
    channels = c.get("timestep_guidance_channels", 256)
    return {
        "family": "composed",
        "seq": IMAGE_TOKENS,
        "streams": [
            {"name": "image", "width": c["in_channels"]},
            _stream("text", c["joint_attention_dim"], TEXT_TOKENS),
            *(_stream(one, channels, 1) for one in times),
        ],
        "blocks": [
            {"name": "embedding", "parts": start},
            {"name": "layers", "repeat": c["num_layers"], "parts": double},
            {"name": "single", "repeat": c["num_single_layers"], "parts": single},
            {"name": "head", "parts": _last(width, c.get("out_channels", c["in_channels"]), **plain)},
        ],
    }

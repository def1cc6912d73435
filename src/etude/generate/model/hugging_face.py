"""A model from the `config.json` that Hugging Face keeps beside the weights.

What a config says of a model's shape is read or refused by its key; what changes no shape (rotary bases, dropout,
token numbers) is passed over. Where a key may be left out it has the value that the `transformers` library gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from etude.errors import UsageError
from etude.generate.model.shape import Model

Given = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Config:
    """The keys of a file, and what is wrong with them."""

    keys: Mapping[str, Any]
    where: str

    @property
    def kind(self) -> str:
        return str(self.keys.get("model_type", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """What a key says; `null` is as good as nothing."""
        value = self.keys.get(key)
        return default if value is None else value

    def __getitem__(self, key: str) -> int:
        """A count that has to be there."""
        value = self.get(key)
        if value is None:
            raise UsageError(f"key `{key}` is missing", where=self.where, hint=f"a `{self.kind}` config has it")
        if not isinstance(value, int) or value < 1:
            raise self.refuse(key, "expected a number above 0")
        return value

    def inside(self, key: str) -> Config:
        return Config(self.get(key, {}), f"{self.where}: {key}")

    def refuse(self, key: str, why: str, hint: str = "") -> UsageError:
        shown = str(self.keys.get(key))
        shown = shown if len(shown) < 60 else shown[:57] + "..."
        return UsageError(f"`{key}` {shown}: {why}", where=self.where, hint=hint)

    def only(self, key: str, *allowed: Any) -> None:
        """A key that changes the shape in ways that are not built."""
        if self.get(key, allowed[0]) not in allowed:
            raise self.refuse(key, "this shape is not built", hint=f"built: {', '.join(map(str, allowed))}")


def from_config(config: Mapping[str, Any], *, where: str = "config.json") -> Model:
    """Families whose blocks Etude has; any other `model_type`, and any key that asks for more, is refused by name."""
    found = Config(config, where)
    if found.kind not in READERS:
        for key in ("text_config", "llm_config"):
            if isinstance(found.get(key), dict):
                raise found.refuse("model_type", "a model of several towers is not read", f"save `{key}` as a file")
        known = ", ".join(READERS)
        raise UsageError(f"`model_type` {found.kind!r} is not one that is read", where=where, hint=f"known: {known}")
    for head in found.get("architectures", []):
        if str(head).endswith(_OTHER_HEADS):
            raise found.refuse("architectures", "a head for another task is not built")
    name = str(config.get("_name_or_path") or found.kind).rstrip("/").rsplit("/", 1)[-1]
    try:
        return Model.from_dict({"name": name, **READERS[found.kind](found)}, where)
    except (TypeError, ValueError, KeyError, AttributeError) as problem:
        raise UsageError(f"not a `{found.kind}` config: {problem}", where=where) from None


_OTHER_HEADS: Final = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)


# -- decoders ------------------------------------------------------------------------------------------


def _decoder(c: Config) -> Given:
    """The keys that Llama's config made common."""
    given = {
        "layers": c["num_hidden_layers"],
        "hidden": c["hidden_size"],
        "heads": c["num_attention_heads"],
        "kv_heads": c.get("num_key_value_heads", 0),
        "head_size": c.get("head_dim", 0),
        "ffn": c["intermediate_size"],
        "vocab": c["vocab_size"],
        "seq": _sequence(c.get("max_position_embeddings", 4096)),
        "tied": c.get("tie_word_embeddings", False),
        "predict_layers": c.get("num_nextn_predict_layers", 0),
    }
    c.only("add_cross_attention", False)
    return given


def _sequence(longest: int) -> int:
    """A plan that names no sequence takes the longest, within reason."""
    return min(longest, 8192)


def _gated(c: Config) -> Given:
    """Llama, and what differs from it in a flag."""
    given = _decoder(c) | {"gated": True}
    kind = c.kind
    biased = c.get("attention_bias", False)
    given |= {"qkv_bias": biased or kind.startswith("qwen2"), "out_bias": biased, "ffn_bias": c.get("mlp_bias", False)}
    if kind.startswith("qwen3"):
        given["qk_norm"] = True
    return given | _window(c) | _experts(c)


def _window(c: Config) -> Given:
    """Attention windows, of every layer or of some; `layer_types` names them one by one in newer files."""
    size = c.get("sliding_window", 0)
    if not c.get("use_sliding_window", True):
        return {}
    types = c.get("layer_types")
    if types:
        return _pattern(c, size, types)
    pattern = c.get("sliding_window_pattern", 0)
    if size and pattern:
        return {"window": size, "full_every": pattern}
    if size and c.kind in ("gemma2", "gpt_oss"):
        return {"window": size, "window_every": 2}
    if size and c.kind.startswith("qwen"):
        c.only("max_window_layers", 0)
    return {"window": size} if size else {}


def _pattern(c: Config, size: int, types: list[str]) -> Given:
    known = {"full_attention": False, "sliding_attention": True}
    other = sorted(set(types) - set(known))
    if other:
        raise c.refuse("layer_types", f"`{other[0]}` is not built", hint="built: full_attention, sliding_attention")
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
    raise c.refuse("layer_types", "windows in no regular pattern are not built")


def _experts(c: Config) -> Given:
    experts = c.get("num_local_experts") or c.get("n_routed_experts") or c.get("num_experts")
    if not experts:
        return {}
    if c.get("mlp_only_layers"):
        raise c.refuse("mlp_only_layers", "dense layers between those with experts are not built")
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


def _latent(c: Config) -> Given:
    """DeepSeek."""
    given = _gated(c) | {
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


def _gemma(c: Config) -> Given:
    given = _gated(c)
    given |= {"tied": c.get("tie_word_embeddings", True), "head_size": c.get("head_dim", 256)}
    if c.kind != "gemma":
        given["norms"] = 4
    if c.kind == "gemma3_text":
        given["qk_norm"] = True
        c.only("use_bidirectional_attention", False)
    return given


def _gpt_oss(c: Config) -> Given:
    biases = {"qkv_bias": True, "out_bias": True, "sinks": True, "expert_bias": True}
    return _gated(c) | {"head_size": c.get("head_dim", 64)} | biases


def _llama4(c: Config) -> Given:
    """Experts in every n-th layer, dense layers of another width, one shared expert as wide as a routed one."""
    every = c.get("interleave_moe_layer_step", 1)
    regular = list(range(every - 1, c["num_hidden_layers"], every))
    if c.get("moe_layers", regular) not in ([], regular):
        raise c.refuse("moe_layers", "experts in no regular pattern are not built")
    return _gated(c) | {
        "ffn": c["intermediate_size_mlp"],
        "expert_ffn": c["intermediate_size"],
        "shared_ffn": c["intermediate_size"],
        "moe_every": every,
    }


def _phi3(c: Config) -> Given:
    c.only("partial_rotary_factor", 1.0, 0.75)
    return _gated(c)


def _olmo(c: Config) -> Given:
    """The first kind has norms without weights, the second normalises queries and keys over all heads."""
    if c.kind == "olmo":
        return _gated(c) | {"norm": "layer", "norm_weights": False}
    return _gated(c) | {"qk_norm": True, "qk_norm_wide": True}


def _layer_normed(c: Config, *, gated: bool, biased: bool) -> Given:
    return _decoder(c) | {"gated": gated, "norm": "layer", "norm_bias": True, "bias": biased}


def _stablelm(c: Config) -> Given:
    c.only("qk_layernorm", False)
    given = _layer_normed(c, gated=True, biased=False)
    return given | {"qkv_bias": c.get("use_qkv_bias", False), "norms": 1 if c.get("use_parallel_residual") else 2}


def _starcoder2(c: Config) -> Given:
    given = _layer_normed(c, gated=False, biased=c.get("use_bias", True))
    return given | {"tied": c.get("tie_word_embeddings", True)} | _window(c)


def _cohere(c: Config) -> Given:
    given = _layer_normed(c, gated=True, biased=False)
    given |= {"norm_bias": False, "norms": 1, "tied": c.get("tie_word_embeddings", True)}
    c.only("use_qk_norm", False)
    return given | _window(c)


def _nemotron(c: Config) -> Given:
    given = _layer_normed(c, gated=False, biased=False)
    return given | {"qkv_bias": c.get("attention_bias", False), "out_bias": c.get("attention_bias", False)}


def _neox(c: Config) -> Given:
    given = _layer_normed(c, gated=False, biased=True)
    if not c.get("attention_bias", True):
        given |= {"bias": False, "ffn_bias": True}
    return given


def _phi(c: Config) -> Given:
    c.only("qk_layernorm", False)
    return _layer_normed(c, gated=False, biased=True) | {"norms": 1, "head_bias": True}


def _opt(c: Config) -> Given:
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
        "seq": _sequence(longest),
        "norm": "layer",
        "positions": "learned",
        "max_positions": longest + 2,  # two rows more than positions
        "bias": c.get("enable_bias", True),
        "tied": c.get("tie_word_embeddings", True),
    }


def _gpt2(c: Config) -> Given:
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


def _gptj(c: Config) -> Given:
    given = _gpt2(c) | {"positions": "rotary", "max_positions": 0, "bias": False, "ffn_bias": True}
    return given | {"norms": 1, "head_bias": True, "tied": c.get("tie_word_embeddings", False)}


def _bloom(c: Config) -> Given:
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


def _falcon(c: Config) -> Given:
    """One norm or two for attention and feed-forward beside each other; one head of keys, or several."""
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
        "seq": _sequence(c.get("max_position_embeddings", 2048)),
        "norm": "layer",
        "norms": 2 if two else 1,
        "positions": "none" if c.get("alibi", False) else "rotary",
        "bias": c.get("bias", False),
        "tied": c.get("tie_word_embeddings", True),
    }


def _mpt(c: Config) -> Given:
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
        "seq": _sequence(c.get("max_seq_len", 2048)),
        "norm": "layer",
        "norm_bias": False,
        "positions": "none" if alibi else "learned",
        "max_positions": 0 if alibi else c.get("max_seq_len", 2048),
        "tied": c.get("tie_word_embeddings", True),
    }


def _dbrx(c: Config) -> Given:
    attention, ffn = c.inside("attn_config"), c.inside("ffn_config")
    return {
        "layers": c["n_layers"],
        "hidden": c["d_model"],
        "heads": c["n_heads"],
        "kv_heads": attention["kv_n_heads"],
        "ffn": ffn["ffn_hidden_size"],
        "vocab": c["vocab_size"],
        "seq": _sequence(c.get("max_seq_len", 2048)),
        "gated": True,
        "norm": "layer",
        "norm_bias": False,
        "experts": ffn["moe_num_experts"],
        "top_k": ffn["moe_top_k"],
        "tied": c.get("tie_word_embeddings", False),
    }


# -- encoders, images ------------------------------------------------------------------------------------------


def _bert(c: Config) -> Given:
    c.only("is_decoder", False)
    c.only("position_embedding_type", "absolute")
    length = c.get("max_position_embeddings", 512)
    return _decoder(c) | {
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


def _t5(c: Config) -> Given:
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


def _vit(c: Config) -> Given:
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
        "classes": _classes(c),
    }


def _classes(c: Config) -> int:
    return int(c.get("num_labels") or len(c.get("id2label", {})) or 2)


def _resnet(c: Config) -> Given:
    c.only("layer_type", "bottleneck")
    c.only("embedding_size", 64)
    c.only("downsample_in_first_stage", False)
    depths = list(c.get("depths", [3, 4, 6, 3]))
    widths = [256 << i for i in range(len(depths))]
    if list(c.get("hidden_sizes", widths)) != widths:
        raise c.refuse("hidden_sizes", "stages do not double from 256", hint=f"hidden_sizes: {widths}")
    sizes = {"depths": depths, "channels": c.get("num_channels", 3)}
    return {"family": "convnet", "image": c.get("image_size", 224), "classes": _classes(c)} | sizes


READERS: Final[dict[str, Callable[[Config], Given]]] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "granite", "granitemoe", "qwen2", "qwen3"), _gated),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), _gated),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), _latent),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), _gemma),
    **dict.fromkeys(("olmo", "olmo2", "olmo3"), _olmo),
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
    "phi3": _phi3,
    "phi": _phi,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
    "cohere": _cohere,
    "nemotron": _nemotron,
    "gpt_neox": _neox,
    "opt": _opt,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt2,
    "gptj": _gptj,
    "bloom": _bloom,
    "falcon": _falcon,
    "mpt": _mpt,
    "dbrx": _dbrx,
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), _bert),
    **dict.fromkeys(("t5", "mt5"), _t5),
    "vit": _vit,
    "resnet": _resnet,
}

"""A model from the `config.json` that Hugging Face keeps with the weights.

Keys that affect the shape are read or refused; others (rotary bases, dropout, token ids) are ignored. Missing keys have
the defaults of the `transformers` library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from etude.base.errors import UsageError
from etude.make.generate.model import hf_decoders as d
from etude.make.generate.model import hf_diffusers as f
from etude.make.generate.model import hf_encoders as e
from etude.make.generate.model import hf_hybrids as h
from etude.make.generate.model import hf_more as m
from etude.make.generate.model import hf_towers as t
from etude.make.generate.model.hf_config import Given, HfConfig, UnmappedConfigError
from etude.make.generate.model.shape import Model


def from_config(config: Mapping[str, Any], *, where: str = "config.json") -> Model:
    """Families with blocks in Etude; any other `model_type`, and any key that asks for more, is refused by name."""
    found = HfConfig(config, where)
    if found.kind in WITHOUT_BLOCKS:
        raise without_blocks(found.kind, where)
    if found.kind not in READERS:
        if found.kind.endswith("Pipeline"):
            raise found.refuse("_class_name", "a pipeline has several networks", "save its `transformer/config.json`")
        for key in ("text_config", "llm_config"):
            if isinstance(found.get(key), dict):
                raise found.refuse(
                    "model_type", "a model of several towers is not supported", f"save `{key}` as a file"
                )
        known = ", ".join(READERS)
        key = "_class_name" if found.get("_class_name") else "model_type"
        raise UnmappedConfigError(f"`{key}` {found.kind!r} is not supported", where=where, hint=f"known: {known}")
    for head in found.get("architectures", []):
        if str(head).endswith(_OTHER_HEADS):
            raise found.refuse("architectures", "a head for another task is not supported")
    name = str(config.get("_name_or_path") or found.kind).rstrip("/").rsplit("/", 1)[-1]
    try:
        return Model.from_dict({"name": name, **READERS[found.kind](found)}, where)
    except (TypeError, ValueError, KeyError, AttributeError) as problem:
        raise UsageError(f"not a `{found.kind}` config: {problem}", where=where) from None


WITHOUT_BLOCKS: Final = {
    **dict.fromkeys(
        ("gemma3n", "gemma3n_text"),
        "several residual streams (AltUp), an embedding for each layer, keys and values shared by layers",
    )
}
"""Types whose layers cannot be built, and what is missing."""


def without_blocks(kind: str, where: str) -> UnmappedConfigError:
    problem = f"a `{kind}` model has layers that are not supported: {WITHOUT_BLOCKS[kind]}"
    return UnmappedConfigError(
        problem, where=where, hint="no similar shape is taken instead; `etude collect` records it as it runs"
    )


_OTHER_HEADS: Final = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)


_TEXT: Final[dict[str, Callable[[HfConfig], Given]]] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "granite", "granitemoe", "qwen2", "qwen3"), d.gated),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), d.gated),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), d.latent),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), d.gemma),
    **dict.fromkeys(("olmo", "olmo2", "olmo3"), d.olmo),
    "gpt_oss": d.gpt_oss,
    "llama4_text": d.llama4,
    "phi3": d.phi3,
    "phi": d.phi,
    "stablelm": d.stablelm,
    "starcoder2": d.starcoder2,
    "cohere": d.cohere,
    "nemotron": d.nemotron,
    "gpt_neox": d.neox,
    "opt": d.opt,
    "gpt2": d.gpt2,
    "gpt_bigcode": d.gpt2,
    "gptj": d.gptj,
    "bloom": d.bloom,
    "falcon": d.falcon,
    "mpt": d.mpt,
    "dbrx": d.dbrx,
    "nemotron_h": h.nemotron_h,
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba"), h.mamba),
    "jamba": h.jamba,
    "bamba": h.bamba,
    "granitemoehybrid": h.granite_hybrid,
    "qwen3_next": h.qwen3_next,
    "kimi_linear": h.kimi_linear,
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), h.deepseek_v32),
    **dict.fromkeys(("ministral3", "vaultgemma"), d.gated),
    **dict.fromkeys(("exaone4", "mellum"), m.query_normed),
    **dict.fromkeys(("minicpm3", "youtu"), m.low_rank),
    "seed_oss": m.seed_oss,
    "arcee": m.arcee,
    "ernie4_5": m.ernie,
    "ernie4_5_moe": m.ernie_moe,
    "smollm3": m.smollm3,
    "hunyuan_v1_dense": m.hunyuan,
    "hunyuan_v1_moe": m.hunyuan_moe,
    "phimoe": m.phimoe,
    "glm4_moe": m.glm4_moe,
    "granitemoeshared": m.granite_shared,
    "minimax_m2": m.minimax_m2,
    "cohere2": m.cohere2,
    "olmoe": d.olmo,
    "codegen": d.gptj,
    "gpt-sw3": d.gpt2,
    "jais2": d.starcoder2,
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), h.qwen3_next),
    **dict.fromkeys(("qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_omni_moe_text"), d.gated),
}


def text(c: HfConfig) -> Given:
    """The text decoder of a model with towers."""
    if c.kind not in _TEXT:
        raise c.refuse("model_type", "is not supported", hint=f"known: {', '.join(_TEXT)}")
    return _TEXT[c.kind](c)


def _beside(reader: Callable[[HfConfig, Callable[[HfConfig], Given]], Given]) -> Callable[[HfConfig], Given]:
    return lambda c: reader(c, text)


READERS: Final[dict[str, Callable[[HfConfig], Given]]] = _TEXT | {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), e.bert),
    **dict.fromkeys(("t5", "mt5"), e.t5),
    "whisper": m.whisper,
    **dict.fromkeys(("bart", "mbart"), m.bart),
    "vit": e.vit,
    "resnet": e.resnet,
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe"), _beside(t.qwen3_vl)),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), _beside(t.qwen3_5)),
    **dict.fromkeys(("qwen3_omni_moe", "qwen3_omni_moe_thinker"), _beside(t.qwen3_omni)),
    "gemma3": _beside(t.gemma3),
    "llama4": _beside(t.llama4),
    "llava": _beside(t.llava),
    "WanTransformer3DModel": f.wan,
    "WanModel": f.wan_native,
    "QwenImageTransformer2DModel": f.qwen_image,
    "Flux2Transformer2DModel": f.flux2,
}

"""Random plans of models of the catalogue that are more than decoders: towers, states, parts. Layers are few."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from etude.make.generate.model.open import open_model
from etude.make.generate.model.shape import Family, Model

NAMES = (
    "qwen3-vl-2b", "gemma3-4b", "nemotron-nano-9b-v2", "qwen3-next-80b-a3b", "jamba-1.5-mini", "mamba2-2.7b",
    "deepseek-v3.2", "qwen3-omni-30b-a3b", "flux.1-dev", "sd3.5-medium", "wan2.1-1.3b", "cogvideox-2b", "pixart-sigma",
    "hunyuandit-v1.2", "sana1.5-1.6b", "sdxl-unet", "alexnet", "vgg16", "mobilenet-v2", "resnet-18", "gcn-arxiv",
    "softmax-regression", "som-100x100", "hstu-8x512", "hunyuanvideo",
)  # fmt: skip


def catalogue_model(random: Random) -> Model:
    m = open_model(random.choice(NAMES))
    if m.family == Family.DECODER:
        return m.replace(layers=min(m.layers, random.choice([4, 8])), dense_layers=min(m.dense_layers, 1))
    return m.replace(blocks=tuple(replace(piece, repeat=min(piece.repeat, 3)) for piece in m.blocks))


def catalogue_plan(random: Random, m: Model) -> dict[str, Any]:
    tp, pp, cp, dp = (random.choice(c) for c in ([1, 1, 2, 4], [1, 1, 2, 3], [1, 1, 1, 2], [1, 2]))
    plan: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "gpus": tp * pp * cp * dp,
        "seq": random.choice([64, 256]),
        "micro_batch": random.choice([1, 2]),
        "zero": random.choice([0, 0, 1, 2, 3]),
        "recompute": random.choice(["none", "selective", "full"]),
        "precision": random.choice(["bf16", "fp8", "fp4", "fp32"]),
        "optimizer": random.choice(["adamw", "adamw_8bit", "adafactor", "momentum", "sgd", "muon"]),
        "train": random.choice(["all", "all", "forward", "lora:8", "frozen"]),
        "cp_kind": random.choice(["ring", "ulysses", "all_gather"]),
    }
    plan |= {"ep": random.choice([2, 4])} if m.experts and random.random() < 0.5 else {}
    return plan | ({"global_batch": dp * plan["micro_batch"] * pp * 2} if pp > 1 else {})

"""Random models, plans and schedules, small enough to simulate by the thousand."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from etude.make.generate.model.shape import Model

RECOMPUTE = ["none", "selective", "selective:norm,activation", "full"]
SCHEDULES = ("1f1b", "gpipe", "interleaved:2", "interleaved:3", "looped_bfs:2", "zb1p", "zb2p", "zbv", "vhalf", "vmin",
             "dualpipe", "dualpipev")  # fmt: skip
FURTHER = ("async:1", "async:2", "async:2,window=3", "async:2,admit=4,window=4,flush", "roundrobin",
           "roundrobin:2,fused")  # fmt: skip
"""Without a step of its own, or without weights of its own."""


def random_model(random: Random) -> Model:
    return Model.from_dict(random_shape(random))


def random_shape(random: Random) -> dict[str, Any]:
    """Keys of a model's file."""
    kind = random.choice(["dense", "dense", "moe", "moe", "mla", "encoder", "t5", "vit", "dit", "dlrm", "convnet"])
    shape: dict[str, Any] = {"layers": random.choice([4, 6, 8, 12]), "hidden": 64, "heads": 8, "ffn": 128, "vocab": 256}
    if kind == "dlrm":
        return {"name": kind, "family": "dlrm", "tables": 8, "table_rows": 100, "table_width": 16,
                "dense_features": 4, "bottom": [32, 16], "top": [64, 1], "seq": 1}  # fmt: skip
    if kind == "convnet":
        return {"name": kind, "family": kind, "depths": [2, 2, 2, 2], "image": 64, "classes": 10}
    more: dict[str, Any] = {"seq": 64, "gated": random.random() < 0.5, "tied": random.random() < 0.5}
    if kind in ("dense", "moe"):
        more |= {
            "kv_heads": random.choice([2, 4, 8]),
            "qk_norm": random.random() < 0.3,
            "norm": random.choice(["rms", "layer"]),
            "bias": random.random() < 0.3,
            "positions": random.choice(["rotary", "learned", "none"]),
            "window": random.choice([0, 0, 16]),
        }
    if kind in ("moe", "mla"):
        more |= {"experts": 8, "top_k": random.choice([1, 2, 4]), "expert_ffn": 32, "moe_every": random.choice([1, 2]),
                 "dense_layers": random.choice([0, 1]), "shared_ffn": random.choice([0, 64])}  # fmt: skip
    if kind in ("dense", "moe", "mla"):
        more |= {"predict_layers": random.choice([0, 0, 0, 1, 2])}
    if kind == "mla":
        more |= {"q_rank": random.choice([0, 32]), "kv_rank": 16, "rope_size": 4, "nope_size": 8, "value_size": 8}
    if kind == "encoder":
        more |= {"family": kind, "norm": "layer", "positions": "learned", "pooler": True}
    if kind == "t5":
        more |= {"family": "encoder_decoder", "encoder_layers": 4, "encoder_seq": 32, "relative_buckets": 8}
    if kind in ("vit", "dit"):
        shape.pop("vocab")
        more = {"family": kind, "image": 32, "patch": 4 if kind == "dit" else 8, "classes": 10, "norm": "layer"}
    return {"name": kind, **shape, **more}


def random_plan(random: Random, m: Model) -> dict[str, Any]:
    tp, cp, pp = random.choice([1, 1, 2, 4]), random.choice([1, 1, 2, 4]), random.choice([1, 1, 2, 4])
    if m.family in ("dlrm", "convnet"):
        tp = cp = 1
    dp, micro = random.choice([1, 2, 3, 4]), random.choice([1, 2, 4])
    stage = tp * cp * dp
    ways = [e for e in (1, 2, 4, 8) if stage % e == 0 and (m.experts or m.tables)] or [1]
    zero = random.randrange(4)
    plan: dict[str, Any] = {
        "gpus": stage * pp, "tp": tp, "cp": cp, "pp": pp, "ep": random.choice(ways), "micro_batch": micro,
        "global_batch": dp * micro * random.choice([1, 2, 4, 8, 16]), "schedule": random.choice(SCHEDULES + FURTHER),
        "zero": zero, "reshard": random.random() < 0.7, "cp_kind": random.choice(["ring", "all_gather", "ulysses"]),
        "recompute": random.choice(RECOMPUTE), "tp_chunks": random.choice([1, 1, 2, 4]),
        "precision": random.choice(["bf16", "fp16", "fp8", "fp32", "fp4"]),
        "grad_dtype": random.choice(["fp32", "bf16"]), "clip": random.random() < 0.7,
        "attention": random.choice(["flash", "flash", "unfused"]),
        "overlap_grads": random.random() < 0.7, "overlap_params": random.random() < 0.7,
        "bucket": random.choice([1, 10_000, 10**9]), "checkpoint": random.random() < 0.2,
        "data_loading": random.random() < 0.2, "moe_skew": random.choice([1.0, 1.0, 1.3]) if m.experts else 1.0,
        "capacity": random.choice([0.0, 1.25]) if m.experts else 0.0, "host": random.choice(["0", "0", "0", "5us"]),
        "order": random.choice(["tp-cp-dp-pp", "tp-pp-cp-dp", "cp-tp-pp-dp", "pp-dp-cp-tp"]),
    }  # fmt: skip
    plan |= {
        "dispatch": random.choice(["products", "activations"]), "loss_dtype": random.choice(["fp32", "fp32", "bf16"]),
        "unfused": random.choice(["", "", "activation", "activation,norm"]), "keep_grads": random.random() < 0.3,
        "etp": random.choice([1, 1, 2]) if m.experts and stage % (2 * plan["ep"]) == 0 else 1,
    }  # fmt: skip
    if plan["precision"] == "fp8":
        plan["scaling"] = random.choice(["delayed", "current", "block", "mx"])
    if tp > 1 and random.random() < 0.3:
        plan["sp"] = False
    if zero and random.random() < 0.3:
        plan["dp_shard"] = dp
    if plan["schedule"].startswith("roundrobin"):
        plan |= {"checkpoint": False, "recompute": random.choice(["none", "full"])}
    if plan["schedule"].startswith("async:2") and pp == 1:
        plan["schedule"] = "async:1"
    plan |= {
        "optimizer": random.choice(["adamw", "adamw", "adamw", "adamw_8bit", "adafactor", "momentum", "sgd", "muon"]),
        "state_dtype": random.choice(["fp32", "fp32", "bf16"]), "master": random.random() < 0.8,
        "prefetch": random.choice([0, 1, 1, 2]), "graphs": random.random() < 0.2,
    }  # fmt: skip
    if plan["ep"] > 2 and plan["moe_skew"] == 1.0 and random.random() < 0.4:
        plan |= {"ep_node": 2, "moe_nodes": random.choice([0, 1])}
    if m.experts and plan["moe_skew"] == 1.0 and "ep_node" not in plan and random.random() < 0.5:
        plan |= {"moe_loads": random.choice(["zipf:1.2", "dirichlet:0.3", "zipf:0"]), "moe_seed": random.randrange(9)}
    if random.random() < 0.15:
        plan |= {"directives": random_directives(random), "zero": 0, "optimizer": "adamw"}
        plan.pop("dp_shard", None)
    plan["steps"] = random.choice([1, 1, 1, 2, 3])
    if random.random() < 0.3:
        plan |= random_lengths(random, dp)
    return plan | _what_is_trained_and_where(random, m, plan)


def random_directives(random: Random) -> str:
    """A file of the examples: what copies share as ZeRO 0 to 3 do it."""
    return str(Path(__file__).parent.parent / "examples" / "directives" / f"zero{random.randrange(4)}.yaml")


MODES = ("train", "train", "train", "forward", "forward", "frozen", "lora:4", "layers:1..")


def random_sections(random: Random, folder: Path) -> dict[str, Any]:
    """Two or three models as one job; their files go into the folder."""
    if random.random() < 0.3:
        return _random_rollout(random, folder)
    sections: dict[str, Any] = {}
    borders = []
    batch = random.choice([4, 8])
    names = ["first", "second", "third"][: random.choice([2, 2, 3])]
    for number, name in enumerate(names):
        shape = random_shape(random)
        while shape.get("family") in ("dlrm", "convnet"):
            shape = random_shape(random)
        (folder / f"{name}.yaml").write_text(json.dumps(shape))
        section: dict[str, Any] = {"model": str(folder / f"{name}.yaml"), "plan": _section_plan(random),
                                   "mode": random.choice(MODES)}  # fmt: skip
        own = [n for n in sections if "gpus" in sections[n]]
        section |= {"shares": random.choice(own)} if own and random.random() < 0.4 else {"gpus": random.choice([2, 4])}
        if random.random() < 0.3:
            section |= {"active": random.choice([0.25, 0.5, 0.75]), "deal": random.choice(["even", "own"])}
        section |= {"per_sample": 2} if random.random() < 0.2 else {}
        sections[name] = section
        if number:
            carries = random.choice(["hidden", "hidden", "logits"])
            borders.append({"from": names[number - 1], "to": name, "carries": carries})
    if random.random() < 0.3:
        _join(random, sections, borders)
    return {"batch": batch, "sections": sections, "borders": borders, "seed": random.randrange(9)}


def _join(random: Random, sections: dict[str, Any], borders: list[dict[str, Any]]) -> None:
    """One pipeline through all of them, on ranks of their own or all on the same, with as many micro-batches each."""
    together, pp = random.random() < 0.5, random.choice([1, 2])
    names = list(sections)
    for name, section in sections.items():
        section.pop("shares", None)
        section["plan"] |= {"pp": pp if together else random.choice([1, 2]), "tp": 1, "cp": 1}
        section["gpus"] = 2 * section["plan"]["pp"]
        if together and name != names[-1]:
            section["shares"] = names[-1]
            del section["gpus"]
        section["mode"] = random.choice(["train", "train", "frozen"]) if name != names[0] else section["mode"]
    for border in borders:
        border |= {"carries": "hidden", "joint": True}


def _random_rollout(random: Random, folder: Path) -> dict[str, Any]:
    """Tokens made by one section and trained on by another, on ranks of its own or not."""
    shape = random_shape(random)
    while shape["name"] not in ("dense", "moe", "mla"):
        shape = random_shape(random)
    (folder / "model.yaml").write_text(json.dumps(shape))
    path, plan = str(folder / "model.yaml"), {"tp": random.choice([1, 2, 4]), "pp": random.choice([1, 1, 2])}
    serving = random.choice([{}, {"max_batch": 2}, {"chunked": True, "token_budget": 16}])
    rollout = {"model": path, "mode": "rollout", "prompt": random.choice([4, 20]), "serving": serving,
               "output": random.choice(["1", "6", "2:1,9:1"]), "plan": plan}  # fmt: skip
    rollout |= random.choice([{"shares": "trainer"}, {"gpus": 4}])
    trainer = {"model": path, "gpus": 4, "plan": _section_plan(random)}
    borders = [{"from": "rollout", "to": "trainer", "carries": "tokens"}] if random.random() < 0.8 else []
    borders += [{"from": "trainer", "to": "rollout", "carries": "weights"}] if random.random() < 0.8 else []
    return {"batch": 8, "sections": {"rollout": rollout, "trainer": trainer}, "borders": borders}


def _section_plan(random: Random) -> dict[str, Any]:
    plan = {"tp": random.choice([1, 1, 2]), "pp": random.choice([1, 1, 2]), "cp": random.choice([1, 1, 1, 2]),
            "zero": random.randrange(4), "precision": random.choice(["bf16", "fp8", "fp32"]),
            "recompute": random.choice(["none", "full"]), "clip": random.random() < 0.7}  # fmt: skip
    return {name: value for name, value in plan.items() if value != 1 or name == "zero"}


def random_lengths(random: Random, dp: int) -> dict[str, Any]:
    """Samples of different length, and how they are put together."""
    batching = random.choice(["fixed", "padded", "tokens", "padded_tokens", "compute", "online", "packed"])
    more: dict[str, Any] = {"lengths": random.choice(["16", "5:3,64:1", "7:1,30:1,200:1"]), "batching": batching,
                            "length_seed": random.randrange(9)}  # fmt: skip
    if batching in ("tokens", "padded_tokens", "compute", "online"):
        more |= {"budget": random.choice([0, 40, 500]), "memory_budget": random.choice(["0", "1GB"])}
    if batching == "compute":
        more["power"] = random.choice([0.0, 1.0, 1.5])
    if batching == "online":
        more["window"] = random.choice([0, 3])
    if batching != "packed" and random.random() < 0.3:
        more |= {"samples": dp * random.choice([8, 40]), "join": random.random() < 0.7, "steps": 1}
    return more


def _what_is_trained_and_where(random: Random, m: Model, plan: dict[str, Any]) -> dict[str, Any]:
    """Weights that are not trained, maps of documents, tiles of pictures."""
    found: dict[str, Any] = {}
    if random.random() < 0.3:
        found["train"] = random.choice(["forward", "frozen", "layers:1..", "layers:0..0", "lora:4"])
    if plan["cp"] > 1 and random.random() < 0.4:
        found |= {"cp_kind": "ring", "cp_map": random.choice(["contiguous", "zigzag", "lpt", "whole_first", "search"])}
        if random.random() < 0.5:
            found |= {"lengths": "8:0.5,24:0.3,64:0.2", "batching": random.choice(["packed", "fixed"])}
    if m.family == "convnet" and random.random() < 0.5:
        found |= {"cp": 4, "gpus": 4 * plan["gpus"], "domain": random.choice(["2x2", "4x1"])}
    return found

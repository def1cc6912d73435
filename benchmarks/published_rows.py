"""Published training rows as models and plans: what each row says, and by source what is assumed where it says nothing.

`case_of(row)` is a Case, or the reason for which a row is left out. The rules never see the value of a row.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from etude.generate.model.open import open_model
from etude.generate.model.shape import Model
from etude.generate.plan import Plan, Precision
from etude.generate.train import plan_memory

Row = dict[str, str]

SYSTEMS = {
    "A100-80GB": "dgx-a100", "A100": "dgx-a100", "A100-40GB": "dgx-a100", "H100-80GB": "dgx-h100", "H100": "dgx-h100",
    "H100-80GB (RoCE)": "dgx-h100", "H100-96GB(HBM2e,500W)": "dgx-h100", "GB200": "gb200-nvl72", "GB300": "gb300-nvl72",
    "B200": "dgx-b200", "H800": "dgx-h100", "H200": "dgx-h200", "V100": "dgx-2", "V100-32GB": "dgx-2",
    "MI300X": "mi300x-node",
}  # fmt: skip
"""System of the catalogue that stands for a GPU; what differs is in `validate_published.machine`."""

GPU = {"A100": "A100-80GB", "H100": "H100-80GB", "H100-80GB (RoCE)": "H100-80GB"}
"""One GPU under several names."""

CATALOGUE = {
    "GPT-3-175B": "gpt3-175b", "Llama-2-7B": "llama2-7b", "Llama-2-13B": "llama2-13b", "Llama-2-70B": "llama2-70b",
    "Llama-3-8B": "llama3-8b", "Llama-3-70B": "llama3-70b", "Llama-3.1-405B": "llama3-405b",
    "Nemotron-4-15B": "nemotron4-15b", "Nemotron-4-340B": "nemotron4-340b", "DeepSeek-V3": "deepseek-v3",
    "Qwen3-30B-A3B": "qwen3-30b-a3b", "Qwen3-235B-A22B": "qwen3-235b-a22b", "GPT-OSS-120B": "gpt-oss-120b",
    "Grok-1": "grok-1", "Llama-4-Maverick": "llama4-maverick",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row, ready to be predicted."""

    model: Model
    plan: Plan
    system: str
    gpu: str
    stack: str
    """Constants are fitted for each (GPU, stack)."""
    megatron: bool
    step_s: float
    """The published figure as the time of a step."""
    assumed: str
    source: str
    key: str


def key_of(row: Row) -> str:
    """A row by what it says, not by its place in the file."""
    text = "|".join(
        row[c]
        for c in (
            "source",
            "model",
            "seq",
            "gpus",
            "gpu_type",
            "tp",
            "pp",
            "cp",
            "ep",
            "interleave",
            "micro_batch",
            "global_batch",
            "recompute",
            "precision",
            "measured_metric",
            "notes",
        )
    )
    return hashlib.sha256(text.encode()).hexdigest()[:12]


GENERATION = {"A100": "Ampere", "H100": "Hopper", "H800": "Hopper", "H200": "Hopper", "H20": "Hopper",
              "B200": "Blackwell", "B300": "Blackwell", "GB20": "Blackwell", "GB30": "Blackwell"}  # fmt: skip


def generation(gpu: str) -> str:
    """GPUs of one generation run the same kernels."""
    return GENERATION.get(gpu[:4], gpu)


def fitted_keys(cases: list[Case]) -> set[str]:
    """Rows that constants may be fitted to: of each stack on a generation of GPUs a third, rounded down, those with the
    least keys."""
    groups: dict[tuple[str, str], set[str]] = {}
    for case in cases:
        groups.setdefault((generation(case.gpu), case.stack), set()).add(case.key)
    return {key for keys in groups.values() for key in sorted(keys)[: len(keys) // 3]}


def _number(row: Row, name: str, usual: int = 0) -> int:
    return int(float(row[name])) if row[name] else usual


def reason_out(row: Row) -> str:
    """Why a row cannot be a test of training steps; empty if it can."""
    metric, unit = row["measured_metric"], row["unit"]
    if "bus bandwidth" in metric:
        return "no training step: all-reduce bandwidth (see validate_nccl.py)"
    if metric.startswith("serving"):
        return "no training step: serving"
    if metric.startswith("time to train"):
        return "time to a target, without the plan or the number of steps"
    if unit == "GPU-hours":
        return "averaged over a whole run with restarts, and batch ramps; micro-batch and schedule details unsaid"
    if not row["tp"] or not row["pp"]:
        return "tensor and pipeline parallel sizes are not stated"
    if row["source"].startswith("Llama 3 Herd") and _number(row, "seq") > 16384:
        return "only FLOP/s are given, and at this length the unsaid way of counting attention changes them by 40%"
    if row["model"].startswith("Llama-4"):
        return "printed with VP 12 and PP 1, which cannot be; chunked attention is not stated"
    if row["gpu_type"] not in SYSTEMS:
        return f"no system for {row['gpu_type']}"
    return ""


def model_of(row: Row) -> Model:
    if row["model"] in CATALOGUE:
        return open_model(CATALOGUE[row["model"]])
    shape = {name: _number(row, name) for name in ("layers", "hidden", "heads", "ffn", "vocab")}
    name = row["model"].replace(" ", "-").lower()
    if row["model"].startswith("MPT"):  # ALiBi, no biases, tied
        return Model(name=name, **shape, seq=2048, norm="layer", norm_bias=False, positions="none", tied=True)  # type: ignore[arg-type]
    return Model(name=name, **shape, seq=2048, norm="layer", positions="learned", bias=True, tied=True)  # type: ignore[arg-type]


def stack_of(row: Row) -> tuple[str, bool]:
    """(stack, of the Megatron family)."""
    source, year = row["source"], int(row["year"])
    if "MaxText" in source or "PaXML" in source:
        return "xla-fsdp", False
    if source.startswith("Korthikanti"):
        return "megatron-2022", True
    if source.startswith("Narayanan") or (source.startswith("Megatron-LM README") and year < 2024):
        return "megatron-2021", True
    if source.startswith("Megatron-LM"):
        return "megatron-core", True
    if "Megatron-Bridge" in source:
        return "megatron-bridge", True
    if source.startswith("NVIDIA"):
        return "nemo", True
    if source.startswith("torchtitan"):
        return "torchtitan", False
    if source.startswith("MosaicML"):
        return "llm-foundry", False
    return "llama3", False


def plan_of(row: Row, m: Model) -> tuple[dict[str, Any], list[str]]:
    """Fields of a plan, and what was assumed."""
    stack, _ = stack_of(row)
    n = {k: _number(row, k, 1) for k in ("gpus", "tp", "pp", "cp", "ep", "micro_batch")}
    given: dict[str, Any] = {**n, "seq": _number(row, "seq", 8192), "global_batch": _number(row, "global_batch")}
    said: list[str] = [] if row["seq"] else ["sequence 8192"]
    precision = row["precision"]
    given["precision"] = "fp8" if precision.startswith(("fp8", "float8")) else precision
    given |= _by_stack(row, stack, said)
    given |= _host(row, stack, m, said)
    if not row["micro_batch"]:
        given["micro_batch"] = _micro_batch(row, given, m)
        said.append(f"micro-batch {given['micro_batch']}")
    per_pipe = given["global_batch"] // (n["gpus"] // (n["tp"] * n["pp"] * n["cp"])) // given["micro_batch"]
    given["schedule"] = _schedule(row, m, n["pp"], per_pipe, said)
    if "recompute" not in given:
        given["recompute"] = row["recompute"].split(" ")[0] or _recompute(given, m, row["gpu_type"], said)
    return given, said


def _micro_batch(row: Row, given: dict[str, Any], m: Model) -> int:
    """Not stated: with a pipeline 1, else the most that fits the memory. More make products larger, and without a
    pipeline nothing is gained by fewer."""
    if given["pp"] > 1:
        return 1
    samples = given["global_batch"] // (given["gpus"] // (given["tp"] * given["cp"]))
    for size in sorted((s for s in range(1, samples + 1) if samples % s == 0), reverse=True):
        kind = given.get("recompute") or row["recompute"].split(" ")[0] or "none"
        plan = Plan.from_dict({**given, "micro_batch": size, "recompute": kind})
        if _peak_bytes(m, plan) <= MEMORY.get(row["gpu_type"], 80e9):
            return size
    return 1


def _by_stack(row: Row, stack: str, said: list[str]) -> dict[str, Any]:
    notes = row["notes"]
    if stack in ("megatron-2021", "megatron-2022"):
        sp = "sequence parallel" in row["recompute"]
        said.append("attention not fused, gradients all-reduced in fp16 at the end, no sharded optimizer")
        return {"attention": "unfused", "grad_dtype": "fp16", "sp": sp if _number(row, "tp") > 1 else None,
                "overlap_grads": False, "bucket": 10**12,
                **({} if row["recompute"] else {"recompute": "full"})}  # fmt: skip
    if stack in ("megatron-core", "megatron-bridge", "nemo"):
        if "FSDP" in notes:
            said.append("FSDP as ZeRO 3; activations that do not fit go to the host's memory, as in its recipes")
            return {"zero": 3, "grad_dtype": "bf16", "recompute": "none"}
        grads = "fp32" if stack == "megatron-core" else "bf16"  # its default, and that of the recipes of the others
        said.append(f"distributed optimizer, gradients in {grads}, tensor-parallel overlap in 4 pieces")
        return {"zero": 1, "grad_dtype": grads, "tp_chunks": 4 if _number(row, "tp") > 1 else 1}
    if stack == "xla-fsdp":
        said.append("ZeRO 3, gradients in bf16")
        return {"zero": 3, "grad_dtype": "bf16"}
    if stack == "torchtitan":
        asynchronous = "async" in notes.lower()
        said.append("FSDP as ZeRO 3 (kept gathered with a pipeline), gradients in fp32")
        return {"zero": 3, "reshard": _number(row, "pp") == 1, "cp_kind": "all_gather",
                "tp_chunks": _number(row, "tp") if asynchronous else 1}  # fmt: skip
    if stack == "llm-foundry":
        said.append("ZeRO 3, gradients in bf16")
        return {"zero": 3, "grad_dtype": "bf16"}
    said.append("ZeRO 1, gradients in fp32, all-gather context parallelism, a layer in each chunk but the ends")
    return {"zero": 1, "cp_kind": "all_gather", "stages": [0, *[1] * _number(row, "layers"), 0]}


HOST_NS = 130_000
"""Of an op of Transformer Engine's modules on an x86 host, half as much again on Grace: an assumption. In NVIDIA's
account of tuning DeepSeek-V3 on GB200 most of what led from 494 to 970 TFLOP/s a GPU was about the host."""


def _host(row: Row, stack: str, m: Model, said: list[str]) -> dict[str, Any]:
    """Time of the host where modules are issued one by one. Only small models and experts wait for it."""
    if stack not in ("megatron-core", "megatron-bridge", "nemo"):
        return {}
    grace = row["gpu_type"] in ("GB200", "GB300")
    # The recipes of Megatron-Bridge have graphs for these; without a graph for GPT-OSS on GB200, B200 and H100.
    graphs = stack == "megatron-bridge" and grace and not (row["gpu_type"] == "GB200" and m.name.startswith("gpt-oss"))
    if m.experts:
        said.append("graphs of all but experts" if graphs else "every op issued by the host")
    return {"host": HOST_NS * (1.5 if grace else 1.0), "graphs": graphs}


def _schedule(row: Row, m: Model, pp: int, micro_batches: int, said: list[str]) -> str:
    if pp == 1:
        return "1f1b"
    if stack_of(row)[0] == "llama3":  # its report: interleaved, and without a layer the first chunk has the embedding
        chunks = (m.layers + 2) // pp
        said.append(f"{chunks} chunks a rank")
        return f"interleaved:{chunks}"
    chunks = _number(row, "interleave")
    if "Interleaved 1F1B" in row["notes"]:
        chunks = 2
        said.append("2 chunks")
    if not chunks and stack_of(row)[1]:
        fitting = [v for v in (3, 2, 1) if m.layers % (pp * v) == 0] or [1]
        chunks = fitting[0]
        said.append(f"{chunks} chunks a rank (the most up to 3 that divide the layers)")
    if chunks > 1 and (micro_batches % pp or m.layers < pp * chunks):
        said.append("not interleaved: micro-batches are not a multiple of the ranks")
        chunks = 1
    return f"interleaved:{chunks}" if chunks > 1 else "1f1b"


MEMORY = {
    "H200": 141e9,
    "V100": 32e9,
    "V100-32GB": 32e9,
    "MI300X": 192e9,
    "A100-40GB": 40e9,
    "H100-96GB(HBM2e,500W)": 96e9,
    "GB200": 186e9,
    "GB300": 279e9,
    "B200": 180e9,
}


def _recompute(given: dict[str, Any], m: Model, gpu: str, said: list[str]) -> str:
    """Not stated: the least that fits the memory."""
    for kind in ("none", "full"):
        plan = Plan.from_dict({**given, "recompute": kind})
        if _peak_bytes(m, plan) <= MEMORY.get(gpu, 80e9) or kind == "full":
            said.append(f"recompute {kind} (the least that fits)")
            return kind
    return "full"


def _peak_bytes(m: Model, plan: Plan) -> int:
    """Of the fullest rank. With 8-bit products these stacks hold weights in 8 bits alone, in both layouts, which takes
    what one in 16 bits does."""
    plain = plan_memory(m, plan.replace(precision=Precision.BF16))
    return max(a.peak_bytes - a.weights + b.weights for a, b in zip(plan_memory(m, plan), plain, strict=True))


def step_seconds(row: Row, m: Model, plan: Plan) -> float:
    """The published figure as seconds of a step."""
    value, metric = float(row["value"]), row["measured_metric"]
    if row["unit"] == "s":
        return value
    if row["unit"] == "tok/s/GPU":
        return plan.batch * plan.seq / plan.gpus / value
    b, s, n, h, v = plan.batch, plan.seq, m.layers, m.hidden, m.vocab
    if "hardware" in metric:  # Narayanan et al., equation 3
        flops = 96 * b * s * n * h * h * (1 + s / (6 * h) + v / (16 * n * h))
    elif row["source"].startswith("Llama 3"):  # 6 N and attention over all pairs
        flops = b * s * (6 * 405.85e9 + 12 * n * h * s)
    else:  # Korthikanti et al.: model FLOPs
        flops = 72 * b * s * n * h * h * (1 + s / (6 * h) + v / (12 * n * h))
    rate = value * 1e12 if row["unit"] == "TFLOP/s" else value / 100 * 312e12
    return flops / (rate * plan.gpus)


def case_of(row: Row) -> Case | str:
    out = reason_out(row)
    if out:
        return out
    m = model_of(row)
    given, said = plan_of(row, m)
    plan = Plan.from_dict(given)
    stack, megatron = stack_of(row)
    stack += "-experts" if m.experts else ""
    return Case(
        model=m,
        plan=plan,
        system=SYSTEMS[row["gpu_type"]],
        gpu=GPU.get(row["gpu_type"], row["gpu_type"]),
        stack=stack,
        megatron=megatron,
        step_s=step_seconds(row, m, plan),
        assumed="; ".join(said),
        source=row["source"],
        key=key_of(row),
    )

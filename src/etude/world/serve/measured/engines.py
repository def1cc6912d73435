"""Engines as rows of measurements name them: the rules by which each builds its passes, and its software's stack."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from etude.machine.system import Device
from etude.make.generate.model import Model
from etude.world.serve.deployment import VLLM_SHARE, MemoryShare

LARGE: Final = 70 << 30
"""Bytes of memory from which vLLM takes larger passes, but not on an A100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """What an engine does where a row states nothing."""

    name: str
    stack: str
    max_num_batched_tokens: int
    """Largest number of tokens of a pass."""
    mixed: bool
    """Prompts share passes with tokens out; otherwise they go first, in passes of their own."""
    reserve: bool = False
    """A request enters when all its keys and values have room."""
    kv_as_weights: bool = False
    """Keys and values take 8 bits where weights take 8 or fewer."""
    share: MemoryShare = VLLM_SHARE
    shared_experts: bool = False
    """Each rank has requests of its own, and experts are spread over all ranks, where a row does not say."""
    benched: bool = False
    """Sequences and tokens of a pass are what its bench works out (`bench_limits`), where a row does not say."""


def engine_of(name: str, version: str, device: Device, *, at_once: bool = False) -> EngineRules:
    """The rules of an engine of this name and version: vLLM's for names that are not known, and the eager software of
    2023 where that is all that is known.

    vLLM (`EngineArgs.get_batch_defaults` of 0.9 and later): 8,192 tokens of a server on devices of 70 GiB and more
    other than the A100, else 2,048; before 0.8 prompts have passes of their own. SGLang (`ServerArgs`): prompts in
    pieces of 8,192 tokens, 16,384 from 160 GB on, before any token out. TensorRT-LLM: 8,192 tokens, prompts beside
    tokens out, a request enters when its whole answer has room, checkpoints in 8 or 4 bits have keys and values of 8,
    which take 90% of the memory that weights and passes leave, or 95% where all requests are there `at_once`, as its
    performance pages measure. These run mixtures of experts with `enable_attention_dp` from 1.0 on."""
    said = re.sub(r"[^a-z]", "", name.lower())
    if "sglang" in said:
        return EngineRules(
            name="SGLang",
            stack="sglang",
            max_num_batched_tokens=16384 if device.memory_bytes >= 160e9 else 8192,
            mixed=False,
        )
    if "tensorrt" in said or "trtllm" in said:
        built = re.match(r"0\.", version) is not None or "2023" in version or "2024" in version
        return EngineRules(
            name="TensorRT-LLM",
            stack="tensorrt-llm" if built else "tensorrt-llm-1.0",
            max_num_batched_tokens=8192,
            mixed=True,
            reserve=True,
            kv_as_weights=True,
            share=MemoryShare(fraction=0.95 if at_once else 0.9, of_rest=True),
            shared_experts=at_once and not built,
            benched=at_once and not built,
        )
    large = device.memory_bytes >= LARGE and "A100" not in device.name
    first = re.match(r"0\.([0-7])(\D|$)", version) is not None or "2023" in version or "2024" in version
    return EngineRules(
        name="vLLM",
        stack=_stack_of("vllm" in said, version, first),
        max_num_batched_tokens=8192 if large and not first else 2048,
        mixed=not first,
    )


STORED: Final = {"fp8": 1.0, "fp4": 0.5 * (0.5 + 1 / 16)}
"""Bytes that the bench takes for a weight: half of one for each element of a file, which has two weights of 4 bits in
one, and a scale for 16."""
UNTUNED: Final = (2048, 8192)
"""Its sequences and tokens for weights of which it knows no size (gpt-oss)."""


def bench_limits(
    model: Model,
    params: float,
    device: Device,
    *,
    precision: str,
    kv_bytes: float,
    ranks: int,
    pp: int,
    prompt: int,
    output: int,
) -> tuple[int, int]:
    """Most sequences and tokens of a pass as TensorRT-LLM's bench sets them where nothing is given
    (`tensorrt_llm/bench/build/tuning.py` and `benchmark/utils/general.py`): as many requests as 95% of the memory has
    room for that weights leave, by heads of keys and values as if none were compressed and each rank had one, and as
    many tokens as keep them going, or a whole prompt, since prompts are not cut."""
    heads, size = (model.heads, model.hidden // model.heads) if model.kv_rank else (model.kv, model.head)
    request = 2 * model.layers * max(heads, ranks) * size * kv_bytes * (prompt + output)
    room = device.memory_bytes * ranks * pp - params * STORED.get(precision, 2.0)
    most = min(0.95 * room / request, 4096.0) / pp
    grain = 32 if most < 256 else 128 if most < 1024 else 256
    sequences = max(64, grain * math.ceil(most / grain))
    tokens = min(most * (1 + prompt / output), 32768.0)
    grain = 256 if tokens < 4096 else 512 if tokens < 8192 else 1024
    return sequences, max(2048, grain * math.ceil(tokens / grain), prompt + sequences)


def _stack_of(named: bool, version: str, first: bool) -> str:
    if named:
        return "vllm-2024" if first else "vllm-0.12"
    return "eager-2023" if "2023" in version else "vllm"

"""Engines as rows of measurements name them: the rules by which each builds its passes, and its software's stack."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from etude.machine.system import Device
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
        )
    large = device.memory_bytes >= LARGE and "A100" not in device.name
    first = re.match(r"0\.([0-7])(\D|$)", version) is not None or "2023" in version or "2024" in version
    return EngineRules(
        name="vLLM",
        stack=_stack_of("vllm" in said, version, first),
        max_num_batched_tokens=8192 if large and not first else 2048,
        mixed=not first,
    )


def _stack_of(named: bool, version: str, first: bool) -> str:
    if named:
        return "vllm-2024" if first else "vllm-0.12"
    return "eager-2023" if "2023" in version else "vllm"

"""The collective behind the name of a communication library's kernel or an XLA instruction."""

from __future__ import annotations

import re
from typing import Final

from etude.capture.link.recording import PERMUTE, Talk

_KERNEL: Final = re.compile(
    r"(?:nccl|rccl|msccl)\w*?[Kk]ernel\w*?_(?P<what>AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|Send|Recv)"
    r"(?:_(?P<rest>\w+))?"
)
_COLLECTIVES: Final = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}
_DTYPES: Final = {
    "f16": "Half",
    "half": "Half",
    "bf16": "BFloat16",
    "f32": "Float",
    "float": "Float",
    "f64": "Double",
    "double": "Double",
    "i8": "Char",
    "u8": "Byte",
    "i32": "Int",
    "u32": "UInt32",
    "i64": "Long",
    "u64": "UInt64",
    "f8e4m3": "Float8_e4m3fn",
    "f8e5m2": "Float8_e5m2",
}
_XLA: Final = re.compile(
    r"%?(?P<what>all-reduce|all-gather|reduce-scatter|ragged-all-to-all|all-to-all|collective-permute"
    r"|collective-broadcast)(?:-(?P<half>start|done))?(?:[.\d]*)(?:\s.*)?",
    re.DOTALL,
)
_XLA_COLLECTIVES: Final = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": PERMUTE,
    "collective-broadcast": "broadcast",
}


def talk_of_kernel(name: str) -> Talk | None:
    """The collective of a kernel like `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`. None for other kernels, and for
    sends and receives, since NCCL also builds all-to-all from them."""
    found = _KERNEL.search(name)
    if found is None or found["what"] not in _COLLECTIVES:
        return None
    words = (found["rest"] or "").lower().split("_")
    dtype = next((_DTYPES[word] for word in words if word in _DTYPES), "")
    return Talk(collective=_COLLECTIVES[found["what"]], dtype=dtype)


def xla_collective(name: str) -> tuple[str, str]:
    """(collective in PyTorch's spelling, `start`, `done` or nothing) of an XLA opcode or instruction name, such as
    `all-reduce-start.3`; empty if it is none."""
    found = _XLA.fullmatch(name)
    return (_XLA_COLLECTIVES[found["what"]], found["half"] or "") if found else ("", "")


_STEP: Final = re.compile(
    r"ProfilerStep#(\d+)|(?:train(?:ing)?[ _-])?(?:step|iter(?:ation)?)[ _#:=-]*(\d+)", re.IGNORECASE
)


def step_of(name: str) -> int:
    """Number of the step that a range marks, such as `step 3`, `ProfilerStep#3`, `iteration_3`; -1: none."""
    found = _STEP.fullmatch(name.strip())
    return int(found[1] or found[2]) if found and len(found[1] or found[2]) < 18 else -1

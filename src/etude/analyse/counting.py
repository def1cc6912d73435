"""What counts as work of a device, by Etude's definition and by those of other tools, so that their numbers can be
reproduced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from etude.base.errors import UsageError

__all__ = ["Counting", "counting_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """Choices of one tool. Plain errors of a tool are not reproduced."""

    earlier: str = "cut"
    """When work launched before the recording is not counted: `always`; if several `steps` were recorded; if so, or if
    the start of the recording `cut` through it; `never`."""
    host_messages: bool = True
    """Messages that the host carries (gloo's) count as communication of a rank whose device carries none."""
    fills_compute: bool = False
    """Fills of memory are compute, not memory."""
    launches: str = ""
    """A pattern of the calls whose launches count; empty: all."""
    enqueues: str = ""
    """The same for queue lengths."""


OURS: Final = Counting()
_HTA_LAUNCHES = "cudaLaunchKernel(ExC)?|cudaMem(cpy|set)Async|runFunction - job_prep_and_submit_for_execution"
_HTA_ROCM = "cuLaunchKernel|hip(ExtModule)?LaunchKernel|hipMem(cpy|set)Async|hipMemcpyWithStream"
TOOLS: Final = {
    "etude": OURS,
    "hta": Counting(
        earlier="steps",
        host_messages=False,
        launches=f"^({_HTA_LAUNCHES})$",
        enqueues=f"^({_HTA_LAUNCHES}|{_HTA_ROCM})$",
    ),
    "tracelens": Counting(earlier="always", host_messages=False, fills_compute=True),
}


def counting_of(tool: str) -> Counting:
    """How a tool counts, by its name."""
    if tool not in TOOLS:
        raise UsageError(f"unknown tool `{tool}`", hint=f"known: {', '.join(TOOLS)}")
    return TOOLS[tool]

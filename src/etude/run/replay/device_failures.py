"""A device that reports an error which ends its context: no call of this process can use it any more.

Needs only the standard library and PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from etude.base.errors import EtudeError
from etude.run.replay.needs import OutOfMemoryError
from etude.run.replay.operands import RULES
from etude.run.replay.program import COMPILED_SPACE, TRITON_SPACE, Program, StorageOrigin

_CODE: Final = (COMPILED_SPACE, TRITON_SPACE)


class DeviceFailedError(EtudeError):
    """The device can no longer be used by this process. `without`: the operators to leave out in another process, and
    why; empty if it is not known which call failed."""

    def __init__(self, without: dict[str, str], *, where: str = "", why: str = "") -> None:
        self.without = without
        told = "; ".join(f"{name}: {each}" for name, each in without.items()) or why
        super().__init__(f"the device reports an error: {told}", where=where, hint="replay on the CPU: --device cpu")


def to_leave_out(program: Program, problem: DeviceFailedError) -> dict[str, str]:
    """The operators that another process is to play as stand-ins, and why: the one that failed. If it is not known,
    those whose values decide which memory they use, and compiled code."""
    if problem.without:
        return problem.without
    suspects = (name for name in program.ops if name.partition(".")[0] in RULES or name.startswith(_CODE))
    return dict.fromkeys(suspects, problem.problem) or dict.fromkeys(program.ops, problem.problem)


def is_broken(device: Any) -> bool:
    """Whether every call of this process on the device fails from now on. An error of one call, for example for a lack
    of memory or because of its arguments, does not do that."""
    if device.type != "cuda":
        return False
    import torch

    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).add_(1).item()
    except torch.OutOfMemoryError:
        return False
    except RuntimeError:
        return True
    return False


@contextmanager
def reported(device: Any, program: Program) -> Iterator[None]:
    """Reports a lack of memory, and a device that cannot be used any more, as errors of their own."""
    import torch

    where = f"rank {program.about['rank']}"
    try:
        yield
    except torch.OutOfMemoryError as problem:
        need = int(program.storages.size_bytes[program.storages.origin == StorageOrigin.OUTSIDE].sum())
        raise OutOfMemoryError(
            f"out of memory on {device}: {str(problem).splitlines()[0][:160]}",
            where=where,
            hint=f"inputs and states alone need {need / 1e9:.1f} GB; replay fewer ranks on a device, or on the CPU",
        ) from None
    except Exception as problem:
        if isinstance(problem, EtudeError) or not is_broken(device):
            raise
        raise DeviceFailedError({}, where=where, why=str(problem).strip()[:200]) from None

"""Checks how much memory a program needs, and whether it is available, before any work. Does not need PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from etude.base.errors import EtudeError
from etude.run.replay.buffers import Buffers, own_rows
from etude.run.replay.program import Program, StorageOrigin
from etude.run.replay.sizes import ELEMENT
from etude.run.replay.stand_in_sizes import extents

_CGROUP: Final = Path("/sys/fs/cgroup")


class OutOfMemoryError(EtudeError):
    """Less memory is available than a program needs."""


def needed_bytes(program: Program, *, compute: bool = True, communication: bool = True) -> int:
    """A lower bound of the memory that a program needs: inputs and states, buffers of calls, memory of stand-ins.
    Results of operators are not included."""
    found = 0
    if compute:
        outside = program.storages.origin == StorageOrigin.OUTSIDE
        found += int(program.storages.size_bytes[outside].sum(dtype=np.int64))
        found += sum(ELEMENT[dtype] * (e.source + e.target) for dtype, e in extents(program).items())
    if communication:
        rows = own_rows(program) if compute else None
        found += Buffers(program, lambda row: program.dtypes[int(program.comms.dtype[row])], rows).size_bytes
    return found


def free_bytes() -> int | None:
    """Free memory of this machine, or of the container if that is less; None if unknown."""
    found: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):
        most = int((_CGROUP / "memory.max").read_text())
        found.append(max(most - int((_CGROUP / "memory.current").read_text()), 0))
    return min(found, default=None)


def check_memory(
    programs: Sequence[Program], *, compute: bool = True, communication: bool = True, free: int | None = None
) -> None:
    """Raises OutOfMemoryError if the processes of these programs, all on this machine, need more memory than is
    free."""
    here = free_bytes() if free is None else free
    needs = [needed_bytes(program, compute=compute, communication=communication) for program in programs]
    if here is None or sum(needs) <= here:
        return
    most = max(needs)
    fit = int(here // most)
    way_out = f"--ranks with {fit} of them" if fit else "use a machine with more memory, or a smaller job"
    if not compute:
        way_out += "; --sizes scaled makes buffers of fewer ranks smaller"
    who = f"{len(programs)} processes need" if len(programs) > 1 else "1 process needs"
    raise OutOfMemoryError(
        f"{who} at least {sum(needs) / 1e9:.1f} GB of memory, {most / 1e9:.1f} GB the largest, but "
        f"{here / 1e9:.1f} GB are free",
        where="replay",
        hint=way_out,
    )

"""A job from a program that never ran: a few ranks of it run without numbers, the others follow from them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.capture.dry.enough_ranks import RanksRun, enough_ranks
from etude.capture.dry.launch import DryRanks, DrySettings
from etude.capture.dry.memory import DryMemory, dry_memory
from etude.capture.dry.mesh import dry_job
from etude.capture.dry.recorded_rank import DryRank
from etude.machine.open import open_device
from etude.machine.system import Device
from etude.model.job import Job


@dataclass(frozen=True, slots=True)
class DryProgram:
    """What a program would do."""

    job: Job
    memory: dict[int, DryMemory]
    """Of each rank that was run."""
    assumptions: tuple[str, ...]

    @property
    def fullest(self) -> DryMemory:
        return max(self.memory.values(), key=lambda found: found.peak_allocated_bytes)


def dry_program(
    command: Sequence[str],
    *,
    name: str,
    world: int = 0,
    ranks: Sequence[int] = (),
    device: str | Device | None = None,
    settings: DrySettings | None = None,
) -> DryProgram:
    """Runs what is needed of a program and makes the job of all its ranks; with `ranks`, of these alone. On a `device`
    that is a CPU the program finds no accelerator, as without one."""
    told = settings or DrySettings()
    found = open_device(device) if isinstance(device, str) else device
    about = None
    if found is None or found.cpu:
        device = None
    else:
        about = {"name": found.name, "memory_bytes": found.memory_bytes, "units": found.cores}
        device = device if isinstance(device, str) else found.name
    told = replace(told, world=world or told.world, device=about)
    with tempfile.TemporaryDirectory(prefix="etude-dry-") as made, DryRanks(command, Path(made), told) as process:
        done = enough_ranks(process, Path(made), told, list(ranks))
    _check_answers(done.read, told)
    job = dry_job(name, done.mesh, done.traces, ranks or None)
    memory = {rank: dry_memory(one, device) for rank, one in done.read.items()}
    return DryProgram(_told(job, done.read, memory, device), memory, (*_assumptions(done), *_of_memory(memory)))


def _check_answers(read: dict[int, DryRank], told: DrySettings) -> None:
    """Refuses answers to what no rank asked."""
    unread = sorted(set(told.answers) - {name for one in read.values() for name in one.answered})
    if unread:
        hint = "a name is the one that the line has for the tensor that it asks about"
        raise UsageError(f"no rank asked for {', '.join(unread)}", where="--answer", hint=hint)


def _told(job: Job, read: dict[int, DryRank], memory: dict[int, DryMemory], device: str | None) -> Job:
    fullest = max(memory.values(), key=lambda found: found.peak_allocated_bytes)
    one = next(iter(read.values()))
    told = {
        "tool": "etude collect --dry",
        "dry": "true",
        "torch": one.torch,
        "device": device or "cpu",
        "memory": json.dumps(fullest.to_dict()),
    }
    return job.replace(provenance=told)


def _assumptions(done: RanksRun) -> tuple[str, ...]:
    found, read = [], done.read
    if len(read) < done.mesh.world:
        shown = ", ".join(map(str, sorted(read)))
        briefly = f", and a step of {', '.join(map(str, done.compared))} to compare" if done.compared else ""
        said = f"ranks {shown} of {done.mesh.world:,} were run{briefly}"
        found.append(f"{said}; the others are taken to do what one of these does")
    if done.steps:
        found.append(done.steps)
    unknown = {where: count for one in read.values() for where, count in one.unknown.items()}
    if unknown:
        found.append(f"numbers that were only passed on are unknown: {', '.join(sorted(unknown))}")
    answered = {name for one in read.values() for name in one.answered}
    if answered:
        found.append(f"answers that were used: {', '.join(sorted(answered))}")
    found += sorted({note for one in read.values() for note in one.notes})
    return tuple(found)


def _of_memory(memory: dict[int, DryMemory]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(said for found in memory.values() for said in found.assumptions))


def dry_record(found: DryProgram) -> dict[str, Any]:
    """What `--json` prints."""
    from etude.model.totals import totals

    return dict(totals(found.job)) | {
        "dry": True,
        "memory": found.fullest.to_dict(),
        "ranks_run": sorted(found.memory),
        "assumptions": list(found.assumptions),
    }

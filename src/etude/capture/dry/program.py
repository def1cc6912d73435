"""A job from a program that never ran: a few ranks of it run without numbers, the others follow from them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.capture.dry.launch import DryRanks, DrySettings, refuse_problem
from etude.capture.dry.memory import DryMemory, dry_memory
from etude.capture.dry.mesh import DryMesh, check_ended, dry_job, first_ranks, mesh_of, same
from etude.capture.dry.recorded_rank import DryRank, DryTrace, dry_trace, read_dry_rank
from etude.machine.open import open_device
from etude.machine.system import Device
from etude.model.job import Job

ROUNDS = 6
"""How often ranks are added that others need."""
MOST_RANKS = 64
"""That are run at the same time."""


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
        read, mesh, traces = _enough_ranks(process, Path(made), told, list(ranks))
    _check_answers(read, told)
    job = dry_job(name, mesh, traces, ranks or None)
    memory = {rank: dry_memory(one, device) for rank, one in read.items()}
    return DryProgram(_told(job, read, memory, device), memory, _assumptions(read, mesh, device))


def _enough_ranks(
    process: DryRanks, folder: Path, told: DrySettings, named: list[int]
) -> tuple[dict[int, DryRank], DryMesh, dict[int, DryTrace]]:
    """(What ranks wrote, the mesh, their traces.) Begins with the first rank, then runs those that tell along which
    dimensions ranks differ, then those that stand for others."""
    read: dict[int, DryRank] = {}
    wanted = set(named) or {0}
    for _ in range(ROUNDS):
        world = process.run(sorted(wanted))
        if max(wanted) >= world:
            raise UsageError(f"rank {max(wanted)} of a world of {world}", where="--ranks", hint="ranks begin with 0")
        read |= {rank: read_dry_rank(folder / f"rank.{rank}.json.gz") for rank in wanted}
        more = {problem["rank"] for one in read.values() if (problem := one.problem) and problem["kind"] == "other"}
        if more:  # what they need is sent while both run
            wanted = more | {rank for rank, one in read.items() if one.problem is not None}
            continue
        _refuse(read, told)
        check_ended(read)
        made = read[min(read)].group_members
        first = _first_step(read, told)
        traces = {rank: dry_trace(one, first) for rank, one in read.items()}
        mesh = mesh_of(made, world, traces)
        wanted = set() if named else (set(first_ranks(made, world)) | set(mesh.needed())) - set(read)
        if len(wanted) > MOST_RANKS:
            raise UsageError(
                f"{len(wanted):,} ranks do different things, and at most {MOST_RANKS} are run",
                hint="name the ranks that you want with --ranks",
            )
        if not wanted:
            _check_standing(mesh, traces, named)
            return dict(sorted(read.items())), mesh, traces
    raise UsageError("ranks need one another in a chain that does not end", hint="name the ranks with --ranks")


def _refuse(read: dict[int, DryRank], told: DrySettings) -> None:
    for rank, one in read.items():
        if one.problem is not None:
            refuse_problem(rank, one.problem, on_device=told.device is not None)
        if not any(one.columns.works):
            hint = "does it train on a GPU alone? with --device h100 it finds one" if not told.device else ""
            raise UsageError(f"rank {rank}: the program ended and no operator of PyTorch ran", hint=hint)


def _check_answers(read: dict[int, DryRank], told: DrySettings) -> None:
    """Refuses answers to what no rank asked."""
    unread = sorted(set(told.answers) - {name for one in read.values() for name in one.answered})
    if unread:
        hint = "a name is the one that the line has for the tensor that it asks about"
        raise UsageError(f"no rank asked for {', '.join(unread)}", where="--answer", hint=hint)


def _first_step(read: dict[int, DryRank], told: DrySettings) -> int:
    """The first step of the job: all of the program where it has no optimizer."""
    steps = min(one.steps for one in read.values())
    return told.warmup if told.steps and steps > told.warmup else 0


def _check_standing(mesh: DryMesh, traces: dict[int, DryTrace], named: list[int]) -> None:
    """Ranks that were run besides those that stand for others must do what these do."""
    for rank, trace in traces.items() if not named else ():
        other = mesh.stands_for(rank)
        if other in traces and not same(trace, traces[other]):
            raise UsageError(
                f"rank {rank} does something else than rank {other}, and no group of the program tells them apart",
                hint="name the ranks that you want with --ranks: they are not folded",
            )


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


def _assumptions(read: dict[int, DryRank], mesh: DryMesh, device: str | None) -> tuple[str, ...]:
    found: list[str] = []
    if len(read) < mesh.world:
        shown = ", ".join(map(str, sorted(read)))
        found.append(f"ranks {shown} of {mesh.world:,} were run; the others are taken to do what one of these does")
    if not any(one.steps for one in read.values()):
        found.append("no optimizer made a step: the program is taken from its beginning to its end")
    unknown = {where: count for one in read.values() for where, count in one.unknown.items()}
    if unknown:
        found.append(f"numbers that were only passed on are unknown: {', '.join(sorted(unknown))}")
    answered = {name for one in read.values() for name in one.answered}
    if answered:
        found.append(f"answers that were used: {', '.join(sorted(answered))}")
    found += sorted({note for one in read.values() for note in one.notes})
    return tuple(found)


def dry_record(found: DryProgram) -> dict[str, Any]:
    """What `--json` prints."""
    from etude.model.totals import totals

    return dict(totals(found.job)) | {
        "dry": True,
        "memory": found.fullest.to_dict(),
        "ranks_run": sorted(found.memory),
        "assumptions": list(found.assumptions),
    }

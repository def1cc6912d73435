"""`etude replay communication JOB`: the communication of a job, without the rest."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from etude.base.errors import AnswerNo, UsageError
from etude.base.figures import argument, figure, part, text
from etude.base.outputs import OutputPlace, Printed, Written
from etude.base.talk import progress, say
from etude.steps.asked.jobs import JOB_HELP, open_job
from etude.steps.asked.ranks import RANKS_HELP, ranks_of

if TYPE_CHECKING:
    from etude.model.run import Run
    from etude.run.replay.communication import PlayOptions


Sizes = StrEnum("Sizes", {"KEPT": "kept", "SCALED": "scaled"})
Speed = StrEnum("Speed", {"FLAT_OUT": "flat-out", "RECORDED": "recorded"})
PLAYED, MACHINE, MEASURED = "What is played", "Machine", "Measurement"


@dataclass(frozen=True, kw_only=True)
class RepeatedPlay:
    """Parameters of what plays a job a number of times."""

    speed: Speed = figure(
        "choice", "as fast as possible, or no call before its recorded time", Speed.FLAT_OUT, panel=PLAYED
    )
    iterations: int = figure("count", "how often the recorded steps are replayed", 10, panel=MEASURED)
    warmup: int = figure("count", "warm-up iterations that are not measured", 3, zero=True, panel=MEASURED)
    backend: str = figure("text", "backend of communication: `gloo` or `nccl`", "gloo", panel=MACHINE, like="nccl")


@dataclass(frozen=True, kw_only=True)
class ReplayCommunication(RepeatedPlay, Written):
    """Replay the communication of a job, between processes of this machine or under torchrun; every call is checked

    etude replay communication job/ --ranks 0-3
    torchrun --nproc-per-node 8 -m etude replay communication job/ --backend nccl
    """

    path: str = argument("path", JOB_HELP, like="job/")
    out: str | None = figure("out", "the folder for the replayed run; `etude compare` takes it", None, names=("-o",))
    ranks: str = text(RANKS_HELP, panel=PLAYED, like="0-3,7")
    processes: int = figure("count", "number of processes to start; 0: one per rank", 0, panel=PLAYED)
    sizes: Sizes = figure(
        "choice",
        "sizes if groups lose ranks: whole buffers as recorded, or the share of each member",
        Sizes.KEPT,
        panel=PLAYED,
    )
    verify: bool = figure("flag", "check every call against the trace", True, panel=PLAYED)
    timeout: float = figure("number", "timeout of a call in seconds", 120.0, least=1, panel=PLAYED)
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class CommunicationInputs:
    path: Path
    ranks: str
    processes: int
    sizes: Literal["kept", "scaled"]
    options: "PlayOptions"
    place: OutputPlace | None


@dataclass(frozen=True, slots=True)
class PlayedCommunication:
    """The figures of a replay; None in processes that another speaks for."""

    figures: dict[str, Any] | None
    processes: int = 0
    world_size: int = 0


MOST = 64
"""Processes that are started on one machine without being asked for by number."""


def communication_inputs(asked: ReplayCommunication) -> CommunicationInputs:
    from etude.run.replay.communication import PlayOptions
    from etude.steps.asked.converting import check_place

    options = PlayOptions(
        backend=asked.backend,
        iterations=asked.iterations,
        warmup=asked.warmup,
        host=asked.speed == Speed.RECORDED,
        verify=asked.verify,
        timeout_s=asked.timeout,
    )
    place = OutputPlace.of(asked)
    if place is not None:
        check_place(place.path, place.force)
    sizes: Literal["kept", "scaled"] = "kept" if asked.sizes == Sizes.KEPT else "scaled"
    return CommunicationInputs(Path(asked.path), asked.ranks, asked.processes, sizes, options, place)


def communication_played(given: CommunicationInputs) -> PlayedCommunication:
    """Plans, rehearses and plays."""
    from etude.run.replay.communication import (
        communication_figures,
        communication_run,
        plan_communication,
        play,
        rehearse,
        shrink,
    )

    job = open_job(given.path)
    chosen = ranks_of(given.ranks, job) or job.ranks.tolist()
    check_processes(len(chosen), given.processes)
    planned = plan_communication(job, chosen)
    programs = [shrink(program, chosen, given.sizes) for program in planned]
    rehearse(programs)
    if not any(len(program) for program in programs):
        raise UsageError("there is no communication among these ranks", where="--ranks")
    with progress("replaying") as advance:
        results = play(programs, given.options, tick=lambda: advance(0))
    if os.environ.get("RANK", "0") != "0":  # under torchrun one process speaks for all
        return PlayedCommunication(None)
    figures = communication_figures(programs, results, planned)
    if given.place is not None:
        _write(communication_run(job, programs, results), given.place)
    return PlayedCommunication(figures, len(results), job.world_size)


def check_processes(ranks: int, processes: int) -> None:
    """More ranks than processes, or fewer, before any work."""
    if processes and processes != ranks:
        hint = f"--ranks 0-{processes - 1} replays {processes} of them, in groups without the others"
        raise UsageError(f"{ranks} ranks but {processes} processes", where="--processes", hint=hint)
    if not processes and ranks > MOST and "TORCHELASTIC_RUN_ID" not in os.environ:
        hint = "--ranks 0-3 replays four of them, in groups without the others; --processes N starts N processes"
        raise UsageError(f"{ranks} processes on this machine", where="--ranks", hint=hint)


def collectives_played(found: PlayedCommunication) -> Any:
    return found.figures and found.figures["collectives"]


def communication_record(found: PlayedCommunication) -> dict[str, Any] | None:
    for line in communication_lines(found):
        say(line)
    return found.figures


def communication_lines(found: PlayedCommunication) -> Iterator[str]:
    """What is said of a replay below its collectives."""
    from etude.base.units import format_time

    if (figures := found.figures) is None:
        return
    for what, count in figures["expressed"].items():
        yield f"note: {what} ({count} calls)"
    if figures["groups"]:
        alone = sum(entry["count"] for entry in figures["stand_ins"])
        here = f"{found.processes} of {found.world_size} ranks have a process"
        yield f"note: {here}; sizes are {figures['sizes']}; {alone} calls without other members are left out"
    checked = figures["verified"]
    if checked:
        seen = f"{checked['by_flight_recorder']} seen by the Flight Recorder, {checked['at_call']} at the call"
        yield f"{checked['calls']} calls per iteration compared with the trace: {seen}"
    step = figures["step_ns"]
    recorded = f", recorded step {format_time(step['recorded'])}" if step["recorded"] else ""
    played = f"{found.processes} processes, {len(step['iterations'])} iterations"
    yield f"{played}, median {format_time(step['replayed'])}{recorded}"


def communication_code(found: PlayedCommunication) -> int:
    """A call that was not as in the trace is an answer of no."""
    checked = found.figures["verified"] if found.figures is not None else None
    if checked and checked["differences"]:
        raise AnswerNo("calls differ from the trace: " + "; ".join(checked["differences"][:3]))
    return 0


def _write(run: "Run", place: OutputPlace) -> None:
    from etude.base.files import writing
    from etude.store import columns

    with writing(place.path, force=place.force) as folder:
        folder.mkdir()
        columns.write_job(run.job, folder)
    say(f"wrote {place.path}")

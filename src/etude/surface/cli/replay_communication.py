"""`etude replay communication JOB`: the communication of a job, without the rest."""

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from etude.base.errors import AnswerNo, UsageError
from etude.surface.cli.app import RUN, app
from etude.surface.cli.inputs import JobPath, open_job
from etude.surface.cli.job_out import Force
from etude.surface.cli.output import AsJson, emit, progress, say
from etude.surface.cli.ranks import Ranks, ranks_of

if TYPE_CHECKING:
    from etude.model.job import Job
    from etude.model.run import Run


Sizes = StrEnum("Sizes", {"KEPT": "kept", "SCALED": "scaled"})
Speed = StrEnum("Speed", {"FLAT_OUT": "flat-out", "RECORDED": "recorded"})


@app.command("replay communication", rich_help_panel=RUN)
def replay_communication(
    path: JobPath,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder for the replayed run; `etude compare` takes it.")
    ] = None,
    ranks: Ranks = "",
    processes: Annotated[int, typer.Option(min=0, help="Number of processes to start; 0: one per rank.")] = 0,
    sizes: Annotated[
        Sizes, typer.Option(help="Sizes if groups lose ranks: whole buffers as recorded, or the share of each member.")
    ] = Sizes.KEPT,
    backend: Annotated[str, typer.Option(help="Backend of communication: `gloo` or `nccl`.")] = "gloo",
    speed: Annotated[
        Speed, typer.Option(help="As fast as possible, or no call before its recorded time.")
    ] = Speed.FLAT_OUT,
    iterations: Annotated[int, typer.Option(min=1, help="How often the recorded steps are replayed.")] = 10,
    warmup: Annotated[int, typer.Option(min=0, help="Warm-up iterations that are not measured.")] = 3,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Check every call against the trace.")] = True,
    timeout: Annotated[float, typer.Option(min=1, help="Timeout of a call in seconds.")] = 120.0,
    force: Force = False,
    json: AsJson = False,
) -> None:
    """Replay the communication of a job, between processes of this machine or under torchrun; every call is checked

    etude replay communication job/ --ranks 0-3
    torchrun --nproc-per-node 8 -m etude replay communication job/ --backend nccl
    """
    job = open_job(path)
    asked = CommunicationOptions(
        ranks=ranks_of(ranks, job), processes=processes, sizes=sizes.value, backend=backend,
        host=speed == Speed.RECORDED, iterations=iterations, warmup=warmup, verify=verify, timeout_s=timeout,
        out=out, force=force, json=json,
    )  # fmt: skip
    play_communication(job, asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationOptions:
    """The flags of the command."""

    ranks: list[int] | None = None
    processes: int = 0
    sizes: Literal["kept", "scaled"] = "kept"
    backend: str = "gloo"
    host: bool = False
    iterations: int = 10
    warmup: int = 1
    verify: bool = True
    timeout_s: float = 120.0
    out: Path | None = None
    force: bool = False
    json: bool = False


MOST = 64
"""Processes that are started on one machine without being asked for by number."""


def play_communication(job: "Job", options: CommunicationOptions) -> None:
    """Plans, rehearses, plays, says what came of it. A call that was not as in the trace is an answer of no."""
    from etude.run.replay.communication import PlayOptions, plan_communication, play, rehearse, shrink

    chosen = options.ranks if options.ranks is not None else job.ranks.tolist()
    check_processes(len(chosen), job.world_size, options.processes)
    check_out(options.out, options.force)
    planned = plan_communication(job, chosen)
    programs = [shrink(program, chosen, options.sizes) for program in planned]
    rehearse(programs)
    if not any(len(program) for program in programs):
        raise UsageError("there is no communication among these ranks", where="--ranks")
    asked = PlayOptions(
        backend=options.backend, iterations=options.iterations, warmup=options.warmup, host=options.host,
        verify=options.verify, timeout_s=options.timeout_s,
    )  # fmt: skip
    with progress("replaying") as advance:
        results = play(programs, asked, tick=lambda: advance(0))
    if os.environ.get("RANK", "0") != "0":  # under torchrun one process speaks for all
        return
    _tell(job, options, planned, programs, results)


def check_processes(ranks: int, world: int, processes: int) -> None:
    """More ranks than processes, or fewer, before any work."""
    if processes and processes != ranks:
        hint = f"--ranks 0-{processes - 1} replays {processes} of them, in groups without the others"
        raise UsageError(f"{ranks} ranks but {processes} processes", where="--processes", hint=hint)
    if not processes and ranks > MOST and "TORCHELASTIC_RUN_ID" not in os.environ:
        hint = "--ranks 0-3 replays four of them, in groups without the others; --processes N starts N processes"
        raise UsageError(f"{ranks} processes on this machine", where="--ranks", hint=hint)


def check_out(out: Path | None, force: bool) -> None:
    """What cannot be written is refused before anything runs."""
    if out is not None and out.exists() and not force and (out.is_file() or any(out.iterdir())):
        raise UsageError("exists already", where=str(out), hint="give another name, or --force to replace it")
    if out is not None:
        from etude.surface.api.converting import check_place

        check_place(out, force)


def _tell(job: "Job", options: CommunicationOptions, planned: Any, programs: Any, results: Any) -> None:
    from etude.base.units import format_time
    from etude.run.replay.communication import communication_figures, communication_run

    figures = communication_figures(programs, results, planned)
    if options.out is not None:
        _write(communication_run(job, programs, results), options.out, options.force)
    if options.json:
        emit(figures, json=True)
    else:
        emit(figures["collectives"])
    for text, count in figures["expressed"].items():
        say(f"note: {text} ({count} calls)")
    if figures["groups"]:
        alone = sum(entry["count"] for entry in figures["stand_ins"])
        here = f"{len(results)} of {job.world_size} ranks have a process"
        say(f"note: {here}; sizes are {figures['sizes']}; {alone} calls without other members are left out")
    checked = figures["verified"]
    if checked:
        seen = f"{checked['by_flight_recorder']} seen by the Flight Recorder, {checked['at_call']} at the call"
        say(f"{checked['calls']} calls per iteration compared with the trace: {seen}")
    step = figures["step_ns"]
    recorded = f", recorded step {format_time(step['recorded'])}" if step["recorded"] else ""
    played = f"{len(results)} processes, {len(step['iterations'])} iterations"
    say(f"{played}, median {format_time(step['replayed'])}{recorded}")
    if checked and checked["differences"]:
        raise AnswerNo("calls differ from the trace: " + "; ".join(checked["differences"][:3]))


def _write(run: "Run", out: Path, force: bool) -> None:
    from etude.base.files import writing
    from etude.store import columns

    with writing(out, force=force) as place:
        place.mkdir()
        columns.write_job(run.job, place)
    say(f"wrote {out}")

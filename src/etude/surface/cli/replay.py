from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.surface.cli.app import RUN, app
from etude.surface.cli.inputs import JobPath, open_job
from etude.surface.cli.job_out import Force
from etude.surface.cli.output import AsJson, emit, progress, say
from etude.surface.cli.ranks import Ranks, ranks_of
from etude.surface.cli.replay_communication import CommunicationOptions, Sizes, Speed, play_communication

if TYPE_CHECKING:
    from etude.run.replay import Program

Only = StrEnum("Only", {"COMPUTE": "compute", "COMMUNICATION": "communication"})
Host = StrEnum("Host", {"FAST": "fast", "RECORDED": "recorded"})


@app.command(
    rich_help_panel=RUN, epilog="etude replay job/ -o replayed/ --iterations 20 && etude compare job/ replayed/"
)
def replay(
    path: JobPath,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder for a trace of the replay; `etude compare` takes it.")
    ] = None,
    ranks: Ranks = "",
    only: Annotated[
        Only | None,
        typer.Option(help="`compute` skips communication; `etude replay communication` replays it alone."),
    ] = None,
    iterations: Annotated[int, typer.Option(min=1, help="How often the recorded steps are replayed.")] = 10,
    warmup: Annotated[int, typer.Option(min=0, help="Warm-up iterations that are not measured.")] = 3,
    speed: Annotated[
        Speed, typer.Option(help="As fast as possible, or no call before its recorded time.")
    ] = Speed.FLAT_OUT,
    host: Annotated[
        Host | None,
        typer.Option(
            help="Make calls immediately one after another, or at the times of the recorded host without the "
            "profiler's overhead; by default "
            "`recorded` for a recording of a GPU on a GPU, of a CPU on a CPU."
        ),
    ] = None,
    cuda_graph: Annotated[
        bool, typer.Option("--cuda-graph", help="Launch all steps of an iteration as one CUDA graph.")
    ] = False,
    device: Annotated[str, typer.Option(help="`cpu`, `cuda`, `cuda:1`; by default CUDA where available.")] = "",
    backend: Annotated[str, typer.Option(help="Backend of communication: `gloo` or `nccl`.")] = "gloo",
    threads: Annotated[int, typer.Option(min=0, help="Threads per operator on a CPU; 0: as recorded.")] = 0,
    unprofiled: Annotated[
        str, typer.Option(help="Time of a step without the profiler, such as 41ms; `etude collect` measures it.")
    ] = "",
    trust_code: Annotated[
        bool,
        typer.Option("--trust-code", help="Run compiled code of a recording that was not made on this machine."),
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option(help="Only write program files into this folder; `python -m etude.replay` replays them."),
    ] = None,
    force: Force = False,
    json: AsJson = False,
    sizes: Annotated[Sizes, typer.Option(hidden=True)] = Sizes.KEPT,
    processes: Annotated[int, typer.Option(min=0, hidden=True)] = 0,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", hidden=True)] = True,
    timeout: Annotated[float, typer.Option(min=1, hidden=True)] = 120.0,
) -> None:
    """Run a job again on this machine: its operators, or synthetic work of the same size; and compare times"""
    from etude.base.units import parse_time
    from etude.run.replay import coverage, of_ranks
    from etude.run.replay import plan as plan_job

    known_ns = parse_time(unprofiled) if unprofiled else None
    job = open_job(path)
    if only == Only.COMMUNICATION:
        asked = CommunicationOptions(
            ranks=ranks_of(ranks, job), processes=processes, sizes=sizes.value, backend=backend,
            host=speed == Speed.RECORDED, iterations=iterations, warmup=warmup, verify=verify, timeout_s=timeout,
            out=out, force=force, json=json,
        )  # fmt: skip
        play_communication(job, asked)
        return
    with progress("planning"):
        programs = plan_job(job, ranks_of(ranks, job) if ranks else None, recording=path, trust_code=trust_code)
    if any(program.about.get("code_left_out") for program in programs):
        say("compiled code of this recording was not made on this machine and is not run; --trust-code runs it")
    if known_ns is not None:
        for program in programs:
            program.about["unprofiled_step_ns"] = known_ns
    if plan is not None or not _has_torch():
        found = of_ranks([coverage(program) for program in programs])
        if plan is not None:
            _write(programs, plan, force)
        _tell_plan(programs, found, path, json)
        return
    result = _play(programs, out, force, backend, {
        "iterations": iterations, "warmup": warmup, "only": only.value if only else "", "speed": speed.value,
        "device": device, "threads": threads, "host": host.value if host else "", "cuda_graph": cuda_graph,
        "trust_code": trust_code,
    })  # fmt: skip
    _tell(result, json)
    if out is not None:
        say(f"a trace of one iteration is in {out}: etude compare {path} {out}")


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


def _write(programs: "list[Program]", folder: Path, force: bool) -> None:
    from etude.base.files import writing

    with writing(folder, force=force) as inside:
        inside.mkdir(parents=True, exist_ok=True)
        for program in programs:
            program.save(inside / f"rank{program.about['rank']}.program")


def _play(
    programs: "list[Program]", out: Path | None, force: bool, backend: str, asked: dict[str, Any]
) -> dict[str, Any]:
    from contextlib import nullcontext

    from etude.base.files import writing
    from etude.run.replay import PlayerOptions, of_ranks, play, play_together, summary

    options = PlayerOptions(**asked)
    with writing(out, force=force) if out is not None else nullcontext() as folder:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        if len(programs) > 1 and not options.only:
            with progress(f"replaying {len(programs)} ranks"):
                results = play_together(programs, options, out=folder, backend=backend)
        else:
            results = []
            for program in programs:
                with progress(f"rank {program.about['rank']}", options.iterations) as advance:
                    results.append(play(program, options, out=folder, done=lambda number: advance(1)))
        result = summary(results, of_ranks([one["coverage"] for one in results]))
        if folder is not None:
            import json

            (folder / "replay.json").write_text(json.dumps(result))
    return result


def _tell_plan(programs: "list[Program]", found: dict[str, Any], path: Path, as_json: bool) -> None:
    steps = sum(len(program) for program in programs)
    coverage = {"time": found["time"], "count": found["count"]}
    if as_json:
        emit({"coverage": coverage, "stand_ins": found["stand_ins"], "ranks": len(programs), "steps": steps}, json=True)
        return
    emit({"ranks": len(programs), "steps of programs": steps} | _covered(found))
    say(f"nothing was replayed; with PyTorch installed: etude replay {path} -o replayed/")


def _covered(found: dict[str, Any]) -> dict[str, Any]:
    time = found["time"]
    rows = {"covered, by time": "-" if time is None else f"{100 * time:.1f}%"}
    rows["covered, by count"] = f"{100 * found['count']:.1f}%"
    if found["stand_ins"]:
        shown = ", ".join(f"{entry['name'][:40]} ({entry['count']})" for entry in found["stand_ins"][:4])
        rows["stand-ins"] = shown + (" ..." if len(found["stand_ins"]) > 4 else "")
    return rows


def _tell(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit(result, json=True)
        return
    step, rows = result["step_ns"], {}
    for what in ("recorded", "unprofiled", "replayed"):
        if step[what]:
            rows[f"step, {what}"] = f"{step[what] / 1e6:.3f} ms"
    if step["unprofiled"]:
        rows["replayed compared with unprofiled"] = f"{100 * (step['replayed'] / step['unprofiled'] - 1):+.1f}%"
    rows |= _covered(result["coverage"] | {"stand_ins": result["stand_ins"]})
    rows |= {"iterations": result["iterations"], "ready after": f"{result['ready_s']:.1f} s",
             "peak memory of the process": f"{result['peak_rss_bytes'] / 1e6:.0f} MB"}  # fmt: skip
    emit(rows)
    for failure in result["failures"][:5]:
        say(f"calls that failed:  {failure}")
    for note in result["notes"]:
        say(note)

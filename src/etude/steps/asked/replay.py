"""What is asked of `etude replay`, and how its result reads."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import argument, figure, part, switch, text
from etude.base.outputs import OutputPlace, Printed
from etude.base.parameters import only_one
from etude.base.talk import progress, say
from etude.steps.asked.jobs import JOB_HELP, open_job
from etude.steps.asked.ranks import RANKS_HELP, ranks_of
from etude.steps.asked.replay_communication import MACHINE, PLAYED, RepeatedPlay

if TYPE_CHECKING:
    from etude.run.replay import PlayerOptions, Program

Only = StrEnum("Only", {"COMPUTE": "compute"})
Host = StrEnum("Host", {"FAST": "fast", "RECORDED": "recorded"})


@dataclass(frozen=True, kw_only=True)
class Replay(RepeatedPlay):
    """Run a job again on this machine: its operators, or synthetic work of the same size; and compare times

    etude replay job/ -o replayed/ --iterations 20
    etude replay run/ --plan programs/

    Then `etude compare job/ replayed/`. `etude replay communication` replays the communication alone.
    """

    path: str = argument("path", JOB_HELP, like="job/")
    out: str | None = figure(
        "out", "the folder for a trace of the replay; `etude compare` takes it", None, names=("-o",)
    )
    ranks: str = text(RANKS_HELP, panel=PLAYED, like="0-3,7")
    only: Only | None = figure("choice", "`compute` skips communication", None, of=Only, panel=PLAYED)
    host: Host | None = figure(
        "choice",
        "make calls immediately one after another, or at the times of the recorded host without the "
        "profiler's overhead; by default `recorded` for a recording of a GPU on a GPU, of a CPU on a CPU",
        None,
        of=Host,
        panel=PLAYED,
    )
    cuda_graph: bool = switch("launch all steps of an iteration as one CUDA graph", panel=PLAYED)
    device: str = text("`cpu`, `cuda`, `cuda:1`; by default CUDA where available", panel=MACHINE, like="cuda:1")
    threads: int = figure("count", "threads per operator on a CPU; 0: as recorded", 0, panel=MACHINE)
    unprofiled_ns: int | None = figure(
        "time", "time of a step without the profiler, such as 41ms; `etude collect` measures it", None, panel=PLAYED
    )
    trust_code: bool = switch("run compiled code of a recording that was not made on this machine", panel=PLAYED)
    plan: str | None = figure(
        "out", "only write program files into this folder; `python -m etude.replay` replays them", None, panel="Output"
    )
    force: bool = switch("replace existing output", needs="out|plan", names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class ReplayInputs:
    path: Path
    ranks: str
    unprofiled_ns: int | None
    trust_code: bool
    place: OutputPlace | None
    options: "PlayerOptions | None"
    """None: programs are written and nothing is played."""
    backend: str = ""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What was played, or would be."""

    record: dict[str, Any]
    readable: dict[str, Any]
    source: Path
    out: Path | None
    is_played: bool = True


def replay_inputs(asked: Replay) -> ReplayInputs:
    from etude.run.replay import PlayerOptions

    what = Path(asked.path), asked.ranks, asked.unprofiled_ns, asked.trust_code
    if only_one(asked, "plan", "out") == "plan":
        return ReplayInputs(*what, OutputPlace.at(asked.plan, asked.force), None)
    only, host = asked.only, asked.host
    options = PlayerOptions(
        iterations=asked.iterations, warmup=asked.warmup, only=only.value if only else "", speed=asked.speed.value,
        device=asked.device, threads=asked.threads, host=host.value if host else "", cuda_graph=asked.cuda_graph,
        trust_code=asked.trust_code,
    )  # fmt: skip
    return ReplayInputs(*what, OutputPlace.at(asked.out, asked.force), options, "" if only else asked.backend)


def replayed(given: ReplayInputs) -> Replayed:
    from etude.capture.ingest import runs
    from etude.run.replay import coverage, of_ranks
    from etude.run.replay import plan as plan_job

    path, place = given.path, given.place
    job = open_job(path, times=runs.WantedTimes(estimate=False))  # the player has a host model of its own
    with progress("planning"):
        chosen = ranks_of(given.ranks, job)
        programs = plan_job(job, chosen, recording=path, trust_code=given.trust_code)
    if any(program.about.get("code_left_out") for program in programs):
        say("compiled code of this recording was not made on this machine and is not run; --trust-code runs it")
    if given.unprofiled_ns is not None:
        for program in programs:
            program.about["unprofiled_step_ns"] = given.unprofiled_ns
    if given.options is None or not _has_torch():
        found = of_ranks([coverage(program) for program in programs])
        if given.options is None and place is not None:
            _write(programs, place)
        return _planned(programs, found, path)
    result = _play(programs, place, given.backend, given.options)
    return Replayed(result, _readable(result), path, None if place is None else place.path)


def replay_lines(found: Replayed) -> Iterator[str]:
    """What is said of a replay below its figures."""
    if not found.is_played:
        yield f"nothing was replayed; with PyTorch installed: etude replay {found.source} -o replayed/"
        return
    for failure in found.record["failures"][:5]:
        yield f"calls that failed:  {failure}"
    yield from found.record["notes"]
    yield from _place(found)


def replay_record(found: Replayed) -> dict[str, Any]:
    for line in _place(found):
        say(line)
    return found.record


def _place(found: Replayed) -> Iterator[str]:
    if found.out is not None:
        yield f"a trace of one iteration is in {found.out}: etude compare {found.source} {found.out}"


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


def _write(programs: "list[Program]", place: OutputPlace) -> None:
    from etude.base.files import writing

    with writing(place.path, force=place.force) as inside:
        inside.mkdir(parents=True, exist_ok=True)
        for program in programs:
            program.save(inside / f"rank{program.about['rank']}.program")


def _play(
    programs: "list[Program]", place: OutputPlace | None, backend: str, options: "PlayerOptions"
) -> dict[str, Any]:
    from contextlib import nullcontext

    from etude.base.files import writing
    from etude.run.replay import of_ranks, play, play_together, summary

    with writing(place.path, force=place.force) if place is not None else nullcontext() as folder:
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
            (folder / "replay.json").write_text(json.dumps(result))
    return result


def _planned(programs: "list[Program]", found: dict[str, Any], path: Path) -> Replayed:
    steps = sum(len(program) for program in programs)
    coverage = {"time": found["time"], "count": found["count"]}
    record = {"coverage": coverage, "stand_ins": found["stand_ins"], "ranks": len(programs), "steps": steps}
    readable = {"ranks": len(programs), "steps of programs": steps} | _covered(found)
    return Replayed(record, readable, path, None, is_played=False)


def _covered(found: dict[str, Any]) -> dict[str, Any]:
    time = found["time"]
    rows = {"covered, by time": "-" if time is None else f"{100 * time:.1f}%"}
    rows["covered, by count"] = f"{100 * found['count']:.1f}%"
    if found["stand_ins"]:
        shown = ", ".join(f"{entry['name'][:40]} ({entry['count']})" for entry in found["stand_ins"][:4])
        rows["stand-ins"] = shown + (" ..." if len(found["stand_ins"]) > 4 else "")
    return rows


def _readable(result: dict[str, Any]) -> dict[str, Any]:
    """The figures of a replay, as people read them."""
    step, rows = result["step_ns"], {}
    for what in ("recorded", "unprofiled", "replayed"):
        if step[what]:
            rows[f"step, {what}"] = f"{step[what] / 1e6:.3f} ms"
    if step["unprofiled"]:
        rows["replayed compared with unprofiled"] = f"{100 * (step['replayed'] / step['unprofiled'] - 1):+.1f}%"
    rows |= _covered(result["coverage"] | {"stand_ins": result["stand_ins"]})
    return rows | {
        "iterations": result["iterations"],
        "ready after": f"{result['ready_s']:.1f} s",
        "peak memory of the process": f"{result['peak_rss_bytes'] / 1e6:.0f} MB",
    }

"""Edits as they are given to commands: their text, or `@FILE` with one a line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import EtudeError, UsageError
from etude.base.figures import figure

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.make.transform.edits import Edit
    from etude.model.job import Job
    from etude.model.run import Run
    from etude.model.timing import Timing
    from etude.steps.what_if import WhatIf


@dataclass(frozen=True, kw_only=True)
class EditInput:
    """The parameter of what-if edits."""

    edit: tuple[str, ...] = figure(
        "several",
        "apply an edit first: `compress group=dp ratio=2`, or `@FILE`; several are applied in order. See docs/edits.md",
        (),
        like="compress group=dp ratio=2",
        panel="What-if",
    )


def edits_of(given: Sequence[str] | None) -> "list[Edit]":
    """All edits, in their order; lines of a file that are empty or begin with `#` are none."""
    from etude.make.transform.edits import Edit

    found = []
    for text in given or ():
        if not text.startswith("@"):
            found.append(Edit.parse(text))
            continue
        path = Path(text[1:])
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else "is not text"
            raise UsageError(str(why).lower(), where=str(path), hint="give a file with one edit per line") from None
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                try:
                    found.append(Edit.parse(line))
                except UsageError as problem:
                    where = f"{path}:{number}" + (f": {problem.where}" if problem.where else "")
                    raise UsageError(problem.problem, where=where, hint=problem.hint) from None
    if given and not found:
        raise UsageError("no edit is given", hint="compress group=dp ratio=2")
    return found


def run_times(machine: "System | None", **options: Any) -> "Callable[[Job], Timing | None] | None":
    """When the nodes of a job run on a system: what `when=pays` sees of what is hidden. None of a job that does not
    run there: its calls are judged alone."""
    if machine is None:
        return None

    def times(job: "Job") -> "Timing | None":
        from etude.base.talk import say
        from etude.run.simulate import simulate

        try:
            return simulate(job, machine.for_ranks(job.world_size), **options).timing
        except EtudeError as problem:
            say(f"note: `when=pays` judges calls alone, because the job does not complete: {problem.problem}")
            return None

    return times


def before_and_after(job: "Job", edits: "tuple[Edit, ...]", system: str, name: str) -> "list[tuple[Run, str]]":
    """The job and what edits make of it, both simulated. Without a system recorded times are kept, of communication
    too, and what has none takes that of a DGX H100."""
    from etude.base.talk import say
    from etude.machine import open_system
    from etude.make.transform import with_durations
    from etude.make.transform.edits import apply_edits
    from etude.run.simulate import simulate
    from etude.steps.asked.runs import grown

    machine = system or "dgx-h100"
    if not system:
        say(f"note: no system is given: recorded times are kept, and nodes without a time take that of {machine}")
    times = "modelled" if system else "recorded"
    on = grown(open_system(machine), machine, job.world_size)
    timed = with_durations(job, on.device)
    found = apply_edits(timed, edits, system=on, times=run_times(on, collective_times=times))
    for note in found.notes:
        say(f"note: {note}")
    larger = on if found.job.world_size == job.world_size else on.for_ranks(found.job.world_size)
    before = simulate(timed, on, collective_times=times)
    after = simulate(found.job, larger, collective_times=times)
    return [(before, f"{name} before"), (after, f"{name} after")]


def side_by_side(pairs: "list[WhatIf]", edits: bool) -> list[dict[str, Any]]:
    """Before and after, and of several seeds the means."""
    from etude.base.units import format_time

    rows = []
    for name, found in (("baseline", [p.baseline for p in pairs]), ("edited", [p.edited for p in pairs])):
        step = mean([one.step_time_ns for one in found])
        row: dict[str, Any] = {"": name, "step": format_time(round(step))}
        row["tokens/s per GPU"] = round(mean([one.tokens_per_s_per_gpu for one in found]), 1)
        row["model FLOP/s utilisation"] = f"{mean([one.mfu for one in found]):.1%}"
        row["compared with the baseline"] = f"{mean([p.baseline.step_time_ns for p in pairs]) / step:.3f}x as fast"
        rows.append(row)
    return rows if edits else rows[:1]


def mean(values: list[Any]) -> float:
    return float(sum(values)) / len(values)

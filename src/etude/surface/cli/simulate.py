from typing import TYPE_CHECKING, Any

from etude.analyse.rank_table import rank_rows
from etude.base.errors import UsageError
from etude.steps.asked.simulate import (
    Simulate,
    SimulatedJob,
    deadlock_record,
    say_end,
    simulate_inputs,
    simulate_record,
    simulated_job,
)
from etude.steps.asked.simulate_jobs import (
    SimulateJobs,
    job_rows,
    jobs_inputs,
    jobs_record,
    say_jobs,
    shared_link_rows,
    simulated_jobs,
)
from etude.surface.cli.arguments import values
from etude.surface.cli.build import command_of
from etude.surface.cli.output import emit
from etude.surface.cli.running import INTERRUPTED
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.run.simulate.together import Together


def show(result: SimulatedJob) -> None:
    emit(rank_rows(result.run))
    say_end(result.run, result.estimate)


def show_jobs(found: "Together") -> None:
    """One row per job, and below it the links that jobs share."""
    emit(job_rows(found))
    if links := shared_link_rows(found):
        emit(links)
    say_jobs(found, len(found.link_table(shared=True)))


def meant(args: list[str]) -> str:
    """`simulate a/ b/` and `--at` are of several jobs, `--astra-network` is of `simulate astra`."""
    said = {arg.partition("=")[0] for arg in args[: args.index("--") if "--" in args else None]}
    if any(name.startswith("--astra-") for name in said):
        if said & {"--system", "-s"}:
            raise UsageError("--system and --astra-system are two systems for one run", hint="give one of them")
        return "simulate astra"
    several = said & {"--at", "--place"} or sum(not name for _, name in values(command_of(VERBS[0]).params, args)) > 1
    return "simulate jobs" if several else ""


VERBS: tuple[Verb[Any, Any, Any], ...] = (
    Verb(
        "simulate",
        Simulate,
        simulate_inputs,
        simulated_job,
        record=simulate_record,
        show=show,
        tool=True,
        refusal=deadlock_record,
        code=lambda result: INTERRUPTED if result.run.timing.partial else 0,
    ),
    Verb(
        "simulate jobs",
        SimulateJobs,
        jobs_inputs,
        simulated_jobs,
        record=jobs_record,
        show=show_jobs,
        code=lambda found: INTERRUPTED if found.run.timing.partial else 0,
        unknown={"makespan_ns": "several jobs on one fabric"},
    ),
)

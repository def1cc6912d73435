"""How far copies of learned jobs are from real ones: step and communication of both, simulated on one system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from etude.base.errors import TraceError, UsageError
from etude.base.talk import say
from etude.make.synth import MakeOptions, learn, make
from etude.steps.similarity import likeness

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.model.job import Job

__all__ = ["MOST_NODES", "differences", "with_differences"]

MOST_NODES: Final = 2_000_000
"""Most nodes of a job whose copy is simulated when it is learned."""


def differences(real: Job, copy: Job, system: System) -> tuple[float, float | None]:
    """Step and communication of the copy over those of the job, less one. No communication in either: None."""
    found = {row["what"]: row for row in likeness(real, copy, system)}
    step, sent = found["simulated step, ns"], found["simulated comm_ns per rank"]
    return step["difference"], sent["difference"] if sent["a"] else None


def with_differences(learned: Any, jobs: Sequence[Job], system: System, at_least: int = 1) -> Any:
    """The learned model with what a copy of each of its jobs differs by.

    Of several jobs, each is also withheld once and made of the others, where they can make one of that size. Jobs of
    more than `MOST_NODES` nodes are left out, which is said.
    """
    for at, job in enumerate(jobs):
        if job.nodes > MOST_NODES:
            say(f"not measured: how far a copy of {job.name} is from it (more than {MOST_NODES:,} nodes)")
            continue
        models = [(learned, False)]
        if others := [one for i, one in enumerate(jobs) if i != at]:
            models.append((learn(others, at_least), True))
        for model, withheld in models:
            try:
                step, sent = differences(job, make(model, MakeOptions(ranks=len(job))), system)
            except UsageError:
                continue  # of a size that cannot be made of the others
            except TraceError as problem:
                say(f"not measured: how far a copy of {job.name} is from it ({problem})")
                continue
            learned = learned.with_difference(
                ranks=len(job),
                learned_from=tuple(template.ranks for template in model.templates),
                withheld=withheld,
                step=step,
                communication=sent,
                system=system.name,
            )
    return learned

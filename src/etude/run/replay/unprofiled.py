"""The step time without a profiler, if a job has it."""

from etude.model.job import Job


def unprofiled_step_ns(job: Job) -> int | None:
    """As measured by `etude collect` before it began to record; None if it was not measured."""
    text = job.provenance.get("unprofiled_step_ns", "")
    return int(text) if text.isdecimal() and len(text) < 19 else None

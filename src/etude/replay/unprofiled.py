"""The step without the profiler, where a job knows it."""

from etude.model.job import Job


def unprofiled_step_ns(job: Job) -> int | None:
    """As `etude collect` measured it before it began to record; None where it did not."""
    text = job.provenance.get("unprofiled_step_ns", "")
    return int(text) if text.isdecimal() and len(text) < 19 else None

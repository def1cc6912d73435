"""check: every way in which a job is broken.

Structure is looked at once for each program and communication once for each pair of programs that communicate, so
folded and unfolded jobs give the same findings and a folded one costs no more than its distinct traces.
"""

from __future__ import annotations

import numpy as np

from etude.model.check.findings import Finding, Report, counted, programs
from etude.model.check.groups import check_collectives, check_groups
from etude.model.check.messages import check_messages
from etude.model.check.trace import check_programs, check_values
from etude.model.job import Job
from etude.model.match import match

__all__ = ["Finding", "check"]


def check(job: Job, *, complete: bool = False) -> list[Finding]:
    """What is wrong with a job: errors first, then by rank and node; [] if nothing is.

    One finding stands for all nodes of a rank, and all ranks, that have the same problem. A job may hold some ranks of
    its world only: what would need the others is not judged, unless the job should be `complete`.
    """
    report = Report(job)
    _check_ranks(report, complete)
    same = programs(job)
    check_programs(report, same)
    check_values(report, same)
    matching = match(job)
    check_groups(report, same, matching)
    check_collectives(report, matching)
    check_messages(report, same, matching)
    return report.sorted()


def _check_ranks(report: Report, complete: bool) -> None:
    job = report.job
    beyond = job.ranks[(job.ranks < 0) | (job.ranks >= job.world_size)]
    if len(beyond):
        report.ranks("rank_outside", beyond, f"outside the world of {counted(job.world_size, 'rank')}")
    absent = np.setdiff1d(np.arange(job.world_size, dtype=np.int32), job.ranks)
    if len(absent):
        what = f"{len(absent):,} of the world's {counted(job.world_size, 'rank')} not there"
        hint = "what needs them was not judged"
        report.ranks("ranks_absent", absent, what, hint, "error" if complete else None)
    by_text: dict[str, list[int]] = {}
    for note in job.notes:
        by_text.setdefault(note.what, []).append(note.rank)
    for text, ranks in by_text.items():
        report.ranks("note", np.unique(ranks), text)

"""check: every way in which a job is broken.

Structure is checked once for each program and communication once for each pair of programs that communicate, so folded
and unfolded jobs give the same findings and a folded one costs no more than its distinct traces.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from etude.base.units import counted
from etude.model.check.findings import Finding, FindingList, ProgramClasses, classes, programs, structure
from etude.model.check.groups import check_collectives, check_groups
from etude.model.check.messages import check_messages
from etude.model.check.trace import check_programs, check_values
from etude.model.fold import fold
from etude.model.job import Job, Part, assemble, ranges
from etude.model.match import match
from etude.model.schema import Kind
from etude.model.timing import Timing
from etude.model.trace import Trace, only

__all__ = ["Finding", "RankByRank", "check"]


def check(job: Job, *, complete: bool = False) -> list[Finding]:
    """What is wrong with a job: errors first, then by rank and node; [] if nothing is.

    One finding covers all nodes of a rank, and all ranks, that have the same problem. A job may hold some ranks of
    its world only: what would need the others is not judged, unless the job should be `complete`.

    [str(finding) for finding in etude.check(job)]
    """
    report = FindingList(job)
    _check_ranks(report, complete)
    same = programs(job)
    check_programs(report, same)
    check_values(report, same)
    _check_communication(report, same)
    return report.sorted()


def _check_communication(report: FindingList, same: ProgramClasses) -> None:
    matching = match(report.job)
    check_groups(report, same, matching)
    check_collectives(report, matching)
    check_messages(report, same, matching)


def _check_ranks(report: FindingList, complete: bool) -> None:
    job = report.job
    beyond = job.ranks[(job.ranks < 0) | (job.ranks >= job.world_size)]
    if len(beyond):
        report.ranks("rank_outside", beyond, f"outside the world of {counted(job.world_size, 'rank')}")
    absent = np.setdiff1d(np.arange(job.world_size, dtype=np.int32), job.ranks)
    if len(absent):
        what = f"{len(absent):,} of the world's {counted(job.world_size, 'rank')} missing"
        hint = "checks that need them were skipped"
        report.ranks("ranks_absent", absent, what, hint, "error" if complete else None)
    by_text: dict[str, list[int]] = {}
    for note in job.notes:
        by_text.setdefault(note.what, []).append(note.rank)
    for text, ranks in by_text.items():
        report.ranks("note", np.unique(ranks), text)


# -- one rank at a time ------------------------------------------------------------------------------------------------

_ALONE = ProgramClasses(np.zeros(1, np.int32), (np.zeros(1, np.int32),))
_COLUMNS = ("source_id", "kind", "collective", "group", "src", "dst", "tag", "in_bytes", "out_bytes")


class RankByRank:
    """The check of a job that does not fit in memory: `look` at its ranks in ascending order, each of which can then be
    dropped except for its communication, and `finish` with the job of these. The findings are those of `check`."""

    def __init__(self) -> None:
        self._programs: dict[bytes, int] = {}
        self._program_of: dict[int, int] = {}
        self._rows: dict[int, NDArray[np.int64]] = {}
        self._structure: dict[int, list[Finding]] = {}
        self._values: dict[tuple[int, str, str, int | None], tuple[Finding, list[int]]] = {}

    def look(self, part: Part, timing: Timing | None) -> Trace:
        """Checks one rank by itself, with its recorded times; returns what `finish` needs of it."""
        trace, rank = part.trace, part.rank
        program = self._programs.setdefault(structure(trace), len(self._programs))
        self._program_of[rank] = program
        report = FindingList(assemble("rank", [part], timing=timing))
        if program not in self._structure:
            check_programs(report, _ALONE)
            self._structure[program], report.found = report.found, []
        check_values(report, _ALONE)
        for finding in report.found:
            key = program, finding.kind, finding.column, finding.row
            self._values.setdefault(key, (finding, []))[1].append(rank)
        rows = np.flatnonzero((trace.kind == Kind.COLL) | (trace.kind == Kind.SEND) | (trace.kind == Kind.RECV))
        self._rows[rank] = rows
        return only(trace, rows, _COLUMNS)

    def finish(self, job: Job, *, complete: bool = False) -> list[Finding]:
        """All findings; `job` has the traces that `look` returned."""
        report = FindingList(fold(job))
        same = classes(np.array([self._program_of[r] for r in job.ranks.tolist()], np.int32))
        _check_communication(report, same)
        found = [
            f if f.row is None or f.rank is None else replace(f, row=int(self._rows[f.rank][f.row]))
            for f in report.found
        ]
        report.found = []
        _check_ranks(report, complete)
        of = np.array([self._program_of[r] for r in job.ranks.tolist()], np.int32)
        for program, findings in self._structure.items():
            found += [replace(f, ranks=ranges(job.ranks[of == program])) for f in findings]
        found += [replace(f, ranks=ranges(np.array(ranks))) for f, ranks in self._values.values()]
        report.found += found
        return report.sorted()

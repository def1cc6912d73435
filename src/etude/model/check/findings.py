"""Finding: one thing that is wrong with a job. Report: the place where checks put them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32
from etude.model.fingerprint import Fingerprint
from etude.model.job import Job, ranges
from etude.model.trace import Trace

Severity = Literal["error", "warning"]

SEVERITY: Final[dict[str, Severity]] = {
    # the graph: nodes that can never start
    "dangling_data": "error",
    "dangling_ctrl": "error",
    "self_dependency": "error",
    "cycle": "error",
    "never_starts": "error",
    "duplicate_id": "error",
    "duplicate_dependency": "warning",
    # nodes that no simulator can run
    "invalid_node": "error",
    "unknown_kind": "error",
    "unknown_collective": "error",
    "no_peer": "error",
    # values: a contradiction is an error, a value that was not recorded a warning
    "negative_value": "error",
    "negative_time": "error",
    "bad_time": "warning",
    "no_cost": "warning",
    "no_size": "warning",
    # across ranks
    "collective_missing": "error",
    "collective_order": "error",
    "collective_type": "error",
    "collective_bytes": "error",
    "send_unmatched": "error",
    "recv_unmatched": "error",
    "message_bytes": "error",
    "peer_outside": "error",
    "peer_contradicts": "warning",
    "not_a_member": "error",
    "member_outside": "error",
    "member_twice": "error",
    "members_unknown": "warning",
    # the job
    "rank_outside": "error",
    "ranks_absent": "warning",  # an error if the job is declared complete
    "empty_trace": "warning",
    "timing_length": "error",
    "note": "warning",
}
"""Every kind of finding. An error: the job cannot run as it is, because a node can never start or finish, has no
meaning, or contradicts another. A warning: it can run, but something was not recorded or looks wrong."""


FEW: Final = 4
"""Findings of one kind with the same first rank; the last of them counts the rest."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of problem on ranks that share it; `str()` is a line for people."""

    severity: Severity
    rank: int | None
    """The first rank that has it; None if it belongs to no rank, like a group's members."""
    node: int | None
    """The first node that has it on that rank, as the id in the rank's file."""
    what: str
    hint: str = ""
    kind: str = ""
    """A key of SEVERITY."""
    ranks: str = ""
    """All ranks that have it: `0-3, 8`."""
    count: int = 1
    """Nodes or dependencies of the first rank that have it, or groups."""
    row: int | None = None
    """The node's row in the rank's trace."""
    column: str = ""
    """The column with the wrong values, if there is one."""

    @property
    def where(self) -> str:
        if self.rank is None:
            return ""
        return f"rank {self.rank}" if self.ranks == str(self.rank) else f"ranks {self.ranks}"

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.what}" if self.where else f"{self.severity}: {self.what}"


@dataclass(slots=True)
class FindingList:
    """Collects findings about one job."""

    job: Job
    found: list[Finding] = field(default_factory=list)

    def id_of(self, at: int, row: int) -> int:
        """The id that a row has in the file of the at-th rank present."""
        job = self.job
        mine = int(job.traces[int(job.trace_of[at])].source_id[row])
        return (mine + int(job.id_base[at])) % 2**64

    def nodes(
        self, kind: str, at: I32, rows: NDArray[Any], what: str, hint: str = "", *, count: int = 0, column: str = ""
    ) -> None:
        """Adds a problem of these rows (the first is named in `what`) on the ranks at these positions."""
        job, first = self.job, int(at[0])
        count = count or len(rows)
        more = ""
        if count > 1:
            others = list(dict.fromkeys(rows.tolist()))[1:4]
            named = ", ".join(str(self.id_of(first, r)) for r in others)
            dots = ", ..." if count > len(others) + 1 else ""
            noun = "node" if len(others) == 1 and not dots else "nodes"
            more = f" (and {count - 1:,} more{f': {noun} {named}{dots}' if named else ''})"
        row = int(rows[0])
        ranks = job.ranks[at]
        self.found.append(
            Finding(
                SEVERITY[kind],
                int(ranks[0]),
                self.id_of(first, row),
                what + more,
                hint,
                kind,
                ranges(ranks),
                count,
                row,
                column,
            )
        )

    def ranks(
        self, kind: str, ranks: NDArray[Any], what: str, hint: str = "", severity: Severity | None = None
    ) -> None:
        """Adds a problem of whole ranks."""
        level = severity or SEVERITY[kind]
        self.found.append(Finding(level, int(ranks[0]), None, what, hint, kind, ranges(ranks)))

    def groups(self, kind: str, what: str, hint: str, count: int) -> None:
        more = f" (and {count - 1:,} more groups)" if count > 1 else ""
        self.found.append(Finding(SEVERITY[kind], None, None, what + more, hint, kind, "", count))

    def sorted(self) -> list[Finding]:
        """Errors first, then by rank and node; at most FEW of a kind with the same first rank."""

        def order(f: Finding) -> tuple[bool, int, int, str, str, str]:
            none = -1
            return (
                f.severity != "error",
                none if f.rank is None else f.rank,
                none if f.node is None else f.node,
                f.kind,
                f.ranks,
                f.what,
            )

        kept: list[Finding] = []
        places: dict[tuple[str, int | None], list[int]] = {}
        left: dict[int, int] = {}
        for finding in sorted(self.found, key=order):
            of_kind = places.setdefault((finding.kind, finding.rank), [])
            if len(of_kind) < FEW:
                of_kind.append(len(kept))
                kept.append(finding)
            else:
                left[of_kind[-1]] = left.get(of_kind[-1], 0) + 1
        for place, count in left.items():
            kept[place] = replace(kept[place], what=f"{kept[place].what}; and {count:,} more findings like it")
        return kept


# -- programs ----------------------------------------------------------------------------------------------------------

_STRUCTURE: Final = ("kind", "collective", "group", "src", "dst", "data_start", "data", "ctrl_start", "ctrl")


@dataclass(frozen=True, slots=True, eq=False)
class ProgramClasses:
    """Ranks that look the same to every check except for their values, whether the job is folded or not."""

    of: I32
    """Program of the i-th rank present; programs are numbered by their first rank."""
    at: tuple[I32, ...]
    """Positions of the ranks of each program."""


def programs(job: Job) -> ProgramClasses:
    seen: dict[bytes, int] = {}
    of_trace = np.array([seen.setdefault(structure(t), len(seen)) for t in job.traces] or [0], np.int32)
    return classes(of_trace[job.trace_of])


def classes(code: I32) -> ProgramClasses:
    """Classes of ranks, from a number shared by the ranks of a program."""
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    renumber = np.empty(len(first), np.int32)
    renumber[np.argsort(first)] = np.arange(len(first))
    of = renumber[inverse]
    order = np.argsort(of, kind="stable").astype(np.int32)
    bounds = np.searchsorted(of[order], np.arange(len(first) + 1)).tolist()
    return ProgramClasses(of, tuple(order[a:b] for a, b in pairwise(bounds)))


def structure(trace: Trace) -> bytes:
    """A fingerprint of what checks look at, except values; ids and tags count from their smallest, as in fold."""
    found = Fingerprint(len(trace.group_slots), trace.peer_slots)
    for name in _STRUCTURE:
        column = getattr(trace, name)
        found.add(column.copy() if column.strides == (0,) else column)  # whether it was recorded does not matter
    if len(trace):
        least = trace.source_id.min()
        tagged = trace.tag >= 0
        tag = np.where(tagged, trace.tag - trace.tag.min(initial=2**63 - 1, where=tagged), trace.tag)
        found.add(trace.source_id - least, trace.missing - least, tag)
    return found.digest()


def split_by(keys: NDArray[Any], which: NDArray[Any]) -> list[NDArray[Any]]:
    """`which`, positions in `keys`, split by equal keys: keys ascend, the order within a part is kept."""
    if not len(which):
        return []
    order = which[np.argsort(keys[which], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)


def ordinal(k: int) -> str:
    """0 -> 1st."""
    n = k + 1
    end = "th" if 10 <= n % 100 < 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{end}"


def listed(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(f"`{n}`" for n in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"

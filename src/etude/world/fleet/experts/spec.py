"""Group: a serving group of expert-parallel ranks, and the failures of its ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from etude.base.figures import figure, text
from etude.base.grammar import line


class HostCopies(StrEnum):
    """Copies of experts in the memory of hosts, in addition to those on devices."""

    NONE = "none"
    OWN = "own"
    """A host keeps what its own ranks hold."""
    ALL = "all"
    """Every host keeps all experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroup:
    """Attention is data-parallel: every rank has its own sequences, and experts are spread over all ranks."""

    redundant: int = figure("count", "redundant copies of experts, on all ranks together", 0)
    sequences: int = figure("count", "sequences that a rank decodes at a time; more are always waiting", 128)
    context: int = figure("count", "mean tokens per sequence", 2048)
    fail: str = text("failures and their times: `rank7@60s`, `node1@90s`, several with `;`", like="rank1@50s")
    host_copies: HostCopies = figure("choice", "experts in the memory of hosts", HostCopies.OWN)
    storage_bytes_per_s: float = figure("bandwidth", "read rate of a node from storage", 1e9)
    replace_ns: float = figure(
        "time", "time until a new process replaces a lost rank, while others serve; 0: the same as --restart", 0.0
    )
    horizon_ns: float = figure("time", "time that the group serves", 600e9)


class Failure(NamedTuple):
    at_ns: int
    ranks: tuple[int, ...]
    node: int
    """-1: the host stays."""


def parse_failures(text: str, *, ranks: int, node: int) -> tuple[Failure, ...]:
    """`rank7@60s;node1@90s`, in order of time; `node` is the ranks per node."""
    found = []
    for part in line(text, "--fail", "rank7@60s, or node1@90s; several with `;`").split(";") if text.strip() else ():
        who, at = part.cut("@")
        match = re.fullmatch(r"(rank|node)(\d+)", who.text)
        if match is None or at is None:
            raise part.wrong(f"`{part.text}` is not a rank or a node, and a time")
        kind, number, at_ns = match[1], int(match[2]), at.time_ns(zero=True)
        many = ranks if kind == "rank" else -(-ranks // node)
        if number >= many:
            raise who.wrong(f"{kind} {number} of {many}", f"{kind}s count from 0")
        lost = (number,) if kind == "rank" else tuple(range(number * node, min((number + 1) * node, ranks)))
        found.append(Failure(at_ns, lost, number if kind == "node" else -1))
    return tuple(sorted(found, key=lambda f: f.at_ns))

"""Transfers whose times are given: another simulator has moved them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude.base.errors import MismatchError
from etude.kernels.arrays import I64
from etude.run.simulate.networks.operation import Operation
from etude.run.simulate.networks.state import GivenTimes, LinkState


@dataclass(frozen=True, slots=True, eq=False)
class FlowTimes:
    """For each flow: its operation, its transfer in the schedule of that, when it started, and how long it took."""

    operation: I64
    transfer: I64
    start_ns: I64
    took_ns: I64
    collective: Mapping[str, Any] = field(default_factory=dict)
    """Algorithms that the flows were made with."""
    notes: tuple[str, ...] = ()


def with_times(links: LinkState, times: FlowTimes, made: Sequence[Operation], number: I64) -> LinkState:
    """Each transfer takes its given time. `made` are the collectives; `number` of all carried operations, messages
    after them."""
    assert links.outside is not None
    size = np.array([len(op.schedule) for op in made] + [1] * (len(number) - len(made)), np.int64)
    first = np.append(0, np.cumsum(size))
    took_ns = np.zeros(int(first[-1]), np.int64)
    took_ns[_places(times, first, number)] = times.took_ns
    given = GivenTimes(first[:-1], took_ns, np.full(len(took_ns), -1, np.int64))
    return links._replace(outside=links.outside._replace(given=given))


def later_starts(links: LinkState, times: FlowTimes, number: I64) -> tuple[int, int]:
    """(Flows that began at other moments than where their times come from, the largest difference in ns)."""
    assert links.outside is not None
    given = links.outside.given
    first = np.append(given.first, len(given.took_ns))
    off_ns = np.abs(given.began_ns[_places(times, first, number)] - times.start_ns)
    return int((off_ns > 0).sum()), int(off_ns.max(initial=0))


def _places(times: FlowTimes, first: I64, number: I64) -> I64:
    """Where the transfer of each flow is."""
    carried = np.full(int(max(number.max(initial=-1), times.operation.max(initial=-1))) + 1, -1, np.int64)
    carried[number] = np.arange(len(number))
    at = carried[times.operation]
    if (at < 0).any() or (times.transfer >= np.diff(first)[at]).any():
        raise MismatchError("times of flows are of another job", hint="read them with the job that is simulated")
    return first[at] + times.transfer

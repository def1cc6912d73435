"""Machines: the step costs and the power of every kind of replica, in a few arrays. A kernel with a StepCost argument
compiles slowly because of its many arrays; so the loop carries these, and builds one where a pass is costed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel
from etude.world.serve.energy import ReplicaPower, pass_nj
from etude.world.serve.pass_time import head_of, pass_ns
from etude.world.serve.steps import StepCost

WHOLE: Final = ("padded", "decode_padded", "recorded")
"""Tables of integers."""


class Machines(NamedTuple):
    real: F64
    """Concatenated tables of numbers."""
    whole: I64
    """Tables of integers."""
    place: I64
    """Where a table begins and how long it is: (2 * kind, table, 2); odd rows are of energy."""
    power: F64
    """Most, idle, factor, ranks: (kind, 4)."""


def machines_of(kinds: Sequence[tuple[StepCost, ReplicaPower]]) -> Machines:
    real: list[F64] = []
    whole: list[I64] = []
    places = np.zeros((2 * len(kinds), len(StepCost._fields), 2), np.int64)
    costs = [one for cost, energy in kinds for one in (cost, energy.work)]
    for row, cost in enumerate(costs):
        for number, (name, table) in enumerate(zip(StepCost._fields, cost, strict=True)):
            into = whole if name in WHOLE else real
            places[row, number] = sum(map(len, into)), len(table)
            into.append(table)  # type: ignore[arg-type]
    power = [[e.most_w, e.idle_w, e.factor, e.ranks] for _, e in kinds]
    return Machines(np.concatenate(real), np.concatenate(whole), places, np.array(power, np.float64))


@kernel(allocates=False, inline=True)
def _part(values, place):
    return values[place[0] : place[0] + place[1]]


@kernel(allocates=False, inline=True)
def _cost_at(machines, row):
    real, whole, place = machines.real, machines.whole, machines.place[row]
    return StepCost(
        _part(real, place[0]), _part(real, place[1]), _part(real, place[2]), _part(real, place[3]),
        _part(real, place[4]), _part(real, place[5]), _part(real, place[6]), _part(real, place[7]),
        _part(real, place[8]), _part(whole, place[9]), _part(whole, place[10]), _part(real, place[11]),
        _part(real, place[12]), _part(real, place[13]), _part(whole, place[14]), _part(real, place[15]),
        _part(real, place[16]),
    )  # fmt: skip


@kernel(allocates=False)
def machine_ns(machines, kind, shape, number):
    """Time of one pass on a machine of this kind; `number` says which of the recorded ones it is."""
    return pass_ns(_cost_at(machines, 2 * kind), shape, number)


@kernel(allocates=False)
def machine_head_ns(machines, kind, shape):
    """Logits and sampling of a pass on a machine of this kind."""
    return np.int64(head_of(_cost_at(machines, 2 * kind), shape))


@kernel(allocates=False)
def machine_nj(machines, kind, shape, time_ns):
    """Energy of a pass above idle, of all ranks of a replica."""
    power = machines.power[kind]
    work = _cost_at(machines, 2 * kind + 1)
    return pass_nj(ReplicaPower(work, power[0], power[1], power[2], np.int64(power[3])), shape, time_ns)

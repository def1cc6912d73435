"""The operations of a job as operations of a network with links.

Carried out as schedules are the collectives of groups whose members are all there, and messages between two ranks.
What the job does not know enough of lasts as it would on the analytic network.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from etude.machine.topology import Topology
from etude.model.schema import Collective
from etude.simulate.costs import jittered
from etude.simulate.groups import members_of
from etude.simulate.lower import Lowered
from etude.simulate.networks.carrier import Carriage, Carrier, schedulable
from etude.simulate.networks.operation import Operation
from etude.simulate.networks.state import I64, WHOLE
from etude.simulate.operations import Operations


def carried_operations(
    lowered: Lowered, ops: Operations, topology: Topology, window: int, notes: list[str]
) -> tuple[list[Operation], I64]:
    """The operations that are carried out on links, and their numbers in the engine."""
    carrier = Carrier(lowered.system, topology, window=window)
    made: list[Operation] = []
    number: list[int] = []
    for o, operation in (*_collectives(lowered, ops, carrier), *_messages(lowered, ops, carrier)):
        number.append(o)
        made.append(operation)
    if len(made) < len(ops):
        which = "whose members are not all known and present, or that stay on their rank"
        notes.append(f"{len(ops) - len(made):,} operations {which}, use no links and last a fixed time")
    for asked, taken in carrier.replaced.items():
        notes.append(f"{asked} has no schedule on some groups, where {taken} is carried out")
    return _noisy(lowered, ops, made, number), np.array(number, np.int64)


def _collectives(lowered: Lowered, ops: Operations, carrier: Carrier) -> list[tuple[int, Operation]]:
    groups, options = lowered.groups, lowered.options
    placed = np.ones(len(ops), bool)
    placed[ops.of[ops.member < 0]] = False
    members = [members_of(lowered.job, lowered.matching, groups, group) for group in range(len(groups.group))]
    chosen: dict[tuple[int, int, int], Carriage] = {}
    made = []
    for o in np.flatnonzero(placed[: ops.messages_from]).tolist():
        group, what, size = int(ops.place[o]), Collective(int(ops.collective[o])), int(ops.size_bytes[o])
        if groups.partial[group] or not schedulable(what):
            continue
        key = (group, int(what), size)
        if key not in chosen:
            own = options.own(what, len(members[group]))
            shape = groups.shapes[groups.shape[group]]
            chosen[key] = (
                carrier.own(own, members[group])
                if own is not None
                else carrier.collective(what, size, members[group], shape, options.algorithm(what))
            )
        made.append((o, chosen[key].operation(members[group], size)))
    return made


def _messages(lowered: Lowered, ops: Operations, carrier: Carrier) -> list[tuple[int, Operation]]:
    links = lowered.matching.links
    made = []
    for o in range(ops.messages_from, len(ops)):
        src, dst = int(links.src[ops.place[o]]), int(links.dst[ops.place[o]])
        if src != dst:
            made.append((o, carrier.message(src, dst, int(ops.size_bytes[o]))))
    return made


def _noisy(lowered: Lowered, ops: Operations, made: list[Operation], number: list[int]) -> list[Operation]:
    """Jitter of an operation as a whole: on its launch and on the time of all its bytes."""
    jitter = lowered.options.jitter
    spread = np.where(ops.is_message, jitter.get("p2p", 0.0), jitter.get("collective", 0.0))
    if not spread.any():
        return made
    factor = jittered(np.full(len(ops), WHOLE), spread, (lowered.options.seed, 1 << 40))[number] / WHOLE
    return [
        replace(op, launch_ns=round(op.launch_ns * f), wire_ppm=max(round(op.wire_ppm * f), 1))
        for op, f in zip(made, factor.tolist(), strict=True)
    ]

"""The operations of a job as operations of a network with links.

Collectives of groups whose members are all present, and messages between two ranks, run as schedules. Operations about
which the job says too little take the time of the analytic network.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from etude.kernels.arrays import I64
from etude.machine.topology import Topology
from etude.model.schema import Collective
from etude.run.simulate.costs import with_noise
from etude.run.simulate.draws import call_draws
from etude.run.simulate.groups import members_of
from etude.run.simulate.lower import Lowered
from etude.run.simulate.networks.carrier import Carriage, Carrier, schedulable
from etude.run.simulate.networks.messages import Messages
from etude.run.simulate.networks.operation import Operation
from etude.run.simulate.networks.state import WHOLE
from etude.run.simulate.operations import Operations


def carried_operations(
    lowered: Lowered, ops: Operations, topology: Topology, window: int, notes: list[str]
) -> tuple[list[Operation], Messages, I64]:
    """The collectives and messages that run on links, and the engine's numbers of all of them."""
    carrier = Carrier(lowered.system, topology, window=window)
    collectives = _collectives(lowered, ops, carrier)
    between, messages = _messages(lowered, ops, carrier)
    number = np.concatenate((np.array([o for o, _ in collectives], np.int64), between))
    if len(number) < len(ops):
        which = "whose members are not all known and present, or that stay on their rank"
        notes.append(f"{len(ops) - len(number):,} operations {which}, use no links and take a fixed time")
    for asked, taken in carrier.replaced.items():
        notes.append(f"{asked} has no schedule on some groups, where {taken} is used")
    return *_noisy(lowered, ops, [op for _, op in collectives], messages, number), number


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


def _messages(lowered: Lowered, ops: Operations, carrier: Carrier) -> tuple[I64, Messages]:
    """(Numbers of messages between two ranks, those messages)."""
    links, number = lowered.matching.links, np.arange(ops.messages_from, len(ops))
    src, dst = (rank[ops.place[number]].astype(np.int64) for rank in (links.src, links.dst))
    between = src != dst
    number = number[between]
    return number, carrier.messages(src[between], dst[between], ops.size_bytes[number])


def _noisy(
    lowered: Lowered, ops: Operations, made: list[Operation], messages: Messages, number: I64
) -> tuple[list[Operation], Messages]:
    """Applies the jitter of an operation as a whole: to its launch and to the time of all its bytes."""
    jitter = lowered.options.jitter
    spread = np.where(ops.is_message, jitter.get("p2p", 0.0), jitter.get("collective", 0.0))
    if not spread.any():
        return made, messages
    factor = with_noise(np.full(len(ops), WHOLE), spread, call_draws(lowered, ops))[number] / WHOLE
    noisy = [
        replace(op, launch_ns=round(op.launch_ns * f), wire_ppm=max(round(op.wire_ppm * f), 1))
        for op, f in zip(made, factor[: len(made)].tolist(), strict=True)
    ]
    launch_ns, wire_ppm = (np.rint(v * factor[len(made) :]) for v in (messages.launch_ns, messages.wire_ppm))
    wire_ppm = np.maximum(wire_ppm, 1)
    return noisy, replace(messages, launch_ns=launch_ns.astype(np.int64), wire_ppm=wire_ppm.astype(np.int64))

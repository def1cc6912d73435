"""Slowdowns between things that run on a rank: by overlap factors, by shares of capacities, or by pairs on a device.

Remaining work is counted at a rate: with factors in 1/1000 ns of the undisturbed rate times the factor, so that both
rates are integers; otherwise in 1/FULL ns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from etude.kernels.arrays import I32, I64
from etude.kernels.compile import kernel
from etude.kernels.heap import Heap, push
from etude.run.simulate.networks.meeting import NOT_KNOWN, Kinds, kind_of_member, kind_of_row, no_kinds, rate_beside
from etude.run.simulate.networks.resources import COMMUNICATION, FULL, HELD, Resources, count, make_resources, set_rates
from etude.run.simulate.networks.state import MILLI, SHARED_INSTANCE, SHARED_NODE, OperationState, Table


class Sharing(NamedTuple):
    by_rate: bool  # capacities or kinds, instead of factors
    compute_milli: int
    communication_milli: int
    instances: Table
    nodes: Table
    changed: I32  # a list of instances
    changed_count: I64  # one number
    resources: Resources
    kinds: Kinds


def make_sharing(
    compute: float,
    communication: float,
    instances: int,
    nodes: int,
    resources: Resources | None = None,
    kinds: Kinds | None = None,
) -> Sharing | None:
    """None if the factors are 1, there are no capacities to share and overlaps have no cost."""
    by_rate = resources is not None or kinds is not None
    if compute == communication == 1.0 and not by_rate:
        return None
    of_instances, of_nodes = np.zeros(instances, SHARED_INSTANCE), np.zeros(nodes, SHARED_NODE)
    of_instances["first_computing"] = of_instances["first_communicating"] = -1
    of_nodes["after"] = of_nodes["before"] = of_nodes["since_ns"] = of_nodes["kind"] = -1
    of_nodes["rate"] = FULL
    if resources is None:
        none = np.zeros((0, HELD))
        resources = make_resources(
            none, none, none.astype(np.int64), np.zeros((0, instances), np.int32), by_rate=by_rate
        )
    return Sharing(
        by_rate,
        round(compute * MILLI),
        round(communication * MILLI),
        of_instances,
        of_nodes,
        np.zeros(instances, np.int32),
        np.zeros(1, np.int64),
        resources,
        no_kinds() if kinds is None else kinds,
    )


@kernel(allocates=False)
def rest_ns(left: int, rate: int) -> int:
    return (left + rate - 1) // rate


@kernel(allocates=False)
def note_change(sharing: Sharing, instance: int) -> None:
    """Marks the instance, so that its rates are updated at the end of the round."""
    if sharing.instances[instance].is_changed == 0:
        sharing.instances[instance].is_changed = 1
        sharing.changed[sharing.changed_count[0]] = instance
        sharing.changed_count[0] += 1


@kernel(allocates=False)
def enlist(sharing: Sharing, node: int, head: int) -> None:
    """Makes the node the first of the list that began with `head`."""
    sharing.nodes[node].after = head
    sharing.nodes[node].before = -1
    if head >= 0:
        sharing.nodes[head].before = node


@kernel(allocates=False)
def delist(sharing: Sharing, node: int, head: int) -> int:
    """Takes the node out of the list that begins with `head`. Returns the new head."""
    after, before = sharing.nodes[node].after, sharing.nodes[node].before
    if after >= 0:
        sharing.nodes[after].before = before
    if before >= 0:
        sharing.nodes[before].after = after
        return head
    return after


# -- nodes that communicate --------------------------------------------------------------------------------------------


@kernel(allocates=False)
def attend(sharing: Sharing, nodes: Table, node: int, listed: bool) -> None:
    """A member of an operation starts to communicate. `listed`: among those whose rate may change."""
    i = nodes[node].instance
    instance = sharing.instances[i]
    if listed:
        sharing.nodes[node].kind = kind_of_member(sharing.kinds, i, nodes[node].op)
        enlist(sharing, node, instance.first_communicating)
        instance.first_communicating = node
    instance.communicating += 1
    count(sharing.resources, i, COMMUNICATION, 1)
    note_change(sharing, i)


@kernel(allocates=False)
def leave(sharing: Sharing, nodes: Table, node: int, listed: bool) -> None:
    """A member of an operation stops communicating."""
    i = nodes[node].instance
    instance = sharing.instances[i]
    if listed:
        instance.first_communicating = delist(sharing, node, instance.first_communicating)
    instance.communicating -= 1
    count(sharing.resources, i, COMMUNICATION, -1)
    note_change(sharing, i)


# -- all others --------------------------------------------------------------------------------------------------------


@kernel(allocates=False)
def begin(sharing: Sharing, nodes: Table, node: int, row: int, klass: int, now_ns: int) -> int:
    """Time of a node that starts now and shares its device, at the current rates."""
    i, work = nodes[node].instance, sharing.nodes[node]
    instance, resources = sharing.instances[i], sharing.resources
    work.since_ns = now_ns
    enlist(sharing, node, instance.first_computing)
    instance.first_computing = node
    instance.computing += 1
    note_change(sharing, i)
    if not sharing.by_rate:
        work.left = nodes[node].cost_ns * sharing.compute_milli
        return rest_ns(work.left, MILLI if instance.slows_compute else sharing.compute_milli)
    work.klass = klass
    work.kind = kind_of_row(sharing.kinds, row)
    work.chunk = resources.chunk_ns[row] * FULL if len(resources.chunk_ns) > 0 else 0
    work.left = nodes[node].cost_ns * FULL
    count(resources, i, klass, 1)
    return nodes[node].cost_ns  # until capacities are computed at the end of the round


@kernel(allocates=False)
def end(sharing: Sharing, nodes: Table, ends: Heap, node: int, now_ns: int) -> bool:
    """Ends the sharing of a node, if it shares its device. False: it is at the boundary of a chunk, where it yields if
    it has to, and continues."""
    work = sharing.nodes[node]
    if nodes[node].op >= 0 or work.since_ns < 0:
        return True
    i = nodes[node].instance
    note_change(sharing, i)
    if sharing.by_rate:
        count(sharing.resources, i, work.klass, -1)
        if work.klass >= HELD and work.border > 0:
            work.klass -= HELD
            work.left -= (now_ns - work.since_ns) * work.rate
            work.since_ns = now_ns
            if work.left > 0:
                count(sharing.resources, i, work.klass, 1)
                nodes[node].end_ns = now_ns + rest_ns(work.left, work.rate)
                push(ends, nodes[node].end_ns, node)
                return False
    instance = sharing.instances[i]
    instance.first_computing = delist(sharing, node, instance.first_computing)
    instance.computing -= 1
    return True


@kernel(allocates=False)
def retime_nodes(sharing: Sharing, nodes: Table, ends: Heap, instance: int, now_ns: int) -> None:
    """With factors: changes the rate of an instance's compute nodes, if it started or stopped communicating."""
    here = sharing.instances[instance]
    slow = 1 if here.communicating > 0 else 0
    if slow == here.slows_compute:
        return
    here.slows_compute = slow
    fast = sharing.compute_milli
    node = here.first_computing
    while node >= 0:
        work = sharing.nodes[node]
        work.left -= (now_ns - work.since_ns) * (fast if slow else MILLI)
        work.since_ns = now_ns
        nodes[node].end_ns = now_ns + rest_ns(work.left, MILLI if slow else fast)
        push(ends, nodes[node].end_ns, node)
        node = work.after


# -- by rate -----------------------------------------------------------------------------------------------------------


@kernel(allocates=False)
def note_neighbours(sharing: Sharing) -> None:
    """Marks all instances that share a capacity with a marked one."""
    resources = sharing.resources
    for k in range(sharing.changed_count[0]):
        for r in range(len(resources.pool)):
            pool = resources.pool[r, sharing.changed[k]]
            for m in range(resources.start[pool], resources.start[pool + 1]):
                note_change(sharing, resources.member[m])


@kernel(allocates=False)
def rate_members(sharing: Sharing, i: int) -> bool:
    """Rates of the classes on an instance, and of each member of an operation there. False: a pair has no price."""
    set_rates(sharing.resources, i)
    here, most = sharing.instances[i], sharing.resources.rate[i, COMMUNICATION]
    node = here.first_communicating
    while node >= 0:
        met = rate_beside(sharing.kinds, sharing.nodes, here.first_computing, here.first_communicating, node)
        if met == NOT_KNOWN:
            return False
        sharing.nodes[node].rate = min(most, met)
        node = sharing.nodes[node].after
    return True


@kernel(allocates=False)
def retime_work(sharing: Sharing, nodes: Table, ends: Heap, i: int, now_ns: int) -> bool:
    """Applies the rates to the nodes of an instance; one at full rate begins a chunk, or continues it. False: a pair
    has no price."""
    here, rate = sharing.instances[i], sharing.resources.rate[i]
    node = here.first_computing
    while node >= 0:
        work = sharing.nodes[node]
        met = rate_beside(sharing.kinds, sharing.nodes, here.first_computing, here.first_communicating, node)
        if met == NOT_KNOWN:
            return False
        new = min(rate[work.klass], met)
        holds = work.chunk > 0 and work.klass < HELD and rate[work.klass] == FULL
        if new != work.rate or holds:
            work.left -= (now_ns - work.since_ns) * work.rate
            work.since_ns = now_ns
            work.rate = new
            rest = max(work.left, 0)
            if holds:
                count(sharing.resources, i, work.klass, -1)
                work.klass += HELD
                count(sharing.resources, i, work.klass, 1)
                work.border = (rest - 1) // work.chunk * work.chunk if rest > 0 else 0
            if work.klass >= HELD:
                rest = max(rest - work.border, 0)
            nodes[node].end_ns = now_ns + rest_ns(rest, new)
            push(ends, nodes[node].end_ns, node)
        node = work.after
    return True


@kernel(allocates=False)
def retime_members(sharing: Sharing, operations: OperationState, nodes: Table, i: int, now_ns: int) -> None:
    """Runs operations with members on an instance at the lowest rate of all members that have arrived. Those carried
    over links read the rates when a transfer starts."""
    node = sharing.instances[i].first_communicating
    while node >= 0:
        op = nodes[node].op
        it = operations.table[op]
        if it.carried < 0:
            new, member = FULL, it.last_comer
            while member >= 0:
                new = min(new, sharing.nodes[member].rate)
                member = nodes[member].comer_before
            if new != it.slow:
                it.left -= (now_ns - it.since_ns) * it.slow
                it.since_ns = now_ns
                it.slow = new
                it.end_ns = now_ns + rest_ns(max(it.left, 0), new)
                push(operations.ends, it.end_ns, op)
        node = sharing.nodes[node].after

"""Overlap: compute and communication of one rank slow each other down."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from etude.kernels.compile import kernel
from etude.kernels.heap import Heap, push
from etude.model.use import Use
from etude.simulate.networks.resources import COMPUTE, FULL, MEMORY, Resources
from etude.simulate.networks.state import I32, I64, MILLI, SHARED_INSTANCE, Table

SHARED_NODE: Final = np.dtype(
    [
        ("after", np.int32),  # the next of its list
        ("before", np.int32),
        ("left", np.int64),  # work that is left
        ("since_ns", np.int64),  # when that was so; -1: it shares nothing
        ("klass", np.int32),  # with capacities: of the node
        ("rate", np.int32),  # ... as things stand
    ],
    align=True,
)


class Sharing(NamedTuple):
    """Compute and communication of one rank slow each other down. Work is counted in 1/1000 ns of the undisturbed rate
    times the factor, so that both rates are whole numbers."""

    compute_milli: int
    communication_milli: int
    instances: Table
    nodes: Table
    changed: I32  # a list of instances
    changed_count: I64  # one number
    also: int  # a use beside compute that shares; -1: none does
    resources: Resources | None  # in the place of the factors


def make_sharing(
    compute: float, communication: float, instances: int, nodes: int, resources: Resources | None = None
) -> Sharing | None:
    """None where the factors are 1 and there are no capacities to share."""
    if compute == communication == 1.0 and resources is None:
        return None
    of_instances, of_nodes = np.zeros(instances, SHARED_INSTANCE), np.zeros(nodes, SHARED_NODE)
    of_instances["first_computing"] = of_instances["first_communicating"] = -1
    of_nodes["after"] = of_nodes["before"] = of_nodes["since_ns"] = -1
    return Sharing(
        round(compute * MILLI),
        round(communication * MILLI),
        of_instances,
        of_nodes,
        np.zeros(instances, np.int32),
        np.zeros(1, np.int64),
        -1 if resources is None else int(Use.MEMORY),
        resources,
    )


@kernel(allocates=False)
def rest_ns(left: int, rate_milli: int) -> int:
    return (left + rate_milli - 1) // rate_milli


@kernel(allocates=False)
def note_change(sharing: Sharing, instance: int) -> None:
    """The rates on the instance are looked at when the round is over."""
    if sharing.instances[instance].is_changed == 0:
        sharing.instances[instance].is_changed = 1
        sharing.changed[sharing.changed_count[0]] = instance
        sharing.changed_count[0] += 1


@kernel(allocates=False)
def enlist(sharing: Sharing, node: int, head: int) -> None:
    """The node becomes the first of the list that began with `head`."""
    sharing.nodes[node].after = head
    sharing.nodes[node].before = -1
    if head >= 0:
        sharing.nodes[head].before = node


@kernel(allocates=False)
def delist(sharing: Sharing, node: int, head: int) -> int:
    """Takes the node out of the list that begins with `head`. Returns what it begins with now."""
    after, before = sharing.nodes[node].after, sharing.nodes[node].before
    if after >= 0:
        sharing.nodes[after].before = before
    if before >= 0:
        sharing.nodes[before].after = after
        return head
    return after


@kernel(allocates=False)
def communicate(sharing: Sharing, instance: int, amount: int) -> None:
    """More nodes communicate on an instance, or fewer."""
    sharing.instances[instance].communicating += amount
    note_change(sharing, instance)


@kernel(allocates=False)
def begin(resources: Resources | None, sharing: Sharing, nodes: Table, node: int, use: int, now_ns: int) -> int:
    """Time of a node that starts now and shares its device, as things stand."""
    if resources is None:
        return _begin_compute(sharing, nodes, node, now_ns)
    i, work = nodes[node].instance, sharing.nodes[node]
    work.klass = MEMORY if use == sharing.also else COMPUTE
    work.rate = resources.rate[i, work.klass]
    work.left = nodes[node].cost_ns * FULL
    work.since_ns = now_ns
    instance = sharing.instances[i]
    enlist(sharing, node, instance.first_computing)
    instance.first_computing = node
    if work.klass == MEMORY:
        resources.memory[i] += 1
    else:
        instance.computing += 1
    note_change(sharing, i)
    return rest_ns(work.left, work.rate)


@kernel(allocates=False)
def _begin_compute(sharing: Sharing, nodes: Table, node: int, now_ns: int) -> int:
    """Time of a compute node that starts now, as things stand."""
    i, work = nodes[node].instance, sharing.nodes[node]
    instance = sharing.instances[i]
    work.left = nodes[node].cost_ns * sharing.compute_milli
    work.since_ns = now_ns
    enlist(sharing, node, instance.first_computing)
    instance.first_computing = node
    instance.computing += 1
    note_change(sharing, i)
    return rest_ns(work.left, MILLI if instance.slows_compute else sharing.compute_milli)


@kernel(allocates=False)
def end(resources: Resources | None, sharing: Sharing, nodes: Table, node: int) -> None:
    """The node, if it is one that shares its device, does so no longer."""
    if nodes[node].op < 0 and sharing.nodes[node].since_ns >= 0:
        i = nodes[node].instance
        instance = sharing.instances[i]
        instance.first_computing = delist(sharing, node, instance.first_computing)
        if not _ends_memory(resources, sharing.nodes[node].klass, i):
            instance.computing -= 1
        note_change(sharing, i)


@kernel(allocates=False)
def _ends_memory(resources: Resources | None, klass: int, instance: int) -> bool:
    if resources is None:
        return False
    if klass != MEMORY:
        return False
    resources.memory[instance] -= 1
    return True


@kernel(allocates=False)
def retime_nodes(sharing: Sharing, nodes: Table, ends: Heap, instance: int, now_ns: int) -> None:
    """The compute nodes of an instance run on at another rate, if it began or ended to communicate."""
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

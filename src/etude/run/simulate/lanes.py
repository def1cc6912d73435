"""Kernels of nodes and lanes: a node ends, others become ready, free lanes take them."""

from __future__ import annotations

from etude.kernels.compile import kernel
from etude.kernels.heap import pop_key, push_key
from etude.run.simulate.networks.state import NEVER
from etude.run.simulate.state import DONE, EngineState


@kernel(allocates=False)
def row_of(state: EngineState, node: int) -> int:
    """The row of a node in the tables of programs."""
    instance = state.instances[state.nodes[node].instance]
    return node - instance.node0 + instance.row0


@kernel(allocates=False)
def touch(state: EngineState, lane: int) -> None:
    """Marks a lane, so that this round examines it when it issues."""
    if state.lanes[lane].is_touched == 0:
        clock = state.clock[0]
        state.lanes[lane].is_touched = 1
        state.touched[clock.touched] = lane
        clock.touched += 1


@kernel(allocates=False)
def make_ready(state: EngineState, node: int, row: int) -> None:
    """Everything that the node waited for is done."""
    clock, programs, instance = state.clock[0], state.programs, state.instances[state.nodes[node].instance]
    of_program = programs.rows[row].lane
    if of_program < 0:
        state.starting[clock.starting] = node
        clock.starting += 1
        return
    number = instance.lane0 + of_program
    lane = state.lanes[number]
    if not state.rules.strict and instance.leader < 0:
        first = instance.node0 + programs.lane_first[instance.program_lane0 + of_program]
        key = clock.instant << 32 if state.rules.first_come else 0
        push_key(state.ready[first:], lane.count, key | programs.rows[row].position)
        lane.count += 1
    if lane.busy < 0:
        touch(state, number)


@kernel(allocates=False)
def complete(state: EngineState, node: int) -> None:
    """Ends the node now: frees its lane, and makes its successors ready."""
    clock, it = state.clock[0], state.nodes[node]
    it.end_ns = clock.now_ns
    it.waits = DONE
    clock.done_nodes += 1
    instance = state.instances[it.instance]
    row = state.programs.rows[node - instance.node0 + instance.row0]
    if row.lane >= 0:
        lane = instance.lane0 + row.lane
        state.lanes[lane].busy = -1
        touch(state, lane)
    for k in range(row.succ_start, row.succ_start + row.succ_count):
        after = state.programs.succ[k]
        other = state.nodes[instance.node0 + after]
        other.waits -= 1
        if other.waits == 0:
            make_ready(state, instance.node0 + after, instance.row0 + after)


@kernel(allocates=False)
def take(state: EngineState, number: int) -> int:
    """The node that a lane issues next, or -1. The lane is then busy with it."""
    lane, programs = state.lanes[number], state.programs
    if lane.busy >= 0:
        return -1
    instance = state.instances[lane.instance]
    of_program = instance.program_lane0 + number - instance.lane0
    first = programs.lane_first[of_program]
    if state.rules.strict:
        if lane.count == programs.lane_first[of_program + 1] - first:
            return -1
        node = instance.node0 + programs.lane_rows[instance.row0 + first + lane.count]
        if state.nodes[node].waits != 0:
            return -1
        lane.count += 1
    elif instance.leader >= 0:
        leader = state.instances[instance.leader]
        if lane.taken == state.lanes[leader.lane0 + number - instance.lane0].taken:
            return -1
        node = instance.node0 + state.taken[leader.node0 + first + lane.taken]
        if state.nodes[node].waits != 0:
            return -1
        lane.taken += 1
    else:
        if lane.count == 0:
            return -1
        key = pop_key(state.ready[instance.node0 + first :], lane.count)
        lane.count -= 1
        row = programs.lane_rows[instance.row0 + first + (key & 0xFFFFFFFF)]
        node = instance.node0 + row
        if instance.follower >= 0:
            state.taken[instance.node0 + first + lane.taken] = row
            lane.taken += 1
            call_followers(state, instance.follower, number - instance.lane0)
    lane.busy = node
    return node


@kernel(allocates=False)
def call_followers(state: EngineState, follower: int, of_program: int) -> None:
    """Marks the same lane of all followers of a rank for this round."""
    while follower >= 0:
        instance = state.instances[follower]
        if state.lanes[instance.lane0 + of_program].busy < 0:
            touch(state, instance.lane0 + of_program)
        follower = instance.next_follower


@kernel(allocates=False)
def wake(state: EngineState) -> None:
    """Starts ranks whose time has come: their nodes without dependencies become ready. Sets the time of the next
    start."""
    clock, instances = state.clock[0], state.instances
    clock.wake_ns = NEVER
    for i in range(len(instances)):
        start_ns = instances[i].start_ns
        if start_ns > clock.now_ns:
            clock.wake_ns = min(clock.wake_ns, start_ns)
        elif start_ns == clock.now_ns:
            end = instances[i + 1].node0 if i + 1 < len(instances) else len(state.nodes)
            for node in range(instances[i].node0, end):
                if state.nodes[node].waits == 0:
                    make_ready(state, node, row_of(state, node))


@kernel(allocates=False)
def choose(state: EngineState) -> int:
    """The nodes that start now: starting[:count], where count is returned. Nodes without a lane, and one per free
    lane."""
    clock, starting = state.clock[0], state.starting
    count = clock.starting
    k = 0
    while k < clock.touched:  # a choice may mark further lanes
        lane = state.touched[k]
        state.lanes[lane].is_touched = 0
        node = take(state, lane)
        if node >= 0:
            starting[count] = node
            count += 1
        k += 1
    clock.touched = 0
    clock.starting = 0
    for k in range(count):
        state.nodes[starting[k]].start_ns = clock.now_ns
    return count


@kernel(allocates=False)
def starts_with_operation(state: EngineState, node: int, begin_ns: int) -> None:
    """A member without a lane starts when its operation begins, if it arrived earlier."""
    it = state.nodes[node]
    if state.programs.rows[row_of(state, node)].lane < 0 and it.start_ns < begin_ns <= state.clock[0].now_ns:
        it.start_ns = begin_ns

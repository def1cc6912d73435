"""Chunks of a collective on their way through the dimensions: phases, queues and whose turn it is."""

from etude.kernels.compile import kernel
from etude.run.astra.kernels.algorithms import begin, final_bytes
from etude.run.astra.kernels.events import give, take
from etude.run.astra.state import BINARY_TREE, NONE, POOL_FULL, TURN_ALL, TURN_FIRST_HALF


@kernel(allocates=False)
def _take_turn(turns, queues, turn):
    """The queue of a dimension that is next in turn, and the direction its ring runs."""
    half = queues // 2
    at = turns[turn]
    if turn == TURN_ALL:
        turns[turn] = (at + 1) % queues
        return at, -1 if queues > 1 and at >= half else 1
    if turn == TURN_FIRST_HALF:
        turns[turn] = (at + 1) % max(half, 1)
        return at, 1
    turns[turn] = (at + 1) % (queues - half)
    return half + at, -1


@kernel(allocates=False)
def _lay_out_phases(machine, number, plan, size):
    """Fill the stream's phases: where each one queues, which way it runs and how many bytes it starts with."""
    streams, queues = machine.streams, machine.wires.settings[0].queues
    rank, first = streams.streams[number].rank, streams.plan_start[plan]
    for at in range(first, streams.plan_start[plan + 1]):
        template, phase = streams.templates[at], streams.phases[number, at - first]
        queue, direction = _take_turn(streams.turns[rank, template.level], queues, template.turn)
        phase.template, phase.queue = at, template.level * queues + queue
        phase.direction, phase.bytes = direction, size
        if template.algorithm == BINARY_TREE:
            phase.mirror = streams.trees[rank, template.tree]
            streams.trees[rank, template.tree] = 1 - phase.mirror
        size = final_bytes(template, size)


@kernel(allocates=False)
def _start(machine, number):
    """Begin the stream's current phase: find its place in the ring and start the algorithm."""
    streams = machine.streams
    stream = streams.streams[number]
    phase = streams.phases[number, stream.phase]
    template = streams.templates[phase.template]
    stream.algorithm, stream.collective, stream.size = template.algorithm, template.collective, template.size
    stream.stride, stream.group = template.stride, template.group
    stream.direction, stream.toggle = phase.direction, phase.mirror
    index = (stream.rank // template.stride) % template.size
    if template.group >= 0:
        index = stream.member
    elif template.starts_tree_globally == 1:
        index = stream.rank // template.stride
    stream.index, stream.base = index, stream.rank - index * template.stride
    begin(machine, number, phase.bytes, template.window)


@kernel(allocates=False)
def _queue_of(streams, number):
    stream = streams.streams[number]
    return streams.queues[stream.rank, streams.phases[number, stream.phase].queue]


@kernel(allocates=False)
def _line_up(streams, queue, number):
    streams.streams[number].next = NONE
    if queue.head == NONE:
        queue.head = number
    else:
        streams.streams[queue.tail].next = number
    queue.tail = number


@kernel(allocates=False)
def _step_out(streams, queue, number):
    before, at = NONE, queue.head
    while at != number:
        before, at = at, streams.streams[at].next
    after = streams.streams[number].next
    if before == NONE:
        queue.head = after
    else:
        streams.streams[before].next = after
    if after == NONE:
        queue.tail = before
    queue.running -= 1


@kernel(allocates=False)
def _start_waiting(machine, queue):
    """Start streams in line as long as the queue runs fewer than it may; started ones are always in front."""
    at_once, streams = machine.wires.settings[0].at_once, machine.streams.streams
    if queue.running >= at_once:
        return
    at = queue.head
    for _ in range(queue.running):
        at = streams[at].next
    while at != NONE and queue.running < at_once:
        _start(machine, at)
        queue.running += 1
        at = streams[at].next


@kernel(allocates=False)
def open_chunks(machine, collective, rank, node, first_tag):
    """Cut a collective into chunks on one rank and line them up; chunk k gets tag first_tag + k."""
    streams, clock = machine.streams, machine.queue.clock[0]
    plan = collective.plan
    for chunk in range(collective.chunks):
        number = take(streams.streams, clock)
        if clock.status == POOL_FULL:
            return
        stream = streams.streams[number]
        stream.rank, stream.node, stream.tag, stream.member = rank, node, first_tag + chunk, collective.member
        stream.phase, stream.phases = 0, streams.plan_start[plan + 1] - streams.plan_start[plan]
        _lay_out_phases(machine, number, plan, collective.chunk_bytes)
        queue = _queue_of(streams, number)
        _line_up(streams, queue, number)
        _start_waiting(machine, queue)


@kernel(allocates=False)
def next_phase(machine, number):
    """Move a stream that has finished a phase, but not its last, to the queue of the next one."""
    streams = machine.streams
    old = _queue_of(streams, number)
    _step_out(streams, old, number)
    streams.streams[number].phase += 1
    new = _queue_of(streams, number)
    _line_up(streams, new, number)
    _start_waiting(machine, old)
    _start_waiting(machine, new)


@kernel(allocates=False)
def close_stream(machine, number):
    """Take a finished stream out of its queue and start whoever waits there."""
    queue = _queue_of(machine.streams, number)
    _step_out(machine.streams, queue, number)
    _start_waiting(machine, queue)
    give(machine.streams.streams, number)

"""Chunks of a collective on their way through the dimensions: phases, queues and whose turn it is."""

from etude.astra.kernels.algorithms import begin, final_bytes
from etude.astra.kernels.compiling import kernel
from etude.astra.kernels.events import give, take
from etude.astra.layout import (
    AT_ONCE,
    AT_QUEUES,
    AT_RANKS,
    AT_STREAMS,
    BINARY_TREE,
    COLL_CHUNK_BYTES,
    COLL_CHUNKS,
    COLL_MEMBER,
    COLL_PLAN,
    DIMS,
    FREE_STREAM,
    NONE,
    NUM_PHASE,
    NUM_PLAN,
    NUM_QUEUE,
    NUM_STREAM,
    PHASE_BYTES,
    PHASE_DIRECTION,
    PHASE_MIRROR,
    PHASE_QUEUE,
    PHASE_TEMPLATE,
    PLAN_COM,
    PLAN_GROUP,
    PLAN_IMPL,
    PLAN_LEVEL,
    PLAN_SIZE,
    PLAN_STRIDE,
    PLAN_TREE,
    PLAN_TREE_START_GLOBAL,
    PLAN_TURN,
    PLAN_WINDOW,
    POOL_FULL,
    QUEUE_HEAD,
    QUEUE_RUNNING,
    QUEUE_TAIL,
    QUEUES,
    RANK_FIXED,
    RANK_WIDTH,
    ST_BASE,
    ST_COM,
    ST_DIRECTION,
    ST_GROUP,
    ST_IMPL,
    ST_INDEX,
    ST_MEMBER,
    ST_N,
    ST_NEXT,
    ST_NODE,
    ST_PHASE,
    ST_PHASES,
    ST_RANK,
    ST_STRIDE,
    ST_TAG,
    ST_TOGGLE,
    STATUS,
    STREAM_WIDTH,
    TAB_PLAN_START,
    TAB_PLANS,
    TURN_ALL,
    TURN_FIRST_HALF,
)


@kernel
def _take_turn(mem, tab, counter, turn):
    """The queue of a dimension that is next in turn, and the direction its ring runs."""
    queues = tab[QUEUES]
    half = queues // 2
    at = mem[counter]
    if turn == TURN_ALL:
        mem[counter] = (at + 1) % queues
        return at, -1 if queues > 1 and at >= half else 1
    if turn == TURN_FIRST_HALF:
        mem[counter] = (at + 1) % max(half, 1)
        return at, 1
    mem[counter] = (at + 1) % (queues - half)
    return half + at, -1


@kernel
def _lay_out_phases(mem, tab, stream, plan, size):
    """Fill the stream's phases: where each one queues, which way it runs and how many bytes it starts with."""
    counters = mem[AT_RANKS] + mem[stream + ST_RANK] * mem[RANK_WIDTH] + RANK_FIXED
    phase = stream + NUM_STREAM
    for template in range(tab[tab[TAB_PLAN_START] + plan], tab[tab[TAB_PLAN_START] + plan + 1]):
        p = tab[TAB_PLANS] + template * NUM_PLAN
        level, turn = tab[p + PLAN_LEVEL], tab[p + PLAN_TURN]
        queue, direction = _take_turn(mem, tab, counters + 3 * level + turn, turn)
        mem[phase + PHASE_TEMPLATE] = p
        mem[phase + PHASE_QUEUE] = level * tab[QUEUES] + queue
        mem[phase + PHASE_DIRECTION] = direction
        mem[phase + PHASE_BYTES] = size
        if tab[p + PLAN_IMPL] == BINARY_TREE:
            counter = counters + 3 * tab[DIMS] + tab[p + PLAN_TREE]
            mem[phase + PHASE_MIRROR] = mem[counter]
            mem[counter] = 1 - mem[counter]
        size = final_bytes(tab[p + PLAN_IMPL], tab[p + PLAN_COM], tab[p + PLAN_SIZE], size)
        phase += NUM_PHASE


@kernel
def _start(mem, tab, rate, stream):
    """Begin the stream's current phase: find its place in the ring and start the algorithm."""
    phase = stream + NUM_STREAM + mem[stream + ST_PHASE] * NUM_PHASE
    p = mem[phase + PHASE_TEMPLATE]
    rank, stride, n = mem[stream + ST_RANK], tab[p + PLAN_STRIDE], tab[p + PLAN_SIZE]
    mem[stream + ST_IMPL], mem[stream + ST_COM] = tab[p + PLAN_IMPL], tab[p + PLAN_COM]
    mem[stream + ST_N], mem[stream + ST_STRIDE], mem[stream + ST_GROUP] = n, stride, tab[p + PLAN_GROUP]
    mem[stream + ST_DIRECTION], mem[stream + ST_TOGGLE] = mem[phase + PHASE_DIRECTION], mem[phase + PHASE_MIRROR]
    index = (rank // stride) % n
    if tab[p + PLAN_GROUP] >= 0:
        index = mem[stream + ST_MEMBER]
    elif tab[p + PLAN_TREE_START_GLOBAL] == 1:
        index = rank // stride
    mem[stream + ST_INDEX] = index
    mem[stream + ST_BASE] = rank - index * stride
    begin(mem, tab, rate, stream, mem[phase + PHASE_BYTES], tab[p + PLAN_WINDOW])


@kernel
def _queue_of(mem, tab, stream):
    queue = mem[stream + NUM_STREAM + mem[stream + ST_PHASE] * NUM_PHASE + PHASE_QUEUE]
    return mem[AT_QUEUES] + (mem[stream + ST_RANK] * tab[QUEUES] * tab[DIMS] + queue) * NUM_QUEUE


@kernel
def _line_up(mem, queue, stream):
    mem[stream + ST_NEXT] = NONE
    if mem[queue + QUEUE_HEAD] == NONE:
        mem[queue + QUEUE_HEAD] = stream
    else:
        mem[mem[queue + QUEUE_TAIL] + ST_NEXT] = stream
    mem[queue + QUEUE_TAIL] = stream


@kernel
def _step_out(mem, queue, stream):
    before, at = NONE, mem[queue + QUEUE_HEAD]
    while at != stream:
        before, at = at, mem[at + ST_NEXT]
    after = mem[stream + ST_NEXT]
    if before == NONE:
        mem[queue + QUEUE_HEAD] = after
    else:
        mem[before + ST_NEXT] = after
    if after == NONE:
        mem[queue + QUEUE_TAIL] = before
    mem[queue + QUEUE_RUNNING] -= 1


@kernel
def _start_waiting(mem, tab, rate, queue):
    """Start streams in line as long as the queue runs fewer than it may; started ones are always in front."""
    if mem[queue + QUEUE_RUNNING] >= tab[AT_ONCE]:
        return
    at = mem[queue + QUEUE_HEAD]
    for _ in range(mem[queue + QUEUE_RUNNING]):
        at = mem[at + ST_NEXT]
    while at != NONE and mem[queue + QUEUE_RUNNING] < tab[AT_ONCE]:
        _start(mem, tab, rate, at)
        mem[queue + QUEUE_RUNNING] += 1
        at = mem[at + ST_NEXT]


@kernel
def open_chunks(mem, tab, rate, collective, rank, node, first_tag):
    """Cut a collective into chunks on one rank and line them up; chunk k gets tag first_tag + k."""
    plan = tab[collective + COLL_PLAN]
    phases = tab[tab[TAB_PLAN_START] + plan + 1] - tab[tab[TAB_PLAN_START] + plan]
    for chunk in range(tab[collective + COLL_CHUNKS]):
        stream = take(mem, AT_STREAMS, FREE_STREAM, mem[STREAM_WIDTH])
        if mem[STATUS] == POOL_FULL:
            return
        mem[stream + ST_RANK], mem[stream + ST_NODE], mem[stream + ST_TAG] = rank, node, first_tag + chunk
        mem[stream + ST_MEMBER] = tab[collective + COLL_MEMBER]
        mem[stream + ST_PHASE], mem[stream + ST_PHASES] = 0, phases
        _lay_out_phases(mem, tab, stream, plan, tab[collective + COLL_CHUNK_BYTES])
        queue = _queue_of(mem, tab, stream)
        _line_up(mem, queue, stream)
        _start_waiting(mem, tab, rate, queue)


@kernel
def next_phase(mem, tab, rate, stream):
    """Move a stream that has finished a phase, but not its last, to the queue of the next one."""
    old = _queue_of(mem, tab, stream)
    _step_out(mem, old, stream)
    mem[stream + ST_PHASE] += 1
    new = _queue_of(mem, tab, stream)
    _line_up(mem, new, stream)
    _start_waiting(mem, tab, rate, old)
    _start_waiting(mem, tab, rate, new)


@kernel
def close_stream(mem, tab, rate, stream):
    """Take a finished stream out of its queue and start whoever waits there."""
    queue = _queue_of(mem, tab, stream)
    _step_out(mem, queue, stream)
    _start_waiting(mem, tab, rate, queue)
    give(mem, AT_STREAMS, FREE_STREAM, stream)

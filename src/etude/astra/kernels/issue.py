"""The workload layer: which nodes of a rank are ready, which may run, and what running one starts."""

import numpy as np

from etude.astra.kernels.ahead import work_out
from etude.astra.kernels.compiling import kernel
from etude.astra.kernels.custom import open_custom
from etude.astra.kernels.events import call_after, call_at, stop
from etude.astra.kernels.network import receive, send
from etude.astra.kernels.streams import open_chunks
from etude.astra.layout import (
    ACT_COLLECTIVE,
    ACT_CUSTOM,
    ACT_MEMORY,
    ACT_RECEIVE,
    ACT_SEND,
    ACT_SKIP,
    ACT_TIMED,
    AMBIGUOUS,
    AT_FRESH,
    AT_LINES,
    AT_RANKS,
    AT_SERVERS,
    BACK_NODE,
    BAD_NODE,
    CALL_COLLECTIVE_DONE,
    CALL_MEMORY_FREE,
    CALL_NODE_DONE,
    COLL_CHUNK_BYTES,
    COLL_CHUNKS,
    COLL_COMM,
    COLL_MEMBER,
    COLL_PLAN,
    COMM_BYTES,
    COMM_CHUNKS,
    COMM_JOINED,
    COMM_PLAN,
    COMM_SIZE,
    COMM_START,
    COMM_STREAM,
    COMM_TAG_BASE,
    ENDLESS_CHUNKS,
    ENDPOINT_NS,
    ERROR_NODE,
    EVENT_AT_ZERO,
    FINISHED_RANKS,
    IS_AHEAD,
    LINE_COUNT,
    LINE_START,
    NODE_ACTION,
    NODE_AT_KEY,
    NODE_BYTES,
    NODE_CHILD,
    NODE_COLLECTIVE,
    NODE_DURATION,
    NODE_END,
    NODE_KEY,
    NODE_PEER,
    NODE_RANK,
    NODE_RESOURCE,
    NODE_START,
    NODE_TAG,
    NODE_WAITS,
    NONE,
    NOW,
    NUM_COLL,
    NUM_COMM,
    NUM_FRESH,
    NUM_LINE,
    NUM_PLAN,
    NUM_RESOURCES,
    NUM_SERVER,
    ON_NOTHING,
    PLAN_GROUP,
    RANK_COLLECTIVE,
    RANK_CPU,
    RANK_FINISH,
    RANK_ONGOING,
    RANK_STREAMS,
    RANK_WIDTH,
    RUNNING,
    SERVER_BUSY,
    SERVER_HEAD,
    SERVER_TAIL,
    STATUS,
    TAB_COLLECTIVES,
    TAB_COMMS,
    TAB_FINISH_NS,
    TAB_JOINED,
    TAB_JOINED_NS,
    TAB_MEMBERS,
    TAB_PLAN_START,
    TAB_PLANS,
    TAB_REG_NS,
    TAB_STREAMS,
)

TAG_RANGE = np.int64(500_000_000)


@kernel
def _push_ready(mem, small, ready, node):
    line = mem[AT_LINES] + (small[node, NODE_RANK] * NUM_RESOURCES + small[node, NODE_RESOURCE]) * NUM_LINE
    start, key = mem[line + LINE_START], small[node, NODE_KEY]
    i = mem[line + LINE_COUNT]
    mem[line + LINE_COUNT] = i + 1
    while i > 0:
        up = (i - 1) >> 1
        if ready[start + up] <= key:
            break
        ready[start + i] = ready[start + up]
        i = up
    ready[start + i] = key


@kernel
def _next_issuable(mem, small, ready, rank, first_node):
    """The ready node with the smallest id whose resource is free, taken off its heap; -1 if none."""
    row = mem[AT_RANKS] + rank * mem[RANK_WIDTH]
    lines = mem[AT_LINES] + rank * NUM_RESOURCES * NUM_LINE
    best, best_key = NONE, np.int64(0)
    for resource in range(NUM_RESOURCES):
        line = lines + resource * NUM_LINE
        if mem[line + LINE_COUNT] == 0 or (resource != ON_NOTHING and mem[row + RANK_CPU + resource] != 0):
            continue
        key = np.int64(ready[mem[line + LINE_START]])
        if best == NONE or key < best_key:
            best, best_key = line, key
    if best == NONE:
        return best
    start, n = mem[best + LINE_START], mem[best + LINE_COUNT] - 1
    mem[best + LINE_COUNT] = n
    key = np.int64(ready[start + n])
    i = 0
    while True:
        down = 2 * i + 1
        if down >= n:
            break
        if down + 1 < n and ready[start + down + 1] < ready[start + down]:
            down += 1
        if key <= ready[start + down]:
            break
        ready[start + i] = ready[start + down]
        i = down
    ready[start + i] = key
    return np.int64(small[first_node + best_key, NODE_AT_KEY])


@kernel
def finish(mem, small, large, child, ready, node, is_pass_open):
    """Give back the node's resource and count down its children. Ready ones join their heap, or wait for the next
    pass if one is under way."""
    row = mem[AT_RANKS] + small[node, NODE_RANK] * mem[RANK_WIDTH]
    resource = small[node, NODE_RESOURCE]
    large[node, NODE_END] = mem[NOW]
    mem[row + RANK_ONGOING] -= 1
    if resource != ON_NOTHING:
        mem[row + RANK_CPU + resource] -= 1
    for at in range(large[node, NODE_CHILD], large[node + 1, NODE_CHILD]):
        c = np.int64(child[at])
        small[c, NODE_WAITS] -= 1
        if small[c, NODE_WAITS] == 0:
            if is_pass_open:
                mem[mem[AT_FRESH] + mem[NUM_FRESH]] = c
                mem[NUM_FRESH] += 1
            else:
                _push_ready(mem, small, ready, c)


@kernel
def _issue_memory(mem, small, large, node):
    """Ask a remote memory; those that several ranks share serve one request at a time. A node that waits keeps who
    is behind it in the word of its tag."""
    peer, rank = np.int64(small[node, NODE_PEER]), np.int64(small[node, NODE_RANK])
    server = mem[AT_SERVERS] + peer * NUM_SERVER
    if peer >= 0 and mem[server + SERVER_BUSY] != 0:
        small[node, NODE_TAG] = NONE
        if mem[server + SERVER_HEAD] == NONE:
            mem[server + SERVER_HEAD] = node
        else:
            small[mem[server + SERVER_TAIL], NODE_TAG] = node
        mem[server + SERVER_TAIL] = node
        return
    call_after(mem, rank, large[node, NODE_DURATION], CALL_NODE_DONE, node, NONE)
    if peer >= 0:
        call_after(mem, rank, large[node, NODE_DURATION], CALL_MEMORY_FREE, node, NONE)
        mem[server + SERVER_BUSY] = 1


@kernel
def memory_free(mem, small, large, node):
    server = mem[AT_SERVERS] + small[node, NODE_PEER] * NUM_SERVER
    waiting = mem[server + SERVER_HEAD]
    mem[server + SERVER_BUSY] = 0
    if waiting != NONE:
        mem[server + SERVER_HEAD] = small[waiting, NODE_TAG]
        _issue_memory(mem, small, large, waiting)


@kernel
def _is_other(tab, comm, c, stream):
    """Whether a rank joins with something else than the collective that is being joined."""
    return (
        tab[comm + COMM_STREAM] != stream
        or tab[comm + COMM_PLAN] != tab[c + COLL_PLAN]
        or tab[comm + COMM_BYTES] != tab[c + COLL_CHUNK_BYTES]
        or tab[comm + COMM_CHUNKS] != tab[c + COLL_CHUNKS]
    )


@kernel
def _join(mem, tab, c, row, stream):
    """Join a collective. True for the last member to join."""
    comm = tab[TAB_COMMS] + tab[c + COLL_COMM] * NUM_COMM
    plan = tab[c + COLL_PLAN]
    if tab[comm + COMM_JOINED] == 0:
        tab[comm + COMM_STREAM], tab[comm + COMM_PLAN] = stream, plan
        tab[comm + COMM_BYTES], tab[comm + COMM_CHUNKS] = tab[c + COLL_CHUNK_BYTES], tab[c + COLL_CHUNKS]
    elif _is_other(tab, comm, c, stream):
        stop(mem, AMBIGUOUS)
        return False
    template = tab[TAB_PLANS] + tab[tab[TAB_PLAN_START] + plan] * NUM_PLAN
    if mem[NOW] == 0 and tab[ENDPOINT_NS] == 0 and tab[template + PLAN_GROUP] < 0:
        stop(mem, EVENT_AT_ZERO)
    slot = tab[comm + COMM_START] + tab[c + COLL_MEMBER]
    tab[tab[TAB_JOINED_NS] + slot], tab[tab[TAB_JOINED] + slot] = mem[NOW], row
    tab[comm + COMM_JOINED] += 1
    if tab[comm + COMM_JOINED] < tab[comm + COMM_SIZE]:
        return False
    tab[comm + COMM_JOINED] = 0
    return True


@kernel
def _announce(mem, side, tab, comm):
    """Put the finish of every member of a collective that has been worked out on its rank's list."""
    if side[STATUS] != RUNNING:
        stop(mem, side[STATUS])
        return
    start = tab[comm + COMM_START]
    for i in range(start, start + tab[comm + COMM_SIZE]):
        call_at(
            mem,
            tab[tab[TAB_MEMBERS] + i],
            tab[tab[TAB_FINISH_NS] + i],
            CALL_COLLECTIVE_DONE,
            tab[tab[TAB_JOINED] + i],
            NONE,
            tab[tab[TAB_REG_NS] + i],
        )


@kernel
def _next_stream(mem, tab, c, rank):
    """The number of a collective's first stream on its rank; -1 if the original never starts one.

    Streams of a group are numbered by the group, but count on the rank's own counter too.
    """
    r = mem[AT_RANKS] + rank * mem[RANK_WIDTH]
    plan, comm_row, chunks = tab[c + COLL_PLAN], tab[c + COLL_COMM], tab[c + COLL_CHUNKS]
    mem[r + RANK_COLLECTIVE] = 1
    if tab[tab[TAB_PLAN_START] + plan] == tab[tab[TAB_PLAN_START] + plan + 1]:
        return NONE  # no dimension takes part
    if tab[c + COLL_CHUNK_BYTES] == 0:
        if chunks > 0:
            stop(mem, ENDLESS_CHUNKS)
        return NONE
    stream = mem[r + RANK_STREAMS]
    mem[r + RANK_STREAMS] += chunks
    if comm_row > 0:
        comm = tab[TAB_COMMS] + comm_row * NUM_COMM
        slot = tab[TAB_STREAMS] + tab[comm + COMM_START] + tab[c + COLL_MEMBER]
        stream = tab[comm + COMM_TAG_BASE] + tab[slot]
        tab[slot] += chunks
    return stream


@kernel
def issue_ready(mem, side, tab, rate, small, large, child, ready, rank, first_node):
    """One pass over the ready nodes in ascending id; what becomes ready meanwhile waits for the next pass."""
    row = mem[AT_RANKS] + rank * mem[RANK_WIDTH]
    mem[NUM_FRESH] = 0
    while mem[STATUS] == RUNNING:
        node = _next_issuable(mem, small, ready, rank, first_node)
        if node == NONE:
            break
        action, resource = small[node, NODE_ACTION], small[node, NODE_RESOURCE]
        large[node, NODE_START] = mem[NOW]
        mem[row + RANK_ONGOING] += 1
        if resource != ON_NOTHING:
            mem[row + RANK_CPU + resource] += 1
        peer, size, tag = np.int64(small[node, NODE_PEER]), large[node, NODE_BYTES], np.int64(small[node, NODE_TAG])
        if action == ACT_TIMED:
            call_after(mem, rank, large[node, NODE_DURATION], CALL_NODE_DONE, node, NONE)
        elif action == ACT_COLLECTIVE:
            c = tab[TAB_COLLECTIVES] + small[node, NODE_COLLECTIVE] * NUM_COLL
            stream = _next_stream(mem, tab, c, rank)
            if stream != NONE and tab[IS_AHEAD] == 0:
                row_c = np.int64(small[node, NODE_COLLECTIVE])
                open_chunks(mem, tab, rate, c, rank, row_c, stream % TAG_RANGE + TAG_RANGE)
            elif stream != NONE and _join(mem, tab, c, np.int64(small[node, NODE_COLLECTIVE]), stream):
                comm = tab[TAB_COMMS] + tab[c + COLL_COMM] * NUM_COMM
                work_out(side, tab, rate, comm)
                _announce(mem, side, tab, comm)
        elif action == ACT_SEND:
            send(mem, tab, rate, rank, peer, size, tag, BACK_NODE, node)
        elif action == ACT_RECEIVE:
            receive(mem, tab, rate, peer, rank, size, tag, BACK_NODE, node)
        elif action == ACT_CUSTOM:
            open_custom(mem, tab, rate, small, large, node)
        elif action == ACT_MEMORY:
            _issue_memory(mem, small, large, node)
        elif action == ACT_SKIP:
            finish(mem, small, large, child, ready, node, True)
        else:
            stop(mem, BAD_NODE)
        if mem[STATUS] != RUNNING and mem[ERROR_NODE] == NONE:
            mem[ERROR_NODE] = node
    for i in range(mem[NUM_FRESH]):
        _push_ready(mem, small, ready, mem[mem[AT_FRESH] + i])
    if mem[STATUS] != RUNNING or mem[row + RANK_ONGOING] != 0:
        return
    lines = mem[AT_LINES] + rank * NUM_RESOURCES * NUM_LINE
    for resource in range(NUM_RESOURCES):
        if mem[lines + resource * NUM_LINE + LINE_COUNT] != 0:
            return
    mem[row + RANK_FINISH] = mem[NOW]
    mem[FINISHED_RANKS] += 1

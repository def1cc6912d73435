"""The event loop, as kernels over plain arrays. Nothing here makes an array, and every index was checked before.

The rule of one instant, which all networks share:

    1. apply all completions of the instant: nodes end, lanes come free, successors become ready;
    2. then issue: each free lane takes the first of its ready nodes by (priority, row), or as its policy says.

What is issued and takes no time completes in the next round of the same instant. No outcome depends on the order in
which lanes or completions of one round are visited, so runs that simulate equal ranks once and runs that simulate all
of them agree.

Tables, a row each; columns are the constants below:

    node    int32    state of a node                time    int64   its start, end and cost
    prog    int32    what a program says of a node  inst    int64   where a simulated rank's rows begin
    lane    int32    what executes in order         ready   int64   heaps of ready nodes, one for each lane
    op      int32    a collective or a message      op_time int64   its cost, begin and end
    s       int64    scalars of the whole run

A network is three functions: `post(now, op, member)`, `next_time()`, `advance(now) -> completions`; that of the
`analytic` network, whose operations last a known time from the moment all members are there, follows the lanes. Those
of the networks with links are in `network.kernels`; `step_joined`, at the end, takes turns with them.
"""

import numpy as np
from numba import njit

# Numba counts references to every array that is passed on, which takes six times as long as the work itself. Kernels
# that make no arrays can do without: whoever calls them holds the arrays.
kernel = njit(cache=True, _nrt=False)

# node
WAITS, OP, INST, NEXT = 0, 1, 2, 3
DONE = -1  # in WAITS
# time
START, END, COST = 0, 1, 2
# prog
LANE, POS, USE, FROM_OUT = 0, 1, 2, 3
COMPUTE, COMMUNICATION = 1, 2  # in USE
# inst
BASE, PROG, LANE0, PLANE0 = 0, 1, 2, 3
# lane
BUSY, COUNT, DIRTY, OWNER = 0, 1, 2, 3
# op
MISSING, HEAD, STATE, SENDER, SLOW = 0, 1, 2, 3, 4
WAITING, RUNNING, OVER = 0, 1, 2  # in STATE
# op_time
NS, BEGIN, FINISH = 0, 1, 2
# load, for overlap
COMPUTING, SENDING, SLOWS_COMM, SLOWS_COMP, CHANGED = 0, 1, 2, 3, 4
# work, for overlap
LEFT, SINCE = 0, 1
# s
(NOW, INSTANT, DONE_NODES, HEAP_SIZE, NET_SIZE, DIRTY_SIZE, LOOSE_SIZE, CHANGED_SIZE) = range(8)
(FRESH, STRICT, FIFO, OVERLAP, COMP_MILLI, COMM_MILLI, JOINS, NEXT_AT) = range(8, 16)
SCALARS = 16

NEVER = np.iinfo(np.int64).max
MILLI = 1000


# -- heaps of (time, item): ties in any order, because all of an instant are taken before anything is issued ----------


@kernel
def push(heap, size, time, item):
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if heap[up, 0] <= time:
            break
        heap[i, 0] = heap[up, 0]
        heap[i, 1] = heap[up, 1]
        i = up
    heap[i, 0] = time
    heap[i, 1] = item
    return size + 1


@kernel
def pop(heap, size):
    """Takes the top away and returns the new size."""
    size -= 1
    time = heap[size, 0]
    item = heap[size, 1]
    i = 0
    while True:
        c = 2 * i + 1
        if c >= size:
            break
        if c + 1 < size and heap[c + 1, 0] < heap[c, 0]:
            c += 1
        if heap[c, 0] >= time:
            break
        heap[i, 0] = heap[c, 0]
        heap[i, 1] = heap[c, 1]
        i = c
    heap[i, 0] = time
    heap[i, 1] = item
    return size


@kernel
def push_key(keys, first, size, key):
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if keys[first + up] <= key:
            break
        keys[first + i] = keys[first + up]
        i = up
    keys[first + i] = key


@kernel
def pop_key(keys, first, size):
    """The least key of `size` of them."""
    top = keys[first]
    size -= 1
    key = keys[first + size]
    i = 0
    while True:
        c = 2 * i + 1
        if c >= size:
            break
        if c + 1 < size and keys[first + c + 1] < keys[first + c]:
            c += 1
        if keys[first + c] >= key:
            break
        keys[first + i] = keys[first + c]
        i = c
    keys[first + i] = key
    return top


# -- nodes and lanes ---------------------------------------------------------------------------------------------------


@kernel
def touch(number, lane, dirty, s):
    """The lane is looked at when this round issues."""
    if lane[number, DIRTY] == 0:
        lane[number, DIRTY] = 1
        dirty[s[DIRTY_SIZE]] = number
        s[DIRTY_SIZE] += 1


@kernel
def make_ready(g, i, inst, prog, lane, plane_first, ready, dirty, loose, s):
    """All that node g of instance i waited for is done."""
    p = g - inst[i, BASE] + inst[i, PROG]
    local = prog[p, LANE]
    if local < 0:
        loose[s[LOOSE_SIZE]] = g
        s[LOOSE_SIZE] += 1
        return
    number = inst[i, LANE0] + local
    if s[STRICT] == 0:
        first = inst[i, BASE] + plane_first[inst[i, PLANE0] + local]
        key = np.int64(prog[p, POS])
        if s[FIFO] == 1:
            key |= s[INSTANT] << 32
        push_key(ready, first, lane[number, COUNT], key)
        lane[number, COUNT] += 1
    if lane[number, BUSY] < 0:
        touch(number, lane, dirty, s)


@kernel
def complete(g, node, time, inst, prog, succ_start, succ, lane, plane_first, ready, dirty, loose, s):
    """Node g ends now: its lane comes free, those that wait for it become ready."""
    time[g, END] = s[NOW]
    node[g, WAITS] = DONE
    s[DONE_NODES] += 1
    i = node[g, INST]
    base = inst[i, BASE]
    p = g - base + inst[i, PROG]
    if prog[p, LANE] >= 0:
        number = inst[i, LANE0] + prog[p, LANE]
        lane[number, BUSY] = -1
        touch(number, lane, dirty, s)
    for k in range(succ_start[p], succ_start[p + 1]):
        w = base + succ[k]
        node[w, WAITS] -= 1
        if node[w, WAITS] == 0:
            make_ready(w, i, inst, prog, lane, plane_first, ready, dirty, loose, s)


@kernel
def take(number, node, inst, lane, plane_first, lane_rows, ready, s):
    """The node that a lane issues next, or -1. The lane is then busy with it."""
    if lane[number, BUSY] >= 0:
        return -1
    i = lane[number, OWNER]
    local = inst[i, PLANE0] + number - inst[i, LANE0]
    first = plane_first[local]
    rows = inst[i, PROG] + first
    if s[STRICT] == 1:
        if lane[number, COUNT] == plane_first[local + 1] - first:
            return -1
        g = inst[i, BASE] + lane_rows[rows + lane[number, COUNT]]
        if node[g, WAITS] != 0:
            return -1
        lane[number, COUNT] += 1
    else:
        if lane[number, COUNT] == 0:
            return -1
        key = pop_key(ready, inst[i, BASE] + first, lane[number, COUNT])
        lane[number, COUNT] -= 1
        g = inst[i, BASE] + lane_rows[rows + (key & 0xFFFFFFFF)]
    lane[number, BUSY] = g
    return g


@kernel
def wake(node, inst, prog, lane, plane_first, ready, dirty, loose, s):
    """The very first round: nodes that wait for nothing."""
    s[FRESH] = 0
    for g in range(len(node)):
        if node[g, WAITS] == 0:
            make_ready(g, node[g, INST], inst, prog, lane, plane_first, ready, dirty, loose, s)


@kernel
def choose(node, time, inst, lane, plane_first, lane_rows, ready, dirty, loose, s):
    """The nodes that start now: loose[:count], count is returned. Those without a lane, and one of each free lane."""
    count = s[LOOSE_SIZE]
    for d in range(s[DIRTY_SIZE]):
        lane[dirty[d], DIRTY] = 0
        g = take(dirty[d], node, inst, lane, plane_first, lane_rows, ready, s)
        if g >= 0:
            loose[count] = g
            count += 1
    s[DIRTY_SIZE] = 0
    s[LOOSE_SIZE] = 0
    for j in range(count):
        time[loose[j], START] = s[NOW]
    return count


# -- overlap: compute and communication of one rank slow each other down -----------------------------------------------
#
# Work is counted in 1/1000 ns of the undisturbed rate times the factor, so that both rates are whole numbers.


@kernel
def enlist(g, i, which, members, heads):
    """Node g joins the list of nodes that compute (0) or communicate (1) on instance i."""
    head = heads[i, which]
    members[g, 0] = head
    members[g, 1] = -1
    if head >= 0:
        members[head, 1] = g
    heads[i, which] = g


@kernel
def delist(g, i, which, members, heads):
    after, before = members[g, 0], members[g, 1]
    if after >= 0:
        members[after, 1] = before
    if before >= 0:
        members[before, 0] = after
    else:
        heads[i, which] = after


@kernel
def count_load(i, which, amount, load, changed, s):
    load[i, which] += amount
    if load[i, CHANGED] == 0:
        load[i, CHANGED] = 1
        changed[s[CHANGED_SIZE]] = i
        s[CHANGED_SIZE] += 1


@kernel
def rest_ns(left, rate):
    return (left + rate - 1) // rate


@kernel
def retime_node(g, was_slow, slow, time, work, heap, s):
    fast = s[COMP_MILLI]
    work[g, LEFT] -= (s[NOW] - work[g, SINCE]) * (MILLI if was_slow else fast)
    work[g, SINCE] = s[NOW]
    time[g, END] = s[NOW] + rest_ns(work[g, LEFT], MILLI if slow else fast)
    s[HEAP_SIZE] = push(heap, s[HEAP_SIZE], time[g, END], g)


@kernel
def retime_op(o, was_slow, slow, op_time, op_work, net, s):
    fast = s[COMM_MILLI]
    op_work[o, LEFT] -= (s[NOW] - op_work[o, SINCE]) * (MILLI if was_slow else fast)
    op_work[o, SINCE] = s[NOW]
    op_time[o, FINISH] = s[NOW] + rest_ns(op_work[o, LEFT], MILLI if slow else fast)
    s[NET_SIZE] = push(net, s[NET_SIZE], op_time[o, FINISH], o)


@kernel
def share_devices(node, time, op, op_time, heap, net, work, op_work, load, members, heads, changed, s):
    """Rates of what runs, where a rank began or ended to compute or to communicate in this round."""
    for c in range(s[CHANGED_SIZE]):
        i = changed[c]
        load[i, CHANGED] = 0
        slows = 1 if load[i, COMPUTING] > 0 else 0
        if slows != load[i, SLOWS_COMM]:
            load[i, SLOWS_COMM] = slows
            g = heads[i, 1]
            while g >= 0:
                o = node[g, OP]
                before = op[o, SLOW]
                op[o, SLOW] += 1 if slows else -1
                if (before > 0) != (op[o, SLOW] > 0):
                    retime_op(o, before > 0, op[o, SLOW] > 0, op_time, op_work, net, s)
                g = members[g, 0]
        slows = 1 if load[i, SENDING] > 0 else 0
        if slows != load[i, SLOWS_COMP]:
            load[i, SLOWS_COMP] = slows
            g = heads[i, 0]
            while g >= 0:
                retime_node(g, slows == 0, slows == 1, time, work, heap, s)
                g = members[g, 0]
    s[CHANGED_SIZE] = 0


# -- the analytic network ----------------------------------------------------------------------------------------------


@kernel
def attend(o, g, node, op, load, members, heads, changed, s):
    """Where overlap counts: member g of a running operation communicates from now on."""
    i = node[g, INST]
    enlist(g, i, 1, members, heads)
    count_load(i, SENDING, 1, load, changed, s)
    op[o, SLOW] += load[i, SLOWS_COMM]


@kernel
def begin(o, node, op, op_time, net, op_work, load, members, heads, changed, s):
    op[o, STATE] = RUNNING
    op_time[o, BEGIN] = s[NOW]
    op_time[o, FINISH] = s[NOW] + op_time[o, NS]
    if s[OVERLAP] == 1 and op_time[o, NS] > 0:
        g = op[o, HEAD]
        while g >= 0:
            attend(o, g, node, op, load, members, heads, changed, s)
            g = node[g, NEXT]
        op_work[o, LEFT] = op_time[o, NS] * s[COMM_MILLI]
        op_work[o, SINCE] = s[NOW]
        op_time[o, FINISH] = s[NOW] + rest_ns(op_work[o, LEFT], MILLI if op[o, SLOW] > 0 else s[COMM_MILLI])
    s[NET_SIZE] = push(net, s[NET_SIZE], op_time[o, FINISH], o)


@kernel
def post(o, g, node, time, op, op_time, heap, net, op_work, load, members, heads, changed, s):
    """Member g comes to operation o. A collective or a rendezvous begins with its last member, an eager message with
    its sender; who comes to receive what is there already is done at once."""
    if op[o, STATE] == OVER:
        time[g, END] = s[NOW]
        s[HEAP_SIZE] = push(heap, s[HEAP_SIZE], s[NOW], g)
        return
    node[g, NEXT] = op[o, HEAD]
    op[o, HEAD] = g
    op[o, MISSING] -= 1
    if op[o, STATE] == RUNNING:
        if s[OVERLAP] == 1 and op_time[o, NS] > 0:
            before = op[o, SLOW] > 0
            attend(o, g, node, op, load, members, heads, changed, s)
            if before != (op[o, SLOW] > 0):
                retime_op(o, before, True, op_time, op_work, net, s)
    elif op[o, MISSING] == 0 or op[o, SENDER] == g:
        begin(o, node, op, op_time, net, op_work, load, members, heads, changed, s)


@kernel
def next_time(net, s):
    """When the next operation ends; NEVER if none is under way."""
    return net[0, 0] if s[NET_SIZE] > 0 else NEVER


@kernel
def advance(op, op_time, net, over, s):
    """Operations that end now: over[:count], count is returned."""
    count = 0
    while s[NET_SIZE] > 0 and net[0, 0] == s[NOW]:
        o = net[0, 1]
        s[NET_SIZE] = pop(net, s[NET_SIZE])
        if op[o, STATE] != OVER and op_time[o, FINISH] == s[NOW]:  # else it was given another end since
            op[o, STATE] = OVER
            over[count] = o
            count += 1
    return count


@kernel
def release_member(g, o, node, time, inst, prog, op_time, load, members, heads, changed, s):
    """What the end of operation o means for its member g, apart from being complete."""
    i = node[g, INST]
    if prog[g - inst[i, BASE] + inst[i, PROG], LANE] < 0 and time[g, START] < op_time[o, BEGIN]:
        time[g, START] = op_time[o, BEGIN]
    if s[OVERLAP] == 1 and op_time[o, NS] > 0:
        delist(g, i, 1, members, heads)
        count_load(i, SENDING, -1, load, changed, s)


@kernel
def run_alone(g, node, time, inst, prog, heap, work, load, members, heads, changed, s):
    """Node g, which needs no operation, starts now."""
    cost = time[g, COST]
    if s[OVERLAP] == 1 and cost > 0:
        i = node[g, INST]
        if prog[g - inst[i, BASE] + inst[i, PROG], USE] == COMPUTE:
            work[g, LEFT] = cost * s[COMP_MILLI]
            work[g, SINCE] = s[NOW]
            enlist(g, i, 0, members, heads)
            count_load(i, COMPUTING, 1, load, changed, s)
            cost = rest_ns(work[g, LEFT], MILLI if load[i, SLOWS_COMP] else s[COMP_MILLI])
    time[g, END] = s[NOW] + cost
    s[HEAP_SIZE] = push(heap, s[HEAP_SIZE], time[g, END], g)


@kernel
def step(
    max_events, s, node, time, prog, succ_start, succ, inst, lane, plane_first, lane_rows, ready, dirty, loose,
    op, op_time, over, heap, net, work, op_work, load, members, heads, changed,
):  # fmt: skip
    """Runs until about `max_events` nodes are done or nothing more can happen; True while there is more to do."""
    stop = s[DONE_NODES] + max_events
    overlap = s[OVERLAP] == 1
    while s[DONE_NODES] < stop:
        if s[FRESH] == 1:
            wake(node, inst, prog, lane, plane_first, ready, dirty, loose, s)
        else:
            t = min(heap[0, 0] if s[HEAP_SIZE] > 0 else NEVER, next_time(net, s))
            if t == NEVER:
                return False
            if overlap and min(len(heap) - s[HEAP_SIZE], len(net) - s[NET_SIZE]) < 2 * len(node):
                return True  # a round may give each node another end, twice: the caller makes room
            if t != s[NOW]:
                s[NOW] = t
                s[INSTANT] += 1
        while s[HEAP_SIZE] > 0 and heap[0, 0] == s[NOW]:
            g = heap[0, 1]
            s[HEAP_SIZE] = pop(heap, s[HEAP_SIZE])
            if node[g, WAITS] == DONE or time[g, END] != s[NOW]:
                continue  # it was given another end since
            if overlap and node[g, OP] < 0 and work[g, SINCE] >= 0:
                delist(g, node[g, INST], 0, members, heads)
                count_load(node[g, INST], COMPUTING, -1, load, changed, s)
            complete(g, node, time, inst, prog, succ_start, succ, lane, plane_first, ready, dirty, loose, s)
        for k in range(advance(op, op_time, net, over, s)):
            g = op[over[k], HEAD]
            while g >= 0:
                release_member(g, over[k], node, time, inst, prog, op_time, load, members, heads, changed, s)
                complete(g, node, time, inst, prog, succ_start, succ, lane, plane_first, ready, dirty, loose, s)
                g = node[g, NEXT]
        for j in range(choose(node, time, inst, lane, plane_first, lane_rows, ready, dirty, loose, s)):
            g = loose[j]
            if node[g, OP] >= 0:
                post(node[g, OP], g, node, time, op, op_time, heap, net, op_work, load, members, heads, changed, s)
            else:
                run_alone(g, node, time, inst, prog, heap, work, load, members, heads, changed, s)
        if overlap and s[CHANGED_SIZE] > 0:
            share_devices(node, time, op, op_time, heap, net, work, op_work, load, members, heads, changed, s)
    return True


# -- networks with links -----------------------------------------------------------------------------------------------
#
# via[o] is the number of operation o on the network, -1 where it lasts a known time instead. The places of network
# operation v are those from place0[v] to place0[v + 1], one for each member; spot[g] is the place of node g,
# seat its inverse (-1: no node), and arrived says that the network is done with the place.


@kernel
def come(g, o, node, time, op, op_time, heap, load, changed, via, place0, spot, arrived, joins, s):
    """Member g comes to an operation of the network: joins[:s[JOINS]] is who is to join it there. An eager message
    goes off with its sender, so that both its ends join at once. Its rank communicates from now on."""
    at = spot[g]
    v = via[o]
    if arrived[at] == 1:
        time[g, END] = s[NOW]
        s[HEAP_SIZE] = push(heap, s[HEAP_SIZE], s[NOW], g)
        return
    op[o, MISSING] -= 1
    if s[OVERLAP] == 1:
        count_load(node[g, INST], SENDING, 1, load, changed, s)
    eager = op[o, SENDER] >= 0
    if op[o, SENDER] == g or (op[o, MISSING] == 0 and not eager and place0[v + 1] - place0[v] == 2):
        op_time[o, BEGIN] = s[NOW]
    if eager and op[o, SENDER] != g:
        return
    for member in range(2 if eager else 1):
        joins[s[JOINS], 0] = v
        joins[s[JOINS], 1] = member if eager else at - place0[v]
        s[JOINS] += 1


@kernel
def leave(g, o, node, time, inst, prog, op_time, s):
    """A member that holds no lane starts when its message does, or where it is one of two, when both have come."""
    i = node[g, INST]
    if prog[g - inst[i, BASE] + inst[i, PROG], LANE] < 0 and time[g, START] < op_time[o, BEGIN] <= s[NOW]:
        time[g, START] = op_time[o, BEGIN]


@kernel
def step_joined(
    limit, ended_at, ended_n, max_events,
    s, node, time, prog, succ_start, succ, inst, lane, plane_first, lane_rows, ready, dirty, loose,
    op, op_time, over, heap, net, work, op_work, load, members, heads, changed,
    via, place0, spot, seat, arrived, ended, joins,
):  # fmt: skip
    """Runs all rounds up to the time `limit`, or to the end of the first instant in which somebody joins an operation
    of the network. First come the members in ended[:ended_n], rows of (operation, member) with which the network was
    done at `ended_at`, which is not after anything here. s[NEXT_AT] is then when the next round would be."""
    stop = s[DONE_NODES] + max_events
    overlap = s[OVERLAP] == 1
    s[JOINS] = 0
    while True:
        if s[FRESH] == 1:
            wake(node, inst, prog, lane, plane_first, ready, dirty, loose, s)
        else:
            t = min(heap[0, 0] if s[HEAP_SIZE] > 0 else NEVER, next_time(net, s))
            if ended_n > 0:
                t = ended_at
            s[NEXT_AT] = t
            if overlap and ended_n == 0 and min(len(heap) - s[HEAP_SIZE], len(net) - s[NET_SIZE]) < 2 * len(node):
                return  # as in `step`: the caller makes room
            if t == NEVER or (ended_n == 0 and t > limit) or (s[JOINS] > 0 and t != s[NOW]) or s[DONE_NODES] >= stop:
                return
            if t != s[NOW]:
                s[NOW] = t
                s[INSTANT] += 1
        while s[HEAP_SIZE] > 0 and heap[0, 0] == s[NOW]:
            g = heap[0, 1]
            s[HEAP_SIZE] = pop(heap, s[HEAP_SIZE])
            if overlap:
                if node[g, WAITS] == DONE or time[g, END] != s[NOW]:
                    continue  # it was given another end since
                if node[g, OP] < 0 and work[g, SINCE] >= 0:
                    delist(g, node[g, INST], 0, members, heads)
                    count_load(node[g, INST], COMPUTING, -1, load, changed, s)
            complete(g, node, time, inst, prog, succ_start, succ, lane, plane_first, ready, dirty, loose, s)
        for k in range(advance(op, op_time, net, over, s)):
            g = op[over[k], HEAD]
            while g >= 0:
                release_member(g, over[k], node, time, inst, prog, op_time, load, members, heads, changed, s)
                complete(g, node, time, inst, prog, succ_start, succ, lane, plane_first, ready, dirty, loose, s)
                g = node[g, NEXT]
        for k in range(ended_n):
            at = place0[ended[k, 0]] + ended[k, 1]
            arrived[at] = 1
            g = seat[at]
            if g >= 0 and time[g, START] >= 0:
                leave(g, node[g, OP], node, time, inst, prog, op_time, s)
                if overlap:
                    count_load(node[g, INST], SENDING, -1, load, changed, s)
                complete(g, node, time, inst, prog, succ_start, succ, lane, plane_first, ready, dirty, loose, s)
        ended_n = 0
        for j in range(choose(node, time, inst, lane, plane_first, lane_rows, ready, dirty, loose, s)):
            g = loose[j]
            o = node[g, OP]
            if o < 0:
                run_alone(g, node, time, inst, prog, heap, work, load, members, heads, changed, s)
            elif via[o] < 0:
                post(o, g, node, time, op, op_time, heap, net, op_work, load, members, heads, changed, s)
            else:
                come(g, o, node, time, op, op_time, heap, load, changed, via, place0, spot, arrived, joins, s)
        if overlap and s[CHANGED_SIZE] > 0:
            share_devices(node, time, op, op_time, heap, net, work, op_work, load, members, heads, changed, s)

"""The event loop over requests and passes, in compiled code.

At an instant: passes that end release their tokens and memory; transferred keys and values arrive; requests that arrive
by then go to a replica; requests whose prompt was read continue elsewhere, if prefill has separate replicas; every free
replica takes what is in its inbox and starts a pass. Replicas are served in order of their number, requests first come
first served. With `ahead` a replica chooses its next pass while one runs, as engines with asynchronous scheduling do:
what arrives meanwhile waits for the pass after it.
"""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel
from etude.world.serve import state as at
from etude.world.serve.adapters import leave_adapter
from etude.world.serve.batching import choose, shape_of, time_of
from etude.world.serve.machines import machine_nj
from etude.world.serve.prefix import release
from etude.world.serve.queues import pop_later, push_later, put_last
from etude.world.serve.reuse import answered, called
from etude.world.serve.routing import route, steal
from etude.world.serve.store import loads_begin, loads_seen, put
from etude.world.serve.transfers import hand_over, land, placed, pull


@kernel(allocates=False)
def _answered(state, i, r, now):
    """A request has its last token: its children may arrive."""
    q = state.request
    q[r, at.FINISH] = now
    answered(state.reuse, q[r, at.SESSION_OF], q[r, at.TASK], now)
    release(state, i, r)
    state.clock[at.FINISHED] += 1
    for k in range(state.child_start[r], state.child_start[r + 1]):
        child = state.child[k]
        q[child, at.MISSING] -= 1
        if q[child, at.MISSING] == 0:
            decides = q[child, at.AT] - q[child, at.ARRIVAL]
            q[child, at.ARRIVAL] += now
            q[child, at.AT] = q[child, at.ARRIVAL] + decides
            push_later(q, state.heap, state.clock, child)


@kernel(allocates=False, inline=True)
def _finish(state, i, now):
    """Ends the pass in progress on replica i."""
    q, mine = state.request, state.replica[i]
    gone = 0
    if state.store.coded != at.NOBODY:
        loads_seen(state.store, i)
    for k in range(mine[at.BATCH]):
        r, made = state.batch[i, 0, k], state.batch[i, 2, k]
        q[r, at.OUT] += made
        mine[at.MADE] += made
        mine[at.PENDING] -= made
        if q[r, at.FIRST] == at.NEVER:
            q[r, at.FIRST] = now
            if state.store.tiers:
                put(state.store, state.reuse, i, r, q[r, at.SESSION_OF], q[r, at.TASK], now)
        if q[r, at.OUT] == q[r, at.OUTPUT]:
            _answered(state, i, r, now)
            gone += 1
        elif mine[at.ROLE] == at.PREFILL:
            hand_over(q, state.clock, r)
            gone += 1
    if gone:
        kept = 0
        for k in range(mine[at.RUNNING]):
            r = state.running[i, k]
            if q[r, at.FINISH] == at.NEVER and not (mine[at.ROLE] == at.PREFILL and q[r, at.OUT]):
                state.running[i, kept] = r
                kept += 1
            elif mine[at.ADAPTERS]:
                leave_adapter(q, mine, state.adapter[i], r, now)
        mine[at.RUNNING] = kept
    mine[at.BATCH] = at.NOBODY
    mine[at.END] = at.NEVER


@kernel(allocates=False)
def _begin(state, mine, batch, put_together, clock, energy_nj, machines, log, i, now, time_ns):
    """Replica i starts its next pass."""
    mine[at.BATCH] = mine[at.AHEAD]
    mine[at.AHEAD] = at.NOBODY
    for k in range(mine[at.BATCH]):
        batch[0, k] = batch[1, k]
        batch[2, k] = batch[3, k]
    mine[at.END] = now + time_ns
    mine[at.PASSES] += 1
    mine[at.BUSY] += time_ns
    mine[at.MOVED] = 0
    mine[at.LOADING] = 0
    if state.store.coded != at.NOBODY:
        loads_begin(state.store, i)
    shape = shape_of(put_together)
    work_nj = machine_nj(machines, mine[at.KIND], shape, time_ns)
    energy_nj[i] += work_nj
    if len(log):
        row = log[clock[at.LOGGED]]
        row[0], row[1], row[2] = i, now, now + time_ns
        row[3], row[4], row[5] = shape.prompt_tokens, shape.decode, shape.decode_keys
        row[6], row[7], row[8], row[9] = mine[at.USED], mine[at.WAITING + 2], mine[at.CACHED], np.int64(work_nj)
        row[10], row[11], row[12] = mine[at.EXTRA], mine[at.EXTRA_NS], mine[at.SLACK_NS]
        clock[at.LOGGED] += 1


@kernel(allocates=False, inline=True)
def _joined(mine, rules):
    """Replicas that decode wait for one another at a barrier, those that only prefill do not."""
    return rules.barrier and mine[at.ROLE] != at.PREFILL


@kernel(allocates=False, inline=True)
def _start(state, rules, machines, log, busy, now):
    """Every free replica starts its next pass; with a barrier all together, if none is busy, as long as the longest.
    False if a request never gets room."""
    longest, clock = np.int64(0), state.clock
    for i in range(len(state.replica)):
        mine = state.replica[i]
        if mine[at.END] != at.NEVER or mine[at.READY] > now or (busy and _joined(mine, rules)):
            continue
        if mine[at.AHEAD] == at.NOBODY:
            waits = mine[at.INBOX + 2] + mine[at.WAITING + 2] + mine[at.RUNNING]
            if rules.steal and not waits and not mine[at.SHUT]:
                waits = steal(state.request, state.replica, i)
            if not waits or clock[at.HALT]:
                continue
            if not choose(state, rules, machines, i, now):
                if clock[at.MISFIT] != at.NOBODY:
                    return False
                continue
        time_ns = time_of(mine, state.shape[i], rules, machines)
        mine[at.OWN] += time_ns
        if _joined(mine, rules):
            longest = max(longest, time_ns)
        else:
            _begin(state, mine, state.batch[i], state.shape[i], clock, state.energy_nj, machines, log, i, now, time_ns)
            if rules.ahead and not clock[at.HALT]:
                choose(state, rules, machines, i, now)
    if longest:
        clock[at.BARRIERS] += longest
        for i in range(len(state.replica)):
            mine = state.replica[i]
            if mine[at.AHEAD] != at.NOBODY and _joined(mine, rules):
                _begin(
                    state, mine, state.batch[i], state.shape[i], clock, state.energy_nj, machines, log, i, now, longest
                )
                if rules.ahead and not clock[at.HALT]:
                    choose(state, rules, machines, i, now)
            elif _joined(mine, rules):
                mine[at.DUMMY] += 1
    return True


@kernel(allocates=False)
def _next_arrival(q, heap, clock):
    """The request that arrives next, or NOBODY."""
    while clock[at.NEXT] < len(q) and q[clock[at.NEXT], at.PARENTS]:
        clock[at.NEXT] += 1
    r = clock[at.NEXT] if clock[at.NEXT] < len(q) else at.NOBODY
    if clock[at.HEAP] and (r == at.NOBODY or q[heap[0], at.AT] < q[r, at.AT]):
        return heap[0]
    return r


@kernel(allocates=False)
def _next_time(q, replicas, heap, clock):
    now, r = clock[at.NOW], _next_arrival(q, heap, clock)
    found = at.NEVER if r == at.NOBODY else q[r, at.AT]
    for i in range(len(replicas)):
        mine = replicas[i]
        found = min(found, mine[at.END])
        if mine[at.LANDING] != at.NOBODY:
            found = min(found, q[mine[at.LANDING], at.LANDS])
        if mine[at.READY] > now:
            found = min(found, mine[at.READY])
    return found


@kernel(allocates=False)
def _asks(clock, what, r):
    """True while a hook has not answered."""
    if clock[at.CHOSEN] != at.NOBODY:
        return False
    clock[at.ASKING] = what
    clock[at.ABOUT] = r
    return True


@kernel(allocates=False)
def _chosen(clock):
    found = clock[at.CHOSEN]
    clock[at.CHOSEN] = at.NOBODY
    return found


@kernel(allocates=False)
def _arrive(state, rules, now):
    """Requests that arrive by now go to their replicas; False if a hook is to be asked."""
    q, clock = state.request, state.clock
    r = _next_arrival(q, state.heap, clock)
    while r != at.NOBODY and q[r, at.AT] <= now:
        if rules.router == at.ASK:
            if _asks(clock, at.ROUTE, r):
                return False
            i = _chosen(clock)
        else:
            i = route(state, rules, rules.router, r, at.PROMPTS)
        if q[r, at.PARENTS]:
            pop_later(q, state.heap, clock)
        else:
            clock[at.NEXT] += 1
        called(state.reuse, q[r, at.SESSION_OF], now)
        q[r, at.REPLICA] = i
        q[r, at.DECODER] = i
        state.replica[i, at.PENDING] += q[r, at.PROMPT] + q[r, at.OUTPUT]
        put_last(q, state.replica[i], at.INBOX, r)
        r = _next_arrival(q, state.heap, clock)
    return True


@kernel(allocates=False)
def _go_on(state, rules, now):
    """Continues answers whose prompt was read elsewhere; False if a hook is to be asked."""
    clock = state.clock
    while clock[at.HAND] != at.NOBODY:
        if rules.place == at.ASK:
            if _asks(clock, at.PLACE, clock[at.HAND]):
                return False
            i = _chosen(clock)
        else:
            i = route(state, rules, rules.place, clock[at.HAND], at.ANSWERS)
        placed(state.request, state.replica, clock, i)
    for i in range(len(state.replica)):
        if state.replica[i, at.COMING] != at.NOBODY and not clock[at.HALT]:
            r = pull(state, rules, i, now)
            if r != at.NOBODY:
                _asks(clock, at.CODEC, r)
                return False
    return True


@kernel(allocates=False)
def advance(state, rules, machines, log):
    """Runs until something stops it: DONE, FULL, ASKED, STUCK, PAUSED or HALTED."""
    q, clock, replicas = state.request, state.clock, len(state.replica)
    while True:
        if len(log) and clock[at.LOGGED] + replicas > len(log):
            return at.FULL
        answered = clock[at.CHOSEN] != at.NOBODY
        now = clock[at.NOW] if answered else _next_time(q, state.replica, state.heap, clock)
        if now == at.NEVER:
            return at.DONE if clock[at.FINISHED] == len(q) else at.STUCK
        if now > clock[at.UNTIL] and not answered:
            return at.PAUSED
        clock[at.NOW] = now
        finished, busy, flying = clock[at.FINISHED], at.NONE, at.NONE
        for i in range(replicas):
            mine = state.replica[i]
            if mine[at.END] == now:
                _finish(state, i, now)
            if mine[at.LANDING] != at.NOBODY:
                land(state, rules, i, now)
            if mine[at.END] != at.NEVER and _joined(mine, rules):
                busy += 1
            flying += mine[at.LANDING + 2]
        r = _next_arrival(q, state.heap, clock)
        if r != at.NOBODY and q[r, at.AT] <= now and not _arrive(state, rules, now):
            return at.ASKED
        if rules.apart and not _go_on(state, rules, now):
            return at.ASKED
        if not _start(state, rules, machines, log, busy, now):
            return at.STUCK
        if clock[at.HALT] and not flying:
            running = False
            for i in range(replicas):
                running = running or state.replica[i, at.END] != at.NEVER
            if not running:
                return at.HALTED
        if clock[at.STOPS] and clock[at.FINISHED] > finished:
            return at.PAUSED

"""The event loop over requests and passes, in compiled code.

At an instant: passes that end release their tokens and memory; transferred keys and values arrive; requests that arrive
by then go to a replica; requests whose prompt was read continue elsewhere, if prefill has separate replicas; every free
replica takes what is in its inbox and starts a pass. Replicas are served in order of their number, requests first come
first served. With `ahead` a replica chooses its next pass while one runs, as engines with asynchronous scheduling do:
what arrives meanwhile waits for the pass after it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from etude.kernels.compile import kernel
from etude.world.serve import state as at
from etude.world.serve.adapters import leave_adapter
from etude.world.serve.batching import choose
from etude.world.serve.machines import Machines, machine_head_ns, machine_nj
from etude.world.serve.pass_content import shape_of, time_of
from etude.world.serve.prefix import release
from etude.world.serve.queues import pop_later, push_later, put_last
from etude.world.serve.reuse import answered, called
from etude.world.serve.routing import route, steal
from etude.world.serve.store import loads_begin, loads_seen, put
from etude.world.serve.transfers import land, placed, pull


@kernel(allocates=False)
def _answered(state, i, r, now):
    """A request has its last token: its children may arrive."""
    q = state.request
    asked = q[r]
    asked.finish_ns = now
    answered(state.reuse, asked.session, asked.task, now)
    release(state, i, r)
    state.clock[0].finished += 1
    if state.clock[0].stops:
        put_last(q, state.clock[0].ended, r)
    for k in range(state.child_start[r], state.child_start[r + 1]):
        child = state.child[k]
        q[child].missing -= 1
        if q[child].missing == 0:
            decides = q[child].at_ns - q[child].arrival_ns
            q[child].arrival_ns += now
            q[child].at_ns = q[child].arrival_ns + decides
            push_later(q, state.heap, state.clock[0], child)


@kernel(allocates=False, inline=True)
def _finish(state, i, now):
    """Ends the pass in progress on replica i."""
    q, mine = state.request, state.replica[i]
    gone, gap, near = 0, np.int64(0), 0
    if state.store.coded != at.NOBODY:
        loads_seen(state.store, i)
    for k in range(mine.batch):
        r, made = state.batch[i, 0, k], state.batch[i, 2, k]
        asked = q[r]
        asked.out += made
        mine.made += made
        mine.pending -= made
        if asked.first_ns == at.NEVER:
            asked.first_ns = now
            if state.store.tiers:
                put(state.store, state.reuse, i, r, asked.session, asked.task, now)
        else:
            if now - asked.token_ns != gap:  # most of a pass had their last token together
                gap = now - asked.token_ns
                near = int(math.log(max(gap, 1)) * at.GAP_GRAIN)
            state.gaps[near] += 1
        asked.token_ns = now
        if asked.out == asked.output:
            _answered(state, i, r, now)
            gone += 1
        elif mine.role == at.PREFILL:
            put_last(q, state.clock[0].hand, r)  # routed when all passes that end now are complete
            gone += 1
    if gone:
        kept = 0
        for k in range(mine.running):
            r = state.running[i, k]
            if q[r].finish_ns == at.NEVER and not (mine.role == at.PREFILL and q[r].out):
                state.running[i, kept] = r
                kept += 1
            elif mine.adapters:
                leave_adapter(q, mine, state.adapter[i], r, now)
        mine.running = kept
    mine.batch = at.NOBODY
    mine.end_ns = at.NEVER


@kernel(allocates=False)
def _begin(state, mine, batch, put_together, clock, energy_nj, machines, log, i, now, time_ns):
    """Replica i starts its next pass."""
    mine.batch = mine.ahead
    mine.ahead = at.NOBODY
    for k in range(mine.batch):
        batch[0, k] = batch[1, k]
        batch[2, k] = batch[3, k]
    mine.end_ns = now + time_ns
    mine.passes += 1
    mine.busy_ns += time_ns
    mine.moved = 0
    mine.loading_ns = 0
    if state.store.coded != at.NOBODY:
        loads_begin(state.store, i)
    shape = shape_of(put_together)
    work_nj = machine_nj(machines, mine.kind, shape, time_ns)
    energy_nj[i] += work_nj
    if len(log):
        row = log[clock.logged]
        row.replica, row.start_ns, row.end_ns = i, now, now + time_ns
        row.prompt_tokens, row.decode, row.decode_keys = shape.prompt_tokens, shape.decode, shape.decode_keys
        row.blocks, row.waiting, row.cached = mine.used, mine.waiting.count, mine.cached
        row.energy_nj = np.int64(work_nj)
        row.extra_branches, row.extra_ns, row.slack_ns = mine.extra, mine.extra_ns, mine.slack_ns
        clock.logged += 1


@kernel(allocates=False)
def _through_stages(share, free_ns, now, time_ns, head_ns):
    """Time until a pass has gone through all stages, in order; one that another pass is on is waited for. The last has
    the logits and sampling of `time_ns` in addition to its layers."""
    done, layers_ns, last = now, max(time_ns - head_ns, 0), len(share) - 1
    for stage in range(len(share)):
        own_ns = np.int64(layers_ns * share[stage]) + (time_ns - layers_ns if stage == last else 0)
        done = max(done, free_ns[stage]) + own_ns
        free_ns[stage] = done
    return done - now


@kernel(allocates=False, inline=True)
def _joined(mine, rules):
    """Replicas that decode wait for one another at a barrier, those that only prefill do not."""
    return rules.barrier and mine.role != at.PREFILL


@kernel(allocates=False, inline=True)
def _start(state, rules, machines, log, busy, now):
    """Every free replica starts its next pass; with a barrier all that are there together, if none is busy, as long as
    the longest. False if a request never gets room."""
    longest, clock = np.int64(0), state.clock[0]
    for i in range(len(state.replica)):
        mine = state.replica[i]
        if mine.end_ns != at.NEVER or mine.ready_ns > now or (busy and _joined(mine, rules)):
            continue
        if mine.ahead == at.NOBODY:
            waits = mine.inbox.count + mine.waiting.count + mine.running
            if rules.steal and not waits and not mine.shut:
                waits = steal(state.request, state.replica, i)
            if not waits or clock.halt:
                continue
            if not choose(state, rules, machines, i, now):
                if clock.misfit != at.NOBODY:
                    return False
                continue
        time_ns = time_of(mine, state.shape[i], rules, machines)
        mine.own_ns += time_ns
        if rules.stages > 1:
            head_ns = machine_head_ns(machines, mine.kind, shape_of(state.shape[i]))
            time_ns = _through_stages(state.stage_share, state.stage_ns[i // rules.stages], now, time_ns, head_ns)
        if _joined(mine, rules):
            longest = max(longest, time_ns)
        else:
            _begin(state, mine, state.batch[i], state.shape[i], clock, state.energy_nj, machines, log, i, now, time_ns)
            if rules.ahead and not clock.halt:
                choose(state, rules, machines, i, now)
    if longest:
        clock.barriers_ns += longest
        for i in range(len(state.replica)):
            mine = state.replica[i]
            if mine.ahead != at.NOBODY and _joined(mine, rules):
                _begin(
                    state, mine, state.batch[i], state.shape[i], clock, state.energy_nj, machines, log, i, now, longest
                )
                if rules.ahead and not clock.halt:
                    choose(state, rules, machines, i, now)
            elif _joined(mine, rules) and not mine.shut:
                mine.dummy += 1
    return True


@kernel(allocates=False)
def _next_arrival(q, heap, clock):
    """The request that arrives next, or NOBODY."""
    while clock.next < len(q) and q[clock.next].parents:
        clock.next += 1
    r = clock.next if clock.next < len(q) else at.NOBODY
    if clock.heap and (r == at.NOBODY or q[heap[0]].at_ns < q[r].at_ns):
        return heap[0]
    return r


@kernel(allocates=False)
def _next_time(q, replicas, heap, clock):
    now, r = clock.now_ns, _next_arrival(q, heap, clock)
    found = at.NEVER if r == at.NOBODY else q[r].at_ns
    for i in range(len(replicas)):
        mine = replicas[i]
        found = min(found, mine.end_ns)
        if mine.landing.first != at.NOBODY:
            found = min(found, q[mine.landing.first].ready_ns)
        if mine.ready_ns > now:
            found = min(found, mine.ready_ns)
    return found


@kernel(allocates=False)
def _asks(clock, what, r):
    """True while a hook has not answered."""
    if clock.chosen != at.NOBODY:
        return False
    clock.asking = what
    clock.about = r
    return True


@kernel(allocates=False)
def _chosen(clock):
    found = clock.chosen
    clock.chosen = at.NOBODY
    return found


@kernel(allocates=False)
def _arrive(state, rules, now):
    """Requests that arrive by now go to their replicas; False if a hook is to be asked."""
    q, clock = state.request, state.clock[0]
    r = _next_arrival(q, state.heap, clock)
    while r != at.NOBODY and q[r].at_ns <= now:
        if rules.router == at.ASK:
            if _asks(clock, at.ROUTE, r):
                return False
            i = _chosen(clock)
        else:
            i = route(state, rules, rules.router, r, at.PROMPTS)
        if q[r].parents:
            pop_later(q, state.heap, clock)
        else:
            clock.next += 1
        called(state.reuse, q[r].session, now)
        q[r].replica = i
        q[r].decoder = i
        state.replica[i].pending += q[r].prompt + q[r].output
        put_last(q, state.replica[i].inbox, r)
        r = _next_arrival(q, state.heap, clock)
    return True


@kernel(allocates=False)
def _go_on(state, rules, now):
    """Continues answers whose prompt was read elsewhere; False if a hook is to be asked."""
    clock = state.clock[0]
    while clock.hand.first != at.NOBODY:
        if rules.place == at.ASK:
            if _asks(clock, at.PLACE, clock.hand.first):
                return False
            i = _chosen(clock)
        else:
            i = route(state, rules, rules.place, clock.hand.first, at.ANSWERS)
        placed(state.request, state.replica, clock, i)
    for i in range(len(state.replica)):
        mine = state.replica[i]
        if mine.coming.first != at.NOBODY and mine.ready_ns != at.NEVER and not clock.halt:
            r = pull(state, rules, i, now)
            if r != at.NOBODY:
                _asks(clock, at.CODEC, r)
                return False
    return True


@kernel(allocates=False)
def advance(state, rules, machines, log):
    """Runs until something stops it: DONE, FULL, ASKED, STUCK, PAUSED or HALTED."""
    q, clock, replicas = state.request, state.clock[0], len(state.replica)
    while True:
        if len(log) and clock.logged + replicas > len(log):
            return at.FULL
        answered = clock.chosen != at.NOBODY
        now = clock.now_ns if answered else _next_time(q, state.replica, state.heap, clock)
        if now == at.NEVER:
            return at.DONE if clock.finished == len(q) else at.STUCK
        if now > clock.until_ns and not answered:
            return at.PAUSED
        clock.now_ns = now
        finished, busy, flying = clock.finished, at.NONE, at.NONE
        for i in range(replicas):
            mine = state.replica[i]
            if mine.end_ns == now:
                _finish(state, i, now)
            if mine.landing.first != at.NOBODY:
                land(state, rules, i, now)
            if mine.end_ns != at.NEVER and _joined(mine, rules):
                busy += 1
            flying += mine.landing.count
        r = _next_arrival(q, state.heap, clock)
        if r != at.NOBODY and q[r].at_ns <= now and not _arrive(state, rules, now):
            return at.ASKED
        if rules.apart and not _go_on(state, rules, now):
            return at.ASKED
        if not _start(state, rules, machines, log, busy, now):
            return at.STUCK
        if clock.halt and not flying:
            running = False
            for i in range(replicas):
                running = running or state.replica[i].end_ns != at.NEVER
            if not running:
                return at.HALTED
        if clock.stops and clock.finished > finished:
            return at.PAUSED


class PoolState(NamedTuple):
    """One of several pools that share a clock."""

    state: at.State
    rules: at.Rules
    machines: Machines


@kernel(allocates=False)
def _next_of(state):
    return _next_time(state.request, state.replica, state.heap, state.clock[0])


@kernel(allocates=False)
def _resumes(pools):
    """The pool for which a hook has answered, or NOBODY."""
    for k in range(len(pools)):
        if pools[k].state.clock[0].chosen != at.NOBODY:
            return k
    return at.NOBODY


@kernel(allocates=False)
def advance_pools(pools, before_ns, until_ns, log):
    """The pool where something happens next goes on as far as nothing happens in another, and so on, as long as that is
    before `before_ns` and by `until_ns`. Returns the pool that stopped since a request was answered, or for another
    reason, and the reason; NOBODY: none did."""
    while True:
        first = resumes = _resumes(pools)
        if resumes == at.NOBODY:
            own = other = at.NEVER
            for k in range(len(pools)):
                when = _next_of(pools[k].state)
                if when < own:
                    first, own, other = k, when, own
                else:
                    other = min(other, when)
            if own == at.NEVER or own >= before_ns or own > until_ns:
                return at.NOBODY, at.PAUSED
            pools[first].state.clock[0].until_ns = max(min(before_ns, until_ns, other), own)
        pool = pools[first]
        finished = pool.state.clock[0].finished
        why = advance(pool.state, pool.rules, pool.machines, log)
        if why != at.PAUSED or resumes != at.NOBODY or pool.state.clock[0].finished > finished:
            return first, why

"""The event loop over requests and passes, in compiled code.

At an instant: passes that end give out their tokens and what they held; requests that arrive by then go to a replica;
every free replica takes what is in its inbox and starts a pass. Replicas are served in order of their number, requests
first come first served. With `ahead` a replica chooses its next pass while one runs, as engines with asynchronous
scheduling do: what arrives meanwhile waits for the pass after it.
"""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel
from etude.serve.energy import pass_nj
from etude.serve.pass_time import pass_ns
from etude.serve.prefix import evict, keep, leading, release, share
from etude.serve.state import (
    AFFINITY,
    AHEAD,
    ARRIVAL,
    ASK,
    ASKED,
    BATCH,
    BUSY,
    BY_PREFIX,
    CACHED,
    CHOSEN,
    COMPUTED,
    DEALT,
    DONE,
    END,
    FINISH,
    FINISHED,
    FIRST,
    FOLLOWING,
    FOUND,
    FULL,
    GAVE_WAY,
    HELD,
    HIT,
    INBOX,
    LEAST,
    LEFT,
    LEFT_AT,
    LESS,
    LOADING,
    LOGGED,
    MADE,
    MISFIT,
    MOST,
    NEVER,
    NEXT,
    NOBODY,
    NOW,
    OUT,
    OUTPUT,
    PASSES,
    PAUSED,
    PEAK,
    PENDING,
    PLANNED,
    PREEMPTED,
    PROMPT,
    QUEUED,
    RANDOM,
    READ,
    REPLICA,
    REUSED,
    RUNNING,
    SCHEDULED,
    SESSION,
    SESSION_OF,
    STOPS,
    STORED,
    STUCK,
    TAKEN,
    TOKENS,
    TWO,
    UNTIL,
    USED,
    WAITING,
)  # fmt: skip
from etude.serve.steps import Shape
from etude.serve.store import find, put


@kernel(allocates=False)
def _put_last(state, i, queue, r):
    q, mine = state.request, state.replica[i]
    q[r, FOLLOWING] = NOBODY
    if mine[queue] == NOBODY:
        mine[queue] = r
    else:
        q[mine[queue + 1], FOLLOWING] = r
    mine[queue + 1] = r
    mine[queue + 2] += 1


@kernel(allocates=False)
def _put_first(state, i, queue, r):
    q, mine = state.request, state.replica[i]
    q[r, FOLLOWING] = mine[queue]
    if mine[queue] == NOBODY:
        mine[queue + 1] = r
    mine[queue] = r
    mine[queue + 2] += 1


@kernel(allocates=False)
def _take(state, i, queue):
    mine = state.replica[i]
    r = mine[queue]
    mine[queue] = state.request[r, FOLLOWING]
    if mine[queue] == NOBODY:
        mine[queue + 1] = NOBODY
    mine[queue + 2] -= 1
    return r


@kernel(allocates=False)
def _random(clock, n):
    """A number below n: a linear congruential generator."""
    clock[RANDOM] = (clock[RANDOM] * 6364136223846793005 + 1442695040888963407) & 0x7FFFFFFFFFFFFFFF
    return (clock[RANDOM] >> 33) % n


@kernel(allocates=False)
def there_on(state, rules, i, r):
    """Tokens of a prompt that a replica has itself."""
    if not rules.prefix:
        return 0
    _, blocks, _ = leading(state.prefix, i, r, state.clock[NOW])
    tokens = blocks * rules.block
    if state.store.tiers:
        tokens += find(state.store, i, r, tokens, state.request[r, PROMPT], state.clock[NOW], 0)[1]
    return tokens


@kernel(allocates=False)
def _route(state, rules, r):
    q = state.request
    replicas = len(state.replica)
    if rules.router == LEAST or rules.router == TOKENS:
        best, least = 0, NEVER
        for i in range(replicas):
            load = state.replica[i, RUNNING] + state.replica[i, WAITING + 2] + state.replica[i, INBOX + 2]
            if rules.router == TOKENS:
                load = state.replica[i, PENDING]
            if load < least:
                best, least = i, load
        return best
    if rules.router == TWO and replicas > 1:
        a = _random(state.clock, replicas)
        b = (a + 1 + _random(state.clock, replicas - 1)) % replicas
        load_a = state.replica[a, RUNNING] + state.replica[a, WAITING + 2] + state.replica[a, INBOX + 2]
        load_b = state.replica[b, RUNNING] + state.replica[b, WAITING + 2] + state.replica[b, INBOX + 2]
        return a if load_a <= load_b else b
    if rules.router == BY_PREFIX or rules.router == AFFINITY:
        # Affinity goes where most is found, whatever waits there; of equals, where least waits.
        weight = np.int64(1) if rules.router == BY_PREFIX else np.int64(1 << 31)
        best, least = 0, NEVER
        for i in range(replicas):
            load = state.replica[i, PENDING] - there_on(state, rules, i, r) * weight
            if load < least:
                best, least = i, load
        return best
    if rules.router == SESSION:
        return q[r, SESSION_OF] % replicas
    chosen = state.clock[DEALT] % replicas
    state.clock[DEALT] += 1
    return chosen


@kernel(allocates=False)
def _finish(state, i, now):
    """The pass under way on replica i is over."""
    q = state.request
    n = state.replica[i, BATCH]
    ended = 0
    for k in range(n):
        r = state.batch[i, 0, k]
        q[r, OUT] += 1
        state.replica[i, MADE] += 1
        state.replica[i, PENDING] -= 1
        if q[r, FIRST] == NEVER:
            q[r, FIRST] = now
            if state.store.tiers:
                put(state.store, i, r, now)
        if q[r, OUT] == q[r, OUTPUT]:
            q[r, FINISH] = now
            release(state, i, r)
            state.clock[FINISHED] += 1
            ended += 1
    if ended:
        kept = 0
        for k in range(state.replica[i, RUNNING]):
            r = state.running[i, k]
            if q[r, FINISH] == NEVER:
                state.running[i, kept] = r
                kept += 1
        state.replica[i, RUNNING] = kept
    state.replica[i, BATCH] = NOBODY
    state.replica[i, END] = NEVER


@kernel(allocates=False)
def _blocks(tokens, block):
    return -(-tokens // block)


@kernel(allocates=False)
def _preempt(state, rules, i):
    """Who entered last gives up its keys and values; its place in the list of those running, or NOBODY."""
    q = state.request
    k = state.replica[i, RUNNING] - 1
    while k >= 0 and q[state.running[i, k], PLANNED] == q[state.running[i, k], OUTPUT]:
        k -= 1
    if k < 0:
        return NOBODY
    r = state.running[i, k]
    # Free blocks are a queue: its own come after those that are free now.
    q[r, LEFT] = q[r, COMPUTED] // rules.block
    q[r, LEFT_AT] = state.replica[i, TAKEN] + rules.blocks - state.replica[i, USED]
    release(state, i, r)
    state.replica[i, PENDING] += q[r, COMPUTED]
    q[r, COMPUTED], q[r, REUSED], q[r, LESS] = 0, 0, 0
    q[r, PREEMPTED] += 1
    state.replica[i, GAVE_WAY] += 1
    for j in range(k, state.replica[i, RUNNING] - 1):
        state.running[i, j] = state.running[i, j + 1]
    state.replica[i, RUNNING] -= 1
    _put_first(state, i, WAITING, r)
    return k


@kernel(allocates=False)
def _add(state, rules, i, r, tokens):
    """So many tokens of a request go into the pass that is being put together."""
    q = state.request
    shape = state.shape[i]
    known = q[r, PROMPT] + q[r, PLANNED]
    past = q[r, COMPUTED]
    q[r, COMPUTED] = past + tokens
    if tokens == 1 and past >= q[r, PROMPT]:
        shape[2] += 1
        shape[3] += past + 1
        shape[5] = max(shape[5], past + 1.0)
    else:
        shape[0] += tokens
        less = q[r, LESS] * tokens // (known - past)
        q[r, LESS] -= less
        shape[1] += tokens * past + tokens * (tokens + 1) / 2 - less
        state.replica[i, READ] += tokens
        # A token that was out is its own next input, and is counted when the token after it comes.
        state.replica[i, PENDING] -= tokens - (1 if q[r, PLANNED] and past + tokens == known else 0)
    if rules.prefix:
        keep(state, i, r)
    if past + tokens == known:
        q[r, PLANNED] += 1
        shape[4] += 1
        state.batch[i, 1, state.replica[i, AHEAD]] = r
        state.replica[i, AHEAD] += 1


@kernel(allocates=False)
def _hold(state, i, r, blocks, rules):
    q = state.request
    more = blocks - q[r, HELD]
    if more > 0:
        if state.replica[i, USED] + more > rules.blocks:
            return False
        q[r, HELD] = blocks
        state.replica[i, USED] += more
        state.replica[i, TAKEN] += more
        if rules.prefix:
            evict(state, i, rules.blocks)
        if state.replica[i, USED] > state.replica[i, PEAK]:
            state.replica[i, PEAK] = state.replica[i, USED]
    return True


@kernel(allocates=False)
def _continue(state, rules, i):
    """Tokens out and prompts under way, in the order in which they entered. Returns the budget that is left, or
    NOBODY if a request had to give way."""
    q = state.request
    budget = rules.token_budget
    gave_way = False
    k = 0
    while k < state.replica[i, RUNNING] and budget > 0:
        r = state.running[i, k]
        if q[r, PLANNED] == q[r, OUTPUT]:
            k += 1
            continue
        tokens = min(q[r, PROMPT] + q[r, PLANNED] - q[r, COMPUTED], budget)
        placed = True
        while not _hold(state, i, r, _blocks(q[r, COMPUTED] + tokens, rules.block), rules):
            gave_way = True
            at = _preempt(state, rules, i)
            if at == NOBODY or at <= k:
                placed = False
                break
        if not placed:
            break
        _add(state, rules, i, r, tokens)
        budget -= tokens
        k += 1
    return NOBODY if gave_way else budget


@kernel(allocates=False)
def _find(state, rules, i, r):
    """Tokens of a request that gave way whose blocks nobody has taken since; the last token is always read."""
    q = state.request
    blocks = q[r, LEFT]
    if not rules.caching or blocks == 0:
        return 0
    blocks -= min(max(state.replica[i, TAKEN] - q[r, LEFT_AT], 0), blocks)
    most = (q[r, PROMPT] + q[r, PLANNED] - 1) // rules.block
    return min(blocks, most) * rules.block


@kernel(allocates=False)
def _enter(state, rules, i, budget, now):
    """Requests that wait, while there is room for them."""
    q = state.request
    while state.replica[i, WAITING] != NOBODY and budget > 0 and state.replica[i, RUNNING] < rules.max_seqs:
        r = state.replica[i, WAITING]
        whole = q[r, PROMPT] + q[r, PLANNED]
        ids, shared, idle = 0, 0, 0
        if rules.prefix:
            ids, shared, idle = leading(state.prefix, i, r, now)
            there = min(shared, (whole - 1) // rules.block) * rules.block
        else:
            there = _find(state, rules, i, r)
        front, found, again, load_ns, less = there, 0, 0, np.int64(0), np.int64(0)
        if state.store.tiers:
            found, _, again, load_ns, less = find(state.store, i, r, front, q[r, PROMPT], now, 0)
            there += found - again
        tokens = whole - there
        if rules.chunked:
            tokens = min(tokens, budget)
        elif tokens > budget and state.shape[i, 0] > 0:
            break
        need = _blocks(q[r, PROMPT] + q[r, OUTPUT] if rules.reserve else there + tokens, rules.block)
        room = rules.blocks - state.replica[i, USED] - idle + shared
        if not rules.reserve and rules.whole_prompt and _blocks(whole, rules.block) > room:
            break
        if rules.prefix:
            if need > room:
                break
            share(state, i, r, ids)
        if not _hold(state, i, r, need, rules):
            break
        if front:  # not from the front of the queue
            state.replica[i, TAKEN] -= front // rules.block
        if found:
            find(state.store, i, r, front, q[r, PROMPT], now, 1)
            state.replica[i, LOADING] += load_ns
            state.replica[i, STORED] += found
            q[r, REUSED], q[r, LESS] = 0 if state.store.leading else found, less
        state.replica[i, FOUND] += front + found
        state.replica[i, PENDING] -= there
        q[r, COMPUTED] = there
        _take(state, i, WAITING)
        state.running[i, state.replica[i, RUNNING]] = r
        state.replica[i, RUNNING] += 1
        if state.replica[i, RUNNING] > state.replica[i, MOST]:
            state.replica[i, MOST] = state.replica[i, RUNNING]
        if q[r, SCHEDULED] == NEVER:
            q[r, SCHEDULED] = now
            q[r, HIT] = front + found
        _add(state, rules, i, r, tokens)
        budget -= tokens


@kernel(allocates=False)
def _choose(state, rules, i, now):
    """Puts the next pass together; False if there is nothing to do."""
    q = state.request
    while state.replica[i, INBOX] != NOBODY:
        r = _take(state, i, INBOX)
        q[r, QUEUED] = now
        _put_last(state, i, WAITING, r)
    state.replica[i, AHEAD] = 0
    state.shape[i] = 0.0
    state.clock[MISFIT] = NOBODY
    if rules.chunked:
        budget = _continue(state, rules, i)
        if budget > 0:
            _enter(state, rules, i, budget, now)
    else:
        _enter(state, rules, i, rules.token_budget, now)
        if state.shape[i, 0] == 0:
            _continue(state, rules, i)
    if state.shape[i, 0] + state.shape[i, 2] == 0:
        state.replica[i, AHEAD] = NOBODY
        if state.replica[i, WAITING] != NOBODY and state.replica[i, RUNNING] == 0:
            state.clock[MISFIT] = state.replica[i, WAITING]
        return False
    return True


@kernel(allocates=False)
def _shape(state, i):
    s = state.shape[i]
    return Shape(np.int64(s[0]), s[1], np.int64(s[2]), np.int64(s[3]), np.int64(s[4]), np.int64(s[5]))


@kernel(allocates=False)
def _begin(state, log, energy, i, now, time_ns):
    """Replica i starts the pass that was put together."""
    mine = state.replica[i]
    mine[BATCH] = mine[AHEAD]
    mine[AHEAD] = NOBODY
    for k in range(mine[BATCH]):
        state.batch[i, 0, k] = state.batch[i, 1, k]
    mine[END] = now + time_ns
    mine[PASSES] += 1
    mine[BUSY] += time_ns
    shape = _shape(state, i)
    work_nj = pass_nj(energy, shape, time_ns)
    state.energy_nj[i] += work_nj
    if len(log):
        row = log[state.clock[LOGGED]]
        row[0], row[1], row[2] = i, now, now + time_ns
        row[3], row[4], row[5] = shape.prompt_tokens, shape.decode, shape.decode_keys
        row[6], row[7], row[8], row[9] = mine[USED], mine[WAITING + 2], mine[CACHED], np.int64(work_nj)
        state.clock[LOGGED] += 1


@kernel(allocates=False)
def _start(state, rules, cost, energy, log, now):
    """Every free replica starts its next pass; with a barrier all at a time, as long as the longest. False if a request
    never gets room."""
    longest = np.int64(0)
    for i in range(len(state.replica)):
        mine = state.replica[i]
        if mine[END] != NEVER:
            continue
        waits = mine[INBOX + 2] + mine[WAITING + 2] + mine[RUNNING]
        if mine[AHEAD] == NOBODY:
            if not waits:
                continue
            if not _choose(state, rules, i, now):
                if state.clock[MISFIT] != NOBODY:
                    return False
                continue
        time_ns = pass_ns(cost, _shape(state, i), mine[PASSES]) + mine[LOADING]
        mine[LOADING] = 0
        longest = max(longest, time_ns)
        if not rules.barrier:
            _begin(state, log, energy, i, now, time_ns)
            if rules.ahead:
                _choose(state, rules, i, now)
    if rules.barrier and longest:
        for i in range(len(state.replica)):
            if state.replica[i, AHEAD] != NOBODY:
                _begin(state, log, energy, i, now, longest)
    return True


@kernel(allocates=False)
def advance(state, rules, cost, energy, log):
    """Runs until something stops it: DONE, FULL, ASKED, STUCK or PAUSED."""
    q, clock, replicas = state.request, state.clock, len(state.replica)
    while True:
        if len(log) and clock[LOGGED] + replicas > len(log):
            return FULL
        now = q[clock[NEXT], ARRIVAL] if clock[NEXT] < len(q) else NEVER
        for i in range(replicas):
            now = min(now, state.replica[i, END])
        if now == NEVER:
            return DONE if clock[FINISHED] == len(q) else STUCK
        if now > clock[UNTIL]:
            return PAUSED
        clock[NOW] = now
        answered = clock[FINISHED]
        busy = 0
        for i in range(replicas):
            if state.replica[i, END] == now:
                _finish(state, i, now)
            if state.replica[i, END] != NEVER:
                busy += 1
        while clock[NEXT] < len(q) and q[clock[NEXT], ARRIVAL] <= now:
            r = clock[NEXT]
            if rules.router == ASK:
                if clock[CHOSEN] == NOBODY:
                    return ASKED
                i = clock[CHOSEN]
                clock[CHOSEN] = NOBODY
            else:
                i = _route(state, rules, r)
            clock[NEXT] += 1
            q[r, REPLICA] = i
            state.replica[i, PENDING] += q[r, PROMPT] + q[r, OUTPUT]
            _put_last(state, i, INBOX, r)
        if not (rules.barrier and busy) and not _start(state, rules, cost, energy, log, now):
            return STUCK
        if clock[STOPS] and clock[FINISHED] > answered:
            return PAUSED

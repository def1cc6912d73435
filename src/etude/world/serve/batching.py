"""How a replica builds its next pass, in compiled code: which requests continue, are preempted or enter, and how many
branches of an answer run in parallel. A user's hook replaces one of these small functions."""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel
from etude.world.serve import state as at
from etude.world.serve.adapters import leave_adapter, may_enter, take_adapter
from etude.world.serve.machines import machine_ns
from etude.world.serve.prefix import evict, keep, leading, release, share
from etude.world.serve.queues import draw, put_back, put_by_key, put_first, put_last, take
from etude.world.serve.steps import PassContent
from etude.world.serve.store import find


@kernel(allocates=False)
def shape_of(s):
    return PassContent(
        np.int64(s[0]), s[1], np.int64(s[2]), np.int64(s[3]), np.int64(s[4]), np.int64(s[5]), np.int64(s[6]), s[7]
    )


@kernel(allocates=False)
def time_of(mine, put_together, rules, machines):
    """Time of the pass, with the draft's passes, transfers to and from the host, and loads from a store."""
    shape = shape_of(put_together)
    time_ns = machine_ns(machines, mine[at.KIND], shape, mine[at.PASSES])
    if rules.speculate and rules.draft != at.NOBODY and shape.decode:
        none, half = at.NONE, shape.pairs * 0.0
        one = PassContent(none, half, shape.decode, shape.decode_keys, shape.decode, shape.most_keys, none, half + 1.0)
        time_ns += rules.speculate * machine_ns(machines, rules.draft, one, none)
    if mine[at.ADAPTERS]:
        tokens = shape.prompt_tokens + shape.decode + shape.more_tokens
        more = rules.lora_pass_ns + rules.lora_adapter_ns * mine[at.ADAPTERS] + rules.lora_token_ns * tokens
        time_ns += np.int64(np.ceil(more))
    return time_ns + np.int64(np.ceil(mine[at.MOVED] * rules.swap_ns)) + mine[at.LOADING]


# -- what a hook may replace ------------------------------------------------------------------------------------------


@kernel(allocates=False, inline=True)
def admits(state, rules, i, r, now):
    """Whether request r may enter."""
    return True


@kernel(allocates=False, inline=True)
def arrange(state, rules, i, now):
    """Waiting requests are already in order."""


@kernel(allocates=False, inline=True)
def victim(state, rules, i, least, now):
    """Which request is preempted, as a position in the running list: the one that entered last. NOBODY: none can be.
    Those before position `least` are in the pass already."""
    q = state.request
    k = state.replica[i, at.RUNNING] - 1
    while k >= 0 and q[state.running[i, k], at.PLANNED] == q[state.running[i, k], at.OUTPUT]:
        k -= 1
    return k


@kernel(allocates=False, inline=True)
def depth_of(state, rules, i, r, now):
    """Fraction of the layers that the next token of request r goes through."""
    return rules.depth


# -- room --------------------------------------------------------------------------------------------------------------


@kernel(allocates=False)
def blocks_of(tokens, block):
    return -(-tokens // block)


@kernel(allocates=False)
def hold(state, i, r, blocks, rules):
    q = state.request
    more = blocks - q[r, at.HELD]
    if more > 0:
        mine = state.replica[i]
        if mine[at.USED] + more > mine[at.ROOM]:
            return False
        q[r, at.HELD] = blocks
        mine[at.USED] += more
        mine[at.TAKEN] += more
        if rules.prefix:
            evict(state, i, mine[at.ROOM])
        if mine[at.USED] > mine[at.PEAK]:
            mine[at.PEAK] = mine[at.USED]
    return True


@kernel(allocates=False)
def _preempt(state, rules, i, least, now):
    """Preempts one request, which frees its keys and values or moves them to the host; its position in the running
    list, or NOBODY."""
    q, mine = state.request, state.replica[i]
    k = victim(state, rules, i, least, now)
    if k < 0:
        return at.NOBODY
    r = state.running[i, k]
    if rules.swap_ns > 0.0:
        mine[at.MOVED] += q[r, at.COMPUTED]
        q[r, at.THERE] = 1
        release(state, i, r)
    else:
        # Free blocks are a queue: freed blocks are appended.
        q[r, at.LEFT] = q[r, at.COMPUTED] // rules.block
        q[r, at.LEFT_AT] = mine[at.TAKEN] + mine[at.ROOM] - mine[at.USED]
        release(state, i, r)
        mine[at.PENDING] += q[r, at.COMPUTED]
        q[r, at.COMPUTED], q[r, at.REUSED], q[r, at.LESS] = 0, 0, 0
        q[r, at.THERE] = 0
    q[r, at.PREEMPTED] += 1
    mine[at.GAVE_WAY] += 1
    if rules.lora_slots:
        leave_adapter(q, mine, state.adapter[i], r, now)
    for j in range(k, mine[at.RUNNING] - 1):
        state.running[i, j] = state.running[i, j + 1]
    mine[at.RUNNING] -= 1
    put_first(q, mine, at.WAITING, r)
    return k


# -- branches ----------------------------------------------------------------------------------------------------------


@kernel(allocates=False)
def _length(q, r, branch):
    """Tokens of a branch: an even share of the answer."""
    return q[r, at.OUTPUT] // q[r, at.BRANCHES] + (1 if branch < q[r, at.OUTPUT] % q[r, at.BRANCHES] else 0)


@kernel(allocates=False)
def _advance_branch(q, branches, r):
    """The first branch that lacks tokens gets one; which one, or NOBODY."""
    branch = at.NONE
    start = q[r, at.BRANCH_AT]
    while branch < q[r, at.BRANCHES] and branches[start + branch] >= _length(q, r, branch):
        branch += 1
    if branch == q[r, at.BRANCHES]:
        return at.NOBODY
    branches[start + branch] += 1
    return branch


@kernel(allocates=False)
def _slack_ns(q, batch, count, tpot_ns, begin, time_ns):
    """How much longer the pass may take before one of its tokens is late. Parallel branches get one token each per
    pass, and count as one."""
    least = at.NEVER
    for k in range(count):
        r = batch[1, k]
        if q[r, at.FIRST] != at.NEVER:
            before = q[r, at.STEPS] - 1 if q[r, at.BRANCHES] > 1 else q[r, at.PLANNED] - batch[3, k]
            due = q[r, at.FIRST] + np.int64(before * tpot_ns)
            least = min(least, due - begin - time_ns)
    return max(least, 0)


@kernel(allocates=False)
def _widen(state, rules, machines, i, now):
    """Starts more branches of answers, while the rule allows it and there is room."""
    q, mine, shape = state.request, state.replica[i], state.shape[i]
    begin = now if mine[at.END] == at.NEVER else mine[at.END]
    alone = time_of(mine, shape, rules, machines)
    slack = at.NEVER
    if rules.admit == at.SLACK and rules.admit_value < np.inf:
        slack = _slack_ns(q, state.batch[i], mine[at.AHEAD], rules.tpot_ns, begin, alone)
        slack = np.int64(min(slack * rules.admit_value, float(at.NEVER)))
        mine[at.SLACK_NS] = slack
    for k in range(mine[at.AHEAD]):
        r = state.batch[i, 1, k]
        if q[r, at.PLANNED] == state.batch[i, 3, k]:  # its prompt is read by this pass
            continue
        branch = q[r, at.BRANCH] + 1
        while branch < q[r, at.BRANCHES]:
            if rules.admit == at.CAP and state.batch[i, 3, k] >= rules.admit_value:
                break
            before = state.shape[i, 5]
            made = state.branch[q[r, at.BRANCH_AT] + branch]
            if made >= _length(q, r, branch):
                branch += 1
                continue
            keys = q[r, at.PROMPT] + max(made, 1)
            shape[2] += 1
            shape[3] += keys
            shape[4] += 1
            shape[5] = max(shape[5], float(keys))
            longer = 0
            if rules.admit == at.SLACK:
                longer = time_of(mine, shape, rules, machines) - alone
            if longer > slack or not hold(state, i, r, blocks_of(q[r, at.COMPUTED] + 1, rules.block), rules):
                shape[2] -= 1
                shape[3] -= keys
                shape[4] -= 1
                shape[5] = before
                return
            mine[at.EXTRA_NS] = longer
            mine[at.EXTRA] += 1
            state.branch[q[r, at.BRANCH_AT] + branch] += 1
            q[r, at.COMPUTED] += 1
            q[r, at.PLANNED] += 1
            state.batch[i, 3, k] += 1
            branch += 1


# -- the pass ----------------------------------------------------------------------------------------------------------


@kernel(allocates=False)
def _put(q, mine, shape, batch, branches, clock, rules, r, tokens, depth):
    """Adds `tokens` tokens of a request to the pass."""
    known = q[r, at.PROMPT] + q[r, at.PLANNED]
    past = q[r, at.COMPUTED]
    q[r, at.COMPUTED] = past + tokens
    made = 1
    branch = 0
    if past + tokens == known and q[r, at.BRANCHES] > 1:
        branch = _advance_branch(q, branches, r)
        q[r, at.BRANCH] = branch
    if tokens == 1 and past >= q[r, at.PROMPT]:
        keys = past + 1
        if q[r, at.BRANCHES] > 1:
            keys = q[r, at.PROMPT] + max(branches[q[r, at.BRANCH_AT] + branch] - 1, 1)
        shape[2] += 1
        shape[3] += keys
        shape[5] = max(shape[5], float(keys))
        shape[7] = max(shape[7], depth)
        if rules.speculate:
            while made <= rules.speculate and draw(clock, at.DRAWS) < rules.accept * at.DRAWS:
                made += 1
            made = min(made, q[r, at.OUTPUT] - q[r, at.PLANNED])
            q[r, at.COMPUTED] += made - 1
            shape[4] += rules.speculate
            shape[6] += rules.speculate
    else:
        shape[0] += tokens
        less = q[r, at.LESS] * tokens // (known - past)
        q[r, at.LESS] -= less
        shape[1] += tokens * past + tokens * (tokens + 1) / 2 - less
        shape[7] = 1.0
        mine[at.READ] += tokens
        # A generated token is its own next input, and is counted when the token after it comes.
        mine[at.PENDING] -= tokens - (1 if q[r, at.PLANNED] and past + tokens == known else 0)
    if past + tokens == known:
        q[r, at.PLANNED] += made
        q[r, at.STEPS] += 1
        shape[4] += 1
        batch[1, mine[at.AHEAD]] = r
        batch[3, mine[at.AHEAD]] = made
        mine[at.AHEAD] += 1


@kernel(allocates=False, inline=True)
def _add(state, rules, i, r, tokens, now):
    depth = 1.0
    if state.request[r, at.COMPUTED] >= state.request[r, at.PROMPT]:
        depth = depth_of(state, rules, i, r, now)
    q, mine, shape, batch = state.request, state.replica[i], state.shape[i], state.batch[i]
    _put(q, mine, shape, batch, state.branch, state.clock, rules, r, tokens, depth)
    if rules.prefix:
        keep(state, i, r)


@kernel(allocates=False)
def _continue(state, rules, i, now):
    """Decodes and prompts in progress, in the order in which they entered. Returns the remaining budget, or NOBODY if a
    request was preempted."""
    q, mine = state.request, state.replica[i]
    budget = rules.token_budget
    gave_way = False
    k = at.NONE
    while k < mine[at.RUNNING] and budget > 0:
        r = state.running[i, k]
        if q[r, at.PLANNED] == q[r, at.OUTPUT] or (mine[at.ROLE] == at.PREFILL and q[r, at.PLANNED]):
            k += 1
            continue
        tokens = min(q[r, at.PROMPT] + q[r, at.PLANNED] - q[r, at.COMPUTED], budget)
        placed = True
        need = blocks_of(q[r, at.COMPUTED] + tokens + rules.speculate, rules.block)
        while need > q[r, at.HELD] and not hold(state, i, r, need, rules):
            gave_way = True
            gone = _preempt(state, rules, i, k, now)
            if gone == at.NOBODY or gone <= k:
                placed = False
                break
        if not placed:
            break
        _add(state, rules, i, r, tokens, now)
        budget -= tokens
        k += 1
    return at.NOBODY if gave_way else budget


@kernel(allocates=False)
def _find(q, mine, rules, r):
    """Tokens of a preempted request whose blocks have not been reused since; the last token is always read again."""
    blocks = q[r, at.LEFT]
    if not rules.caching or blocks == 0:
        return 0
    blocks -= min(max(mine[at.TAKEN] - q[r, at.LEFT_AT], 0), blocks)
    most = (q[r, at.PROMPT] + q[r, at.PLANNED] - 1) // rules.block
    return min(blocks, most) * rules.block


@kernel(allocates=False)
def _join(q, mine, running, adapters, rules, r, found, now):
    """Adds a request to the running ones."""
    take(q, mine, at.WAITING)
    if rules.lora_slots:
        take_adapter(q, mine, adapters, rules, r)
    running[mine[at.RUNNING]] = r
    mine[at.RUNNING] += 1
    mine[at.MOST] = max(mine[at.MOST], mine[at.RUNNING])
    if q[r, at.SCHEDULED] == at.NEVER:
        q[r, at.SCHEDULED] = now
        q[r, at.HIT] = found
        mine[at.LOADING] += q[r, at.IMAGES] * rules.image_ns
    mine[at.VIRTUAL] = max(mine[at.VIRTUAL], q[r, at.KEY])


@kernel(allocates=False)
def _come_back(state, rules, i, r, tokens):
    """A request resumes with its keys and values from another replica or from the host, and `tokens` tokens next; False
    if there is no room."""
    q, mine = state.request, state.replica[i]
    held = q[r, at.HELD]
    whole = q[r, at.PROMPT] + q[r, at.OUTPUT] if rules.reserve else q[r, at.COMPUTED] + tokens
    if not hold(state, i, r, blocks_of(whole, rules.block), rules):
        return False
    if held == 0 and rules.swap_ns > 0.0:
        mine[at.MOVED] += q[r, at.COMPUTED]
    q[r, at.THERE] = 0
    return True


@kernel(allocates=False)
def _enter(state, rules, i, budget, now):
    """Admits waiting requests while there is room."""
    q, mine = state.request, state.replica[i]
    seats = rules.max_seqs - mine[at.LANDING + 2]
    while mine[at.WAITING] != at.NOBODY and budget > 0 and mine[at.RUNNING] < seats:
        r = mine[at.WAITING]
        whole = q[r, at.PROMPT] + q[r, at.PLANNED]
        if rules.lora_slots and not may_enter(q, mine, state.adapter[i], rules.lora_slots, r):
            put_last(q, mine, at.SKIPPED, take(q, mine, at.WAITING))
            continue
        if not admits(state, rules, i, r, now):
            break
        if q[r, at.THERE]:
            tokens = min(whole - q[r, at.COMPUTED], budget)
            if not _come_back(state, rules, i, r, tokens):
                break
            _join(q, mine, state.running[i], state.adapter[i], rules, r, at.NONE, now)
            if rules.chunked:
                _add(state, rules, i, r, tokens, now)
                budget -= tokens
            continue
        ids, shared, idle = 0, 0, 0
        if rules.prefix:
            ids, shared, idle = leading(state.prefix, i, r, now)
            there = min(shared, (whole - 1) // rules.block) * rules.block
        else:
            there = _find(q, mine, rules, r)
        front, found, again, load_ns, less = there, 0, 0, at.NONE, at.NONE
        if state.store.tiers:
            found, _, again, load_ns, less = find(state.store, i, r, front, q[r, at.PROMPT], now, at.NONE)
            there += found - again
        tokens = whole - there
        if rules.chunked:
            tokens = min(tokens, budget)
        elif tokens > budget and state.shape[i, 0] > 0:
            break
        need = blocks_of(q[r, at.PROMPT] + q[r, at.OUTPUT] if rules.reserve else there + tokens, rules.block)
        room = mine[at.ROOM] - mine[at.USED] - idle + shared
        if not rules.reserve and rules.whole_prompt and blocks_of(whole, rules.block) > room:
            break
        if rules.prefix:
            if need > room:
                break
            share(state, i, r, ids)
        if not hold(state, i, r, need, rules):
            break
        if front:  # not from the front of the queue
            mine[at.TAKEN] -= front // rules.block
        if found:
            find(state.store, i, r, front, q[r, at.PROMPT], now, at.NOTED)
            mine[at.LOADING] += load_ns
            mine[at.STORED] += found
            q[r, at.REUSED], q[r, at.LESS] = 0 if state.store.leading else found, less
        mine[at.FOUND] += front + found
        mine[at.PENDING] -= there
        q[r, at.COMPUTED] = there
        _join(q, mine, state.running[i], state.adapter[i], rules, r, front + found, now)
        if not rules.chunked and tokens == 1 and there >= q[r, at.PROMPT]:
            continue  # it continues with the others
        _add(state, rules, i, r, tokens, now)
        budget -= tokens
    if mine[at.SKIPPED] != at.NOBODY:
        put_back(q, mine)


@kernel(allocates=False)
def _take_in(q, mine, tags, order, now):
    """Moves what arrived since the last pass to the waiting queue, in its order."""
    while mine[at.INBOX] != at.NOBODY:
        r = take(q, mine, at.INBOX)
        q[r, at.QUEUED] = now
        if order == at.FCFS:
            put_last(q, mine, at.WAITING, r)
            continue
        if order == at.DEADLINE_FIRST:
            q[r, at.KEY] = q[r, at.ARRIVAL] + q[r, at.DEADLINE]
        elif order == at.TIER_FIRST:
            q[r, at.KEY] = q[r, at.TIER]
        elif order == at.SHORTEST:
            q[r, at.KEY] = q[r, at.PROMPT]
        else:  # start-time fair queueing: a tenant's requests in sequence, on a clock of tokens in thousandths
            tenant = q[r, at.TENANT]
            q[r, at.KEY] = max(mine[at.VIRTUAL], tags[tenant])
            tags[tenant] = q[r, at.KEY] + (q[r, at.PROMPT] + q[r, at.OUTPUT]) * 1_000_000 // q[r, at.WEIGHT]
        put_by_key(q, mine, at.WAITING, r)


@kernel(allocates=False)
def choose(state, rules, machines, i, now):
    """Builds the next pass; False if there is nothing to do."""
    q, mine = state.request, state.replica[i]
    if mine[at.INBOX] != at.NOBODY:
        _take_in(q, mine, state.tags[i], rules.order, now)
    arrange(state, rules, i, now)
    mine[at.AHEAD] = 0
    mine[at.EXTRA] = 0
    mine[at.EXTRA_NS] = 0
    mine[at.SLACK_NS] = 0
    state.shape[i] = 0.0
    state.clock[at.MISFIT] = at.NOBODY
    if rules.chunked:
        budget = _continue(state, rules, i, now)
        if budget > 0 and mine[at.WAITING] != at.NOBODY:
            _enter(state, rules, i, budget, now)
    else:
        if mine[at.WAITING] != at.NOBODY:
            _enter(state, rules, i, rules.token_budget, now)
        if state.shape[i, 0] == 0:
            _continue(state, rules, i, now)
    if rules.admit != at.SERIAL and mine[at.AHEAD] and len(state.branch) > len(q):
        _widen(state, rules, machines, i, now)
    if state.shape[i, 0] + state.shape[i, 2] == 0:
        mine[at.AHEAD] = at.NOBODY
        waits = mine[at.WAITING]
        if waits != at.NOBODY and mine[at.RUNNING] == 0 and mine[at.USED] <= q[waits, at.HELD]:
            state.clock[at.MISFIT] = waits
        return False
    return True

"""How a replica builds its next pass, in compiled code: which requests continue, are preempted or enter. A user's hook
replaces one of these small functions."""

from __future__ import annotations

from etude.kernels.compile import kernel
from etude.world.serve import state as at
from etude.world.serve.adapters import leave_adapter, may_enter, take_adapter
from etude.world.serve.branches import advance_branch, widen
from etude.world.serve.pass_content import blocks_of, hold
from etude.world.serve.prefix import keep, leading, release, share
from etude.world.serve.queues import draw, put_back, put_by_key, put_first, put_last, take
from etude.world.serve.store import find

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
    k = state.replica[i].running - 1
    while k >= 0 and q[state.running[i, k]].planned == q[state.running[i, k]].output:
        k -= 1
    return k


@kernel(allocates=False, inline=True)
def depth_of(state, rules, i, r, now):
    """Fraction of the layers that the next token of request r goes through."""
    return rules.depth


@kernel(allocates=False)
def _preempt(state, rules, i, least, now):
    """Preempts one request, which frees its keys and values or moves them to the host; its position in the running
    list, or NOBODY."""
    q, mine = state.request, state.replica[i]
    k = victim(state, rules, i, least, now)
    if k < 0:
        return at.NOBODY
    r = state.running[i, k]
    asked = q[r]
    if rules.swap_ns > 0.0:
        mine.moved += asked.computed
        asked.there = 1
        release(state, i, r)
    else:
        # Free blocks are a queue: freed blocks are appended.
        asked.left = asked.computed // rules.block
        asked.left_at = mine.taken + mine.room - mine.used
        release(state, i, r)
        mine.pending += asked.computed
        asked.computed, asked.reused, asked.less = 0, 0, 0
        asked.there = 0
    asked.preempted += 1
    mine.preempted += 1
    if rules.lora_slots:
        leave_adapter(q, mine, state.adapter[i], r, now)
    for j in range(k, mine.running - 1):
        state.running[i, j] = state.running[i, j + 1]
    mine.running -= 1
    put_first(q, mine.waiting, r)
    return k


# -- the pass ----------------------------------------------------------------------------------------------------------


@kernel(allocates=False)
def _put(q, mine, shape, batch, branches, clock, rules, r, tokens, depth):
    """Adds `tokens` tokens of a request to the pass."""
    asked = q[r]
    known = asked.prompt + asked.planned
    past = asked.computed
    asked.computed = past + tokens
    made = 1
    branch = 0
    if past + tokens == known and asked.branches > 1:
        branch = advance_branch(q, branches, r)
        asked.branch = branch
    if tokens == 1 and past >= asked.prompt:
        keys = past + 1
        if asked.branches > 1:
            keys = asked.prompt + max(branches[asked.branch_at + branch] - 1, 1)
        shape.decode += 1
        shape.decode_keys += keys
        shape.most_keys = max(shape.most_keys, keys)
        shape.depth = max(shape.depth, depth)
        if rules.speculate:
            while made <= rules.speculate and draw(clock, at.DRAWS) < rules.accept * at.DRAWS:
                made += 1
            made = min(made, asked.output - asked.planned)
            asked.computed += made - 1
            shape.outputs += rules.speculate
            shape.more_tokens += rules.speculate
    else:
        shape.prompt_tokens += tokens
        less = asked.less * tokens // (known - past)
        asked.less -= less
        shape.pairs += tokens * past + tokens * (tokens + 1) / 2 - less
        shape.depth = 1.0
        mine.read += tokens
        # A generated token is its own next input, and is counted when the token after it comes.
        mine.pending -= tokens - (1 if asked.planned and past + tokens == known else 0)
    if past + tokens == known:
        asked.planned += made
        asked.steps += 1
        shape.outputs += 1
        batch[1, mine.ahead] = r
        batch[3, mine.ahead] = made
        mine.ahead += 1


@kernel(allocates=False, inline=True)
def _add(state, rules, i, r, tokens, now):
    depth = 1.0
    if state.request[r].computed >= state.request[r].prompt:
        depth = depth_of(state, rules, i, r, now)
    q, mine, shape, batch = state.request, state.replica[i], state.shape[i], state.batch[i]
    _put(q, mine, shape, batch, state.branch, state.clock[0], rules, r, tokens, depth)
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
    while k < mine.running and budget > 0:
        r = state.running[i, k]
        asked = q[r]
        if asked.planned == asked.output or (mine.role == at.PREFILL and asked.planned):
            k += 1
            continue
        tokens = min(asked.prompt + asked.planned - asked.computed, budget)
        placed = True
        need = blocks_of(asked.computed + tokens + rules.speculate, rules.block)
        while need > asked.held and not hold(state, i, r, need, rules):
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
    asked = q[r]
    blocks = asked.left
    if not rules.caching or blocks == 0:
        return 0
    blocks -= min(max(mine.taken - asked.left_at, 0), blocks)
    most = (asked.prompt + asked.planned - 1) // rules.block
    return min(blocks, most) * rules.block


@kernel(allocates=False)
def _join(q, mine, running, adapters, rules, r, found, now):
    """Adds a request to the running ones."""
    asked = q[r]
    take(q, mine.waiting)
    if rules.lora_slots:
        take_adapter(q, mine, adapters, rules, r)
    running[mine.running] = r
    mine.running += 1
    mine.most = max(mine.most, mine.running)
    if asked.scheduled_ns == at.NEVER:
        asked.scheduled_ns = now
        asked.hit = found
        mine.loading_ns += asked.images * rules.image_ns
    mine.virtual = max(mine.virtual, asked.key)


@kernel(allocates=False)
def _come_back(state, rules, i, r, tokens):
    """A request resumes with its keys and values from another replica or from the host, and `tokens` tokens next; False
    if there is no room."""
    q, mine = state.request, state.replica[i]
    asked = q[r]
    held = asked.held
    whole = asked.prompt + asked.output if rules.reserve else asked.computed + tokens
    if not hold(state, i, r, blocks_of(whole, rules.block), rules):
        return False
    if held == 0 and rules.swap_ns > 0.0:
        mine.moved += asked.computed
    asked.there = 0
    return True


@kernel(allocates=False)
def _enter(state, rules, i, budget, now):
    """Admits waiting requests while there is room."""
    q, mine = state.request, state.replica[i]
    seats = rules.max_seqs - mine.landing.count
    while mine.waiting.first != at.NOBODY and budget > 0 and mine.running < seats:
        r = mine.waiting.first
        asked = q[r]
        whole = asked.prompt + asked.planned
        if rules.lora_slots and not may_enter(q, mine, state.adapter[i], rules.lora_slots, r):
            put_last(q, mine.skipped, take(q, mine.waiting))
            continue
        if not admits(state, rules, i, r, now):
            break
        if asked.there:
            tokens = min(whole - asked.computed, budget)
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
            found, _, again, load_ns, less = find(state.store, i, r, front, asked.prompt, now, at.NONE)
            there += found - again
        tokens = whole - there
        if rules.chunked:
            if tokens > budget and not rules.cut_prompts and state.shape[i].prompt_tokens + state.shape[i].decode > 0:
                break
            tokens = min(tokens, budget)
        elif tokens > budget and state.shape[i].prompt_tokens > 0:
            break
        need = blocks_of(asked.prompt + asked.output if rules.reserve else there + tokens, rules.block)
        room = mine.room - mine.used - idle + shared
        if not rules.reserve and rules.whole_prompt and blocks_of(whole, rules.block) > room:
            break
        if rules.prefix:
            if need > room:
                break
            share(state, i, r, ids)
        if not hold(state, i, r, need, rules):
            break
        if front:  # not from the front of the queue
            mine.taken -= front // rules.block
        if found:
            find(state.store, i, r, front, asked.prompt, now, at.NOTED)
            mine.loading_ns += load_ns
            mine.stored += found
            asked.reused, asked.less = 0 if state.store.leading else found, less
        mine.found += front + found
        mine.pending -= there
        asked.computed = there
        _join(q, mine, state.running[i], state.adapter[i], rules, r, front + found, now)
        if not rules.chunked and tokens == 1 and there >= asked.prompt:
            continue  # it continues with the others
        _add(state, rules, i, r, tokens, now)
        budget -= tokens
    if mine.skipped.first != at.NOBODY:
        put_back(q, mine.waiting, mine.skipped)


@kernel(allocates=False)
def _take_in(q, mine, tags, order, now):
    """Moves what arrived since the last pass to the waiting queue, in its order."""
    while mine.inbox.first != at.NOBODY:
        r = take(q, mine.inbox)
        asked = q[r]
        asked.queued_ns = now
        if order == at.FCFS:
            put_last(q, mine.waiting, r)
            continue
        if order == at.DEADLINE_FIRST:
            asked.key = asked.arrival_ns + asked.deadline_ns
        elif order == at.TIER_FIRST:
            asked.key = asked.tier
        elif order == at.SHORTEST:
            asked.key = asked.prompt
        else:  # start-time fair queueing: a tenant's requests in sequence, on a clock of tokens in thousandths
            tenant = asked.tenant
            asked.key = max(mine.virtual, tags[tenant])
            tags[tenant] = asked.key + (asked.prompt + asked.output) * 1_000_000 // asked.weight
        put_by_key(q, mine.waiting, r)


@kernel(allocates=False)
def choose(state, rules, machines, i, now):
    """Builds the next pass; False if there is nothing to do."""
    q, mine, shape = state.request, state.replica[i], state.shape[i]
    if mine.inbox.first != at.NOBODY:
        _take_in(q, mine, state.tags[i], rules.order, now)
    arrange(state, rules, i, now)
    mine.ahead = 0
    mine.extra = 0
    mine.extra_ns = 0
    mine.slack_ns = 0
    shape.prompt_tokens, shape.decode, shape.decode_keys, shape.outputs = 0, 0, 0, 0
    shape.most_keys, shape.more_tokens, shape.pairs, shape.depth = 0, 0, 0.0, 0.0
    state.clock[0].misfit = at.NOBODY
    if rules.chunked:
        budget = _continue(state, rules, i, now)
        if budget > 0 and mine.waiting.first != at.NOBODY:
            _enter(state, rules, i, budget, now)
    else:
        if mine.waiting.first != at.NOBODY:
            _enter(state, rules, i, rules.token_budget, now)
        if shape.prompt_tokens == 0:
            _continue(state, rules, i, now)
    if rules.admit != at.SERIAL and mine.ahead and len(state.branch) > len(q):
        widen(state, rules, machines, i, now)
    if shape.prompt_tokens + shape.decode == 0:
        mine.ahead = at.NOBODY
        waits = mine.waiting.first
        if waits != at.NOBODY and mine.running == 0 and mine.used <= q[waits].held:
            state.clock[0].misfit = waits
        return False
    return True

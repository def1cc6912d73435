"""Router: which replica a request goes to, in compiled code. Ties go to the lowest number."""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel
from etude.world.serve import state as at
from etude.world.serve.prefix import leading
from etude.world.serve.queues import draw, put_last, take
from etude.world.serve.store import find


@kernel(allocates=False)
def serves(mine, phase):
    """Whether a replica takes requests as they arrive, or ANSWERS."""
    if mine.shut:
        return False
    if phase == at.ANSWERS:
        return mine.role == at.DECODE
    return mine.role == at.BOTH or mine.role == at.PREFILL


@kernel(allocates=False)
def _how_many(replicas, phase):
    found = 0
    for i in range(len(replicas)):
        if serves(replicas[i], phase):
            found += 1
    return found


@kernel(allocates=False)
def _number(replicas, phase, k):
    """The k-th of those."""
    last = 0
    for i in range(len(replicas)):
        if serves(replicas[i], phase):
            last = i
            if k == 0:
                break
            k -= 1
    return last


@kernel(allocates=False)
def requests_at(mine):
    here = mine.running + mine.waiting.count + mine.inbox.count
    return here + mine.coming.count + mine.landing.count


@kernel(allocates=False)
def _load_in(q, mine, running, ahead):
    """Tokens that the requests of a replica will hold after `ahead` steps."""
    total = 0
    for k in range(mine.running):
        r = running[k]
        if q[r].output - q[r].planned >= ahead:
            total += q[r].prompt + q[r].planned + ahead
    for first in (mine.waiting.first, mine.inbox.first, mine.coming.first, mine.landing.first):
        r = first
        while r != at.NOBODY:
            if q[r].output - q[r].planned >= ahead:
                total += q[r].prompt + q[r].planned + ahead
            r = q[r].next
    return total


@kernel(allocates=False)
def _balance(q, replicas, running, horizon, r, phase):
    """The replica where the request fills most of the margin below the fullest one, and exceeds it least; summed over
    the steps of lookahead. All wait for the fullest, so a token above it delays all of them. If a request fits below it
    on several replicas, the one that holds least."""
    others = _how_many(replicas, phase)
    for i in range(len(replicas)):
        replicas[i].score = 0 if serves(replicas[i], phase) else -at.NEVER
    for ahead in range(min(horizon, q[r].output) + 1):
        fullest = 0
        for i in range(len(replicas)):
            if serves(replicas[i], phase):
                replicas[i].load = _load_in(q, replicas[i], running[i], ahead)
                fullest = max(fullest, replicas[i].load)
        size = q[r].prompt + ahead
        for i in range(len(replicas)):
            if serves(replicas[i], phase):
                margin = fullest - replicas[i].load
                replicas[i].score += min(size, margin) - others * max(size - margin, 0)
    best = 0
    for i in range(len(replicas)):
        better = replicas[i].score - replicas[best].score
        if better > 0 or (better == 0 and serves(replicas[i], phase) and replicas[i].load < replicas[best].load):
            best = i
    return best


@kernel(allocates=False)
def there_on(state, rules, i, r):
    """Tokens of a prompt that a replica itself has."""
    if not rules.prefix:
        return 0
    now = state.clock[0].now_ns
    _, blocks, _ = leading(state.prefix, i, r, now)
    tokens = blocks * rules.block
    if state.store.tiers:
        tokens += find(state.store, i, r, tokens, state.request[r].prompt, now, at.NONE)[1]
    return tokens


@kernel(allocates=False)
def _spread(replicas, clock, session, router, phase):
    """Round robin, by session, or the emptier of two random ones."""
    n = _how_many(replicas, phase)
    if router == at.TWO and n > 1:
        a = draw(clock, n)
        b = (a + 1 + draw(clock, n - 1)) % n
        one, other = _number(replicas, phase, a), _number(replicas, phase, b)
        return one if requests_at(replicas[one]) <= requests_at(replicas[other]) else other
    if router == at.SESSION:
        return _number(replicas, phase, session % n)
    chosen = clock.dealt % n
    clock.dealt += 1
    return _number(replicas, phase, chosen)


@kernel(allocates=False)
def route(state, rules, router, r, phase):
    q, replicas = state.request, state.replica
    if router == at.BALANCE:
        return _balance(q, replicas, state.running, rules.horizon, r, phase)
    if router == at.TURN or router == at.TWO or router == at.SESSION:
        return _spread(replicas, state.clock[0], q[r].session, router, phase)
    # Affinity chooses the replica that has most of the prompt, whatever its queue; ties by the shortest queue.
    weight = np.int64(1) if router == at.BY_PREFIX else np.int64(1 << 31)
    best, least = 0, at.NEVER
    for i in range(len(replicas)):
        if not serves(replicas[i], phase):
            continue
        load = replicas[i].pending
        if router == at.LEAST:
            load = requests_at(replicas[i])
        elif router != at.TOKENS and phase == at.PROMPTS:
            load -= there_on(state, rules, i, r) * weight
        if load < least:
            best, least = i, load
    return best


@kernel(allocates=False)
def steal(q, replicas, i):
    """An idle replica takes over the first waiting request, not yet started, of the longest queue; how many it took."""
    most, found = 0, at.NOBODY
    for j in range(len(replicas)):
        there = replicas[j]
        first = there.waiting.first
        if first == at.NOBODY or there.end_ns == at.NEVER or there.role != replicas[i].role:
            continue
        if there.waiting.count > most and q[first].scheduled_ns == at.NEVER:
            most, found = there.waiting.count, j
    if found == at.NOBODY:
        return 0
    r = take(q, replicas[found].waiting)
    asked = q[r]
    whole = asked.prompt + asked.output
    replicas[found].pending -= whole
    replicas[i].pending += whole
    replicas[i].stolen += 1
    asked.replica = i
    asked.decoder = i
    put_last(q, replicas[i].inbox, r)
    return 1

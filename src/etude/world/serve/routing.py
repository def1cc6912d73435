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
    if mine[at.SHUT]:
        return False
    if phase == at.ANSWERS:
        return mine[at.ROLE] == at.DECODE
    return mine[at.ROLE] == at.BOTH or mine[at.ROLE] == at.PREFILL


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
    here = mine[at.RUNNING] + mine[at.WAITING + 2] + mine[at.INBOX + 2]
    return here + mine[at.COMING + 2] + mine[at.LANDING + 2]


@kernel(allocates=False)
def _load_in(q, mine, running, ahead):
    """Tokens that the requests of a replica will hold after `ahead` steps."""
    total = 0
    for k in range(mine[at.RUNNING]):
        r = running[k]
        if q[r, at.OUTPUT] - q[r, at.PLANNED] >= ahead:
            total += q[r, at.PROMPT] + q[r, at.PLANNED] + ahead
    for queue in (at.WAITING, at.INBOX, at.COMING, at.LANDING):
        r = mine[queue]
        while r != at.NOBODY:
            if q[r, at.OUTPUT] - q[r, at.PLANNED] >= ahead:
                total += q[r, at.PROMPT] + q[r, at.PLANNED] + ahead
            r = q[r, at.FOLLOWING]
    return total


@kernel(allocates=False)
def _balance(q, replicas, running, horizon, r, phase):
    """The replica where the request fills most of the margin below the fullest one, and exceeds it least; summed over
    the steps of lookahead. All wait for the fullest, so a token above it delays all of them. If a request fits below it
    on several replicas, the one that holds least."""
    others = _how_many(replicas, phase)
    for i in range(len(replicas)):
        replicas[i, at.SCORE] = 0 if serves(replicas[i], phase) else -at.NEVER
    for ahead in range(min(horizon, q[r, at.OUTPUT]) + 1):
        fullest = 0
        for i in range(len(replicas)):
            if serves(replicas[i], phase):
                replicas[i, at.LOAD] = _load_in(q, replicas[i], running[i], ahead)
                fullest = max(fullest, replicas[i, at.LOAD])
        size = q[r, at.PROMPT] + ahead
        for i in range(len(replicas)):
            if serves(replicas[i], phase):
                margin = fullest - replicas[i, at.LOAD]
                replicas[i, at.SCORE] += min(size, margin) - others * max(size - margin, 0)
    best = 0
    for i in range(len(replicas)):
        better = replicas[i, at.SCORE] - replicas[best, at.SCORE]
        if better > 0 or (
            better == 0 and serves(replicas[i], phase) and replicas[i, at.LOAD] < replicas[best, at.LOAD]
        ):
            best = i
    return best


@kernel(allocates=False)
def there_on(state, rules, i, r):
    """Tokens of a prompt that a replica itself has."""
    if not rules.prefix:
        return 0
    now = state.clock[at.NOW]
    _, blocks, _ = leading(state.prefix, i, r, now)
    tokens = blocks * rules.block
    if state.store.tiers:
        tokens += find(state.store, i, r, tokens, state.request[r, at.PROMPT], now, at.NONE)[1]
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
    chosen = clock[at.DEALT] % n
    clock[at.DEALT] += 1
    return _number(replicas, phase, chosen)


@kernel(allocates=False)
def route(state, rules, router, r, phase):
    q, replicas = state.request, state.replica
    if router == at.BALANCE:
        return _balance(q, replicas, state.running, rules.horizon, r, phase)
    if router == at.TURN or router == at.TWO or router == at.SESSION:
        return _spread(replicas, state.clock, q[r, at.SESSION_OF], router, phase)
    # Affinity chooses the replica that has most of the prompt, whatever its queue; ties by the shortest queue.
    weight = np.int64(1) if router == at.BY_PREFIX else np.int64(1 << 31)
    best, least = 0, at.NEVER
    for i in range(len(replicas)):
        if not serves(replicas[i], phase):
            continue
        load = replicas[i, at.PENDING]
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
        first = there[at.WAITING]
        if first == at.NOBODY or there[at.END] == at.NEVER or there[at.ROLE] != replicas[i, at.ROLE]:
            continue
        if there[at.WAITING + 2] > most and q[first, at.SCHEDULED] == at.NEVER:
            most, found = there[at.WAITING + 2], j
    if found == at.NOBODY:
        return 0
    r = take(q, replicas[found], at.WAITING)
    whole = q[r, at.PROMPT] + q[r, at.OUTPUT]
    replicas[found, at.PENDING] -= whole
    replicas[i, at.PENDING] += whole
    replicas[i, at.STOLEN] += 1
    q[r, at.REPLICA] = i
    q[r, at.DECODER] = i
    put_last(q, replicas[i], at.INBOX, r)
    return 1

"""Which replica a request goes to, in compiled code. The lowest number wins where several are as good."""

from __future__ import annotations

from etude.kernels.compile import kernel
from etude.serve import state as at
from etude.serve.prefix import leading
from etude.serve.queues import draw


@kernel(allocates=False)
def serves(state, i, phase):
    """Replica i takes requests as they arrive, or ANSWERS."""
    mine = state.replica[i]
    if mine[at.SHUT]:
        return False
    if phase == at.ANSWERS:
        return mine[at.ROLE] == at.DECODE
    return mine[at.ROLE] == at.BOTH or mine[at.ROLE] == at.PREFILL


@kernel(allocates=False)
def _how_many(state, phase):
    found = 0
    for i in range(len(state.replica)):
        if serves(state, i, phase):
            found += 1
    return found


@kernel(allocates=False)
def _number(state, phase, k):
    """The k-th of those."""
    last = 0
    for i in range(len(state.replica)):
        if serves(state, i, phase):
            last = i
            if k == 0:
                break
            k -= 1
    return last


@kernel(allocates=False)
def requests_at(state, i):
    mine = state.replica[i]
    here = mine[at.RUNNING] + mine[at.WAITING + 2] + mine[at.INBOX + 2]
    return here + mine[at.COMING + 2] + mine[at.LANDING + 2]


@kernel(allocates=False)
def _load_in(state, i, ahead):
    """Tokens that the requests of replica i hold, so many steps from now."""
    q = state.request
    total = 0
    for k in range(state.replica[i, at.RUNNING]):
        r = state.running[i, k]
        if q[r, at.OUTPUT] - q[r, at.PLANNED] >= ahead:
            total += q[r, at.PROMPT] + q[r, at.PLANNED] + ahead
    for queue in (at.WAITING, at.INBOX):
        r = state.replica[i, queue]
        while r != at.NOBODY:
            if q[r, at.OUTPUT] - q[r, at.PLANNED] >= ahead:
                total += q[r, at.PROMPT] + q[r, at.PLANNED] + ahead
            r = q[r, at.FOLLOWING]
    return total


@kernel(allocates=False)
def _balance(state, rules, r, phase):
    """The placement that fills most of the margin below the fullest replica, and overflows it least; summed over the
    steps that the router looks ahead. All wait for the fullest, so that a token over it costs all of them."""
    q, replicas = state.request, state.replica
    others = _how_many(state, phase)
    for i in range(len(replicas)):
        replicas[i, at.SCORE] = 0 if serves(state, i, phase) else -at.NEVER
    for ahead in range(min(rules.horizon, q[r, at.OUTPUT]) + 1):
        fullest = 0
        for i in range(len(replicas)):
            if serves(state, i, phase):
                replicas[i, at.LOAD] = _load_in(state, i, ahead)
                fullest = max(fullest, replicas[i, at.LOAD])
        size = q[r, at.PROMPT] + ahead
        for i in range(len(replicas)):
            if serves(state, i, phase):
                margin = fullest - replicas[i, at.LOAD]
                replicas[i, at.SCORE] += min(size, margin) - others * max(size - margin, 0)
    best = 0
    for i in range(len(replicas)):
        if replicas[i, at.SCORE] > replicas[best, at.SCORE]:
            best = i
    return best


@kernel(allocates=False)
def route(state, rules, router, r, phase):
    q = state.request
    replicas = len(state.replica)
    if router == at.LEAST or router == at.TOKENS or router == at.BY_PREFIX:
        best, least = 0, at.NEVER
        for i in range(replicas):
            if not serves(state, i, phase):
                continue
            load = state.replica[i, at.PENDING]
            if router == at.LEAST:
                load = requests_at(state, i)
            if router == at.BY_PREFIX and phase == at.PROMPTS:
                _, blocks, _ = leading(state.prefix, i, r)
                load -= blocks * rules.block
            if load < least:
                best, least = i, load
        return best
    if router == at.BALANCE:
        return _balance(state, rules, r, phase)
    n = _how_many(state, phase)
    if router == at.TWO and n > 1:
        a = draw(state.clock, n)
        b = (a + 1 + draw(state.clock, n - 1)) % n
        one, other = _number(state, phase, a), _number(state, phase, b)
        return one if requests_at(state, one) <= requests_at(state, other) else other
    if router == at.SESSION:
        return _number(state, phase, q[r, at.SESSION_OF] % n)
    chosen = state.clock[at.DEALT] % n
    state.clock[at.DEALT] += 1
    return _number(state, phase, chosen)

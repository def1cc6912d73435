"""Parallel branches of answers, in compiled code: which of them get a token, and how many run at a time."""

from __future__ import annotations

import numpy as np

from etude.kernels.compile import kernel
from etude.world.serve import state as at
from etude.world.serve.pass_content import blocks_of, hold, time_of


@kernel(allocates=False)
def _length(q, r, branch):
    """Tokens of a branch: an even share of the answer."""
    asked = q[r]
    return asked.output // asked.branches + (1 if branch < asked.output % asked.branches else 0)


@kernel(allocates=False)
def advance_branch(q, branches, r):
    """The first branch that lacks tokens gets one; which one, or NOBODY."""
    asked = q[r]
    branch = at.NONE
    start = asked.branch_at
    while branch < asked.branches and branches[start + branch] >= _length(q, r, branch):
        branch += 1
    if branch == asked.branches:
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
        asked = q[r]
        if asked.first_ns != at.NEVER:
            before = asked.steps - 1 if asked.branches > 1 else asked.planned - batch[3, k]
            due = asked.first_ns + np.int64(before * tpot_ns)
            least = min(least, due - begin - time_ns)
    return max(least, 0)


@kernel(allocates=False)
def widen(state, rules, machines, i, now):
    """Starts more branches of answers, while the rule allows it and there is room."""
    q, mine, shape = state.request, state.replica[i], state.shape[i]
    begin = now if mine.end_ns == at.NEVER else mine.end_ns
    alone = time_of(mine, shape, rules, machines)
    slack = at.NEVER
    if rules.admit == at.SLACK and rules.admit_value < np.inf:
        slack = _slack_ns(q, state.batch[i], mine.ahead, rules.tpot_ns, begin, alone)
        slack = np.int64(min(slack * rules.admit_value, float(at.NEVER)))
        mine.slack_ns = slack
    for k in range(mine.ahead):
        r = state.batch[i, 1, k]
        asked = q[r]
        if asked.planned == state.batch[i, 3, k]:  # its prompt is read by this pass
            continue
        branch = asked.branch + 1
        while branch < asked.branches:
            if rules.admit == at.CAP and state.batch[i, 3, k] >= rules.admit_value:
                break
            before = shape.most_keys
            made = state.branch[asked.branch_at + branch]
            if made >= _length(q, r, branch):
                branch += 1
                continue
            keys = asked.prompt + max(made, 1)
            shape.decode += 1
            shape.decode_keys += keys
            shape.outputs += 1
            shape.most_keys = max(shape.most_keys, keys)
            longer = 0
            if rules.admit == at.SLACK:
                longer = time_of(mine, shape, rules, machines) - alone
            if longer > slack or not hold(state, i, r, blocks_of(asked.computed + 1, rules.block), rules):
                shape.decode -= 1
                shape.decode_keys -= keys
                shape.outputs -= 1
                shape.most_keys = before
                return
            mine.extra_ns = longer
            mine.extra += 1
            state.branch[asked.branch_at + branch] += 1
            asked.computed += 1
            asked.planned += 1
            state.batch[i, 3, k] += 1
            branch += 1

"""When each action of a pipeline schedule runs, if every rank goes through its order as fast as it can."""

import numpy as np

from etude.kernels.compile import kernel


@kernel
def run(start, action, stage, micro_batch, paired, cost, pair_extra, hop, stages, micro_batches, forward, weight):
    """Begin and end of each action, and how many ranks' positions were reached (`at`).

    A forward waits for the stage before, a backward for its own forward and for the backward of the stage behind, a
    weight gradient for its backward. `hop` is what a result takes to another rank. The actions of a pair begin
    together and end together, after the sum of both times plus `pair_extra` (negative where they overlap).
    """
    n, ranks = len(action), len(start) - 1
    begin, end = np.full(n, -1.0), np.full(n, -1.0)
    done_forward = np.full((stages, micro_batches), -1.0)
    done_backward = np.full((stages, micro_batches), -1.0)
    where_forward = np.full((stages, micro_batches), -1)
    where_backward = np.full((stages, micro_batches), -1)
    at = start[:-1].copy()
    free = np.zeros(ranks)
    moved = True
    while moved:
        moved = False
        for r in range(ranks):
            while at[r] < start[r + 1]:
                first = at[r]
                last = first + 1 if paired[first] else first
                ready, blocked = free[r], False
                for i in range(first, last + 1):
                    s, m = stage[i], micro_batch[i]
                    if action[i] == forward:
                        if s > 0:
                            if done_forward[s - 1, m] < 0.0:
                                blocked = True
                                break
                            ready = max(ready, done_forward[s - 1, m] + hop * (where_forward[s - 1, m] != r))
                    elif action[i] == weight:
                        if done_backward[s, m] < 0.0:
                            blocked = True
                            break
                        ready = max(ready, done_backward[s, m])
                    else:
                        if done_forward[s, m] < 0.0 or (s + 1 < stages and done_backward[s + 1, m] < 0.0):
                            blocked = True
                            break
                        ready = max(ready, done_forward[s, m])
                        if s + 1 < stages:
                            ready = max(ready, done_backward[s + 1, m] + hop * (where_backward[s + 1, m] != r))
                if blocked:
                    break
                finish = ready + (pair_extra if last > first else 0.0)
                for i in range(first, last + 1):
                    finish += cost[action[i], stage[i]]
                for i in range(first, last + 1):
                    begin[i], end[i] = ready, finish
                    if action[i] == forward:
                        done_forward[stage[i], micro_batch[i]] = finish
                        where_forward[stage[i], micro_batch[i]] = r
                    elif action[i] != weight:
                        done_backward[stage[i], micro_batch[i]] = finish
                        where_backward[stage[i], micro_batch[i]] = r
                free[r] = finish
                at[r] = last + 1
                moved = True
    return begin, end, at

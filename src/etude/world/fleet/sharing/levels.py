"""Max-min by linear programs: the lowest level is raised as far as possible, then the lowest of those that can still
rise, and so on.

A job of weight w that has x_k devices of kind k gets `rate_k · x_k` of each. `fair` counts devices; `gavel` counts
effective throughput relative to an equal share of every kind, as Gavel does.
"""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import F64

TIGHT = 1e-9


def max_min(rates: F64, weight: F64, most: F64, capacity: F64) -> F64:
    """Devices of each job (row) and kind (column). `rates` is 0 where a job cannot run; `most` limits a job's devices.

    Each round raises the level of all jobs that are not settled; the jobs that limit the level (their row of the
    program has a price) are settled there.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack, vstack

    n, kinds = rates.shape
    if not n:
        return np.zeros((0, kinds))
    usable = rates > 0
    row = np.repeat(np.arange(n), kinds)
    of_job = csr_array((rates.ravel(), (row, np.arange(n * kinds))), shape=(n, n * kinds))
    devices = csr_array((np.ones(n * kinds), (row, np.arange(n * kinds))), shape=(n, n * kinds))
    of_kind = csr_array(
        (np.ones(n * kinds), (np.tile(np.arange(kinds), n), np.arange(n * kinds))), shape=(kinds, n * kinds)
    )
    none = csr_array((n + kinds, 1))
    limits = hstack([vstack([devices, of_kind]), none])
    bound = np.concatenate([most, capacity])
    ends = [(0.0, None if ok else 0.0) for ok in usable.ravel()] + [(0.0, None)]
    settled, floor, found = ~usable.any(axis=1), np.zeros(n), np.zeros((n, kinds))
    aim = np.append(np.zeros(n * kinds), -1.0)
    while not settled.all():
        level = csr_array(np.where(settled, 0.0, weight)[:, None])
        # rates · x >= weight · level for jobs that can rise, and >= their own level for settled ones
        program = vstack([hstack([-of_job, level]), limits])
        right = np.concatenate([np.where(settled, -floor * (1 - 1e-12), 0.0), bound])
        answer = linprog(aim, A_ub=program, b_ub=right, bounds=ends, method="highs")
        if not answer.success:
            break
        found = answer.x[:-1].reshape(n, kinds)
        price = -answer.ineqlin.marginals[:n]
        stops = ~settled & (price * weight > TIGHT)
        if not stops.any():
            stops = ~settled
        floor = np.where(stops, weight * answer.x[-1], floor)
        settled |= stops
    return np.asarray(np.maximum(found, 0.0), np.float64)

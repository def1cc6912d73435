"""Runs written by hand: ranks that compute three kernels a step, and then sum over all of them."""

import numpy as np

from etude.model.build import build_trace
from etude.model.job import Part, assemble
from etude.model.run import Run
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.timing import measured

WORK = (100, 200, 300)
"""us of the kernels of a step."""
TRANSFER = 50


def run_of(
    slower: np.ndarray,
    pause_us: np.ndarray | None = None,
    *,
    kernels: np.ndarray | None = None,
    transfer: np.ndarray | None = None,
) -> Run:
    """Ranks that compute three kernels a step and then sum over all; `slower` and `pause_us` are steps x ranks,
    `kernels` steps x ranks x 3, `transfer` how much longer the transfer of each step is. A collective starts on each
    rank when it comes, and ends on all together."""
    steps, ranks = slower.shape
    each = np.ones((steps, ranks, 3)) if kernels is None else kernels
    pause = np.zeros((steps, ranks)) if pause_us is None else pause_us
    longer = np.ones(steps) if transfer is None else transfer
    now, starts, ends = np.zeros(ranks), [], []
    for s in range(steps):
        now = now + pause[s]
        for k, us in enumerate(WORK):
            starts.append(now)
            now = now + us * slower[s] * each[s, :, k]
            ends.append(now)
        starts.append(now)
        now = np.full(ranks, now.max() + TRANSFER * longer[s])
        ends.append(now)
    kinds = [int(Kind.COMP)] * 3 + [int(Kind.COLL)]
    columns = {
        "kind": np.tile(kinds, steps),
        "name": [f"{name}" for _ in range(steps) for name in ("gemm", "attention", "norm", "all_reduce")],
        "cpu": np.zeros(4 * steps, np.int8),
        "stream": np.tile([7, 7, 7, 20], steps),
        "step": np.repeat(np.arange(steps), 4),
        "collective": np.tile([0, 0, 0, int(Collective.ALL_REDUCE)], steps),
        "in_bytes": np.tile([UNKNOWN] * 3 + [1 << 20], steps),
        "group": np.tile([-1, -1, -1, 0], steps),
    }
    begin, end = np.stack(starts) * 1000, np.stack(ends) * 1000
    trace = build_trace(columns, group_slots=["g0"])
    parts = [Part(r, trace, [("world", list(range(ranks)))], np.zeros(0, np.int64)) for r in range(ranks)]
    begun = [np.rint(begin[:, r]).astype(np.int64) for r in range(ranks)]
    timing = measured(begun, [np.rint(end[:, r]).astype(np.int64) - begun[r] for r in range(ranks)])
    assert timing is not None
    return Run(assemble("by-hand", parts).replace(timing=timing), timing)


def noise(steps: int, ranks: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(1, 0.005, (steps, ranks))

"""Runs of many steps with a fault of many kinds, or none: what `injected_runs` has one of, in every shape.

Half of all ranks throttled from a step on, a rank that is slow in every k-th step, one that drifts, two at once, a slow
link, a host that is late, recordings that a hang cut short; of 2 to 64 ranks, with lognormal and heavy-tailed noise,
hosts that the operating system interrupts, and work that differs from rank to rank and step to step. Nothing of Etude.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from injected_runs import Machine, Truth, train
from numpy.typing import NDArray

F64 = NDArray[np.float64]

KINDS = (
    "none", "none uneven", "slow", "slow since", "slow for a while", "half", "periodic", "drift", "two", "slow link",
    "slow link since", "late host", "small", "uneven and slow", "hung", "hung unseen",
)  # fmt: skip
FACTORS = (1.1, 1.2, 1.5)
SIZES = (4, 8, 8, 16, 16, 32, 64)
STEPS = (10, 20, 40)
MOST = 640
"""Ranks x steps in a run: large ones have few steps."""


@dataclass(frozen=True)
class Fault:
    kind: str
    truth: Truth
    """`kind` as findings have it; `ranks` all that are to blame."""
    jitter: str
    ranks: int


def faulty(seed: int, kind: str, factor: float) -> tuple[Machine, Fault]:
    """A run with this fault; everything else follows from the seed."""
    rng = np.random.default_rng([seed, 99])
    ranks = int(rng.choice(SIZES)) if kind != "small" else int(rng.choice([2, 3, 4]))
    if kind in ("two", "slow link", "slow link since"):
        ranks = max(ranks, 8)
    steps = int(rng.choice([s for s in STEPS if s * ranks <= MOST] or [10]))
    model = str(rng.choice(["dp", "tp", "fsdp", "hsdp", "cp"]))
    if kind.startswith("slow link"):
        model = "cp" if ranks < 16 else str(rng.choice(["cp", "tp"]))
    jitter = str(rng.choice(["normal", "lognormal", "heavy"]))
    m = Machine(ranks, rng, jitter, float(rng.choice([4, 8])), 0)
    m.host_stalls = float(rng.choice([0, 0.01]))
    scale = float(rng.choice([0.5, 1, 4]))
    m.by_step, who, found = _slow(rng, kind, factor, ranks, steps)
    if "uneven" in kind:
        m.work = rng.choice([0.5, 0.75, 1, 1.25, 1.5, 2], (steps, ranks)) * rng.lognormal(0, 0.1, ranks)
    since = 0
    if kind.startswith("slow link"):
        since = steps // 2 if kind.endswith("since") else 0
        m.since = since
        size = min(4 if model == "cp" else 8, ranks)
        a = int(rng.integers(ranks))
        b = a - a % size + (a % size + 1 + int(rng.integers(size - 1))) % size
        who, found = (min(a, b), max(a, b)), "slow_link"
        m.pair[who] = factor
    if kind == "late host":
        probe = Machine(ranks, np.random.default_rng(1), "normal", m.launch_us, 0)
        train(probe, model, 1, scale, np.ones(ranks), True, 0.0)
        bad = int(rng.integers(ranks))
        m.late_us[bad] = (factor - 1) * float(np.median(probe.comp))
        who, found = (bad,), "late_host"
    train(m, model, steps, scale, np.ones(ranks), True, 0.0)
    truth = Truth(found, who, "", model, steps, since, factor)
    if kind.startswith("hung"):
        own = sum(event.what == "coll" for event in m.events)
        bad = int(rng.integers(ranks))
        cut, how = int(rng.integers(own // 4, own)), "hung" if kind == "hung" else "unseen"
        truth = replace(truth, kind="missing_participant", ranks=(bad,), how=how, cut=cut)
    return m, Fault(kind, truth, jitter, ranks)


def _slow(
    rng: np.random.Generator, kind: str, factor: float, ranks: int, steps: int
) -> tuple[F64, tuple[int, ...], str]:
    """(how much slower devices are, by step and rank; who; what it is called)."""
    slow = np.ones((steps, ranks))
    bad, other = (int(r) for r in rng.permutation(ranks)[:2])
    since = int(rng.integers(steps // 4, 3 * steps // 4))
    who: tuple[int, ...] = (bad,)
    if kind in ("slow", "uneven and slow"):
        slow[:, bad] = factor
    elif kind == "slow since":
        slow[since:, bad] = factor
    elif kind == "slow for a while":
        slow[steps // 4 : steps // 4 + max(3, steps // 4), bad] = factor
    elif kind == "half":
        who = tuple(sorted(rng.permutation(ranks)[: ranks // 2].tolist()))
        slow[since:, list(who)] = factor
    elif kind == "periodic":
        every = int(rng.choice([k for k in (2, 3, 5, 10) if 4 * k <= steps]))
        slow[int(rng.integers(every)) :: every, bad] = factor
    elif kind == "drift":
        slow[:, bad] = 1 + 2 * (factor - 1) * np.arange(steps) / (steps - 1)
    elif kind == "two":
        who = tuple(sorted((bad, other)))
        slow[:, bad] = factor
        slow[since if rng.integers(2) else 0 :, other] = factor
    elif kind == "small":
        slow[since if ranks < 3 or rng.integers(2) else 0 :, bad] = factor
    else:
        return slow, (), "none"
    return slow, who, "slow_rank"

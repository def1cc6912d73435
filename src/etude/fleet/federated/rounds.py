"""federate(clients, ...): rounds of sampling, sending, local steps and answers, as columns.

In a round the server draws clients among those that are there, sends each its weights, and waits for the last answer,
for the first so many (`quorum`), or for a deadline. Its link, if it has a limit, is shared max-min.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.errors import UsageError
from etude.fleet.federated.clients import Clients

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
SAMPLES: Final = ("uniform", "weighted")


@dataclass(frozen=True, slots=True, eq=False)
class Federated:
    clients: Clients
    round_s: F64
    asked: I64
    """Clients of each round that were drawn."""
    answered: I64
    """... and whose answer was taken."""
    down_bytes: F64
    up_bytes: F64
    """Of answers that were taken."""
    drawn: I64
    """Of each client: rounds that it was drawn in."""
    taken: I64

    def summary(self) -> dict[str, Any]:
        p50, p99 = np.percentile(self.round_s, [50, 99])
        return {
            "duration_s": float(self.round_s.sum()),
            "rounds": len(self.round_s),
            "round_s": {"mean": float(self.round_s.mean()), "p50": float(p50), "p99": float(p99),
                        "max": float(self.round_s.max())},
            "asked": int(self.asked.sum()),
            "answered": int(self.answered.sum()),
            "down_bytes": float(self.down_bytes.sum()),
            "up_bytes": float(self.up_bytes.sum()),
            "clients": len(self.clients),
            "never_taken": int((self.taken == 0).sum()),
            "participation": {"min": int(self.taken.min()), "mean": float(self.taken.mean()),
                              "max": int(self.taken.max())},
        }  # fmt: skip

    def tables(self) -> dict[str, pa.Table]:
        start = np.concatenate([[0.0], np.cumsum(self.round_s)[:-1]])
        rounds = pa.table({
            "round": np.arange(len(self.round_s)), "start_s": start, "end_s": start + self.round_s,
            "asked": self.asked, "answered": self.answered, "down_bytes": self.down_bytes, "up_bytes": self.up_bytes,
        })  # fmt: skip
        of = self.clients
        clients = pa.table({
            "name": pa.array(of.name, pa.string()), "step_s": of.step_s, "down_bytes_per_s": of.down_bytes_per_s,
            "up_bytes_per_s": of.up_bytes_per_s, "available": of.available, "share": of.share, "drawn": self.drawn,
            "taken": self.taken,
        })  # fmt: skip
        return {"rounds": rounds, "clients": clients}


def federate(
    clients: Clients, *, model_bytes: float, rounds: int, count: int, steps: int = 1, sample: str = "uniform",
    deadline_s: float = 0.0, quorum: int = 0, server_bytes_per_s: float = 0.0, seed: int = 0,
) -> Federated:  # fmt: skip
    """`count` clients a round, `steps` local steps each. `deadline_s` and `quorum` 0: all answers are waited for;
    `server_bytes_per_s` 0: no limit, each way."""
    if sample not in SAMPLES:
        raise UsageError(f"--sample: no such way `{sample}`", hint=f"known: {', '.join(SAMPLES)}")
    if not 1 <= count <= len(clients):
        raise UsageError(f"{count} clients a round of {len(clients)}", hint="--count, at most as many as there are")
    if quorum > count:
        raise UsageError(f"a quorum of {quorum} of {count} clients is never reached", hint="a smaller --quorum")
    rng, size = np.random.default_rng(seed), clients.share * model_bytes
    out: dict[str, list[float]] = {name: [] for name in ("round", "asked", "answered", "down", "up")}
    drawn, taken = np.zeros(len(clients), np.int64), np.zeros(len(clients), np.int64)
    for _ in range(rounds):
        there = np.flatnonzero(rng.random(len(clients)) < clients.available)
        chosen = _drawn(rng, there, clients.samples, count, sample)
        silent = rng.random(len(chosen)) < clients.drops[chosen]
        if silent.any() and not deadline_s and len(chosen) - int(silent.sum()) < (quorum or len(chosen)):
            raise UsageError("clients that never answer are waited for forever", hint="--deadline 10min, or --quorum")
        got = finished(size[chosen], clients.down_bytes_per_s[chosen], np.zeros(len(chosen)), server_bytes_per_s)
        ready = got + steps * clients.step_s[chosen]
        speaks = ~silent
        back = np.full(len(chosen), np.inf)
        back[speaks] = finished(
            size[chosen][speaks], clients.up_bytes_per_s[chosen][speaks], ready[speaks], server_bytes_per_s
        )
        order = np.sort(back)
        end = float(order[(quorum or len(chosen)) - 1]) if len(chosen) >= max(quorum, 1) else np.inf
        end = min(end, deadline_s or np.inf)
        if not np.isfinite(end):
            raise UsageError("a round has too few clients to end", hint="--deadline 10min, or a smaller --quorum")
        late = back > end
        drawn[chosen] += 1
        taken[chosen[~late]] += 1
        figures = end, len(chosen), int((~late).sum()), size[chosen].sum(), size[chosen][~late].sum()
        for name, value in zip(out, figures, strict=True):
            out[name].append(float(value))
    columns = [np.array(values) for values in out.values()]
    return Federated(
        clients, columns[0], columns[1].astype(np.int64), columns[2].astype(np.int64), columns[3], columns[4], drawn,
        taken,
    )  # fmt: skip


def _drawn(rng: np.random.Generator, there: I64, samples: F64, count: int, sample: str) -> I64:
    """Without putting back; all where there are no more than wanted."""
    if len(there) <= count:
        return there
    if sample == "uniform":
        return rng.choice(there, count, replace=False)
    weight = samples[there]
    if np.count_nonzero(weight) < count:
        raise UsageError(f"fewer than {count} clients that are there have samples", hint="--sample uniform")
    return rng.choice(there, count, replace=False, p=weight / weight.sum())


def finished(size: F64, rate: F64, start: F64, limit: float) -> F64:
    """When transfers end that begin at `start`, each at most at its rate, all together at most at `limit` (0: none),
    shared max-min."""
    alone = start + size / rate
    if not limit or not len(size):
        return alone
    end, left = np.full(len(size), np.inf), size.astype(np.float64).copy()
    now, active, order = 0.0, np.zeros(len(size), bool), np.argsort(start, kind="stable")
    begun = 0
    while begun < len(size) or active.any():
        coming = float(start[order[begun]]) if begun < len(size) else np.inf
        going = np.flatnonzero(active)
        share = max_min(rate[going], limit)
        soonest = float((left[going] / share).min()) + now if len(going) else np.inf
        then = min(coming, soonest)
        left[going] -= share * (then - now)
        done = going[left[going] <= 1e-9 * size[going]] if soonest <= coming else going[:0]
        end[done], active[done] = then, False
        now = then
        while begun < len(size) and start[order[begun]] <= now:
            active[order[begun]] = True
            begun += 1
    return end


def max_min(rate: F64, limit: float) -> F64:
    """Shares of a limit: none above its own rate, none below another's unless at its own rate."""
    if rate.sum() <= limit:
        return rate
    least = np.sort(rate)
    before = np.concatenate([[0.0], np.cumsum(least)[:-1]])
    level = (limit - before) / np.arange(len(rate), 0, -1)
    return np.minimum(rate, level[np.flatnonzero(least >= level)[0]])

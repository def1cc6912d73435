"""Results of a served stream: times of tokens by request, and their means and percentiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import F64
from etude.model.tokens import token_times
from etude.world.serve.engine import FOLLOWS
from etude.world.serve.state import GAP_GRAIN, NEVER, PREFILL
from etude.world.serve.workloads import statistics

if TYPE_CHECKING:
    from etude.world.serve.serving import Served


def request_times(served: Served, *, since: str = "arrival") -> dict[str, F64]:
    """`ttft_s`, `tpot_s` and `latency_s` of each request, in seconds. `since="queued"`: from when the engine accepted
    it. An answer of one token has no time per further token: NaN."""
    requests, first, finish = served.requests, served.column("FIRST"), served.column("FINISH")
    begin = served.column("ARRIVAL" if since == "arrival" else "QUEUED")
    # Parallel branches get one token each per pass: each of them waits from pass to pass.
    tokens = np.where(requests.branches > 1, served.column("STEPS"), requests.output)
    ttft, tpot = token_times(begin, first, finish, tokens)
    return {"ttft_s": ttft / 1e9, "tpot_s": tpot / 1e9, "latency_s": (finish - begin) / 1e9}


def request_table(served: Served) -> pa.Table:
    """A row for each request, in order of arrival."""
    requests = served.requests
    return pa.table(
        {
            "request": np.arange(len(requests)),
            "arrival_s": served.column("ARRIVAL") / 1e9,
            "prompt": requests.prompt,
            "output": requests.output,
            "first_token_s": served.column("FIRST") / 1e9,
            "finish_s": served.column("FINISH") / 1e9,
            "replica": served.column("REPLICA"),
            "queued_s": served.column("QUEUED") / 1e9,
            "scheduled_s": served.column("SCHEDULED") / 1e9,
            "preempted": served.column("PREEMPTED"),
            "cache_hit_tokens": served.column("HIT"),
            "decode_replica": served.column("DECODER"),
            "kv_sent_bytes": served.column("SENT"),
            "codec": served.column("CODED"),
            "tpot_s": request_times(served)["tpot_s"],
        }
    )


def spread(values: F64) -> dict[str, float] | None:
    """Mean and percentiles; None where there is no value."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    p50, p90, p99, most = np.quantile(known, [0.5, 0.9, 0.99, 0.999]).tolist()
    return {"mean": float(known.mean()), "p50": p50, "p90": p90, "p99": p99, "p999": most}


def token_gaps(served: Served) -> dict[str, float] | None:
    """Mean and percentiles of the times between two tokens of a request, over all tokens, in seconds; percentiles are
    within 0.25%. Tokens that come with one pass (proposed by a draft, or of branches) count once. None: no request has
    a second token."""
    counts = served.state.gaps
    if not counts.any():
        return None
    within = np.cumsum(counts) / counts.sum()
    bins = np.searchsorted(within, [0.5, 0.9, 0.99, 0.999])
    p50, p90, p99, most = (np.exp((bins + 0.5) / GAP_GRAIN) / 1e9).tolist()
    whole_s = float((served.column("FINISH") - served.column("FIRST")).sum()) / 1e9
    return {"mean": whole_s / float(counts.sum()), "p50": p50, "p90": p90, "p99": p99, "p999": most}


def energies(served: Served, duration_s: float) -> tuple[float | None, float | None]:
    """Joules of all devices until the last answer, and the part of idle devices; None if their power is unknown."""
    if not all(energy.ranks for energy in served.energies):
        return None, None
    held_s = _held_s(served, duration_s)
    idle_j = sum(energy.idle_w * energy.ranks * held for energy, held in zip(served.energies, held_s, strict=True))
    return idle_j + float(served.state.energy_nj.sum()) / 1e9, idle_j


def _held_s(served: Served, duration_s: float) -> list[float]:
    """Time that each replica was held."""
    if served.held_ns is None:
        return [duration_s] * len(served.state.replica)
    return (served.held_ns / 1e9).tolist()


Limits = dict[str, dict[str, float]]


def kept_limits(served: Served, limits: Limits, *, waited_s: F64 | float = 0.0) -> NDArray[np.bool_]:
    """Which requests meet all limits of their tier; the empty name is for tiers without their own. Each has waited
    `waited_s` before it arrived."""
    times = request_times(served)
    times |= {name: times[name] + waited_s for name in ("ttft_s", "latency_s")}
    kept = np.ones(len(served.requests), bool)
    names = served.requests.tier_names
    unknown = [tier for tier in limits if tier and tier not in names]
    if unknown:
        raise UsageError(f"no request has tier `{unknown[0]}`", hint=f"known: {', '.join(names) or 'none'}")
    for tier, its in limits.items():
        named = [k for k, name in enumerate(names) if (name == tier if tier else name not in limits)]
        mine = np.isin(served.requests.tier, named) if names else np.full(len(kept), not tier)
        for name, limit in its.items():
            if name not in times:
                raise UsageError(f"unknown limit `{name}`", hint=f"known: {', '.join(times)}")
            kept &= ~(mine & (times[name] > limit))
    return kept


def step_imbalance(served: Served) -> float | None:
    """With a barrier, the fraction of step time in which replicas wait for the longest: sum of (longest - mean) over
    sum of longest."""
    if not served.engine.barrier:
        return None
    longest = float(served.state.clock["barriers_ns"][0])
    together = served.count("ROLE") != PREFILL
    return 1.0 - float(served.count("OWN")[together].mean()) / longest


def _sent(served: Served) -> dict[str, Any]:
    """Keys and values sent to other replicas, and their mean arrival after the first token."""
    sent = served.column("SENT") > 0
    late = (served.column("READY") - served.column("FIRST"))[sent]
    return {
        "kv_sent_bytes": int(served.column("SENT").sum()),
        "transfer_s": float(late.mean()) / 1e9 if sent.any() else None,
    }


def _by_tier(served: Served, kept: NDArray[np.bool_], duration_s: float) -> dict[str, Any]:
    found = {}
    for number, name in enumerate(served.requests.tier_names):
        mine = served.requests.tier == number
        found[name] = {
            "requests": int(mine.sum()),
            "within_limits": float(kept[mine].mean()) if mine.any() else None,
            "goodput_rps": float(kept[mine].sum()) / duration_s,
        }
    return found


def summary(served: Served, *, limits: Limits | None = None) -> dict[str, Any]:
    """The record of `etude serve --json`. `limits` are those of the service, by tier, the empty name for all others:
    `{"": {"ttft_s": 1.0, "tpot_s": 0.05}}`; goodput counts requests that meet all of them."""
    times = request_times(served)
    duration_s = float(served.column("FINISH").max()) / 1e9
    kept = kept_limits(served, limits or {})
    energy_j, idle_j = energies(served, duration_s)
    held_s = np.array(_held_s(served, duration_s))
    there, busy = held_s > 0, served.count("BUSY")
    part = busy[there] / held_s[there]
    return {
        "requests": len(served.requests),
        "finished": int((served.column("FINISH") != NEVER).sum()),
        "duration_s": duration_s,
        **{name: spread(values) for name, values in times.items()},
        "itl_s": token_gaps(served),
        "goodput_rps": float(kept.sum()) / duration_s,
        "within_limits": float(kept.mean()),
        "output_tokens_per_s": float(served.requests.output.sum()) / duration_s,
        "energy_j": energy_j,
        "idle_energy_j": idle_j,
        "kv_peak": float((served.count("PEAK") / served.count("ROOM")).max()),
        "preemptions": int(served.count("PREEMPTED").sum()),
        "cache_hit_tokens": int(served.count("FOUND").sum()),
        "stored_hit_tokens": int(served.count("STORED").sum()),
        "kv_fetched_bytes": round(float(served.state.store.link[:, 5].sum())),
        "kv_fetch_s": float(served.state.store.link[:, 6].sum()) / 1e9,
        "remote_hit_tokens": int(served.state.store.moved[:, -2].sum()) if served.state.store.tiers else 0,
        "read_tokens": int(served.count("READ").sum()),
        "prompt_tokens": int(served.requests.prompt.sum()),
        "workload": statistics(served.requests),
        "passes": int(served.count("PASSES").sum()),
        "busy": float(busy.sum() / 1e9 / held_s.sum()),
        "imbalance": float(part.max() / part.mean() - 1.0),
        "step_imbalance": step_imbalance(served),
        "dummy_passes": int(served.count("DUMMY").sum()),
        "adapter_loads": int(served.count("LOADED").sum()),
        "stolen": int(served.count("STOLEN").sum()),
        **_sent(served),
        "replica_s": float(held_s.sum()),
        "changes": served.changes,
        "tiers": _by_tier(served, kept, duration_s),
        "engine": FOLLOWS,
    }

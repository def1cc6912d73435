"""A stream of requests on replicas whose memory embeddings and keys and values share."""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.world.serve.pass_time import passes_ns
from etude.world.serve.requests import Requests
from etude.world.serve.results import spread
from etude.world.serve.rings import LRU, ring_of
from etude.world.serve.split import kernels as of
from etude.world.serve.split.words import RATIOS, SplitRules
from etude.world.serve.steps import PassContent, StepCost

ROUTERS: Final = {"turn": of.TURN, "least": of.LEAST, "session": of.SESSION, "residency": of.RESIDENCY}
TRIED: Final = 9**5
"""Most sequences of ratios."""
MOST: Final = 1 << 27
"""Limit of lists times ids."""


def served_split(
    requests: Requests,
    cost: StepCost,
    rules: SplitRules,
    *,
    token_bytes: float,
    replicas: int = 1,
    router: str = "least",
    limits: dict[str, float] | None = None,
    plan: npt.ArrayLike | None = None,
    judged: bool = True,
) -> dict[str, Any]:
    """With the first of the fixed ratios, with the controller, or with `plan`: indices into RATIOS, one row per replica
    and one column per window of its requests. Needs `room_bytes` and `link_bytes_per_s`. `judged`: a fixed ratio of
    RATIOS is compared with all of them, which a controller is anyway."""
    if router not in ROUTERS:
        raise UsageError(f"unknown router `{router}`", hint=f"with --hbm-split: {', '.join(ROUTERS)}")
    if rules.room_bytes <= 0 or rules.link_bytes_per_s <= 0:
        raise UsageError("--hbm-split: room or link is missing", hint="room=2GB link=25GB/s")
    stream = _stream(requests, cost, rules, token_bytes)
    fixed = bool(rules.ratios) and plan is None
    judged = fixed and judged and rules.ratios[0] in RATIOS
    ratios = np.array(rules.ratios[:1]) if fixed and not judged else RATIOS
    windows = len(requests) // rules.every + 1
    if plan is None:
        own = int(np.flatnonzero(ratios == rules.ratios[0])[0]) if fixed else -1
        steps = np.full((replicas, windows), own, np.int64)
        if not fixed:
            steps[:, 0] = len(ratios) // 2
    else:
        steps = np.array(plan, np.int64)
        if steps.shape != (replicas, windows) or steps.min() < 0 or steps.max() >= len(RATIOS):
            raise UsageError(
                f"a plan for {replicas} replicas and {windows} windows needs an index into RATIOS for each"
            )
    link_ns = 1e9 / rules.link_bytes_per_s
    split = of.CacheSplit(rules.room_bytes, ratios, rules.every, rules.decide_ns, link_ns, ROUTERS[router])
    count = len(stream.size)
    if replicas * len(ratios) * count > MOST:
        raise UsageError(
            f"{count:,} items and users on {replicas} replicas are too many", hint="use --first, or fewer replicas"
        )
    state = _start(stream, ratios, replicas, windows)
    of.answer_in_order(stream, split, steps, state)
    found = _summary(requests, state, ratios, limits or {}, rules)
    return found if len(ratios) > 1 else found | {"to_best": None}


def best_sequence(
    requests: Requests, cost: StepCost, rules: SplitRules, *, token_bytes: float, limits: dict[str, float] | None = None
) -> dict[str, Any]:
    """One replica with the ratios, window by window, that give the lowest P99 of all sequences of RATIOS; ties: the
    first."""
    used = -(-len(requests) // rules.every)
    windows = len(requests) // rules.every + 1
    if len(RATIOS) ** used > TRIED:
        hint = f"use at most 5 windows: --first {5 * rules.every}"
        raise UsageError(f"--hbm-split: {len(RATIOS)} ratios in {used} windows are too many sequences", hint=hint)
    stream, best, least = _stream(requests, cost, rules, token_bytes), np.zeros((1, windows), np.int64), np.inf
    split = of.CacheSplit(rules.room_bytes, RATIOS, rules.every, 0, 1e9 / rules.link_bytes_per_s, of.TURN)
    ghosts = _lists(len(RATIOS), len(stream.size))
    for steps in product(range(len(RATIOS)), repeat=used):
        plan = np.zeros((1, windows), np.int64)
        plan[0, :used] = steps
        state = _start(stream, RATIOS, 1, windows, ghosts)
        of.answer_in_order(stream, split, plan, state)
        p99 = float(np.quantile((state.finish - requests.arrival_ns) / 1e9, 0.99))
        if p99 < least:
            best, least = plan, p99
    return served_split(requests, cost, rules, token_bytes=token_bytes, router="turn", limits=limits, plan=best)


def _start(stream: of.SplitStream, ratios: F64, replicas: int, windows: int, ghosts: Any = None) -> of.SplitState:
    """Before the first request."""
    count, requests = len(stream.size), len(stream.arrival)
    counts, free = np.zeros((replicas, 7), np.int64), np.zeros(replicas, np.int64)
    first, finish = (np.zeros(requests, np.int64) for _ in range(2))
    chosen, best = (np.full((replicas, windows), -1, np.int64) for _ in range(2))
    lists, ghosts = _lists(replicas, count), ghosts or _lists(replicas * len(ratios), count)
    curve, known = np.zeros((replicas, len(ratios))), np.zeros(count, np.uint8)
    return of.SplitState(lists, ghosts, curve, known, counts, free, first, finish, chosen, best)


def _lists(rows: int, count: int) -> of.CacheLists:
    ring = ring_of(rows, count, 2, np.zeros(count, np.uint8), LRU, 0)
    return of.CacheLists(ring, np.zeros((rows, count), np.uint8), np.zeros((rows, 2), np.int64))


def _stream(requests: Requests, cost: StepCost, rules: SplitRules, token_bytes: float) -> of.SplitStream:
    """Segments with a group are items, the first without one is the user's; others are read with each prompt."""
    items = requests.block_home >= 0
    if requests.chained or not items.any():
        hint = "--requests recommend:, or a file of segments: items are those with a group"
        raise UsageError("--hbm-split needs prompts that name their items", hint=hint)
    owner = np.repeat(np.arange(len(requests)), np.diff(requests.block_start))
    users = np.zeros(len(owner), bool)
    plain = np.flatnonzero(~items)
    users[plain[np.unique(owner[plain], return_index=True)[1]]] = True
    kept, count = items | users, int(requests.block.max()) + 1
    longest, shortest = np.zeros(count, np.int64), np.full(count, 1 << 62, np.int64)
    np.maximum.at(longest, requests.block[users], requests.block_tokens[users])
    np.minimum.at(shortest, requests.block[users], requests.block_tokens[users])
    odd = np.flatnonzero(users)[(longest > shortest)[requests.block[users]]]
    if len(odd):
        raise UsageError("its user's segment differs in length from before", where=f"request {owner[odd[-1]]}")
    kind = np.full(count, of.EMBEDDINGS, np.int64)
    kind[requests.block[users]] = of.KEYS
    size = np.where(kind == of.KEYS, np.round(longest * token_bytes), rules.embedding_bytes).astype(np.int64)
    about = np.bincount(owner[users], requests.block_tokens[users], len(requests)).astype(np.int64)
    start = np.concatenate([[0], np.cumsum(np.bincount(owner[kept], minlength=len(requests)))]).astype(np.int64)
    first = np.stack([_prompts(cost, requests.prompt, np.minimum(past, requests.prompt - 1)) for past in (about, 0)], 1)
    return of.SplitStream(
        requests.arrival_ns, requests.session, start, requests.block[kept], kind, size, first, _further(cost, requests)
    )


def _prompts(cost: StepCost, prompt: I64, past: Any) -> I64:
    """Passes that read what is left of prompts, up to their first token."""
    new = (prompt - past).astype(np.float64)
    shapes = np.zeros((len(prompt), len(PassContent._fields)))
    shapes[:, 0], shapes[:, 1], shapes[:, 4], shapes[:, -1] = new, new * past + new * (new + 1) / 2, 1, 1.0
    return np.asarray(passes_ns(cost, shapes), np.int64)


def _further(cost: StepCost, requests: Requests) -> I64:
    """Passes of all further tokens of each answer."""
    more = requests.output - 1
    owner = np.repeat(np.arange(len(requests)), more)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(more) - more, more)
    keys = requests.prompt[owner] + 1.0 + place
    shapes = np.zeros((len(owner), len(PassContent._fields)))
    shapes[:, 2], shapes[:, 3], shapes[:, 4], shapes[:, 5], shapes[:, -1] = 1, keys, 1, keys, 1.0
    return np.bincount(owner, passes_ns(cost, shapes), len(requests)).astype(np.int64)


def _summary(
    requests: Requests, state: of.SplitState, ratios: F64, limits: dict[str, float], rules: SplitRules
) -> dict[str, Any]:
    ttft, latency = (state.first - requests.arrival_ns) / 1e9, (state.finish - requests.arrival_ns) / 1e9
    times = {"ttft_s": ttft, "latency_s": latency}
    kept = np.ones(len(requests), bool)
    for name, limit in limits.items():
        if name not in times:
            raise UsageError(f"--hbm-split has no limit for `{name}`", hint="--slo ttft=50ms,latency=1s")
        kept &= times[name] <= limit
    chosen, best = state.chosen, state.best
    had = chosen >= 0
    used = np.where(had, ratios[chosen], 0.0)
    total, duration_s = state.counts.sum(axis=0), float(state.finish.max()) / 1e9
    return {
        "requests": len(requests),
        "finished": len(requests),
        "duration_s": duration_s,
        **{name: spread(values) for name, values in times.items()},
        "goodput_rps": float(kept.sum()) / duration_s,
        "within_limits": float(kept.mean()),
        "refill_bytes": int(total[of.LOADED]),
        "refill_s": float(total[of.LOADED]) / rules.link_bytes_per_s,
        "embedding_hits": int(total[of.HITS]),
        "embedding_misses": int(total[of.MISSES]),
        "kv_hits": int(total[of.HITS + 1]),
        "kv_misses": int(total[of.MISSES + 1]),
        "decisions": int(total[of.DECIDED]),
        "ratio": float(used[had].mean()),
        "ratios": [float(used[:, w][had[:, w]].mean()) for w in range(had.shape[1]) if had[:, w].any()],
        "to_best": float(np.abs(used - np.where(had, ratios[best], 0.0))[had].mean()),
        "windows": [chosen[i][had[i]].tolist() for i in range(len(chosen))],
    }

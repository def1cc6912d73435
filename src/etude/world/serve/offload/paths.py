"""Keys and values outside the device: a single sequence on a machine whose device holds one layer of them at a time.

A prompt is read in pieces of CHUNK tokens, and each piece and each token out reads all keys and values before it, layer
by layer, in blocks of BLOCK_TOKENS tokens of one layer. Loads overlap with the computation of the layer before, so a
pass takes the longer of both. Three paths:

- `cache`: the page cache, least recently used first. A hit is copied; a miss waits for the disk, one request at a time
  and as long as the read-ahead at least, and is copied;
- `direct`: the disk itself, as many requests in progress as it has slots, without a copy;
- `dual`: blocks that have room in memory stay there, the others take the direct path; each the cheaper of its two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.cost.tiers import reside
from etude.kernels.arrays import I64
from etude.machine import System
from etude.machine.tier import Tier
from etude.world.serve.pass_time import passes_ns
from etude.world.serve.requests import BLOCK_TOKENS, Requests
from etude.world.serve.steps import PassContent, StepCost

CHUNK: Final = 2048
PATHS: Final = ("cache", "direct", "dual")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPrices:
    """Prices of a block of keys and values of one layer, ns."""

    hit: float
    miss: float
    direct: float
    store: float
    """Writing to memory, and (`out`) to the disk."""
    out: float
    block_bytes: int
    fetched_bytes: int
    """Read from the disk for a miss."""


def prices(block_bytes: int, memory: Tier, disk: Tier) -> BlockPrices:
    ahead = memory.read_ahead_bytes or block_bytes
    fetched = -(-block_bytes // ahead) * ahead
    hit = block_bytes / memory.read_bytes_per_s * 1e9
    request = min(fetched, max(ahead, 1))
    return BlockPrices(
        hit=hit,
        miss=fetched / disk.rate(request, requests=1) * 1e9 + hit,
        direct=block_bytes / disk.rate(request) * 1e9,
        store=block_bytes / memory.write_bytes_per_s * 1e9,
        out=block_bytes / disk.write_bytes_per_s * 1e9,
        block_bytes=block_bytes,
        fetched_bytes=fetched,
    )


def offloaded(
    requests: Requests, cost: StepCost, system: System, *, path: str, memory_bytes: int, layers: int, token_bytes: float
) -> dict[str, Any]:
    """Prefill and decode of each request alone, added up. `token_bytes` are those of keys and values in all layers."""
    if path not in PATHS:
        raise UsageError(f"unknown path `{path}`", hint=f"known: {', '.join(PATHS)}")
    tiers = {tier.name: tier for tier in system.tiers}
    if not {"page_cache", "disk"} <= set(tiers):
        raise UsageError("has no tiers `page_cache` and `disk`", where=system.name, hint="`h200-server` has both")
    price = prices(round(token_bytes / layers * BLOCK_TOKENS), tiers["page_cache"], tiers["disk"])
    total: dict[str, float] = dict.fromkeys(
        ("prefill_s", "decode_s", "compute_s", "io_s", "disk_read_bytes", "disk_written_bytes", "hits", "reads"), 0.0
    )
    for prompt, output in zip(requests.prompt.tolist(), requests.output.tolist(), strict=True):
        for name, value in _one(prompt, output, cost, price, path, memory_bytes // price.block_bytes, layers).items():
            total[name] += value
    took = total["prefill_s"] + total["decode_s"]
    moved = total["disk_read_bytes"] + total["disk_written_bytes"]
    return {
        "requests": len(requests), "path": path, "memory_bytes": memory_bytes, **total,
        "tpot_s": total["decode_s"] / max(int((requests.output - 1).sum()), 1),
        "disk_use": moved / (tiers["disk"].read_bytes_per_s * took),
        "kv_bytes": float(requests.prompt.max() * token_bytes),
        "block_bytes": price.block_bytes, "hit_ns": price.hit, "miss_ns": price.miss, "direct_ns": price.direct,
    }  # fmt: skip


def _one(
    prompt: int, output: int, cost: StepCost, price: BlockPrices, path: str, room: int, layers: int
) -> dict[str, float]:
    blocks = -(-prompt // BLOCK_TOKENS)
    reads, writes, past = [], [], 0
    accesses: list[I64] = []
    marks: list[NDArray[np.bool_]] = []
    while past < prompt:
        end = min(past + CHUNK, prompt)
        first, last = past // BLOCK_TOKENS, -(-end // BLOCK_TOKENS)
        # for each layer the previous blocks, then the new ones
        accesses.append((np.arange(layers)[:, None] * blocks + np.arange(last)).ravel())
        marks.append(np.tile(np.arange(last) >= first, layers))
        reads.append(first * layers)
        writes.append((last - first) * layers)
        past = end
    filled = len(accesses)
    every = np.arange(layers * blocks)
    for _ in range(output - 1):
        accesses.append(every)
        marks.append(np.zeros(len(every), bool))
        reads.append(len(every))
        writes.append(0)
    before = [_misses(accesses[:k], marks[:k], path, room) for k in (filled, len(accesses))]
    fresh = layers * blocks  # a new block is written, not read
    missed = np.array([before[0] - fresh, before[1] - before[0]], np.float64)
    asked = np.array([sum(reads[:filled]), sum(reads[filled:])], np.float64)
    stored = fresh if path == "direct" else max(fresh - room, 0)
    best = min(price.hit, price.direct), min(price.miss, price.direct)
    there, away = {"cache": (price.hit, price.miss), "direct": (price.hit, price.direct), "dual": best}[path]
    io_ns = (asked - missed) * there + missed * away
    io_ns[0] += (fresh - stored) * price.store + stored * (price.out if path != "cache" else price.store)
    compute = _compute_ns(prompt, output, cost)
    took = np.maximum(io_ns, compute)
    each = price.fetched_bytes if path == "cache" else price.block_bytes
    return {
        "prefill_s": took[0] / 1e9,
        "decode_s": took[1] / 1e9,
        "compute_s": compute.sum() / 1e9,
        "io_s": io_ns.sum() / 1e9,
        "disk_read_bytes": missed.sum() * each,
        "disk_written_bytes": stored * price.block_bytes,
        "hits": float((asked - missed).sum()),
        "reads": float(missed.sum()),
    }


def _misses(accesses: list[I64], marks: list[NDArray[np.bool_]], path: str, room: int) -> int:
    if not accesses:
        return 0
    items = np.concatenate(accesses)
    if path == "direct" or room < 1:
        return len(items) - int(np.concatenate(marks).sum()) + int(items.max()) + 1
    return reside(items, room, "lru" if path == "cache" else "pinned", np.concatenate(marks)).misses


def _compute_ns(prompt: int, output: int, cost: StepCost) -> NDArray[np.float64]:
    """Compute time of the prompt's passes, and of the decode passes."""
    begin = np.arange(0, prompt, CHUNK)
    tokens = np.minimum(prompt - begin, CHUNK).astype(np.float64)
    shapes = np.zeros((len(begin) + output - 1, len(PassContent._fields)))
    shapes[:, PassContent._fields.index("depth")] = 1.0
    shapes[: len(begin), 0], shapes[: len(begin), 1] = tokens, tokens * begin + tokens * (tokens + 1) / 2
    shapes[len(begin) - 1, 4] = 1
    keys = prompt + 1.0 + np.arange(output - 1)
    shapes[len(begin) :, 2], shapes[len(begin) :, 3], shapes[len(begin) :, 4] = 1, keys, 1
    shapes[len(begin) :, 5] = keys
    took = passes_ns(cost, shapes)
    return np.array([took[: len(begin)].sum(), took[len(begin) :].sum()])

"""Engine: the rules by which a serving engine builds passes, as values that flags and files can set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any, Final

from etude.base.figures import figure, read, usage_errors
from etude.base.grammar import line
from etude.world.serve import state as at
from etude.world.serve.cache import CacheRules, cache_rules
from etude.world.serve.state import Rules
from etude.world.serve.wire import NO_WIRE

ROUTERS: Final = {
    "turn": at.TURN, "least": at.LEAST, "tokens": at.TOKENS, "two": at.TWO, "session": at.SESSION,
    "prefix": at.BY_PREFIX, "affinity": at.AFFINITY, "br0": at.BALANCE,
}  # fmt: skip
STEAL: Final = "+steal"
"""Suffix of a router's name: idle replicas take over requests that others cannot take."""
FOLLOWS: Final = "vLLM 0.19 (V1 scheduler)"
FOREVER: Final = 1 << 40


class QueuePolicy(StrEnum):
    """Which waiting request goes first."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    EDF = "edf"
    FAIR = "fair"
    SHORTEST = "shortest"


class Preemption(StrEnum):
    """What happens to the keys and values of a preempted request."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


ORDERS: Final = {
    QueuePolicy.FCFS: at.FCFS,
    QueuePolicy.PRIORITY: at.TIER_FIRST,
    QueuePolicy.EDF: at.DEADLINE_FIRST,
    QueuePolicy.FAIR: at.FAIR,
    QueuePolicy.SHORTEST: at.SHORTEST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Follows vLLM 0.19's V1 scheduler: decodes first, then prompts as far as the budget goes, first come first served;
    when blocks run out, the request that entered last is preempted and recomputed. `--no-chunked` is the older rule."""

    max_num_seqs: int = figure("count", "largest number of running sequences", 256)
    max_num_batched_tokens: int = figure("count", "largest number of tokens in a pass", 2048, names=("--token-budget",))
    cache: str = figure(
        "text",
        "reuse of earlier prompts: none, prefix, blocks, content; lru, belady, ttl=60s; host=64GB",
        "none",
        like="prefix",
    )
    scheduling_policy: QueuePolicy = figure(
        "choice",
        "order of requests: by arrival, tier, deadline, fair over tenants, or shortest prompt",
        QueuePolicy.FCFS,
    )
    chunked: bool = figure("flag", "prompts are cut to the budget and share passes with decoding", True)
    num_speculative_tokens: int = figure("count", "tokens that a draft model proposes per sequence", 0)
    acceptance: float = figure(
        "fraction",
        "probability that each of these is accepted",
        0.7,
        zero=True,
        needs="num_speculative_tokens",
        rare=True,
    )
    preemption_mode: Preemption = figure(
        "choice", "preempted requests are recomputed, or keys and values swapped to the host", Preemption.RECOMPUTE
    )
    swap_bandwidth_bytes_per_s: int = figure(
        "bandwidth", "bandwidth between a rank and its host", 25_000_000_000, needs="preemption_mode=swap", rare=True
    )
    block_size: int = figure("count", "tokens per block of keys and values", 16, rare=True)
    num_gpu_blocks: int = figure("count", "blocks on a replica; 0: as many as fit its memory", 0, rare=True)
    reserve: bool = figure("flag", "a request reserves memory for its whole response from the start", False, rare=True)
    whole_prompt: bool = figure("flag", "a request is admitted only if its whole prompt fits", True, rare=True)
    cut_prompts: bool = figure(
        "flag", "prompts that share a pass are cut to its budget; otherwise they wait for room", True, rare=True
    )
    enable_prefix_caching: bool = figure(
        "flag", "a preempted request reuses its blocks that were not reallocated since", True, rare=True
    )
    async_scheduling: bool = figure("flag", "the next pass is scheduled while one runs", True, rare=True)
    barrier: bool = figure("flag", "replicas start passes together and wait for the slowest", False, rare=True)
    exit_depth: float = figure("fraction", "fraction of the layers used by output tokens", 1.0, rare=True)
    max_loras: int = figure("count", "largest number of adapters in use; 0: no adapters", 0, rare=True)
    max_lora_rank: int = figure("count", "rank of the adapters", 16, needs="max_loras", rare=True)

    def __post_init__(self) -> None:
        cache_rules(self.cache)

    @property
    def caching(self) -> CacheRules:
        return cache_rules(self.cache)

    def rules(self, router: str = "turn", **more: Any) -> Rules:
        """Rules for the loop. `more` are fields of `Rules` that the engine does not set."""
        code, horizon = router_code(router.removesuffix(STEAL))
        given: dict[str, Any] = {
            "apart": 0, "place": code, "swap_ns": 0.0, "admit": at.SERIAL, "admit_value": 0.0, "tpot_ns": 0.0,
            "draft": at.NOBODY, "wire": NO_WIRE, "steal": int(router.endswith(STEAL)), "lora_slots": self.max_loras,
            "lora_load_ns": 0, "lora_pass_ns": 0.0, "lora_adapter_ns": 0.0, "lora_token_ns": 0.0, "image_ns": 0,
            "stages": 1,
        }  # fmt: skip
        return Rules(
            chunked=int(self.chunked), token_budget=self.max_num_batched_tokens, max_seqs=self.max_num_seqs,
            block=self.block_size, reserve=int(self.reserve), whole_prompt=int(self.whole_prompt),
            cut_prompts=int(self.cut_prompts),
            caching=int(self.enable_prefix_caching), ahead=int(self.async_scheduling), barrier=int(self.barrier),
            router=code, prefix=int(self.caching.mode != "none"), order=ORDERS[self.scheduling_policy],
            speculate=self.num_speculative_tokens, accept=float(self.acceptance), depth=float(self.exit_depth),
            horizon=horizon, **(given | more),
        )  # fmt: skip

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], where: str = "engine") -> Engine:
        with usage_errors(where):
            return read(cls, given, where)


def router_code(router: str) -> tuple[int, int]:
    """Code of a router for the loop, and its lookahead. Empty: it is asked."""
    if not router:
        return at.ASK, 0
    whole = line(router, "--router", f"{', '.join(ROUTERS)}, br:STEPS, NAME+steal, or FILE.py:name")
    name, steps = whole.cut(":")
    if name.text == "br" and steps is not None:
        return at.BALANCE, steps.count(zero=True, most=4095)
    if router not in ROUTERS:
        raise whole.wrong(f"unknown router `{router}`")
    return ROUTERS[router], 0


ADMITS: Final = {"off": at.SERIAL, "eager": at.EAGER, "slack": at.SLACK}


def admit_code(text: str) -> tuple[int, float]:
    """How many branches of an answer run in parallel: `off`, `eager`, `cap:4`, `slack`, `slack:0.5`."""
    whole = line(text, "--admit", "off, eager, cap:4, slack, slack:0.5, or FILE.py:name")
    name, value = whole.cut(":")
    if name.text == "cap" and value is not None:
        return at.CAP, float(value.count())
    if name.text in ADMITS and (value is None or name.text == "slack"):
        return ADMITS[name.text], 1.0 if value is None else inf if value.text == "inf" else value.number()
    raise whole.wrong(f"unknown rule `{text}`")

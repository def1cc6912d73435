"""Engine: the rules by which a serving engine puts passes together, as figures that flags and files can say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from etude.config import figure, read
from etude.errors import ClusterError, UsageError
from etude.serve.cache import CacheRules, cache_rules
from etude.serve.state import AFFINITY, ASK, BY_PREFIX, LEAST, SESSION, TOKENS, TURN, TWO, Rules

ROUTERS: Final = {
    "turn": TURN, "least": LEAST, "tokens": TOKENS, "two": TWO, "session": SESSION, "prefix": BY_PREFIX,
    "affinity": AFFINITY,
}  # fmt: skip
FOREVER: Final = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Follows vLLM 0.19's V1 scheduler: tokens out first, then prompts as far as the budget goes, first come first
    served; who entered last gives way where blocks run out, and reads again. `--prefill-first` is the older rule."""

    chunked: bool = figure("flag", "prompts are cut to the budget and share passes with tokens out", True)
    max_num_batched_tokens: int = figure("count", "tokens of a pass at most", 2048)
    max_num_seqs: int = figure("count", "sequences that run at a time", 256)
    block_size: int = figure("count", "tokens of a block of keys and values", 16)
    num_gpu_blocks: int = figure("count", "blocks on a replica; 0: as many as fit its memory", 0, zero=True)
    reserve: bool = figure("flag", "a request holds room for its whole answer from the start", False)
    whole_prompt: bool = figure("flag", "a request enters only if its whole prompt fits", True)
    enable_prefix_caching: bool = figure("flag", "who gave way finds the blocks that nobody took since", True)
    cache: str = figure(
        "text", "what prompts find of those before: none, prefix, blocks, content; lru, belady, ttl=60s; host=64GB",
        "none",
    )  # fmt: skip
    async_scheduling: bool = figure("flag", "the next pass is chosen while one runs", True)
    barrier: bool = figure("flag", "replicas start passes together, and wait for the longest", False)

    def __post_init__(self) -> None:
        cache_rules(self.cache)
        if self.barrier and self.async_scheduling:
            raise ClusterError("replicas that start together choose their passes then", hint="no --async-scheduling")

    @property
    def caching(self) -> CacheRules:
        return cache_rules(self.cache)

    def rules(self, router: str = "turn", blocks: int = 0) -> Rules:
        """For the loop. `blocks` is what fits, where the engine does not say."""
        return Rules(
            int(self.chunked), self.max_num_batched_tokens, self.max_num_seqs, self.block_size,
            self.num_gpu_blocks or blocks or FOREVER, int(self.reserve), int(self.whole_prompt),
            int(self.enable_prefix_caching), int(self.async_scheduling), int(self.barrier), ROUTERS.get(router, ASK),
            int(self.caching.mode != "none"),
        )  # fmt: skip

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], where: str = "engine") -> Engine:
        try:
            return read(cls, given, where)
        except ClusterError as problem:
            raise UsageError(problem.problem, where=problem.where or where, hint=problem.hint) from None

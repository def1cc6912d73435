"""Serving: options of serving, like those of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from etude.base.errors import ClusterError
from etude.base.figures import figure, read, text, usage_errors
from etude.base.grammar import line


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Options of serving. Without a request trace there are `batch` equal requests per instance."""

    AXES: ClassVar[tuple[str, ...]] = ("gpus", "tp", "pp", "ep", "etp", "order", "precision")
    """Axes of a plan that apply to serving."""

    prefill: int = figure("count", "tokens per prompt", 1024)
    decode: int = figure("count", "decode passes after the prompt: output tokens minus the first", 0)
    batch: int = figure("count", "requests per instance", 1)
    max_batch: int = figure("count", "largest number of sequences in a pass; 0: no limit", 0)
    token_budget: int = figure("count", "largest number of tokens in a pass; 0: no limit", 0)
    chunked: bool = figure(
        "flag", "prompts are cut to the budget and share passes with decoding", False, needs="token_budget"
    )
    kv_dtype: str = text("data type of keys and values: bf16, fp8; default: the plan's", like="fp8")
    kv_memory_bytes: int = figure("bytes", "largest memory for keys and values per rank; 0: no limit", 0)
    preempt: bool = figure(
        "flag",
        "requests are admitted when their prompt fits; the last is preempted and recomputed",
        False,
        needs="kv_memory",
    )
    speculate: int = figure("count", "tokens that a draft model proposes per round", 0)
    accept: float = figure("fraction", "probability that a proposed token is accepted", 0.7, needs="speculate")
    disaggregate: str = text("prefill and decode instances: `2:6`", like="1:1")
    seed: int = figure("count", "seed of the accepted tokens", 0, needs="speculate")

    def __post_init__(self) -> None:
        if self.chunked and not self.token_budget:
            raise ClusterError("chunked prefill needs a token budget", hint="--token-budget 2048")
        if self.preempt and not self.kv_memory_bytes:
            raise ClusterError("without a memory limit no request is preempted", hint="--kv-memory 20GB")
        if self.preempt and self.disaggregate:
            problem = "a preempted request repeats its prefill, which needs instances that do both prefill and decode"
            raise ClusterError(problem, hint="leave out --preempt")
        if not 0.0 <= self.accept <= 1.0:
            raise ClusterError(f"a probability of {self.accept} is not valid", hint="0 to 1")

    @property
    def split(self) -> tuple[int, int]:
        """Instances for prefill and for decode; (0, 0) if each does both."""
        if not self.disaggregate:
            return 0, 0
        first, second = line(self.disaggregate, "disaggregate", "2:6, two for prefill and six for decode").cut(":")
        if second is None:
            raise first.wrong(f"`{first.text}` is not two numbers")
        return first.count(), second.count()

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], where: str = "serving") -> Serving:
        with usage_errors(where):
            return read(cls, given, where)

"""Requests: what a serving job answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from etude.base.errors import UsageError

MAX_TOKENS: Final = 1 << 27


@dataclass(frozen=True, slots=True)
class Request:
    """One request: input and output tokens. The first output token comes at the end of the prompt."""

    prompt: int
    output: int = 1
    arrival_ns: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.prompt <= MAX_TOKENS and 1 <= self.output <= MAX_TOKENS and self.arrival_ns >= 0):
            raise UsageError(f"a request of {self.prompt} tokens in and {self.output} out at {self.arrival_ns} ns")

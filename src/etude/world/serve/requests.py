"""Requests: the columns of a request stream."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import I64

MAX_TOKENS: Final = 1 << 27
BLOCK_TOKENS: Final = 512
"""Tokens of a Mooncake block."""

NONE: Final = np.zeros(0, np.int64)
WHOLE: Final = ("tier_names", "tenant_names", "chained", "block_tokens", "block_home")
"""Columns that are not sorted with the requests."""
NO_DEADLINE: Final = 2**62


def _none() -> I64:
    return NONE


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """In order of arrival; the first arrives at 0 or later. Blocks of request i are block[block_start[i] :
    block_start[i + 1]], where the file names them; requests that must be answered before it, its parents, are
    parent[parent_start[i] : parent_start[i + 1]], and it arrives `arrival_ns` after the last of them. Defaults of
    missing columns: one tenant, one tier, no deadline, one branch, no parents."""

    arrival_ns: I64
    prompt: I64
    output: I64
    """Output tokens of all branches together."""
    session: I64
    block_start: I64
    block: I64
    tenant: I64 = field(default_factory=_none)
    tier: I64 = field(default_factory=_none)
    """Numbers; 0 has priority if tiers are ordered. `tier_names` has the names of a file."""
    deadline_ns: I64 = field(default_factory=_none)
    """For the whole answer, after the arrival."""
    branches: I64 = field(default_factory=_none)
    """Parts of the answer that may be decoded in parallel, each after the prompt."""
    parent_start: I64 = field(default_factory=_none)
    parent: I64 = field(default_factory=_none)
    tier_names: tuple[str, ...] = ()
    block_tokens: I64 = field(default_factory=_none)
    """Tokens of each of `block`; if a file does not say, BLOCK_TOKENS, and for the last of a prompt the rest of it."""
    block_home: I64 = field(default_factory=_none)
    """Group of a block, for caches that keep each group on one replica; -1: none."""
    chained: bool = True
    """Whether the id of a block also identifies all blocks before it, as in Mooncake."""
    moved: int = 0
    """Rows moved by sorting."""
    refused: int = 0
    """Requests that are too long for the engine, and are not among these."""
    tenant_names: tuple[str, ...] = ()
    weights: tuple[int, ...] = ()
    """Weights of tenants in fair queueing, in thousandths; empty: all equal."""
    adapter: I64 = field(default_factory=_none)
    """Number of the adapter, or -1."""
    images: I64 = field(default_factory=_none)
    """Images that a tower turns into tokens of the prompt, which counts these."""

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in ("arrival_ns", "prompt", "output", "session")}
        if len(lengths) != 1 or not len(self):
            raise UsageError("requests: columns of different lengths" if len(self) else "there are no requests")
        usual = {"tenant": 0, "tier": 0, "deadline_ns": NO_DEADLINE, "branches": 1, "adapter": -1, "images": 0}
        for name, value in usual.items():
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(len(self), value, np.int64))
            elif len(getattr(self, name)) != len(self):
                raise UsageError("requests: columns of different lengths")
        if len(self.block) and not len(self.block_tokens):
            object.__setattr__(self, "block_tokens", _block_tokens(self.block_start, self.prompt))
        if len(self.block) and not len(self.block_home):
            object.__setattr__(self, "block_home", np.full(len(self.block), -1, np.int64))
        if not len(self.parent_start):
            object.__setattr__(self, "parent_start", np.zeros(len(self) + 1, np.int64))
        self._check()

    def _check(self) -> None:
        child = np.repeat(np.arange(len(self)), np.diff(self.parent_start))
        wrong = np.flatnonzero((self.parent >= child) | (self.parent < 0))
        if len(wrong):
            problem = f"waits for request {self.parent[wrong[0]]}"
            raise UsageError(problem, where=f"request {child[wrong[0]]}", hint="a parent must be a row above its child")
        alone = np.flatnonzero(np.diff(self.parent_start) == 0)
        wrong = np.flatnonzero(np.diff(self.arrival_ns[alone]) < 0)
        if len(wrong):
            raise UsageError("arrives before the previous one", where=f"request {alone[wrong[0] + 1]}")
        for name in ("prompt", "output"):
            bad = np.flatnonzero((getattr(self, name) < 1) | (getattr(self, name) > MAX_TOKENS))
            if len(bad):
                raise UsageError(f"{name} of {getattr(self, name)[bad[0]]} tokens", where=f"request {bad[0]}")
        for name, least in (("arrival_ns", 0), ("deadline_ns", 1), ("branches", 1), ("tenant", 0), ("tier", 0),
                            ("adapter", -1), ("images", 0)):  # fmt: skip
            bad = np.flatnonzero(getattr(self, name) < least)
            if len(bad):
                what = "arrives before the start" if name == "arrival_ns" else f"{name} {getattr(self, name)[bad[0]]}"
                raise UsageError(what, where=f"request {bad[0]}")
        bad = np.flatnonzero(self.branches > self.output)
        if len(bad):
            raise UsageError(
                f"{self.branches[bad[0]]} branches of {self.output[bad[0]]} tokens out", where=f"request {bad[0]}"
            )

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def within(self, tokens: int) -> Requests:
        """As an engine with this `max_model_len` takes them: a request whose prompt leaves no room for a token is
        refused, and so is what waits for it; answers end where the length is reached."""
        kept = self.prompt < tokens
        for child in np.flatnonzero(np.diff(self.parent_start)).tolist():  # parents are above their children
            kept[child] &= kept[self.parent[self.parent_start[child] : self.parent_start[child + 1]]].all()
        if not kept.any():
            problem = f"no request fits {tokens:,} tokens: the shortest prompt has {int(self.prompt.min()):,}"
            raise UsageError(problem, hint="a longer --max-model-len")
        output = np.minimum(self.output, tokens - self.prompt)
        whole = replace(self, output=np.maximum(output, 1), branches=np.minimum(self.branches, np.maximum(output, 1)))
        return replace(whole._chosen(kept), refused=int((~kept).sum()))

    def _chosen(self, kept: NDArray[np.bool_]) -> Requests:
        """Only these requests."""
        chosen: dict[str, Any] = {}
        for start, names in (("block_start", ("block", "block_tokens", "block_home")), ("parent_start", ("parent",))):
            each = np.diff(getattr(self, start))
            inside = np.repeat(kept, each)
            chosen[start] = np.concatenate([[0], np.cumsum(each[kept])]).astype(np.int64)
            chosen |= {name: found[inside] if len(found := getattr(self, name)) else found for name in names}
        chosen["parent"] = (np.cumsum(kept) - 1)[chosen["parent"]]
        rows = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in chosen}
        chosen |= {name: column[kept] for name, column in rows.items() if isinstance(column, np.ndarray)}
        return replace(self, **chosen)

    def first(self, count: int) -> Requests:
        """The first `count` requests."""
        return self._chosen(np.arange(len(self)) < count)


def requests_of(
    arrival_ns: Any,
    prompt: Any,
    output: Any,
    *,
    session: Any = None,
    blocks: list[list[int]] | None = None,
    segments: list[list[Any]] | None = None,
    parents: list[list[int]] | None = None,
    **more: Any,
) -> Requests:
    """From columns in any order of arrival; the earliest is shifted to 0. `parents` are rows in the given order, which
    is then kept; `segments` are (name, tokens) or (name, tokens, group) of each prompt. `more` are other columns of
    `Requests`."""
    arrival = np.asarray(arrival_ns, np.int64)
    order = np.arange(len(arrival)) if parents else np.argsort(arrival, kind="stable")
    alone = np.array([not one for one in parents], bool) if parents else np.ones(len(arrival), bool)
    given = np.arange(len(arrival)) if session is None else np.asarray(session, np.int64)
    if segments is not None:
        listed = [segments[i] for i in order.tolist()]
        number = {name: k for k, name in enumerate(sorted({str(one[0]) for row in listed for one in row}))}
        blocks = [[number[str(one[0])] for one in row] for row in segments]
        tokens, home = ([one[k] if len(one) > k else -1 for row in listed for one in row] for k in (1, 2))
        more |= {"chained": False, "block_tokens": np.array(tokens, np.int64), "block_home": np.array(home, np.int64)}
    whole = {name: more.pop(name) for name in WHOLE if name in more}
    block_start, flat = _lists([blocks[i] for i in order.tolist()] if blocks is not None else [], len(arrival))
    parent_start, parent = _lists(parents or [], len(arrival))
    columns: dict[str, Any] = {name: np.asarray(c, np.int64)[order] for name, c in more.items() if c is not None}
    early = arrival[alone].min() if alone.any() else 0
    return Requests(
        arrival[order] - np.where(alone, early, 0),
        np.asarray(prompt, np.int64)[order], np.asarray(output, np.int64)[order], given[order],
        block_start, np.unique(flat, return_inverse=True)[1].astype(np.int64) if len(flat) else flat,
        parent_start=parent_start, parent=parent, moved=int((order != np.arange(len(order))).sum()), **whole, **columns,
    )  # fmt: skip


def _block_tokens(start: I64, prompt: I64) -> I64:
    owner = np.repeat(np.arange(len(prompt)), np.diff(start))
    place = np.arange(len(owner)) - start[owner]
    left = prompt[owner] - place * BLOCK_TOKENS
    return np.where(left > 0, np.minimum(left, BLOCK_TOKENS), BLOCK_TOKENS)


def _lists(lists: list[list[int]], rows: int) -> tuple[I64, I64]:
    """Starts and values of concatenated lists; None counts as empty."""
    if not lists:
        return np.zeros(rows + 1, np.int64), NONE
    start = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    return start, np.array([b for one in lists for b in one], np.int64)

"""Passes that a dry run of a served model makes: few enough to be made in minutes, enough to be linear between."""

from dataclasses import dataclass

TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""New tokens of passes that tell the layers apart from attention: many short sequences."""
ALONE = 256
"""Up to this number of tokens, each is a sequence of its own; beyond, sequences have SHORT tokens."""
SHORT = 16
CHUNKS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens of a prompt."""
CONTEXTS = (1024, 4096, 16384)
"""Tokens that are in the cache before a pass."""
LATER_CHUNKS = (16, 256, 2048, 8192)
"""Tokens of a part of a prompt after others."""
BATCHES = (1, 4, 16, 64, 128, 256)
"""Sequences that decode."""
LOGITS = (64, 256, 1024)
"""Tokens of a pass with logits for all of them."""
BETWEEN_CHUNKS = (96, 384, 1500, 3000)
BETWEEN_DECODES = (8, 32, 192)
"""Points at which the error of the interpolation is measured: at the beginning, and after the first context."""


@dataclass(frozen=True, slots=True)
class PassPoint:
    """A pass: `batch` sequences with `past` tokens in the cache and `tokens` new ones each; logits of the last
    `logits` of them."""

    batch: int
    tokens: int
    past: int = 0
    logits: int = 1

    @property
    def is_short(self) -> bool:
        """One token of each sequence, or a few of many: layers with hardly any attention."""
        return not self.past and self.logits == 1 and (self.tokens == 1 or self.batch > 1)

    @property
    def is_between(self) -> bool:
        """Whether the pass is there to measure the error of the interpolation."""
        decodes = self.tokens == 1 and self.past > 0
        return self.batch in BETWEEN_DECODES if decodes else self.tokens in BETWEEN_CHUNKS


def contexts_within(positions: int) -> tuple[int, ...]:
    """Contexts of a model with this number of positions; 0: no limit is known."""
    if not positions:
        return CONTEXTS
    return tuple(k for k in CONTEXTS if k < positions) or (max(1, positions // 2),)


def grid_points(positions: int, *, logits: bool) -> list[PassPoint]:
    """All passes within the positions of a model. `logits`: whether it can leave out those of all tokens but the
    last. Those that fill a cache for others come before these."""

    def fits(point: PassPoint) -> bool:
        return not positions or point.past + point.tokens <= positions

    contexts = contexts_within(positions)
    short = min(SHORT, positions or SHORT)
    chunks = sorted({*CHUNKS, *contexts})
    found = [PassPoint(t, 1) if t <= ALONE else PassPoint(t // short, short) for t in TOKENS]
    found += [PassPoint(1, c) for c in chunks]
    found += [PassPoint(1, s, 0, s) for s in LOGITS if logits]
    found += [PassPoint(1, c) for c in BETWEEN_CHUNKS]
    for past in contexts:
        found += [PassPoint(1, c, past) for c in LATER_CHUNKS]
        found += [PassPoint(b, 1, past) for b in BATCHES]
    found += [PassPoint(1, BETWEEN_CHUNKS[1], contexts[0])]
    found += [PassPoint(b, 1, contexts[0]) for b in BETWEEN_DECODES]
    return list(dict.fromkeys(point for point in found if fits(point)))

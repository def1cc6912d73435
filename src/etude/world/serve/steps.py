"""StepCost: the time of a pass as a function of its shape. Arrays only, so that compiled code can use it.

    time = max(host, layers of all new tokens + attention + logits of the tokens sampled) + the engine's own

What runs in parallel with the device (weights being loaded, another part of the batch on the host) may take longer than
it.

Layers are a curve over tokens, logits a curve over sequences, attention a grid over (tokens of prompts, their past,
sequences that decode, their keys); all are linear between points and continue with their last slope outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64


class StepCost(NamedTuple):
    """Times in ns, in arrays of one axis. `recorded` is empty, or the time of each pass in order, whatever its
    shape."""

    tokens: F64
    """Points of `layers_ns`."""
    layers_ns: F64
    """Layers without attention, communication included."""
    sequences: F64
    head_ns: F64
    """Logits and sampling, by output tokens."""
    chunk: F64
    """Tokens of prompts in the pass: the first axis of `attention_ns`; then `past`, `decode`, and `keys`, which varies
    fastest."""
    past: F64
    decode: F64
    keys: F64
    attention_ns: F64
    padded: I64
    """Padded size of a pass, where the engine has a graph for it; longer passes run as they are."""
    decode_padded: I64
    """The same for passes without a prompt."""
    floor_ns: F64
    """Host time of a pass while the device works: with a graph, without one, and without one for passes with prompts
    and decodes. Then the gaps between kernels of the device, the host's time to schedule a sequence, and 1 if that
    comes before the rest of its work (one process does both), 0 if it runs in parallel."""
    chain_ns: F64
    """Attention of the longest decoding sequence, per key; and how many sequences fill the device, so that fewer are
    split over it. Zero: kernels split any sequence."""
    engine_ns: F64
    """Added to every pass, with a graph and without one; then per sequence, likewise."""
    recorded: I64
    beside_ns: F64
    """Empty, or over `tokens` what runs in parallel with the device, and then the fraction of the device's own time
    that does not overlap with it."""
    parts: F64
    """One number: parts of the tokens of prompts, each of which is on ranks of its own."""

    @property
    def grid_ns(self) -> F64:
        """`attention_ns` with an axis for each of its four."""
        return self.attention_ns.reshape(len(self.chunk), len(self.past), len(self.decode), len(self.keys))


NONE: Final = np.zeros(0, np.int64)


class PassContent(NamedTuple):
    """What is in a pass."""

    prompt_tokens: int
    pairs: float
    """Pairs of a query and a key that the prompts attend to."""
    decode: int
    decode_keys: int
    """Tokens that these attend to, in total, including the new ones."""
    outputs: int
    """Output tokens."""
    most_keys: int
    """Keys of the longest decoding sequence."""
    more_tokens: int = 0
    """Tokens of decoding sequences beyond one each: proposed by a draft."""
    depth: float = 1.0
    """Fraction of the layers that the pass goes through."""


def step_cost(
    *,
    tokens: Any,
    layers_ns: Any,
    head: tuple[Any, Any] = ((1.0,), (0.0,)),
    attention: tuple[Any, Any, Any, Any, Any] | None = None,
    graphs: Sequence[int] = (),
    decode_graphs: Sequence[int] = (),
    floor_ns: tuple[float, float, float] = (0.0, 0.0, 0.0),
    gaps_ns: float = 0.0,
    schedule_ns: float = 0.0,
    one_process: bool = False,
    chain_ns: tuple[float, float] = (0.0, 1.0),
    pass_ns: tuple[float, float] = (0.0, 0.0),
    sequence_ns: tuple[float, float] = (0.0, 0.0),
    recorded: Any = (),
    beside: Any = ((), ()),
    parts: float = 1.0,
) -> StepCost:
    """Checked, with axes in order. `graphs` are the sizes that any pass is padded to, `decode_graphs` those of passes
    without a prompt; pairs are (with a graph, without one)."""
    none = (np.zeros(1),) * 4 + (np.zeros((1, 1, 1, 1)),)
    chunk, past, decode, keys, grid = (np.ascontiguousarray(part, np.float64) for part in attention or none)
    axes = [_axis(axis, "attention") for axis in (chunk, past, decode, keys)]
    made = StepCost(
        _axis(tokens, "tokens"), np.ascontiguousarray(layers_ns, np.float64),
        _axis(head[0], "sequences"), np.ascontiguousarray(head[1], np.float64),
        axes[0], axes[1], axes[2], axes[3], grid.ravel(),
        _rounded_up(graphs), _rounded_up([*graphs, *decode_graphs]),
        np.array([*floor_ns, gaps_ns, schedule_ns, one_process], np.float64), np.array(chain_ns, np.float64),
        np.array([*pass_ns, *sequence_ns], np.float64),
        np.ascontiguousarray(recorded, np.int64),
        np.ascontiguousarray(beside, np.float64).ravel(),
        np.array([parts], np.float64),
    )  # fmt: skip
    if grid.shape != tuple(len(a) for a in axes) or len(made.tokens) != len(made.layers_ns):
        raise UsageError("step costs: tables and their axes differ in length")
    if len(made.beside_ns) not in (0, 2 * len(made.tokens)):
        raise UsageError("step costs: tables and their axes differ in length")
    for table in (made.layers_ns, made.head_ns, grid, made.floor_ns, made.engine_ns, made.beside_ns):
        if not np.isfinite(table).all() or (table < 0).any():
            raise UsageError("step costs: a time is negative or not a number")
    return made


def _axis(values: Any, name: str) -> F64:
    found = np.ascontiguousarray(values, np.float64)
    if not len(found) or (np.diff(found) <= 0).any():
        raise UsageError(f"step costs: places of `{name}` are not ascending")
    return found


def _rounded_up(sizes: Sequence[int]) -> I64:
    """For each number up to the largest size, the smallest size that holds it."""
    if not len(sizes):
        return NONE
    known = np.unique(np.asarray(sizes, np.int64))
    return known[np.searchsorted(known, np.arange(known[-1] + 1))]

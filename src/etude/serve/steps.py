"""StepCost: what a pass takes, as a function of its shape. Arrays alone, so that the loop asks it in compiled code.

    time = max(host, layers of all new tokens + attention + logits of the tokens sampled) + the engine's own

What goes on beside the device (weights on their way, another part of the batch on the host) may take longer than it.

Layers are a curve over tokens, logits a curve over sequences, attention a grid over (tokens of prompts, their past,
sequences that decode, their keys); all are linear between points and go on with their last slope outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.errors import UsageError

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class StepCost(NamedTuple):
    """Times in ns. `recorded` is empty, or the time of each pass in turn, whatever is in it."""

    tokens: F64
    """Places of `layers_ns`."""
    layers_ns: F64
    """Of the layers without attention, communication included."""
    sequences: F64
    head_ns: F64
    """Of the logits and the choice, for so many tokens out."""
    chunk: F64
    """Tokens of prompts in the pass: the first axis of `attention_ns`; `past`, `decode` and `keys` are the others."""
    past: F64
    decode: F64
    keys: F64
    attention_ns: F64
    padded: I64
    """Tokens that a pass of so many becomes, where the engine has a graph for it; longer passes run as they are."""
    decode_padded: I64
    """The same for passes without a prompt."""
    floor_ns: F64
    """What the host takes for a pass while the device works: with a graph, without one, and without one where prompts
    and tokens out share it. Then what the device waits between its kernels, the host's time to schedule a sequence, and
    1 where that comes before the rest of its work (one process does both), 0 where it goes on beside it."""
    chain_ns: F64
    """Attention of the longest sequence that decodes, for each of its keys; and how many sequences fill the device, so
    that fewer are split over it. Zero: kernels split any sequence."""
    engine_ns: F64
    """Added to every pass: for itself, and for each sequence in it; with a graph, and without one."""
    recorded: I64
    beside_ns: F64
    """Empty along the second axis, or over `tokens`: what goes on beside the device, and the part of the device's own
    time that does not overlap with it."""


NONE: Final = np.zeros(0, np.int64)


class Shape(NamedTuple):
    """What is in a pass."""

    prompt_tokens: int
    pairs: float
    """Pairs of a query and a key that the prompts attend to."""
    decode: int
    decode_keys: int
    """Tokens that these attend to, the new ones included, of all."""
    outputs: int
    """Tokens that come out."""
    most_keys: int
    """Of one sequence that decodes."""
    more_tokens: int = 0
    """Of sequences that decode, beyond one each: what a draft proposed."""
    depth: float = 1.0
    """Part of the layers that the pass goes through."""


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
) -> StepCost:
    """Checked, with axes in order. `graphs` are the sizes that any pass is padded to, `decode_graphs` those of passes
    without a prompt; pairs are with a graph and without one."""
    none = (np.zeros(1),) * 4 + (np.zeros((1, 1, 1, 1)),)
    chunk, past, decode, keys, grid = (np.ascontiguousarray(part, np.float64) for part in attention or none)
    axes = [_axis(axis, "attention") for axis in (chunk, past, decode, keys)]
    made = StepCost(
        _axis(tokens, "tokens"), np.ascontiguousarray(layers_ns, np.float64),
        _axis(head[0], "sequences"), np.ascontiguousarray(head[1], np.float64),
        axes[0], axes[1], axes[2], axes[3], grid,
        _rounded_up(graphs), _rounded_up([*graphs, *decode_graphs]),
        np.array([*floor_ns, gaps_ns, schedule_ns, one_process], np.float64), np.array(chain_ns, np.float64),
        np.array([pass_ns, sequence_ns], np.float64),
        np.ascontiguousarray(recorded, np.int64),
        np.ascontiguousarray(beside, np.float64).reshape(2, -1),
    )  # fmt: skip
    if grid.shape != tuple(len(a) for a in axes) or len(made.tokens) != len(made.layers_ns):
        raise UsageError("step costs: tables and their axes differ in length")
    if made.beside_ns.shape[1] not in (0, len(made.tokens)):
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
    """For each number up to the largest size, the least size that holds it."""
    if not len(sizes):
        return NONE
    known = np.unique(np.asarray(sizes, np.int64))
    return known[np.searchsorted(known, np.arange(known[-1] + 1))]

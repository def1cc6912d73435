"""What a text workload holds, line by line."""

from __future__ import annotations

from dataclasses import dataclass, field

from etude.model.schema import Collective


@dataclass(frozen=True, slots=True)
class Comm:
    """A part of a layer: it computes, then communicates."""

    time_ns: int
    word: str
    """The collective as it is written; it is part of a node's name."""
    collective: Collective
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Layer:
    name: str
    forward: Comm
    input_gradient: Comm
    weight_gradient: Comm
    policy: str = ""
    """Its own parallelism, in HYBRID_CUSTOMIZED."""


@dataclass(slots=True)
class Header:
    """The first line."""

    policy: str
    last_bottom: int | None = None
    """HYBRID_DLRM: the last layer of the bottom MLP, which waits for the embeddings."""
    model_parallel: int = 0
    """Ranks of a model-parallel group; 0: not given, all communicate with all."""
    checkpoints: list[int] = field(default_factory=list)
    """Layers from whose inputs others are computed again."""
    recomputing: list[int] = field(default_factory=list)
    """Layers whose backward pass starts with that."""
    gpus: int = 0
    """Ranks, where the text says so: that of SimAI does. Its times are in ns, and an all-gather has the bytes of its
    result."""

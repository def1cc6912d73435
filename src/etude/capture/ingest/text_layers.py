"""The contents of a text workload, line by line."""

from __future__ import annotations

from dataclasses import dataclass, field

from etude.model.schema import Collective


@dataclass(frozen=True, slots=True)
class Comm:
    """A part of a layer: it computes, then communicates."""

    time_ns: int
    word: str
    """The collective as written; it is part of a node's name."""
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
    """Layers whose inputs are kept for recomputation."""
    recomputing: list[int] = field(default_factory=list)
    """Layers whose backward pass starts with that."""
    gpus: int = 0
    """Ranks, if in the text: SimAI's has them. Its times are in ns, and an all-gather has the bytes of its result."""

"""Directives from a YAML file, or from a user function: `zero3.yaml`, `mine.py:rewrite`.

    - replicate: {over: dp, bucket: block}
    - shard: {tensor: gradients, over: dp, each: micro_batch}
    - overlap: {select: {tensor: gradients}}

A function takes a `Step` and changes it.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import figure, read, safe_loader, text, usage_errors
from etude.base.trust import check_code
from etude.base.units import parse_count
from etude.make.generate.directives.step import KINDS, Select, Step

Rewrite = Callable[[Step], None]


class Over(StrEnum):
    DP = "dp"
    """All copies of a weight."""
    SHARD = "shard"
    """As many of them as --dp-shard says."""


class Tensor(StrEnum):
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    WEIGHTS = "weights"


class Each(StrEnum):
    STEP = "step"
    MICRO_BATCH = "micro_batch"


class Before(StrEnum):
    STEP = "step"
    """Once a step, while the forward pass begins."""
    FORWARD = "forward"
    """Before each forward pass of a block; kept until its backward pass."""
    USE = "use"
    """Before each forward and each backward pass of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectiveSelector:
    module: str = figure("text", "glob of the module path: layers.3.*", "*")
    phase: str = text("forward, recompute, backward-input, backward-weight, optimizer")
    kind: str = text(f"{', '.join(KINDS)}")
    collective: str = text("all_reduce, all_gather, ...")
    group: str = text("axis of a collective: tp, cp, ep, dp, ...")
    tensor: str = text("payload of a directive's collective: gradients or weights")
    micro_batch: int = figure("count", "only of this micro-batch", -1, zero=True)

    def __post_init__(self) -> None:
        if self.kind and self.kind not in KINDS:
            raise ClusterError(f"unknown kind of nodes `{self.kind}`", hint=", ".join(KINDS))

    def select(self) -> Select:
        return Select(**{name: getattr(self, name) for name in Select.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """Copies of the model with different data: gradients are summed over them."""

    over: Over = figure("choice", "the copies", Over.DP)
    bucket: str = figure("text", "parameters summed in one collective, or `block`", "40e6")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDirective:
    """A part of a tensor on each copy."""

    tensor: Tensor = figure("choice", "gradients, optimizer or weights", of=Tensor)
    over: Over = figure("choice", "the copies that share it", Over.DP)
    each: Each = figure("choice", "gradients: summed once per step, or once per micro-batch", Each.STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Whole weights from their parts."""

    before: Before = figure("choice", "when: before the step, each forward pass, or each use", Before.STEP)
    bucket: str = figure("text", "parameters gathered in one collective, with `before: step`", "40e6")
    ahead: int = figure("count", "how many blocks ahead of use weights are gathered", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Selected nodes wait for others of their micro-batch that come before them."""

    select: DirectiveSelector = figure("one", "which nodes wait", of=DirectiveSelector)
    after: DirectiveSelector = figure("one", "for which", of=DirectiveSelector)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapDirective:
    """Selected communication overlaps with compute: gradients as soon as they are complete, others on a separate
    stream."""

    select: DirectiveSelector = figure("one", "which nodes", of=DirectiveSelector)
    stream: int = figure("count", "the device stream they run on; 0: unchanged", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceDirective:
    """Layers on a pipeline stage."""

    layers: str = figure("text", "the layers: 0-7, or 3")
    stage: int = figure("count", "the pipeline stage, from 0", zero=True)


VERBS: Final[dict[str, type[Any]]] = {
    "replicate": Replicate,
    "shard": ShardDirective,
    "gather": Gather,
    "order": Order,
    "overlap": OverlapDirective,
    "place": PlaceDirective,
}

Directive = Replicate | ShardDirective | Gather | Order | OverlapDirective | PlaceDirective


def read_directives(given: str) -> Sequence[Directive | Rewrite]:
    """The directives of a file, in order."""
    path, _, name = given.partition(".py:")
    if name:
        return [_function(Path(f"{path}.py"), name)]
    file = Path(given)
    try:
        found = yaml.load(file.read_text(), safe_loader())
    except OSError as problem:
        raise UsageError(
            f"cannot be read: {problem.strerror}", where=given, hint="a YAML file, or FILE.py:name"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise UsageError(f"not YAML: {problem}", where=given) from None
    if not isinstance(found, list) or not found:
        raise UsageError("expected a list of directives", where=given, hint="- replicate: {over: dp}")
    return [_one(one, f"{given}: directive {number}") for number, one in enumerate(found, 1)]


def _one(given: Any, where: str) -> Directive:
    if not isinstance(given, dict) or len(given) != 1:
        raise UsageError("expected one verb with its keys", where=where, hint="- replicate: {over: dp}")
    verb, keys = next(iter(given.items()))
    if verb not in VERBS:
        raise UsageError(f"unknown verb `{verb}`", where=where, hint=f"known: {', '.join(VERBS)}")
    if isinstance(keys, dict):  # a bare number is a text too
        keys = {k: str(v) if k in ("bucket", "layers") and not isinstance(v, bool) else v for k, v in keys.items()}
    with usage_errors(where):
        made: Directive = read(VERBS[verb], keys or {}, where)
    if isinstance(made, (Replicate, Gather)):
        bucket_of(made.bucket, where)
    return made


def bucket_of(text: str, where: str = "") -> int:
    """Parameters of a bucket; a single block is a bucket of at least one parameter."""
    if text == "block":
        return 1
    try:
        size = parse_count(text)
    except UsageError:
        size = 0
    if size < 1:
        raise UsageError(f"bucket `{text}`", where=where, hint="parameters: 40e6, or `block`")
    return int(size)


def _function(path: Path, name: str) -> Rewrite:
    check_code(f"{path}:{name}")
    try:
        made = runpy.run_path(str(path)).get(name)
    except OSError as problem:
        raise UsageError(f"cannot be read: {problem.strerror}", where=str(path)) from None
    except Exception as problem:
        raise UsageError(f"{type(problem).__name__}: {problem}", where=str(path)) from None
    if not callable(made):
        raise UsageError(f"has no function `{name}`", where=str(path), hint="def rewrite(step): ...")
    return made

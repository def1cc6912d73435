"""Directives applied: to the plan before blocks are laid out, then to the graph of each pipeline rank."""

from __future__ import annotations

from collections.abc import Sequence

from etude.base.errors import UsageError
from etude.make.generate.directives.copies import CopySharing
from etude.make.generate.directives.nodes import order, overlap, stages_of
from etude.make.generate.directives.read import (
    Directive,
    Gather,
    Order,
    OverlapDirective,
    PlaceDirective,
    Replicate,
    Rewrite,
    ShardDirective,
    Tensor,
    bucket_of,
)
from etude.make.generate.directives.step import Step
from etude.make.generate.plan import Plan


def placed(plan: Plan, directives: Sequence[Directive | Rewrite], layers: int, stages: int) -> Plan:
    """The plan with the stages that `place` assigns layers to."""
    places = [(one.layers, one.stage) for one in directives if isinstance(one, PlaceDirective)]
    return plan.replace(stages=stages_of(places, layers, stages)) if places else plan


def rewrite(step: Step, directives: Sequence[Directive | Rewrite]) -> CopySharing:
    """Applies every directive in order; returns the sharing of copies."""
    sharing = CopySharing(step)
    for one in directives:
        match one:
            case Replicate():
                sharing.replicate(bucket_of(one.bucket))
            case ShardDirective():
                _shard(sharing, one)
            case Gather():
                sharing.gather(str(one.before), bucket_of(one.bucket), one.ahead)
            case Order():
                order(step, one.select.select(), one.after.select())
            case OverlapDirective():
                _overlap(sharing, one)
            case PlaceDirective():
                pass
            case _:
                one(step)
    sharing.check()
    return sharing


def _shard(sharing: CopySharing, one: ShardDirective) -> None:
    match one.tensor:
        case Tensor.GRADIENTS:
            sharing.shard_gradients(str(one.over), each=str(one.each))
        case Tensor.OPTIMIZER:
            sharing.shard_optimizer(str(one.over))
        case Tensor.WEIGHTS:
            sharing.shard_weights(str(one.over))


def _overlap(sharing: CopySharing, one: OverlapDirective) -> None:
    if one.select.tensor == "gradients" and not one.stream:
        sharing.overlap_gradients()
    elif one.stream:
        overlap(sharing.step, one.select.select(), one.stream)
    else:
        raise UsageError("overlap: no stream is given", hint="stream: 30, or select: {tensor: gradients}")

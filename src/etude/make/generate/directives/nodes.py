"""order, overlap, place: rewrites of any nodes, and of the stages of layers."""

from __future__ import annotations

from collections.abc import Sequence

from etude.base.errors import UsageError
from etude.make.generate.directives.step import Select, Step
from etude.model.schema import Kind


def order(step: Step, what: Select, after: Select) -> None:
    """Each selected node waits for the last of the others before it in the same micro-batch, if there is one."""
    waiting, waited = step.select(what), step.select(after)
    if not waiting or not waited:
        return
    placed = [(step.place_of(node), node) for node in waited]
    for node in waiting:
        mine = step.micro_batch(node)
        own = [
            w
            for place, w in placed
            if (place, w) < (step.place_of(node), node) and (mine < 0 or step.micro_batch(w) in (mine, -1))
        ]
        if own:
            step.join(node, ctrl=[own[-1]])


def overlap(step: Step, what: Select, stream: int) -> None:
    """Moves selected communication to a separate stream."""
    for node in step.select(what):
        op = step.op(node)
        if op.kind not in (Kind.COLL, Kind.SEND):
            hint = "select: {kind: collective}"
            raise UsageError(f"`{op.name}` is not communication, and cannot be moved to a separate stream", hint=hint)
        step.change(node, op.replace(stream=stream))


def stages_of(places: Sequence[tuple[str, int]], layers: int, stages: int) -> tuple[int, ...]:
    """How many layers each stage has, from `layers -> stage`. Stages follow one another in the order of the model."""
    home = [-1] * layers
    for text, stage in places:
        first, _, last = text.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise UsageError(f"place: layers `{text}`", hint="0-7, or 3")
        if stage >= stages:
            raise UsageError(f"place: the schedule has no stage {stage}", hint=f"0 to {stages - 1}")
        for layer in range(int(first), int(last or first) + 1):
            if layer >= layers:
                raise UsageError(f"place: there is no layer {layer}", hint=f"0 to {layers - 1}")
            home[layer] = stage
    if -1 in home:
        raise UsageError(f"place: layer {home.index(-1)} has no stage", hint="place every layer, or none")
    if home != sorted(home) or len(set(home)) != stages:
        raise UsageError("place: stages take layers in the order of the model, each at least one")
    return tuple(home.count(stage) for stage in range(stages))

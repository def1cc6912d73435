"""Changes during serving, applied to the rows of the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from etude.base.errors import UsageError
from etude.base.grammar import line
from etude.make.generate.model import Model
from etude.world.serve.deployment import Deployment
from etude.world.serve.elastic.moves import change_ns, moved_bytes
from etude.world.serve.elastic.reconfigure import PlanShape, read_timetable, reconfigured
from etude.world.serve.elastic.rehearse import rehearsal
from etude.world.serve.elastic.scale import EXAMPLE, scale_rule, scaled
from etude.world.serve.engine import Engine
from etude.world.serve.pools import Between, deployed_pools, function_of, pools_of
from etude.world.serve.program_tables import ServedProgram
from etude.world.serve.requests import Requests
from etude.world.serve.results import Limits
from etude.world.serve.serving import Control, Group

Made = Callable[[Requests, Limits, dict[str, Any]], Control | None]
"""From a stream, its limits, and the options that it is served with."""


def elastic_pools(
    model: Model | ServedProgram, pools: list[Any], engine: Engine, between: Between, *, file: bool = False, **how: Any
) -> tuple[list[Group], Deployment, Made]:
    """As `deployed_pools`, with a factory for the control of one stream."""
    if not between.reconfigure and not between.scale:
        return *deployed_pools(model, pools, engine, **how), lambda *given: None
    _check(pools, engine, between, file=file)
    tp = pools[0].tp
    cost: dict[str, Any] = {"set_up_ns": between.set_up_ns, "load_bytes_per_s": between.load_bytes_per_s}
    if between.scale:
        texts = line(between.scale, "--scale", EXAMPLE).split(";")
        if len(texts) != len(pools):
            hint = "--scale 'queue:1..4,most=4;queue:4..32,most=12': prefill, then decode"
            raise UsageError(f"--scale has {len(texts)} rules but there are {len(pools)} kinds of replicas", hint=hint)
        rules = [scale_rule(text, pool.count, function_of) for text, pool in zip(texts, pools, strict=True)]
        most = [replace(pool, count=rule.most) for pool, rule in zip(pools, rules, strict=True)]
        groups, placed = deployed_pools(model, most, engine, **how)
        moved = moved_bytes(tp, 0, tp, placed.weights_bytes)
        cold = change_ns(between.set_up_ns, moved, between.load_bytes_per_s)
        return groups, placed, lambda *given: scaled(rules, [pool.count for pool in pools], cold)
    ranks = sum(pool.count for pool in pools) * tp
    first = PlanShape(tp, ":".join(str(pool.count) for pool in pools) if between.disaggregate else "")
    table = read_timetable(between.reconfigure, between.plans, first, ranks, function_of)
    found = []
    for shape in table.plans:
        split = replace(between, disaggregate=shape.split)
        count = 1 if shape.split else ranks // shape.tp
        found.append(deployed_pools(model, pools_of(split, replicas=count, tp=shape.tp, ep=1), engine, **how))
    counts = [sum(group.count for group in groups) for groups, _ in found]
    weights = [placed.weights_bytes for _, placed in found]

    def made(requests: Requests, limits: Limits, options: dict[str, Any]) -> Control:
        own = table
        if table.ahead and any(limits.values()):
            plans = [groups for groups, _ in found]
            hook = rehearsal(requests, engine, plans, limits, options, live=table.how.live, ahead=table.ahead)
            own = replace(table, hook=hook)
        return reconfigured(own, counts, weights, ranks, **cost)

    return [group for groups, _ in found for group in groups], found[0][1], made


def _check(pools: list[Any], engine: Engine, between: Between, *, file: bool) -> None:
    flag = "--scale" if between.scale else "--reconfigure"
    if between.scale and between.reconfigure:
        raise UsageError("--scale and --reconfigure cannot be combined", hint="use one of them")
    if file:
        raise UsageError(f"{flag} needs identical replicas", hint="a model and --replicas")
    if pools[0].ep > 1:
        raise UsageError(f"{flag} cannot be combined with --ep {pools[0].ep}", hint="experts split by --tp")
    if engine.caching.stores:
        raise UsageError(f"{flag} cannot be combined with stores below the device", hint="--cache prefix")
    if between.reconfigure and between.draft_model:
        raise UsageError("--reconfigure and --draft-model cannot be combined", hint="use one of them")

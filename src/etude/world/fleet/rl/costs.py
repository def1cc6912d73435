"""Times of stages: steps of rollouts from the passes of `serve`, updates from `predict`, and transfers of weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.base.units import parse_time
from etude.kernels.arrays import F64
from etude.machine import System, open_system
from etude.world.fleet.rl.spec import Making, Priced, RlSpec


def priced(spec: RlSpec, where: str, *, receivers: int, on: System | None = None) -> Priced:
    """The spec with its times, on its system or on another; `receivers`: number of replicas that get new weights."""
    on = on or (open_system(spec.system) if spec.system else None)
    curves, notes = {}, []
    made = {"rollout": spec.rollout} | ({"explore": spec.explore} if spec.explore else {})
    for name, making in made.items():
        if making.step_ns is None:
            curves[name] = _predicted(spec, making, on, f"{where}: {name}")
            notes.append(f"steps of {name}s of {spec.model} on {spec.system} are predicted; prompts are not counted")
        else:
            curves[name] = given_curve(making.step_ns, making.at_once, f"{where}: {name}: step_ns")
    weights, adapter = _weights(spec, where)
    sent = spec.sync.weights_bytes or adapter
    fraction = spec.sync.fraction
    indexed = 1 + (spec.sync.index_bytes / spec.sync.value_bytes if fraction < 1 else 0.0)
    total = sent * fraction * indexed * receivers
    link = spec.sync.link_bytes_per_s
    return Priced(
        spec=spec, step_ns=curves, train_ns=spec.train.time_ns or _update(spec, on, where),
        sync_ns=round(total / link * 1e9) if link else 0, sync_bytes=total, receivers=receivers,
        weights_bytes=weights + (spec.tenants * adapter if spec.lora else 0.0), notes=tuple(notes),
    )  # fmt: skip


def given_curve(given: Any, most: int, where: str) -> F64:
    """Time of a step by number of samples, from `10ms` or `{1: 10ms, 64: 14ms}`; linear between points and constant
    beyond."""
    pairs = given if isinstance(given, dict) else {1: given}
    try:
        at = {int(k): float(parse_time(v)) for k, v in pairs.items()}
    except (TypeError, ValueError):
        raise UsageError(f"`{given}`", where=where, hint="{1: 10ms, 64: 14ms}") from None
    if not at or min(at) < 1 or min(at.values()) <= 0:
        raise UsageError(f"`{given}`", where=where, hint="{1: 10ms, 64: 14ms}")
    x = np.array(sorted(at), np.float64)
    return np.interp(np.arange(most + 1, dtype=np.float64), x, np.array([at[int(k)] for k in x]))


def _predicted(spec: RlSpec, making: Making, on: System | None, where: str) -> F64:
    from etude.make.generate.model import open_model
    from etude.world.serve import Engine, deployed, replica_plan
    from etude.world.serve.pools import decode_curve

    if not spec.model or on is None:
        raise UsageError("no times are given", where=where, hint="step_ns: {1: 10ms, 64: 14ms}, or model and system")
    model = open_model(spec.model)
    placed = deployed(model, replica_plan(model, making.tp), on, Engine())
    return decode_curve(placed.cost, making.at_once, making.context)


def _update(spec: RlSpec, on: System | None, where: str) -> int:
    from etude.make.generate import Plan
    from etude.make.generate.model import open_model
    from etude.steps import predict

    if not spec.model or on is None or not isinstance(spec.train.plan, dict):
        raise UsageError("train: no time is given", where=where, hint="time: 8s, or model, system and plan: {gpus: 8}")
    plan = Plan.from_dict(spec.train.plan, f"{where}: train: plan")
    return int(predict(open_model(spec.model), plan, on).step_time_ns)


def _weights(spec: RlSpec, where: str) -> tuple[float, float]:
    """Bytes of the model, and bytes that an update changes: all of it, or an adapter."""
    if not spec.model:
        return 0.0, 0.0
    from etude.make.generate import Plan
    from etude.make.generate.model import open_model
    from etude.make.generate.train import plan_memory

    model = open_model(spec.model)
    whole = float(plan_memory(model, Plan.from_dict({"gpus": 1}, where))[0].weights)
    if not spec.lora:
        return whole, whole
    from etude.world.serve.beside import adapter_bytes

    return whole, adapter_bytes(model, spec.lora)

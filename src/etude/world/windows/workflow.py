"""Passes of the replicas of one model of a workflow that start in a stretch."""

from __future__ import annotations

from typing import Any, Final

from etude.base.errors import UsageError
from etude.machine import open_system
from etude.make.generate.model import open_model
from etude.world.build import RunningWorld
from etude.world.scenario import WorkloadSpec
from etude.world.serve.deployment import device_name, replica_plan
from etude.world.serve.hooks import NO_HOOKS, loop_with, pools_with
from etude.world.serve.stacks import serving_stack
from etude.world.serve.stored.window import PassObserver
from etude.world.windows import JobWindow, WindowRequest, serve
from etude.world.windows.pass_nodes import ReplicaSoftware

LEAD_NS: Final = serve.LEAD_NS


def window(world: RunningWorld, spec: WorkloadSpec, wanted: WindowRequest, where: str) -> JobWindow:
    workload: Any = world.machine.workloads[spec.name]
    pools, serving = workload.loop.pools, workload.made_of
    if wanted.role and wanted.role not in pools:
        raise UsageError(f"there is no role `{wanted.role}`", where=where, hint=f"known: {', '.join(pools)}")
    seen = {
        name: PassObserver(serve.span_of(wanted), float(pool.rules.swap_ns))
        for name, pool in pools.items()
        if wanted.role in ("", name)
    }
    workload.loop.loop = pools_with([loop_with(NO_HOOKS, seen[one].around() if one in seen else None) for one in pools])
    world.clock.run(wanted.at_ns + (wanted.for_ns or serve.SECOND))
    busy = [name for name, one in seen.items() if one.begun] or list(seen)[:1]
    if len(busy) > 1:
        raise UsageError(
            f"{' and '.join(busy)} have passes, and models are not one job", where=where, hint=f"--role {busy[0]}"
        )
    role, system = serving.flow.models[busy[0]], open_system(serving.system)
    model, cost = open_model(role.model), pools[busy[0]].on.cost
    if (linked := serve.linked_at(workload, wanted.at_ns - LEAD_NS, where)) is not None:
        system, cost = linked.system, linked.costs[busy[0]]
    on = ReplicaSoftware(
        model=model,
        plan=replica_plan(model, role.tp),
        system=system,
        stack=serving_stack(serving.stack, device_name(system)),
        cost=cost,
    )
    return serve.window_of_passes(on, seen[busy[0]].moment(), where)

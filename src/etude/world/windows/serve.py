"""Passes of replicas that start in a stretch, with the tokens of each request in each of them.

The loop over requests is observed as plain Python from a little before the moment on: with asynchronous scheduling a
pass is chosen when the one before it starts.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import F64
from etude.machine import open_system
from etude.run.simulate import Simulated
from etude.steps import grown
from etude.world.build import RunningWorld
from etude.world.entities.serving import ALL
from etude.world.scenario import WorkloadSpec
from etude.world.serve import state as of
from etude.world.serve.deployment import device_name, replica_plan
from etude.world.serve.hooks import loop_with
from etude.world.serve.stacks import serving_stack
from etude.world.serve.stored.window import PassObserver, PassWindow, ServedWindow, pass_times_ns
from etude.world.windows import JobWindow, WindowRequest
from etude.world.windows.pass_nodes import ReplicaSoftware, job_of_passes

LEAD_NS: Final = 500_000_000
SECOND: Final = 1_000_000_000
MOST: Final = 20_000
"""Passes that are written as nodes."""


def window(world: RunningWorld, spec: WorkloadSpec, wanted: WindowRequest, where: str) -> JobWindow:
    workload: Any = world.machine.workloads[spec.name]
    service, costs = workload.made_of
    _check(workload, service, costs, where)
    observer = PassObserver(span_of(wanted), float(workload.ready.rules.swap_ns))
    workload.loop = loop_with(workload.options.hooks, observer.around())
    world.clock.run(observer.window.end_ns)
    moment = observer.moment()
    pools = [pool for pool in service.pools for _ in range(pool.count)]
    rows = workload.ready.state.replica["kind"]
    kinds = {(service.pools[int(rows[i])].system or service.system, pools[0].tp) for i in moment.replicas}
    if len(kinds) > 1:
        raise UsageError("replicas on different systems are not one job", where=where, hint="--replica 0")
    system, cost = open_system(next(iter(kinds))[0] if kinds else service.system), workload.groups[0].cost
    if (linked := linked_at(workload, wanted.at_ns - LEAD_NS, where)) is not None:
        system, cost = linked.system, linked.costs[ALL]
    plan = replica_plan(service.network, pools[0].tp, precision=costs["precision"])
    on = ReplicaSoftware(
        model=service.network,
        plan=plan,
        system=system,
        stack=serving_stack(costs["stack"], device_name(system)),
        cost=cost,
        kv_dtype=costs["kv_dtype"],
    )
    return window_of_passes(on, moment, where)


def linked_at(workload: Any, since_ns: int, where: str) -> Any:
    """What links leave a workload since a moment; None: they never changed. Raises UsageError if they did after it."""
    if workload.linked_ns > max(since_ns, 0):
        raise UsageError("links change in the stretch, or just before it", where=where, hint="another --at")
    return workload.linked


def span_of(wanted: WindowRequest) -> ServedWindow:
    return ServedWindow(wanted.at_ns, wanted.at_ns + (wanted.for_ns or SECOND), wanted.replica)


def window_of_passes(on: ReplicaSoftware, moment: PassWindow, where: str) -> JobWindow:
    """The observed passes as a job. Raises UsageError if there are none, or too many."""
    count = sum(map(len, moment.passes))
    if not count:
        raise UsageError("no pass starts in the stretch", where=where, hint="another --at, or a longer --for")
    if count > MOST:
        raise UsageError(f"{count:,} passes start in the stretch", where=where, hint=f"at most {MOST:,}: --for 100ms")
    if on.stack.chain_ns:
        raise UsageError("kernels that do not split a sequence have no nodes", where=where, hint="stack: vllm")
    job = job_of_passes(on, moment)

    def pass_ns(run: Simulated) -> tuple[F64, F64]:
        return np.concatenate(moment.time_ns).astype(np.float64), np.concatenate(pass_times_ns(run, on.plan, moment))

    missed = f"{moment.missed} passes were chosen before they could be observed, and are left out"
    return JobWindow(
        job=job,
        system=grown(on.system, len(job)),
        world_ns=max(int(times.sum()) for times in moment.time_ns),
        start_ns=min(int(times[0]) for times in moment.start_ns),
        counts={"passes": count, "replicas": len(moment.replicas), "requests": sum(map(len, moment.requests))},
        options={"collective_times": "recorded"} if on.plan.gpus > 1 else {},
        notes=(missed,) if moment.missed else (),
        pass_ns=pass_ns,
    )


def _check(workload: Any, service: Any, costs: dict[str, Any], where: str) -> None:
    """Raises UsageError for features of replicas that passes are not written with."""
    for there, what in (
        (costs.get("ops") is not None, "times of a database of operators"),
        (costs.get("experts") is not None, "experts in the memory of a host"),
        (any(pool.ep > 1 for pool in service.pools), "experts spread over ranks, of which the fullest decides"),
        (bool(service.rules.barrier), "replicas that wait for one another"),
        (workload.options.draft is not None, "a draft model"),
        (bool(workload.options.image_ns), "a tower for images"),
        (any(group.role == of.OFF for group in workload.groups), "replicas that are off"),
    ):
        if there:
            raise UsageError(f"{what} cannot be written node by node", where=where)

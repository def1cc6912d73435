"""Post-training: the update in progress at the moment, or else decode passes of rollouts.

All samples of a replica advance together, a pass at a time, with the mean context of a sample; passes are written up to
the end of the stretch, or until the number of samples on the replica changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.machine import System, open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.make.generate.passes import ModelPass, Span
from etude.steps import predict
from etude.world.build import RunningWorld
from etude.world.fleet.rl.loop import ROLLOUT, TRAIN, RlLoop
from etude.world.scenario import WorkloadSpec
from etude.world.serve import Engine, deployed, replica_plan
from etude.world.serve.deployment import device_name
from etude.world.serve.stacks import serving_stack
from etude.world.serve.steps import PassContent
from etude.world.serve.stored.window import PassWindow
from etude.world.windows import JobWindow, WindowRequest
from etude.world.windows.pass_nodes import ReplicaSoftware
from etude.world.windows.serve import SECOND, linked_at, window_of_passes

STACK = "vllm"
"""Software that steps of rollouts are predicted with."""


def window(world: RunningWorld, spec: WorkloadSpec, wanted: WindowRequest, where: str) -> JobWindow:
    workload: Any = world.machine.workloads[spec.name]
    loop: RlLoop = workload.loop
    given = loop.priced.spec
    if loop.training >= 0:
        linked = linked_at(workload, loop.tenants[loop.training].began[TRAIN], where)
        return _update(loop, open_system(given.system) if linked is None else linked.system, where)
    moment, making = _rollouts(loop, wanted.at_ns, wanted.at_ns + (wanted.for_ns or SECOND), where)
    linked = linked_at(workload, wanted.at_ns, where)
    model, system = open_model(given.model), open_system(given.system) if linked is None else linked.system
    plan = replica_plan(model, making.tp)
    on = ReplicaSoftware(
        model=model,
        plan=plan,
        system=system,
        stack=serving_stack(STACK, device_name(system)),
        cost=deployed(model, plan, system, Engine()).cost,
    )
    return window_of_passes(on, moment, where)


def _update(loop: RlLoop, system: System, where: str) -> JobWindow:
    spec = loop.priced.spec
    if spec.train.time_ns:
        raise UsageError("its updates have a given time, so they have no nodes", where=where, hint="train: {plan: ...}")
    plan = Plan.from_dict(dict(spec.train.plan), where)
    found = predict(open_model(spec.model), plan, system)
    return JobWindow(
        job=found.generated.job,
        system=found.system,
        world_ns=loop.priced.train_ns,
        start_ns=loop.tenants[loop.training].began[TRAIN],
        counts={"updates": 1, "gpus": plan.gpus},
    )


def _rollouts(loop: RlLoop, begin_ns: int, end_ns: int, where: str) -> tuple[PassWindow, Any]:
    """Passes of each replica that makes samples, and what they are samples of."""
    spec = loop.priced.spec
    busy = [k for k, one in enumerate(loop.replicas) if one.rate() > 0]
    if not busy:
        raise UsageError("no sample is being made", where=where, hint="another --at")
    stage = loop.replicas[busy[0]].heap[0][1].stage
    making = spec.rollout if stage == ROLLOUT else spec.explore
    assert making is not None
    if making.step_ns is not None:
        raise UsageError("its steps have given times, so they have no nodes", where=where, hint="leave out step_ns")
    kept, passes, contents, starts, times = list[int](), [], [], [], []
    for k in busy:
        replica = loop.replicas[k]
        samples, each = len(replica.heap), 1 / replica.rate()
        begin, changes = max(begin_ns, replica.ready_ns), replica.next_ns()
        count = int((min(end_ns, end_ns if changes is None else changes) - begin) // each)
        if count < 1 or replica.heap[0][1].stage != stage:
            continue
        spans = tuple(Span(r, 1, making.context) for r in range(samples))
        content = PassContent(0, 0.0, samples, samples * making.context, samples, making.context)
        kept.append(k)
        passes.append((ModelPass(spans, samples),) * count)
        contents.append((content,) * count)
        starts.append(np.rint(begin + each * np.arange(count)).astype(np.int64))
        times.append(np.full(count, round(each), np.int64))
    nothing = tuple(np.zeros(len(one), np.int64) for one in passes)
    requests = tuple(tuple(range(one[0].decode)) for one in contents)
    found = PassWindow(tuple(kept), tuple(passes), requests, tuple(starts), tuple(times), tuple(contents), nothing)
    return found, making

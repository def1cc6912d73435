"""Denoising steps of images and videos that start in a stretch: group by group, each with ranks of its own.

A step costs the mean of the layouts over devices that a model allows, so passes take turns among them. Texts and pixels
have no nodes and are left out, and so is the time to set up a group.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import F64
from etude.machine import System, open_system
from etude.model.job import Job
from etude.model.join import join
from etude.run.simulate import Simulated
from etude.steps import grown
from etude.world.build import RunningWorld
from etude.world.scenario import WorkloadSpec
from etude.world.serve.deployment import device_name
from etude.world.serve.images.groups import STEPS, TASKS
from etude.world.serve.measured import asked_images
from etude.world.serve.measured.diffusion import denoising_passes, denoising_work
from etude.world.serve.stacks import ServingStack, serving_stack
from etude.world.windows import JobWindow, WindowRequest
from etude.world.windows.sequence import in_sequence
from etude.world.windows.serve import SECOND, linked_at


class DenoisingRun(NamedTuple):
    """Equal steps of a group of devices."""

    devices: tuple[int, ...]
    members: tuple[int, ...]
    """Requests that share them."""
    start_ns: int
    each_ns: int
    steps: int


def window(world: RunningWorld, spec: WorkloadSpec, wanted: WindowRequest, where: str) -> JobWindow:
    workload: Any = world.machine.workloads[spec.name]
    end_ns = wanted.at_ns + (wanted.for_ns or SECOND)
    world.clock.run(end_ns)
    tasks, serving = workload.loop.tasks, workload.made_of
    runs = [one for one in _runs(tasks, wanted.at_ns, end_ns) if one.steps]
    if not runs:
        raise UsageError("no denoising step starts in the stretch", where=where, hint="another --at, or a longer --for")
    linked = linked_at(workload, wanted.at_ns, where)
    system = open_system(serving.system) if linked is None else linked.system
    stack = serving_stack(serving.stack, device_name(system))
    found, times, notes = list[Job](), list[int](), list[str]()
    for one in runs:
        shape = tuple(tasks.requests.sizes[tasks.size[one.members[0]]].tolist())
        job, count = _job(one, shape, (serving.model, system, stack))
        if count < one.steps:
            notes.append(f"{count} of {one.steps} steps of {len(one.devices)} devices: layouts take turns")
        if job is not None:
            found.append(job)
            times.append(count * one.each_ns)
    if not found:
        raise UsageError("a single step is half of each layout of its devices", where=where, hint="a longer --for")
    job = found[0] if len(found) == 1 else join(found)
    first = np.cumsum([0] + [len(one) for one in found[:-1]])

    def group_ns(run: Simulated) -> tuple[F64, F64]:
        ends = [float(run.part(int(rank)).end_ns.max()) for rank in first]
        return np.array(times, np.float64), np.array(ends)

    return JobWindow(
        job=job,
        system=grown(system, len(job)),
        world_ns=max(times),
        start_ns=min(one.start_ns for one in runs),
        counts={"groups": len(found), "devices": len(job), "images": len({r for one in runs for r in one.members})},
        options={"collective_times": "recorded"} if any(len(one.devices) > 1 for one in runs) else {},
        notes=tuple(notes),
        pass_ns=group_ns,
    )


def _runs(tasks: Any, begin_ns: int, end_ns: int) -> list[DenoisingRun]:
    """Steps that start in a stretch, of tasks that have ended and of those in progress."""
    rows = [
        (m, begin, end, set_up, steps, devices)
        for m, task, begin, end, set_up, steps, _, devices in tasks.rows
        if task == TASKS[STEPS]
    ]
    rows += [
        (group.members, group.begin, group.end, group.set_up, group.count, group.devices)
        for group in tasks.groups
        if group.note and group.task == STEPS
    ]
    found = []
    for members, begin, end, set_up, steps, devices in rows:
        each = (end - begin - set_up) // steps
        starts = begin + set_up + each * np.arange(steps)
        mine = starts[(starts >= begin_ns) & (starts < end_ns)]
        first = int(mine[0]) if len(mine) else 0
        found.append(DenoisingRun(tuple(devices), tuple(members), first, each, len(mine)))
    return found


def _job(one: DenoisingRun, shape: Any, on: tuple[str, System, ServingStack]) -> tuple[Job | None, int]:
    """The job of a group, and its steps; None if these are fewer than the layouts that take turns."""
    model, system, stack = on
    asked = asked_images(model, system, len(one.devices), len(one.members), shape)
    passes = denoising_passes(*asked.asked)
    each, count = round(asked.passes), one.steps
    while count * each % len(passes):
        count -= 1
    if not count:
        return None, 0
    jobs, host = [], []
    for found in passes:
        whole, nodes = denoising_work(found, system)
        time_ns = (
            stack.products * nodes.products
            + stack.attention * nodes.attention
            + stack.rest * nodes.rest
            + stack.network * nodes.network
        )
        trace = found.generated.job.traces[0]
        duration = np.rint(time_ns * asked.samples).astype(np.int64)
        jobs.append(found.generated.job.replace(traces=(trace.replace(duration_ns=duration),)))
        host.append(whole.host_ns(stack))
    order = [k % len(passes) for k in range(count * each)]
    return in_sequence(f"{model}-window", jobs, order, host), count

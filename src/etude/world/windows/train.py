"""Steps of a training job: the one in progress at the moment, and those after it.

The job is that of the plan in use at the moment. Its system is the machine as the software stack and the links leave
it, slower by what power and saves in the background take. A slow node is slow in all that it does: its ranks compute
more slowly, and so are messages and collectives that they take part in.
"""

from __future__ import annotations

from typing import Any, Final

from etude.base.errors import UsageError
from etude.cost.stacks.stack import tuned
from etude.machine.system import System
from etude.make.generate import generate
from etude.model.job import Job
from etude.run.simulate import Overlap
from etude.steps.step import efficiency_of, machine_for, with_host_memory
from etude.world.build import RunningWorld
from etude.world.fleet.account import stretches
from etude.world.fleet.days.request import TrainInputs
from etude.world.fleet.loop import BUSY, RUNNING, TrainingJob
from etude.world.fleet.networks import read_networks
from etude.world.scenario import Scenario, WorkloadSpec
from etude.world.windows import JobWindow, WindowRequest
from etude.world.windows.slower import slower_system

WAITS: Final = {"checkpoint": "saves its state", "detect": "waits until a fault is noticed", "restart": "starts again"}
EVEN: Final = 1e-6
"""Difference of speeds that comes from whole nanoseconds."""


def window(world: RunningWorld, spec: WorkloadSpec, wanted: WindowRequest, where: str) -> JobWindow:
    workload: Any = world.machine.workloads[spec.name]
    job: TrainingJob = workload.job
    inputs: TrainInputs | None = workload.inputs
    while _check(job, where):
        world.clock.run(job.now + job.todo)
    assert inputs is not None
    plan = job.config.plan
    assert plan is not None
    alone, slow = _slowness(job)
    begun = job.now - job.into
    steps_ns, notes = _ended(world, job, max(wanted.steps, 1), where)
    machine = machine_for(plan, _linked(inputs, world.scenario, begun), inputs.stack)
    by = efficiency_of(inputs.model, inputs.system, inputs.stack)
    made = generate(inputs.model, plan.replace(steps=len(steps_ns), host_ns=plan.host_ns * by.host * alone))
    options: dict[str, Any] = {"slow_ranks": slow, "slow_links": _slow_links(made.job, slow)} if slow else {}
    if by.overlap > 1:
        options["overlap"] = Overlap(compute=by.overlap)
    return JobWindow(
        job=made.job,
        system=slower_system(tuned(machine, by), alone),
        world_ns=sum(steps_ns),
        start_ns=begun,
        counts={"steps": len(steps_ns), "gpus": plan.gpus, "plan": job.config.name},
        options=with_host_memory(made, options),
        notes=(*notes, *_said(job, slow, alone)),
    )


def _check(job: TrainingJob, where: str) -> bool:
    """Whether the speed changed in the step in progress, so that the next one must do. Raises UsageError unless a
    step of a known plan is in progress."""
    at = f"at {job.now / 1e9:g} s it"
    if job.mode != RUNNING:
        doing = WAITS.get(job.phases[0].part, "is busy") if job.mode == BUSY and job.phases else "waits for nodes"
        raise UsageError(f"{at} {doing}: no step is in progress", where=where, hint="another --at")
    if job.config.plan is None:
        raise UsageError("its times were given, so it has no nodes", where=where)
    if job.kept or job.account.held:
        raise UsageError(
            f"{at} ends a step that a fault interrupted, which has no plan of its own", where=where, hint="another --at"
        )
    if job.config.plan.step_overhead_ns:
        raise UsageError("`step_overhead` is no node of a step", where=where, hint="leave it out")
    return bool(job.todo) and abs(job.into - job.worked * job.slower) > 2


def _slowness(job: TrainingJob) -> tuple[float, dict[int, float]]:
    """How many times as long everything takes for want of power, for saves in the background and for faults of no node;
    and what comes on top of that on the ranks of slow nodes."""
    felt = max(job._felt() / job.config.absorbs, 1.0)
    whole = job.slower if job.todo else job._step_ns() / job.config.step_ns
    alike = max((f for event, f in job.slow.items() if not job.events.nodes[event]), default=1.0)
    slow = dict[int, float]()
    for event, factor in job.slow.items():
        more = job.config.behind if _is_dealt(job) else factor / alike
        for node in job._struck(event).tolist() if job.events.nodes[event] and more > 1.0 else ():
            if job.used[node]:
                first = int(job.used[:node].sum()) * job.costs.gpus_per_node
                ranks = range(first, min(first + job.costs.gpus_per_node, job.config.gpus))
                slow |= {rank: max(more, slow.get(rank, 1.0)) for rank in ranks}
    alone = whole / felt * job.linked_pace * alike
    return alone if abs(alone - 1.0) > EVEN else 1.0, slow


def _slow_links(job: Job, slow: dict[int, float]) -> dict[tuple[int, int], float]:
    """A pair of ranks for each group and peer of a slow rank, by which what it takes part in is slow."""
    found = dict[tuple[int, int], float]()
    for group in range(len(job.groups)):
        members = job.groups.ranks(group)
        ranks = [] if members is None else members.tolist()
        mine = [rank for rank in ranks if rank in slow]
        if mine and len(ranks) > 1:
            worst = max(mine, key=lambda rank: slow[rank])
            other = next(rank for rank in ranks if rank != worst)
            found[worst, other] = max(slow[worst], found.get((worst, other), 1.0))
    for rank, factor in slow.items():
        at = job.index(rank)
        for peer in job.peer_of[job.peer_start[at] : job.peer_start[at + 1]].tolist():
            found[rank, peer] = max(factor, found.get((rank, peer), 1.0))
    return found


def _is_dealt(job: TrainingJob) -> bool:
    """Whether slow replicas have fewer micro-batches."""
    return job.config.absorbs > 1.0 and not job.config.moved_bytes


def _linked(inputs: TrainInputs, scenario: Scenario, now: int) -> System:
    """The machine with its links as they are at a moment."""
    system = inputs.system
    for time_ns, changed in read_networks(scenario.events.links, system) if scenario.events.links else ():
        system = changed if time_ns <= now else system
    return system


def _ended(world: RunningWorld, job: TrainingJob, steps: int, where: str) -> tuple[list[int], list[str]]:
    """Runs the world on until these steps have ended; times of those that are like the first."""
    now, config, each = job.now, job.config, job._step_ns()
    begun = now - job.into
    world.clock.run(now + (job.todo or each) + (steps - 1) * each)
    found = list[tuple[int, str]]()
    for row in job.account.rows:
        for one in stretches(row):
            if one.steps and one.start_ns >= begun:
                found += [((one.end_ns - one.start_ns) // one.steps, one.config)] * one.steps
    if not found:
        raise UsageError(
            f"at {now / 1e9:g} s it is in a step that a fault interrupts", where=where, hint="another --at"
        )
    alike = [ns for ns, name in found[:steps] if abs(ns - found[0][0]) <= 1 and name == config.name]
    less = f"{len(alike)} of {steps} steps: then its speed or its plan changes, or it saves its state"
    return alike, [less] if len(alike) < steps else []


def _said(job: TrainingJob, slow: dict[int, float], alone: float) -> list[str]:
    found = []
    if _is_dealt(job):
        found.append("every replica has the micro-batches of the fullest one, and slow ones the speed that this takes")
    if len({event for event in job.slow if job.used[job._struck(event)].any()}) > 1:
        found.append("several nodes are slow at once; in the world only the slowest counts")
    if alone != 1.0:
        found.append(f"all takes {alone:.4g} times as long, for want of power or for saves in the background")
    return found

"""One step with one fault, simulated node by node by the engine, to compare with the long loop.

The engine runs the step, the ranks of the lost replicas stop in the middle of it, the others continue until the fault
is noticed. What follows is simulated as a separate job: the step again (`restart`), the step of the remaining replicas
(`shrink`), or their remaining part of the batch (`redistribute`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from etude.base.errors import UsageError
from etude.make.generate import generate
from etude.run.simulate.faults import StopRanks, simulate_until
from etude.steps import predict
from etude.world.fleet.costs import REDISTRIBUTE, RESTART, SHRINK

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.make.generate import Plan
    from etude.make.generate.model import Model
    from etude.model.job import Job
    from etude.world.fleet.recovery import Recovery


class Middle(NamedTuple):
    """Result of one fault in a step. Times are from the start of the step."""

    end_ns: int
    """End of the step, or of the one that replaces it."""
    kept: int
    """Micro-batches of each remaining replica that count, of those done when the fault was noticed."""
    left: int
    """Micro-batches that the fullest replica still has to do."""
    done_ns: int
    """Total time of the nodes of all ranks that had ended when the ranks stopped."""
    lost_ns: int
    """The part of `done_ns` that does not count."""
    ended: bool
    """Whether the remaining replicas ended the step by themselves."""


def fault_in_step(
    model: Model, plan: Plan, system: System, *, at_ns: int, replicas: int, recover: str, recovery: Recovery
) -> Middle:
    """Stops the last `replicas` whole replicas at `at_ns`. Raises UsageError for another recovery, or if replicas are
    not whole."""
    if recover not in (RESTART, SHRINK, REDISTRIBUTE):
        raise UsageError(
            f"one step with one fault is not possible with `{recover}`", hint="restart, shrink or redistribute"
        )
    if plan.cp > 1 or plan.ep > 1 or plan.zero:
        raise UsageError("one step with one fault: replicas must be whole", hint="--cp 1 --ep 1 --zero 0")
    if not 0 < replicas < plan.dp:
        raise UsageError(f"{replicas} of {plan.dp} replicas stop, and at least one must be left")
    size, detect_ns = plan.tp * plan.cp * plan.pp, int(recovery.detect_ns)
    job, machine = generate(model, plan).job, system.for_ranks(plan.gpus)
    struck = tuple(int(r) for r in job.ranks if _replica(job, int(r)) >= plan.dp - replicas)
    if len(struck) != size * replicas:
        raise UsageError(f"{len(struck)} ranks for {replicas} replicas of {size}")
    events = [(at_ns, StopRanks(struck))]
    before = simulate_until(job, machine, events, until_ns=at_ns)
    after = simulate_until(job, machine, events, until_ns=at_ns + detect_ns)
    living = [at for at, rank in enumerate(job.ranks.tolist()) if rank not in struck]
    done_ns, rest_ns = int(before.done_ns().sum()), int(before.done_ns()[living].sum())
    if recover == RESTART:
        again = predict(model, plan, system, check=False).step_time_ns
        return Middle(
            at_ns + detect_ns + int(recovery.restart_ns) + again, 0, plan.micro_batches, done_ns, done_ns, False
        )
    start_ns = at_ns + detect_ns + int(recovery.regroup_ns)
    if after.complete[living].all():
        return Middle(int(after.finish_ns[living].max()), plan.micro_batches, 0, done_ns, 0, True)
    dp = plan.dp - replicas
    smaller = plan.replace(gpus=dp * size, global_batch=dp * plan.micro_batch * plan.micro_batches)
    if recover == SHRINK:
        took = predict(model, smaller, system, check=False).step_time_ns
        return Middle(start_ns + took, 0, plan.micro_batches, done_ns, done_ns, False)
    kept = int(after.micro_batches()[living].min())
    left = -(-plan.micro_batches * plan.dp // dp) - kept
    rest = smaller.replace(global_batch=dp * plan.micro_batch * left)
    took = predict(model, rest, system, check=False).step_time_ns
    return Middle(start_ns + took, kept, left, done_ns, done_ns - rest_ns, False)


def _replica(job: Job, rank: int) -> int:
    """Data-parallel replica of a rank: its index in the group over which gradients are summed."""
    slots = job.trace(rank).group_slots
    members = job.groups.ranks(int(job.group_slots(rank)[slots.index("dp")])) if "dp" in slots else None
    if members is None:
        raise UsageError(f"rank {rank} has no peer to sum gradients with")
    return members.tolist().index(rank)

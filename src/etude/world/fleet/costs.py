"""Predicted cost of a step in each state that a plan can be in, and the bytes held and saved.

Replicas are the data-parallel copies of a plan: the unit in which a plan can lose nodes and continue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from etude.base.errors import EtudeError, UsageError
from etude.model.schema import Kind
from etude.world.fleet.replan import coordinates, fastest, moved_bytes, plans_for, stages_for, weights_of

if TYPE_CHECKING:
    from etude.cost.estimates import Estimate
    from etude.cost.stacks import Stack
    from etude.machine.system import System
    from etude.make.generate import Plan
    from etude.make.generate.model import Model
    from etude.steps import Prediction

RESTART, SHRINK, REDISTRIBUTE, REPLAN = "restart", "shrink", "redistribute", "replan"
SHAPES: Final = (SHRINK, REDISTRIBUTE, REPLAN)
"""Ways to run on fewer nodes."""
AS_PLANNED: Final = "as planned"


class StepRounds(NamedTuple):
    """Timing inside a step: when micro-batches are done, on every replica alike."""

    most: int
    """Micro-batches of the fullest replica."""
    first_ns: int
    """When the first is done."""
    each_ns: int
    """How long each further one takes."""
    alone_ns: int
    """From when on a replica can finish the step without the others."""

    def done(self, into_ns: float) -> int:
        """Whole micro-batches that are done this long after the start of the step."""
        if into_ns < self.first_ns:
            return 0
        return min(1 + int((into_ns - self.first_ns) // max(self.each_ns, 1)), self.most)


@dataclass(frozen=True, slots=True)
class Config:
    """A state that the job can run in."""

    gpus: int
    step_ns: int
    tokens: int
    """Tokens per step; samples, if a model has no tokens."""
    energy_j: float = 0.0
    """Per step, all devices; 0 unknown."""
    name: str = ""
    rounds: StepRounds | None = None
    """None if replicas need each other before the end of a step, or nothing is known."""
    absorbs: float = 1.0
    """A node may be slower by this factor without delaying the step."""
    moved_bytes: float = 0.0
    """State that the rank which lacks most gets from others when changing from the plan to this state."""
    behind: float = 1.0
    """Where micro-batches are dealt by speed: how many times as long the slowest replica takes as the fullest."""
    plan: Plan | None = field(default=None, compare=False, repr=False)
    """The plan whose step was predicted; None if times were given."""


@dataclass(slots=True)
class Costs:
    """Costs of one job. `predicted(shape, gpus)` predicts states when they are first needed."""

    healthy: Config
    gpus_per_node: int
    replica_gpus: int
    state_bytes: float
    """What a checkpoint of the whole job holds."""
    node_bytes: float
    """What a node holds of weights and optimizer."""
    node_bytes_per_s: float
    """From a node to another, for state that is handed over."""
    replicated: bool = False
    """Whether every replica holds the whole state, so that any of them can copy it to others."""
    idle_w: float = 0.0
    """Power of a waiting device."""
    price: float = 0.0
    """Per device and hour; 0 unknown."""
    predicted: Callable[[str, int], Config | None] | None = None
    dealt: Callable[[int], Config | None] | None = None
    """The plan with this many micro-batches for the fullest replica, and the tokens of the plan."""
    restaged: Callable[[float, int], Config | None] | None = None
    """The plan with one node (by number) slower by a factor, and fewer layers in its stage."""
    planned: Callable[[], list[Config]] | None = None
    """What `replan` finds on all devices, the fastest first."""
    fits: Callable[[int], bool] | None = None
    """Whether a plan for this many devices fits them."""
    slow_replicas: int = 0
    """Replicas with ranks on one node; 0: as many as fit a node."""
    notes: list[str] = field(default_factory=list)
    step: Estimate | None = None
    """The step as planned, with its range; None if times were given."""
    _known: dict[tuple[str, int], Config | None] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        return -(-self.healthy.gpus // self.gpus_per_node)

    def at(self, shape: str, nodes: int) -> Config | None:
        """The state of the job on this many nodes; None if it cannot run."""
        gpus = min(nodes * self.gpus_per_node, self.healthy.gpus)
        if gpus == self.healthy.gpus:
            return self.healthy
        if shape == RESTART or self.predicted is None:
            return None
        if shape != REPLAN:
            gpus = gpus // self.replica_gpus * self.replica_gpus
        if not gpus:
            return None
        if (shape, gpus) not in self._known:
            self._known[shape, gpus] = self.predicted(shape, gpus)
        return self._known[shape, gpus]

    def runs_on(self, nodes: int) -> bool:
        """Whether some other plan runs on this many nodes; without a prediction if memory alone decides."""
        if self.fits is None:
            return self.at(REPLAN, nodes) is not None
        return self.fits(min(nodes * self.gpus_per_node, self.healthy.gpus))

    def move_ns(self, config: Config) -> int:
        """Ranks load at the same time, each at its share of the node's rate."""
        return round(config.moved_bytes * self.gpus_per_node / self.node_bytes_per_s * 1e9)

    def slowed(self, factor: float, node: int = 0) -> Config | None:
        """As planned, with one node slower by a factor: micro-batches assigned by speed, or fewer layers for its stage,
        whichever is faster. None if that gains nothing."""
        if factor <= 1.0:
            return None
        staged = self.restaged(factor, node) if self.restaged is not None else None
        found = [one for one in (self._dealt_by_speed(factor), staged) if one is not None]
        best = min(found, key=lambda config: config.step_ns, default=None)
        return best if best is not None and best.step_ns < self.healthy.step_ns * factor else None

    def _dealt_by_speed(self, factor: float) -> Config | None:
        """The replicas of the slow node get as many micro-batches as they do in the time in which the others do the
        rest."""
        rounds, size = self.healthy.rounds, self.slow_replicas or max(self.gpus_per_node // self.replica_gpus, 1)
        replicas = self.healthy.gpus // self.replica_gpus
        if rounds is None or self.dealt is None or not 0 < size < replicas:
            return None
        batch = rounds.most * replicas
        least, slow = min(
            (max(fewer * factor, -(-(batch - fewer * size) // (replicas - size))), fewer)
            for fewer in range(rounds.most + 1)
        )
        most = -(-(batch - slow * size) // (replicas - size))
        key = ("dealt", most)
        if key not in self._known:
            self._known[key] = self.dealt(most)
        found = self._known[key]
        if found is None or found.rounds is None:
            return None
        late = max(least - most, 0.0) * found.rounds.each_ns  # the slow ones may still be the last
        name = f"{slow} of {rounds.most} micro-batches on slow replicas, {most} on others"
        return replace(
            found,
            step_ns=found.step_ns + round(late),
            name=name,
            rounds=None,
            absorbs=factor,
            behind=max(least / most, 1.0),
        )


def predicted_costs(
    model: Model, plan: Plan, system: System, *, stack: Stack | None = None, check: bool = True, energy: bool = True
) -> Costs:
    """Costs of a training job on a system, its states predicted as they are needed."""
    from etude.make.generate.train import plan_memory
    from etude.steps import predict

    def one(wanted: Plan, name: str, tokens: int = 0, *, energy: bool = energy) -> Config:
        made = _config(predict(model, wanted, system, stack=stack, check=check), name, tokens, energy=energy)
        return replace(made, plan=wanted)

    found = predict(model, plan, system, stack=stack, check=check)
    healthy = replace(_config(found, AS_PLANNED, energy=energy), plan=plan)
    replica = plan.tp * plan.cp * plan.pp
    whole = plan_memory(model, plan.replace(zero=0, dp_shard=0))
    per_weight = sum(m.weights + m.optimizer for m in whole) / max(sum(m.weights for m in whole), 1)
    node, outer = min(system.levels[0].size, plan.gpus), system.levels[-1]

    def slow_step_ns(wanted: Plan, slow: dict[int, float]) -> int:
        return predict(model, wanted, system, stack=stack, check=check, slow_ranks=slow).step_time_ns

    limit = system.memory_bytes if check else 0
    others = OtherPlans(model, plan, node, per_weight, limit, one, slow_step_ns, healthy)

    def smaller(shape: str, gpus: int) -> Config | None:
        if shape == SHRINK:
            return one(_shrunk(plan, gpus, plan.micro_batches), f"{gpus // replica} replicas")
        if shape == REDISTRIBUTE:
            return one(_dealt(plan, gpus), f"{gpus // replica} replicas, same batch", healthy.tokens)
        return others.on(gpus)

    def dealt(most: int) -> Config | None:
        return one(_shrunk(plan, plan.gpus, most), f"{most} micro-batches", healthy.tokens)

    return Costs(
        healthy=healthy,
        gpus_per_node=node,
        replica_gpus=replica,
        state_bytes=found.generated.params * (4 if plan.dtype == "fp32" else 2) * per_weight,
        node_bytes=max(m.weights + m.optimizer for m in found.generated.memory) * node,
        node_bytes_per_s=outer.rate_bytes_per_ns * 1e9 * node,
        replicated=plan.zero == 0 and plan.dp > 1,
        idle_w=system.device.idle_power_w,
        price=system.device.price,
        predicted=smaller,
        dealt=dealt,
        restaged=others.restaged,
        planned=lambda: others.tried(plan.gpus),
        fits=others.fits,
        slow_replicas=others.slow_replicas,
        notes=list(found.assumed),
        step=found.estimates()["step_time_ns"],
    )


class OtherPlans:
    """Other plans of a job, each predicted."""

    def __init__(
        self, model: Model, plan: Plan, node: int, per_weight: float, memory_bytes: float, one: Callable[..., Config],
        slow_step_ns: Callable[[Plan, dict[int, float]], int], healthy: Config,
    ) -> None:  # fmt: skip
        self.model, self.plan, self.node, self.per_weight = model, plan, node, per_weight
        self.memory_bytes, self.one, self.slow_step_ns, self.healthy = memory_bytes, one, slow_step_ns, healthy
        self.known: dict[tuple[float, int], Config | None] = {}

    @property
    def slow_replicas(self) -> int:
        """Replicas that have ranks on the first node."""
        return len({coordinates(self.plan, rank)["dp"] for rank in range(self.node)})

    def fits(self, gpus: int) -> bool:
        return bool(self._fitting(gpus))

    def _fitting(self, gpus: int) -> list[Plan]:
        from etude.make.generate.train import plan_memory

        found = []
        for plan in plans_for(self.plan, gpus, self.node):
            try:
                need = max(m.peak_bytes for m in plan_memory(self.model, plan))
            except EtudeError:
                continue
            if not self.memory_bytes or need <= self.memory_bytes:
                found.append(plan)
        return found

    def _tried(self, gpus: int) -> list[tuple[Config, Plan]]:
        return fastest(
            self._fitting(gpus), lambda plan: self.one(plan, self._name(plan), self.healthy.tokens, energy=False)
        )

    def _name(self, plan: Plan) -> str:
        return f"tp {plan.tp} pp {plan.pp} dp {plan.dp}"

    def tried(self, gpus: int) -> list[Config]:
        return [config for config, _ in self._tried(gpus)]

    def on(self, gpus: int) -> Config | None:
        """The fastest on this many devices."""
        found = self._tried(gpus)
        if not found:
            return None
        plan = found[0][1]
        config = self.one(plan, self._name(plan), self.healthy.tokens)
        return replace(config, moved_bytes=self._moved(plan, -(-(self.plan.gpus - gpus) // self.node)))

    def restaged(self, factor: float, node: int) -> Config | None:
        """Fewer layers for the stage of a slow node. A slow node slows all steps by its factor, as elsewhere, less what
        the new stages gain with it in a simulated step."""
        key = factor, coordinates(self.plan, node * self.node)["pp"]
        if key not in self.known:
            self.known[key] = self._restaged(*key, {node * self.node + k: factor for k in range(self.node)})
        return self.known[key]

    def _restaged(self, factor: float, stage: int, slow: dict[int, float]) -> Config | None:
        plans = stages_for(self.plan, self.model.layers, stage, factor)
        if not plans:
            return None
        try:
            usual = self.slow_step_ns(self.plan, slow)
        except EtudeError:
            return None
        tried = fastest(plans, lambda plan: replace(self.healthy, step_ns=self.slow_step_ns(plan, slow), plan=plan))
        if not tried:
            return None
        found, plan = tried[0]
        return replace(
            found,
            step_ns=round(self.healthy.step_ns * factor * found.step_ns / usual),
            rounds=None,
            absorbs=factor,
            name=f"layers {' '.join(map(str, plan.stages))}",
            moved_bytes=self._moved(plan, 0),
        )

    def _moved(self, plan: Plan, lost: int) -> float:
        if not self.model.layers:
            return 0.0
        weights = weights_of(self.model, self.plan, self.per_weight)
        return max(moved_bytes(self.plan, plan, self.model.layers, weights, self.node, lost))


def _config(found: Prediction, name: str, tokens: int = 0, *, energy: bool) -> Config:
    from etude.analyse.energy import energy as energy_of

    plan, joules = found.generated.plan, 0.0
    if energy and found.system.device.power_w:
        own = None if found.system.devices else found.system.device
        joules = energy_of(found.simulated, device=own, end_ns=found.time_ns).curve.energy_j
    return Config(
        gpus=plan.gpus,
        step_ns=found.step_time_ns,
        tokens=tokens or (found.generated.tokens or found.generated.samples) // plan.steps,
        energy_j=joules / plan.steps,
        name=name,
        rounds=_rounds(found),
    )


def _rounds(found: Prediction) -> StepRounds | None:
    """Ends of the compute of each micro-batch, of the slowest rank, and of what all have in common at the end."""
    plan = found.generated.plan
    if plan.steps > 1 or plan.zero > 1 or plan.dp_shard > 1 or plan.ep > 1:
        return None  # weights, gradients or tokens cross replicas throughout the step
    ends, alone = np.zeros(plan.micro_batches, np.int64), 0
    for part in found.simulated.parts():
        trace = part.trace
        mine = (trace.kind == Kind.COMP) & (trace.micro_batch >= 0) & (trace.micro_batch < len(ends))
        np.maximum.at(ends, trace.micro_batch[mine], part.end_ns[mine])
        common = (trace.kind == Kind.COLL) & (trace.micro_batch < 0)
        alone = max(alone, int(part.end_ns[common].max(initial=0)))
    ends.sort()
    if not ends[0]:
        return None
    each = (int(ends[-1]) - int(ends[0])) // max(len(ends) - 1, 1)
    return StepRounds(len(ends), int(ends[0]), each if len(ends) > 1 else int(ends[0]), alone or int(ends[-1]))


def _shrunk(plan: Plan, gpus: int, micro_batches: int) -> Plan:
    dp = gpus // (plan.tp * plan.cp * plan.pp)
    return plan.replace(gpus=gpus, global_batch=dp * plan.micro_batch * micro_batches)


def _dealt(plan: Plan, gpus: int) -> Plan:
    """The same batch on fewer replicas: the fullest has as many micro-batches as are left over for it."""
    dp = gpus // (plan.tp * plan.cp * plan.pp)
    return _shrunk(plan, gpus, -(-plan.micro_batches * plan.dp // dp))


def check_shape(costs: Costs, shape: str) -> None:
    """Raises UsageError for a recovery that no degraded state of the plan can run."""
    if shape in (SHRINK, REDISTRIBUTE) and costs.healthy.gpus < 2 * costs.replica_gpus:
        raise UsageError(
            f"--recover {shape}: the plan has one replica of {costs.replica_gpus:,} GPUs, so none is left without it",
            hint="--recover restart, or a plan with more data-parallel replicas",
        )
    if shape == REPLAN and costs.nodes > 1 and not costs.runs_on(costs.nodes - 1):
        raise UsageError(
            f"--recover {shape}: no plan runs on {costs.nodes - 1:,} of {costs.nodes:,} nodes with tensor-parallel "
            "groups and stages as planned, half or twice, or other stages that use all devices",
            hint="--recover restart",
        )
    if shape == REPLAN and costs.nodes == 1:
        raise UsageError(
            f"--recover {shape}: the plan has one node, so none is left without it", hint="--recover restart"
        )

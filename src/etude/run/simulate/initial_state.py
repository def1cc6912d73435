"""The state of a simulation before anything has happened."""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import I32, I64
from etude.kernels.heap import empty_heap
from etude.model.schema import UNKNOWN
from etude.run.simulate.agreement import agreements
from etude.run.simulate.capacities import resources_of
from etude.run.simulate.costs import action_factors, draw_of, jitter_classes, jittered, step_factors, with_noise
from etude.run.simulate.draws import member_draws
from etude.run.simulate.lower import Lowered
from etude.run.simulate.networks.meeting import Kinds
from etude.run.simulate.networks.sharing import make_sharing
from etude.run.simulate.networks.state import Table
from etude.run.simulate.operations import Operations
from etude.run.simulate.options import ACTION_JITTER, JITTER, STEP_JITTER, Policy
from etude.run.simulate.state import CLOCK, INSTANCE, LANE, NODE, EngineState, IssueRules


def initial_state(lowered: Lowered, ops: Operations, kinds: Kinds | None = None) -> EngineState:
    options, programs, total = lowered.options, lowered.programs, int(lowered.base[-1])
    program = programs.of[lowered.classes.first]
    lane_count = np.diff(programs.lane_start)[program]
    instances = np.zeros(len(program), INSTANCE)
    instances["node0"], instances["row0"] = lowered.base[:-1], programs.start[program]
    instances["lane0"] = np.cumsum(lane_count) - lane_count
    instances["program_lane0"] = programs.lane_start[program]
    agreed = agreements(lowered, program)
    for name in agreed._fields:
        instances[name] = getattr(agreed, name)
    ranks = lowered.job.ranks[lowered.classes.first].tolist()
    instances["start_ns"] = [options.starts.get(rank, 0) for rank in ranks]
    does_agree = bool((agreed.leader >= 0).any())
    lanes = np.zeros(int(lane_count.sum()), LANE)
    lanes["busy"], lanes["instance"] = -1, np.repeat(np.arange(len(program)), lane_count)
    overlap = options.overlap
    return EngineState(
        clock=np.zeros(1, CLOCK),
        rules=IssueRules(strict=options.policy == Policy.RECORDED, first_come=options.policy == Policy.READY),
        programs=programs.tables,
        instances=instances,
        nodes=_nodes(lowered, ops, program),
        lanes=lanes,
        ends=empty_heap(total + 1),
        ready=np.zeros(total, np.int64),
        taken=np.zeros(total if does_agree else 0, np.int32),
        touched=np.zeros(len(lanes) * (2 if does_agree else 1), np.int32),
        starting=np.zeros(total, np.int32),
        sharing=make_sharing(overlap.compute, overlap.communication, len(program), total, resources_of(lowered), kinds),
    )


def _nodes(lowered: Lowered, ops: Operations, program: I32) -> Table:
    programs, base = lowered.programs, lowered.base
    nodes = np.zeros(int(base[-1]), NODE)
    nodes["start_ns"] = nodes["end_ns"] = UNKNOWN
    nodes["op"] = nodes["comer_before"] = -1
    for i, p in enumerate(program.tolist()):
        here, there = nodes[base[i] : base[i + 1]], slice(programs.start[p], programs.start[p + 1])
        here["waits"], here["instance"] = programs.waits[there], i
        here["cost_ns"] = _perturbed(lowered, i, programs.cost_ns[there])
    nodes["op"][ops.node] = ops.of
    nodes["cost_ns"][ops.single_node] = ops.single_ns
    nodes["cost_ns"][ops.node] = _lags(lowered, ops)
    return nodes


def _lags(lowered: Lowered, ops: Operations) -> I64:
    """Time of members after their operation is over; for messages with their jitter."""
    spread = lowered.options.jitter.get("p2p", 0.0)
    if not spread:
        return ops.lag_ns
    of_message = np.where(ops.is_message[ops.of], spread, 0.0)
    return with_noise(ops.lag_ns, of_message, member_draws(lowered, ops))


def _perturbed(lowered: Lowered, instance: int, cost_ns: I64) -> I64:
    """Costs of one rank, with its slowdown and its own jitter."""
    options, at = lowered.options, int(lowered.classes.first[instance])
    rank = int(lowered.job.ranks[at])
    factor = options.slow_ranks.get(rank, 1.0)
    jitter = np.array([options.jitter.get(name, 0.0) for name in JITTER] + [0.0])
    by_step, by_action = options.jitter.get(STEP_JITTER, 0.0), options.jitter.get(ACTION_JITTER, 0.0)
    if factor == 1.0 and not jitter.any() and not by_step and not by_action:
        return cost_ns
    trace = lowered.job.traces[int(lowered.job.trace_of[at])]
    klass = jitter_classes(trace)
    own = klass >= 0
    factors = step_factors(trace, by_step, (options.seed, rank, 1 << 41)) * factor if by_step else factor
    if by_action:
        factors = factors * action_factors(trace, by_action, (options.seed, rank, 1 << 42))
    slowed = np.where(own, np.rint(np.where(own, cost_ns, 0) * factors).astype(np.int64), cost_ns)
    if not jitter.any():
        return slowed
    return jittered(slowed, np.where(own, jitter[klass], 0.0), (options.seed, rank), draw_of(trace))

"""simulate_fleet(costs, ...): days of a training job under faults, with checkpoints and a recovery policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.world.clock import Event, run_alone
from etude.world.fleet.account import Account
from etude.world.fleet.checkpoint import SaveTier
from etude.world.fleet.copies import Copies
from etude.world.fleet.costs import RESTART, SHAPES, Costs, check_shape
from etude.world.fleet.events import FleetEvents, draw, event_table, is_events, read_events
from etude.world.fleet.faults import Faults, open_faults
from etude.world.fleet.intervals import Searched, best_interval
from etude.world.fleet.loop import FAULT, TrainingJob, TrainingRun
from etude.world.fleet.recovery import Policy, Recovery, policy_of
from etude.world.fleet.results import job_table, summary
from etude.world.fleet.retries import Chains, chains, held_down, parse_retries, stops


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Result of one job over days."""

    ran: TrainingRun
    costs: Costs
    events: FleetEvents
    searched: Searched | None
    tiers: tuple[SaveTier, ...]
    chains: Chains | None = None

    def __repr__(self) -> str:
        found = self.record()
        days, useful = found["duration_s"] / 86_400, found["useful_fraction"]
        return f"Fleet({days:.4g} days, {found['interruptions']:,} interruptions, {useful:.1%} of the time useful)"

    def record(self, *, name: str = "", price: float = 0.0) -> dict[str, Any]:
        found = summary(self.ran, self.costs, name=name, price=price)
        if self.searched is not None:
            found["interval"] = self.searched.record()
        if self.chains is not None:
            found["retries"] = self.chains.record(stops(self.events) & self.ran.hit)
        return found

    def tables(self, record: dict[str, Any]) -> dict[str, pa.Table]:
        return {
            "events": event_table(self.events, self.ran.hit),
            "states": self.ran.account.table(),
            "jobs": job_table(record),
        }


def spares_of(recover: str, recovery: Recovery) -> int | None:
    """Number of spare nodes. By default policies that replace lost nodes never run out of them (None), and others have
    none."""
    if recovery.spare_nodes is not None:
        return recovery.spare_nodes
    return None if recover in ("restart", "spare") else 0


def simulate_fleet(
    costs: Costs, *, days: float, faults: str = "none", tiers: tuple[SaveTier, ...] = (), recover: str = "restart",
    recovery: Recovery | None = None, seed: int = 0, excluded: tuple[int, ...] = (), retry: str = "",
) -> Fleet:  # fmt: skip
    """Simulates days of a training job. `faults`: a named mix, kinds in one line, a YAML file, or a file of events;
    `excluded`: nodes out of use; `retry`: attempts until a restart succeeds. Raises UsageError."""
    recovery = recovery or Recovery()
    stages = parse_retries(retry)
    if stages and recover != RESTART:
        raise UsageError(
            f"--retry applies only to restarts, but the job recovers by `{recover}`", hint="--recover restart"
        )
    policy = policy_of(recover)
    if recover in SHAPES:
        check_shape(costs, recover)
    spares, horizon_ns = spares_of(recover, recovery), round(days * 86_400e9)
    nodes = costs.nodes + (spares or 0)
    given = is_events(faults)
    mix = Faults(name="events") if given else open_faults(faults)

    def events_of(number: int) -> FleetEvents:
        if given:
            return read_events(faults, nodes=nodes)
        return draw(mix, nodes=nodes, gpus_per_node=costs.gpus_per_node, horizon_ns=horizon_ns, seed=number)

    def tried(events: FleetEvents, number: int) -> tuple[FleetEvents, Chains | None]:
        if not stages:
            return events, None
        found = chains(stages, len(events), most_ns=horizon_ns, seed=number)
        return held_down(events, found, detect_ns=int(recovery.detect_ns)), found

    def one(chosen: tuple[SaveTier, ...], events: FleetEvents, how: Policy = policy) -> TrainingRun:
        return run_job(
            costs, events, tiers=chosen, policy=how, recovery=recovery, spares=spares, horizon_ns=horizon_ns,
            excluded=excluded,
        )  # fmt: skip

    searched = None
    if any(not tier.every_ns and not tier.steps for tier in tiers):
        mtbf_ns = mix.mtbf_ns(nodes * costs.gpus_per_node, nodes)
        known: dict[int, FleetEvents] = {}

        def useful(chosen: tuple[SaveTier, ...], number: int) -> float:
            # other seeds than the run's own: an interval must not be chosen by the faults that it will meet
            events = known.setdefault(number, tried(events_of(seed + 1 + number), seed + 1 + number)[0])
            return one(chosen, events).account.useful_ns / horizon_ns

        tiers, searched = best_interval(costs, tiers, mtbf_ns, useful)
    events = events_of(seed)
    held, found = tried(events, seed)
    return Fleet(one(tiers, held), costs, events, searched, tiers, found)


def run_job(
    costs: Costs, events: FleetEvents, *, tiers: tuple[SaveTier, ...] = (), policy: Policy, recovery: Recovery,
    spares: int | None, horizon_ns: int, excluded: tuple[int, ...] = (),
) -> TrainingRun:  # fmt: skip
    """Runs a job to the horizon. `spares=None`: a lost node is replaced at once, and nodes never run out. `excluded`
    nodes are never used, and their faults do not affect the job. Raises UsageError for impossible input."""
    if horizon_ns <= 0:
        raise UsageError("no time is given", hint="--days 54")
    if costs.healthy.step_ns <= 0:
        raise UsageError("a step takes no time")
    nodes = costs.nodes + (spares or 0)
    if len(events) and int((events.node + events.nodes).max()) > nodes:
        raise UsageError(f"an event hits a node beyond the {nodes}")
    account = Account(costs.healthy, costs.idle_w)
    copies = Copies(tiers, costs.healthy.step_ns)
    up, used = np.ones(nodes, bool), np.zeros(nodes, bool)
    up[_left_out(excluded, nodes, costs, spares)] = False
    used[np.flatnonzero(up)[: costs.nodes]] = True
    job = TrainingJob(
        "job", costs, events, policy, recovery, spares, account, copies, costs.healthy,
        up=up, used=used, down_until=np.zeros(nodes, np.int64), hit=np.zeros(len(events), bool),
    )  # fmt: skip
    faults = (Event(at, FAULT, job.name, row) for row, at in enumerate(events.time_ns.tolist()))
    run_alone(job, horizon_ns, outside=faults)
    job.close()
    return TrainingRun(
        account, copies, job.hit, job.interruptions, job.transitions, job.node_up_ns, nodes, horizon_ns,
        job.without_copy,
    )  # fmt: skip


def _left_out(excluded: tuple[int, ...], nodes: int, costs: Costs, spares: int | None) -> list[int]:
    beyond = [node for node in excluded if not 0 <= node < nodes]
    if beyond:
        raise UsageError(f"node {beyond[0]} is excluded, but there are only {nodes} nodes", hint="nodes count from 0")
    found = sorted(set(excluded))
    if nodes - len(found) < costs.nodes:
        raise UsageError(
            f"{len(found)} nodes are excluded, and there are {spares or 0} spares: {nodes - len(found)} are left for "
            "a plan of "
            f"{costs.nodes}",
            hint=f"--spares {len(found)}",
        )
    return found

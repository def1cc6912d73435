"""simulate_fleet(costs, ...): days of a training job under faults, with checkpoints and a recovery policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from etude.base.errors import UsageError
from etude.world.fleet.checkpoint import SaveTier
from etude.world.fleet.costs import RESTART, SHAPES, Costs, check_shape
from etude.world.fleet.events import FleetEvents, draw, event_table, is_events, read_events
from etude.world.fleet.faults import Faults, open_faults
from etude.world.fleet.intervals import Searched, best_interval
from etude.world.fleet.loop import TrainingRun, run_job
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

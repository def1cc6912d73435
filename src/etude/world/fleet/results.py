"""Results of a fleet run: the record of `etude fleet --json`, and its tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from etude.world.fleet.account import LOST
from etude.world.fleet.costs import Costs
from etude.world.fleet.loop import TrainingRun
from etude.world.fleet.ranges import day_ranges


def summary(ran: TrainingRun, costs: Costs, *, name: str = "", price: float = 0.0) -> dict[str, Any]:
    """The record. Times are those of the job: `useful_s` and the parts of `lost_s` add up to `duration_s`."""
    account, seconds = ran.account, ran.horizon_ns / 1e9
    lost = {part: account.lost_ns[part] / 1e9 for part in LOST}
    useful_s, interruptions = account.useful_ns / 1e9, ran.interruptions
    down_s = lost["detect"] + lost["restart"] + lost["idle"]
    hourly = price or costs.price
    known_energy = bool(costs.healthy.energy_j)
    held = costs.healthy.gpus + (ran.nodes - costs.nodes) * costs.gpus_per_node
    record: dict[str, Any] = {
        "duration_s": seconds,
        "useful_s": useful_s,
        "useful_fraction": useful_s / seconds,
        "goodput_tokens_per_s": account.tokens / seconds,
        "interruptions": interruptions,
        "without_copy": ran.without_copy,
        "lost_s": lost,
        "steps": account.step,
        "tokens": account.tokens,
        "lost_tokens": account.computed - account.tokens,
        "planned_tokens_per_s": costs.healthy.tokens / (costs.healthy.step_ns / 1e9),
        "step_s": costs.healthy.step_ns / 1e9,
        "mttf_s": (seconds - down_s) / interruptions if interruptions else None,
        "mttr_s": down_s / interruptions if interruptions else None,
        "node_availability": ran.node_up_ns / (ran.nodes * ran.horizon_ns),
        "device_s": {
            "useful": useful_s * costs.healthy.gpus,
            "redone": lost["redo"] * costs.healthy.gpus,
            "lost": (sum(lost.values()) - lost["redo"] - lost["idle"]) * costs.healthy.gpus,
            "idle": lost["idle"] * costs.healthy.gpus,
        },
        "state_bytes": costs.state_bytes,
        "saves": {tier.name: n for tier, n in zip(ran.copies.tiers, ran.copies.writes, strict=True)},
        "saved_bytes": {
            tier.name: times * costs.state_bytes
            for tier, times in zip(ran.copies.tiers, ran.copies.written, strict=True)
        },
        "tiers": [
            {
                "name": tier.name,
                "every_s": steps * costs.healthy.step_ns / 1e9,
                "save_s": tier.write_ns(costs.state_bytes, costs.nodes) / 1e9,
                "stall_s": tier.stall_ns(costs.state_bytes, costs.nodes) / 1e9,
                "load_s": tier.load_ns(costs.node_bytes, costs.nodes) / 1e9,
                "node_bytes_per_s": tier.node_rate(costs.nodes),
            }
            for tier, steps in zip(ran.copies.tiers, ran.copies.steps, strict=True)
        ],
        "transitions": ran.transitions,
        "configs": [
            {
                "name": config.name,
                "gpus": config.gpus,
                "step_s": config.step_ns / 1e9,
                "tokens": config.tokens,
                "micro_batches": config.rounds.most if config.rounds is not None else None,
            }
            for config in account.configs.values()
        ],
        "energy_j": account.energy_j if known_energy else None,
        "cost": hourly * held * seconds / 3600 if hourly else None,
    }
    job = {key: record[key] for key in ("useful_fraction", "goodput_tokens_per_s", "steps", "tokens", "interruptions")}
    return record | day_ranges(record, costs.step) | {"jobs": [{"name": name, "gpus": costs.healthy.gpus} | job]}


def job_table(record: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(record["jobs"])

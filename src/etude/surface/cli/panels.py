"""Which panel of `--help` an option is shown in.

An option that names its panel keeps it. Any other is looked up by name: first in the table of its command, then in the
table of all commands; the rest are the command's own, in "Options". A command of up to 8 options has no panels.
"""

from collections.abc import Callable
from typing import Any

OWN = "Options"

EVERYWHERE: dict[str, str] = {
    "Input": "yaml groups workers max-bytes ray timing timing-a timing-b hf plan sections mix rows",
    "Machine": "system system-a system-b ran-on memory stack ops ops-backend memory-check device host server-system",
    "Simulation": "network routing compute kernel units collective collective-times policy eager overlap share "
    "contention grain progress jitter slow-rank slow-link failed-link link-change seed seeds",
    "Output": "help out to dialect name force json csv md no-write top title memory-out",
}

PLAN: dict[str, str] = {
    "Plan: parallelism": "gpus tp cp pp ep etp sp cp-kind cp-map block cp-shares cp-heads domain order schedule stages",
    "Plan: batch and lengths": "micro-batch global-batch steps seq lengths batching length-seed budget power "
    "memory-budget window samples join",
    "Plan: sharding and overlap": "zero directives dp-shard reshard prefetch bucket overlap-grads overlap-params "
    "tp-chunks",
    "Plan: what is computed": "recompute unfused train attention clip precision scaling grad-dtype loss-dtype",
    "Plan: optimizer": "optimizer keep-grads state-dtype master",
    "Plan: experts": "moe-skew moe-loads moe-seed dispatch ep-node moe-nodes capacity",
    "Plan: host and storage": "data-loading checkpoint host-bandwidth host graphs step-overhead",
}
"""Panels of the options of a plan, which are many."""

ANALYSIS = "Analysis"
COMMANDS: dict[str, dict[str, str]] = {
    "breakdown": {ANALYSIS: "overlap types steps variation as"},
    "idle": {ANALYSIS: "launches queues streams each calls as"},
    "kernels": {ANALYSIS: "operators graphs patterns counters by as"},
    "collectives": {ANALYSIS: "each by-group"},
    "critical-path": {ANALYSIS: "each buys"},
    "diagnose": {ANALYSIS: "least ranks-per-node top"},
    "stragglers": {ANALYSIS: "least ranks-per-node clocks"},
    "trend": {ANALYSIS: "value period forecast work signals checkpoints least detect"},
    "compare": {ANALYSIS: "operators why", "Gate": "fail-if"},
    "metrics": {ANALYSIS: "traffic"},
    "roofline": {ANALYSIS: "utilisation model-flops"},
    "memory": {ANALYSIS: "copies each owners growth as"},
    "report": {ANALYSIS: "edit"},
    "link": {"Input": "any-window", "Output": "as-official"},
}


def panels(words: str) -> Callable[[Any], str]:
    """Option -> panel, for the command of these words: `ops graph`."""
    own = _by_name(COMMANDS.get(words, {}))
    everywhere = _by_name(EVERYWHERE)
    plan = _by_name(PLAN)

    def panel(option: Any) -> str:
        names = [name.removeprefix("--") for name in option.opts if name.startswith("--")]
        if option.rich_help_panel == "The plan":
            return plan.get(names[0], "Plan: other")
        return option.rich_help_panel or next((t[n] for t in (own, everywhere) for n in names if n in t), OWN)

    return panel


def _by_name(table: dict[str, str]) -> dict[str, str]:
    return {name: panel for panel, names in table.items() for name in names.split()}

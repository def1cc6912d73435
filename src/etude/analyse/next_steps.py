"""What to do about a finding, and the command that shows more of it: one line for each kind and level."""

from __future__ import annotations

from typing import Final

from etude.analyse.findings import Verdict

__all__ = ["command", "next_step"]

_STEPS: Final = {
    (
        "slow_rank",
        "",
    ): "Compare clock, temperature and power of {its} device with a peer's; if they differ, replace it.",
    ("slow_rank", "power"): "Check the clock and the power limit of {its} device (`nvidia-smi -q -d PERFORMANCE`).",
    ("slow_node", ""): "Check what the ranks of the node share: cooling, power, other jobs; if it stays, replace it.",
    ("slow_node", "power"): "Check the power limit and the cooling of the node (`nvidia-smi -q -d PERFORMANCE`).",
    ("throttled", ""): "Check clocks and temperatures of these devices, and what they share: a rack, its power, a job.",
    ("throttled", "power"): "Check the power limits of these devices (`nvidia-smi -q -d PERFORMANCE`).",
    ("slow_link", ""): "Measure this link alone (nccl-tests), then look at errors of its port and cable.",
    ("slow_link", "switch"): "Look at errors and congestion of the switch that these nodes share.",
    ("late_host", ""): "Look at what else runs on {its} host, and at clock and core binding of {its} process.",
    ("loader", ""): "Give the loader of {the} more workers or prefetching, and check the storage it reads.",
    ("loader", "job"): "Give the loader more workers or prefetching: no device has its batch in time.",
    ("intermittent", ""): "Look for what else uses {its} device at these times, and at its log of errors.",
    ("intermittent", "host"): "Look for what interrupts {its} host: other processes, garbage collection, swapping.",
    ("periodic", ""): "Look for what runs every {every} steps: checkpoints, logs, evaluation, garbage collection.",
    ("drift", ""): "Compare early with late steps: temperature, clock, fragmentation of memory, length of inputs.",
    ("common_change", ""): "Look for what changed {then}: inputs, settings, a limit of power.",
    ("clock_drift", ""): "Synchronise the clock of {its} host (chrony, PTP), and record again.",
    ("leak", ""): "Look at what is alive after each step (`etude memory RUN --owners`).",
    ("desync", ""): "Compare what the program of {the} does before this call with what another rank does.",
    ("hang", ""): "Look at the stack and the log of {the} at this call.",
    ("host_bound", ""): "Launch less: CUDA graphs, `torch.compile`, fused optimizers, larger batches.",
    ("exposed_communication", ""): "Overlap it or send less: larger buckets, prefetching, another parallel plan.",
    ("uneven_work", ""): "Compare what these ranks have to do: experts, tables, inputs; if it is the same, the device.",
}
_COMMANDS: Final = {
    **dict.fromkeys(("slow_rank", "slow_node", "throttled", "slow_link", "desync", "hang"), "etude stragglers RUN"),
    **dict.fromkeys(("intermittent", "periodic", "drift", "common_change"), "etude trend RUN"),
    **dict.fromkeys(("late_host", "loader", "host_bound"), "etude idle RUN"),
    "clock_drift": "etude stragglers RUN --clocks",
    "leak": "etude memory RUN --each",
    "exposed_communication": "etude collectives RUN",
    "uneven_work": "etude breakdown RUN",
}


def next_step(one: Verdict) -> str:
    """What to do next about it."""
    text = _STEPS.get((one.kind, one.level)) or _STEPS[one.kind, ""]
    several = len(one.ranks) > 1
    return text.format(
        its="their" if several else "its",
        the="these ranks" if several else f"rank {one.ranks[0]}" if one.ranks else "the job",
        every=one.every,
        then=f"at step {one.steps[0]}" if one.steps else "in this run",
    )


def command(one: Verdict) -> str:
    """The command that shows more of it."""
    return _COMMANDS[one.kind]

"""A finding: what is wrong in a run, as a value. Its words are made from it and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.base.units import format_bytes, format_time
from etude.model.job import ranges

__all__ = ["FAULTS", "KINDS", "Verdict", "finding_table"]

FAULTS: Final = (
    "slow_rank", "slow_node", "slow_link", "late_host", "loader", "intermittent", "periodic", "throttled", "drift",
    "common_change", "clock_drift", "leak", "desync", "hang",
)  # fmt: skip
HEALTHY: Final = ("host_bound", "exposed_communication", "uneven_work")
"""What a run without a fault can lose time to."""
KINDS: Final = (*FAULTS, *HEALTHY)
PEERS: Final = "their peers in the same steps"
NAMED: Final = 6
"""Most ranks that a sentence names; `ranks` has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One cause, with what it costs."""

    kind: str
    """One of `KINDS`."""
    level: str
    """What has it: kernel, power (of a device, or its clock), host, loader, link, switch, node, clock (of the host),
    memory, program, job."""
    ranks: tuple[int, ...]
    """The ranks that have the cause, not those that wait for them; all, where the job as a whole has it."""
    steps: tuple[int, int] | None
    """First and last step in which it shows; None: the whole run, or no steps are known."""
    cost_ns: int
    """How much shorter the run would be without it."""
    run_ns: int
    """Length of the run."""
    confidence: float
    """How often such findings are true."""
    height: float = 0.0
    """How much longer the work takes while it shows, as a fraction."""
    score: float = 0.0
    """Standard errors by which it differs."""
    every: int = 1
    """Of a period: steps from one occurrence to the next."""
    figures: dict[str, float] = field(default_factory=dict)
    """What else was measured."""
    pattern: str = "chronic"
    """chronic: the whole run; acute: since a step or for a while; periodic; intermittent."""
    detail: str = ""
    """What the recording itself says: the call in which a run hangs."""

    @property
    def share(self) -> float:
        """Its cost over the length of the run."""
        return self.cost_ns / self.run_ns if self.run_ns else 0.0

    @property
    def words(self) -> str:
        text = _SENTENCES[self.kind](self)
        return f"{text[:1].upper()}{text[1:]}{_buys(self)}."

    def record(self) -> dict[str, Any]:
        """As `etude diagnose --json` prints it."""
        return {
            "kind": self.kind,
            "level": self.level,
            "ranks": list(self.ranks),
            "steps": list(self.steps) if self.steps else None,
            "share": round(self.share, 6),
            "cost_ns": self.cost_ns,
            "confidence": round(self.confidence, 3),
            "words": self.words,
        }


def finding_table(found: Sequence[Verdict]) -> pa.Table:
    """One row a finding: kind, level, ranks, first_step, last_step, share, cost_ns, confidence, words."""
    return pa.table(
        {
            "kind": pa.array([one.kind for one in found], pa.string()),
            "level": pa.array([one.level for one in found], pa.string()),
            "ranks": pa.array([list(one.ranks) for one in found], pa.list_(pa.int32())),
            "first_step": pa.array([one.steps[0] if one.steps else None for one in found], pa.int64()),
            "last_step": pa.array([one.steps[1] if one.steps else None for one in found], pa.int64()),
            "share": pa.array([one.share for one in found], pa.float64()),
            "cost_ns": pa.array([one.cost_ns for one in found], pa.int64()),
            "confidence": pa.array([one.confidence for one in found], pa.float64()),
            "words": pa.array([one.words for one in found], pa.string()),
        }
    )


def _who(one: Verdict) -> str:
    if len(one.ranks) == 1:
        return f"rank {one.ranks[0]}"
    text = ranges(np.array(one.ranks))
    return f"{len(one.ranks)} ranks ({text})" if len(one.ranks) > NAMED else f"ranks {text}"


def _longer(height: float) -> str:
    return f"{100 * height:.1f}% longer"


def _of_step(one: Verdict) -> str:
    return f"{100 * one.height:.1f}% of a step"


def _times(one: Verdict) -> str:
    return f"{one.figures['steps']:.0f} times"


def _when(one: Verdict) -> str:
    if one.steps is None:
        return "during the whole run"
    return f"in steps {one.steps[0]} to {one.steps[1]}" if one.steps[0] != one.steps[1] else f"in step {one.steps[0]}"


def _buys(one: Verdict) -> str:
    if one.cost_ns <= 0:
        return ""
    how = {"host_bound": "with a host twice as fast", "uneven_work": "with even work"}.get(one.kind, "without it")
    return f"; {how} the run is {format_time(one.cost_ns)} ({100 * one.share:.1f}%) shorter"


def _slow(one: Verdict) -> str:
    return f"{_kernels(one)} of {_who(one)} take {_longer(one.height)} than those of {PEERS}, {_when(one)}"


def _kernels(one: Verdict) -> str:
    """Where some kinds are not slower, as where the clock of a device is limited: those that are most of the time."""
    return "the longer kernels, not all," if one.level == "power" else "kernels"


def _node(one: Verdict) -> str:
    nodes = round(one.figures.get("nodes", 1))
    where = "one node" if nodes == 1 else f"{nodes} nodes"
    return (
        f"{_kernels(one)} of all ranks of {where} ({_who(one)}) take {_longer(one.height)} than those of {PEERS}, "
        f"{_when(one)}"
    )


def _link(one: Verdict) -> str:
    at = f"the link of {_who(one)}" if len(one.ranks) == 1 else f"links between {_who(one)}"
    if one.level == "switch":
        at = f"what the nodes of {_who(one)} share, a switch or its links,"
    often = f"every {one.every} steps, " if one.every > 1 else ""
    return f"transfers over {at} take {_longer(one.height)} than comparable ones, {often}{_when(one)}"


def _late(one: Verdict) -> str:
    many = len(one.ranks) > 1
    if one.figures.get("hidden"):
        return (
            f"host calls of {_who(one)} take {_longer(one.height)} than the same ones of other ranks, {_when(one)}; "
            "the device does not wait for them"
        )
    whose, have = ("the devices of", "have") if many else ("the device of", "has")
    return (
        f"{whose} {_who(one)} {have} nothing to do for {_of_step(one)} more than those of {PEERS}, because the host is "
        f"late, {_when(one)}"
    )


def _loader(one: Verdict) -> str:
    whose = "all ranks" if one.level == "job" else _who(one)
    return f"the devices of {whose} wait for the next batch for {100 * one.height:.1f}% of a step, {_when(one)}"


def _intermittent(one: Verdict) -> str:
    if "far" in one.figures:
        return (
            f"{100 * one.figures['far']:.1f}% of the kernels of {_who(one)} take far longer than the same ones usually "
            f"do, and {100 * one.figures['usual']:.1f}% of its peers' do: {100 * one.height:.1f}% of its work"
        )
    if one.level == "host":
        return f"the device of {_who(one)} has nothing to do for {_of_step(one)} in single steps, {_times(one)}"
    return f"single steps of {_who(one)} take {_longer(one.height)} than those of {PEERS}, {_times(one)}"


def _periodic(one: Verdict) -> str:
    who = "all ranks" if one.level == "job" else _who(one)
    since = f"than in the others, from step {one.steps[0] if one.steps else 0} on"
    if one.figures.get("idle"):
        return f"every {one.every} steps the device of {who} has nothing to do for {_of_step(one)} more {since}"
    return f"every {one.every} steps the work of {who} takes {_longer(one.height)} {since}"


def _throttled(one: Verdict) -> str:
    return (
        f"{_kernels(one)} of {_who(one)} take {_longer(one.height)} than those of {PEERS}, all together, {_when(one)}"
    )


def _drift(one: Verdict) -> str:
    who = "all ranks" if one.level == "job" else _who(one)
    return f"the work of {who} takes longer and longer: {100 * one.height:.1f}% more at the end than at the beginning"


def _common(one: Verdict) -> str:
    return f"the same work takes {_longer(one.height)} on all ranks, {_when(one)}"


def _clock(one: Verdict) -> str:
    return (
        f"the clock of {_who(one)} runs {one.figures['ppm']:+.1f} ppm against those of the other ranks: its times are "
        f"{format_time(round(abs(one.figures['off_ns'])))} off at the end"
    )


def _leak(one: Verdict) -> str:
    each = format_bytes(round(one.figures["bytes_per_step"]))
    about = format_bytes(round(one.figures["error_bytes"]))
    return f"memory of {_who(one)} grows by {each} in each step (within {about}), {_when(one)}"


def _stated(one: Verdict) -> str:
    return one.detail


def _hang(one: Verdict) -> str:
    return f"{_who(one)}: {one.detail}" if one.level != "job" else one.detail


def _host_bound(one: Verdict) -> str:
    return f"devices have nothing to do for {100 * one.height:.0f}% of the time"


def _exposed(one: Verdict) -> str:
    return f"{100 * one.height:.0f}% of the devices' time is communication that no work hides"


def _uneven(one: Verdict) -> str:
    rank = round(one.figures["rank"])
    return f"work is uneven: in all, `{one.detail}` takes {_longer(one.height)} on rank {rank} than on its peers"


_SENTENCES: Final = {
    "slow_rank": _slow,
    "slow_node": _node,
    "slow_link": _link,
    "late_host": _late,
    "loader": _loader,
    "intermittent": _intermittent,
    "periodic": _periodic,
    "throttled": _throttled,
    "drift": _drift,
    "common_change": _common,
    "clock_drift": _clock,
    "leak": _leak,
    "desync": _stated,
    "hang": _hang,
    "host_bound": _host_bound,
    "exposed_communication": _exposed,
    "uneven_work": _uneven,
}

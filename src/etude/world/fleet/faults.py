"""Faults: what fails, how often, what fails with it, and for how long.

    open_faults("llama3")                                            # a published mix
    open_faults("my_faults.yaml")                                    # kinds of your own
    open_faults("node:mtbf=2000h,repair=4h;slow:effect=slow,mtbf=300d,factor=1.5,duration=30min")
    open_faults("kill:at=50s,every=50s,times=32")                    # at fixed times

A kind strikes one node, a group of neighbours, or only the processes. Its rate is that of one unit: a GPU, a node, a
group, or the whole job. A node that is down does not fail: `mtbf` is the mean time in the job until its next fault, and
what is drawn for the time in which it is down, or being replaced, has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import figure, parse, read, read_mapping, text, usage_errors
from etude.base.grammar import Term, terms

HOUR_NS: Final = 3_600_000_000_000


class Scope(StrEnum):
    """What a fault takes down."""

    NONE = ""
    PROCESS = "process"
    """Only the processes: every node can restart."""
    GPU = "gpu"
    """A GPU, and its node with it."""
    NODE = "node"
    RACK = "rack"
    SWITCH = "switch"
    """Neighbouring nodes."""
    ALL = "all"


class Effect(StrEnum):
    NONE = ""
    STOP = "stop"
    """Fail-stop: the affected part does no work until it is repaired."""
    SLOW = "slow"
    """Fail-slow: every step takes `factor` times as long, for `duration`."""
    PREEMPT = "preempt"
    """Taken away for `duration`, with `notice` before it."""
    STORAGE = "storage"
    """The remote tier cannot be written or read for `duration`."""


class Per(StrEnum):
    """Unit of the rate `mtbf`."""

    NONE = ""
    GPU = "gpu"
    NODE = "node"
    GROUP = "group"
    JOB = "job"


NODES: Final = {Scope.PROCESS: 0, Scope.GPU: 1, Scope.NODE: 1, Scope.RACK: 4, Scope.SWITCH: 32}
"""Default number of affected nodes."""
USUAL_PER: Final = {Scope.GPU: Per.GPU, Scope.NODE: Per.NODE, Scope.RACK: Per.GROUP, Scope.SWITCH: Per.GROUP}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One kind of fault."""

    name: str = figure("text", "name")
    scope: Scope = figure("choice", "what fails: process, gpu, node, rack, switch, all", Scope.NODE)
    effect: Effect = figure("choice", "stop, slow, preempt, storage", Effect.STOP)
    mtbf_ns: float = figure("time", "mean time in use until the next fault of one unit", 0.0)
    per: Per = figure("choice", "the unit: gpu, node, group, job; default: as the scope", Per.NONE)
    seen: int = figure("count", "number of faults in the mix's `observed`, instead of mtbf", 0)
    at_ns: float = figure("time", "time of the first fault, if faults occur at fixed times", 0.0)
    every_ns: float = figure("time", "time between these faults", 0.0)
    times: int = figure("count", "number of these faults", 1)
    nodes: int = figure("count", "neighbouring nodes that go down; default: 1, a rack 4, a switch 32", 0)
    detect_ns: float | None = figure("time", "time until it is detected; default: --detect", None, zero=True)
    repair_ns: float = figure("time", "mean time until the node is back", 4.0 * HOUR_NS, zero=True)
    repair_spread: str = figure("text", "distribution of the repair time: fixed, or exponential", "fixed")
    factor: float = figure("number", "slowdown of a step", 1.0)
    duration_ns: float = figure("time", "duration of slow, preempt, storage", 0.0)
    notice_ns: float = figure("time", "notice before a preemption", 0.0)
    skew: float = figure("number", "hazard of the k-th worst node ~ k^-skew; 0: all equal", 0.0)

    def __post_init__(self) -> None:
        if not self.scope or not self.effect:
            raise ClusterError(f"fault `{self.name}`: scope or effect is missing")
        if (self.mtbf_ns > 0) + (self.seen > 0) + (self.every_ns > 0 or self.at_ns > 0) != 1:
            problem = f"fault `{self.name}`: no frequency is given: one of mtbf, seen, and at or every is needed"
            raise ClusterError(problem, hint="mtbf=2000h, or at=50s")
        if self.effect != Effect.STOP and not self.duration_ns:
            raise ClusterError(f"fault `{self.name}`: `{self.effect}` needs a duration", hint="duration=30min")
        if self.effect == Effect.SLOW and self.factor <= 1:
            raise ClusterError(f"fault `{self.name}`: a factor of {self.factor:g} is not slower", hint="factor=1.5")
        if self.repair_spread not in ("fixed", "exponential"):
            raise ClusterError(f"fault `{self.name}`: repair_spread `{self.repair_spread}`", hint="fixed, exponential")

    @property
    def unit(self) -> Per:
        return self.per or USUAL_PER.get(self.scope, Per.JOB)

    def nodes_of(self, all_nodes: int) -> int:
        """Nodes that one such fault strikes."""
        return min(self.nodes or NODES.get(self.scope, all_nodes), all_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The system on which the counts of a mix were observed."""

    gpus: int = figure("count", "GPUs")
    time_ns: float = figure("time", "how long")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Independent kinds of faults."""

    name: str = figure("text", "name of the mix", "faults")
    doc: str = text("description")
    source: Mapping[str, str] = figure("texts", "source of the values", {})
    observed: Observed | None = figure("one", "the system and time that `seen` was counted on", None, of=Observed)
    kinds: tuple[FaultKind, ...] = figure("list", "kinds of faults", (), of=FaultKind)

    def __post_init__(self) -> None:
        if self.observed is None and any(kind.seen for kind in self.kinds):
            raise ClusterError("`seen` needs the observed GPUs", hint="observed: {gpus: 16384, time: 54d}")

    def worked_out(self) -> Faults:
        """The same with rates per GPU instead of counts."""
        if self.observed is None:
            return self
        hours = self.observed.gpus * self.observed.time_ns
        kinds = [replace(k, seen=0, per=Per.GPU, mtbf_ns=hours / k.seen) if k.seen else k for k in self.kinds]
        return replace(self, kinds=tuple(kinds))

    def mtbf_ns(self, gpus: int, nodes: int) -> float:
        """Mean time between faults that stop the job, over all kinds with a rate; infinite if there is none."""
        rate = sum(
            units_of(kind, gpus, nodes) / kind.mtbf_ns
            for kind in self.kinds
            if kind.mtbf_ns and kind.effect in (Effect.STOP, Effect.PREEMPT)
        )
        return 1 / rate if rate else math.inf


def units_of(kind: FaultKind, gpus: int, nodes: int) -> float:
    """Number of units of a kind's rate."""
    group = max(kind.nodes_of(nodes), 1)
    return {Per.GPU: gpus, Per.NODE: nodes, Per.GROUP: max(nodes // group, 1)}.get(kind.unit, 1)


def known_mixes() -> list[str]:
    return sorted(p.name.removesuffix(".yaml") for p in (files("etude.world.fleet") / "mixes").iterdir())


def open_faults(text: str) -> Faults:
    """A named mix, a YAML file, or kinds in one line."""
    if text in ("", "none"):
        return Faults(name="none")
    if text in known_mixes():
        given: Any = parse((files("etude.world.fleet") / "mixes" / f"{text}.yaml").read_text("utf-8"), text)
        return read(Faults, given, text).worked_out()
    with usage_errors():
        if text.endswith((".yaml", ".yml")) and Path(text).is_file():
            return read(Faults, {"name": Path(text).stem} | read_mapping(text), text).worked_out()
        if ":" not in text:
            known = ", ".join(known_mixes())
            raise UsageError(
                f"--faults: there is no mix or file `{text}`", hint=f"known: {known}; node:mtbf=2000h; FILE"
            )
        return Faults(name="given", kinds=tuple(map(_kind, terms(text, "--faults", "node:mtbf=2000h,repair=4h"))))


def _kind(term: Term) -> FaultKind:
    """`node:mtbf=2000h,repair=4h`; a name that is a scope or an effect says that too, and a link is slow."""
    name = term.name.text
    given: dict[str, Any] = {"name": name}
    if name in set(Scope):
        given["scope"] = name
    elif name in set(Effect):
        given["effect"] = name
        given |= {"scope": "process"} if name == Effect.STORAGE else {}
    elif name == "link":
        given["effect"] = Effect.SLOW.value
    return term.read(FaultKind, given)

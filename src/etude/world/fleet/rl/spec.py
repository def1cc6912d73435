"""The key `rl` of a pool.

rl:
  steps: 10                              # updates of each tenant
  tenants: 4                             # identical tenants
  model: qwen3-8b                        # of all tenants; with `lora` each has an adapter of its own on it
  system: dgx-h100                       # where times are predicted
  lora: 16
  stages: apart                          # or together: a tenant holds the devices from rollout to update
  staleness: 0                           # updates that the weights of a rollout may lack; 0: on policy
  rollout: {nodes: [own], tp: 1, samples: 64, turns: 4, tokens: 256, spread: 0.5, context: 1024, at_once: 64}
  environment: {time: 2s, spread: 0.5}   # after each turn
  train: {nodes: own, time: 8s}          # or plan: {...}, predicted
  explore: {nodes: [spot], samples: 128, tokens: 10, when: stale}
  sync: {link: 50GB/s, fraction: 0.1, index_bytes: 4}
  regroup: 500ms                         # pause of replicas whose nodes join or leave
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, read, text, usage_errors
from etude.kernels.arrays import F64

BORROWED: Final = "borrowed"
"""Name of the devices that a stream lends."""


class Stages(Enum):
    TOGETHER = "together"
    APART = "apart"


class When(Enum):
    SERIAL = "serial"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """Samples that replicas make: rollouts, or exploration before them."""

    nodes: tuple[str, ...] = figure("list", "groups of nodes for rollouts", of=str)
    samples: int = figure("count", "samples of a step", 64)
    turns: int = figure("count", "turns of a sample", 1)
    tokens: int = figure("count", "mean tokens of a turn; denoising steps, for images", 256)
    spread: float = figure("number", "spread of tokens: sigma of their logarithm", 0.0)
    tp: int = figure("count", "devices of a replica", 1)
    at_once: int = figure("count", "samples that a replica has at a time", 64)
    context: int = figure("count", "mean context of a sample, for predicted times", 1024)
    step_ns: Any = figure("one", "{1: 10ms, 64: 14ms}: time of a step by number of samples; else predicted", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explore(Making):
    when: When = figure("choice", "serial, or stale: with the weights before the last update", When.SERIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    time_ns: int = figure("time", "mean time after each turn", 0)
    spread: float = figure("number", "sigma of its logarithm", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RlTraining:
    nodes: str = figure("text", "group of nodes")
    time_ns: int = figure("time", "time of an update; 0: predicted from the plan", 0)
    plan: Any = figure("one", "plan of an update, for a predicted time", None)
    switch_ns: int = figure("time", "time to switch from rollouts to training on the same devices, and back", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    link_bytes_per_s: int = figure("bandwidth", "link that all receivers share; 0: instant", 0)
    fraction: float = figure("fraction", "fraction of the weights that is sent", 1.0)
    index_bytes: int = figure("count", "bytes per index of a value, if not all are sent", 4, zero=True)
    value_bytes: int = figure("count", "bytes of a value", 2)
    weights_bytes: int = figure("bytes", "bytes of the model, or of an adapter; 0: as given by the model", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RlSpec:
    rollout: Making = figure("one", "samples that are trained on", of=Making)
    train: RlTraining = figure("one", "updates", of=RlTraining)
    steps: int = figure("count", "updates of each tenant", 10)
    tenants: int = figure("count", "number of identical tenants", 1)
    model: str = text("model of all tenants")
    system: str = text("system on which times are predicted")
    lora: int = figure("count", "rank of an adapter; 0: all weights are trained", 0)
    stages: Stages = figure("choice", "together or apart", Stages.APART)
    staleness: int = figure("count", "largest staleness of the weights of a rollout, in updates", 0)
    environment: Environment = figure("one", "between turns", Environment(), of=Environment)
    explore: Explore | None = figure("one", "samples generated before a rollout", None, of=Explore)
    sync: Sync = figure("one", "synchronisation of weights after an update", Sync(), of=Sync)
    regroup_ns: int = figure("time", "pause of replicas whose nodes join or leave", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A spec with the times of its steps."""

    spec: RlSpec
    step_ns: dict[str, F64]
    """Step times by stage: row k is a step with k samples; row 0 is not used."""
    train_ns: int
    sync_ns: int
    sync_bytes: float
    """Bytes of an update, summed over all receivers."""
    receivers: int
    weights_bytes: float = 0.0
    """Bytes that a replica holds for all tenants."""
    notes: tuple[str, ...] = field(default=())


def read_rl(given: dict[str, Any], where: str) -> RlSpec:
    def listed(part: Any) -> Any:
        if isinstance(part, dict) and isinstance(part.get("nodes"), str):
            return part | {"nodes": [name.strip() for name in part["nodes"].split(",")]}
        return part

    whole = {key: listed(value) if key in ("rollout", "explore") else value for key, value in given.items()}
    with usage_errors():
        spec = read(RlSpec, whole, f"{where}: rl")
    if spec.stages is Stages.TOGETHER and (spec.staleness or (spec.explore and spec.explore.when is When.STALE)):
        raise UsageError(
            "stages on the same devices must be on-policy", where=f"{where}: rl", hint="stages: apart, or staleness: 0"
        )
    return spec

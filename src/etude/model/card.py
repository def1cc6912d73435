"""Card: what a run is about, in a few lines that people read and scripts compare: model, plan, hardware, software.

It is stored with a job as `card.yaml`. Unknown facts are left out; an unknown key is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from etude.base.errors import ClusterError
from etude.base.figures import figure, plain, read, text, usage_errors

FORMAT: Final = 1


class Workload(StrEnum):
    NONE = ""
    TRAINING = "training"
    SERVING = "serving"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """The network. Counts are for the whole model."""

    name: str = text("name")
    family: str = text("family: decoder, encoder, dlrm, ...")
    params: int = figure("count", "parameters", 0)
    layers: int = figure("count", "layers", 0)
    hidden: int = figure("count", "width of the residual stream", 0)
    heads: int = figure("count", "attention heads", 0)
    experts: int = figure("count", "routed experts; 0: dense", 0)
    vocab: int = figure("count", "rows of the embedding", 0)
    assumed: str = text("what was assumed about the shape, and why")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCard:
    """The task, and how it was parallelised."""

    workload: Workload = figure("choice", "training or serving", Workload.NONE)
    ranks: int = figure("count", "ranks of the run", 0)
    tp: int = figure("count", "tensor parallel", 1)
    cp: int = figure("count", "context parallel", 1)
    dp: int = figure("count", "data parallel", 1)
    pp: int = figure("count", "pipeline parallel", 1)
    ep: int = figure("count", "expert parallel", 1)
    zero: int = figure("count", "ZeRO stage", 0)
    schedule: str = text("schedule of the pipeline")
    micro_batch: int = figure("count", "samples of a micro-batch", 0)
    global_batch: int = figure("count", "samples of a step", 0)
    seq: int = figure("count", "sequence length", 0)
    requests: int = figure("count", "requests that are served", 0)
    precision: str = text("precision of activations and products")
    recompute: str = text("what is recomputed")
    tokens_per_step: int = figure("count", "tokens per step on all ranks; for serving: output tokens", 0)
    model_flops_per_step: int = figure("count", "FLOPs that the model needs for a step, on all ranks", 0)
    more: Mapping[str, str] = figure("map of text", "other values of the plan", {})


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareCard:
    system: str = text("a name of `etude systems`")
    device: str = text("device of the ranks, by its own name")
    devices: int = figure("count", "number of devices", 0)
    memory_bytes: int = figure("bytes", "of one", 0)
    network: str = text("network between them")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareCard:
    tool: str = text("what made or recorded the job")
    backend: str = text("backend of communication: nccl, gloo, ...")
    versions: Mapping[str, str] = figure("map of text", "by name: torch, cuda, nccl, ...", {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The workload card of a run: its model, plan, hardware and software."""

    card: int = figure("count", "version of this format", FORMAT)
    name: str = text("name of the run")
    doc: str = text("notes for a reader")
    model: ModelCard = figure("one", "the network", ModelCard(), of=ModelCard)
    plan: PlanCard = figure("one", "what was done with it", PlanCard(), of=PlanCard)
    hardware: HardwareCard = figure("one", "hardware", HardwareCard(), of=HardwareCard)
    software: SoftwareCard = figure("one", "software", SoftwareCard(), of=SoftwareCard)

    def __post_init__(self) -> None:
        if self.card != FORMAT:
            raise ClusterError(f"card: version {self.card} is not known", hint=f"card: {FORMAT}")
        split = self.plan.tp * self.plan.cp * self.plan.dp * self.plan.pp
        if self.plan.ranks and split > 1 and split != self.plan.ranks:
            raise ClusterError(
                f"plan: tp x cp x dp x pp is {split:,}, ranks are {self.plan.ranks:,}", hint=f"ranks: {split}"
            )

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`; unknown facts are left out."""
        return {"card": self.card, **{key: value for key, value in plain(self).items() if value not in ({}, "")}}

    @classmethod
    def from_dict(cls, given: Any, where: str = "card") -> Card:
        with usage_errors(where):
            return read(cls, given, where)

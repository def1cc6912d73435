"""Prices: the predicted time of a pass of the group for the remaining ranks; and what ranks hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.base.units import format_bytes
from etude.cost.ops import EXPERTS
from etude.cost.traces import ops_of
from etude.make.generate import Plan
from etude.make.generate.passes import PassShape, held_by, pass_job
from etude.model.schema import Kind
from etude.run.simulate import simulate
from etude.steps import grown

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.make.generate.model import Model


class Price(NamedTuple):
    step_ns: int
    """Pass in which every sequence of every rank gets a token."""
    read_ns: int
    """Pass in which every rank reads one sequence."""


@dataclass(slots=True)
class ExpertPrices:
    """Prices of one model with a given number of sequences and tokens per rank. Passes are generated and simulated node
    by node: all ranks hold as many experts, and the fullest rank decides what experts take and what they are sent."""

    model: Model
    system: System
    sequences: int
    context: int
    precision: str = "bf16"
    check: bool = True
    _known: dict[tuple[int, int, int], Price] = field(default_factory=dict)

    def at(self, ranks: int, slots: int, fullest: float) -> Price:
        """`fullest`: tokens of the fullest rank over those of the mean one."""
        more = math.ceil(round(self.sequences * fullest, 6))
        key = (ranks, slots, more)
        if key not in self._known:
            self._known[key] = self._price(ranks, slots, more / self.sequences)
        return self._known[key]

    def _price(self, ranks: int, slots: int, fullest: float) -> Price:
        model, plan = self._spread(ranks, slots)
        held = held_by(model, plan, max(self.sequences, self.context))
        wanted = held.weights_bytes + held.working_bytes + held.token_bytes * self.sequences * self.context
        if self.check and self.system.memory_bytes and wanted > self.system.memory_bytes:
            raise UsageError(
                f"{slots} experts and {self.sequences} sequences of {self.context:,} tokens take "
                f"{format_bytes(wanted)} of {format_bytes(self.system.memory_bytes)} on each of {ranks} ranks",
                where=model.name,
                hint="use fewer --sequences or --redundant, --precision fp8, or --recover restart",
            )
        shapes = [
            PassShape(decode=self.sequences, keys=self.context),
            PassShape(chunk=self.context),
            PassShape(decode=round(self.sequences * fullest), keys=self.context),
            PassShape(chunk=math.ceil(round(self.context * fullest, 6))),
        ]
        shapes = shapes if fullest != 1.0 else shapes[:2]
        job = pass_job(model, plan, shapes)
        part = simulate(job, grown(self.system, len(job)), compute="roofline").part(0)
        trace, time_ns = part.trace, np.where(part.timed, part.end_ns - part.start_ns, 0)
        follows = np.isin(ops_of(trace).op_class, EXPERTS) | (trace.kind != int(Kind.COMP))

        def both(mean: int, full: int) -> int:
            own = time_ns[(trace.step == mean) & ~follows].sum()
            return int(own + time_ns[(trace.step == full) & follows].sum())

        return Price(both(0, len(shapes) - 2), both(1, len(shapes) - 1))

    def _spread(self, ranks: int, slots: int) -> tuple[Model, Plan]:
        """Every slot is a separate expert: tokens go to copies."""
        given = {"gpus": ranks, "ep": ranks, "precision": self.precision}
        return self.model.replace(experts=slots * ranks), Plan.from_dict(given, self.model.name)

    def expert_bytes(self) -> int:
        """Bytes of one expert in all layers."""
        many = self.model.experts
        held = [
            held_by(self.model, Plan.from_dict({"gpus": n, "ep": n, "precision": self.precision}, self.model.name), 1)
            for n in (1, many)
        ]
        return (held[0].weights_bytes - held[1].weights_bytes) // (many - 1)

    def rank_bytes(self, ranks: int, slots: int) -> int:
        """Weights of a rank, including its experts."""
        return held_by(*self._spread(ranks, slots), 1).weights_bytes

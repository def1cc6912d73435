"""A section by itself: its job, its ranks, and which samples it has work for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.errors import UsageError
from etude.generate.model.open import open_model
from etude.generate.plan import Plan
from etude.generate.sections.spec import Deal, Section, Sections
from etude.generate.train.job import Generated, generate
from etude.generate.train.lengths import Dealt, with_lengths
from etude.generate.train.memory import Memory

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A section by itself: its job, on ranks from 0, and where these are in the whole."""

    name: str
    section: Section
    found: Generated
    ranks: range
    slot: I64
    """Of each sample of the step: micro_batch · dp + its data-parallel rank; -1 where there is no work."""
    waits: bool
    """For gradients, before it goes backward."""
    last_pass: I64 | None = None
    """Of a rollout: with which pass of each instance each of its micro-batches of samples is done; -1: it has none."""

    @property
    def busy_samples(self) -> int:
        return int((self.slot >= 0).sum())

    @property
    def model_flops(self) -> int:
        return round(self.found.model_flops * self.busy_samples / len(self.slot))

    @property
    def fullest(self) -> float:
        """Samples of the fullest micro-batch over those of a usual one."""
        if self.last_pass is not None:
            return 1.0
        usual = self.found.plan.micro_batch // self.section.per_sample
        return int(np.bincount(self.slot[self.slot >= 0], minlength=1).max()) / usual

    def peaks(self) -> list[int]:
        """Memory of each pipeline rank at most."""
        return [_with_activations(m, self.fullest).peak_bytes for m in self.found.memory]


def _with_activations(memory: Memory, times: float) -> Memory:
    columns = {n: np.ceil(getattr(memory, n) * times).astype(np.int64) for n in ("activations", "working")}
    return replace(memory, **columns)


def place(given: Sections, name: str, ranks: range, host: float = 1.0) -> Placed:
    """`host`: factor on the host's time for an op."""
    section, waits = given.sections[name], given.takes_gradients(name)
    plan = _plan(given, name, section, len(ranks), waits)
    plan = plan.replace(host_ns=plan.host_ns * host)
    model = open_model(section.model)
    found = generate(model, plan, head=given.has_head(name))
    slot = _slots(plan, section, _active(given, name), given.batch)
    if (slot < 0).any():
        found = _with_samples(found, slot, section.per_sample)
    return Placed(name, section, found, ranks, slot, waits)


def _plan(given: Sections, name: str, section: Section, gpus: int, waits: bool) -> Plan:
    own: dict[str, Any] = {"schedule": "gpipe"} if waits else {}
    own |= section.plan
    if waits and own["schedule"] != "gpipe":
        raise UsageError(
            f"`{name}` goes backward when gradients come back: its schedule is gpipe, not {own['schedule']}",
            where=given.name,
        )
    own["micro_batch"] = own.get("micro_batch", 1) * section.per_sample
    more = {"gpus": gpus, "global_batch": given.batch * section.per_sample, "train": section.train}
    return Plan.from_dict(own | more, f"{given.name}: {name}: plan")


def _active(given: Sections, name: str) -> I64:
    """Samples that a section has work for: the first of an order of its own, whatever their number is."""
    order = np.random.default_rng([given.seed, list(given.sections).index(name)]).permutation(given.batch)
    return np.sort(order[: round(given.sections[name].active * given.batch)])


def _slots(plan: Plan, section: Section, active: I64, batch: int) -> I64:
    """Slot of each sample, micro_batch · dp + data-parallel rank, or -1: dealt in turn to the ranks, and on each of
    them to its micro-batches; or as samples stand in the batch, which is the same where all are active."""
    slot = np.full(batch, -1, np.int64)
    if section.deal == Deal.OWN or len(active) == batch:
        slot[active] = active // (plan.micro_batch // section.per_sample)
        return slot
    turn, rank = np.divmod(np.arange(len(active)), plan.dp)
    slot[active] = turn * plan.micro_batches // max(-(-len(active) // plan.dp), 1) * plan.dp + rank
    return slot


def _with_samples(found: Generated, slot: I64, per_sample: int) -> Generated:
    """Micro-batches with as many samples as they have."""
    plan = found.plan
    count = np.bincount(slot[slot >= 0], minlength=plan.dp * plan.micro_batches)
    samples = count.reshape(plan.micro_batches, plan.dp).T * per_sample
    tokens, pairs = samples * plan.seq, samples * (plan.seq * (plan.seq + 1) // 2)
    dealt = Dealt(samples, tokens, pairs, tokens, pairs, plan.micro_batches)
    return replace(found, job=with_lengths(found.job, plan, dealt))

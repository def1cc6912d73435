"""A single section: its job, its ranks, and the samples it has work for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.make.generate.model.open import open_model
from etude.make.generate.plan import Plan
from etude.make.generate.schedules.by_name import schedule
from etude.make.generate.schedules.pipeline import Action
from etude.make.generate.sections.spec import Deal, Section, Sections
from etude.make.generate.train.job import Generated, generate
from etude.make.generate.train.lengths import LONGEST, Dealt, Lengths, with_lengths
from etude.make.generate.train.memory import Memory


@dataclass(frozen=True, slots=True, eq=False)
class PlacedSection:
    """A single section: its job, on ranks from 0, and their positions in the whole job."""

    name: str
    section: Section
    found: Generated
    ranks: range
    slot: I64
    """Slot of each sample of the step, or of each input (`sample_of`): micro_batch · dp + its data-parallel rank; -1 if
    there is no work."""
    waits: bool
    """Whether it waits for gradients before its backward."""
    chunk: tuple[int, int] = (0, 1)
    """In a joint pipeline on shared ranks: (its index, number of sections)."""
    joint: bool = False
    """Whether its pipeline continues with another section."""
    last_pass: I64 | None = None
    """For a rollout: the pass of each instance with which each of its micro-batches of samples is done; -1: none."""
    sample_of: I64 | None = None
    """Where inputs have slots of their own: the sample of each."""

    @property
    def busy_samples(self) -> int:
        busy = self.slot >= 0
        return int(busy.sum()) if self.sample_of is None else len(np.unique(self.sample_of[busy]))

    @property
    def busy_inputs(self) -> int:
        return len(self.slot) if self.sample_of is not None else self.busy_samples * self.section.per_sample

    @property
    def model_flops(self) -> int:
        if self.sample_of is None:
            return round(self.found.model_flops * self.busy_samples / len(self.slot))
        return round(self.found.model_flops * self.busy_inputs / self.found.plan.global_batch)

    @property
    def fullest(self) -> float:
        """Samples, or inputs, of the fullest micro-batch over those of a usual one."""
        if self.last_pass is not None:
            return 1.0
        usual = self.found.plan.micro_batch
        if self.sample_of is None:
            usual //= self.section.per_sample
        return int(np.bincount(self.slot[self.slot >= 0], minlength=1).max()) / usual

    def peaks(self) -> list[int]:
        """Peak memory of each pipeline rank."""
        return [_with_activations(m, self.fullest).peak_bytes for m in self.found.memory]


def _with_activations(memory: Memory, times: float) -> Memory:
    columns = {n: np.ceil(getattr(memory, n) * times).astype(np.int64) for n in ("activations", "working")}
    return replace(memory, **columns)


def place(given: Sections, name: str, ranks: Mapping[str, range], host: float = 1.0) -> PlacedSection:
    """`ranks`: number per section. `host`: factor on the host's time for an op."""
    section, waits = given.sections[name], given.takes_gradients(name)
    plan = _plan(given, name, ranks)
    plan = plan.replace(host_ns=plan.host_ns * host)
    model = open_model(section.model)
    found = generate(model, plan, head=given.has_head(name))
    chain, joint = given.pipeline(name), any(b.joint and name in (b.source, b.target) for b in given.borders)
    active = _active(given, name)
    slot = _slots(plan, section, active, given.batch, joint=joint)
    sample_of = None
    if section.counts_inputs:
        sample_of = np.repeat(active, _inputs(given, name, len(active)))
        slot = _turns(plan, len(sample_of)) if section.deal == Deal.INPUTS else slot[sample_of]
    if (slot < 0).any() or sample_of is not None:
        found = _with_samples(found, slot, section.per_sample if sample_of is None else 1)
    chunk = chain.index(name), len(chain)
    then = bool(given.next_of(name))
    return PlacedSection(name, section, found, ranks[name], slot, waits, chunk, then, sample_of=sample_of)


def _plan(given: Sections, name: str, ranks: Mapping[str, range]) -> Plan:
    if given.ordered(name):
        return _joint_plan(given, name, ranks)
    waits = given.takes_gradients(name)
    own: dict[str, Any] = {"schedule": "gpipe"} if waits else {}
    own |= given.sections[name].plan
    if waits and own["schedule"] != "gpipe":
        problem = f"`{name}` runs backward when gradients arrive: its schedule must be gpipe, not {own['schedule']}"
        raise UsageError(problem, where=given.name, hint="or a border with `joint: true`")
    return _read_plan(given, name, own, ranks)


def _read_plan(given: Sections, name: str, own: Mapping[str, Any], ranks: Mapping[str, range]) -> Plan:
    section = given.sections[name]
    more = {"gpus": len(ranks[name]), "global_batch": given.batch * section.per_sample, "train": section.train}
    more["micro_batch"] = own.get("micro_batch", 1) * section.per_sample
    return Plan.from_dict({**own, **more}, f"{given.name}: {name}: plan")


def _joint_plan(given: Sections, name: str, ranks: Mapping[str, range]) -> Plan:
    """Plan of a section whose pipeline continues with another, or began with one, on the same ranks: its order is a
    part of that of the whole."""
    chain, own = given.pipeline(name), given.sections[name].plan
    if "schedule" in own:
        hint = "leave out `schedule`"
        raise UsageError(f"`{name}` is part of a joint pipeline, which has a single order", where=given.name, hint=hint)
    if len(chain) > 1:
        plan = _read_plan(given, name, own | {"schedule": f"interleaved:{len(chain)}#{chain.index(name)}"}, ranks)
        others = {n: _read_plan(given, n, given.sections[n].plan, ranks) for n in chain}
        if len({p.pp for p in others.values()}) > 1:
            told = ", ".join(f"`{n}` {p.pp}" for n, p in others.items())
            raise UsageError(
                f"all sections of a joint pipeline on shared ranks must have the same number of stages, not {told}",
                where=given.name,
                hint="use the same `pp`, or separate ranks",
            )
    else:
        then = given.next_of(name)
        after = _plan(given, then, ranks)
        plan = _read_plan(given, name, own | {"schedule": f"1f1b:{_under_way(after, given, then)}"}, ranks)
        others = {name: plan, then: after}
    if len({p.micro_batches for p in others.values()}) > 1:
        told = ", ".join(f"`{n}` {p.micro_batches}" for n, p in others.items())
        problem = f"all sections of a joint pipeline must have the same number of micro-batches, not {told}"
        raise UsageError(problem, where=given.name, hint="change `micro_batch`")
    return plan


def _under_way(plan: Plan, given: Sections, name: str) -> int:
    """Most micro-batches that a pipeline accepts before it returns a gradient, in order."""
    made = schedule(plan.schedule, ranks=plan.pp, micro_batches=plan.micro_batches)
    first = made.stage == 0
    goes, comes = first & (made.action == Action.FORWARD), first & np.isin(made.action, (Action.BACKWARD, Action.INPUT))
    alone = len(made.holders[0]) == 1 and not made.window
    if not alone or any((np.diff(made.micro_batch[rows]) < 0).any() for rows in (goes, comes)):
        problem = f"`{name}`: schedule `{plan.schedule}` takes micro-batches at several ranks or out of order"
        raise UsageError(problem, where=given.name, hint="1f1b, interleaved or zb1p")
    return int(np.cumsum(goes.astype(np.int64) - comes).max())


def _active(given: Sections, name: str) -> I64:
    """Samples that a section has work for: the first ones of a separate random order, for any number of them."""
    order = np.random.default_rng([given.seed, list(given.sections).index(name)]).permutation(given.batch)
    return np.sort(order[: round(given.sections[name].active * given.batch)])


def _inputs(given: Sections, name: str, samples: int) -> I64:
    """Inputs of each sample that the section has work for."""
    section = given.sections[name]
    if not section.inputs:
        return np.full(samples, section.per_sample, np.int64)
    drawn = Lengths.parse(section.inputs).stream(given.seed, LONGEST)
    return np.array(list(islice(drawn, samples)), np.int64)


def _turns(plan: Plan, count: int) -> I64:
    """Slots of things dealt round robin to the ranks, and on each of them to its micro-batches."""
    turn, rank = np.divmod(np.arange(count), plan.dp)
    return np.asarray(turn * plan.micro_batches // max(-(-count // plan.dp), 1) * plan.dp + rank, np.int64)


def _slots(plan: Plan, section: Section, active: I64, batch: int, *, joint: bool = False) -> I64:
    """Slot of each sample, micro_batch · dp + data-parallel rank, or -1: assigned round robin to the ranks, and on each
    of them to its micro-batches; or by position in the batch, which is the same where all are active. In a joint
    pipeline a sample stays in its micro-batch."""
    slot = np.full(batch, -1, np.int64)
    if section.deal == Deal.OWN or len(active) == batch:
        slot[active] = active // (plan.micro_batch // section.per_sample)
        return slot
    if joint:
        micro = active * plan.micro_batches // batch
        place = np.arange(len(active)) - np.searchsorted(micro, micro)
        slot[active] = micro * plan.dp + place % plan.dp
        return slot
    slot[active] = _turns(plan, len(active))
    return slot


def _with_samples(found: Generated, slot: I64, per_sample: int) -> Generated:
    """Micro-batches with their actual number of samples."""
    plan = found.plan
    count = np.bincount(slot[slot >= 0], minlength=plan.dp * plan.micro_batches)
    samples = count.reshape(plan.micro_batches, plan.dp).T * per_sample
    tokens, pairs = samples * plan.seq, samples * (plan.seq * (plan.seq + 1) // 2)
    dealt = Dealt(samples, tokens, pairs, tokens, pairs, plan.micro_batches)
    return replace(found, job=with_lengths(found.job, plan, dealt))

"""Unequal parts of a sequence, and of its heads, for ranks on devices of several kinds.

search: shares
model: llama3-8b
layers: 2                              # that are simulated, of those of the model, which are alike; 0: all
plan: {gpus: 16, cp: 16, seq: 262144, global_batch: 1, zero: 3, recompute: full, cp_map: zigzag}
system: h100x8-a100x8.yaml
unit: 1024                             # tokens that parts are multiples of
over: [tokens]                         # or [tokens, heads], with cp_kind: ulysses in the place of cp_map
by: kind                               # ranks on one kind of device have the same; or rank: each its own
network: analytic                      # or flow, links
tries: 100                             # simulations at most
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.decide.search.class_shares import ClassShares, DeviceClasses, Whole, classes_of
from etude.decide.search.crew import crew
from etude.decide.search.found import Found, Row
from etude.decide.search.request import PARALLEL, SearchRequest, SpaceFile
from etude.decide.search.short_models import shortened
from etude.decide.search.solver import Answer, CandidateSpace, Trials, every, greedy
from etude.machine import System, open_system
from etude.make.generate import Generated, Plan, generate
from etude.make.generate.model import Model, open_model
from etude.make.generate.train import plan_memory, sequence_of
from etude.run.simulate import simulate

TRIES: Final = 100
MOST: Final = 5000
"""Candidates that `all` goes through at most."""
STEPS: Final = (16, 8, 4, 2, 1)
"""Units that are moved from one class to another, the most first."""
MEMORY: Final = "does not fit the memory"
BOUND: Final = "its compute alone takes longer"
LEFT: Final = "not examined"
KNOWN: Final = ("model", "layers", "plan", "system", "unit", "over", "by", "network", "tries")


@dataclass
class ShareSpace(CandidateSpace[ClassShares]):
    """Parts of each class. A neighbour moves some of one class to another, in ever smaller steps."""

    model: Model
    plan: Plan
    system: System
    classes: DeviceClasses
    tokens: Whole
    heads: Whole | None
    limits: tuple[float, ...]
    """For each class: the largest share of activations, relative to an equal one, that its memory holds."""
    network: str
    tries: int
    noun, beaten, rest, round_size, side_by_side = "parts", BOUND, LEFT, 16, False

    def __post_init__(self) -> None:
        self.methods, self.scores = {"greedy": greedy, "all": every}, {"time_ns": 1}
        self.size = len(self.tokens) * (len(self.heads) if self.heads else 1)
        self.equal_ns: int | None = None
        self.step = 0
        """Which of STEPS descents try."""

    @contextmanager
    def working(self, asked: SearchRequest) -> Iterator[None]:
        shared = {name: getattr(self, name) for name in ("model", "plan", "system", "classes", "network")}
        with crew(simulated, shared, asked) as self.workers:
            yield

    @property
    def equal(self) -> ClassShares:
        ranks = len(self.classes.of)
        heads = (self.heads.total // ranks,) * len(self.classes.names) if self.heads else ()
        return ClassShares((self.tokens.total // ranks,) * len(self.classes.names), heads)

    def of_equal(self, parts: ClassShares) -> list[tuple[float, float]]:
        """(Tokens, heads) of each class over an equal part."""
        ranks = len(self.classes.of)
        tokens = [t * ranks / self.tokens.total for t in parts.tokens]
        heads = [h * ranks / self.heads.total for h in parts.heads] if self.heads else [0.0] * len(tokens)
        return list(zip(tokens, heads, strict=True))

    def fits(self, parts: ClassShares) -> bool:
        return all(max(own) <= limit for own, limit in zip(self.of_equal(parts), self.limits, strict=True))

    def bound(self, one: ClassShares) -> Answer:
        return {} if self.fits(one) else MEMORY

    def rows(self, some: Sequence[ClassShares], limit: float) -> list[Answer]:
        most = None if np.isinf(limit) else int(limit)
        points = [{"tokens": list(p.tokens), "heads": list(p.heads), "limit_ns": most} for p in some]
        return [self._row(p, answer.get("ns")) for p, answer in zip(some, self.workers.ask(points), strict=True)]

    def _row(self, parts: ClassShares, time_ns: int | None) -> Answer:
        if time_ns is None:
            return BOUND
        if parts == self.equal:
            self.equal_ns = time_ns
        row: Row = {"time_ns": time_ns, "tokens": self.classes.named(parts.tokens)}
        row |= {"heads": self.classes.named(parts.heads)} if parts.heads else {}
        return row | {"gain": self.equal_ns / time_ns if self.equal_ns else None}

    def order(self, one: ClassShares, row: Row) -> ClassShares:
        return one

    def candidates(self) -> list[ClassShares]:
        if self.size > MOST:
            raise UsageError(
                f"{self.size:,} candidates are more than {MOST:,}", hint="--method greedy, or a larger `unit`"
            )
        return list(self.all())

    def all(self) -> Iterator[ClassShares]:
        for tokens in self.tokens.all():
            if self.heads is None:
                yield ClassShares(tokens)
            else:
                yield from (ClassShares(tokens, heads) for heads in self.heads.all())

    def begin(self, trials: Trials[ClassShares]) -> None:
        """Equal parts, or the first that fit."""
        trials.ask([self.equal])
        if not trials.rows:
            fitting = next((parts for parts in self.all() if self.fits(parts)), None)
            if fitting is None:
                hint = "more --cp, --zero 3, --recompute full"
                raise UsageError("no shares fit the memory of every device", hint=hint)
            trials.ask([fitting])

    def starts(self, trials: Trials[ClassShares], draw: np.random.Generator, count: int) -> list[ClassShares]:
        """The better of the first and of parts in proportion to the rates of devices."""
        trials.ask([in_proportion(self, next(iter(trials.rows)))])
        return [trials.ranked()[0][0]]

    def neighbours(self, one: ClassShares) -> Iterator[ClassShares]:
        """By the largest step that may still be better, then by smaller ones."""
        while self.step < len(STEPS):
            yield from self.near(one, STEPS[self.step])
            self.step += 1

    def near(self, parts: ClassShares, times: int) -> Iterator[ClassShares]:
        for tokens in self.tokens.moved(parts.tokens, times):
            yield ClassShares(tokens, parts.heads)
        if self.heads is not None:
            yield from (ClassShares(parts.tokens, heads) for heads in self.heads.moved(parts.heads, times))

    def found(self, trials: Trials[ClassShares]) -> Found:
        best, row = trials.ranked()[0]
        rates = [device.peak(self.plan.dtype) for device in self.classes.devices]
        shards, heads = self.classes.by_rank(best.tokens), self.classes.by_rank(best.heads) if best.heads else ()
        most = sum(r * n for r, n in zip(rates, self.classes.counts, strict=True)) / (min(rates) * len(shards))
        more = {"equal_ns": self.equal_ns, "gain": row["gain"], "most_gain": most, "shards": list(shards)}
        return trials.found(more=more | {"heads": list(heads), "room": self.classes.named(self.limits)})


def least_ns(made: Generated, system: System) -> int:
    """Operations of a rank over the highest peak of its device, of the rank that takes longest."""
    job, peaks = made.job, [max(kind.peak_flop_per_s.values(), default=np.inf) for kind in system.all_kinds]
    found = 0.0
    for rank, kind in zip(job.ranks.tolist(), system.kind_of(job.ranks).tolist(), strict=True):
        flops = job.trace(rank).flops
        found = max(found, float(flops[flops > 0].sum()) / peaks[kind])
    return int(found * 1e9)


def simulated(
    tokens: Sequence[int], heads: Sequence[int], limit_ns: int | None, *, model: Model, plan: Plan, system: System,
    classes: DeviceClasses, network: str,
) -> dict[str, int]:  # fmt: skip
    """`ns` of these parts of each class, unless their operations alone take as long as the limit."""
    own = plan.replace(
        cp_shares=classes.by_rank(tuple(tokens)), cp_heads=classes.by_rank(tuple(heads)) if heads else ()
    )
    made = generate(model, own)
    if limit_ns is not None and least_ns(made, system) >= limit_ns:
        return {}
    return {"ns": simulate(made.job, system, network=network).makespan_ns}


def space(given: SpaceFile, asked: SearchRequest) -> ShareSpace:
    given.only(*KNOWN)
    if asked.one_of("greedy", "all") == "greedy":
        asked.in_turn("`greedy`", "--method all")
    return read_shares(given)


def options(keys: Mapping[str, Any], method: str) -> frozenset[str]:
    return PARALLEL


def in_proportion(space: ShareSpace, start: ClassShares) -> ClassShares:
    """Parts for which the slowest class takes least, by rates alone, among those that fit; by moves of one unit."""
    rates = [device.peak(space.plan.dtype) for device in space.classes.devices]

    def longest(parts: ClassShares) -> list[list[float]]:
        """For tokens, then for heads: the classes' times, the longest first."""
        columns = zip(*space.of_equal(parts), strict=True)
        return [sorted((x / r for x, r in zip(own, rates, strict=True)), reverse=True) for own in columns]

    now = start
    for step in STEPS:
        while True:
            best = min((p for p in space.near(now, step) if space.fits(p)), key=longest, default=now)
            if longest(best) >= longest(now):
                break
            now = best
    return now


def read_shares(given: SpaceFile) -> ShareSpace:
    keys, where = given.keys, given.where
    plan_given, over = keys.get("plan", {}), keys.get("over", ["tokens"])
    if not isinstance(plan_given, Mapping):
        raise UsageError("`plan` is keys and values", where=where, hint="plan: {gpus: 16, cp: 16, cp_map: zigzag}")
    if over not in (["tokens"], ["tokens", "heads"]):
        raise UsageError(f"over: `{over}`", where=where, hint="over: [tokens], or [tokens, heads]")
    if keys.get("by", "kind") not in ("kind", "rank"):
        raise UsageError(f"by: `{keys['by']}`", where=where, hint="by: kind, or rank")
    model = open_model(given.noun("model", "model: llama3-8b"))
    plan = Plan.from_dict(plan_given, f"{where}: plan")
    plan = plan.replace(seq=plan.seq or sequence_of(model))
    if plan.cp < 2 or plan.cp_shares or plan.cp_heads:
        raise UsageError("shares need context-parallel ranks", where=f"{where}: plan", hint="cp: 16, and no cp_shares")
    system = open_system(given.noun("system", "system: dgx-h100, or a file")).for_ranks(plan.gpus)
    classes = classes_of(plan, _numbers(plan), system, each=keys.get("by") == "rank")
    unit = given.count("unit", max(plan.seq // (plan.cp * 16), 1), 1)
    if plan.seq // plan.cp % unit:
        raise UsageError(
            f"an equal part, {plan.seq // plan.cp:,} tokens, is not a multiple of {unit:,}", where=f"{where}: unit"
        )
    heads = None
    if "heads" in over:
        share = model.heads // plan.tp
        heads = Whole(total=share, unit=max(model.heads // max(model.kv, 1), 1), counts=classes.counts)
    return ShareSpace(
        shortened(model, given.count("layers")), plan, system, classes,
        Whole(total=plan.seq, unit=unit, counts=classes.counts), heads, _limits(plan_memory(model, plan), classes),
        str(keys.get("network", "analytic")), given.count("tries", TRIES, 1),
    )  # fmt: skip


def _numbers(plan: Plan) -> list[int]:
    """Context-parallel number of each rank."""
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
    step = 1
    for axis in plan.order.split("-"):
        if axis == "cp":
            break
        step *= sizes[axis]
    return (np.arange(plan.gpus) // step % plan.cp).tolist()


def _limits(of_ranks: Sequence[Any], classes: DeviceClasses) -> tuple[float, ...]:
    """How many equal parts of activations each class has room for, besides weights and states; endless if unknown."""
    found = []
    for device in classes.devices:
        rooms = [(device.memory_bytes - m.static_bytes) / max(m.moving_bytes, 1) for m in of_ranks]
        found.append(min(rooms) if device.memory_bytes else float("inf"))
    return tuple(found)

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.decide.search.crew import crew
from etude.decide.search.found import Found, Row
from etude.decide.search.given import Given, SearchRequest
from etude.decide.search.shares_space import ClassShares, DeviceClasses, Whole, classes_of
from etude.decide.search.short_models import count, model_file, shortened, system_file
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
ROUND: Final = 16
"""Candidates that `all` simulates at once, whatever the number of workers: what is tried does not depend on it."""
MEMORY: Final = "does not fit the memory"
BOUND: Final = "its compute alone takes longer"
LEFT: Final = "not examined"
KNOWN: Final = ("model", "layers", "plan", "system", "unit", "over", "by", "network", "tries")


Ask = Callable[[Sequence[Mapping[str, Any]]], list[dict[str, Any]]]


@dataclass(slots=True)
class ShareSpace:
    """A space of parts, and what is known of it."""

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
    ask: Ask | None = None
    """What makes and simulates parts."""
    times: dict[ClassShares, int] = field(default_factory=dict)
    over: set[ClassShares] = field(default_factory=set)
    """Too large for a memory."""
    slow: set[ClassShares] = field(default_factory=set)
    """Ruled out by operations over peak rates."""

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

    def score(self, parts: ClassShares, limit_ns: float) -> int | None:
        """ns; nothing where it does not fit, cannot be below the limit, or where tries are used up."""
        if parts not in self.times and self.wanted(parts) and len(self.times) < self.tries:
            self.simulate([parts], limit_ns)
        return self.times.get(parts)

    def wanted(self, parts: ClassShares) -> bool:
        """Is it not known yet, and does it fit?"""
        if parts not in self.times and not self.fits(parts):
            self.over.add(parts)
        return parts not in self.times and parts not in self.over

    def simulate(self, some: Sequence[ClassShares], limit_ns: float) -> None:
        assert self.ask is not None
        limit = None if np.isinf(limit_ns) else int(limit_ns)
        points = [{"tokens": list(p.tokens), "heads": list(p.heads), "limit_ns": limit} for p in some]
        for parts, found in zip(some, self.ask(points), strict=True):
            if "ns" in found:
                self.times[parts] = found["ns"]
            else:
                self.slow.add(parts)

    def all(self) -> Iterator[ClassShares]:
        for tokens in self.tokens.all():
            if self.heads is None:
                yield ClassShares(tokens)
            else:
                yield from (ClassShares(tokens, heads) for heads in self.heads.all())

    def near(self, parts: ClassShares, times: int) -> Iterator[ClassShares]:
        for tokens in self.tokens.moved(parts.tokens, times):
            yield ClassShares(tokens, parts.heads)
        if self.heads is not None:
            yield from (ClassShares(parts.tokens, heads) for heads in self.heads.moved(parts.heads, times))

    def __len__(self) -> int:
        return len(self.tokens) * (len(self.heads) if self.heads else 1)


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


def solve(given: Given, asked: SearchRequest) -> Found:
    given.only(*KNOWN)
    method = asked.one_of("greedy", "all")
    if method == "greedy":
        asked.in_turn("`greedy`", "--method all")
    space = read_shares(given)
    shared = {
        "model": space.model, "plan": space.plan, "system": space.system, "classes": space.classes,
        "network": space.network,
    }  # fmt: skip
    with crew(simulated, shared, asked) as workers:
        space.ask = workers.ask
        start = space.equal
        if not space.fits(start):
            space.over.add(start)
            start = _fitting(space)
        space.score(start, np.inf)
        if method == "all":
            _every(space, asked)
        else:
            _greedy(space, asked)
    return _found(space)


def _fitting(space: ShareSpace) -> ClassShares:
    """The first that fits where equal parts do not."""
    found = next((parts for parts in space.all() if space.fits(parts)), None)
    if found is None:
        raise UsageError("no shares fit the memory of every device", hint="more --cp, --zero 3, --recompute full")
    return found


def _every(space: ShareSpace, asked: SearchRequest) -> None:
    if len(space) > MOST:
        raise UsageError(
            f"{len(space):,} candidates are more than {MOST:,}", hint="--method greedy, or a larger `unit`"
        )
    space.tries = max(space.tries, len(space))
    left = filter(space.wanted, space.all())
    with asked.progress("parts", len(space)) as advance:
        while some := list(islice(left, ROUND)):
            space.simulate(some, min(space.times.values()))
            advance(len(some))


def _greedy(space: ShareSpace, asked: SearchRequest) -> None:
    """From equal parts and from parts in proportion to the rates of devices: what is better when moved, in ever
    smaller steps."""
    with asked.progress("parts", space.tries) as advance:
        first = in_proportion(space)
        space.score(first, np.inf)
        now = min(space.times, key=lambda parts: (space.times[parts], parts))
        for step in STEPS:
            better = True
            while better:
                better = False
                for parts in space.near(now, step):
                    before = len(space.times)
                    time = space.score(parts, space.times[now])
                    advance(len(space.times) - before)
                    if time is not None and time < space.times[now]:
                        now, better = parts, True
                        break


def in_proportion(space: ShareSpace) -> ClassShares:
    """Parts for which the slowest class takes least, by rates alone, among those that fit; by moves of one unit."""
    rates = [device.peak(space.plan.dtype) for device in space.classes.devices]

    def longest(parts: ClassShares) -> list[list[float]]:
        """For tokens, then for heads: the classes' times, the longest first."""
        columns = zip(*space.of_equal(parts), strict=True)
        return [sorted((x / r for x, r in zip(own, rates, strict=True)), reverse=True) for own in columns]

    now = space.equal if space.fits(space.equal) else next(iter(space.times))
    for step in STEPS:
        while True:
            best = min((p for p in space.near(now, step) if space.fits(p)), key=longest, default=now)
            if longest(best) >= longest(now):
                break
            now = best
    return now


def _found(space: ShareSpace) -> Found:
    equal_ns = space.times.get(space.equal)
    rows: list[Row] = []
    for parts, time in sorted(space.times.items(), key=lambda item: (item[1], item[0])):
        row: Row = {"time_ns": time, "tokens": space.classes.named(parts.tokens)}
        row |= {"heads": space.classes.named(parts.heads)} if parts.heads else {}
        rows.append(row | {"gain": equal_ns / time if equal_ns else None})
    best = min(space.times, key=lambda parts: (space.times[parts], parts))
    pruned = {MEMORY: len(space.over), BOUND: len(space.slow - set(space.times))}
    pruned[LEFT] = len(space) - len(rows) - sum(pruned.values())
    rates = [device.peak(space.plan.dtype) for device in space.classes.devices]
    shards, heads = space.classes.by_rank(best.tokens), space.classes.by_rank(best.heads) if best.heads else ()
    most = sum(r * n for r, n in zip(rates, space.classes.counts, strict=True)) / (min(rates) * len(shards))
    return Found(
        best=rows[0], frontier=rows[:1], tried=len(rows), space=len(space), rows=rows,
        pruned={name: number for name, number in pruned.items() if number},
        more={"equal_ns": equal_ns, "gain": rows[0]["gain"], "most_gain": most, "shards": list(shards),
              "heads": list(heads), "room": space.classes.named(space.limits)},
    )  # fmt: skip


def read_shares(given: Given) -> ShareSpace:
    keys, where = given.keys, given.where
    plan_given, over = keys.get("plan", {}), keys.get("over", ["tokens"])
    if not isinstance(plan_given, Mapping):
        raise UsageError("`plan` is keys and values", where=where, hint="plan: {gpus: 16, cp: 16, cp_map: zigzag}")
    if over not in (["tokens"], ["tokens", "heads"]):
        raise UsageError(f"over: `{over}`", where=where, hint="over: [tokens], or [tokens, heads]")
    if keys.get("by", "kind") not in ("kind", "rank"):
        raise UsageError(f"by: `{keys['by']}`", where=where, hint="by: kind, or rank")
    model = open_model(model_file(given))
    plan = Plan.from_dict(plan_given, f"{where}: plan")
    plan = plan.replace(seq=plan.seq or sequence_of(model))
    if plan.cp < 2 or plan.cp_shares or plan.cp_heads:
        raise UsageError("shares need context-parallel ranks", where=f"{where}: plan", hint="cp: 16, and no cp_shares")
    system = open_system(system_file(given)).for_ranks(plan.gpus)
    classes = classes_of(plan, _numbers(plan), system, each=keys.get("by") == "rank")
    unit = count(given, "unit", max(plan.seq // (plan.cp * 16), 1), 1)
    if plan.seq // plan.cp % unit:
        raise UsageError(
            f"an equal part, {plan.seq // plan.cp:,} tokens, is not a multiple of {unit:,}", where=f"{where}: unit"
        )
    heads = None
    if "heads" in over:
        share = model.heads // plan.tp
        heads = Whole(total=share, unit=max(model.heads // max(model.kv, 1), 1), counts=classes.counts)
    return ShareSpace(
        shortened(model, count(given, "layers")), plan, system, classes,
        Whole(total=plan.seq, unit=unit, counts=classes.counts), heads, _limits(plan_memory(model, plan), classes),
        str(keys.get("network", "analytic")), count(given, "tries", TRIES, 1),
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
